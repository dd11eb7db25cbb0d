"""The store: one SQLite file of results, safe against interruption and against several writers."""

from __future__ import annotations

import contextlib
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from asgnn.errors import ConfigError, DataCorrupt
from asgnn.experiments.encoding import DAMAGED, KINDS, MadeAttack, checksum, from_text, require, series_row
from asgnn.experiments.schema import CREATE, DEFINITIONS, SELECT, Database, damaged, expected_tables, sentences
from asgnn.experiments.values import Case, Choice, Outcome, Series, count_diverged, key_of
from asgnn.graphs import Perturbation

PAGE = 500  # rows per query: every SQLite takes 999 parameters, and no lock is held between two pages


class Counts(NamedTuple):
    """Records of one kind in a merge: added, equal in both stores, and different, where the store's own was kept."""

    new: int = 0
    equal: int = 0
    conflicts: int = 0


@dataclass(frozen=True)
class Summary:
    """The content of a store; ``machines`` and ``versions`` count trainings, ``size`` is that of the file in bytes."""

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


class Store(Database):
    """Results in a file, by key.

    Each ``add`` method writes all its records or none, even if the process is killed; when it returns, they are on
    disk. A writer waits up to a minute for other writers. Each record is checked against its key and its checksum when
    it is read.
    """

    @classmethod
    def open(cls, path: str | Path, *, create: bool = True) -> Store:
        """The store in a file. A missing or empty file becomes a new store; with ``create=False`` it is an error.

        Reads the whole file once to detect damage.
        """
        store = cls.connect(Path(path), create=create)
        try:
            store._prepare(create)
        except BaseException:
            store.close()
            raise
        return store

    @classmethod
    def in_memory(cls) -> Store:
        store = cls(Path(":memory:"), sqlite3.connect(":memory:", isolation_level=None))
        store._prepare(create=True)
        return store

    # --- records ---

    def add(self, outcomes: Iterable[Outcome]) -> int:
        """Returns the number of new outcomes; an outcome whose key exists already is ignored."""
        return self.put("trainings", outcomes)

    def get(self, keys: Iterable[str]) -> dict[str, Outcome]:
        """The outcomes that the store has, in the order of ``keys``."""
        wanted = list(dict.fromkeys(keys))
        found: dict[str, Outcome] = {}
        for start in range(0, len(wanted), PAGE):
            page = [bytes.fromhex(key) for key in wanted[start : start + PAGE]]
            rows = self._select("trainings", f"WHERE t.key IN ({', '.join('?' * len(page))})", page)
            found |= {one.training.key: one for one in rows}
        return {key: found[key] for key in wanted if key in found}

    def has(self, keys: Iterable[str]) -> set[str]:
        """The keys of outcomes that the store has; faster than reading them."""
        wanted = [bytes.fromhex(key) for key in dict.fromkeys(keys)]
        found: set[str] = set()
        for start in range(0, len(wanted), PAGE):
            page = wanted[start : start + PAGE]
            found |= {
                key.hex()
                for (key,) in self.rows(f"SELECT key FROM trainings WHERE key IN ({', '.join('?' * len(page))})", page)
            }
        return found

    def outcomes(self) -> Iterator[Outcome]:
        """All outcomes in the order of their keys; other processes may write meanwhile."""
        return self._all("trainings")

    def add_choices(self, choices: Iterable[Choice]) -> None:
        """A choice replaces an earlier one with the same key."""
        self.put("choices", choices)

    def choices(self, table: str | None = None) -> list[Choice]:
        """The choices of one table, or all, in the order of their keys."""
        return [one for one in self._all("choices") if table in (None, one.table)]

    def add_series(self, series: Iterable[Series]) -> None:
        """A series replaces an earlier one of the same training and kind."""
        self.put("series", series)

    def series(self, kind: str) -> list[Series]:
        """The series of one kind, in the order of their trainings' keys."""
        return sorted((one for one in self._all("series") if one.kind == kind), key=lambda one: one.training)

    def series_of(self, training: str, kind: str) -> list[Series]:
        """The series of one training and kind: one or none."""
        key = series_row(Series(training, kind, {}))[0]
        return self._select("series", "WHERE t.key = ?", [key])

    def add_attack(self, case: Case, flips: Perturbation, *, seconds: float, machine: str) -> None:
        """Ignored if the store has flips for the case already."""
        self.put("attacks", [MadeAttack.pack(case, flips, seconds, machine)])

    def attack(self, case: Case) -> Perturbation | None:
        found = self.made_attack(case)
        return None if found is None else found.flips

    def made_attack(self, case: Case) -> MadeAttack | None:
        """The flips of a case with the seconds that they took."""
        found = self._select("attacks", "WHERE t.key = ?", [bytes.fromhex(key_of(case.as_dict()))])
        return found[0] if found else None

    def attack_cases(self) -> list[Case]:
        """The cases of all attacks, without their flips."""
        found = []
        for key, asked in self.rows("SELECT key, asked FROM attacks ORDER BY key"):
            try:
                found.append(Case.of_dict(from_text(asked)))
            except DAMAGED as cause:
                raise unreadable(self.path, "attacks", key, cause) from cause
        return found

    def attacks(self) -> Iterator[MadeAttack]:
        return self._all("attacks")

    # --- the whole store ---

    def merge(self, other: str | Path, *, reported: bool = False) -> dict[str, Counts]:
        """Add the records of another store that this one lacks, all or none; existing records stay as they are.

        ``reported`` adds only trainings that a cell of a table reports, and leaves out the searches.
        """
        other = Path(other)
        if other.exists() and self.path.exists() and other.samefile(self.path):
            raise ConfigError(f"{other} cannot be merged into itself.")
        with Store.open(other, create=False) as source, self._transaction():
            found = {}
            for name, kind in KINDS.items():
                counts: Counter[str] = Counter()
                for one in source._reported() if reported and name == "trainings" else source._all(name):
                    row = kind.row(one)
                    mine = self._select(name, "WHERE t.key = ?", [row[0]])
                    if mine:
                        counts["equal" if kind.content(mine[0]) == kind.content(one) else "conflicts"] += 1
                    else:
                        counts["new"] += self._insert(name, row)
                found[name] = Counts(**counts)
            return found

    def _reported(self) -> Iterable[Outcome]:
        return self.get(sorted({key for choice in self.choices() for key in choice.trainings})).values()

    def vacuum(self) -> None:
        """Rewrite the file without gaps."""
        self.rows("VACUUM")

    def summary(self) -> Summary:
        """Reads and checks every record."""
        outcomes, attacks = list(self.outcomes()), list(self.attacks())
        return Summary(
            trainings=len(outcomes),
            choices=len(self.choices()),
            series=sum(1 for _ in self._all("series")),
            attacks=len(attacks),
            diverged=count_diverged(outcomes),
            seconds=sum(one.seconds for one in outcomes),
            attack_seconds=sum(one.seconds for one in attacks),
            machines=dict(sorted(Counter(one.machine for one in outcomes).items())),
            versions=dict(sorted(Counter(one.version for one in outcomes).items())),
            size=self.path.stat().st_size if self.path.exists() else 0,
        )

    def content(self) -> dict[str, dict[str, object]]:
        """The results by key, without provenance (times, machines, batch sizes).

        Two stores have equal content if and only if they hold the same results.
        """
        return {
            name: {kind.row(one)[0].hex(): kind.content(one) for one in self._all(name)} for name, kind in KINDS.items()
        }

    def put(self, name: str, records: Iterable[Any]) -> int:
        """Write records of the kind ``name`` in one transaction; returns the number of rows written."""
        rows = [KINDS[name].row(one) for one in records]
        with self._transaction():
            return sum(self._insert(name, row) for row in rows)

    def _prepare(self, create: bool) -> None:
        """Create the tables in an empty file; else check the file."""
        if self.header() == (0, 0, 0):
            if not create:
                raise DataCorrupt(f"{self.path} is empty, not a store of results.")
            with self._transaction():
                if self.header() == (0, 0, 0):  # another process may have been faster
                    for statement in CREATE.split(";"):
                        self._connection.execute(statement)
        self.check()
        if self.rows(DEFINITIONS) != expected_tables():
            raise damaged(self.path, "its tables are not those of a store")

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """IMMEDIATE, because two transactions that start by reading could wait for each other."""
        with sentences(self.path):
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):  # not begun, or rolled back by SQLite on a full disk
                    self._connection.execute("ROLLBACK")
                raise

    def _insert(self, name: str, row: list[Any]) -> int:
        """Within a transaction; returns the number of new rows."""
        kind = KINDS[name]
        values = [self._text_id(value) if i in kind.texts else value for i, value in enumerate(row)]
        how, marks = "REPLACE" if kind.replaces else "IGNORE", ", ".join("?" * (len(values) + 1))
        return self._connection.execute(
            f"INSERT OR {how} INTO {name} VALUES ({marks})", (*values, checksum(row[1:]))
        ).rowcount

    def _text_id(self, text: str) -> int:
        found = self.rows("SELECT id FROM texts WHERE text = ?", [text])
        if found:
            return int(found[0][0])
        return self._connection.execute("INSERT INTO texts (text) VALUES (?)", (text,)).lastrowid or 0

    def _all(self, name: str) -> Iterator[Any]:
        where, last = "", list[bytes]()  # no condition at first: a damaged key may sort before all bytes
        while found := self._select(name, f"{where} ORDER BY t.key LIMIT {PAGE}", last):
            yield from found
            where, last = "WHERE t.key > ?", [KINDS[name].row(found[-1])[0]]

    def _select(self, name: str, where: str, values: Iterable[Any]) -> list[Any]:
        """Records, each checked; a damaged one is named."""
        found = []
        for key, *row, written in self.rows(f"{SELECT[name]} {where}", values):
            try:
                require(written == checksum(row), "its checksum does not match")
                found.append(KINDS[name].of_row((key, *row)))
            except DAMAGED as cause:
                raise unreadable(self.path, name, key, cause) from cause
        return found


def unreadable(path: Path, name: str, key: Any, cause: Exception) -> DataCorrupt:
    return damaged(path, f"in {name}, {key.hex() if isinstance(key, bytes) else repr(key)}: {cause}")
