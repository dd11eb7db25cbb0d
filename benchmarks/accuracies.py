"""Accuracy of DeepRobust's GCN, GCN-Jaccard and GCN-SVD on the published graphs.

    python benchmarks/accuracies.py                      # writes docs/records/peer-accuracy.json

DeepRobust's default settings, the published split, ten seeds, 200 epochs. The figures show whether a gap between our
accuracy and that of a paper is also present in the reference code; docs/defences.md has both.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean, stdev

from peers import ENVIRONMENT, PEER, build, peer_command, write
from worker import CannotMeasure

from asgnn.errors import AsgnnError
from asgnn.experiments.machine import machine
from asgnn.graphs import load_dataset, load_poisoned, published_split

RECORD = Path(__file__).parents[1] / "docs" / "records" / "peer-accuracy.json"
SEEDS = 10
RATES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25)
MODELS = ("gcn", "gcn-jaccard", "gcn-svd")
COMMAND = "python benchmarks/accuracies.py"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=RECORD, metavar="FILE")
    chosen = parser.parse_args()
    try:
        python = build(ENVIRONMENT)
        cells = [measure(python, model, rate) for model in MODELS for rate in RATES]
    except (CannotMeasure, AsgnnError) as error:
        print(f"{error} Nothing was written.", file=sys.stderr)
        return 1
    record = {"command": COMMAND, "peer": PEER, "machine": machine("cpu"), "cells": cells}
    chosen.output.write_text(json.dumps(record, indent=1) + "\n")
    return 0


def measure(python: Path, model: str, rate: float) -> dict[str, object]:
    data = load_dataset("cora")
    data = load_poisoned("cora", "metattack", rate).apply(data) if rate else data
    with tempfile.TemporaryDirectory() as folder:
        task = Path(folder, "task.npz")
        write(task, data, published_split("cora"))
        command = peer_command(python, "peer_accuracy.py", model, SEEDS, task)
        one_thread = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, env=one_thread)
    if done.returncode:
        raise CannotMeasure(f"{PEER} failed to train {model}: {done.stderr.strip().splitlines()[-1]}.")
    test = json.loads(done.stdout.splitlines()[-1])
    print(f"{model} {rate:.0%}: {fmean(test):.2f} ± {stdev(test):.2f}", file=sys.stderr, flush=True)
    cell = {"dataset": "cora", "model": model, "rate": rate}
    return {**cell, "test_mean": round(fmean(test), 3), "test_std": round(stdev(test), 3), "test": test}


if __name__ == "__main__":
    sys.exit(main())
