"""Run DeepRobust's Metattack or Nettack on a graph from a file, in the environment of peers.py.

    .venv-peers/bin/python benchmarks/peer_deeprobust.py metattack TASK.npz
    .venv-peers/bin/python benchmarks/peer_deeprobust.py nettack TASK.npz

Prints one JSON object as its last line. The attacks are DeepRobust's unchanged code. The time is that of the attack
after a first flip or target as warm-up, without the training of the surrogate.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from measure import resident
from worker import read


def main(attack: str, path: str) -> None:
    task = read(path)
    torch.manual_seed(0)
    np.random.seed(0)  # DeepRobust draws from the global generators
    began = time.perf_counter()
    surrogate = fit_surrogate(task)
    fitted = time.perf_counter()
    seconds, flips = ATTACKS[attack](task, surrogate)
    answer = {
        "seconds": seconds,
        "flips": flips,
        "setup_seconds": fitted - began,
        "peak_bytes": resident("VmHWM"),
        "threads": torch.get_num_threads(),
        "versions": {name: importlib.metadata.version(name) for name in ("deeprobust", "torch", "numpy", "scipy")},
    }
    print(json.dumps(answer))


def module(name: str) -> Any:
    """Import ``deeprobust.graph.name`` without running the ``__init__`` of its folder.

    Those import every attack and every defence, and with them packages that neither Metattack nor Nettack uses
    (gensim, torch_geometric, torch_scatter, tensorboardX). The attacks need only ``BaseAttack`` from their folder.
    """
    folder, _, _ = name.rpartition(".")
    full = f"deeprobust.graph.{folder}"
    if full not in sys.modules:
        spec = importlib.util.find_spec("deeprobust")
        assert spec is not None
        assert spec.submodule_search_locations is not None
        root = Path(spec.submodule_search_locations[0], "graph")
        for package, place in (("deeprobust.graph", root), (full, root / folder)):
            if package not in sys.modules:
                bare = ModuleType(package)
                bare.__path__ = [str(place)]
                sys.modules[package] = bare
        if folder.endswith("attack"):
            base = importlib.import_module(f"{full}.base_attack")
            sys.modules[full].BaseAttack = base.BaseAttack  # type: ignore[attr-defined]
    return importlib.import_module(f"deeprobust.graph.{name}")


def matrix(task: Mapping[str, Any], name: str) -> sp.csr_matrix:
    # csr_matrix, because DeepRobust uses .A1 of its sums, which csr_array lacks
    parts = (task[f"{name}_{part}"] for part in ("data", "indices", "indptr"))
    return sp.csr_matrix(tuple(parts), shape=tuple(task[f"{name}_shape"]))


def fit_surrogate(task: Mapping[str, Any]) -> Any:
    """Train the linear GCN of the examples in DeepRobust's docstrings."""
    features, labels = matrix(task, "features"), task["labels"]
    surrogate = module("defense.gcn").GCN(
        features.shape[1], 16, int(labels.max()) + 1, dropout=0, with_relu=False, with_bias=False, device="cpu"
    )
    surrogate.fit(features, matrix(task, "adjacency"), labels, task["train"], task["val"], patience=30)
    return surrogate


def metattack(task: Mapping[str, Any], surrogate: Any) -> tuple[list[float], list[list[int]]]:
    """Run Meta-Self (``lambda_=0``) with the exact meta-gradient; return the time of each flip after the first."""
    attacks = module("global_attack.mettack")
    features, adjacency = matrix(task, "features"), matrix(task, "adjacency")
    clock: list[float] = []

    def timed(steps: Iterable[int], desc: str) -> Iterator[int]:
        """Replaces tqdm, which wraps the loop over the flips."""
        for step in steps:
            clock.append(time.perf_counter())
            yield step
        clock.append(time.perf_counter())

    attacks.tqdm = timed
    model = attacks.Metattack(surrogate, features.shape[0], features.shape, device="cpu", lambda_=0)
    unlabelled = np.union1d(task["val"], task["test"])
    # Sparse features, as in its docstring; dense ones give the same flips with more time and memory.
    model.attack(
        features, adjacency, task["labels"], task["train"], unlabelled, int(task["budget"]), ll_constraint=False
    )
    changed = np.triu(model.modified_adj.numpy() != adjacency.toarray(), 1)
    return np.diff(clock)[1:].tolist(), np.argwhere(changed).tolist()


def nettack(task: Mapping[str, Any], surrogate: Any) -> tuple[list[float], list[list[int]]]:
    """Attack one target after another on the same graph with direct edge flips; return the times after the first."""
    attacks = module("targeted_attack.nettack")
    features, clean, labels = matrix(task, "features"), matrix(task, "adjacency"), task["labels"]
    adjacency, seconds = clean, []
    for target in task["targets"].tolist():
        model = attacks.Nettack(surrogate, features.shape[0], device="cpu")
        began = time.perf_counter()
        model.attack(features, adjacency, labels, target, int(task["per_target"]), verbose=False)
        seconds.append(time.perf_counter() - began)
        adjacency = model.modified_adj.tocsr()
    changed = np.triu(adjacency.toarray() != clean.toarray(), 1)
    return seconds[1:], np.argwhere(changed).tolist()


ATTACKS = {"metattack": metattack, "nettack": nettack}

if __name__ == "__main__":
    main(*sys.argv[1:])
