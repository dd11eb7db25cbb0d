"""The store's tables and queries in SQL, and what SQLite's errors mean in a sentence."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from asgnn.errors import AsgnnError, DataCorrupt, DataUnavailable

APPLICATION = int.from_bytes(b"ASGN")  # stands in the file's header, where `file` and SQLite look for it
SCHEMA = 2
LONGEST = 1 << 26  # bytes of one value; a file that claims more is damaged
PATIENCE = 60.0  # seconds that a process waits for another one to finish its writing

# What is equal in many rows of trainings is a row of texts. Every other table has a key, of the question; the record;
# and a checksum of the record. The view is for people with an SQLite of their own:
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
    # LEFT JOIN: a row whose text is gone must be seen and named, not passed over
    "trainings": """
SELECT t.key, a.text, t.seed, n.text, t.numbers, t.seconds, t.batch, p.text, t.checksum
FROM trainings t LEFT JOIN texts a ON a.id = t.asked_id LEFT JOIN texts n ON n.id = t.names_id
    LEFT JOIN texts p ON p.id = t.place_id
""",
    "choices": "SELECT t.key, t.content, t.trainings, t.checksum FROM choices t",
    "series": "SELECT t.key, t.training, t.kind, t.content, t.checksum FROM series t",
    "attacks": "SELECT t.key, t.asked, t.flips, t.seconds, t.machine, t.checksum FROM attacks t",
}


@lru_cache
def expected_tables() -> list[tuple[str, str]]:
    """Names and definitions, as a store has them that nobody has changed."""
    connection = sqlite3.connect(":memory:")
    try:
        connection.executescript(CREATE)
        return connection.execute(DEFINITIONS).fetchall()
    finally:
        connection.close()


DEFINITIONS = "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name"

# What SQLite may answer; any other error means a damaged file.
ERRORS: dict[int, tuple[type[AsgnnError], str]] = {
    sqlite3.SQLITE_BUSY: (
        DataUnavailable,
        "{path} was kept locked by another process for {patience:g} s; start again when that one has finished.",
    ),
    sqlite3.SQLITE_READONLY: (DataUnavailable, "{path} could not be written: {cause}."),
    sqlite3.SQLITE_FULL: (
        DataUnavailable,
        "There is no space left for {path}; what it held is still in it, and what was being written is not.",
    ),
    sqlite3.SQLITE_CANTOPEN: (
        DataUnavailable,
        "{path} could not be opened; see whether it may be read, and its folder written.",
    ),
    sqlite3.SQLITE_PERM: (DataUnavailable, "{path} could not be opened: {cause}."),
    sqlite3.SQLITE_IOERR: (DataUnavailable, "{path} could not be read or written: {cause}."),
    sqlite3.SQLITE_NOTADB: (
        DataCorrupt,
        "{path} is some other file, and not a store of results; it was left as it is.",
    ),
}


def damaged(path: Path, cause: object) -> DataCorrupt:
    return DataCorrupt(f"{path} is damaged ({cause}) and was left as it is; use a copy, or start a new store.")


@contextlib.contextmanager
def sentences(path: Path) -> Iterator[None]:
    """Turns SQLite's errors into sentences."""
    try:
        yield
    except sqlite3.ProgrammingError:  # a closed store, a wrong number of values: defects of this program
        raise
    except UnicodeDecodeError as cause:
        raise damaged(path, "a text in it is not UTF-8") from cause
    except sqlite3.Error as cause:
        known = ERRORS.get(getattr(cause, "sqlite_errorcode", 0) & 0xFF)  # the upper bits only say more
        if known is None:
            raise damaged(path, cause) from cause
        kind, sentence = known
        raise kind(sentence.format(path=path, cause=cause, patience=PATIENCE)) from cause
