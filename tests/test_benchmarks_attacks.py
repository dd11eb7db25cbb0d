"""The benchmark of the attacks: checks of the flips, times per unit, and errors of DeepRobust's environment."""

from __future__ import annotations

import importlib
import json
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from asgnn.graphs import Perturbation, load_dataset, random_split

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import benchmarks/run_attacks.py with a split that needs no file."""
    monkeypatch.syspath_prepend(FOLDER)
    bench = importlib.import_module("run_attacks")
    monkeypatch.setattr(bench, "choose_split", lambda data: (random_split(data, 0), "random, trial 0"))
    return bench


def answer(bench: ModuleType, command: list[str], seconds: float) -> dict[str, Any]:
    """Return the answer of either side, with arbitrary flips at the targets instead of an attack."""
    task = bench.read(Path(command[-1]))
    if command[-2] == "metattack":
        flips = [[0, 100 + i] for i in range(int(task["budget"]))]
    else:
        flips = [[u, 1000 + i] for u in task["targets"].tolist() for i in range(int(task["per_target"]))]
    return {"seconds": [seconds, 2 * seconds], "flips": flips, "peak_bytes": int(1e8 * seconds), "threads": 2}


def test_table_and_file(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(bench, "answer", lambda command, side: answer(bench, command, 2.0 if side == "asgnn" else 6.0))
    output = tmp_path / "new" / "bench.json"
    assert bench.main(["--peer", "python", "-o", str(output)]) == 0
    printed = capsys.readouterr().out
    assert "DeepRobust              9 s     3.00     (1.50–6.00)   600.0 MB      3.0" in printed
    assert "margin: clean" in printed
    metattack, nettack = json.loads(output.read_text())["cases"]
    assert (metattack["unit"], nettack["unit"]) == ("flip", "target")
    for case in (metattack, nettack):
        assert case["ok"]
        assert [side["seconds"] for side in case["sides"]] == [3, 9]
        assert case["sides"][1]["all_seconds"] == [6, 12]
    assert nettack["margins"]["asgnn"] == nettack["margins"]["DeepRobust"] < nettack["margins"]["clean"]


def test_rule_violation_gives_no_times(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def one_too_many(command: list[str], side: str) -> dict[str, Any]:
        result = answer(bench, command, 1.0)
        return result | {"flips": result["flips"] + [[0, 2000]] * (side == "asgnn")}

    monkeypatch.setattr(bench, "answer", one_too_many)
    output = tmp_path / "bench.json"
    assert bench.main(["--peer", "python", "--only", "metattack", "-o", str(output)]) == 1
    assert "FAILED: number of rule violations of asgnn differs by 1.0e+00, allowed 0e+00\n" in capsys.readouterr().out
    assert json.loads(output.read_text())["cases"][0]["sides"] == []


def test_failed_process_is_reported(
    bench: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    failed = subprocess.CompletedProcess([], 3, "", "Traceback\nRuntimeError: no more memory\n")
    monkeypatch.setattr(bench.subprocess, "run", lambda *args, **kwargs: failed)
    assert bench.main(["--peer", "python", "--only", "nettack", "-o", str(tmp_path / "bench.json")]) == 1
    assert "The process of asgnn failed with code 3: RuntimeError: no more memory." in capsys.readouterr().out


def test_environment_that_cannot_be_created(
    bench: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **kwargs: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        offline = "install" in command
        return subprocess.CompletedProcess(command, int(offline), "", "ERROR: No matching distribution.\n" * offline)

    monkeypatch.setattr(bench, "ENVIRONMENT", tmp_path / "peers")
    monkeypatch.setattr(bench.subprocess, "run", run)
    assert bench.main([]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines()[-1] == (
        "Cannot create the environment peers for deeprobust==0.2.11: ERROR: No matching distribution. "
        "Nothing was measured."
    )
    assert len(commands) == 2


def test_environment_is_created_once(bench: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **kwargs: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(bench.subprocess, "run", run)
    assert bench.build(tmp_path) == bench.build(tmp_path) == tmp_path / "bin" / "python"
    assert len(commands) == 3
    (tmp_path / ".ready").write_text("other versions")
    bench.build(tmp_path)
    assert len(commands) == 6


@pytest.mark.parametrize(
    ("clock", "steps", "units", "expected"),
    [
        ({1: 5.0, 2: 7.0, 3: 10.0}, 3, 3, [2, 3]),
        ({0: 1.0, 1: 5.0, 2: 7.0}, 2, 2, [2]),
        ({1: 1.0, 2: 2.0, 3: 4.0, 4: 8.0}, 4, 2, [6]),  # two steps per unit
        ({2: 1.0}, 2, 2, None),
        ({1: 1.0, 2: 2.0, 3: 3.0}, 3, 2, None),
        ({}, 0, 2, None),
    ],
)
def test_unit_seconds(
    bench: ModuleType, clock: dict[int, float], steps: int, units: int, expected: list[float] | None
) -> None:
    if expected is None:
        with pytest.raises(bench.CannotMeasure, match="not after each of"):
            bench.unit_seconds(clock, steps, units)
    else:
        assert bench.unit_seconds(clock, steps, units) == expected


def test_our_side(bench: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The attacks are called according to their signatures, and the file preserves the task."""
    data, calls = load_dataset("cora"), []
    split = random_split(data, 0)
    targets = bench.choose_targets(data, split, 3)
    bench.write(tmp_path / "task.npz", data, split, budget=2, per_target=bench.PER_TARGET, targets=targets)
    task = bench.read(tmp_path / "task.npz")
    assert np.array_equal(task["targets"], targets.numpy())
    assert torch.bincount(data.edge_index[0])[targets].min() > 10

    def attack(data: Any, count: int, train: torch.Tensor, *rest: Any, progress: Any, **options: Any) -> Perturbation:
        calls.append((count, train.tolist() == split.train.tolist(), options))
        for done in range(6):
            progress(done + 1, 6)
        return Perturbation(torch.tensor([[0, 1], [7, 8]]), data.num_nodes)

    monkeypatch.setattr(bench.attacks, "metattack", attack, raising=False)
    monkeypatch.setattr(bench.attacks, "nettack", attack, raising=False)
    for name, units in (("metattack", 2), ("nettack", 3)):
        result = bench.run_ours(name, task)
        assert result["flips"] == [[0, 7], [1, 8]]
        assert len(result["seconds"]) == units - 1
    assert calls == [(2, True, {"variant": "self", "exact": True}), (5, True, {})]


