"""The store: records are read as written, batches are atomic, and damage is detected."""

from __future__ import annotations

import json
import math
import os
import random
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from asgnn.errors import AsgnnError, ConfigError, DataCorrupt, DataUnavailable
from asgnn.experiments import schema
from asgnn.experiments.store import Counts, Store
from asgnn.experiments.values import (
    Attack,
    Case,
    Choice,
    Outcome,
    Series,
    SplitName,
    Training,
    as_settings,
    key_of,
)
from asgnn.graphs import Perturbation
from tests.processes import HANG

PUBLISHED, TRIAL = SplitName("published"), SplitName("random", 3)
CASES = (
    Case("cora", (), PUBLISHED),
    Case("cora", (Attack("metattack", "published", 0.25),), TRIAL),
    Case("citeseer", (Attack("nettack", "published", 5.0),), PUBLISHED),
    Case("polblogs", (Attack("dice", "made", 0.1, seed=2**40, settings=as_settings({"add": 0.5})),), TRIAL),
    Case("cora", (Attack("nettack", "built-in"), Attack("nettack", "made", 2, targets="validation")), TRIAL),
    Case("cora", (Attack("flips", "file", sha256="ab" * 32),), SplitName("random")),
)
MADE = CASES[3]


def outcome(seed: int, case: Case = CASES[0], test: float = 81.5, **more: object) -> Outcome:
    figures = {"val": 80.1, "test": test, "best_epoch": 17}
    settings = as_settings({"lr": 0.01, "hidden": 16, "bias": True, "objective": "paper"})
    return Outcome(Training(case, "gcn", settings, seed), figures | more, 1.25, 8, "a machine", "0.1.0")  # type: ignore[arg-type]


def choice(row: str = "gcn", tried: int = 6, table: str = "table1") -> Choice:
    keys = tuple(outcome(seed).training.key for seed in range(3))
    return Choice(table, CASES[1], row, "validation", "wide", "gcn", as_settings({"lr": 0.1}), tried, keys)


def series(seed: int = 0, kind: str = "objective", first: float = 3.5) -> Series:
    return Series(outcome(seed).training.key, kind, {"trained": 2, "terms": [{"fit": first}, {"fit": 2.5}]})


def flips(second: int = 2) -> Perturbation:
    pairs = torch.tensor([[4, 0], [5, second]])
    return Perturbation(pairs, 6, torch.tensor([1, 3]), {"attack": "dice"}, torch.tensor([[0], [7]]))


def fill(store: Store) -> None:
    """One of everything."""
    store.add([outcome(0), outcome(1)])
    store.add_choices([choice()])
    store.add_series([series()])
    store.add_attack(MADE, flips(), seconds=2.0, machine="a machine")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "results.db") as store:
        yield store


# --- reading and writing ---------------------------------------------------------------------------------------------

OUTCOMES = {
    "plain": outcome(0),
    "large seed": outcome(2**40),
    "diverged": outcome(0, val_loss=math.inf, test_loss=-math.inf),
    "many figures": outcome(0, clean_test=1 / 3, target=0.1 + 0.2, edge_auc=1e-300),
    "scalars": replace(outcome(0), scalars={"lam": 0.1, "eta1": 2**-40, "gamma": -0.0}),
    "no settings, no figures": Outcome(Training(CASES[0], "asgnn"), {}, 0.0, 1, "é, “1” core", "0.2.0.dev1"),
    **{f"case {i}": outcome(0, case) for i, case in enumerate(CASES)},
}


@pytest.mark.parametrize("name", OUTCOMES)
def test_an_outcome_comes_back(name: str, store: Store) -> None:
    given = OUTCOMES[name]
    assert store.add([given]) == 1
    with Store.open(store.path, create=False) as again:
        (found,) = again.outcomes()
        assert found == given
        assert repr(found.training) == repr(given.training)  # == does not distinguish 5 from 5.0
        assert again.get([given.training.key]) == {given.training.key: given}


