"""The store's file: its tables and queries in SQL, its header, and SQLite's errors as messages."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

from asgnn.errors import AsgnnError, DataCorrupt, DataUnavailable
from asgnn.experiments.values import regular_file

APPLICATION = int.from_bytes(b"ASGN")  # in the file's header; identifies a store
SCHEMA = 2
LONGEST = 1 << 26  # bytes of one value; a larger one means damage
PATIENCE = 60.0  # seconds to wait for another process that writes

# Texts that many trainings share are rows of texts. Every other table has the key of the question, the record and a
# checksum of the record. The view is for use with any SQLite client:
# SELECT dataset, model, seed, json_extract(figures, '$.test') FROM results.
CREATE = f"""
CREATE TABLE texts (id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE);
CREATE TABLE trainings (
    key BLOB PRIMARY KEY, asked_id INTEGER NOT NULL, seed INTEGER NOT NULL, names_id INTEGER NOT NULL,
    numbers TEXT NOT NULL, seconds REAL NOT NULL, batch INTEGER NOT NULL, place_id INTEGER NOT NULL,
    checksum BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE choices (
    key BLOB PRIMARY KEY, content TEXT NOT NULL, trainings BLOB NOT NULL, checksum BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE series (
    key BLOB PRIMARY KEY, training BLOB NOT NULL, kind TEXT NOT NULL, content TEXT NOT NULL, checksum BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE attacks (
    key BLOB PRIMARY KEY, asked TEXT NOT NULL, flips BLOB NOT NULL, seconds REAL NOT NULL, machine TEXT NOT NULL,
    checksum BLOB NOT NULL
);
CREATE VIEW results AS
SELECT lower(hex(t.key)) AS key, json_extract(a.text, '$.dataset') AS dataset,
    json_extract(a.text, '$.attacks') AS attacks, json_extract(a.text, '$.split') AS split,
    json_extract(a.text, '$.model') AS model, json_extract(a.text, '$.settings') AS settings, t.seed,
    (SELECT json_group_object(f.value, v.value) FROM json_each(n.text, '$[0]') f JOIN json_each(t.numbers) v
        ON v.key = f.key) AS figures,
    (SELECT json_group_object(f.value, v.value) FROM json_each(n.text, '$[1]') f JOIN json_each(t.numbers) v
        ON v.key = f.key + json_array_length(n.text, '$[0]')) AS scalars,
    t.seconds, t.batch, json_extract(p.text, '$[0]') AS machine, json_extract(p.text, '$[1]') AS version
FROM trainings t JOIN texts a ON a.id = t.asked_id JOIN texts n ON n.id = t.names_id JOIN texts p ON p.id = t.place_id;
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {SCHEMA}
"""
SELECT = {
    # LEFT JOIN: a row whose text is missing must be reported, not skipped
    "trainings": """
SELECT t.key, a.text, t.seed, n.text, t.numbers, t.seconds, t.batch, p.text, t.checksum
FROM trainings t LEFT JOIN texts a ON a.id = t.asked_id LEFT JOIN texts n ON n.id = t.names_id
    LEFT JOIN texts p ON p.id = t.place_id
""",
    "choices": "SELECT t.key, t.content, t.trainings, t.checksum FROM choices t",
    "series": "SELECT t.key, t.training, t.kind, t.content, t.checksum FROM series t",
    "attacks": "SELECT t.key, t.asked, t.flips, t.seconds, t.machine, t.checksum FROM attacks t",
}
DEFINITIONS = "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name"
# Any other error of SQLite means a damaged file.
ERRORS: dict[int, tuple[type[AsgnnError], str]] = {
    sqlite3.SQLITE_BUSY: (DataUnavailable, "{path} was locked by another process for {patience:g} s; try again later."),
    sqlite3.SQLITE_READONLY: (DataUnavailable, "{path} could not be written: {cause}."),
    sqlite3.SQLITE_FULL: (DataUnavailable, "There is no space left for {path}; its earlier content is unchanged."),
    sqlite3.SQLITE_CANTOPEN: (
        DataUnavailable,
        "{path} could not be opened; check the permissions of it and its folder.",
    ),
    sqlite3.SQLITE_PERM: (DataUnavailable, "{path} could not be opened: {cause}."),
    sqlite3.SQLITE_IOERR: (DataUnavailable, "{path} could not be read or written: {cause}."),
    sqlite3.SQLITE_NOTADB: (DataCorrupt, "{path} is not a store of results; it was left unchanged."),
}


@lru_cache
def expected_tables() -> list[tuple[str, str]]:
    """Names and definitions of the tables of every store."""
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(CREATE)
        return connection.execute(DEFINITIONS).fetchall()


def damaged(path: Path, cause: object) -> DataCorrupt:
    return DataCorrupt(f"{path} is damaged ({cause}) and was left unchanged; use a copy or a new store.")


@contextlib.contextmanager
def sentences(path: Path) -> Iterator[None]:
    """Turns errors of SQLite into messages for the user."""
    try:
        yield
    except sqlite3.ProgrammingError:  # a closed store, a wrong number of values: defects of this program
        raise
    except UnicodeDecodeError as cause:
        raise damaged(path, "a text in it is not UTF-8") from cause
    except sqlite3.Error as cause:
        known = ERRORS.get(getattr(cause, "sqlite_errorcode", 0) & 0xFF)  # the upper bits give details
        if known is None:
            raise damaged(path, cause) from cause
        kind, sentence = known
        raise kind(sentence.format(path=path, cause=cause, patience=PATIENCE)) from cause


class Database:
    """An SQLite file with the header of a store, of any version."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST)

    @classmethod
    def connect(cls, path: Path, *, create: bool = False) -> Self:
        """Connects to a file; refuses anything else at the path before opening it."""
        try:
            exists, folder, head = regular_file(path).exists(), path.parent.is_dir(), b""
            if exists:
                with path.open("rb") as file:
                    head = file.read(20)
        except OSError as cause:
            raise DataUnavailable(f"{path} could not be opened: {cause.strerror or cause}.") from cause
        if not exists and not create:
            raise DataUnavailable(f"There is no store {path}.")
        if not folder:
            raise DataUnavailable(f"{path} cannot be created, because the folder {path.parent} does not exist.")
        if head[18:20] not in (b"", b"\1\1") and head.startswith(b"SQLite format 3\0"):
            # SQLite would read any write-ahead log beside it as its latest content
            raise damaged(path, "its header names a journal that no store has")
        # Only a URI can forbid SQLite to create a file. The journal is SQLite's default, a file that is deleted after
        # each transaction, so a store is always one file that can be copied and committed.
        address = f"{path.absolute().as_uri()}?mode={'rwc' if create else 'rw'}"
        with sentences(path):
            return cls(path, sqlite3.connect(address, uri=True, timeout=PATIENCE, isolation_level=None))

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def rows(self, statement: str, values: Iterable[Any] = ()) -> list[Any]:
        """All rows at once: a half-read cursor would block other processes from writing."""
        with sentences(self.path):
            return self._connection.execute(statement, tuple(values)).fetchall()

    def header(self) -> tuple[int, int, int]:
        """Application, schema and the number of changes to the tables; all 0 in an empty file."""
        names = ("application_id", "user_version", "schema_version")
        application, schema, changes = (int(self.rows(f"PRAGMA {name}")[0][0]) for name in names)
        return application, schema, changes

    def check(self, wanted: int = SCHEMA) -> None:
        """Raises unless this is an undamaged store of the schema ``wanted``."""
        application, schema, _ = self.header()
        if application != APPLICATION:
            raise DataCorrupt(f"{self.path} is an SQLite file of another program; it was left unchanged.")
        if schema > SCHEMA:
            raise DataUnavailable(
                f"{self.path} was made by a newer asgnn (schema {schema}; this version reads schema {SCHEMA}); "
                "use that version or another store."
            )
        if schema == 1 != wanted:
            raise DataUnavailable(
                f"{self.path} was made by an earlier asgnn; asgnn store migrate {self.path} NEW.sqlite converts it."
            )
        if schema != wanted:
            raise damaged(self.path, f"its schema is {schema}")
        answer = self.rows("PRAGMA quick_check(1)")
        if answer != [("ok",)]:
            raise damaged(self.path, " ".join(str(answer[0][0]).split()))
