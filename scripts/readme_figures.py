"""Measure and draw the figures of the README.

    python scripts/readme_figures.py measure --device cuda     # writes docs/records/metattack.json
    python scripts/readme_figures.py draw                      # reads it, writes docs/figures/overview.png and table.md

Uses the graphs published with Pro-GNN (Metattack), the published split, and the settings of the recipes without a
search.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch

from asgnn.experiments import parse_case, run_trials
from asgnn.experiments.machine import origin
from asgnn.graphs import load_dataset, load_poisoned, published_split
from asgnn.graphs.keys import contains, to_keys
from asgnn.models import ASGNN
from asgnn.training import fit_many, recipe

RECORD = Path("docs/records/metattack.json")
FIGURES = Path("docs/figures")
GRAPHS = [("cora", r) for r in (0.0, 0.05, 0.1, 0.15, 0.2, 0.25)] + [
    (name, r) for name in ("citeseer", "cora_ml") for r in (0.0, 0.25)
]
# label → model
MODELS = {"MLP": "mlp", "GCN": "gcn", "APPNP": "appnp", "ASGNN, paper": "asgnn-paper", "ASGNN": "asgnn"}


def measure(device: str) -> None:
    record: dict[str, Any] = {
        **origin(f"python scripts/readme_figures.py measure --device {device}", device),
        "cells": [],
    }
    for dataset, rate in GRAPHS:
        for label, model in MODELS.items():
            case = parse_case(dataset, "metattack" if rate else None, rate)
            figures = run_trials(case, model, device=device)
            record["cells"].append({"label": label, **figures})
            print(f"{dataset} {rate:.0%} {label}: {figures['test_mean']:.2f}", file=sys.stderr, flush=True)
    record["weights"] = weights_by_layer(device)
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    RECORD.write_text(json.dumps(record, indent=1) + "\n")


def weights_by_layer(device: str) -> dict[str, list[list[float]]]:
    """The 10th, 50th and 90th percentile of the weights of original and added edges per layer, for Cora at 25 %."""
    clean, split = load_dataset("cora"), published_split("cora")
    flips = load_poisoned("cora", "metattack", 0.25)
    data = flips.apply(clean)
    fit = fit_many([recipe("asgnn").trial(data, split, 0)], data, device=device)[0]
    assert isinstance(fit.model, ASGNN)
    seen = fit.model.cpu().structure(data.x, data.edge_index)
    row, col = seen.edge_index
    upper = row < col
    n = int(data.num_nodes or 0)
    added = contains(to_keys(flips.added(clean), n), to_keys(seen.edge_index[:, upper], n))
    points = torch.tensor([0.1, 0.5, 0.9])
    out: dict[str, list[list[float]]] = {"given": [], "added": []}
    for weight in seen.weights:
        for name, which in (("given", ~added), ("added", added)):
            values = weight[upper][which].quantile(points)
            out[name].append([round(v, 4) for v in values.tolist()])
    return out


def draw() -> None:
    from matplotlib.figure import Figure

    record = json.loads(RECORD.read_text())
    figure = Figure(figsize=(10, 3.9), layout="constrained")
    left, right = figure.subplots(1, 2)
    styles = {"MLP": ":", "GCN": "s--", "APPNP": "^--", "ASGNN, paper": "v-", "ASGNN": "o-"}
    for label, style in styles.items():
        cells = [c for c in record["cells"] if c["label"] == label and c["dataset"] == "cora"]
        left.errorbar(
            [100 * c["rate"] for c in cells],
            [c["test_mean"] for c in cells],
            yerr=[c["test_std"] for c in cells],
            fmt=style,
            capsize=3,
            label=label,
        )
    left.set(title="Cora under Metattack", xlabel="flipped edges, %", ylabel="test accuracy, %")
    left.grid(alpha=0.3)
    left.legend(loc="lower left")
    for name, colour in (("given", "tab:blue"), ("added", "tab:red")):
        low, middle, high = zip(*record["weights"][name], strict=True)
        layers = range(len(middle))
        right.plot(layers, middle, "o-", color=colour, label=f"{name} edges")
        right.fill_between(layers, low, high, color=colour, alpha=0.15)
    right.set(
        title="Edge weights learned by ASGNN (25 %)",
        xlabel="layer",
        ylabel="edge weight: median, 10–90 %",
        ylim=(-0.03, 1.03),
    )
    right.grid(alpha=0.3)
    right.legend(loc="lower left")
    FIGURES.mkdir(parents=True, exist_ok=True)
    figure.savefig(FIGURES / "overview.png", dpi=130)
    print(table(record))


def table(record: dict[str, Any]) -> str:
    """The README's table: test accuracy, mean ± std, one row per graph."""
    lines = [f"| graph, flips | {' | '.join(MODELS)} |", f"|---|{'---:|' * len(MODELS)}"]
    for dataset, rate in GRAPHS:
        cells = {c["label"]: c for c in record["cells"] if c["dataset"] == dataset and c["rate"] == rate}
        shown = " | ".join(f"{cells[m]['test_mean']:.1f} ± {cells[m]['test_std']:.1f}" for m in MODELS)
        lines.append(f"| {dataset}, {rate:.0%} | {shown} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["measure", "draw"])
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    if arguments.what == "measure":
        measure(arguments.device)
    else:
        draw()


if __name__ == "__main__":
    main()