def test_equal_numbers_are_one_case() -> None:
    """5 and 5.0 are one amount, and have one key."""
    five = Case("cora", (Attack("nettack", "published", 5),), PUBLISHED)
    assert key_of(five.as_dict()) == key_of(replace(five, attacks=(Attack("nettack", "published", 5.0),)).as_dict())


def test_a_loss_that_is_no_number(store: Store) -> None:
    store.add([outcome(0, val_loss=math.nan)])
    (found,) = store.outcomes()
    assert math.isnan(found.figures["val_loss"])
    assert store.content() == store.content()


def test_the_first_outcome_stays(store: Store) -> None:
    assert store.add([outcome(0), outcome(0, test=1.0)]) == 1
    assert store.add([outcome(0, test=2.0), outcome(1)]) == 1
    assert [one.figures["test"] for one in store.outcomes()] == [81.5, 81.5]


def test_thousands_of_keys(store: Store) -> None:
    given = [outcome(seed) for seed in range(2100)]
    store.add(given)
    keys = [one.training.key for one in given]
    found = store.get([*keys, key_of({"not": "there"}), *keys])
    assert list(found.values()) == given
    assert sorted(keys) == [one.training.key for one in store.outcomes()]


def test_choices_the_last_stays(store: Store) -> None:
    store.add_choices([choice(), choice("gat"), choice(table="table2")])
    store.add_choices([choice(tried=9)])
    assert len(store.choices()) == 3
    assert {(one.row, one.tried) for one in store.choices("table1")} == {("gcn", 9), ("gat", 6)}
    assert store.choices("table2") == [choice(table="table2")]
    assert store.choices("table3") == []


def test_series_the_last_stays(store: Store) -> None:
    store.add_series([series(0), series(1), series(0, "weights")])
    store.add_series([series(1, first=math.inf)])
    assert {one.training: one for one in store.series("objective")} == {
        one.training: one for one in (series(0), series(1, first=math.inf))
    }
    assert store.series("weights") == [series(0, "weights")]
    assert store.series("none") == []


def test_an_attack_comes_back_and_the_first_stays(store: Store) -> None:
    assert store.attack(MADE) is None
    for second in (2, 3):
        store.add_attack(MADE, flips(second), seconds=2.0, machine="a machine")
    found = store.attack(MADE)
    assert found is not None
    for name in ("flips", "targets", "feature_flips"):
        assert torch.equal(getattr(found, name), getattr(flips(), name))
    assert (found.num_nodes, found.meta) == (6, {"attack": "dice"})
    assert store.attack(CASES[4]) is None


def test_summary(store: Store) -> None:
    fill(store)
    store.add([replace(outcome(2, diverged=1.0), machine="another", seconds=10.0)])
    found = store.summary()
    assert (found.trainings, found.choices, found.series, found.attacks, found.diverged) == (3, 1, 1, 1, 1)
    assert (found.seconds, found.attack_seconds) == (12.5, 2.0)
    assert found.machines == {"a machine": 2, "another": 1}
    assert found.versions == {"0.1.0": 3}
    assert found.size == store.path.stat().st_size


def test_the_view_for_people(store: Store) -> None:
    store.add([replace(outcome(4, CASES[1]), scalars={"lam": 0.5})])
    asked = "SELECT key, dataset, attacks, split, model, seed, settings, figures, scalars, machine FROM results"
    ((key, dataset, attacks, split, *cell, settings, figures, scalars, machine),) = sqlite3.connect(store.path).execute(
        asked
    )
    assert key == outcome(4, CASES[1]).training.key
    assert (dataset, cell, machine) == ("cora", ["gcn", 4], "a machine")
    assert json.loads(attacks) == [{"kind": "metattack", "source": "published", "amount": 0.25}]
    assert json.loads(split) == {"kind": "random", "trial": 3}
    assert json.loads(settings) == {"bias": True, "hidden": 16, "lr": 0.01, "objective": "paper"}
    assert (json.loads(figures), json.loads(scalars)) == (outcome(0).figures, {"lam": 0.5})


