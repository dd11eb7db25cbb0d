"""How long the engine takes here: a thousand trainings of ASGNN, and a row of Table 1 with the paper's search.

    python benchmarks/engine.py --device cuda --workers 8 -o docs/records/engine.json

The row is ASGNN with the degree objective and its frozen twin on the datasets and rates given, searched from nothing;
the store it fills is thrown away. Needs torch, torch_geometric, numpy and scipy alone, as a machine with a GPU may have
them.
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
    """Trainings with K = 4, different settings and seeds, as one batch; what a GPU must load and compile aside."""
    graph = load_graph(CASE)

    def some(count: int, epochs: int) -> list[Training]:
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

    train(graph, some(min(count, 8), 4), device=device)
    began = time.perf_counter()
    done = train(graph, some(count, epochs), device=device)
    seconds = time.perf_counter() - began
    best = max(done, key=lambda one: one.outcome.figures["val"]).outcome
    return {
        "trainings": count,
        "epochs": epochs,
        "batch": best.batch,
        "seconds": round(seconds, 2),
        "test_of_best_val": best.figures["test"],
    }


def row(device: str, workers: int, datasets: list[str], rates: list[float]) -> dict[str, object]:
    asked = plan("table1", datasets=datasets, models=["asgnn"], rates=rates, together=workers > 1)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "row.sqlite") as store:
        with processes(workers, device) if workers > 1 else nullcontext(local(device)) as run:
            choices = [choice for some in Engine(store, run, device).run(asked) for choice in some]
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
    parser.add_argument("--rates", default="0,0.05,0.1,0.15,0.2,0.25", help="of the row; none leaves it out")
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args()
    command = f"python benchmarks/engine.py --device {given.device} --workers {given.workers}"
    found: dict[str, object] = dict(origin(command, given.device))
    found["thousand"] = thousand(given.device, given.trainings, given.epochs)
    print(json.dumps(found["thousand"]), flush=True)
    if given.rates:
        rates = [float(rate) for rate in given.rates.split(",")]
        found["row"] = row(given.device, given.workers, given.datasets.split(","), rates)
        print(json.dumps(found["row"]), flush=True)
    if given.output:
        given.output.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
