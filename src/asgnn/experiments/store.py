"""The store: one SQLite file of results, which several processes may write and which may be stopped at any moment."""

from __future__ import annotations

import contextlib
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

from asgnn.errors import ConfigError, DataCorrupt, DataUnavailable
from asgnn.experiments import schema
from asgnn.experiments.encoding import (
    DAMAGED,
    MadeAttack,
    as_text,
    attack_of,
    attack_row,
    checksum,
    choice_of,
    choice_row,
    outcome_of,
    outcome_row,
    require,
    same_flips,
    series_of_row,
    series_row,
    shown_key,
)
from asgnn.experiments.schema import APPLICATION, CREATE, DEFINITIONS, SCHEMA, SELECT, damaged, sentences
from asgnn.experiments.values import Case, Choice, Outcome, Series, key_of, regular_file
from asgnn.graphs import Perturbation

PAGE = 500  # rows read at once: every SQLite takes 999 parameters, and no lock is held between two pages
MEMORY = Path(":memory:")


class Kind(NamedTuple):
    """How records of one kind are written, read and compared.

    Attributes:
        row, of_row: a record as a row, its key first, and back.
        content: what was found, without provenance; equal for equal results.
        texts: columns that many rows share.
        replaces: whether a record takes the place of an earlier one with its key.
    """

    row: Callable[[Any], list[Any]]
    of_row: Callable[[Any], Any]
    content: Callable[[Any], object]
    texts: tuple[int, ...] = ()
    replaces: bool = False


KINDS = {
    "trainings": Kind(outcome_row, outcome_of, lambda one: (as_text(one.figures), as_text(one.scalars)), (1, 3, 7)),
    "choices": Kind(choice_row, choice_of, lambda one: as_text(one.as_dict()), replaces=True),
    "series": Kind(series_row, series_of_row, lambda one: as_text(one.content), replaces=True),
    "attacks": Kind(attack_row, attack_of, same_flips),
}


@dataclass(frozen=True)
class Counts:
    """What became of the records of one kind in a merge.

    Attributes:
        new: taken over.
        there: were here already, and equal.
        conflicts: were here already with another content, which was kept.
    """

    new: int = 0
    there: int = 0
    conflicts: int = 0


@dataclass(frozen=True)
class Summary:
    """What a store holds.

    Attributes:
        trainings, choices, series, attacks: how many.
        diverged: how many of the trainings did.
        seconds: of all trainings; attack_seconds, of all attacks.
        machines, versions: how many trainings were made on and with each.
        size: of the file, in bytes.
    """

    trainings: int
    choices: int
    series: int
    attacks: int
    diverged: int
    seconds: float
    attack_seconds: float
    machines: Mapping[str, int]
    versions: Mapping[str, int]
    size: int


