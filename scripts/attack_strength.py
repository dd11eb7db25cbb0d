"""Are our attacks as strong as the published ones? Measured with one GCN on the published split, and kept.

    python scripts/attack_strength.py measure --device cuda    # writes docs/records/attacks.json
    python scripts/attack_strength.py table                    # prints the tables of docs/attacks.md out of it

The flips are made first, into runs/attacks, and are taken from there if they are there; nothing is searched, and the
test labels are read once, for the figures.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch

import asgnn
from asgnn.experiments import Cell, run_cell
from asgnn.experiments.attack import AttackSpec, Kept, keep_attack
from asgnn.experiments.machine import machine
from asgnn.graphs import load_dataset

RECORD = Path("docs/records/attacks.json")
FOLDER = Path("runs/attacks")
METATTACK = {"cora": "published", "citeseer": "published", "cora_ml": "published", "acm": "random:0"}
RATES = (0.05, 0.25)
NETTACK = ("cora", "citeseer")
COUNTS = (1, 2, 3, 4, 5)
# not published by anyone; for a picture of how the attacks compare
OTHERS = ("random", "dice", "pgd", "minmax", "prbcd", "grbcd")
TRIALS = 10


def measure(device: str) -> None:
    record: dict[str, Any] = {
        "command": f"python scripts/attack_strength.py measure --device {device}",
        "version": asgnn.__version__,
        "machine": machine(device),
        "torch": torch.__version__,
        "trials": TRIALS,
        "metattack": [],
        "nettack": [],
        "others": [],
    }
    for dataset, split in METATTACK.items():
        spec = AttackSpec(dataset, "metattack", rate=max(RATES), split=split)
        kept = keep_attack(spec, _file(dataset, "metattack"), device=device)
        edges = load_dataset(dataset).num_edges // 2
        for rate in RATES:
            path = FOLDER / f"{dataset}_metattack_{rate:g}.npz"
            kept.found.first(int(rate * edges)).save(path)
            row = _row(dataset, rate, split, "metattack" if split == "published" else None, path, device)
            _keep(record, "metattack", row | _about(kept))
    for dataset in NETTACK:
        for count in COUNTS:
            path = _file(dataset, "nettack", count)
            kept = keep_attack(AttackSpec(dataset, "nettack", per_target=count), path, device=device)
            _keep(record, "nettack", _row(dataset, count, "published", "nettack", path, device) | _about(kept))
    for method in OTHERS:
        path = _file("cora", method)
        kept = keep_attack(AttackSpec("cora", method, rate=max(RATES)), path, device=device)
        row = _row("cora", max(RATES), "published", None, path, device)
        _keep(record, "others", {"method": method} | row | _about(kept))


def _about(kept: Kept) -> dict[str, Any]:
    return {"attack_seconds": kept.seconds, "attack_command": kept.found.meta["command"]}


def _file(dataset: str, method: str, count: int | None = None) -> Path:
    return FOLDER / (f"{dataset}_{method}.npz" if count is None else f"{dataset}_{method}_{count}.npz")


def _row(dataset: str, rate: float, split: str, published: str | None, path: Path, device: str) -> dict[str, Any]:
    """The GCN on the clean graph, on the published one where there is one, and on ours."""
    common: dict[str, Any] = {"dataset": dataset, "model": "gcn", "split": split, "trials": TRIALS}
    cells = {"ours": Cell(poisoned=str(path), **common)}
    if published is not None:
        cells["published"] = Cell(poisoned=published, rate=rate, **common)
    row: dict[str, Any] = {"dataset": dataset, "rate": rate, "split": split}
    for name, cell in cells.items():
        figures = run_cell(cell, device=device).as_dict()
        # a targeted attack is judged on its targets
        kind = "target" if "target_mean" in figures else "test"
        row[name] = {"mean": figures[f"{kind}_mean"], "std": figures[f"{kind}_std"]}
    return row


def _keep(record: dict[str, Any], part: str, row: dict[str, Any]) -> None:
    """Into the record and onto the disk at once, so that a stopped run leaves what it has measured."""
    record[part].append(row)
    print(json.dumps(row), file=sys.stderr, flush=True)
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    RECORD.write_text(json.dumps(record, indent=1) + "\n")


def table() -> None:
    print("\n".join(tables(json.loads(RECORD.read_text()))))


def tables(record: dict[str, Any]) -> list[str]:
    """The rows of docs/attacks.md, which a test holds to the record."""

    def shown(figure: dict[str, float] | None) -> str:
        return "–" if figure is None else f"{figure['mean']:.1f} ± {figure['std']:.1f}"

    def compared(row: dict[str, Any]) -> str:
        return f"{shown(row.get('published'))} | {shown(row['ours'])} | {_gap(row)}"

    lines = ["| graph, flips / edges | published | ours | ours − published |", "|:--|--:|--:|--:|"]
    for row in record["metattack"]:
        lines.append(f"| {row['dataset']}, {row['rate']:.0%} | {compared(row)} |")
    lines += ["", "| graph, flips a target | published | ours | ours − published |", "|:--|--:|--:|--:|"]
    for row in record["nettack"]:
        lines.append(f"| {row['dataset']}, {row['rate']:g} | {compared(row)} |")
    lines += ["", "| attack on cora, 25 % | GCN | seconds |", "|:--|--:|--:|"]
    for row in record["others"]:
        lines.append(f"| {row['method']} | {shown(row['ours'])} | {row['attack_seconds']:.1f} |")
    return lines


def _gap(row: dict[str, Any]) -> str:
    return f"{row['ours']['mean'] - row['published']['mean']:+.1f}" if "published" in row else "–"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["measure", "table"])
    parser.add_argument("--device", default="cpu")
    chosen = parser.parse_args()
    if chosen.what == "measure":
        measure(chosen.device)
    else:
        table()


if __name__ == "__main__":
    main()