def test_a_row_is_small(store: Store) -> None:
    """A hundred thousand trainings are to be committed with the code."""
    given = [
        replace(
            outcome(
                seed, test=100 * seed / 1988, val_loss=math.sqrt(seed), clean_test=seed / 7, edge_auc=1 / (seed + 1)
            ),
            scalars={name: math.sin(seed + i) for i, name in enumerate(("eta1", "eta2", "gamma", "lam", "mu1", "mu2"))},
        )
        for seed in range(2000)
    ]
    store.add(given)
    store.vacuum()
    assert store.path.stat().st_size / len(given) < 350
    assert len(list(store.outcomes())) == len(given)


# --- equal content ---------------------------------------------------------------------------------------------------


def test_content_knows_neither_order_nor_circumstances(tmp_path: Path) -> None:
    with Store.open(tmp_path / "a") as one, Store.open(tmp_path / "b") as other:
        fill(one)
        other.add_attack(MADE, replace(flips(), meta={"machine": "else"}), seconds=9.0, machine="else")
        other.add_series([series(first=9.0)])
        other.add_series([series()])
        other.add_choices([choice()])
        for seed in (1, 0):
            other.add([replace(outcome(seed), seconds=99.0, machine="else", batch=1)])
        assert one.content() == other.content()


DIFFERENCES: dict[str, Callable[[Store], object]] = {
    "another training": lambda store: store.add([outcome(2)]),
    "another case": lambda store: store.add([outcome(0, CASES[1])]),
    "another choice": lambda store: store.add_choices([choice(tried=7)]),
    "another series": lambda store: store.add_series([series(first=9.0)]),
    "another kind": lambda store: store.add_series([series(kind="weights")]),
    "another attack": lambda store: store.add_attack(CASES[4], flips(), seconds=2.0, machine="a machine"),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_content_sees_differences(name: str, store: Store) -> None:
    fill(store)
    before = store.content()
    DIFFERENCES[name](store)
    assert store.content() != before


@pytest.mark.parametrize("changed", [outcome(0, test=80.0), replace(outcome(0), scalars={"lam": 1.0})])
def test_content_sees_other_figures(changed: Outcome, tmp_path: Path) -> None:
    with Store.open(tmp_path / "a") as one, Store.open(tmp_path / "b") as other:
        one.add([outcome(0)])
        other.add([changed])
        assert one.content() != other.content()


# --- files that are no stores -----------------------------------------------------------------------------------------


def a_store(path: Path) -> None:
    with Store.open(path) as store:
        fill(store)
        store.add(outcome(seed) for seed in range(500))


def changed(statement: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        a_store(path)
        connection = sqlite3.connect(path)
        connection.execute(statement)
        connection.commit()
        connection.close()

    return change


def overwritten(path: Path) -> None:
    a_store(path)
    content = bytearray(path.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 9000] = b"\xa5" * 9000
    path.write_bytes(content)


def foreign(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE mine (x)")
    connection.close()


def cut(path: Path) -> None:
    a_store(path)
    path.write_bytes(path.read_bytes()[:20000])


BAD: dict[str, tuple[Callable[[Path], object], type[AsgnnError], str]] = {
    "text": (lambda path: path.write_text("my notes"), DataCorrupt, "is not a store of results"),
    "zeros": (lambda path: path.write_bytes(bytes(5000)), DataCorrupt, "is not a store of results"),
    "another program's": (foreign, DataCorrupt, "another program"),
    "header alone": (lambda path: path.write_bytes(b"SQLite format 3\0" + bytes(84)), DataCorrupt, ""),
    "cut": (cut, DataCorrupt, "is damaged"),
    "overwritten": (overwritten, DataCorrupt, "is damaged"),
    "newer": (changed("PRAGMA user_version = 3"), DataUnavailable, "made by a newer asgnn (schema 3; this"),
    "older": (changed("PRAGMA user_version = 1"), DataUnavailable, "asgnn store migrate"),
    "no table": (changed("DROP TABLE series"), DataCorrupt, "its tables are not those of a store"),
    "another column": (changed("ALTER TABLE texts ADD COLUMN more"), DataCorrupt, "its tables are not"),
    "a trigger": (
        changed("CREATE TRIGGER t AFTER INSERT ON texts BEGIN DELETE FROM texts; END"),
        DataCorrupt,
        "its tables are not",
    ),
    "a write-ahead log": (changed("PRAGMA journal_mode = WAL"), DataCorrupt, "names a journal that no store has"),
    "a pipe": (os.mkfifo, ConfigError, "is a device or a pipe"),
    "a device": (lambda path: path.symlink_to("/dev/zero"), ConfigError, "is a device or a pipe"),
    "older than any": (changed("PRAGMA user_version = 0"), DataCorrupt, "its schema is 0"),
    "a folder": (lambda path: path.mkdir(), ConfigError, "is a folder"),
}


@pytest.mark.parametrize("create", [True, False])
@pytest.mark.parametrize("name", BAD)
def test_bad_files_get_a_sentence_and_stay(name: str, create: bool, tmp_path: Path) -> None:
    make, kind, words = BAD[name]
    path = tmp_path / "results.db"
    make(path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(kind) as caught:
        Store.open(path, create=create)
    assert str(path) in str(caught.value)
    assert words in str(caught.value)
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)
    assert before == (path.read_bytes() if path.is_file() else None)
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataUnavailable, match="There is no store"):
        Store.open(tmp_path / "none.db", create=False)
    with pytest.raises(DataUnavailable, match=r"folder .* does not exist"):
        Store.open(tmp_path / "none" / "results.db")
    (tmp_path / "empty").touch()
    with pytest.raises(DataCorrupt, match="is empty"):
        Store.open(tmp_path / "empty", create=False)
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]
    with Store.open(tmp_path / "empty") as store:
        assert store.add([outcome(0)]) == 1


def test_a_name_that_the_system_refuses(tmp_path: Path) -> None:
    with pytest.raises(DataUnavailable, match="could not be opened: File name too long"):
        Store.open(tmp_path / ("x" * 300))


def test_two_make_it_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between seeing that the file is empty and filling it, another process fills it."""
    header, path, made = Store.header, tmp_path / "results.db", []

    def overtaken(self: Store) -> tuple[int, int, int]:
        found = header(self)
        if not made:
            made.append(path)
            a_store(path)
        return found

    monkeypatch.setattr(Store, "header", overtaken)
    with Store.open(path) as store:
        assert len(list(store.outcomes())) == 500


@pytest.mark.parametrize("name", ["a b.db", "100%.db", "what?mode=ro.db", "#1.db", "ü.db", ":memory:"])
def test_names_of_files(name: str, tmp_path: Path) -> None:
    with Store.open(tmp_path / name) as store:
        store.add([outcome(0)])
    assert [path.name for path in tmp_path.iterdir()] == [name]


# statement → what is read, words of the sentence
READ: dict[str, Callable[[Store], object]] = {
    "training": lambda store: list(store.outcomes()),
    "choice": lambda store: store.choices(),
    "series": lambda store: [*store.series("objective"), *store.series("weights")],
    "attack": lambda store: store.attack(MADE),
}
# what is read, and the statement before
TAMPERED: list[tuple[str, str]] = [
    ("training", "UPDATE trainings SET seed = seed + 1000"),
    ("training", "UPDATE trainings SET seed = 'seven'"),
    ("training", "UPDATE trainings SET numbers = replace(numbers, '81.5', '91.5')"),  # a figure, made better
    ("training", "UPDATE trainings SET numbers = '[1, '"),
    ("training", "UPDATE trainings SET numbers = '[1]'"),
    ("training", "UPDATE trainings SET numbers = '[1, \"a\", 2]'"),
    ("training", "UPDATE trainings SET numbers = x'ff'"),
    ("training", "UPDATE trainings SET numbers = CAST(x'ff' AS TEXT)"),
    ("training", f"UPDATE trainings SET numbers = '{'[' * 100_000}'"),
    ("training", f"UPDATE trainings SET numbers = '[1{'0' * 400}, 2, 3]'"),
    ("training", "UPDATE trainings SET seconds = 'soon'"),
    ("training", "UPDATE trainings SET batch = 1e300"),
    ("training", "UPDATE trainings SET checksum = x'00'"),
    ("training", "UPDATE trainings SET key = x'00' || key"),
    ("training", "UPDATE texts SET text = replace(text, 'cora', 'coral')"),
    ("training", "UPDATE texts SET text = '[]'  WHERE text LIKE '%machine%'"),
    ("training", f"UPDATE texts SET text = '{'[' * 100_000}' WHERE text LIKE '%cora%'"),
    ("training", "DELETE FROM texts"),
    ("choice", "UPDATE choices SET content = replace(content, 'gcn', 'gat')"),
    ("choice", "UPDATE choices SET trainings = x'0011'"),
    ("choice", "UPDATE choices SET content = '{}'"),
    ("series", "UPDATE series SET content = '{'"),
    ("series", "UPDATE series SET content = replace(content, '3.5', '3.4')"),
    ("series", "UPDATE series SET kind = 'weights'"),
    ("attack", "UPDATE attacks SET asked = '{}'"),
    ("attack", "UPDATE attacks SET flips = x'504b'"),
    ("attack", "UPDATE attacks SET flips = zeroblob(70000000)"),
]


@pytest.mark.parametrize(("kind", "statement"), TAMPERED, ids=lambda given: given[:60])
def test_tampered_rows_are_named(kind: str, statement: str, tmp_path: Path) -> None:
    changed(statement)(tmp_path / "results.db")
    with Store.open(tmp_path / "results.db") as store:
        for read in (READ[kind], Store.summary):  # nothing that counts all records passes it over
            with pytest.raises(DataCorrupt, match=str(store.path)):
                read(store)


def test_random_damage_is_a_sentence_or_none(tmp_path: Path) -> None:
    """Bytes changed, a piece cut out or written twice: what is then read is as it was written, or there is an error."""
    a_store(tmp_path / "good.db")
    good, path = (tmp_path / "good.db").read_bytes(), tmp_path / "results.db"
    with Store.open(tmp_path / "good.db") as store:
        content = store.content()
    draw, seen = random.Random(0), Counter()
    for _ in range(150):
        bad, start = bytearray(good), draw.randrange(len(good))
        match draw.randrange(4):
            case 0:
                bad[start] ^= 1 << draw.randrange(8)
            case 1:
                bad[start : start + 64] = draw.randbytes(min(64, len(bad) - start))
            case 2:
                bad = bad[:start]
            case 3:
                bad[start:start] = bad[start : start + draw.choice([1, 4096])]
        path.write_bytes(bad)
        try:
            with Store.open(path, create=False) as store:
                found = store.content()
                store.summary()
            # rows that damage has hidden are missing; none is another
            assert all(content[kind].items() >= found[kind].items() for kind in content)
            seen["read"] += 1
        except AsgnnError as error:
            seen["named" if str(path) in str(error) else "unnamed"] += 1
        for beside in tmp_path.glob("results.db-*"):
            beside.unlink()
    assert seen.keys() == {"read", "named"}
    assert seen["named"] > 50


# --- writing that cannot be -----------------------------------------------------------------------------------------


def test_full_disk(store: Store) -> None:
    store.add([outcome(0)])
    (pages,) = store._connection.execute("PRAGMA page_count").fetchone()
    store._connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(DataUnavailable, match="no space left"):
        store.add(outcome(seed) for seed in range(1, 500))
    assert len(list(store.outcomes())) == 1
    assert store.add([outcome(0)]) == 0  # it can still be used


def test_read_only(store: Store) -> None:
    store.add([outcome(0)])
    store._connection.execute("PRAGMA query_only = 1")  # what SQLite answers for a file that may not be written
    with pytest.raises(DataUnavailable, match="could not be written"):
        store.add([outcome(1)])
    assert len(list(store.outcomes())) == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_file_that_may_not_be_written(store: Store) -> None:
    store.add([outcome(0)])
    store.path.chmod(0o444)
    with Store.open(store.path) as again:
        assert len(list(again.outcomes())) == 1
        with pytest.raises(DataUnavailable, match="could not be written"):
            again.add([outcome(1)])


def test_a_lock_that_lasts(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "PATIENCE", 0.1)
    other = sqlite3.connect(store.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with Store.open(store.path) as again:
        with pytest.raises(DataUnavailable, match=r"locked by another process for 0\.1 s"):
            again.add([outcome(0)])
        other.execute("ROLLBACK")
        assert again.add([outcome(0)]) == 1


def test_damage_while_it_is_open(store: Store) -> None:
    store.add(outcome(seed) for seed in range(500))
    store.path.write_bytes(store.path.read_bytes()[:8192])
    with pytest.raises(DataCorrupt, match="is damaged"):
        list(store.outcomes())


def test_batch_that_breaks_off_leaves_nothing(store: Store) -> None:
    store.add([outcome(0)])
    broken = replace(outcome(2), figures={"test": object()})  # type: ignore[dict-item]
    with pytest.raises(TypeError):
        store.add([outcome(1), broken])
    assert len(list(store.outcomes())) == 1
    assert store.add([outcome(1)]) == 1


def test_ctrl_c_within_a_batch(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    insert = store._insert

    def interrupted(name: str, row: list[object]) -> int:
        if row[2] == 2:  # the seed
            raise KeyboardInterrupt
        return insert(name, row)

    monkeypatch.setattr(store, "_insert", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.add([outcome(1), outcome(2)])
    assert list(store.outcomes()) == []
    assert store.add([outcome(1), outcome(3)]) == 2


def test_going_through_does_not_keep_others_from_writing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "PATIENCE", 0.1)
    store.add(outcome(seed) for seed in range(3))
    going = store.outcomes()
    next(going)
    with Store.open(store.path) as other:
        assert other.add([outcome(3)]) == 1


# --- several processes -----------------------------------------------------------------------------------------------

# Torch takes seconds to load, so one process loads it and forks the others.
WRITERS = """
import os, sys
from asgnn.experiments.store import Store
from tests.experiments.test_store import outcome

children = []
for start in (0, 100):
    child = os.fork()
    if child == 0:
        with Store.open(sys.argv[1]) as store:
            new = sum(store.add([outcome(s) for s in range(i, i + 20)]) for i in range(start, start + 200, 10))
        print(new, flush=True)
        os._exit(0)
    children.append(child)
sys.exit(any(os.waitpid(child, 0)[1] for child in children))
"""
KILLED = """
import os, random, signal, sys, time
from pathlib import Path
from asgnn.experiments.store import Store
from tests.experiments.test_store import outcome

SIZE, path = 20, Path(sys.argv[1])
JOURNAL = Path(f"{path}-journal")
dice, torn, known = random.Random(0), 0, 0
for turn in range(15):
    said, says = os.pipe()
    child = os.fork()
    if child == 0:
        with Store.open(path) as store:
            for batch in range(known, 10**6):
                store.add([outcome(seed) for seed in range(batch * SIZE, (batch + 1) * SIZE)])
                os.write(says, b".")
    os.close(says)
    time.sleep(dice.uniform(0, 0.12))
    while turn % 3 == 0:  # in the middle of a write, whatever the machine: stopped, it still has its journal
        os.kill(child, signal.SIGSTOP)
        os.waitpid(child, os.WUNTRACED)
        if JOURNAL.exists():
            break
        os.kill(child, signal.SIGCONT)
        time.sleep(dice.uniform(0, 0.01))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    torn += JOURNAL.exists()
    with os.fdopen(said, "rb") as heard, Store.open(path) as store:
        least = known + len(heard.read())
        seeds = sorted(one.training.seed for one in store.outcomes())
    known, rest = divmod(len(seeds), SIZE)
    assert rest == 0 and seeds == list(range(known * SIZE)), f"turn {turn}: a batch is not whole"
    assert least <= known <= least + 1, f"turn {turn}: {least} batches were said to be kept, and {known} are there"
print(known, torn)
"""


def run_script(script: str, path: Path) -> list[str]:
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=False, cwd=root, timeout=HANG
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_two_processes_write_at_once(tmp_path: Path) -> None:
    new = run_script(WRITERS, tmp_path / "results.db")
    with Store.open(tmp_path / "results.db") as store:
        found = [one.training.seed for one in store.outcomes()]
    assert sorted(found) == list(range(310))
    assert sum(map(int, new)) == 310  # none twice


def test_killed_at_any_moment_it_keeps_whole_batches(tmp_path: Path) -> None:
    known, torn = map(int, run_script(KILLED, tmp_path / "results.db"))
    assert known > 0
    assert torn >= 5  # a third is hit while it writes, and others by chance
    with Store.open(tmp_path / "results.db") as store, Store.open(tmp_path / "undisturbed.db") as other:
        other.add(outcome(seed) for seed in range(known * 20))
        assert store.content() == other.content()


# --- merging ---------------------------------------------------------------------------------------------------------


def test_merge(tmp_path: Path) -> None:
    with Store.open(tmp_path / "here") as here, Store.open(tmp_path / "there") as there:
        fill(here)
        there.add([outcome(0), outcome(1, test=50.0), outcome(2)])
        there.add_choices([choice(tried=7), choice("gat")])
        there.add_series([series(), series(1)])
        there.add_attack(MADE, flips(3), seconds=1.0, machine="else")
        there.add_attack(CASES[4], flips(3), seconds=1.0, machine="else")
        before = there.content()
        found = here.merge(there.path)
        assert found["trainings"] == Counts(new=1, equal=1, conflicts=1)
        assert found["choices"] == Counts(new=1, equal=0, conflicts=1)
        assert found["series"] == Counts(new=1, equal=1, conflicts=0)
        assert found["attacks"] == Counts(new=1, equal=0, conflicts=1)
        assert there.content() == before
        assert {one.training.seed: one.figures["test"] for one in here.outcomes()} == {0: 81.5, 1: 81.5, 2: 81.5}
        assert {(one.row, one.tried) for one in here.choices()} == {("gcn", 6), ("gat", 6)}
        assert here.summary().attack_seconds == 3.0
        kept = here.attack(MADE)
        assert kept is not None
        assert torch.equal(kept.flips, flips(2).flips)
        again = here.merge(there.path)
        assert again["trainings"] == Counts(new=0, equal=2, conflicts=1)
        content = here.content()
        here.vacuum()
        assert here.content() == content


def test_merge_of_what_is_reported(tmp_path: Path) -> None:
    with Store.open(tmp_path / "here") as here, Store.open(tmp_path / "there") as there:
        there.add(outcome(seed) for seed in range(6))
        there.add_choices([replace(choice(), trainings=(outcome(4).training.key, outcome(1).training.key))])
        found = here.merge(there.path, reported=True)
        assert found["trainings"] == Counts(new=2)
        assert found["choices"] == Counts(new=1)
        assert sorted(one.training.seed for one in here.outcomes()) == [1, 4]


def test_merged_in_any_order_stores_without_conflicts_are_equal(tmp_path: Path) -> None:
    for name, seeds in (("a", range(5)), ("b", range(3, 9))):
        with Store.open(tmp_path / name) as store:
            store.add(outcome(seed) for seed in seeds)
            fill(store)
    contents = []
    for order in ("ab", "ba"):
        with Store.open(tmp_path / f"into {order}") as store:
            for name in order:
                store.merge(tmp_path / name)
            contents.append(store.content())
    assert contents[0] == contents[1]
    assert len(contents[0]["trainings"]) == 9


def test_merge_that_fails_changes_nothing(tmp_path: Path) -> None:
    changed(f"UPDATE trainings SET seed = 7777 WHERE key = x'{outcome(400).training.key}'")(tmp_path / "bad")
    with Store.open(tmp_path / "here") as store:
        fill(store)
        before = store.content()
        with pytest.raises(DataCorrupt, match=outcome(400).training.key):
            store.merge(tmp_path / "bad")
        with pytest.raises(DataUnavailable, match="There is no store"):
            store.merge(tmp_path / "none")
        with pytest.raises(ConfigError, match="into itself"):
            store.merge(store.path)
        assert store.content() == before
        assert store.add([outcome(5)]) == 1
