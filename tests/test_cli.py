"""The command line: exit codes, one-sentence errors, no traceback; in a subprocess where needed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from asgnn.__main__ import main
from asgnn.attacks.checkpoint import FileCheckpoint
from asgnn.errors import ConfigError, DataCorrupt
from asgnn.experiments import executors
from asgnn.experiments.attacks import made_case, write_attack
from asgnn.experiments.store import Store
from asgnn.experiments.values import Outcome, SplitName
from asgnn.graphs import DATASETS, Perturbation, load_dataset, read_npz
from asgnn.version import __version__
from tests.experiments.test_migrate import write_schema_1
from tests.experiments.test_store import BAD, choice, outcome
from tests.processes import HANG, PAUSE, command

MIRROR = os.environ.get("ASGNN_MIRROR")


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., Done]


@pytest.fixture
def asgnn(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Runs the program in this process, because loading torch in a new process takes seconds."""

    def call(*arguments: str, **environment: str) -> Done:
        monkeypatch.delenv("ASGNN_MIRROR", raising=False)
        monkeypatch.delenv("ASGNN_DEBUG", raising=False)
        executors.cached_graph.cache_clear()  # a new process has none
        for name, value in ({"COLUMNS": "200", "ASGNN_CACHE": str(tmp_path / "cache")} | environment).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", ["asgnn", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        said = capsys.readouterr()
        return Done(int(left.value.code or 0), said.out, said.err)

    return call


