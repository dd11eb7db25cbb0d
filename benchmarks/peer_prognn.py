"""DeepRobust's Pro-GNN on a graph from a file, in the environment that run_attacks.py makes for it.

    .venv-peers/bin/python benchmarks/peer_prognn.py TASK.npz SHRUNK.npy

Prints one JSON object as its last line, and writes what its nuclear-norm step makes of the adjacency matrix. The code
is DeepRobust's own, unchanged; the time is that of each epoch after the first: one step of the structure, two of the
weights.
"""

from __future__ import annotations

import json
import sys
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from peer_deeprobust import matrix, module, peak


def main(path: str, shrunk: str) -> None:
    with np.load(path, allow_pickle=False) as archive:
        task = dict(archive)
    torch.manual_seed(0)
    features = torch.from_numpy(matrix(task, "features").toarray()).float()
    adjacency = torch.from_numpy(matrix(task, "adjacency").toarray()).float()
    labels = torch.from_numpy(task["labels"])
    args = SimpleNamespace(
        **{name: task[name].item() for name in ("alpha", "beta", "gamma", "lambda_", "lr", "lr_adj", "epochs")},
        weight_decay=5e-4, inner_steps=2, outer_steps=1, phi=0, symmetric=False, only_gcn=False, debug=False,
    )  # fmt: skip
    defence = module("defense.prognn")
    gcn = module("defense.gcn").GCN(features.shape[1], 16, int(labels.max()) + 1, dropout=0.5, device="cpu")
    clock: list[tuple[float, float]] = []

    class Clocked(defence.ProGNN):  # type: ignore[name-defined,misc]
        def train_adj(self, *arguments: Any) -> None:  # what every epoch begins with
            clock.append((time.perf_counter(), time.process_time()))
            super().train_adj(*arguments)

    Clocked(gcn, args, "cpu").fit(features, adjacency, labels, task["train"], task["val"])
    clock.append((time.perf_counter(), time.process_time()))
    np.save(shrunk, defence.prox_operators.prox_nuclear(adjacency, args.lr_adj * args.beta).numpy())
    seconds, cpu = np.diff(np.array(clock), axis=0)[1:].T.tolist()
    print(json.dumps({"seconds": seconds, "cpu": cpu, "peak_bytes": peak(), "threads": torch.get_num_threads()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
