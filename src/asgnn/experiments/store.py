"""The store: one SQLite file of results, which several processes may write and which may be stopped at any moment."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from asgnn.errors import ConfigError, DataCorrupt, DataUnavailable
from asgnn.experiments import schema
from asgnn.experiments.rows import columns, heard, mapping, pack, require, text, unpack
from asgnn.experiments.schema import APPLICATION, ATTACKS, CHOICES, OUTCOMES, SCHEMA, TABLES, damaged, sentences
from asgnn.experiments.trainings import Case, Choice, Outcome, Series, Training, key_of, settings_of
from asgnn.graphs import Perturbation

T = TypeVar("T")
PAGE = 500  # rows read at once: every SQLite takes 999 parameters, and no lock is held between two pages


@dataclass(frozen=True)
class Counts:
    """What became of the records of one kind.

    Attributes:
        new: taken over.
        there: were here already, and equal.
        conflicts: were here already with another content, which was kept.
    """

    new: int = 0
    there: int = 0
    conflicts: int = 0


@dataclass(frozen=True)
class Merged:
    """What a merge did, kind by kind."""

    trainings: Counts
    choices: Counts
    series: Counts
    attacks: Counts


@dataclass(frozen=True)
class Summary:
    """What a store holds.

    Attributes:
        trainings, choices, series, attacks: how many.
        seconds: of all trainings; attack_seconds, of all attacks.
        machines, versions: how many trainings were made on and with each.
        size: of the file, in bytes.
    """

    trainings: int
    choices: int
    series: int
    attacks: int
    seconds: float
    attack_seconds: float
    machines: Mapping[str, int]
    versions: Mapping[str, int]
    size: int


@dataclass(frozen=True)
class _Attack:
    """A row of attacks: the specification as canonical JSON, the flips also as the bytes of their archive."""

    spec: str
    flips: Perturbation
    archive: bytes
    seconds: float
    machine: str

    @property
    def key(self) -> str:
        return key_of(json.loads(self.spec))


class Store:
    """Results on the disk, by key: opened with :meth:`open`, closed with :meth:`close` or by ``with``.

    What one call of an ``add`` method writes is kept whole or not at all, also where the process is killed; when it
    returns, it is on the disk. Whoever writes waits for other writers, up to a minute. Every record that is read is
    held against its key.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection

    @classmethod
    def open(cls, path: str | Path, *, create: bool = True) -> Store:
        """The store in a file, which is made if it is not there or empty; with ``create=False`` that is an error.

        Time: the whole file is read once, to know that it is not damaged.
        """
        path = Path(path)
        try:
            there, folder = path.exists(), path.parent.is_dir()
        except OSError as cause:
            raise DataUnavailable(f"{path} could not be opened: {cause.strerror or cause}.") from cause
        if there and path.is_dir():
            raise ConfigError(f"{path} is a folder; a store is a file.")
        if not there and not create:
            raise DataUnavailable(f"There is no store {path}.")
        if not folder:
            raise DataUnavailable(f"{path} cannot be made, since there is no folder {path.parent}.")
        # A URI, because only there can SQLite be told not to make a file. The journal is SQLite's default, a file that
        # is deleted after each transaction: the store itself is then always one file, to be copied and committed.
        address = f"{path.absolute().as_uri()}?mode={'rwc' if create else 'rw'}"
        with sentences(path):
            connection = sqlite3.connect(address, uri=True, timeout=schema.PATIENCE, isolation_level=None)
        store = cls(path, connection)
        try:
            store._prepare(create)
        except BaseException:
            store.close()
            raise
        return store

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- trainings ---

    def add(self, outcomes: Iterable[Outcome]) -> int:
        """Keep all or none; a training that is there already is left as it is. Returns how many were new."""
        outcomes = list(outcomes)  # before the lock: they may be made one by one, and slowly
        with self._writing():
            return sum(self._put(outcome) for outcome in outcomes)

    def get(self, keys: Iterable[str]) -> dict[str, Outcome]:
        """What is there of the trainings with these keys, in the order of the keys."""
        wanted = list(dict.fromkeys(keys))
        found: dict[str, Outcome] = {}
        for start in range(0, len(wanted), PAGE):
            page = [bytes.fromhex(key) for key in wanted[start : start + PAGE]]
            rows = self._rows(f"{OUTCOMES} WHERE t.key IN ({', '.join('?' * len(page))})", page)
            found |= {row[0].hex(): self._outcome(row) for row in rows}
        return {key: found[key] for key in wanted if key in found}

    def outcomes(self) -> Iterator[Outcome]:
        """All of them in the order of their keys; one may write while going through them."""
        last = b""
        while rows := self._rows(f"{OUTCOMES} WHERE t.key > ? ORDER BY t.key LIMIT {PAGE}", [last]):
            yield from map(self._outcome, rows)
            last = rows[-1][0]

    # --- choices, series, attacks ---

    def add_choices(self, choices: Iterable[Choice]) -> None:
        """Keep all or none; a choice takes the place of an earlier one with its key."""
        choices = list(choices)
        with self._writing():
            for choice in choices:
                self._put_choice(choice)

    def choices(self, table: str | None = None) -> list[Choice]:
        """Those of one table, or all, in the order of their keys."""
        where, given = ("", []) if table is None else ('WHERE h."table" = ?', [table])
        return [self._choice(row) for row in self._rows(f"{CHOICES} {where} ORDER BY h.key", given)]

    def add_series(self, series: Iterable[Series]) -> None:
        """Keep all or none; a series takes the place of an earlier one of its training and kind."""
        series = list(series)
        with self._writing():
            for one in series:
                self._put_series(one)

    def series(self, kind: str) -> list[Series]:
        """Those of one kind, in the order of their trainings' keys."""
        return [one for one in self._all_series() if one.kind == kind]

    def add_attack(self, spec: Mapping[str, Any], flips: Perturbation, *, seconds: float, machine: str) -> None:
        """Keep the flips of an attack; one whose specification is there already is left as it is."""
        attack = _Attack(text(spec), flips, pack(flips), seconds, machine)
        with self._writing():
            self._put_attack(attack)

    def attack(self, spec: Mapping[str, Any]) -> Perturbation | None:
        """The flips of an attack, or ``None`` if they are not there."""
        found = self._attacks("WHERE a.key = ?", [bytes.fromhex(key_of(spec))])
        return found[0].flips if found else None

    # --- the whole ---

    def merge(self, other: str | Path, *, reported: bool = False) -> Merged:
        """Take over what another store has and this one has not, all of it or nothing; what is here stays as it is.

        With ``reported`` only those trainings that stand in a cell of a table, without the searches before them.
        """
        other = Path(other)
        if other.exists() and other.samefile(self.path):
            raise ConfigError(f"{other} cannot be merged into itself.")
        with Store.open(other, create=False) as source, self._writing():
            choices = {one.key: one for one in self.choices()}
            series = {(one.training, one.kind): one for one in self._all_series()}
            attacks = {one.key: one for one in self._attacks()}
            return Merged(
                trainings=_take(
                    source._reported() if reported else source.outcomes(),
                    lambda one: next(iter(self.get([one.training.key]).values()), None),
                    _measured,
                    self._put,
                ),
                choices=_take(source.choices(), lambda one: choices.get(one.key), _described, self._put_choice),
                series=_take(
                    source._all_series(),
                    lambda one: series.get((one.training, one.kind)),
                    lambda one: text(one.content),
                    self._put_series,
                ),
                attacks=_take(source._attacks(), lambda one: attacks.get(one.key), _digest, self._put_attack),
            )

    def _reported(self) -> Iterable[Outcome]:
        return self.get(sorted({key for choice in self.choices() for key in choice.trainings})).values()

    def vacuum(self) -> None:
        """Write the file anew without gaps, which records that came in the order of their making leave between them."""
        with sentences(self.path):
            self._connection.execute("VACUUM")

    def summary(self) -> Summary:
        def by(column: str) -> dict[str, int]:
            grouped = f"SELECT text, count(*) FROM trainings JOIN texts ON id = {column} GROUP BY text ORDER BY text"
            return dict(self._rows(grouped))

        def count(table: str) -> int:
            return int(self._rows(f"SELECT count(*) FROM {table}")[0][0])

        def seconds(table: str) -> float:
            return float(self._rows(f"SELECT total(seconds) FROM {table}")[0][0])

        return Summary(
            trainings=count("trainings"),
            choices=count("choices"),
            series=count("series"),
            attacks=count("attacks"),
            seconds=seconds("trainings"),
            attack_seconds=seconds("attacks"),
            machines=by("machine_id"),
            versions=by("version_id"),
            size=self.path.stat().st_size,
        )

    def content(self) -> dict[str, list[tuple[str, ...]]]:
        """What was found, in one order and without how it was come by: seconds, machines, sizes of batches.

        Equal for two stores exactly if they hold the same results of the same versions.
        """
        return {
            "trainings": [(text(one.training.as_dict()), one.version, *_measured(one)) for one in self.outcomes()],
            "choices": [(_described(one),) for one in self.choices()],
            "series": [(one.training, one.kind, text(one.content)) for one in self._all_series()],
            "attacks": [(one.spec, _digest(one)) for one in self._attacks()],
        }

    # --- the file ---

    def _prepare(self, create: bool) -> None:
        """Make the tables where there is nothing; else see that the file is ours, of our schema, and whole."""
        if self._header() == (0, 0, 0):
            if not create:
                raise DataCorrupt(f"{self.path} is empty, and not a store of results.")
            with self._writing():
                if self._header() == (0, 0, 0):  # another process may have been first
                    for statement in TABLES.split(";"):
                        self._connection.execute(statement)
        application, number, _ = self._header()
        if application != APPLICATION:
            raise DataCorrupt(
                f"{self.path} is an SQLite file of another program, and not a store of results; it was left as it is."
            )
        if number > SCHEMA:
            raise DataUnavailable(
                f"{self.path} was made by a newer asgnn (its schema is {number}, and this one knows {SCHEMA}); "
                "use that one, or another store."
            )
        if number != SCHEMA:
            raise damaged(self.path, f"its schema is {number}")
        said = self._rows("PRAGMA quick_check(1)")
        if said != [("ok",)]:
            raise damaged(self.path, " ".join(str(said[0][0]).split()))

    def _header(self) -> tuple[int, int, int]:
        """Whose file it is, of which schema, and how often its tables were changed: all 0 in an empty one."""
        application, number, changes = (
            int(self._rows(f"PRAGMA {name}")[0][0]) for name in ("application_id", "user_version", "schema_version")
        )
        return application, number, changes

    def _rows(self, statement: str, given: Iterable[Any] = ()) -> list[Any]:
        """All rows at once: a cursor left half read would keep every other process from writing."""
        with sentences(self.path):
            return self._connection.execute(statement, tuple(given)).fetchall()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """One transaction. IMMEDIATE, since of two that begin by reading each could wait for the other to end."""
        with sentences(self.path):
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):  # nothing begun, or on a full disk SQLite has gone back itself
                    self._connection.execute("ROLLBACK")
                raise

    # --- a value as a row, within a transaction ---

    def _text_id(self, text: str) -> int:
        found = self._rows("SELECT id FROM texts WHERE text = ?", [text])
        return int(found[0][0]) if found else self._insert("texts (text)", (text,))

    def _case_id(self, case: Case) -> int:
        given = (case.dataset, case.poisoned, case.rate, case.split)
        found = self._rows(
            # typeof, because to SQLite 5 = 5.0, and to a key it is not
            "SELECT id FROM cases WHERE (dataset, poisoned, rate, split) IS (?, ?, ?, ?) AND typeof(rate) = typeof(?)",
            (*given, case.rate),
        )
        return int(found[0][0]) if found else self._insert("cases (dataset, poisoned, rate, split)", given)

    def _insert(self, table: str, row: tuple[Any, ...]) -> int:
        marks = ", ".join("?" * len(row))
        return self._connection.execute(f"INSERT INTO {table} VALUES ({marks})", row).lastrowid or 0

    def _put(self, outcome: Outcome) -> bool:
        training, key = outcome.training, bytes.fromhex(outcome.training.key)
        if self._rows("SELECT 1 FROM trainings WHERE key = ?", [key]):
            return False
        figure_names, figures = columns(outcome.figures)
        scalar_names, scalars = columns(outcome.scalars)
        row = (
            key,
            self._case_id(training.case),
            training.model,
            self._text_id(text(dict(training.settings))),
            training.seed,
            self._text_id(figure_names),
            figures,
            self._text_id(scalar_names),
            scalars,
            outcome.seconds,
            outcome.batch,
            self._text_id(outcome.machine),
            self._text_id(outcome.version),
        )
        self._insert("trainings", row)
        return True

    def _put_choice(self, choice: Choice) -> None:
        key = bytes.fromhex(choice.key)
        row = (
            key,
            choice.table,
            self._case_id(choice.case),
            choice.row,
            choice.rule,
            choice.search,
            choice.model,
            self._text_id(text(dict(choice.settings))),
            choice.tried,
            text(choice.trainings),
        )
        self._connection.execute("DELETE FROM choices WHERE key = ?", (key,))
        self._insert("choices", row)

    def _put_series(self, series: Series) -> None:
        of = (bytes.fromhex(series.training), series.kind)
        self._connection.execute("DELETE FROM series WHERE (training, kind) = (?, ?)", of)
        self._insert("series", (*of, text(series.content)))

    def _put_attack(self, attack: _Attack) -> None:
        key = bytes.fromhex(attack.key)
        if not self._rows("SELECT 1 FROM attacks WHERE key = ?", [key]):
            self._insert("attacks", (key, attack.spec, attack.archive, attack.seconds, self._text_id(attack.machine)))

    # --- a row as a value; one that is not as it was written is named ---

    @contextlib.contextmanager
    def _naming(self, what: str, key: Any) -> Iterator[None]:
        try:
            yield
        except (AttributeError, TypeError, ValueError) as cause:
            name = key.hex() if isinstance(key, bytes) else repr(key)
            raise damaged(self.path, f"the {what} {name} is not as it was written ({cause})") from cause

    def _outcome(self, row: tuple[Any, ...]) -> Outcome:
        key, dataset, poisoned, rate, split, model, settings, seed, *rest = row
        figure_names, figures, scalar_names, scalars, seconds, batch, machine, version = rest
        with self._naming("training", key):
            training = Training(Case(dataset, poisoned, rate, split), model, settings_of(json.loads(settings)), seed)
            require(training.key == key.hex(), "its specification has another key")
            require(isinstance(machine, str) and isinstance(version, str), "its machine or version is missing")
            figures, scalars = mapping(figure_names, figures), mapping(scalar_names, scalars)
            return Outcome(training, figures, float(seconds), int(batch), machine, version, scalars)

    def _choice(self, row: tuple[Any, ...]) -> Choice:
        key, table, dataset, poisoned, rate, split, name, rule, search, model, settings, tried, trainings = row
        with self._naming("choice", key):
            case, chosen = Case(dataset, poisoned, rate, split), settings_of(json.loads(settings))
            choice = Choice(table, case, name, rule, search, model, chosen, tried, tuple(json.loads(trainings)))
            require(choice.key == key.hex(), "its specification has another key")
            return choice

    def _all_series(self) -> list[Series]:
        found = []
        for training, kind, content in self._rows("SELECT training, kind, content FROM series ORDER BY training, kind"):
            with self._naming(f"series {kind} of training", training):
                found.append(Series(training.hex(), kind, heard(json.loads(content))))
        return found

    def _attacks(self, where: str = "", given: Iterable[Any] = ()) -> list[_Attack]:
        found = []
        for key, spec, archive, seconds, machine in self._rows(f"{ATTACKS} {where} ORDER BY a.key", given):
            with self._naming("attack", key):
                attack = _Attack(spec, unpack(archive), archive, seconds, machine)
                require(attack.key == key.hex(), "its specification has another key")
                found.append(attack)
        return found


def _take(
    theirs: Iterable[T], here: Callable[[T], T | None], content: Callable[[T], Any], put: Callable[[T], object]
) -> Counts:
    new = there = conflicts = 0
    for one in theirs:
        mine = here(one)
        if mine is None:
            put(one)
            new += 1
        elif content(mine) == content(one):
            there += 1
        else:
            conflicts += 1
    return Counts(new, there, conflicts)


def _measured(outcome: Outcome) -> tuple[str, str]:
    return text(outcome.figures), text(outcome.scalars)


def _described(choice: Choice) -> str:
    return text(asdict(choice) | {"settings": dict(choice.settings)})


def _digest(attack: _Attack) -> str:
    """Of the flips alone: how they were made, and how their archive was packed, may differ between machines."""
    found = attack.flips
    lists = [None if one is None else one.tolist() for one in (found.flips, found.targets, found.feature_flips)]
    return hashlib.sha256(text([found.num_nodes, *lists]).encode()).hexdigest()