def test_check_rules(bench: ModuleType) -> None:
    data = load_dataset("cora")
    degree = torch.bincount(data.edge_index[0])
    leaf = int((degree == 1).nonzero()[0])
    neighbour = int(data.edge_index[1][data.edge_index[0] == leaf])

    def violations(side: str, flips: list[list[int]], budget: int, targets: list[int] | None = None) -> float:
        nodes = None if targets is None else torch.tensor(targets)
        return float(bench.check_rules(side, flips, data, budget, nodes).error)

    assert violations("asgnn", [[0, 100], [0, 101]], 2) == 0
    assert violations("asgnn", [[0, 100]], 2) == 1
    assert violations("DeepRobust", [[0, 100]], 2) == 0
    assert violations("DeepRobust", [], 2) == 1
    assert violations("DeepRobust", [[0, 100], [0, 101]], 1) == 1
    assert violations("DeepRobust", [[leaf, neighbour]], 1) == 1
    assert violations("DeepRobust", [[0, 100], [5, 101]], 2, [0]) == 1
    assert violations("DeepRobust", [[0, 0]], 1) == float("inf")


@pytest.mark.parametrize(
    ("ours", "theirs", "ok"),
    [(-3, -3, True), (-4, -3, True), (-2.7, -3, True), (0, -3, False), (1, 3, True), (4, 3, False)],
)
def test_check_margins(bench: ModuleType, ours: float, theirs: float, ok: bool) -> None:
    assert bench.check_margins({"clean": 2.0, "asgnn": ours, "DeepRobust": theirs}).ok is ok
