"""Accuracy of a DeepRobust model on a graph from a file; called by accuracies.py in the environment of peers.py.

.venv-peers/bin/python benchmarks/peer_accuracy.py gcn 10 TASK.npz
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from peer_deeprobust import matrix, module
from peer_defences import preprocessing
from worker import read

EPOCHS = 200
KINDS: dict[str, tuple[Callable[[], Any], dict[str, float]]] = {
    "gcn": (lambda: module("defense.gcn").GCN, {}),
    "gcn-jaccard": (lambda: preprocessing().GCNJaccard, {"threshold": 0.01}),
    "gcn-svd": (lambda: preprocessing().GCNSVD, {"k": 50}),
}


def main(name: str, seeds: str, path: str) -> None:
    task = read(path)
    features, adjacency, labels = matrix(task, "features"), matrix(task, "adjacency"), task["labels"]
    model_class, settings = KINDS[name]
    accuracies = []
    for seed in range(int(seeds)):
        torch.manual_seed(seed)
        np.random.seed(seed)
        model = model_class()(features.shape[1], 16, int(labels.max()) + 1, device="cpu")
        model.fit(features, adjacency, labels, task["train"], task["val"], train_iters=EPOCHS, **settings)
        predicted = model.predict().argmax(1).numpy()
        accuracies.append(round(100 * float((predicted == labels)[task["test"]].mean()), 3))
    print(json.dumps(accuracies))


if __name__ == "__main__":
    main(*sys.argv[1:])
