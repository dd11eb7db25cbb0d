"""Poison for Pro-GNN: flips made through a GCN on matrices whose singular values are reduced by some amounts.

    python scripts/shrunk_table.py            # the record docs/records/shrunk.json, and the table of docs/attacks.md
    python scripts/shrunk_table.py --page     # only the table

The graph is a part of Cora: the 600 nodes that are nearest to its best connected node. Flips of 10 % of the edges, one
sample at the end of 100 steps; Pro-GNN and a GCN are trained on each poisoned graph. The record is written after each
row; rows that it has are not measured again.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections import deque
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from pages import arguments, fill
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import subgraph

from asgnn.attacks import Start, UnrolledTraining, meta_pgd_pairs
from asgnn.challenge import on_matrices, trained_on
from asgnn.challenge.values import flips_of
from asgnn.experiments.machine import origin
from asgnn.graphs import Split, labels_of, load_dataset, stratified_split
from asgnn.training import recipe

DOCS = Path(__file__).parents[1] / "docs"
RECORD, PAGE = DOCS / "records" / "shrunk.json", DOCS / "attacks.md"
NODES, BUDGET, SEEDS = 600, 0.1, 3
MODELS = ("gcn", "prognn")
SHRINKAGES: tuple[tuple[float, ...], ...] = (
    (0.0,),
    (1.0,),
    (4.0,),
    (0.0, 1.0, 2.0, 4.0),
    (0.0, 1.0, 2.0, 3.0, 4.0, 6.0),
)


def part_of(data: Data, count: int) -> Data:
    """The nodes that are nearest to the best connected one, and the edges among them."""
    near: list[list[int]] = [[] for _ in range(int(data.num_nodes or 0))]
    for u, v in data.edge_index.t().tolist():
        near[u].append(v)
    first = max(range(len(near)), key=lambda node: len(near[node]))
    found, waiting = {first}, deque([first])
    while waiting and len(found) < count:
        for node in sorted(near[waiting.popleft()]):
            if node not in found and len(found) < count:
                found.add(node)
                waiting.append(node)
    nodes = torch.tensor(sorted(found))
    edges, _ = subgraph(nodes, data.edge_index, relabel_nodes=True, num_nodes=data.num_nodes)
    return Data(x=data.x[nodes], edge_index=edges, y=labels_of(data)[nodes])


def left(data: Data, split: Split, edges: Tensor) -> dict[str, float]:
    """Test accuracy in percent of each model that is trained on these edges."""
    found = {}
    for name in MODELS:
        (logits,) = trained_on(recipe(name), data, split, [edges])
        found[name] = round(100 * float((logits.argmax(1) == labels_of(data))[split.test].double().mean()), 2)
    return found


def measure(rows: list[dict[str, Any]]) -> None:
    """Add the rows that are missing, and write the record after each."""
    data = part_of(load_dataset("cora"), NODES)
    split = stratified_split(data, 0)
    victim = on_matrices(recipe("prognn").trial(data, split, 0).model, data)
    assert victim is not None
    gcn, known = recipe("gcn"), torch.arange(NODES)
    about = origin("python scripts/shrunk_table.py", "cpu") | {"nodes": NODES, "budget": BUDGET}
    done = {(tuple(row["shrinkages"]), row["seed"]) for row in rows}
    for shrinkages, seed in [((), 0), *((each, seed) for seed in range(SEEDS) for each in SHRINKAGES)]:
        if (shrinkages, seed) in done:
            continue
        edges = data.edge_index
        if shrinkages:
            ((flips,),) = meta_pgd_pairs(
                data,
                [flips_of(BUDGET, data)],
                split.train,
                torch.Generator().manual_seed(seed),
                model=replace(victim, shrinkages=shrinkages),
                trainings=lambda graphs: trained_on(gcn, data, split, graphs),
                known=known,
                nodes=split.test,
                training=UnrolledTraining(lr=gcn.config.lr, weight_decay=gcn.config.weight_decay),
                starts=[Start()],
                samples=1,
                checks=1,
            )
            edges = flips.apply(data).edge_index
        rows.append({"shrinkages": list(shrinkages), "seed": seed, **left(data, split, edges)})
        print(rows[-1], file=sys.stderr, flush=True)
        RECORD.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


def tables() -> dict[str, list[str]]:
    rows = json.loads(RECORD.read_text())["rows"]
    lines = ["| singular values are reduced by | GCN | Pro-GNN | runs |", "|:--|--:|--:|--:|"]
    for shrinkages in dict.fromkeys(tuple(row["shrinkages"]) for row in rows):
        mine = [row for row in rows if tuple(row["shrinkages"]) == shrinkages]
        title = ", ".join(f"{value:g}" for value in shrinkages) or "no flips"
        cells = [f"{fmean(row[name] for row in mine):.1f}" for name in MODELS]
        lines.append(f"| {title} | {' | '.join(cells)} | {len(mine)} |")
    return {"shrunk spectra": lines}


def main() -> None:
    if not arguments(__doc__).page:
        warnings.simplefilter("ignore")
        measure(json.loads(RECORD.read_text())["rows"] if RECORD.exists() else [])
    fill(PAGE, tables())


if __name__ == "__main__":
    main()
