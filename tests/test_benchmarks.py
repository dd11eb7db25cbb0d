"""The benchmarks: quick run, failed checks, comparison, memory."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from asgnn.graphs import validate

FOLDER = Path(__file__).parents[1] / "benchmarks"
NAN, INF = float("nan"), float("inf")


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import benchmarks/run.py with its folder on the path."""
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module("run")


def test_quick_run(tmp_path: Path) -> None:
    output = tmp_path / "new" / "bench.json"
    command = [sys.executable, FOLDER / "run.py", "--quick", "--only", "appnp", "--only", "first-layer-1", "-o", output]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert (done.returncode, done.stderr) == (0, "")
    record = json.loads(output.read_text())
    assert record["torch"] == torch.__version__
    assert (record["device"], record["threads"], record["quick"]) == ("cpu", 1, True)
    assert record["machine"]
    assert [case["name"] for case in record["cases"]] == ["appnp", "first-layer-1"]
    for case in record["cases"]:
        assert case["ok"]
        assert case["checks"]
        assert all(0 <= check["error"] <= check["tolerance"] for check in case["checks"])
        assert len(case["sides"]) >= 2
        assert case["sides"][0]["ratio"] == 1
        for side in case["sides"]:
            assert side["seconds"] > 0
            assert side["ratio_low"] <= side["ratio"] <= side["ratio_high"]
            assert side["name"] in done.stdout


def test_failed_check_gives_no_times(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    measure = importlib.import_module("measure")
    right, wrong = torch.ones(3), torch.tensor([1.0, 1.0, 1.1])

    def case(setting: object) -> object:
        sides = {"right": measure.Side(lambda: {"h": right}), "wrong": measure.Side(lambda: {"h": wrong})}
        return measure.Case("sides with different results", sides, 1e-2)

    def broken(setting: object) -> object:
        raise RuntimeError("out of memory")

    monkeypatch.setitem(bench.CASES, "wrong", case)
    monkeypatch.setitem(bench.CASES, "broken", broken)
    output = tmp_path / "bench.json"
    assert bench.main(["--quick", "--only", "wrong", "--only", "broken", "-o", str(output)]) == 1
    printed = capsys.readouterr().out
    assert "wrong           FAILED: h differs by 9.1e-02, allowed 1e-02" in printed
    assert "broken          FAILED: out of memory" in printed
    failed, crashed = json.loads(output.read_text())["cases"]
    assert not failed["ok"]
    assert failed["sides"] == []
    assert failed["checks"][0]["where"] == "h"
    assert not crashed["ok"]
    assert crashed["error"] == "out of memory"


@pytest.mark.parametrize(
    ("ours", "other", "ok"),
    [
        ({"a": [1.0, 2.0]}, {"a": [1.0, 2.0]}, True),
        ({"a": [1.0, 2.0]}, {"a": [1.0, 2.0015]}, True),
        ({"a": [1.0, 2.0]}, {"a": [1.0, 2.1]}, False),
        ({"a": [0.0]}, {"a": [0.0]}, True),
        ({"a": [1.0], "b": [1.0]}, {"a": [1.0], "b": [3.0]}, False),
        ({"a": [1.0]}, {"b": [1.0]}, False),
        ({"a": [1.0, 1.0]}, {"a": [1.0]}, False),
        ({"a": [NAN]}, {"a": [NAN]}, False),
        ({"a": [INF]}, {"a": [INF]}, False),
        ({}, {}, False),
    ],
)
def test_compare(bench: ModuleType, ours: dict[str, list[float]], other: dict[str, list[float]], ok: bool) -> None:
    compare = importlib.import_module("measure").compare
    values = ({name: torch.tensor(value) for name, value in side.items()} for side in (ours, other))
    assert compare(*values, 1e-3).ok is ok


def test_peak_memory() -> None:
    size = 1 << 26
    code = (
        "import torch, measure\n"
        f"print(measure.peak_memory(lambda: {{'a': torch.ones({size // 4})}}, torch.device('cpu')))"
    )
    # in a new process: in this one, memory kept from earlier tests may serve
    done = subprocess.run([sys.executable, "-c", code], cwd=FOLDER, capture_output=True, text=True, check=True)
    peak = done.stdout.strip()
    if peak == "None":
        pytest.skip("the memory of a process is known only on Linux")
    assert 0.9 * size < int(peak) < 1.5 * size


def test_unknown_case(bench: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.main(["--only", "nothing"])
    assert "nothing" in capsys.readouterr().err


def test_big_graphs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A graph with planted classes, one layer, a few trainings, and each model."""
    monkeypatch.syspath_prepend(FOLDER)
    big = importlib.import_module("big")
    settings = argparse.Namespace(nodes=400, edges=2000, features=5, classes=3, device="cpu")
    data, split = big.make(settings, str(tmp_path))
    validate(data)
    assert 1900 < data.edge_index.size(1) // 2 <= 2000
    alike = (data.y[data.edge_index[0]] == data.y[data.edge_index[1]]).float().mean()
    assert 0.75 < alike < 0.85  # 0.7, and a third of the others
    assert (split.train.numel(), split.val.numel(), split.test.numel()) == (40, 40, 320)
    row = big.one_layer("cpu", big.layer_graph("cpu", 500, 16, 10), 1)
    assert row["entries"] == 2 * row["edges"] + row["nodes"]
    assert row["bytes"] - row["bytes_each_once"] == row["entries"] * (3 * 16 + 2) * 4
    memory = big.repeat("cpu", 2, epochs=1)["memory"]
    assert [one["trainings"] for one in memory] == [1, 2]
    more = {"hidden": 4, "layers": 2, "epochs": 2, "mapped": True}
    for name in ("asgnn", "appnp", "gcn"):
        record = big.run_alone(argparse.Namespace(**vars(settings), **more, run=name))
        assert record["seconds_per_epoch"] > 0
        assert record["growth_bytes"] >= 0