METATTACK = ["attack", "--dataset", "cora", "--method", "metattack", "--rate", "0.001", "--split", "random"]
METATTACK += ["-o", "f.npz"]
# arguments → exit code, words of the sentence
FAILURES: dict[str, tuple[list[str], int, str]] = {
    "unknown command": (["trian"], 2, "No such command"),
    "unknown option": (["train", "--datset", "cora"], 2, "No such option"),
    "no dataset": (["train"], 2, "--dataset"),
    "unknown dataset": (["train", "--dataset", "coral"], 2, "There is no dataset 'coral'"),
    "unknown model": (["train", "--dataset", "cora", "--model", "gnc"], 2, "There is no model 'gnc'"),
    "a budget without a search": (["train", "--dataset", "cora", "--budget", "4"], 2, "--budget is for --tune"),
    "no settings to try": (
        ["train", "--dataset", "cora", "--split", "random", "--tune", "--budget", "0"],
        2,
        "budget must be",
    ),
    "a search on flips that do not exist": (
        ["train", "--dataset", "cora", "--split", "random:0", "--poisoned", "made-nettack", "--rate", "1", "--tune"],
        2,
        "make them with asgnn attack",
    ),
    "unknown split": (["train", "--dataset", "cora", "--split", "mine"], 2, "published"),
    "no rate": (["train", "--dataset", "cora", "--poisoned", "metattack"], 2, "needs a rate above 0"),
    "rate not published": (
        ["train", "--dataset", "cora", "--poisoned", "metattack", "--rate", "0.3"],
        2,
        "only at 0.05, 0.1, 0.15, 0.2, 0.25",
    ),
    "not published": (["train", "--dataset", "acm", "--poisoned", "metattack", "--rate", "0.1"], 2, "only of cora"),
    "no trials": (["train", "--dataset", "cora", "--trials", "0"], 2, "trials must be a whole number from 1"),
    "too many trials": (["train", "--dataset", "cora", "--trials", str(10**30)], 2, "from 1 to 10000"),
    "too large a trial": (
        ["train", "--dataset", "cora", "--split", f"random:{2**64}"],
        2,
        "I in the split random:I must be",
    ),
    "infinite rate": (["train", "--dataset", "cora", "--poisoned", "dice", "--rate", "inf"], 2, "it is inf"),
    "rate that is no number": (["train", "--dataset", "cora", "--poisoned", "dice", "--rate", "nan"], 2, "it is nan"),
    "huge rate": (["train", "--dataset", "cora", "--poisoned", "made-nettack", "--rate", "1e300"], 2, "in [0, 1000]"),
    "unknown setting of a model": (
        ["train", "--dataset", "cora", "--set", "depth=2"],
        2,
        "no setting 'depth'",
    ),
    "setting of a model that is no number": (["train", "--dataset", "cora", "--set", "lr=fast"], 2, "must be a number"),
    "huge setting of a model": (["train", "--dataset", "cora", "--set", "lr=1e300"], 2, "in [-1e+18, 1e+18]"),
    "infinite setting": (["train", "--dataset", "cora", "--set", "lr=nan"], 2, "in [-1e+18, 1e+18]"),
    "a device as flips": (["train", "--dataset", "cora", "--poisoned", "{zero}.npz"], 2, "is a device or a pipe"),
    "a pipe as flips": (["train", "--dataset", "cora", "--poisoned", "{pipe}.npz"], 2, "is a device or a pipe"),
    "a folder as flips": (["train", "--dataset", "cora", "--poisoned", "{folder}.npz"], 2, "is a folder"),
    "a device as a store for training": (
        ["train", "--dataset", "cora", "--model", "gcn", "--split", "random", "--store", "{zero}.npz"],
        2,
        "is a device or a pipe",
    ),
    "a device as a store": (["store", "show", "{zero}.npz"], 2, "is a device or a pipe"),
    "a pipe as a store": (["store", "show", "{pipe}.npz"], 2, "is a device or a pipe"),
    "a device as a folder": (["demo", "-o", "/dev/null"], 1, "/dev/null"),
    "an attack whose gradient is not finite": (
        [*METATTACK, "--set", "lr=1e18"],
        2,
        "meta-gradient of Metattack is not finite",
    ),
    "a device as an attack": (
        ["attack", "--dataset", "cora", "--method", "dice", "--rate", "0.1", "--split", "random", "-o", "{zero}.npz"],
        2,
        "is a device or a pipe",
    ),
    "nothing to migrate": (["store", "migrate", "none.db", "new.db"], 3, "There is no store none.db"),
    "migrated into what is there": (["store", "migrate", "none.db", "{folder}.npz"], 2, "exists already"),
    "too large a seed": (
        ["attack", "--dataset", "cora", "--method", "dice", "--rate", "0.1", "--seed", str(2**63), "-o", "f.npz"],
        2,
        "seed must be a whole number from 0 to",
    ),
    "infinite rate of an attack": (
        ["attack", "--dataset", "cora", "--method", "dice", "--rate", "inf", "-o", "f.npz"],
        2,
        "at most 1",
    ),
    "too many flips for each target": (
        ["attack", "--dataset", "cora", "--method", "nettack", "--per-target", str(10**12), "-o", "f.npz"],
        2,
        "in [0, 1000]",
    ),
    "huge setting of an attack": (
        ["attack", "--dataset", "cora", "--method", "pgd", "--rate", "0.1", "--set", "base_lr=1e300", "-o", "f.npz"],
        2,
        "in [-1e+18, 1e+18]",
    ),
    "no such file": (["train", "--dataset", "cora", "--poisoned", "none.npz"], 3, "There is no file none.npz"),
    "file and rate": (
        ["train", "--dataset", "cora", "--poisoned", "none.npz", "--rate", "0.1", "--split", "random"],
        2,
        "leave out the rate",
    ),
    "no own flips": (["train", "--dataset", "citeseer", "--poisoned", "own-metattack", "--rate", "0.1"], 2, "only of"),
    "own flips end": (
        ["train", "--dataset", "cora", "--poisoned", "own-metattack", "--rate", "0.3"],
        2,
        "rate must be a number in (0, 0.25]",
    ),
    "unknown method": (
        ["attack", "--dataset", "cora", "--method", "metatack", "-o", "f.npz"],
        2,
        "no attack 'metatack'",
    ),
    "no output": (["attack", "--dataset", "cora", "--method", "dice", "--rate", "0.1"], 2, "--output"),
    "no budget": (["attack", "--dataset", "cora", "--method", "dice", "-o", "f.npz"], 2, "use --rate"),
    "too much": (["attack", "--dataset", "cora", "--method", "dice", "--rate", "1.1", "-o", "f.npz"], 2, "at most 1"),
    "rate of nettack": (
        ["attack", "--dataset", "cora", "--method", "nettack", "--rate", "0.1", "-o", "f.npz"],
        2,
        "use --per-target",
    ),
    "targets of dice": (
        ["attack", "--dataset", "cora", "--method", "dice", "--per-target", "2", "-o", "f.npz"],
        2,
        "attacks the whole graph",
    ),
    "no split for it": (
        ["attack", "--dataset", "acm", "--method", "dice", "--rate", "0.1", "--split", "published", "-o", "f.npz"],
        2,
        "No split of acm is published",
    ),
    "unknown setting": (
        ["attack", "--dataset", "cora", "--method", "metattack", "--rate", "0.1", "--set", "depth=2", "-o", "f.npz"],
        2,
        "metattack has no setting 'depth'; its settings are variant",
    ),
    "setting without value": (
        ["attack", "--dataset", "cora", "--method", "metattack", "--rate", "0.1", "--set", "exact", "-o", "f.npz"],
        2,
        "given as name=value",
    ),
    "setting of another type": (
        ["attack", "--dataset", "cora", "--method", "metattack", "--rate", "0.1", "--set", "exact=1", "-o", "f.npz"],
        2,
        "must be true or false",
    ),
    "not npz": (
        ["attack", "--dataset", "cora", "--method", "dice", "--rate", "0.1", "--split", "random", "-o", "flips.json"],
        2,
        "must end in .npz",
    ),
    "store without a verb": (["store", "shwo"], 2, "No such command"),
    "store without a name": (["store", "show"], 2, "STORE"),
    "no such store": (["store", "show", "none.db"], 3, "There is no store none.db"),
    "a folder as a store": (["store", "show", "."], 2, "is a folder"),
    "nothing to merge": (["store", "merge", "none.db"], 2, "FROM"),
    "no such store to merge": (["store", "merge", "into.db", "none.db"], 3, "There is no store none.db"),
    "no GPU": (["train", "--dataset", "cora", "--device", "cuda"], 2, "--device cpu"),
}