class Store:
    """Results on the disk, by key: opened with :meth:`open`, closed with :meth:`close` or by ``with``.

    What one call of an ``add`` method writes is kept whole or not at all, also where the process is killed; when it
    returns, it is on the disk. Whoever writes waits for other writers, up to a minute. Every record that is read is
    checked against its key and its checksum.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, schema.LONGEST)

    @classmethod
    def open(cls, path: str | Path, *, create: bool = True) -> Store:
        """The store in a file, which is made if it is not there or empty; with ``create=False`` that is an error.

        Time: the whole file is read once, to know that it is not damaged.
        """
        store = cls(Path(path), connect(Path(path), create=create))
        try:
            store._prepare(create)
        except BaseException:
            store.close()
            raise
        return store

    @classmethod
    def in_memory(cls) -> Store:
        """A store that is gone when it is closed."""
        store = cls(MEMORY, sqlite3.connect(":memory:", isolation_level=None))
        store._prepare(create=True)
        return store

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- records ---

    def add(self, outcomes: Iterable[Outcome]) -> int:
        """Keep all or none; one whose key is there already is left as it is. Returns how many are new."""
        return self._put("trainings", outcomes)

    def get(self, keys: Iterable[str]) -> dict[str, Outcome]:
        """The outcomes that are there, in the order asked for."""
        wanted = list(dict.fromkeys(keys))
        found: dict[str, Outcome] = {}
        for start in range(0, len(wanted), PAGE):
            page = [bytes.fromhex(key) for key in wanted[start : start + PAGE]]
            rows = self._select("trainings", f"WHERE t.key IN ({', '.join('?' * len(page))})", page)
            found |= {one.training.key: one for one in rows}
        return {key: found[key] for key in wanted if key in found}

    def outcomes(self) -> Iterator[Outcome]:
        """All of them in the order of their keys; one may write while going through them."""
        return self._all("trainings")

    def add_choices(self, choices: Iterable[Choice]) -> None:
        """Keep all or none; a choice takes the place of an earlier one with its key."""
        self._put("choices", choices)

    def choices(self, table: str | None = None) -> list[Choice]:
        """Those of one table, or all, in the order of their keys."""
        return [one for one in self._all("choices") if table in (None, one.table)]

    def add_series(self, series: Iterable[Series]) -> None:
        """Keep all or none; a series takes the place of an earlier one of its training and kind."""
        self._put("series", series)

    def series(self, kind: str) -> list[Series]:
        """Those of one kind, in the order of their trainings' keys."""
        return sorted((one for one in self._all("series") if one.kind == kind), key=lambda one: one.training)

    def add_attack(self, case: Case, flips: Perturbation, *, seconds: float, machine: str) -> None:
        """Keep the flips of a case; where there are some already, they are left as they are."""
        self._put("attacks", [MadeAttack.pack(case, flips, seconds, machine)])

    def attack(self, case: Case) -> Perturbation | None:
        """The flips of a case, or ``None`` if they are not there."""
        found = self._select("attacks", "WHERE t.key = ?", [bytes.fromhex(key_of(case.as_dict()))])
        return found[0].flips if found else None

    def attacks(self) -> Iterator[MadeAttack]:
        """All of them, in the order of their keys."""
        return self._all("attacks")

    # --- the whole ---

    def merge(self, other: str | Path, *, reported: bool = False) -> dict[str, Counts]:
        """Take over what another store has and this one has not, all of it or nothing; what is here stays as it is.

        With ``reported`` only those trainings that stand in a cell of a table, without the searches before them.
        """
        other = Path(other)
        if other.exists() and self.path.exists() and other.samefile(self.path):
            raise ConfigError(f"{other} cannot be merged into itself.")
        with Store.open(other, create=False) as source, self._writing():
            found = {}
            for name, kind in KINDS.items():
                chosen = reported and name == "trainings"
                counts: Counter[str] = Counter()
                for one in source._reported() if chosen else source._all(name):
                    row = kind.row(one)
                    mine = self._select(name, "WHERE t.key = ?", [row[0]])
                    if mine:
                        counts["there" if kind.content(mine[0]) == kind.content(one) else "conflicts"] += 1
                    else:
                        self._insert(name, row)
                        counts["new"] += 1
                found[name] = Counts(**counts)
            return found

    def _reported(self) -> Iterable[Outcome]:
        return self.get(sorted({key for choice in self.choices() for key in choice.trainings})).values()

    def vacuum(self) -> None:
        """Write the file anew without gaps, which records that came in the order of their making leave between them."""
        with sentences(self.path):
            self._connection.execute("VACUUM")

    def summary(self) -> Summary:
        """Counted over the records themselves, each of which is checked."""
        outcomes, attacks = list(self.outcomes()), list(self._all("attacks"))
        return Summary(
            trainings=len(outcomes),
            choices=len(self.choices()),
            series=len(list(self._all("series"))),
            attacks=len(attacks),
            diverged=sum("diverged" in one.figures for one in outcomes),
            seconds=sum(one.seconds for one in outcomes),
            attack_seconds=sum(one.seconds for one in attacks),
            machines=dict(sorted(Counter(one.machine for one in outcomes).items())),
            versions=dict(sorted(Counter(one.version for one in outcomes).items())),
            size=self.path.stat().st_size if self.path.exists() else 0,
        )

    def content(self) -> dict[str, dict[str, object]]:
        """What was found, by key and without provenance: seconds, machines, sizes of batches.

        Equal for two stores exactly if they hold the same results.
        """
        return {
            name: {kind.row(one)[0].hex(): kind.content(one) for one in self._all(name)} for name, kind in KINDS.items()
        }

    # --- the file ---

    def _prepare(self, create: bool) -> None:
        """Make the tables where there is nothing; else see that the file is ours, of our schema, and whole."""
        if self._header() == (0, 0, 0):
            if not create:
                raise DataCorrupt(f"{self.path} is empty, and not a store of results.")
            with self._writing():
                if self._header() == (0, 0, 0):  # another process may have been first
                    for statement in CREATE.split(";"):
                        self._connection.execute(statement)
        check_header(self.path, *self._header()[:2])
        check_whole(self.path, self._connection)
        if self._rows(DEFINITIONS) != schema.expected_tables():
            raise damaged(self.path, "its tables are not those of a store")

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

    def _put(self, name: str, records: Iterable[Any]) -> int:
        rows = [KINDS[name].row(one) for one in records]
        with self._writing():
            return sum(self._insert(name, row) for row in rows)

    def _insert(self, name: str, row: list[Any]) -> int:
        """Within a transaction; how many rows are new."""
        kind, key = KINDS[name], row[0]
        values = [self._text_id(value) if i in kind.texts else value for i, value in enumerate(row)]
        how, marks = "REPLACE" if kind.replaces else "IGNORE", ", ".join("?" * (len(values) + 1))
        statement = f"INSERT OR {how} INTO {name} VALUES ({marks})"
        return self._connection.execute(statement, (key, *values[1:], checksum(row[1:]))).rowcount

    def _text_id(self, text: str) -> int:
        found = self._rows("SELECT id FROM texts WHERE text = ?", [text])
        if found:
            return int(found[0][0])
        return self._connection.execute("INSERT INTO texts (text) VALUES (?)", (text,)).lastrowid or 0

    def _all(self, name: str) -> Iterator[Any]:
        where: tuple[str, list[bytes]] = ("", [])  # none at first: a key that is no bytes is before all that are
        while found := self._select(name, f"{where[0]} ORDER BY t.key LIMIT {PAGE}", where[1]):
            yield from found
            where = ("WHERE t.key > ?", [KINDS[name].row(found[-1])[0]])

    def _select(self, name: str, where: str, given: Iterable[Any]) -> list[Any]:
        """Records; one that is not as it was written is named."""
        found = []
        for key, *row, written in self._rows(f"{SELECT[name]} {where}", given):
            try:
                require(written == checksum(row), "its checksum is another")
                found.append(KINDS[name].of_row((key, *row)))
            except DAMAGED as cause:
                raise damaged(self.path, f"in {name}, {shown_key(key)} is not as it was written ({cause})") from cause
        return found


