"""Time of the experiment engine: a thousand trainings of ASGNN, and one row of Table 1 with the paper's search.

    python benchmarks/engine.py --device cuda --workers 8 -o docs/records/engine.json

The row is ASGNN with the degree objective and its frozen variant on the given datasets and rates, searched from
scratch in a temporary store. Needs only torch, torch_geometric, numpy and scipy.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

from asgnn.experiments import Training, parse_case
from asgnn.experiments.engine import Engine
from asgnn.experiments.executors import local, processes
from asgnn.experiments.machine import origin
from asgnn.experiments.measure import load_graph, train
from asgnn.experiments.questions import plan
from asgnn.experiments.store import Store
from asgnn.experiments.values import as_settings

CASE = parse_case("cora", "metattack", 0.25)
GRID = list(itertools.product((0.005, 0.01, 0.05), (0.0, 5e-5, 5e-4), (0.1, 0.5, 0.8)))


def thousand(device: str, count: int, epochs: int) -> dict[str, object]:
    """Time trainings with K = 4 and different settings and seeds, after a warm-up that loads and compiles kernels.

    The epochs are timed apart from the rest: models, splits and figures, which are made one by one on the CPU.
    """
    graph = load_graph(CASE)

    def trainings(count: int, epochs: int) -> list[Training]:
        names = ("lr", "weight_decay", "dropout")
        return [
            Training(
                CASE,
                "asgnn",
                as_settings({"num_layers": 4, "epochs": epochs, **dict(zip(names, GRID[i % len(GRID)], strict=True))}),
                i // len(GRID),
            )
            for i in range(count)
        ]

    train(graph, trainings(count, 4), device=device)  # as many as below: kernels depend on the size of the batch
    began = time.perf_counter()
    done = train(graph, trainings(count, epochs), device=device)
    seconds = time.perf_counter() - began
    best = max((outcome for outcome, _ in done), key=lambda one: one.figures["val"])
    return {
        "trainings": count,
        "epochs": epochs,
        "batch": best.batch,
        "seconds": round(seconds, 2),
        "seconds_of_epochs": round(sum(fit.seconds for _, fit in done), 2),
        "test_of_best_val": best.figures["test"],
    }


def row(device: str, workers: int, datasets: list[str], rates: list[float]) -> dict[str, object]:
    """Time the search and evaluation of one row of Table 1."""
    planned = plan("table1", datasets=datasets, models=["asgnn"], rates=rates, together=workers > 1)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "row.sqlite") as store:
        with processes(workers, device) if workers > 1 else nullcontext(local(device)) as run:
            choices = [choice for some in Engine(store, run, device).run(planned) for choice in some]
        trainings = store.summary().trainings
    seconds = time.perf_counter() - began
    return {"cells": len(choices), "trainings": trainings, "workers": workers, "seconds": round(seconds, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--trainings", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--datasets", default="cora,citeseer,cora_ml,acm")
    parser.add_argument("--rates", default="0,0.05,0.1,0.15,0.2,0.25", help="rates of the row; empty to skip it")
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    command = f"python benchmarks/engine.py --device {arguments.device} --workers {arguments.workers}"
    record: dict[str, object] = dict(origin(command, arguments.device))
    record["thousand"] = thousand(arguments.device, arguments.trainings, arguments.epochs)
    print(json.dumps(record["thousand"]), flush=True)
    if arguments.rates:
        rates = [float(rate) for rate in arguments.rates.split(",")]
        record["row"] = row(arguments.device, arguments.workers, arguments.datasets.split(","), rates)
        print(json.dumps(record["row"]), flush=True)
    if arguments.output:
        arguments.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