@pytest.mark.parametrize("case", FAILURES)
def test_failures_are_sentences(case: str, asgnn: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments, code, words = FAILURES[case]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    places = {name: str(tmp_path / name) for name in ("zero", "pipe", "folder")}
    (tmp_path / "zero.npz").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe.npz")
    (tmp_path / "folder.npz").mkdir()
    done = asgnn(*(word.format(**places) for word in arguments))
    assert done.returncode == code, done.stderr
    assert words in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert "defect" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("dataset", ["citeseer", "cora_ml", "acm", "polblogs", "texas"])
def test_without_mirror_and_network_a_sentence_says_how_to_get_the_file(
    dataset: str, asgnn: Run, tmp_path: Path
) -> None:
    # a proxy that does not answer: no network on any machine
    done = asgnn(
        "train", "--dataset", dataset, "--model", "mlp", "--json",
        https_proxy="http://127.0.0.1:9", HTTPS_PROXY="http://127.0.0.1:9",
    )  # fmt: skip
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
    sentence = done.stderr.strip()
    assert sentence.count("\n") == 0
    assert "set ASGNN_MIRROR to a folder that contains" in sentence
    assert f"or put the file at {tmp_path}" in sentence
    assert list(tmp_path.rglob("*.*")) == []


def test_built_in_cora_needs_neither(asgnn: Run) -> None:
    done = asgnn(
        "train", "--dataset", "cora", "--model", "gcn", "--split", "random", "--trials", "2", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    wanted = ["dataset", "model", "poisoned", "rate", "split", "trials", "test_mean", "test_std", "val_mean", "seconds"]
    assert set(wanted) <= set(record)
    assert (record["dataset"], record["model"], record["poisoned"], record["trials"]) == ("cora", "gcn", None, 2)
    assert 78 < record["test_mean"] < 88
    assert done.stderr == ""


def test_settings_and_a_store(asgnn: Run, tmp_path: Path) -> None:
    words = ["train", "--dataset", "cora", "--model", "gcn", "--split", "random:1", "--trials", "2", "--json"]
    words += ["--set", "epochs=3", "--set", "lr=0.02", "--store", str(tmp_path / "new" / "[/bold] ü.sqlite")]
    first = json.loads(asgnn(*words).stdout)
    assert (first["settings"], max(first["best_epochs"]) <= 3) == ({"epochs": 3, "lr": 0.02}, True)
    assert json.loads(asgnn(*words).stdout) == first  # seconds included
    more = json.loads(asgnn(*[*words[:8], "3", *words[9:]]).stdout)
    assert more["test"][:2] == pytest.approx(first["test"], abs=1)
    with Store.open(tmp_path / "new" / "[/bold] ü.sqlite", create=False) as store:
        assert store.summary().trainings == 3
    shown = asgnn("store", "show", str(tmp_path / "new" / "[/bold] ü.sqlite"))
    assert (shown.returncode, "[/bold] ü.sqlite" in shown.stdout) == (0, True), shown.stderr


def test_ascii_terminal(tmp_path: Path) -> None:
    words = [
        "train",
        "--dataset",
        "cora",
        "--model",
        "gcn",
        "--split",
        "random:0",
        "--trials",
        "1",
        "--set",
        "epochs=2",
    ]
    plain = os.environ | {"PYTHONIOENCODING": "ascii", "LANG": "C", "LC_ALL": "C", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "asgnn", *words, "--set", "epochs=2"], capture_output=True, env=plain, check=False
    )
    assert done.returncode == 0, done.stderr
    assert b"+- std" in done.stdout
    odd = subprocess.run(
        [sys.executable, "-m", "asgnn", "store", "show", b"\xff\xc3\xbc.db"],
        capture_output=True, env=plain, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert (odd.returncode, odd.stderr) == (3, b"asgnn: There is no store ??.db.\n")


def test_an_output_that_is_full() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "asgnn", "datasets"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (
        1,
        "asgnn: The operating system reported an error: No space left on device.\n",
    )


LACKS = [RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), MemoryError()]


@pytest.mark.parametrize("cause", LACKS, ids=["torch", "python"])
def test_lack_of_memory_is_no_defect(cause: Exception, asgnn: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise cause

    monkeypatch.setattr("asgnn.cli.experiments.run_trials", fails)
    done = asgnn("train", "--dataset", "cora")
    assert (done.returncode, done.stderr) == (
        1,
        "asgnn: There is not enough memory for this graph with these settings.\n",
    )


def test_table_for_a_person(asgnn: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    data = load_dataset("cora")
    data.y[:100] = -1
    monkeypatch.setattr("asgnn.experiments.measure.load_dataset", lambda *_: data)
    monkeypatch.setattr("asgnn.cli.experiments.load_dataset", lambda *_: data)
    done = asgnn("train", "--dataset", "cora", "--model", "mlp", "--split", "random", "--trials", "1")
    assert done.returncode == 0, done.stderr
    assert "mlp on cora" in done.stdout
    assert "validation" in done.stdout
    assert "cora: 2,485 nodes, 2,385 of them labelled, 5,069 edges" in done.stdout


def test_datasets(asgnn: Run) -> None:
    done = asgnn("datasets", "--json")
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    assert rows.keys() == DATASETS.keys()
    assert [rows[name]["published_splits"] for name in ("cora", "texas", "acm")] == [1, 10, 0]
    assert rows["cora"]["here"] == "built in"
    assert (rows["citeseer"]["nodes"], rows["citeseer"]["edges"]) == (2110, 3668)
    assert "tolokers" in asgnn("datasets").stdout
    assert asgnn("--version").stdout.strip() == __version__


@pytest.mark.skipif(not MIRROR, reason="ASGNN_MIRROR is not set")
@pytest.mark.parametrize("dataset", ["citeseer", "cora_ml", "acm"])
def test_through_the_mirror(dataset: str, asgnn: Run) -> None:
    done = asgnn(
        "train", "--dataset", dataset, "--model", "gcn", "--trials", "1", "--json",
        ASGNN_MIRROR=str(MIRROR),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["split"] == ("random" if dataset == "acm" else "published")
    assert record["test_mean"] > 65


@pytest.mark.skipif(not MIRROR, reason="ASGNN_MIRROR is not set")
def test_nettack_reports_the_attacked_nodes(asgnn: Run) -> None:
    done = asgnn(
        "train", "--dataset", "cora", "--poisoned", "nettack", "--rate", "5",
        "--model", "gcn", "--trials", "2", "--json",
        ASGNN_MIRROR=str(MIRROR),
    )  # fmt: skip
    record = json.loads(done.stdout)
    assert record["target_mean"] < record["test_mean"] - 10


def test_tampered_mirror_gets_a_sentence(asgnn: Run, tmp_path: Path) -> None:
    file = tmp_path / "danielzuegner/gnn-meta-attack/data/citeseer.npz"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"not the file")
    done = asgnn("train", "--dataset", "citeseer", ASGNN_MIRROR=str(tmp_path))
    assert done.returncode == 3
    assert "citeseer.npz" in done.stderr
    assert "Traceback" not in done.stderr


def test_pipe_that_is_closed_early() -> None:
    done = subprocess.run(
        f"{sys.executable} -m asgnn datasets | head -c 1", shell=True, capture_output=True, text=True, check=False
    )  # a shell, because only a real pipe breaks
    assert "Traceback" not in done.stderr
    assert "defect" not in done.stderr


def test_ctrl_c_while_torch_is_loading() -> None:
    """The command itself, interrupted in the middle of its imports."""
    stopper = """
import importlib.abc, sys

class Interrupts(importlib.abc.MetaPathFinder):
    def find_spec(self, name, *_):
        if name == "torch":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupts())
from asgnn_command import main
main()
"""
    done = subprocess.run([sys.executable, "-c", stopper], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "asgnn: Interrupted before anything was started.\n")


def wait_for_trainings(folder: Path, count: int, process: subprocess.Popen[str]) -> list[Outcome]:
    end = time.monotonic() + HANG
    while time.monotonic() < end:
        if (folder / "results.sqlite").exists() and (folder / "results.sqlite").stat().st_size:
            with contextlib.suppress(DataCorrupt), Store.open(folder / "results.sqlite") as store:  # not yet made
                kept = list(store.outcomes())
                if len(kept) >= count:
                    return kept
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    raise AssertionError(f"the demo kept fewer than {count} trainings")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_demo_keeps_its_trainings_and_resumes(how: signal.Signals, tmp_path: Path) -> None:
    words = ["demo", "-o", str(tmp_path), "--trials", "1", "--device", "cpu"]
    with command(*words) as process:
        before = wait_for_trainings(tmp_path, 1, process)
        process.send_signal(how)
        _, stderr = process.communicate(timeout=HANG)
    if how is signal.SIGINT:
        assert process.returncode == 130
        assert "Interrupted" in stderr
        assert "Traceback" not in stderr
        assert not list(tmp_path.glob(".*.tmp"))  # the name write_atomic works under
    with command(*words) as process:
        after = wait_for_trainings(tmp_path, len(before) + 1, process)
    assert all(one in after for one in before)  # reused exactly, seconds included


def test_demo_that_cannot_write_gets_a_sentence(asgnn: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    done = asgnn("demo", "-o", str(tmp_path / "file" / "demo"), "--trials", "1")
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert str(tmp_path / "file") in done.stderr


def test_demo_does_not_overwrite_what_is_not_its_own(asgnn: Run, tmp_path: Path) -> None:
    (tmp_path / "results.sqlite").write_text("mine")
    done = asgnn("demo", "-o", str(tmp_path))
    assert done.returncode == 3
    assert "not a store of results" in done.stderr
    assert (tmp_path / "results.sqlite").read_text() == "mine"


def attack(asgnn: Run, file: Path, *more: str, method: str = "dice") -> Done:
    words = ["attack", "--dataset", "cora", "--method", method, "--split", "random", "--device", "cpu"]
    return asgnn(*words, "-o", str(file), *more)


def test_attack_and_train_on_what_it_wrote(asgnn: Run, tmp_path: Path) -> None:
    file = tmp_path / "new" / "flips.npz"
    done = attack(asgnn, file, "--rate", "0.1", "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["flips"], said["split"], said["between"]) == (506, "random:0", 1.0)
    assert said["command"] == "asgnn attack --dataset cora --method dice --rate 0.1 --split random --trial 0 --seed 0"
    found = Perturbation.load(file)
    assert len(found) == 506
    again = attack(asgnn, file, "--rate", "0.1")
    assert "made by an earlier run" in " ".join(again.stdout.split())
    other = attack(asgnn, file, "--rate", "0.2")
    assert other.returncode == 2
    assert "holds the flips of another attack" in other.stderr
    assert torch.equal(Perturbation.load(file).flips, found.flips)
    assert attack(asgnn, file, "--rate", "0.2", "--fresh").returncode == 0
    assert len(Perturbation.load(file)) == 1013
    trained = asgnn("train", "--dataset", "cora", "--poisoned", str(file), "--model", "gcn", "--trials", "1", "--json")
    record = json.loads(trained.stdout)
    assert (record["split"], record["rate"]) == ("random:0", 0)
    assert record["flips_sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    wrong = asgnn("train", "--dataset", "polblogs", "--poisoned", str(file), "--split", "random")
    assert wrong.returncode in (2, 3)
    assert "Traceback" not in wrong.stderr


def test_note_where_the_split_is_not_the_one_attacked(asgnn: Run) -> None:
    words = ["train", "--dataset", "cora", "--poisoned", "own-metattack", "--rate", "0.05", "--model", "mlp"]
    done = asgnn(*words, "--trials", "1", "--split", "random:1")
    assert done.returncode == 0, done.stderr
    assert "made against the split random:0" in done.stderr


THIRD_FLIP = f"""
{PAUSE}
from asgnn.attacks.checkpoint import FileCheckpoint

def save(self, state, save=FileCheckpoint.save):
    self.every = EVERY
    save(self, state)
    if state["flips"].shape[1] == 3:
        pause("3 flips")

FileCheckpoint.save = save
"""


# killed, an attack has what it wrote before; interrupted, it writes what it has
@pytest.mark.parametrize(("how", "every"), [(signal.SIGINT, 1e9), (signal.SIGKILL, 0)], ids=["SIGINT", "SIGKILL"])
def test_interrupted_attack_keeps_its_flips_and_resumes(how: signal.Signals, every: float, tmp_path: Path) -> None:
    file, half = tmp_path / "flips.npz", tmp_path / "flips.npz.partial"
    words = ["attack", "--dataset", "cora", "--method", "metattack", "--rate", "0.003", "--split", "random"]
    words += ["--device", "cpu", "-o", str(file)]
    with command(*words, before=THIRD_FLIP.replace("EVERY", str(every))) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "3 flips\n"
        assert half.exists() == (how is signal.SIGKILL)
        process.send_signal(how)
        _, stderr = process.communicate(timeout=HANG)
    assert half.exists(), stderr
    assert not file.exists()
    if how is signal.SIGINT:
        assert process.returncode == 130
        assert "Traceback" not in stderr
    kept = read_npz(half, ["flips"])["flips"]
    assert kept.shape[1] == 3
    with command(*words) as process:
        _, stderr = process.communicate(timeout=HANG)
    assert process.returncode == 0, stderr
    assert not half.exists()
    found = Perturbation.load(file).flips
    assert found.size(1) == 15
    assert torch.equal(found[:, :3], torch.from_numpy(kept))  # the first flips are those of the checkpoint, in order


def test_checkpoint_of_other_settings_is_refused(asgnn: Run, tmp_path: Path) -> None:
    file = tmp_path / "flips.npz"
    with FileCheckpoint(tmp_path / "flips.npz.partial", {"command": "another"}) as checkpoint:
        checkpoint.save({"flips": torch.zeros(2, 1, dtype=torch.int64)})
    done = attack(asgnn, file, "--rate", "0.001", method="metattack")
    assert done.returncode == 2
    assert "belongs to an attack with other settings" in done.stderr
    (tmp_path / "flips.npz.partial").write_bytes(b"PK")
    done = attack(asgnn, file, "--rate", "0.001", method="metattack")
    assert done.returncode == 3
    assert "damaged" in done.stderr
    assert attack(asgnn, file, "--rate", "0.001", "--fresh", method="metattack").returncode == 0


# name → change to the arrays of a checkpoint of Metattack
TAMPERED: dict[str, Callable[[dict[str, np.ndarray]], object]] = {
    "other flips": lambda arrays: arrays["flips"].__iadd__(1),
    "no flips": lambda arrays: arrays.pop("flips"),
    "flips of another shape": lambda arrays: arrays.update(flips=arrays["flips"][0]),
    "flips of another type": lambda arrays: arrays.update(flips=arrays["flips"].astype(float)),
    "labels that are no classes": lambda arrays: arrays["pseudo"].fill(99),
    "negative labels": lambda arrays: arrays["pseudo"].fill(-5),
    "no names": lambda arrays: arrays.update(names=np.frombuffer(b"{}", np.uint8)),
    "nested names": lambda arrays: arrays.update(names=np.frombuffer(b"[" * 100_000, np.uint8)),
    "no checksum": lambda arrays: arrays.pop("checksum"),
    "another checksum": lambda arrays: arrays.update(checksum=np.zeros(32, np.uint8)),
}


def test_a_tampered_checkpoint_is_not_used(asgnn: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, half = tmp_path / "flips.npz", tmp_path / "flips.npz.partial"

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    case = made_case("cora", "metattack", 0.001, SplitName("random", 0))
    with pytest.raises(KeyboardInterrupt):
        write_attack(case, file, progress=stop)
    with np.load(half) as found:
        whole = {name: found[name].copy() for name in found.files}
    assert {"flips", "pseudo"} <= whole.keys()
    for name, tamper in TAMPERED.items():
        arrays = {key: value.copy() for key, value in whole.items()}
        tamper(arrays)
        with half.open("wb") as out:
            np.savez(out, **arrays)
        done = attack(asgnn, file, "--rate", "0.001", method="metattack")
        assert (done.returncode, done.stderr.count("\n")) == (3, 1), (name, done.stderr)
        assert str(half) in done.stderr
    with half.open("wb") as out:
        np.savez(out, **whole)
    assert attack(asgnn, file, "--rate", "0.001", method="metattack").returncode == 0


def test_attack_that_cannot_write_gets_a_sentence(asgnn: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    done = attack(asgnn, tmp_path / "file" / "flips.npz", "--rate", "0.01")
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert str(tmp_path / "file") in done.stderr


def test_diverged_trainings_are_counted(asgnn: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """On standard error, in the JSON and in the store."""
    words = ["train", "--dataset", "cora", "--model", "gcn", "--split", "random:0", "--trials", "2", "--json"]
    done = asgnn(*words, "--set", "lr=1e6", "--set", "epochs=30")
    assert json.loads(done.stdout)["diverged"] == 2
    assert done.stderr == "Note: 2 of 2 trainings diverged.\n"


def test_store_migrate(asgnn: Run, tmp_path: Path) -> None:
    old, new = write_schema_1(tmp_path / "old.db"), tmp_path / "new.db"
    refused = asgnn("store", "show", str(old))
    assert (refused.returncode, f"asgnn store migrate {old} NEW.sqlite" in refused.stderr) == (3, True)
    done = asgnn("store", "migrate", str(old), str(new), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"trainings": 4, "choices": 1, "series": 1, "attacks": 1}
    assert json.loads(asgnn("store", "show", str(new), "--json").stdout)["trainings"] == 4
    assert asgnn("store", "migrate", str(new), str(tmp_path / "newer.db")).returncode == 2


def make_store(path: Path, *seeds: int, test: float = 81.5) -> Path:
    with Store.open(path) as store:
        store.add([outcome(seed, test=test) for seed in seeds])
        store.add_choices([choice()])
    return path


def test_store_show(asgnn: Run, tmp_path: Path) -> None:
    file = make_store(tmp_path / "a.db", 0, 1)
    said = json.loads(asgnn("store", "show", str(file), "--json").stdout)
    assert (said["trainings"], said["choices"], said["seconds"], said["size"]) == (2, 1, 2.5, file.stat().st_size)
    assert said["machines"] == {"a machine": 2}
    done = asgnn("store", "show", str(file))
    assert done.returncode == 0, done.stderr
    assert "trained on a machine" in done.stdout
    assert "trained by version 0.1.0" in done.stdout


def test_store_merge(asgnn: Run, tmp_path: Path) -> None:
    first, second = make_store(tmp_path / "a.db", 0, 1), make_store(tmp_path / "b.db", 1, 2, test=50.0)
    into = str(tmp_path / "into.db")
    done = asgnn("store", "merge", into, str(first), str(second), "--json")
    assert done.returncode == 0, done.stderr
    one, two = json.loads(done.stdout)
    assert (one["from"], two["from"]) == (str(first), str(second))
    assert one["trainings"] == {"new": 2, "equal": 0, "conflicts": 0}
    assert two["trainings"] == {"new": 1, "equal": 0, "conflicts": 1}
    assert two["choices"] == {"new": 0, "equal": 1, "conflicts": 0}
    assert json.loads(asgnn("store", "show", into, "--json").stdout)["trainings"] == 3
    assert "conflicts" in asgnn("store", "merge", into, str(first)).stdout
    itself = asgnn("store", "merge", into, into)
    assert (itself.returncode, itself.stdout) == (2, "")
    assert "into itself" in itself.stderr


@pytest.mark.parametrize("name", [name for name, (_, kind, _) in BAD.items() if kind is not ConfigError])
def test_store_that_cannot_be_read(name: str, asgnn: Run, tmp_path: Path) -> None:
    make, _, words = BAD[name]
    make(tmp_path / "bad.db")
    good = make_store(tmp_path / "good.db", 0)
    before = good.read_bytes()
    for arguments in (["show"], ["merge", str(good)], ["merge", str(tmp_path / "new.db"), str(good)]):
        done = asgnn("store", *arguments, str(tmp_path / "bad.db"))
        assert (done.returncode, done.stdout) == (3, "")
        assert words in done.stderr
        assert done.stderr.count("\n") == 1
    assert good.read_bytes() == before
    assert not (tmp_path / "new.db").exists()


# --- reproduce --------------------------------------------------------------------------------------------------------

REPRODUCE_REFUSED: dict[str, tuple[list[str], str]] = {
    "unknown table": (["table4"], "no table or figure 'table4'"),
    "unknown row": (["table1", "--models", "gnc"], "table1 has no row 'gnc'; its rows are gcn"),
    "unknown dataset": (["table1", "--dataset", "coral"], "There is no dataset 'coral'"),
    "dataset of another table": (["table3", "--dataset", "acm"], "table3 has no dataset acm; it has cora"),
    "rate of another table": (["table2", "--rates", "0.25"], "table2 has no rate 0.25"),
    "rate that is no number": (
        ["table1", "--rates", "0.1,many"],
        "--rates must be numbers separated by commas; it is '0.1,many'",
    ),
    "no trials": (["small", "--trials", "0"], "trials must be a whole number from 1"),
    "figure on random splits": (["figure-structure", "--splits", "random"], "random splits are for tables only"),
    "restricted figure": (["figure-structure", "--models", "asgnn"], "cannot be restricted"),
    "address without ray": (["small", "--address", "127.0.0.1:1"], "add --executor ray"),
    "workers of ray": (["small", "--workers", "2", "--executor", "ray"], "a Ray cluster has its own"),
    "gpus without ray": (["small", "--gpus", "0.5"], "--gpus belongs to a Ray cluster"),
    "too many workers": (["small", "--workers", str(10**9)], "workers must be a whole number from 1 to 256"),
    "too many trials": (["small", "--trials", str(10**9)], "from 1 to 10000"),
    "infinite rate": (["table1", "--rates", "inf"], "table1 has no rate inf"),
    "no GPU": (["small", "--device", "cuda"], "--device cpu"),
    "unknown device": (["small", "--device", "gpu"], "--device must be auto, cpu or cuda; it is 'gpu'"),
    "unknown search": (["small", "--search", "large"], "search must be one of none, small,"),
    "unknown splits": (["small", "--splits", "own"], "splits must be given or random"),
    "unknown executor": (["small", "--executor", "slurm"], "--executor must be local or ray"),
}


@pytest.mark.parametrize("case", REPRODUCE_REFUSED)
def test_reproduce_refuses_in_a_sentence(
    case: str, asgnn: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, words = REPRODUCE_REFUSED[case]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    done = asgnn("reproduce", *arguments, "--store", str(tmp_path / "store.sqlite"))
    assert (done.returncode, done.stdout) == (2, "")
    assert words in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "store.sqlite").exists()


def test_reproduce_without_ray(asgnn: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    done = asgnn("reproduce", "small", "--executor", "ray", "--store", str(tmp_path / "store.sqlite"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == 'asgnn: The ray executor needs Ray: pip install "asgnn[ray]".\n'
    assert not (tmp_path / "store.sqlite").exists()


def test_reproduce_that_lacks_a_file(asgnn: Run, tmp_path: Path) -> None:
    done = asgnn(
        "reproduce", "table1", "--dataset", "acm", "--models", "gcn", "--rates", "0", "--search", "none",
        "--trials", "1", "--store", str(tmp_path / "store.sqlite"),
        https_proxy="http://127.0.0.1:9", HTTPS_PROXY="http://127.0.0.1:9",
    )  # fmt: skip
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1
    assert "ASGNN_MIRROR" in done.stderr


def test_reproduce_a_small_table(asgnn: Run, tmp_path: Path) -> None:
    words = ["reproduce", "small", "--models", "gcn", "--search", "none", "--trials", "1", "--device", "cpu"]
    store = tmp_path / "new" / "store.sqlite"
    done = asgnn(*words, "--store", str(store))
    assert done.returncode == 0, done.stderr
    assert [line.split(",")[0] for line in done.stderr.splitlines()] == ["1/2 trainings", "2/2 trainings"]
    assert "cora, 25% edges flipped by our Metattack" in " ".join(done.stdout.split())
    assert "GCN" in done.stdout
    again = asgnn(*words, "--store", str(store))
    assert (again.returncode, again.stdout, again.stderr) == (0, done.stdout, "")
    with Store.open(store, create=False) as found:
        assert [one.rule for one in found.choices("small")] == ["none", "none"]


def test_reproduce_on_random_splits(asgnn: Run, tmp_path: Path) -> None:
    """Progress of the attack is shown; the column without flips needs the targets alone."""
    words = ["reproduce", "table3", "--splits", "random", "--models", "gcn", "--search", "none", "--trials", "1"]
    words += ["--device", "cpu", "--store", str(tmp_path / "store.sqlite")]
    done = asgnn(*words, "--rates", "1")
    assert done.returncode == 0, done.stderr
    *attack, trained = done.stderr.splitlines()
    assert attack[0].startswith("made-nettack at 1 on cora, random:0: 1/")
    assert attack[-1].startswith("made-nettack at 1 on cora, random:0: ")
    assert len(set(attack[-1].split()[-2].split("/"))) == 1
    assert trained.startswith("1/1 trainings")
    assert "a random split for each trial: cora, 1 flips for each target" in " ".join(done.stdout.split())
    clean = asgnn(*words, "--rates", "0")
    assert clean.returncode == 0, clean.stderr
    assert [line.split(",")[0] for line in clean.stderr.splitlines()] == ["1/1 trainings"]
    with Store.open(tmp_path / "store.sqlite", create=False) as found:
        assert found.summary().attacks == 2
        assert {one.case.split for one in found.choices("table3-random")} == {SplitName("random")}
        assert {one.training.case.split for one in found.outcomes()} == {SplitName("random", 0)}


SMALL = ["reproduce", "small", "--models", "gcn", "--search", "small", "--trials", "3", "--batch", "2"]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_reproduction_loses_nothing_and_resumes(how: signal.Signals, asgnn: Run, tmp_path: Path) -> None:
    stopped, undisturbed = tmp_path / "stopped.sqlite", tmp_path / "undisturbed.sqlite"
    with command(*SMALL, "--device", "cpu", "--store", str(stopped)) as process:
        assert process.stderr is not None
        lines = [process.stderr.readline() for _ in range(3)]
        process.send_signal(how)
        _, stderr = process.communicate(timeout=HANG)
    if how is signal.SIGINT:
        assert process.returncode == 130, stderr
        assert stderr.splitlines()[-1] == "asgnn: Interrupted; finished results are stored."
        assert "Traceback" not in stderr
    with Store.open(stopped) as found:
        kept = {one.training.key: one for one in found.outcomes()}
    assert 42 > len(kept) >= int(lines[-1].split("/")[0]) == 6
    for store in (stopped, undisturbed):
        done = asgnn(*SMALL, "--device", "cpu", "--store", str(store))
        assert done.returncode == 0, done.stderr
    with Store.open(stopped) as found, Store.open(undisturbed) as wanted:
        assert found.content() == wanted.content()
        assert found.summary().trainings == 42
        assert kept.items() <= {one.training.key: one for one in found.outcomes()}.items()  # seconds included


def test_reproduction_killed_at_random_moments() -> None:
    """A short one; ``python scripts/kill_test.py --kills 50`` is the long one."""
    script = Path(__file__).parents[1] / "scripts" / "kill_test.py"
    words = [sys.executable, str(script), "--kills", "3", "--models", "gcn"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "NOT EQUAL" not in done.stdout
    assert done.stdout.splitlines()[-1].startswith("3 kills in ")


# --- train --tune ---------------------------------------------------------------------------------------------------

TUNE = ["train", "--dataset", "cora", "--model", "appnp", "--split", "random", "--trials", "2", "--device", "cpu"]
TUNE += ["--set", "epochs=8", "--set", "hidden_channels=4"]


def test_train_with_tune_prints_the_choice(asgnn: Run, tmp_path: Path) -> None:
    store = tmp_path / "results.sqlite"
    found = asgnn(*TUNE, "--tune", "--budget", "5", "--store", str(store))
    assert found.returncode == 0
    assert "all trials have one split, random:0" in found.stderr
    for part in ("Choice of settings", "the best 5 of 5 settings", "Chosen: ", "an MLP", "a GCN", "appnp on cora"):
        assert part in found.stdout
    # the second run finds every training in the files
    again = asgnn(*TUNE, "--tune", "--budget", "5", "--store", str(store), "--json")
    out = json.loads(again.stdout)
    assert out["settings"] == out["tuned"]["settings"]
    assert {"hidden_channels": 4, "epochs": 8}.items() <= out["settings"].items()
    assert out["tuned"]["tried"] == 5
    assert out["split"] == "random:0"
    (tuning,) = tmp_path.glob("results.tune-*.jsonl")
    before = tuning.read_text()
    assert f"Chosen: {' '.join(f'{k}={v}' for k, v in out['tuned']['settings'].items())}" in found.stdout
    asgnn(*TUNE, "--tune", "--budget", "5", "--store", str(store))
    assert tuning.read_text() == before
    with Store.open(store, create=False) as kept:
        assert len(list(kept.outcomes())) == 2


def test_a_large_graph_is_told_what_it_needs(asgnn: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["train", "--dataset", "cora", "--split", "random", "--trials", "1", "--set", "epochs=1", "--json"]
    assert "of memory" not in asgnn(*command).stderr
    monkeypatch.setattr("asgnn.training.memory.LARGE", 10_000)
    done = asgnn(*command)
    assert done.returncode == 0
    assert re.match(r"Note: training needs about [\d.]+ MB of memory \(graph .*\); [\d.]+ GB are free\.", done.stderr)
