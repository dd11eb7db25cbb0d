"""Migration from schema 1: every record is converted exactly and has its new key."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import torch

from asgnn.errors import AsgnnError, ConfigError, DataCorrupt
from asgnn.experiments.encoding import MadeAttack
from asgnn.experiments.migrate import migrate
from asgnn.experiments.schema import APPLICATION
from asgnn.experiments.store import Store
from asgnn.experiments.values import Attack, Case, SplitName, Training, as_settings, key_of
from asgnn.graphs import Perturbation

SCHEMA_1 = f"""
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
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = 1
"""
# the names of an attack, a rate and a split in schema 1 → the case
CASES: list[tuple[tuple[str, str | None, float, str], Case]] = [
    (("cora", None, 0.0, "published"), Case("cora", (), SplitName("published"))),
    (
        ("acm", "own-metattack", 0.25, "random:0"),
        Case("acm", (Attack("metattack", "built-in", 0.25),), SplitName("random", 0)),
    ),
    (
        ("cora", "nettack+validation-nettack", 2.0, "published"),
        Case(
            "cora",
            (Attack("nettack", "published", 2), Attack("nettack", "made", 2, targets="validation")),
            SplitName("published"),
        ),
    ),
    (
        ("cora", "split-metattack", 0.1, "random:2"),
        Case("cora", (Attack("metattack", "made", 0.1),), SplitName("random", 2)),
    ),
]
SETTINGS = {"lr": 0.1, "objective": "paper", "structure": "frozen"}
NAMES = ("dataset", "poisoned", "rate", "split")


def write_schema_1(path: Path) -> Path:
    """One training for each case, and one of everything else."""
    connection = sqlite3.connect(path)
    connection.executescript(SCHEMA_1)

    def text(value: str) -> int:
        connection.execute("INSERT OR IGNORE INTO texts (text) VALUES (?)", (value,))
        return int(connection.execute("SELECT id FROM texts WHERE text = ?", (value,)).fetchone()[0])

    def dump(value: Any) -> str:
        return json.dumps(value, sort_keys=True, separators=(",", ":"))

    def insert(table: str, *row: Any) -> None:
        connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)

    keys = []
    for i, (names, _) in enumerate(CASES):
        insert("cases", i, *names)
        asked = dict(zip(NAMES, names, strict=True)) | {"model": "asgnn", "settings": SETTINGS, "seed": 0}
        keys.append(bytes.fromhex(key_of(asked)))
        figures, scalars = text(dump(["best_epoch", "test", "val_loss"])), text(dump(["lam"]))
        measured = (figures, f'[{i},81.{i}7,"nan"]', scalars, "[0.1000000149011612]", 1.25, 8)
        place = (text("a machine"), text("0.1.0"))
        insert("trainings", keys[-1], i, "asgnn", text(dump(SETTINGS)), 0, *measured, *place)
    question = dict(zip(NAMES, CASES[1][0], strict=True))
    question |= {"table": "table1", "row": "asgnn-paper-frozen", "rule": "none", "search": "none", "trials": 1}
    chosen = ("table1", 1, "asgnn-paper-frozen", "none", "none", "asgnn", text(dump(SETTINGS)), 1)
    insert("choices", bytes.fromhex(key_of(question)), *chosen, dump([keys[1].hex()]))
    insert("series", keys[1], "weights", '{"clean":[{"mean":1.0}]}')
    spec = {"attack": "split-metattack", "dataset": "cora", "rate": 0.25, "split": "random:2"}
    archive = MadeAttack.pack(CASES[0][1], FLIPS, 0.0, "").archive
    insert("attacks", bytes.fromhex(key_of(spec)), dump(spec), archive, 2.5, text("a machine"))
    connection.commit()
    connection.close()
    return path


FLIPS = Perturbation(torch.tensor([[4, 0], [5, 2]]), 6)


def test_every_record_becomes_a_value(tmp_path: Path) -> None:
    old = write_schema_1(tmp_path / "old.db")
    before = old.read_bytes()
    assert migrate(old, tmp_path / "new.db") == {"trainings": 4, "choices": 1, "series": 1, "attacks": 1}
    assert old.read_bytes() == before
    settings = as_settings({"lr": 0.1, "structure": "frozen"})
    trainings = [Training(case, "asgnn-paper", settings, 0) for _, case in CASES]
    with Store.open(tmp_path / "new.db", create=False) as store:
        found = store.get(one.key for one in trainings)
        assert [one.training for one in found.values()] == trainings
        for i, one in enumerate(found.values()):
            assert repr(one.figures) == repr({"best_epoch": i, "test": float(f"81.{i}7"), "val_loss": float("nan")})
            assert one.scalars == {"lam": 0.1000000149011612}
            assert (one.seconds, one.batch, one.machine, one.version) == (1.25, 8, "a machine", "0.1.0")
        (choice,) = store.choices("table1")
        assert (choice.case, choice.model, choice.settings) == (CASES[1][1], "asgnn-paper", settings)
        assert choice.trainings == (trainings[1].key,)
        (series,) = store.series("weights")
        assert (series.training, series.content) == (trainings[1].key, {"clean": [{"mean": 1.0}]})
        flips = store.attack(Case("cora", (Attack("metattack", "made", 0.25),), SplitName("random", 2)))
        assert flips is not None
        assert flips.flips.equal(FLIPS.flips)
        assert store.summary().attack_seconds == 2.5


BAD: dict[str, tuple[str, type[AsgnnError]]] = {
    "another seed": ("UPDATE trainings SET seed = 7", DataCorrupt),
    "an unknown attack": ("UPDATE cases SET poisoned = 'own-nothing'", DataCorrupt),
    "no texts": ("DELETE FROM texts", DataCorrupt),
    "series of nothing": ("UPDATE series SET training = x'00'", DataCorrupt),
    "flips": ("UPDATE attacks SET flips = x'00'", DataCorrupt),
    "no table": ("DROP TABLE attacks", DataCorrupt),
    "another program's": ("PRAGMA application_id = 1", DataCorrupt),
    "today's": ("PRAGMA user_version = 2", ConfigError),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_migrated_leaves_nothing(name: str, tmp_path: Path) -> None:
    statement, kind = BAD[name]
    old = write_schema_1(tmp_path / "old.db")
    with sqlite3.connect(old) as connection:
        connection.execute(statement)
    connection.close()
    with pytest.raises(kind, match=str(old)):
        migrate(old, tmp_path / "new.db")
    assert list(tmp_path.iterdir()) == [old]
