"""Time and peak memory of every defence on Cora, on the CPU, compared with DeepRobust or PyG where they have it.

    python benchmarks/run_defences.py                                     # about twelve minutes
    python benchmarks/run_defences.py --only gcn --only prognn --epochs 100 --rounds 4 -o runs/two.json
    python benchmarks/run_defences.py -o docs/records/bench-defences.json && python scripts/defence_table.py table

Each defence is trained by its recipe: one trial and, as "asgnn × 10", a batch of ten, whose time is divided by ten
(Pro-GNN: a batch of two). The other side is DeepRobust 0.2.11 or, for the MLP, PyG; the first run creates an
environment for them, .venv-peers. peer_defences.py lists the adaptations of each. Defences that neither of them has
are measured alone.

All sides have the same graph, split, settings, initial weights and number of epochs, and one thread each. Each side is
a process, and the sides take turns. Times are CPU seconds, which on one thread equal wall time if no other program uses
the processor, and are close to it otherwise. The file also has the wall times.

After a warm-up (which excludes compilation), the first 30 epochs (Pro-GNN: 4) of a training are timed, including
preprocessing such as an SVD. The remaining epochs of the recipe are added at the mean time of the epochs after the
second. Memory is the peak of the whole process. Ratios are relative to one trial of ours: 3.0 means three times as much
time or memory.

Four checks must pass: with the same weights, the scores of the sides before training agree to 1e-4; their test
accuracies after training are within five points; the first trial has the same losses alone and in a batch; and the
nuclear-norm step of Pro-GNN gives the same matrix. If a check fails, no time is printed, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cases import CLOSE, CLOSE_TRAINED, cora
from measure import Check, compare
from peers import ENVIRONMENT, PEER, build, choose_split, peer_command, sides, write
from report import about, positive, report
from worker import CannotMeasure, Tick, Training, Worker, read, serve

from asgnn.graphs import Split
from asgnn.models import NodeClassifier, ProGNN
from asgnn.models.spectral import shrink_spectrum
from asgnn.training import RECIPES, accuracy, fit_many, recipe

PEERS = dict.fromkeys(
    ("gcn", "gcn-jaccard", "gcn-svd", "sgc", "gat", "appnp", "airgnn", "prognn", "prognn-fs"), "DeepRobust"
) | {"mlp": "PyG"}
OURS = "asgnn"
# without the paper's objective, the same computation, and without logistic regression, a smaller MLP
NAMES = [name for name in RECIPES if name not in ("asgnn-paper", "logistic")]
BATCH = 10
"""Trials in a batch."""
SLOW = {"prognn": (4, 2), "prognn-fs": (4, 2)}
"""Epochs and trials of defences that decompose an N × N matrix for each trial in every other epoch."""
COMPARED = 10
"""Epochs whose losses are compared; rounding differences grow during training."""
ACCURACY_TOLERANCE = 0.05
SETTINGS = (
    "num_layers", "alpha", "beta", "gamma", "lam", "structure_lr", "inner_steps", "threshold", "rank",
    "dropout", "heads",
)  # fmt: skip
ENV = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse(argv)
    if arguments.ours is not None:
        model, count, epochs, *paths = arguments.ours
        serve(lambda: begin(model, int(count), int(epochs), *paths))
        return 0
    names = arguments.only or NAMES
    try:
        python = arguments.peer or (build(ENVIRONMENT) if PEERS.keys() & set(names) else None)
    except CannotMeasure as error:
        print(f"{error} Nothing was measured.", file=sys.stderr)
        return 1
    data = cora()
    split, split_name = choose_split(data)
    record = about(torch.device("cpu")) | {"peer": PEER, "split": split_name, "threads": 1, "clock": "CPU seconds"}
    record["load"] = round(os.getloadavg()[0], 2)
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder, "task.npz"), data, split)
        results = (measure(name, Path(folder), python, arguments) for name in names)
        return report(record, results, arguments.output, "defence")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=NAMES, action="append", metavar="NAME", help=f"one of {', '.join(NAMES)}")
    parser.add_argument("--epochs", type=positive, default=30, help="timed epochs, except for Pro-GNN; at least 4")
    parser.add_argument("--rounds", type=positive, default=2, help="trainings of each side")
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/bench-defences.json"), metavar="FILE")
    parser.add_argument("--peer", type=Path, metavar="PYTHON", help="an interpreter that has DeepRobust and PyG")
    # Used by the program for its subprocesses: serve our side of one defence.
    parser.add_argument("--ours", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.epochs < 4:
        parser.error(f"--epochs must be 4 or more, because the first two are not averaged; it is {arguments.epochs}")
    return arguments


def begin(name: str, count: int, epochs: int, task: str, start: str) -> tuple[Mapping[str, Any], Training]:
    """Prepare our side; for one trial, also write the initial weights for the other side and the expected scores."""
    arrays, data = read(task), cora()
    split = Split(*(torch.from_numpy(arrays[part]) for part in ("train", "val", "test")))

    def train(epochs: int, tick: Tick) -> Callable[[], Mapping[str, Any]]:
        trials = [recipe(name).trial(data, split, seed) for seed in range(count)]
        trials = [replace(trial, config=replace(trial.config, epochs=epochs)) for trial in trials]
        first = fit_many(trials, data, progress=lambda done, total: tick())[0]
        return lambda: {
            "losses": first.history.train_loss[:COMPARED].tolist(),
            "accuracy": accuracy(first.model, data, split.test),
        }

    if count == 1:
        trial = recipe(name).trial(data, split, 0)
        assert isinstance(trial.model, NodeClassifier)
        initial = peer_settings(trial.model) | {"lr": trial.config.lr, "weight_decay": trial.config.weight_decay}
        weights = (p.detach().numpy() for p in trial.model.parameters() if p.requires_grad)
        initial |= {f"start_{at:02}": weight for at, weight in enumerate(weights)}
        with torch.no_grad():
            scores = trial.model.eval()(data.x, data.edge_index).log_softmax(1).numpy()
        np.savez(start, **initial)
        np.savez(expected_at(start), scores=scores, **shrunk(trial.model))
    if name not in SLOW:  # warm-up
        train(2, lambda: None)
    return {}, lambda tick: train(epochs, tick)


def peer_settings(model: NodeClassifier) -> dict[str, Any]:
    """Return the settings of our model that the other side needs."""
    return {name: value for name, value in model.settings.items() if name in SETTINGS}


def expected_at(start: str) -> Path:
    return Path(start).with_name("expected.npz")


def shrunk(model: torch.nn.Module) -> dict[str, Any]:
    """Return the adjacency matrix after the nuclear-norm step of Pro-GNN."""
    if not isinstance(model, ProGNN):
        return {}
    data = cora()
    matrix = torch.zeros(1, int(data.num_nodes), int(data.num_nodes))
    matrix[0, data.edge_index[0], data.edge_index[1]] = 1
    return {"shrunk": shrink_spectrum(matrix, model.structure_lr * model.beta, symmetric=True)[0].numpy()}


def measure(name: str, folder: Path, python: Path | None, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the result of a defence for the file: always its checks, and its sides if all checks pass."""
    all_epochs = recipe(name).config.epochs
    timed, batch = SLOW.get(name, (arguments.epochs, BATCH))
    epochs, trials = min(timed, all_epochs), {OURS: 1, f"{OURS} × {batch}": batch}
    what = f"a training of {all_epochs} epochs on Cora, of which {epochs} were timed"
    result: dict[str, Any] = {"name": name, "what": what, "unit": "training", "ok": False, "checks": [], "sides": []}
    result |= {"epochs": all_epochs, "timed_epochs": epochs}
    task, start, scores = (folder / file for file in ("task.npz", "start.npz", "scores.npz"))
    ours = [sys.executable, __file__, "--ours", name]
    commands = {side: [*ours, str(count), str(epochs), str(task), str(start)] for side, count in trials.items()}
    if name in PEERS:
        assert python is not None
        commands[PEERS[name]] = peer_command(python, "peer_defences.py", name, epochs, task, start, scores)
    try:
        with contextlib.ExitStack() as open_workers:
            workers = [
                open_workers.enter_context(Worker(side, command, os.environ | ENV))
                for side, command in commands.items()
            ]
            turns: dict[str, list[dict[str, Any]]] = {worker.side: [] for worker in workers}
            for _ in range(arguments.rounds):
                for worker in workers:
                    turns[worker.side].append(worker.turn())
            answers = {
                worker.side: summary(turns[worker.side], epochs, all_epochs, trials.get(worker.side, 1)) | worker.info
                for worker in workers
            }
    except CannotMeasure as error:
        return {**result, "error": str(error)}
    checks = check_sides(answers, expected_at(str(start)), scores if name in PEERS else None)
    result["checks"] = [asdict(check) for check in checks]
    if not all(check.ok for check in checks):
        return result
    found = sides(answers)
    for side in found:
        side |= {key: answers[side["name"]][key] for key in ("units", "wall_seconds", "accuracy")}
    return {**result, "ok": True, "sides": found}


