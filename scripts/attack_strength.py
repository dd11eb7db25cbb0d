"""Compare our attacks with the published ones, by the accuracy of a GCN on the published split.

    python scripts/attack_strength.py measure --device cuda    # writes docs/records/attacks.json
    python scripts/attack_strength.py starts --device cuda     # writes docs/records/metattack_starts.json
    python scripts/attack_strength.py table                    # updates the tables of docs/attacks.md

The script writes the flips to runs/attacks and reuses them. It searches no settings, and reads the test labels only for
the figures.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from pages import fill

from asgnn.attacks import metattack
from asgnn.attacks.inner import InnerTraining
from asgnn.experiments import SplitName, parse_case, run_trials
from asgnn.experiments.attacks import AttackFile, made_case, write_attack
from asgnn.experiments.machine import origin
from asgnn.graphs import load_dataset, published_split
from asgnn.training import fit_many, recipe

RECORDS = Path(__file__).parents[1] / "docs" / "records"
RECORD = RECORDS / "attacks.json"
STARTS_RECORD = RECORDS / "metattack_starts.json"
PAGE = RECORDS.parent / "attacks.md"
BENCH_RECORD = RECORDS / "bench-attacks.json"
FOLDER = Path("runs/attacks")
METATTACK = {"cora": "published", "citeseer": "published", "cora_ml": "published", "acm": "random:0"}
PUBLISHED = SplitName("published")
RATES = (0.05, 0.25)
NETTACK = ("cora", "citeseer")
COUNTS = (1, 2, 3, 4, 5)
# nobody has published flips of these attacks
OTHERS = ("random", "dice", "pgd", "minmax", "prbcd", "grbcd")
TRIALS = 10
STARTS = (1, 4)
NAMES = ("cora", "citeseer", "cora_ml")


def measure(device: str) -> None:
    record: dict[str, Any] = {
        **origin(f"python scripts/attack_strength.py measure --device {device}", device),
        "trials": TRIALS,
        "metattack": [],
        "nettack": [],
        "others": [],
    }
    for dataset, split in METATTACK.items():
        case = made_case(dataset, "metattack", max(RATES), SplitName.parse(split))
        kept = write_attack(case, _file(dataset, "metattack"), device=device)
        edges = load_dataset(dataset).num_edges // 2
        for rate in RATES:
            path = FOLDER / f"{dataset}_metattack_{rate:g}.npz"
            kept.found.first(int(rate * edges)).save(path)
            row = _row(dataset, rate, split, "metattack" if split == "published" else None, path, device)
            _keep(record, "metattack", row | _about(kept))
    for dataset in NETTACK:
        for count in COUNTS:
            path = _file(dataset, "nettack", count)
            kept = write_attack(made_case(dataset, "nettack", count, PUBLISHED), path, device=device)
            _keep(record, "nettack", _row(dataset, count, "published", "nettack", path, device) | _about(kept))
    for method in OTHERS:
        path = _file("cora", method)
        kept = write_attack(made_case("cora", method, max(RATES), PUBLISHED), path, device=device)
        row = _row("cora", max(RATES), "published", None, path, device)
        _keep(record, "others", {"method": method} | row | _about(kept))


def starts(device: str) -> None:
    """Compare numbers of starts of Metattack by a GCN's accuracy on validation nodes, at 25 %."""
    record: dict[str, Any] = {
        **origin(f"python scripts/attack_strength.py starts --device {device}", device),
        "rows": [],
    }
    for dataset in NAMES:
        data, split = load_dataset(dataset), published_split(dataset)
        budget = int(max(RATES) * (data.num_edges // 2))
        for count in STARTS:
            for seed in (0, 1):
                rng, inner = torch.Generator().manual_seed(seed), InnerTraining(starts=count)
                poisoned = metattack(data, budget, split.train, rng, inner=inner, device=device).apply(data)
                trials = [recipe("gcn").trial(poisoned, split, trial) for trial in range(TRIALS)]
                val = [100 * fit.val_score for fit in fit_many(trials, poisoned, device=device)]
                row = {"dataset": dataset, "starts": count, "seed": seed, "val": round(fmean(val), 2)}
                record["rows"].append(row)
                print(json.dumps(row), file=sys.stderr, flush=True)
                STARTS_RECORD.write_text(json.dumps(record, indent=1) + "\n")


def _about(kept: AttackFile) -> dict[str, Any]:
    return {"attack_seconds": kept.seconds, "attack_command": kept.found.meta["command"]}


def _file(dataset: str, method: str, count: int | None = None) -> Path:
    return FOLDER / (f"{dataset}_{method}.npz" if count is None else f"{dataset}_{method}_{count}.npz")


def _row(dataset: str, rate: float, split: str, published: str | None, path: Path, device: str) -> dict[str, Any]:
    """The accuracy of a GCN with our flips, and with the published flips if there are any."""
    cases = {"ours": parse_case(dataset, str(path), split=split)}
    if published is not None:
        cases["published"] = parse_case(dataset, published, rate, split)
    row: dict[str, Any] = {"dataset": dataset, "rate": rate, "split": split}
    for name, case in cases.items():
        figures = run_trials(case, "gcn", trials=TRIALS, device=device)
        # a targeted attack is evaluated on its targets
        kind = "target" if "target_mean" in figures else "test"
        row[name] = {"mean": figures[f"{kind}_mean"], "std": figures[f"{kind}_std"]}
    return row


def _keep(record: dict[str, Any], part: str, row: dict[str, Any]) -> None:
    """Add a row to the record and write it at once, so that an interrupted run loses no finished rows."""
    record[part].append(row)
    print(json.dumps(row), file=sys.stderr, flush=True)
    RECORD.write_text(json.dumps(record, indent=1) + "\n")


def tables() -> dict[str, list[str]]:
    """The tables of docs/attacks.md; a test compares them with the records."""
    record, chosen = json.loads(RECORD.read_text()), json.loads(STARTS_RECORD.read_text())

    def shown(figure: dict[str, float] | None) -> str:
        return "–" if figure is None else f"{figure['mean']:.1f} ± {figure['std']:.1f}"

    def compared(row: dict[str, Any]) -> str:
        gap = f"{row['ours']['mean'] - row['published']['mean']:+.1f}" if "published" in row else "–"
        return f"{shown(row.get('published'))} | {shown(row['ours'])} | {gap}"

    heading = "published | ours | ours − published |"
    out = {
        "metattack": [f"| graph, flips / edges | {heading}", "|:--|--:|--:|--:|"],
        "nettack": [f"| graph, flips per target | {heading}", "|:--|--:|--:|--:|"],
        "others": ["| attack on cora, 25% | accuracy | seconds |", "|:--|--:|--:|"],
        "starts": ["| starts | " + " | ".join(f"{name}, seeds 0 and 1" for name in NAMES) + " |", "|:--|--:|--:|--:|"],
    }
    out["metattack"] += [f"| {row['dataset']}, {row['rate']:.0%} | {compared(row)} |" for row in record["metattack"]]
    out["nettack"] += [f"| {row['dataset']}, {row['rate']:g} | {compared(row)} |" for row in record["nettack"]]
    out["others"] += [
        f"| {row['method']} | {shown(row['ours'])} | {row['attack_seconds']:.1f} |" for row in record["others"]
    ]
    for count in STARTS:
        cells = []
        for name in NAMES:
            found = [row["val"] for row in chosen["rows"] if (row["dataset"], row["starts"]) == (name, count)]
            cells.append(", ".join(f"{value:.1f}" for value in found))
        out["starts"].append(f"| {count} | {' | '.join(cells)} |")
    out["bench"] = [
        "| attack on cora | asgnn | DeepRobust | time ratio | memory ratio |",
        "|:--|--:|--:|--:|--:|",
    ]
    for case in json.loads(BENCH_RECORD.read_text())["cases"]:
        ours, theirs = case["sides"]
        times = f"{ours['seconds']:.3f} s per {case['unit']} | {theirs['seconds']:.2f} s | {theirs['ratio']:.0f}"
        out["bench"].append(f"| {case['name']} | {times} | {theirs['peak_ratio']:.1f} |")
    return out


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["measure", "starts", "table"])
    parser.add_argument("--device", default="cpu")
    chosen = parser.parse_args()
    if chosen.what == "table":
        fill(PAGE, tables())
    else:
        {"measure": measure, "starts": starts}[chosen.what](chosen.device)


if __name__ == "__main__":
    main()
