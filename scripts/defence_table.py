"""Results of the defences on attacked graphs, next to the figures of their papers.

    python scripts/defence_table.py measure [--device cuda] [--only prognn …]   # writes docs/records/defences.json
    python scripts/defence_table.py table                                       # updates the tables of docs/defences.md

The table of speed uses docs/records/bench-defences.json, which benchmarks/run_defences.py writes.

Every model uses the settings of its recipe on every graph, without a search. Cells in the record are not measured
again, so an interrupted run resumes, and one record can hold cells of several machines; each names its machine.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from pages import fill

import asgnn
from asgnn.experiments import Case, parse_case, run_trials
from asgnn.experiments.machine import machine
from asgnn.training import RECIPES

RECORD = Path(__file__).parents[1] / "docs" / "records" / "defences.json"
BENCH_RECORD = RECORD.with_name("bench-defences.json")
PEER_RECORD = BENCH_RECORD.with_name("peer-accuracy.json")  # of benchmarks/accuracies.py
PAGE = Path(__file__).parents[1] / "docs" / "defences.md"
TRIALS = 10
RATES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25)
# model → dataset → the source and the figure at each rate
PRO_GNN = "Jin et al., KDD 2020"
ASGNN_PAPER = "Zhang et al., 2022, Table 1"
PUBLISHED: dict[str, dict[str, tuple[str, tuple[float, ...]]]] = {
    "gcn": {"cora": (PRO_GNN, (83.50, 76.55, 70.39, 65.10, 59.56, 47.53))},
    "gcn-jaccard": {"cora": (PRO_GNN, (82.05, 79.13, 75.16, 71.03, 65.71, 60.82))},
    "gcn-svd": {"cora": (PRO_GNN, (80.63, 78.39, 71.47, 66.69, 58.94, 52.06))},
    "prognn": {"cora": (PRO_GNN, (82.98, 82.27, 79.03, 76.40, 73.32, 69.72))},
    "elastic": {
        "cora": (ASGNN_PAPER, (84.80, 82.26, 79.47, 77.84, 63.68, 62.90)),
        "citeseer": (ASGNN_PAPER, (73.82, 73.30, 72.78, 71.73, 61.55, 63.98)),
    },
}
# dataset → the attack and the split that it was made against
GRAPHS = {
    "cora": ("metattack", "published"),
    "citeseer": ("metattack", "published"),
    "cora_ml": ("metattack", "published"),
    "acm": ("own-metattack", "random:0"),
}


def cells() -> list[tuple[str, Case]]:
    """All cells: first those that a paper reports; the slowest model last."""
    wanted: list[tuple[str, Case]] = []
    for model, graphs in PUBLISHED.items():
        wanted += [_cell(model, dataset, rate) for dataset in graphs for rate in RATES]
    wanted += [_cell(model, dataset, rate) for model in RECIPES for dataset in GRAPHS for rate in (0.0, 0.25)]
    return sorted(dict.fromkeys(wanted), key=lambda cell: cell[0].startswith("prognn"))


def _cell(model: str, dataset: str, rate: float) -> tuple[str, Case]:
    attack, split = GRAPHS[dataset]
    return model, parse_case(dataset, attack if rate else None, rate, split)


def kept() -> list[dict[str, Any]]:
    return json.loads(RECORD.read_text())["cells"] if RECORD.exists() else []


def find(found: list[dict[str, Any]], cell: tuple[str, Case]) -> dict[str, Any] | None:
    model, case = cell
    key = (case.dataset, model, case.amount)
    return next((one for one in found if (one["dataset"], one["model"], one["rate"]) == key), None)


def measure(device: str, only: list[str]) -> None:
    found = kept()
    for model, case in cells():
        if (only and model not in only) or find(found, (model, case)) is not None:
            continue
        figures = run_trials(case, model, trials=TRIALS, device=device) | {"machine": machine(device)}
        found.append(figures)
        record = {"command": "python scripts/defence_table.py measure", "version": asgnn.__version__, "cells": found}
        RECORD.write_text(json.dumps(record, indent=1) + "\n")
        print(
            f"{case.dataset}, {case.label}, {model}: {figures['test_mean']:.2f} in {figures['seconds']:.0f} s",
            file=sys.stderr,
            flush=True,
        )


def tables() -> dict[str, list[str]]:
    """The tables of docs/defences.md; a test compares them with the record."""
    found, peer = kept(), json.loads(PEER_RECORD.read_text())["cells"]
    out = {
        "published": [
            f"| model, graph | | {' | '.join(f'{rate:.0%}' for rate in RATES)} |",
            f"|:--|:--|{'--:|' * len(RATES)}",
        ]
    }
    for model, graphs in PUBLISHED.items():
        for dataset, (source, figures) in graphs.items():
            ours = [find(found, _cell(model, dataset, rate)) for rate in RATES]
            gaps = " | ".join(
                "–" if one is None else f"{one['test_mean'] - figure:+.1f}"
                for one, figure in zip(ours, figures, strict=True)
            )
            peers = [find(peer, _cell(model, dataset, rate)) for rate in RATES]
            out["published"] += [
                f"| {model}, {dataset} | {source} | {' | '.join(f'{figure:.1f}' for figure in figures)} |",
                f"| | here | {_row(ours)} |",
                f"| | difference | {gaps} |",
            ]
            if any(peers):
                out["published"].append(f"| | DeepRobust's code | {_row(peers)} |")
    heads = [f"{dataset}, {rate:.0%}" for dataset in GRAPHS for rate in (0.0, 0.25)]
    out["all"] = [f"| model | {' | '.join(heads)} |", f"|:--|{'--:|' * len(heads)}"]
    for model in RECIPES:
        row = [find(found, _cell(model, dataset, rate)) for dataset in GRAPHS for rate in (0.0, 0.25)]
        if any(row):
            out["all"].append(
                f"| {model} | {' | '.join('–' if one is None else format(one['test_mean'], '.1f') for one in row)} |"
            )
    out["speed"] = speed(json.loads(BENCH_RECORD.read_text()))
    return out


def _row(found: list[dict[str, Any] | None]) -> str:
    return " | ".join("–" if one is None else f"{one['test_mean']:.1f} ± {one['test_std']:.1f}" for one in found)


def speed(record: dict[str, Any]) -> list[str]:
    """Our time for one trial and in a batch, the time of other code, and its ratio to both."""
    out = [
        f"| on {record['machine']} | seconds | MB | batch of ten: seconds per trial "
        "| compared with | seconds | MB | ratio | ratio to batch |",
        "|:--|--:|--:|--:|:--|--:|--:|--:|--:|",
    ]
    for case in record["cases"]:
        ours, batched, *others = case["sides"]
        row = f"| {case['name']} | {_figures(ours)} | {_seconds(batched)} |"
        for theirs in others:
            times = f"{theirs['ratio']:.1f} ({theirs['ratio_low']:.1f}–{theirs['ratio_high']:.1f})"
            row += f" {theirs['name']} | {_figures(theirs)} | {times} | {theirs['seconds'] / batched['seconds']:.1f} |"
        out.append(row if others else f"{row} – | – | – | – | – |")
    return out


def _figures(side: dict[str, Any]) -> str:
    return f"{_seconds(side)} | {side['peak_bytes'] / 1e6:.0f}"


def _seconds(side: dict[str, Any]) -> str:
    """Two decimals below 10 s, one below 100 s, else none."""
    return f"{side['seconds']:.{0 if side['seconds'] >= 100 else 1 if side['seconds'] >= 10 else 2}f}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["measure", "table"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", nargs="*", default=[])
    chosen = parser.parse_args()
    if chosen.what == "table":
        fill(PAGE, tables())
    else:
        measure(chosen.device, chosen.only)


if __name__ == "__main__":
    main()
