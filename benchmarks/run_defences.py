"""Every defence on Cora, on the CPU: seconds a training and peak memory, beside DeepRobust's or PyG's where they exist.

    python benchmarks/run_defences.py                                     # some twelve minutes
    python benchmarks/run_defences.py --only gcn --only prognn --epochs 100 --rounds 4 -o runs/two.json
    python benchmarks/run_defences.py -o docs/records/bench-defences.json && python scripts/defence_table.py table

Each defence is trained by its recipe: one trial and, as "asgnn × 10", ten at once, of which a time is the tenth part
(Pro-GNN: two, the half). The other side is DeepRobust 0.2.11 or, for the MLP, PyG; the first run makes an environment
for them, .venv-peers. peer_defences.py says what had to be done for each to run. Nothing stands beside the rest,
because neither has them.

All have the same graph, split, settings, start of the weights, number of epochs and one thread each. A side is a
process of its own, and the sides take turns. Times are CPU seconds: on one thread those of the clock where no other
program takes the processor, and near them where one does. Those of the clock are in the file.

A training is timed for the first 30 epochs (Pro-GNN: 4) with all that comes before, such as an SVD, and the rest of the
recipe's epochs is added at the pace of those after the second; this after a warm-up, so without compilation.
Memory is the largest size of the whole process. A ratio is to ours, one trial: 3.0 is three times as long, or as much.

No figure without its check: with the same weights the sides must give the same scores, before the training, to 1e-4;
after it their test accuracies must be within five points; ten trials at once must give the first the losses that it has
alone; and Pro-GNN's nuclear-norm step must give the same matrix. Where a check fails no time is given and the exit code
is 1.
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
NAMES = [name for name in RECIPES if name != "asgnn-paper"]  # the same computation with another objective
MANY = 10
"""Trials at once."""
SLOW = {"prognn": (4, 2), "prognn-fs": (4, 2)}
"""Epochs and trials of what decomposes an N × N matrix for each trial in every other epoch."""
COMPARED = 10
"""Epochs whose losses are compared; the differences of sums in another order grow with the training."""
POINTS = 0.05
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
    split, whose = choose_split(data)
    record = about(torch.device("cpu")) | {"peer": PEER, "split": whose, "threads": 1, "clock": "CPU seconds"}
    record["load"] = round(os.getloadavg()[0], 2)
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder, "task.npz"), data, split)
        results = (measure(name, Path(folder), python, arguments) for name in names)
        return report(record, results, arguments.output, "defence")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=NAMES, action="append", metavar="NAME", help=f"one of {', '.join(NAMES)}")
    parser.add_argument("--epochs", type=positive, default=30, help="timed, of every defence but Pro-GNN; at least 4")
    parser.add_argument("--rounds", type=positive, default=2, help="turns of each side")
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/bench-defences.json"), metavar="FILE")
    parser.add_argument(
        "--peer", type=Path, metavar="PYTHON", help="an interpreter that has DeepRobust and PyG already"
    )
    # What the program calls itself with: be our side of one defence.
    parser.add_argument("--ours", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.epochs < 4:
        parser.error(
            f"the pace is taken after the second epoch, so --epochs must be 4 or more; it is {arguments.epochs}"
        )
    return arguments


def begin(name: str, count: int, epochs: int, task: str, start: str) -> tuple[Mapping[str, Any], Training]:
    """Our side; one trial also writes what the other side starts from, and what it must then agree with."""
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
        given = {name: value for name, value in trial.model.settings.items() if name in SETTINGS}
        given |= {"lr": trial.config.lr, "weight_decay": trial.config.weight_decay}
        weights = (p.detach().numpy() for p in trial.model.parameters() if p.requires_grad)
        given |= {f"start_{at:02}": weight for at, weight in enumerate(weights)}
        with torch.no_grad():
            scores = trial.model.eval()(data.x, data.edge_index).log_softmax(1).numpy()
        np.savez(start, **given)
        np.savez(expected_at(start), scores=scores, **shrunk(trial.model))
    if name not in SLOW:  # to warm up
        train(2, lambda: None)
    return {}, lambda tick: train(epochs, tick)


def expected_at(start: str) -> Path:
    return Path(start).with_name("expected.npz")


def shrunk(model: torch.nn.Module) -> dict[str, Any]:
    """What Pro-GNN's nuclear-norm step makes of the adjacency matrix."""
    if not isinstance(model, ProGNN):
        return {}
    data = cora()
    matrix = torch.zeros(1, int(data.num_nodes), int(data.num_nodes))
    matrix[0, data.edge_index[0], data.edge_index[1]] = 1
    return {"shrunk": shrink_spectrum(matrix, model.structure_lr * model.beta, symmetric=True)[0].numpy()}


