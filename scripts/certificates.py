"""Certified accuracy on Cora, Citeseer and Cora-ML, beside the floors and the published figures.

    python scripts/certificates.py --device cuda -o docs/records/certificates.json
    python scripts/certificates.py --parts 0     # neighbours and PageRank only

Votes of neighbours and of parts of the edges, on the published splits. The anchor is chosen on the validation nodes for
the numbers of flips that a row names; test nodes are only measured. The PageRank rows are those of the demo of
abojchevski/graph_cert: Cora-ML, 20 training nodes per class, edges outside a spanning tree may be removed, at most
max(degree − 11 + s, 0) at a node, share of test nodes whose prediction is certified. Its own logits are not used, but
those of a model that is trained here. The record is written after each row; rows that it has are not computed again.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from asgnn.certify import (
    Ballot,
    certify_pagerank,
    predict_without_edges,
    vote_by_neighbors,
    vote_by_parts,
)
from asgnn.cli.app import find_device
from asgnn.cli.certificates import figures
from asgnn.experiments.machine import origin
from asgnn.experiments.records import CERTIFIED_AT
from asgnn.graphs import labels_of, load_dataset, published_split, random_split
from asgnn.graphs.features import Features
from asgnn.training import fit_many, recipe

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "docs" / "records" / "certificates.json"
GRAPHS = ("cora", "citeseer", "cora_ml")
RADII = list(CERTIFIED_AT)
# for which numbers of flips the anchor is chosen
TARGETS = ([0], [1], [5, 10], [20])
SETTINGS = {"structure": "frozen", "prior_neighbors": 15, "prior_weight": 0.2}
# PGNNCert-E with 60 parts, a third party's rerun; flips → certified accuracy
PUBLISHED = {"cora_ml": {0: 72.1, 10: 66.0, 20: 56.5}, "citeseer": {0: 71.8, 10: 58.2, 20: 39.9}}
STRENGTHS = (1, 3, 5, 7, 9)
GRAPH_CERT = (78.6, 73.6, 67.3, 57.5, 47.6)
DAMPING = 0.85


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--parts", type=int, default=30, help="parts of the edges; 0 leaves the parts out")
    parser.add_argument("--models", type=int, default=10, help="edge-free models")
    parser.add_argument("-o", "--output", type=Path, default=RECORD)
    given = parser.parse_args()
    device = find_device(given.device)
    command = f"python scripts/certificates.py --parts {given.parts} --models {given.models}"
    record: dict[str, Any] = {**origin(command, device), "date": time.strftime("%Y-%m-%d"), "rows": [], "pagerank": []}
    if given.output.is_file():
        before = json.loads(given.output.read_text(encoding="utf-8"))
        record |= {"rows": before["rows"], "pagerank": before["pagerank"]}
    for loops in (False, True):
        if not any(row["self_loops"] == loops for row in record["pagerank"]):
            record["pagerank"].append(pagerank(loops, device))
            _write(given.output, record)
    for by in ("neighbors", *(["parts"] if given.parts else [])):  # parts last: they take the longest
        for name in GRAPHS:
            if not any((row["dataset"], row["by"]) == (name, by) for row in record["rows"]):
                record["rows"] += measure(name, by, given.parts, given.models, device)
                _write(given.output, record)
    for title, lines in tables(given.output).items():
        print(title, *lines, sep="\n")


def measure(name: str, by: str, parts: int, models: int, device: str) -> list[dict[str, Any]]:
    """The rows of one graph, one for each target of the anchor."""
    data, split = load_dataset(name), published_split(name)
    chosen = recipe("asgnn", **SETTINGS)
    if by == "neighbors":
        ballot: Ballot = vote_by_neighbors(chosen, data, split, models=models, device=device)
    else:
        ballot = vote_by_parts(chosen, data, split, parts=parts, models=models, device=device)
    mlp = predict_without_edges(recipe("mlp"), data, split, models=models, device=device)
    rows = []
    for target in TARGETS:
        anchor = ballot.choose_anchor(data, split.val, target)
        about = {"dataset": name, "by": by, "parts": 0 if by == "neighbors" else parts, "chosen_for": target}
        rows.append({**about, **figures(ballot, data, split, RADII, anchor, mlp)})
        print(rows[-1], flush=True)
    return rows


def pagerank(self_loops: bool, device: str) -> dict[str, Any]:
    """The share of certified test nodes for each strength of the attack."""
    data = load_dataset("cora_ml")
    split = random_split(data, 0, train_per_class=20)
    settings = {"structure": "frozen", "lam": DAMPING / (1 - DAMPING), "num_layers": 30, "dropout": 0.5, "lr": 0.01}
    trial = recipe("asgnn", **settings, weight_decay=5e-4, scalar_lr=0.0).trial(data, split, 0)
    (fit,) = fit_many([trial], data, device=device)
    with torch.no_grad():
        logits = fit.model.cpu().mlp(Features.of(data.x))[0]  # type: ignore[operator]
    size = (int(data.num_nodes),) * 2
    graph = sp.csr_matrix((np.ones(data.num_edges), tuple(data.edge_index.numpy())), shape=size)
    tree = sp.csgraph.minimum_spanning_tree(graph)
    fragile = sp.csr_matrix(graph - tree - tree.T)
    fragile.eliminate_zeros()
    pairs = torch.from_numpy(np.stack(fragile.nonzero())).long()
    degree = data.edge_index[0].bincount(minlength=size[0])
    shares, start = [], time.perf_counter()
    for strength in STRENGTHS:
        budget = (degree - 11 + strength).clamp(min=0)
        found = certify_pagerank(logits, data.edge_index, pairs, budget, damping=DAMPING, self_loops=self_loops)
        shares.append(round(100 * float(found.certified[split.test].double().mean()), 1))
    right = (found.prediction == labels_of(data))[split.test]
    return {
        "self_loops": self_loops,
        "accuracy": round(100 * float(right.double().mean()), 1),
        "certified": shares,
        "seconds": round((time.perf_counter() - start) / len(STRENGTHS), 2),
    }


def tables(path: Path = RECORD) -> dict[str, list[str]]:
    """The tables of docs/certify.md, by name."""
    record = json.loads(path.read_text(encoding="utf-8"))
    lines = [f"| graph | votes of | anchor | {' | '.join(map(str, RADII))} | seconds |"]
    lines.append(f"|:--|:--|--:|{'--:|' * (len(RADII) + 1)}")
    for name in GRAPHS:
        rows = [row for row in record["rows"] if row["dataset"] == name]
        for row in rows:
            cells = " | ".join(f"{100 * one:.1f}" for one in row["test"]["certified"])
            voters = f"{row['parts']} {row['by']}" if row["parts"] else row["by"]
            lines.append(f"| {name} | {voters} | {row['anchor']} | {cells} | {row['seconds']:.0f} |")
        for key, label in (("edge_free", "floor: edge-free twin"), ("mlp", "floor: MLP")):
            cells = " | ".join([f"{100 * rows[0]['test'][key]:.1f}"] * len(RADII))
            lines.append(f"| {name} | {label} | | {cells} | |")
        if name in PUBLISHED:
            cells = " | ".join(str(PUBLISHED[name].get(radius, "–")) for radius in RADII)
            lines.append(f"| {name} | PGNNCert-E, 60 parts, published | | {cells} | {'1141' * (name == 'cora_ml')} |")
    walk = [
        f"| model | accuracy | {' | '.join(f's = {s}' for s in STRENGTHS)} |",
        f"|:--|--:|{'--:|' * len(STRENGTHS)}",
    ]
    walk.append(f"| graph_cert's demo, published | 84 | {' | '.join(map(str, GRAPH_CERT))} |")
    for row in record["pagerank"]:
        label = "with self-loops" if row["self_loops"] else "without self-loops, as the demo"
        walk.append(f"| ours, {label} | {row['accuracy']} | {' | '.join(map(str, row['certified']))} |")
    return {"certified": lines, "pagerank": walk}


def _write(path: Path, record: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(path.name + ".part")
    half.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    half.replace(path)


if __name__ == "__main__":
    main()
