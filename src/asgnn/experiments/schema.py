"""The store's tables and questions in SQL, and what SQLite's refusals mean in a sentence."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from asgnn.errors import AsgnnError, DataCorrupt, DataUnavailable

APPLICATION = int.from_bytes(b"ASGN")  # stands in the file's header, where `file` and SQLite look for it
SCHEMA = 1
PATIENCE = 60.0  # seconds that a process waits for another one to finish its writing

# What is equal in many rows stands once, in cases and texts: a row of trainings then holds its key, a few small
# numbers, and its figures as a list whose names are a text. A rate has no type, for SQLite would turn 5 into 5.0 if it
# had one, and the specification would no longer hash to its key. The view is for people with an SQLite of their own:
# SELECT dataset, model, seed, figures ->> 'test' FROM results.
TABLES = f"""
CREATE TABLE texts (id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE);
CREATE TABLE cases (id INTEGER PRIMARY KEY, dataset TEXT NOT NULL, poisoned TEXT, rate NOT NULL, split TEXT NOT NULL);
CREATE TABLE trainings (
    key BLOB PRIMARY KEY, case_id INTEGER NOT NULL, model TEXT NOT NULL, settings_id INTEGER NOT NULL,
    seed INTEGER NOT NULL, figure_names_id INTEGER NOT NULL, figures TEXT NOT NULL, scalar_names_id INTEGER NOT NULL,
    scalars TEXT NOT NULL, seconds REAL NOT NULL, batch INTEGER NOT NULL, machine_id INTEGER NOT NULL,
    version_id INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE choices (
    key BLOB PRIMARY KEY, "table" TEXT NOT NULL, case_id INTEGER NOT NULL, row TEXT NOT NULL, rule TEXT NOT NULL,
    search TEXT NOT NULL, model TEXT NOT NULL, settings_id INTEGER NOT NULL, tried INTEGER NOT NULL,
    trainings TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE series (
    training BLOB NOT NULL, kind TEXT NOT NULL, content TEXT NOT NULL, PRIMARY KEY (training, kind)
) WITHOUT ROWID;
CREATE TABLE attacks (
    key BLOB PRIMARY KEY, spec TEXT NOT NULL, flips BLOB NOT NULL, seconds REAL NOT NULL, machine_id INTEGER NOT NULL
);
CREATE VIEW results AS
SELECT lower(hex(t.key)) AS key, c.dataset, c.poisoned, c.rate, c.split, t.model, s.text AS settings, t.seed,
    (SELECT json_group_object(n.value, v.value) FROM json_each(f.text) n JOIN json_each(t.figures) v USING (key))
        AS figures,
    (SELECT json_group_object(n.value, v.value) FROM json_each(l.text) n JOIN json_each(t.scalars) v USING (key))
        AS scalars,
    t.seconds, t.batch, m.text AS machine, o.text AS version
FROM trainings t JOIN cases c ON c.id = t.case_id JOIN texts s ON s.id = t.settings_id
    JOIN texts f ON f.id = t.figure_names_id JOIN texts l ON l.id = t.scalar_names_id
    JOIN texts m ON m.id = t.machine_id JOIN texts o ON o.id = t.version_id;
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {SCHEMA}
"""

# LEFT JOIN: a row whose case or text is gone must be seen and named, not passed over.
OUTCOMES = """
SELECT t.key, c.dataset, c.poisoned, c.rate, c.split, t.model, s.text, t.seed, f.text, t.figures, l.text, t.scalars,
    t.seconds, t.batch, m.text, o.text
FROM trainings t LEFT JOIN cases c ON c.id = t.case_id LEFT JOIN texts s ON s.id = t.settings_id
    LEFT JOIN texts f ON f.id = t.figure_names_id LEFT JOIN texts l ON l.id = t.scalar_names_id
    LEFT JOIN texts m ON m.id = t.machine_id LEFT JOIN texts o ON o.id = t.version_id
"""
CHOICES = """
SELECT h.key, h."table", c.dataset, c.poisoned, c.rate, c.split, h.row, h.rule, h.search, h.model, s.text, h.tried,
    h.trainings
FROM choices h LEFT JOIN cases c ON c.id = h.case_id LEFT JOIN texts s ON s.id = h.settings_id
"""
ATTACKS = """
SELECT a.key, a.spec, a.flips, a.seconds, m.text FROM attacks a LEFT JOIN texts m ON m.id = a.machine_id
"""

# What SQLite may answer; any other refusal means a damaged file.
REFUSALS: dict[int, tuple[type[AsgnnError], str]] = {
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
    return DataCorrupt(
        f"{path} is damaged ({cause}) and was left as it is; put a copy in its place, or begin another one."
    )


@contextlib.contextmanager
def sentences(path: Path) -> Iterator[None]:
    """Says in a sentence what SQLite says in a code."""
    try:
        yield
    except sqlite3.ProgrammingError:  # a closed store, a wrong number of values: no user can mend those
        raise
    except sqlite3.Error as cause:
        known = REFUSALS.get(getattr(cause, "sqlite_errorcode", 0) & 0xFF)  # the upper bits only say more
        if known is None:
            raise damaged(path, cause) from cause
        kind, sentence = known
        raise kind(sentence.format(path=path, cause=cause, patience=PATIENCE)) from cause
