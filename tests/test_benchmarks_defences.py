"""The benchmark of the defences: failed checks, the time of a training, failed processes, the initial weights."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from asgnn.graphs import load_dataset, random_split
from asgnn.training import RECIPES

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import benchmarks/run_defences.py with a split that needs no file."""
    monkeypatch.syspath_prepend(FOLDER)
    bench = importlib.import_module("run_defences")
    monkeypatch.setattr(bench, "choose_split", lambda data: (random_split(data, 0), "random, trial 0"))
    return bench


def processes(seconds: dict[str, float], scores: dict[str, float], accuracy: dict[str, float] | None = None) -> type:
    """Return a replacement of worker.Worker whose sides take ``seconds`` per epoch and one second before the first."""

    class Worker:
        info: dict[str, Any] = {}  # noqa: RUF012

        def __init__(self, side: str, command: list[str], env: dict[str, str]) -> None:
            self.side, self.turns = side, 0
            epochs = int(command[-3] if "--ours" in command else command[-4])
            assert env["OMP_NUM_THREADS"] == "1"
            each = seconds[side]
            ends = [1 + each * (1 + epoch) for epoch in range(epochs)]
            self.clock = [[2 * now, now] for now in (0, *ends, ends[-1])]
            path = Path(command[-1])
            if side in scores:
                path = path.with_name("expected.npz") if side == "asgnn" else path
                np.savez(path, scores=np.full((3, 2), scores[side]))

        def turn(self) -> dict[str, Any]:
            result = {"clock": self.clock, "peak_bytes": 10**8, "threads": 1}
            result["accuracy"] = (accuracy or {}).get(self.side, 0.8)
            return result | ({"losses": [2.0, 1.0]} if "asgnn" in self.side else {})

        def __enter__(self) -> Worker:
            return self

        def __exit__(self, *error: object) -> None:
            pass

    return Worker


