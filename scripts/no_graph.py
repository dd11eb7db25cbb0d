"""Node classification without a graph: models on graphs built from the features, against models without a graph.

    python scripts/no_graph.py          # writes docs/records/no_graph.json, then the table of docs/build.md
    python scripts/no_graph.py --page   # only the table, from the record

Digits are scikit-learn's, with a random 10/10/80 split for each seed. Cora and Citeseer have their published split, and
their edges are thrown away. Every method tries four settings. Each setting is fitted once, with seed 0, and the one
with the highest validation accuracy (of equal ones, the first) is fitted with the other seeds. Test nodes are used only
for the accuracy that is reported. A row that the record already has is not computed again.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data

from asgnn.experiments.machine import origin
from asgnn.graphs import Split, from_edges, load_dataset, published_split, random_split
from asgnn.graphs.build import build_graph
from asgnn.training import accuracy, fit_many, recipe

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "docs" / "records" / "no_graph.json"
PAGE = ROOT / "docs" / "build.md"
SEEDS = 5
EPOCHS = {"asgnn": 100, "gcn": 200, "mlp": 200}
# Dense features may be standardised, which is one of the settings; sparse ones are not.
SCALED = [{"standardise": False}, {"standardise": True}]
METRICS = [{"metric": "cosine"}, {"metric": "auto"}]

Settings = Mapping[str, Any]
Fitted = tuple[float, float]  # validation and test accuracy


def load(name: str) -> tuple[Data, list[Split]]:
    """Returns a dataset without edges, and the split of each seed."""
    if name == "digits":
        from sklearn.datasets import load_digits

        digits = load_digits()
        data = from_edges(digits.data / 16, [], digits.target)
        return data, [random_split(data, seed) for seed in range(SEEDS)]
    data = copy.copy(load_dataset(name))
    data.edge_index = torch.zeros(2, 0, dtype=torch.int64)
    return data, [published_split(name)] * SEEDS


def settings(method: str, dense: bool) -> list[dict[str, Any]]:
    """Returns the four settings that a method tries."""
    kind = method.partition(",")[0]
    name, few, many = {
        "ASGNN": ("neighbors", (5, 15), (5, 10, 15, 20)),
        "GCN": ("neighbors", (5, 15), (5, 10, 15, 20)),
        "MLP": ("weight_decay", (5e-4, 5e-3), (5e-5, 5e-4, 5e-3, 2e-2)),
        "k-NN classifier": ("n_neighbors", (1, 5), (1, 5, 10, 20)),
        "logistic regression": ("C", (1.0, 10.0), (0.1, 1.0, 10.0, 100.0)),
    }[kind]
    if not dense:
        return [{name: value} for value in many]
    other = METRICS if name == "neighbors" else SCALED
    return [{name: value, **choice} for value in few for choice in other]


def by_network(model: str, how: Any = None) -> Callable[[Data, Settings, list[tuple[int, Split]]], list[Fitted]]:
    """Returns a function that trains a model of the library with one setting on several (seed, split)."""

    def train(data: Data, chosen: Settings, trials: list[tuple[int, Split]]) -> list[Fitted]:
        given = dict(chosen)
        if how is not None:
            graph = build_graph(data, how, given.pop("neighbors"), given.pop("metric", "auto"))
        else:
            graph = copy.copy(data)
            if given.pop("standardise", False):
                graph.x = standardise(data.x)
        made = recipe(model, hidden_channels=64, epochs=EPOCHS[model], **given)
        fits = fit_many([made.trial(graph, split, seed) for seed, split in trials], graph)
        return [
            (accuracy(fit.model, graph, split.val), accuracy(fit.model, graph, split.test))
            for fit, (_, split) in zip(fits, trials, strict=True)
        ]

    return train


def by_scikit_learn(method: str) -> Callable[[Data, Settings, list[tuple[int, Split]]], list[Fitted]]:
    """Returns the same for a classifier of scikit-learn, which has no seed: only splits differ."""

    def train(data: Data, chosen: Settings, trials: list[tuple[int, Split]]) -> list[Fitted]:
        from sklearn.linear_model import LogisticRegression
        from sklearn.neighbors import KNeighborsClassifier

        given = dict(chosen)
        x = (standardise(data.x) if given.pop("standardise", False) else data.x).numpy()
        y = data.y.numpy()
        found: list[Fitted] = []
        for _, split in trials:
            parts = [np.asarray(part) for part in (split.train, split.val, split.test)]
            model = (
                LogisticRegression(max_iter=1000, **given)
                if method == "logistic regression"
                else KNeighborsClassifier(metric="cosine", **given)
            )
            model.fit(x[parts[0]], y[parts[0]])
            val, test = (float(model.score(x[part], y[part])) for part in parts[1:])
            found.append((val, test))
        return found

    return train


def standardise(x: torch.Tensor) -> torch.Tensor:
    deviation, mean = torch.std_mean(x, dim=0, correction=0)
    return torch.where(deviation > 0, (x - mean) / deviation, 0.0)


METHODS = {
    "logistic regression": by_scikit_learn("logistic regression"),
    "k-NN classifier": by_scikit_learn("k-NN classifier"),
    "MLP": by_network("mlp"),
    "GCN, k-NN graph": by_network("gcn", "knn"),
    "GCN, learned graph": by_network("gcn", "smooth"),
    "ASGNN, k-NN graph": by_network("asgnn", "knn"),
    "ASGNN, learned graph": by_network("asgnn", "smooth"),
}
DATASETS = ("digits", "cora", "citeseer")


def measure(method: str, name: str) -> dict[str, Any]:
    """Chooses a setting on validation and returns the test accuracy of all seeds."""
    data, splits = load(name)
    began = time.process_time()
    run = METHODS[method]
    tried = settings(method, dense=name == "digits")
    first = [run(data, chosen, [(0, splits[0])])[0] for chosen in tried]
    best = max(range(len(tried)), key=lambda at: first[at][0])  # of equal ones, the first
    others = run(data, tried[best], list(enumerate(splits))[1:])
    test = [100 * fitted[1] for fitted in (first[best], *others)]
    return {
        "dataset": name,
        "method": method,
        "test_mean": round(fmean(test), 2),
        "test_std": round(stdev(test), 2),
        "chosen": tried[best],
        "tried": [{**chosen, "val": round(100 * val, 2)} for chosen, (val, _) in zip(tried, first, strict=True)],
        "seconds": round(time.process_time() - began, 1),
    }


def tables() -> dict[str, list[str]]:
    """The table of the page."""
    rows = {(row["dataset"], row["method"]): row for row in json.loads(RECORD.read_text())["rows"]}
    lines = [f"| method | {' | '.join(DATASETS)} |", f"|:--|{'--:|' * len(DATASETS)}"]
    for method in METHODS:
        cells = [rows[name, method] for name in DATASETS]
        shown = (f"{cell['test_mean']:.1f} ± {cell['test_std']:.1f}" for cell in cells)
        lines.append(f"| {method} | {' | '.join(shown)} |")
    return {"no graph": lines}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--page", action="store_true", help="write the table of docs/build.md from the record only")
    chosen = parser.parse_args()
    if not chosen.page:
        known = json.loads(RECORD.read_text())["rows"] if RECORD.exists() else []
        record: dict[str, Any] = {
            **origin("python scripts/no_graph.py", "cpu"),
            "seeds": SEEDS,
            "epochs": EPOCHS,
            "rows": known,
        }
        done = {(row["dataset"], row["method"]) for row in known}
        for method in METHODS:
            for name in DATASETS:
                if (name, method) not in done:
                    record["rows"].append(measure(method, name))
                    print(json.dumps(record["rows"][-1]), file=sys.stderr, flush=True)
                    RECORD.write_text(json.dumps(record, indent=1) + "\n")
    from pages import fill  # imported here, because tests import this file from another folder

    fill(PAGE, tables())


if __name__ == "__main__":
    main()
