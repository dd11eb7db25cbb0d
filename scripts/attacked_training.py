"""What training on attacked graphs does, and what training on a model's own predictions only seems to do.

    python scripts/attacked_training.py            # the record and the table of docs/challenge.md; resumes
    python scripts/attacked_training.py --page     # the table alone

Some test nodes are held out: they and their edges are absent until training has ended. A model is trained with its
recipe. Then the same model is trained anew in three ways: on graphs that are attacked anew at every other step, with
the labels of the training nodes alone; with the first model's predictions for all nodes as labels; and with both. Nodes
that took part in training and those that were held out are attacked one group after the other, by weakest_first without
a gradient. Mean over splits of Mujkanovic et al.; nothing is chosen here.
"""

from __future__ import annotations

import copy
import itertools
import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from pages import arguments, fill
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data

from asgnn.attacks import grbcd, weakest_first
from asgnn.experiments.machine import origin
from asgnn.graphs import Split, labels_of, load_dataset, stratified_split
from asgnn.training import accuracy, fit_many, recipe

DOCS = Path(__file__).parents[1] / "docs"
RECORD, PAGE = DOCS / "records" / "attacked_training.json", DOCS / "challenge.md"
COMMAND = "python scripts/attacked_training.py"
BUDGETS = (0.05, 0.1, 0.2)  # flips as shares of the edges, times the share of the test nodes that are attacked
HELD_OUT = 500
EPOCHS, FIRST_ATTACK, CHECK_EVERY = 300, 20, 10
SHARE = 0.1  # of the edges, flipped in training; if only training nodes are attacked, as many for each of them, twice
VARIANTS = {  # variant: (own predictions as labels, on attacked graphs)
    "its recipe": (False, False),
    "attacked graphs": (False, True),
    "own predictions": (True, False),
    "own predictions, attacked graphs": (True, True),
}
MODELS = {"rung": tuple(VARIANTS)} | dict.fromkeys(("gcn", "asgnn", "asgnn-robust", "asgnn-safe"), ("its recipe",))


def student(name: str, graph: Data, split: Split, labels: Tensor, nodes: Tensor, attacked: bool) -> nn.Module:
    """Train a model with the labels of some nodes; the epoch is the best on validation nodes, clean and attacked."""
    trial = recipe(name).trial(graph, split, 0)
    model, config = trial.model, trial.config
    seen = copy.copy(graph)
    seen.y = labels
    share = SHARE if nodes.numel() == graph.num_nodes else 2 * SHARE * nodes.numel() / graph.num_nodes
    budget = int(share * (graph.num_edges // 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=config.lr, weight_decay=config.weight_decay)
    rng, flipped = torch.Generator().manual_seed(0), graph
    best, state = -1.0, model.state_dict()
    for epoch in range(EPOCHS):
        if attacked and epoch >= FIRST_ATTACK and epoch % 2 == 0:
            model.eval()
            options: dict[str, Any] = {"surrogate": model, "victim": model, "steps": 2, "block_size": 40_000}
            flipped = grbcd(seen, budget, nodes, rng, nodes=nodes, **options).apply(graph)
        model.train()
        optimizer.zero_grad()
        F.cross_entropy(model(flipped.x, flipped.edge_index)[nodes], labels[nodes]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if (epoch + 1) % CHECK_EVERY == 0:
            model.eval()
            value = accuracy(model, flipped, split.val) + accuracy(model, graph, split.val)
            if value > best:
                best, state = value, copy.deepcopy(model.state_dict())
    model.load_state_dict(state)
    return model.eval()


def judged(model: nn.Module, data: Data, nodes: Tensor, test: int) -> dict[str, float]:
    """Accuracy in percent on some nodes: on the clean graph, after attacks on them, and without any edge."""
    everyone, bare = torch.arange(int(data.num_nodes)), copy.copy(data)
    bare.edge_index = data.edge_index[:, :0]
    found = {"clean": accuracy(model, data, nodes), "no edges": accuracy(model, bare, nodes)}
    for budget in BUDGETS:
        flips = int(budget * nodes.numel() / test * (data.num_edges // 2))
        options: dict[str, Any] = {"nodes": nodes, "victim": model, "guide": "answers", "steps": 16}
        made = weakest_first(data, flips, everyone, torch.Generator().manual_seed(0), **options)
        found[f"{budget:.0%}"] = accuracy(model, made.apply(data), nodes)
    return {name: round(100 * value, 2) for name, value in found.items()}


def measure(name: str, trial: int, variants: Sequence[str]) -> list[dict[str, Any]]:
    """Two rows for each variant: of the nodes that took part in training, and of those that were held out."""
    data = load_dataset("cora")
    nodes, n = stratified_split(data, trial), int(data.num_nodes)
    order = nodes.test[torch.randperm(nodes.test.numel(), generator=torch.Generator().manual_seed(trial))]
    groups = {"seen": order[HELD_OUT:].sort().values, "held out": order[:HELD_OUT].sort().values}
    kept = torch.ones(n, dtype=torch.bool)
    kept[groups["held out"]] = False
    place = kept.cumsum(0) - 1
    graph = data.subgraph(kept)
    split = Split(place[nodes.train], place[nodes.val], place[groups["seen"]])
    first = fit_many([recipe(name).trial(graph, split, 0)], graph)[0]
    predicted = first.logits[0].argmax(-1)
    labels, everyone = labels_of(graph), torch.arange(int(graph.num_nodes))
    predicted[split.train] = labels[split.train]
    rows = []
    for variant in variants:
        own, attacked = VARIANTS[variant]
        told = (predicted, everyone) if own else (labels, split.train)
        model = student(name, graph, split, *told, attacked) if own or attacked else first.model
        for group, targets in groups.items():
            found = judged(model, data, targets, nodes.test.numel())
            rows.append({"model": name, "split": trial, "variant": variant, "nodes": group, **found})
    return rows


def tables() -> dict[str, list[str]]:
    rows = json.loads(RECORD.read_text())["rows"]
    figures = ("clean", *(f"{budget:.0%}" for budget in BUDGETS), "no edges")
    lines = [f"| model | trained with | test nodes | {' | '.join(figures)} |", f"|:--|:--|:--|{'--:|' * len(figures)}"]
    for cell in itertools.product(MODELS, VARIANTS, ("seen", "held out")):
        of_cell = [row for row in rows if (row["model"], row["variant"], row["nodes"]) == cell]
        if of_cell:
            means = [f"{fmean(row[figure] for row in of_cell):.1f}" for figure in figures]
            lines.append(f"| {' | '.join([*cell, *means])} |")
    return {"attacked training": lines}


def main() -> None:
    chosen = arguments(__doc__, splits=3)
    if not chosen.page:
        warnings.simplefilter("ignore")
        record: dict[str, Any] = {**origin(COMMAND, "cpu"), "rows": []}
        if RECORD.exists():
            record = json.loads(RECORD.read_text())
        for trial in range(chosen.splits):
            for name, variants in MODELS.items():
                known = {row["variant"] for row in record["rows"] if (row["model"], row["split"]) == (name, trial)}
                missing = [variant for variant in variants if variant not in known]
                if missing:
                    record["rows"] += measure(name, trial, missing)
                    RECORD.write_text(json.dumps(record, indent=1) + "\n")
    fill(PAGE, tables())


if __name__ == "__main__":
    main()
