"""Accuracy, time and memory of training with mini-batches against training on the whole graph.

    python benchmarks/mini_batches.py
    python scripts/speed_table.py

Every row is measured in a process of its own, on one thread: one model on one graph with one way to train, for some
seeds. Seconds are those of the processor, because other programs may be running. Memory is what the first training
takes beside the graph. Rows that the record has are not measured again. Takes about half an hour.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from measure import Values, peak_memory
from torch import Tensor
from torch_geometric.data import Data

import asgnn
from asgnn.graphs import Gaussian, planted_graph, prepare, random_split
from asgnn.training import Fit, fit, recipe
from asgnn.training.clusters import Clusters

RECORD = Path(__file__).parents[1] / "docs" / "records" / "mini_batches.json"


def planted(nodes: int) -> Data:
    return planted_graph(nodes, 10, degree=6, false_edges=0.2, features=Gaussian(50, 1.0), seed=17)


LARGE = "planted-100000"
GRAPHS: dict[str, Callable[[], Data]] = {
    "cora": lambda: asgnn.load_dataset("cora"),
    "citeseer": lambda: asgnn.load_dataset("citeseer"),
    "planted-20000": lambda: planted(20_000),
    LARGE: lambda: planted(100_000),
}
SEEDS = {"cora": 5, "citeseer": 5, "planted-20000": 2, LARGE: 2}
# The settings that differ from the recipe. ASGNN's drops 80 % of the words, which is much for nodes of few neighbours.
MODELS: dict[str, dict[str, Any]] = {"asgnn": {}, "asgnn, dropout 0.5": {"dropout": 0.5}, "gcn": {}, "appnp": {}}
WAYS: tuple[dict[str, Any], ...] = (
    {"parts": 1},
    {"parts": 8, "parts_per_step": 2, "partition": "metis"},
    {"parts": 40, "parts_per_step": 4, "partition": "metis"},
    {"parts": 40, "parts_per_step": 1, "partition": "metis"},
    {"parts": 8, "parts_per_step": 2, "partition": "order"},
    {"parts": 40, "parts_per_step": 4, "partition": "order"},
)
# Passes over the graph: 200 steps on the whole graph, and 50 passes of 4, 10 or 40 steps with mini-batches.
EPOCHS, EPOCHS_IN_PARTS = 200, 50
# The recipes are made for bags of words; features of this kind need less regularisation.
DENSE = {"dropout": 0.3, "weight_decay": 1e-4}
WAYS_OF_LARGE = (WAYS[0], WAYS[2], WAYS[5])
FAN_OUTS, LAYERS, ROOTS = (2, 5, 10), (2, 4, 8), 0.01


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=RECORD)
    parser.add_argument("--graph", choices=GRAPHS, action="append", help="only these graphs")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    record: dict[str, Any] = json.loads(asked.output.read_text()) if asked.output.exists() else {}
    record = {"about": _about(), "rows": record.get("rows", []), "sampling": record.get("sampling", [])}
    known = {_key(row) for row in record["rows"]}
    for graph in asked.graph or GRAPHS:
        ways = WAYS_OF_LARGE if graph == LARGE else WAYS
        models = [model for model, settings in MODELS.items() if not settings or not _is_planted(graph)]
        wanted = [{"graph": graph, "model": model, **way} for way in ways for model in models]
        jobs: list[tuple[str, Callable[[Any], dict[str, Any]], Any]] = [
            ("rows", _train, one) for one in wanted if _key(one) not in known
        ]
        if not any(row["graph"] == graph for row in record["sampling"]):
            jobs.append(("sampling", _sample, graph))
        for kind, measure, one in jobs:
            with multiprocessing.get_context("fork").Pool(1) as alone:
                record[kind].append(alone.apply(measure, (one,)))
            print(record[kind][-1], flush=True)
            asked.output.write_text(json.dumps(record, indent=1) + "\n")


def _is_planted(graph: str) -> bool:
    return graph.startswith("planted")


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    names = ("graph", "model", "parts", "parts_per_step", "partition")
    return tuple(row.get(name) for name in names)


def _about() -> dict[str, Any]:
    packages = ("asgnn", "torch", "numba", "pymetis")
    return {
        "command": "python benchmarks/mini_batches.py",
        "machine": f"{platform.machine()}, 1 thread",
        "versions": {name: version(name) for name in packages},
        "epochs": {"whole graph": EPOCHS, "mini-batches": EPOCHS_IN_PARTS},
        "planted": DENSE,
    }


def _train(row: dict[str, Any]) -> dict[str, Any]:
    """The row with the test accuracies of its seeds, epochs, seconds of an epoch, peak memory and edges seen."""
    data = GRAPHS[row["graph"]]()
    way = {name: row[name] for name in ("parts", "parts_per_step", "partition") if name in row}
    epochs = EPOCHS if row["parts"] == 1 else EPOCHS_IN_PARTS
    settings = MODELS[row["model"]] | (DENSE if _is_planted(row["graph"]) else {})
    chosen = recipe(row["model"].partition(",")[0], epochs=epochs, **settings, **way)
    small = planted(500)  # first, so that loading the compiled loops does not count
    warm_up = chosen.with_settings({"epochs": 2}).trial(small, random_split(small, 0), 0)
    fit(warm_up.model, small, warm_up.config, split=warm_up.split)
    accuracies, best, seconds, peak = [], [], [], None
    for seed in range(SEEDS[row["graph"]]):
        split = random_split(data, seed)
        trial = chosen.trial(data, split, seed)
        results: list[Fit] = []

        def run(trial: asgnn.Trial = trial, results: list[Fit] = results) -> Values:
            results.append(fit(trial.model, data, trial.config, split=trial.split))
            return {}

        begin = time.process_time()
        if seed == 0:
            peak = peak_memory(run, torch.device("cpu"))
        else:
            run()
        (result,) = results
        best.append(result.best_epoch)
        seconds.append((time.process_time() - begin) / chosen.config.epochs)
        right = result.logits[0].argmax(1) == data.y
        accuracies.append(round(float(right[split.test].float().mean()), 4))
    return {
        **row,
        "accuracy": accuracies,
        "best_epoch": best,
        "epochs": chosen.config.epochs,
        "steps": chosen.config.steps,
        "epoch_seconds": round(sorted(seconds)[(len(seconds) - 1) // 2], 4),
        "peak_bytes": peak,
        "edges_seen": _edges_seen(data, row),
    }


def _edges_seen(data: Data, row: dict[str, Any]) -> float:
    """The share of the edges that the steps of one epoch see."""
    if row["parts"] == 1:
        return 1.0
    clusters = Clusters(*prepare(data), row["parts"], row["parts_per_step"], row["partition"])
    seen = 0
    for nodes in clusters.draw(torch.Generator().manual_seed(0)):
        seen += clusters.cut(nodes, torch.device("cpu"))[1].row.numel() - nodes.numel()
    return round(seen / int(data.num_edges), 3)


def _sample(graph: str) -> dict[str, Any]:
    """The share of the nodes that neighbour sampling reaches from 1 % of them, by fan-out and number of layers."""
    data = GRAPHS[graph]()
    _, adj = prepare(data)
    rng = torch.Generator().manual_seed(0)
    degree = adj.crow.diff()
    reached: dict[str, dict[str, float]] = {}
    for fan_out in FAN_OUTS:
        seen = torch.zeros(adj.num_nodes, dtype=torch.bool)
        front = torch.randperm(adj.num_nodes, generator=rng)[: max(1, round(ROOTS * adj.num_nodes))]
        seen[front] = True
        reached[str(fan_out)] = {}
        for layer in range(1, max(LAYERS) + 1):
            front = _neighbours(adj.crow, adj.col, degree, front, fan_out, rng)
            front = front[~seen[front]]
            seen[front] = True
            if layer in LAYERS:
                reached[str(fan_out)][str(layer)] = round(float(seen.float().mean()), 4)
    return {"graph": graph, "roots": ROOTS, "reached": reached}


def _neighbours(crow: Tensor, col: Tensor, degree: Tensor, nodes: Tensor, fan_out: int, rng: torch.Generator) -> Tensor:
    """The distinct nodes among ``fan_out`` draws from the entries of each row."""
    draws = torch.rand(nodes.numel(), fan_out, generator=rng)
    entry = crow[nodes].unsqueeze(1) + (draws * degree[nodes].unsqueeze(1)).long()
    distinct: Tensor = torch.unique(col[entry.view(-1)])
    return distinct


if __name__ == "__main__":
    main()
