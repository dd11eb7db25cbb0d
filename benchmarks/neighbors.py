"""Approximate nearest neighbours of many nodes: pynndescent, faiss-cpu and hnswlib against the exact search.

    python benchmarks/neighbors.py -o docs/records/neighbors.json

Each method runs in a process of its own, on one thread, and finds the ten nearest neighbours of every node by cosine.
The seconds are those of the processor, because other programs may be running. Recall is measured on 1,000 nodes: the
share of the neighbours found that are at least as similar as the tenth of the exact search, so that ties do not count
against a method. A method whose package is missing is left out. Rows that the record has are not measured again.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "docs" / "records" / "neighbors.json"
K = 10
SAMPLE = 1000
NODES = {"words": 30_000, "points": 100_000}
# Nodes for the test that a method finds the same neighbours twice.
TWICE = 2000
# Package of each method.
METHODS = {
    "exact": "asgnn",
    "pynndescent": "pynndescent",
    "pynndescent, 30": "pynndescent",
    "faiss, HNSW": "faiss-cpu",
    "faiss, IVF": "faiss-cpu",
    "hnswlib": "hnswlib",
}
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")


def words(n: int, features: int = 1000, ones: int = 20, topics: int = 50) -> sp.csr_array:
    """Returns binary bags of words (N, features): half of a node's words are common, half belong to its topic."""
    rng = np.random.default_rng(0)
    common = 1 / np.arange(1, features + 1)
    topic = rng.integers(topics, size=n)
    of_topic = np.stack([rng.permutation(features) for _ in range(topics)])
    drawn = rng.choice(features, size=(n, ones), p=common / common.sum())
    mixed = np.where(rng.random((n, ones)) < 0.5, drawn, of_topic[topic[:, None], drawn])
    x = sp.csr_array((np.ones(n * ones), (np.repeat(np.arange(n), ones), mixed.ravel())), shape=(n, features))
    x.data[:] = 1
    return x


def points(n: int, features: int = 64, centres: int = 50) -> NDArray[np.float32]:
    """Returns dense features (N, features): normal noise around centres."""
    rng = np.random.default_rng(0)
    centre = rng.standard_normal((centres, features))
    noise = rng.standard_normal((n, features))
    return (centre[rng.integers(centres, size=n)] + noise).astype(np.float32)


def unit(x: Any) -> Any:
    """Returns the rows with norm 1, in single precision."""
    sparse: bool = sp.issparse(x)
    if sparse:
        norm = np.sqrt(x.multiply(x).sum(axis=1))
        return sp.csr_array(sp.diags_array(1 / norm) @ x).astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def as_dense(x: Any) -> NDArray[np.float32]:
    sparse: bool = sp.issparse(x)
    return np.ascontiguousarray(x.toarray() if sparse else x, dtype=np.float32)


# --- the methods: unit rows → indices (N, K + 1), of which one may be the node itself --------------------------------


def by_pynndescent(x: Any, wide: int = K + 1) -> NDArray[Any]:
    from pynndescent import NNDescent

    index = NNDescent(x, metric="cosine", n_neighbors=wide, random_state=0, n_jobs=1, compressed=False)
    found: NDArray[Any] = index.neighbor_graph[0]
    return found


