"""The five commands on a large planted graph, from CSV files to an audit page and a cleaned list of edges.

    python scripts/large_graph.py -o docs/records/large.json

Writes files of a planted graph with 100,000 nodes, 50 features and 500,000 edges, a fifth of them false and a tenth of
the nodes labelled, and runs asgnn look, fit, predict, audit and clean on them, each in a process of its own. The record
has the seconds and the peak memory of each, and how good the answers are. Takes a quarter of an hour on two cores.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from asgnn.experiments.machine import machine
from asgnn.graphs import Gaussian, named_graph, planted_graph
from asgnn.version import __version__

NODES, CLASSES, DEGREE, FALSE, FEATURES, LABELLED = 100_000, 5, 10, 0.2, 50, 0.1
READ = ("edges.csv", "--features", "nodes.csv")
STEPS: dict[str, tuple[str, ...]] = {
    "look": ("look", *READ, "--label", "class"),
    "fit": ("fit", *READ, "--label", "class", "-o", "model"),
    "predict": ("predict", "model", *READ, "-o", "predictions.csv"),
    "audit": ("audit", "model", *READ, "-o", "audit.html", "-o", "audit.csv"),
    "clean": ("clean", "model", *READ, "--share", "0.1", "-o", "cleaned.csv"),
}
# Runs a command and prints its peak memory in bytes, which only a parent can ask for.
MEASURE = """
import resource, subprocess, sys
done = subprocess.run(sys.argv[1:], stdout=sys.stderr)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
sys.exit(done.returncode)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, required=True, help="the record")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = walk(Path(folder))
    asked.output.write_text(json.dumps(found, indent=1) + "\n")


def walk(folder: Path) -> dict[str, Any]:
    """Writes the files, runs the commands and returns the record."""
    data = planted_graph(NODES, CLASSES, DEGREE, FALSE, features=Gaussian(FEATURES, 2.0), seed=0)
    truth = data.y.numpy()
    labels = np.array([f"class {code}" for code in truth], dtype=object)
    hidden = np.random.default_rng(0).random(NODES) > LABELLED
    labels[hidden] = None
    edges, nodes = named_graph(data, labels).to_pandas()
    edges.to_csv(folder / "edges.csv", index=False)
    nodes.rename(columns={"label": "class"}).to_csv(folder / "nodes.csv")
    steps = {}
    for name, arguments in STEPS.items():
        begin = time.perf_counter()
        command = [sys.executable, "-c", MEASURE, sys.executable, "-m", "asgnn", *arguments]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"asgnn {name}: {done.stderr}")
        steps[name] = {"seconds": round(time.perf_counter() - begin, 1), "gigabytes": round(int(done.stdout) / 1e9, 2)}
        print(name, steps[name], flush=True)
    predicted = pd.read_csv(folder / "predictions.csv")
    right = predicted["class"].to_numpy() == np.array([f"class {code}" for code in truth])
    audit = pd.read_csv(folder / "audit.csv").sort_values("rank")
    false = truth[audit["source"]] != truth[audit["target"]]
    return {
        "command": "python scripts/large_graph.py -o docs/records/large.json",
        "version": __version__,
        "machine": machine("cpu"),
        "nodes": NODES,
        "edges": len(edges),
        "features": FEATURES,
        "steps": steps,
        "accuracy": round(float(right[hidden].mean()), 4),
        "confidence": round(float(predicted["confidence"][hidden].mean()), 4),
        "precision of the first tenth": round(float(false[: len(false) // 10].mean()), 4),
        "megabytes of the page": round((folder / "audit.html").stat().st_size / 1e6, 1),
    }


if __name__ == "__main__":
    main()