def test_table_and_file(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    sides = {"asgnn": 0.1, "asgnn × 10": 0.5, "DeepRobust": 0.3}
    monkeypatch.setattr(bench, "Worker", processes(sides, {"asgnn": -1.0, "DeepRobust": -1.00001}))
    output = tmp_path / "new" / "bench.json"
    assert bench.main(["--peer", "python", "--only", "gcn", "--only", "rung", "-o", str(output)]) == 0
    printed = capsys.readouterr().out
    assert "gcn             asgnn                  21 s     1.00                   100.0 MB      1.0  1e-05" in printed
    assert "                asgnn × 10           10.1 s     0.48     (0.48–0.48)   100.0 MB      1.0" in printed
    assert "                DeepRobust             61 s     2.90     (2.90–2.90)   100.0 MB      1.0" in printed
    assert "a training of 200 epochs on Cora, of which 30 were timed; times for one training" in printed
    gcn, rung = json.loads(output.read_text())["cases"]
    assert [side["name"] for side in gcn["sides"]] == list(sides)
    assert [side["name"] for side in rung["sides"]] == ["asgnn", "asgnn × 10"]
    assert gcn["sides"][0]["wall_seconds"] == pytest.approx([42, 42])
    assert gcn["sides"][1]["units"] == 10


@pytest.mark.parametrize(
    ("scores", "accuracy", "message"),
    [
        ({"asgnn": -1.0, "PyG": -1.1}, {}, "scores with the same weights differs by 9.1e-02, allowed 1e-04"),
        ({"asgnn": -1.0, "PyG": -1.0}, {"PyG": 0.7}, "test accuracy differs by 1.0e-01, allowed 5e-02"),
    ],
)
def test_failed_check_gives_no_times(
    bench: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    scores: dict[str, float],
    accuracy: dict[str, float],
    message: str,
) -> None:
    seconds = {"asgnn": 0.1, "asgnn × 10": 0.5, "PyG": 0.3}
    monkeypatch.setattr(bench, "Worker", processes(seconds, scores, accuracy))
    output = tmp_path / "bench.json"
    assert bench.main(["--peer", "python", "--only", "mlp", "-o", str(output)]) == 1
    assert f"mlp             FAILED: {message}\n" in capsys.readouterr().out
    assert json.loads(output.read_text())["cases"][0]["sides"] == []


def test_run_without_a_peer(bench: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """With real processes, and without DeepRobust's environment, which gnnguard does not need."""
    output = tmp_path / "bench.json"
    assert bench.main(["--only", "gnnguard", "--epochs", "4", "--rounds", "1", "-o", str(output)]) == 0
    (case,) = json.loads(output.read_text())["cases"]
    assert [side["name"] for side in case["sides"]] == ["asgnn", "asgnn × 10"]
    assert all(side["seconds"] > 0 for side in case["sides"])
    assert case["checks"][0]["where"] == "loss of a trial alone and in a batch"
    assert "asgnn × 10" in capsys.readouterr().out


def test_environment_that_cannot_be_created(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def build(folder: Path) -> Path:
        raise bench.CannotMeasure("There is no network.")

    monkeypatch.setattr(bench, "build", build)
    assert bench.main(["--only", "gcn"]) == 1
    assert capsys.readouterr().err == "There is no network. Nothing was measured.\n"


def test_failed_process_is_reported(bench: ModuleType) -> None:
    worker = importlib.import_module("worker")
    code = "import sys; print('{}', flush=True); input(); sys.exit('RuntimeError: no more memory.')"
    with worker.Worker("PyG", [sys.executable, "-c", code], {}) as process:
        assert process.info == {}
        with pytest.raises(bench.CannotMeasure) as error:
            process.turn()
    assert str(error.value) == "The process of PyG failed with code 1: RuntimeError: no more memory."


@pytest.mark.parametrize(
    ("ends", "epochs", "all_epochs", "expected"),
    [
        ([5, 6, 7, 8], 4, 4, 9),  # all epochs are timed
        ([5, 6, 7, 8], 4, 104, 9 + 100),
        ([5, 6, 8, 10], 4, 104, 11 + 200),  # the first two are not averaged
        ([5, 6, 7, 8, 20, 21, 23, 25], 4, 104, 26 + 300),  # two batches, one after the other
        ([5, 6, 7], 4, 104, None),
        ([], 4, 104, None),
    ],
)
def test_training_seconds(
    bench: ModuleType, ends: list[float], epochs: int, all_epochs: int, expected: float | None
) -> None:
    clock = [[2 * now, now] for now in (0, *ends, (ends or [0])[-1] + 1)]
    if expected is None:
        with pytest.raises(bench.CannotMeasure, match=f"reported progress {len(ends)} times"):
            bench.training_seconds(clock, epochs, all_epochs)
    else:
        assert bench.training_seconds(clock, epochs, all_epochs).tolist() == [2 * expected, expected]


def test_too_few_epochs(bench: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.main(["--epochs", "3"])
    assert "must be 4 or more" in capsys.readouterr().err


def test_both_sides_have_the_same_initial_weights(bench: ModuleType, tmp_path: Path) -> None:
    """The scores agree for the MLP, the only other side that does not need DeepRobust."""
    peer, worker = importlib.import_module("peer_defences"), importlib.import_module("worker")
    assert bench.PEERS.keys() == peer.PEERS.keys() <= RECIPES.keys()
    data = load_dataset("cora")
    task, start = tmp_path / "task.npz", tmp_path / "start.npz"
    bench.write(task, data, random_split(data, 0))
    bench.begin("mlp", 1, 4, str(task), str(start))
    given = worker.read(start)
    assert (given["lr"], given["weight_decay"], given["dropout"]) == (0.01, 5e-4, 0.5)
    weights = [torch.from_numpy(given[f"start_{at:02}"]) for at in range(4)]
    theirs = peer.mlp(worker.read(task), SimpleNamespace(dropout=0.5), (data.num_features, 64, 7))
    peer.set_weights("mlp", theirs.model, weights)
    theirs.model.eval()
    expected = torch.from_numpy(worker.read(tmp_path / "expected.npz")["scores"])
    torch.testing.assert_close(theirs.scores().detach(), expected, rtol=1e-4, atol=1e-4)


def test_settings_equal_those_of_the_model(bench: ModuleType) -> None:
    built = {name: RECIPES[name].kind(in_channels=5, out_channels=3, **RECIPES[name].arguments) for name in bench.PEERS}
    found = {name: bench.peer_settings(model) for name, model in built.items()}
    assert found["gat"] == {"dropout": pytest.approx(0.6), "heads": 8}
    assert found["gcn-svd"] == {"rank": 50, "dropout": 0.5}
    assert found["appnp"] == {"num_layers": 10, "alpha": 0.1, "dropout": 0.5}
    assert found["prognn"]["lam"] == 1e-3
    assert found["prognn-fs"]["lam"] == 0
