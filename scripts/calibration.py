"""The calibration error of the classifier's probabilities on clean and attacked graphs, before and after calibration.

    python scripts/calibration.py -o docs/records/calibration.json

A ``RobustNodeClassifier`` with its defaults gets the labels of the training and validation nodes and holds out the
validation nodes: the published split for the published attacks, else random 10/10/80 splits. The expected calibration
error is that of the test nodes, over 15 bins of equal width and of equal size. "before" is the mean probability of the
same models at temperature 1. The record is written after each graph; a graph that it has is not computed again.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

from asgnn.estimator import RobustNodeClassifier, find_device
from asgnn.experiments.machine import origin
from asgnn.graphs import Split, load_dataset, load_own, load_poisoned, published_split, random_split
from asgnn.training.calibrate import calibration_error

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "docs" / "records" / "calibration.json"
PUBLISHED = ("cora", "citeseer", "cora_ml")
GRAPHS = [
    *((name, rate) for name in PUBLISHED for rate in (0.0, 0.1, 0.25)),
    ("planted-false-20", 0.0),
    *((name, rate) for name in ("polblogs", "acm") for rate in (0.0, 0.25)),
]
GOAL = {"clean": 0.05, "attacked": 0.08}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("-o", "--output", type=Path, default=RECORD)
    given = parser.parse_args()
    rows: dict[str, Any] = {}
    if given.output.is_file():
        rows = json.loads(given.output.read_text(encoding="utf-8"))["graphs"]
    for name, rate in GRAPHS:
        key = f"{name} {rate:.0%}"
        if key not in rows:
            rows[key] = measure(name, rate, given.device)
            _write(given.output, rows, find_device(given.device))
        row = rows[key]
        errors = " ".join(f"{when} {row[when]['width']:.3f}/{row[when]['mass']:.3f}" for when in ("before", "after"))
        print(f"{key:20} {errors}  test {row['test']:.3f}  τ {row['temperature']:.2f}", flush=True)
    print(table(rows))


def measure(name: str, rate: float, device: str) -> dict[str, Any]:
    """The figures of one graph."""
    data = load_dataset(name)
    if rate:
        data = (load_poisoned if name in PUBLISHED else load_own)(name, "metattack", rate).apply(data)
    split: Split = published_split(name) if name in PUBLISHED else random_split(data, 0)
    labels = data.y.numpy().astype(object)
    labels[split.test.numpy()] = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        clf = RobustNodeClassifier(validation=split.val.numpy(), device=device).fit(data, labels)
    y = torch.from_numpy(np.searchsorted(clf.classes_, data.y.numpy()))[split.test]
    after = torch.from_numpy(clf.predict_proba())[split.test]
    clf.ensemble_.temperature, clf.ensemble_.confidence = 1.0, None
    before = torch.from_numpy(clf.predict_proba())[split.test]
    return {
        "test": round(float((after.argmax(1) == y).double().mean()), 4),
        "validation": round(clf.validation_score_, 4),
        "confidence": round(float(after.max(1).values.mean()), 4),
        "temperature": round(clf.temperature_, 4),
        "before": _errors(before, y),
        "after": _errors(after, y),
        "nodes": {"validation": len(split.val), "test": len(y)},
        "settings": clf.settings_,
    }


def table(rows: dict[str, Any]) -> str:
    """The record as a Markdown table: errors over bins of equal width, and of equal size in brackets."""
    lines = ["| graph | test accuracy | error before | error after |", "|---|---|---|---|"]
    for key, row in rows.items():
        errors = [f"{row[when]['width']:.3f} ({row[when]['mass']:.3f})" for when in ("before", "after")]
        lines.append(f"| {key} | {100 * row['test']:.1f} % | {errors[0]} | {errors[1]} |")
    return "\n".join(lines)


def _errors(p: torch.Tensor, y: torch.Tensor) -> dict[str, float]:
    return {"width": round(calibration_error(p, y), 4), "mass": round(calibration_error(p, y, by="mass"), 4)}


def _write(path: Path, rows: dict[str, Any], device: torch.device) -> None:
    ordered = {
        f"{name} {rate:.0%}": rows[f"{name} {rate:.0%}"] for name, rate in GRAPHS if f"{name} {rate:.0%}" in rows
    }
    record = {
        **origin("python scripts/calibration.py -o docs/records/calibration.json", device),
        "date": time.strftime("%Y-%m-%d"),
        "goal": GOAL,
        "graphs": ordered,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(path.name + ".part")
    half.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    half.replace(path)


if __name__ == "__main__":
    main()