def connect(path: Path, *, create: bool = False) -> sqlite3.Connection:
    """A connection to an SQLite file of ours; whatever else there is at the path is refused before it is opened."""
    try:
        there, folder, head = regular_file(path).exists(), path.parent.is_dir(), b""
        if there:
            with path.open("rb") as file:
                head = file.read(20)
    except OSError as cause:
        raise DataUnavailable(f"{path} could not be opened: {cause.strerror or cause}.") from cause
    if not there and not create:
        raise DataUnavailable(f"There is no store {path}.")
    if not folder:
        raise DataUnavailable(f"{path} cannot be made, since there is no folder {path.parent}.")
    if head[18:20] not in (b"", b"\1\1") and head.startswith(b"SQLite format 3\0"):
        # a write-ahead log beside it, of whatever file, would be taken for its latest content
        raise damaged(path, "its header names a journal that no store has")
    # A URI, because only there can SQLite be told not to make a file. The journal is SQLite's default, a file that
    # is deleted after each transaction: the store itself is then always one file, to be copied and committed.
    address = f"{path.absolute().as_uri()}?mode={'rwc' if create else 'rw'}"
    with sentences(path):
        return sqlite3.connect(address, uri=True, timeout=schema.PATIENCE, isolation_level=None)


def check_header(path: Path, application: int, number: int, wanted: int = SCHEMA) -> None:
    if application != APPLICATION:
        raise DataCorrupt(
            f"{path} is an SQLite file of another program, and not a store of results; it was left as it is."
        )
    if number > SCHEMA:
        raise DataUnavailable(
            f"{path} was made by a newer asgnn (its schema is {number}, and this one knows {SCHEMA}); "
            "use that one, or another store."
        )
    if number == 1 != wanted:
        raise DataUnavailable(
            f"{path} was made by an earlier asgnn; asgnn store migrate {path} NEW.sqlite writes it in today's form."
        )
    if number != wanted:
        raise damaged(path, f"its schema is {number}")


def check_whole(path: Path, connection: sqlite3.Connection) -> None:
    with sentences(path):
        said = connection.execute("PRAGMA quick_check(1)").fetchall()
    if said != [("ok",)]:
        raise damaged(path, " ".join(str(said[0][0]).split()))