def measure(name: str, folder: Path, python: Path | None, arguments: argparse.Namespace) -> dict[str, Any]:
    """One defence as it goes into the file: checks always, sides only where all checks hold."""
    whole = recipe(name).config.epochs
    timed, many = SLOW.get(name, (arguments.epochs, MANY))
    epochs, trials = min(timed, whole), {OURS: 1, f"{OURS} × {many}": many}
    what = f"a training of {whole} epochs on Cora, of which {epochs} were timed"
    result: dict[str, Any] = {"name": name, "what": what, "unit": "training", "ok": False, "checks": [], "sides": []}
    result |= {"epochs": whole, "timed_epochs": epochs}
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
                worker.side: summed_up(turns[worker.side], epochs, whole, trials.get(worker.side, 1)) | worker.shown
                for worker in workers
            }
    except CannotMeasure as error:
        return {**result, "error": str(error)}
    checks = compared(answers, expected_at(str(start)), scores if name in PEERS else None)
    result["checks"] = [asdict(check) for check in checks]
    if not all(check.ok for check in checks):
        return result
    found = sides(answers)
    for side in found:
        side |= {key: answers[side["name"]][key] for key in ("units", "wall_seconds", "accuracy")}
    return {**result, "ok": True, "sides": found}


def summed_up(turns: Sequence[Mapping[str, Any]], epochs: int, whole: int, trials: int) -> dict[str, Any]:
    """One side: CPU and wall seconds of a training in each turn, the largest memory, the first turn's losses."""
    seconds = np.array([training_seconds(turn["clock"], epochs, whole) for turn in turns]) / trials
    return {
        "units": trials,
        "seconds": seconds[:, 1].tolist(),
        "wall_seconds": seconds[:, 0].tolist(),
        "peak_bytes": max((turn["peak_bytes"] for turn in turns if turn["peak_bytes"]), default=None),
        "threads": max(turn["threads"] for turn in turns),
        "accuracy": statistics.median(turn["accuracy"] for turn in turns),
        "losses": turns[0].get("losses"),
    }


def training_seconds(clock: Sequence[Sequence[float]], epochs: int, whole: int) -> np.ndarray[Any, Any]:
    """What was measured, and the epochs that were left out at the pace of those after the second.

    Args:
        clock: (wall, CPU) seconds at the beginning, after each epoch and at the end; trials that did not fit into
            memory side by side are several batches, one after the other.
    """
    times = np.array(clock)
    ends = times[1:-1]
    if epochs < 4 or not len(ends) or len(ends) % epochs:
        raise CannotMeasure(f"A training of {epochs} epochs was heard of {len(ends)} times.")
    by_batch = ends.reshape(-1, epochs, 2)
    pace = (by_batch[:, -1] - by_batch[:, 1]).sum(0) / (epochs - 2)
    out: np.ndarray[Any, Any] = times[-1] - times[0] + (whole - epochs) * pace
    return out


def compared(answers: Mapping[str, Mapping[str, Any]], expected: Path, scores: Path | None) -> list[Check]:
    alone, in_batch, *_ = (
        {"loss of a trial alone and in a batch": torch.tensor(answer["losses"] or [])} for answer in answers.values()
    )
    checks = [compare(alone, in_batch, CLOSE_TRAINED)]
    if scores is not None:
        ours, theirs = (
            {f"{name} from the same start": torch.from_numpy(value) for name, value in read(path).items()}
            for path in (expected, scores)
        )
        checks.append(compare(ours, theirs, CLOSE))
    reached = [answer["accuracy"] for answer in answers.values()]
    checks.append(Check("test accuracy", max(reached) - min(reached), POINTS))
    checks.append(Check("number of threads", float(max(answer["threads"] for answer in answers.values()) - 1), 0))
    return checks


if __name__ == "__main__":
    sys.exit(main())