def by_faiss_hnsw(x: Any) -> NDArray[Any]:
    import faiss

    faiss.omp_set_num_threads(1)
    x = as_dense(x)
    index = faiss.IndexHNSWFlat(x.shape[1], 16, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction, index.hnsw.efSearch = 100, 64
    index.add(x)
    found: NDArray[Any] = index.search(x, K + 1)[1]
    return found


def by_faiss_ivf(x: Any) -> NDArray[Any]:
    import faiss

    faiss.omp_set_num_threads(1)
    x = as_dense(x)
    lists = int(np.sqrt(len(x)))
    index = faiss.IndexIVFFlat(faiss.IndexFlatIP(x.shape[1]), x.shape[1], lists, faiss.METRIC_INNER_PRODUCT)
    index.train(x)
    index.add(x)
    index.nprobe = max(1, lists // 16)
    found: NDArray[Any] = index.search(x, K + 1)[1]
    return found


def by_hnswlib(x: Any) -> NDArray[Any]:
    import hnswlib

    x = as_dense(x)
    index = hnswlib.Index(space="ip", dim=x.shape[1])
    index.init_index(max_elements=len(x), ef_construction=100, M=16, random_seed=0)
    index.set_num_threads(1)
    index.add_items(x)
    index.set_ef(64)
    found: NDArray[Any] = index.knn_query(x, k=K + 1)[0]
    return found


SEARCH: dict[str, Callable[[Any], NDArray[Any]]] = {
    "pynndescent": by_pynndescent,
    "pynndescent, 30": lambda x: by_pynndescent(x, 30),
    "faiss, HNSW": by_faiss_hnsw,
    "faiss, IVF": by_faiss_ivf,
    "hnswlib": by_hnswlib,
}


def recall(x: Any, found: NDArray[Any]) -> float:
    """Returns the share of the K nearest neighbours that were found, over a sample of nodes."""
    nodes = np.random.default_rng(1).choice(x.shape[0], size=SAMPLE, replace=False)
    hits = 0
    for part in np.array_split(nodes, 20):
        similarity = as_dense(x[part] @ x.T)
        similarity[np.arange(len(part)), part] = -2
        least = -np.partition(-similarity, K - 1, axis=1)[:, K - 1 : K]
        for row, node in enumerate(part):
            others = [at for at in dict.fromkeys(found[node].tolist()) if at not in (node, -1)][:K]
            hits += int((similarity[row, others] >= least[row] - 1e-6).sum())
    return hits / (K * SAMPLE)


def one(method: str, kind: str, n: int) -> dict[str, Any]:
    """Measures one method in this process."""
    x = words(n) if kind == "words" else points(n)
    if method == "exact":
        import torch

        from asgnn.graphs import neighbors
        from asgnn.graphs.features import Features

        torch.set_num_threads(1)
        neighbors.EXACT_UP_TO = n
        dense = torch.from_numpy(as_dense(x))
        # "cosine" for both, so that the methods are given the same task.
        features, before = Features.of(dense), _peak()
        began = time.process_time()
        neighbors.nearest_neighbors(features, K, "cosine")
        return {"seconds": time.process_time() - began, "recall": 1.0, "gigabytes": _peak() - before}
    x = unit(x)
    SEARCH[method](x[:2000])  # compiles what is compiled on first use
    before = _peak()
    began = time.process_time()
    found = SEARCH[method](x)
    seconds, peak = time.process_time() - began, _peak()
    digest = hashlib.sha256(found.astype(np.int64).tobytes()).hexdigest()
    return {"seconds": seconds, "recall": recall(x, found), "gigabytes": peak - before, "digest": digest}


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def installed(method: str) -> bool:
    try:
        importlib.metadata.version(METHODS[method])
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def measure(method: str, kind: str, n: int) -> dict[str, Any]:
    """Runs :func:`one` in a process of its own."""
    env = os.environ | dict.fromkeys(THREADS, "1")
    command = [sys.executable, __file__, "--one", method, kind, str(n)]
    done = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def tables() -> dict[str, list[str]]:
    """The table of the page."""
    lines = ["| method | features | nodes | seconds | recall | GB | same twice |", "|:--|:--|--:|--:|--:|--:|:--|"]
    for row in json.loads(RECORD.read_text())["rows"]:
        same = {True: "yes", False: "no", None: "–"}[row.get("same_twice")]
        lines.append(
            f"| {row['method']} | {row['features']} | {row['nodes']:,} | {row['seconds']:.0f} | {row['recall']:.3f} | "
            f"{row['gigabytes']:.1f} | {same} |"
        )
    return {"neighbors": lines}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--one", nargs=3, metavar=("METHOD", "KIND", "NODES"))
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--page", action="store_true", help="write the table of docs/build.md from the record only")
    chosen = parser.parse_args()
    if chosen.page:
        sys.path.append(str(ROOT / "scripts"))
        from pages import fill

        fill(ROOT / "docs" / "build.md", tables())
        return
    if chosen.one:
        method, kind, n = chosen.one
        print(json.dumps(one(method, kind, int(n))))
        return
    from asgnn.experiments.machine import origin

    command = f"python benchmarks/neighbors.py -o {chosen.output}"
    known = json.loads(chosen.output.read_text())["rows"] if chosen.output and chosen.output.exists() else []
    record: dict[str, Any] = {**origin(command, "cpu"), "k": K, "threads": 1, "packages": {}, "rows": known}
    done = {(row["method"], row["features"]) for row in known}
    for method in filter(installed, METHODS):
        record["packages"][METHODS[method]] = importlib.metadata.version(METHODS[method])
        for kind, n in NODES.items():
            if (method, kind) in done:
                continue
            row = {"method": method, "features": kind, "nodes": n, **measure(method, kind, n)}
            if method != "exact":
                del row["digest"]
                first, second = (measure(method, kind, TWICE)["digest"] for _ in range(2))
                row["same_twice"] = first == second
            row |= {name: round(row[name], 3) for name in ("seconds", "recall", "gigabytes")}
            print(json.dumps(row), file=sys.stderr, flush=True)
            record["rows"].append(row)
            if chosen.output:
                chosen.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
