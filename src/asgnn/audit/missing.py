"""Pairs of nodes without an edge that may deserve one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from asgnn.audit.evidence import Evidence
from asgnn.errors import ConfigError
from asgnn.graphs.neighbors import nearest_neighbors

NEIGHBORS = 10
# Pairs of neighbours of one node, over all nodes; and the pairs that are judged.
MOST_WEDGES = 4_000_000
MOST_CANDIDATES = 500_000


def candidates(evidence: Evidence, seed: int = 0) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return pairs (2, P) that are not joined, u < v, and notes.

    They are the nearest neighbours of the features and pairs with a common neighbour. If there are too many, those with
    more common neighbours are taken. Nodes with very many neighbours contribute some of their pairs.
    Time O(E + wedges), memory bounded.
    """
    n, notes = evidence.features.num_nodes, []
    near = np.empty(0, dtype=np.int64)
    if evidence.informative:
        try:
            row, col = nearest_neighbors(evidence.features, NEIGHBORS).cpu().numpy()
            near = (row * n + col)[row < col]
        except ConfigError as reason:  # more nodes than the exact search is made for, without pynndescent
            notes.append(f"Missing edges were looked for at distance two only. {reason}")
    two, count = np.unique(_wedges(evidence, np.random.default_rng(seed)), return_counts=True)
    room = MOST_CANDIDATES - near.size
    if two.size > room:
        two = two[np.argsort(-count, kind="stable")[: max(room, 0)]]
    keys = np.setdiff1d(np.union1d(near, two), evidence.edges[0] * n + evidence.edges[1])
    return np.stack([keys // n, keys % n]), tuple(notes)


def _wedges(evidence: Evidence, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the keys u · N + v of pairs with a common neighbour, u < v, once for each of these neighbours."""
    adjacency, n = evidence.adjacency, evidence.features.num_nodes
    most = _largest_fan(evidence.degree)
    found = [np.empty(0, dtype=np.int64)]
    # nodes of equal degree at once: their neighbours form a matrix
    for degree in np.unique(evidence.degree[evidence.degree > 1]).tolist():
        nodes = np.flatnonzero(evidence.degree == degree)
        around = adjacency.indices[adjacency.indptr[nodes][:, None] + np.arange(degree)].astype(np.int64)
        if degree > most:
            around = np.sort(rng.permuted(around, axis=1)[:, :most], axis=1)
        left, right = np.triu_indices(around.shape[1], 1)
        pairs = np.sort(np.stack([around[:, left], around[:, right]]), axis=0)
        found.append((pairs[0] * n + pairs[1]).reshape(-1))
    return np.concatenate(found)


def _largest_fan(degree: NDArray[np.int64]) -> int:
    """Return how many neighbours of a node may be paired so that there are at most :data:`MOST_WEDGES` pairs."""
    low, high = 2, max(2, int(degree.max(initial=2)))
    while low < high:
        middle = (low + high + 1) // 2
        fan = np.minimum(degree, middle)
        low, high = (middle, high) if int((fan * (fan - 1) // 2).sum()) <= MOST_WEDGES else (low, middle - 1)
    return low