def summary(turns: Sequence[Mapping[str, Any]], epochs: int, all_epochs: int, trials: int) -> dict[str, Any]:
    """Return for one side the CPU and wall seconds of each training, the peak memory and the losses of the first."""
    seconds = np.array([training_seconds(turn["clock"], epochs, all_epochs) for turn in turns]) / trials
    return {
        "units": trials,
        "seconds": seconds[:, 1].tolist(),
        "wall_seconds": seconds[:, 0].tolist(),
        "peak_bytes": max((turn["peak_bytes"] for turn in turns if turn["peak_bytes"]), default=None),
        "threads": max(turn["threads"] for turn in turns),
        "accuracy": statistics.median(turn["accuracy"] for turn in turns),
        "losses": turns[0].get("losses"),
    }


def training_seconds(clock: Sequence[Sequence[float]], epochs: int, all_epochs: int) -> np.ndarray[Any, Any]:
    """Return the measured time plus the remaining epochs at the mean time of the epochs after the second.

    Args:
        clock: (wall, CPU) seconds at the beginning, after each epoch and at the end; trials that do not fit into
            memory together run as several batches, one after the other.
        epochs: timed epochs.
        all_epochs: epochs of the recipe.
    """
    times = np.array(clock)
    ends = times[1:-1]
    if epochs < 4 or not len(ends) or len(ends) % epochs:
        raise CannotMeasure(f"A training of {epochs} epochs reported progress {len(ends)} times.")
    by_batch = ends.reshape(-1, epochs, 2)
    per_epoch = (by_batch[:, -1] - by_batch[:, 1]).sum(0) / (epochs - 2)
    out: np.ndarray[Any, Any] = times[-1] - times[0] + (all_epochs - epochs) * per_epoch
    return out


def check_sides(answers: Mapping[str, Mapping[str, Any]], expected: Path, scores: Path | None) -> list[Check]:
    alone, in_batch, *_ = (
        {"loss of a trial alone and in a batch": torch.tensor(answer["losses"] or [])} for answer in answers.values()
    )
    checks = [compare(alone, in_batch, CLOSE_TRAINED)]
    if scores is not None:
        ours, theirs = (
            {f"{name} with the same weights": torch.from_numpy(value) for name, value in read(path).items()}
            for path in (expected, scores)
        )
        checks.append(compare(ours, theirs, CLOSE))
    accuracies = [answer["accuracy"] for answer in answers.values()]
    checks.append(Check("test accuracy", max(accuracies) - min(accuracies), ACCURACY_TOLERANCE))
    checks.append(Check("number of threads", float(max(answer["threads"] for answer in answers.values()) - 1), 0))
    return checks


if __name__ == "__main__":
    sys.exit(main())
