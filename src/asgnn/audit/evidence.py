"""What is known about a pair of nodes, joined or not, without using the edge between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data

from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.features import Features
from asgnn.graphs.neighbors import uninformative
from asgnn.graphs.similarity import kind_of, pair_similarity, standardised

Array = NDArray[Any]

# Neighbours, or words of neighbours, that a block of pairs may touch: bounds the temporary memory to some 100 MB.
BLOCK = 2**22
# The spectral input: parts into which the edges are divided, and the rank of the approximation from the other parts.
PARTS, RANK = 4, 20
# Added to probabilities before their logarithm is taken.
LEAST = 1e-3


def single_edges(data: Data) -> NDArray[np.int64]:
    """Return every undirected edge once, (2, E) with u < v, sorted."""
    row, col = data.edge_index.cpu().numpy()
    upper = row < col
    row, col = row[upper], col[upper]
    order = np.lexsort((col, row))
    edges: NDArray[np.int64] = np.stack([row[order], col[order]])
    return edges


@dataclass(frozen=True, eq=False)
class Evidence:
    """The inputs of the combined score: numbers that exist for every pair of nodes and grow with its plausibility.

    Args:
        features: of the nodes, on the CPU.
        edges: (2, E) every undirected edge once.
        probabilities: (N, C) of the audited model, calibrated; or ``None``.
        witness: (N, C) of models that never saw the edges; or ``None``.
    """

    features: Features
    edges: NDArray[np.int64]
    probabilities: Array | None = None
    witness: Array | None = None

    @cached_property
    def adjacency(self) -> sp.csr_array:
        """(N, N) zeros and ones, without self-loops."""
        row, col = np.concatenate([self.edges, self.edges[::-1]], axis=1)
        n = self.features.num_nodes
        return sp.csr_array((np.ones(row.size), (row, col)), shape=(n, n))

    @cached_property
    def degree(self) -> Array:
        return np.bincount(self.edges.reshape(-1), minlength=self.features.num_nodes)

    @cached_property
    def informative(self) -> bool:
        """Whether feature similarity can judge any pair of nodes."""
        return uninformative(self.features) is None

    @cached_property
    def unit(self) -> sp.csr_array | Array:
        """The features as rows of norm 1, or 0 where a node has none: sparse, or standardised and dense."""
        if kind_of(self.features) == "dense":
            x = standardised(self.features).numpy()
            size = np.linalg.norm(x, axis=1, keepdims=True)
            return x / np.where(size > 0, size, 1)
        matrix = sp.csr_array(self.features.to_scipy().astype(np.float64))
        size = np.sqrt(np.asarray(matrix.multiply(matrix).sum(axis=1)).reshape(-1))
        return sp.csr_array(sp.diags_array(1 / np.where(size > 0, size, 1)) @ matrix)

    def columns(self, pairs: NDArray[np.int64], *, joined: bool) -> dict[str, Array]:
        """Return the inputs of the pairs (2, P) by name, (P,) each.

        Args:
            pairs: of different nodes.
            joined: whether the pairs are edges; their own edge is then left out of the neighbourhoods.

        Time O(P · (degree · words + C)), memory O(P) plus a bounded block.
        """
        row, col = pairs
        found: dict[str, Array] = {}
        if self.informative:
            found["similarity"] = self.similarity(pairs)
            found["neighbor_similarity"] = self._neighbor_similarity(pairs, joined)
        if self.witness is not None:
            found["witness"] = np.log(dots(self.witness, self.witness, row, col) + LEAST)
            found["witness_neighbors"] = self._neighbor_agreement(self.witness, pairs, joined)
        if self.probabilities is not None:
            found["neighbors"] = self._neighbor_agreement(self.probabilities, pairs, joined)
        if not self.informative:
            found["spectral"] = self._spectral(pairs, joined)  # beside features it adds nothing
        return found | self._common(pairs)

    def similarity(self, pairs: NDArray[np.int64]) -> Array:
        """Return the feature similarity; unknown ones get the median of the known."""
        found: Array = pair_similarity(self.features, *torch.from_numpy(pairs)).numpy()
        unknown = np.isnan(found)
        if unknown.all():
            return np.zeros_like(found)
        return np.where(unknown, np.median(found[~unknown]), found)

    def _neighbor_agreement(self, p: Array, pairs: NDArray[np.int64], joined: bool) -> Array:
        """How well each node agrees with the other one and its other neighbours, by p; the lower of both directions.

        The agreement of the two nodes alone would flatter every edge: a model has made them more alike through it.
        """
        classes, around = p.shape[1], self.adjacency @ p
        least = np.full(pairs.shape[1], np.inf)
        for at in _even(pairs.shape[1], classes):
            for one, other in (pairs[:, at], pairs[::-1, at]):
                total = around[one] + p[one] + 0.5 / classes
                total -= p[other] if joined else 0
                seen = (total * p[other]).sum(axis=1) / total.sum(axis=1)
                least[at] = np.minimum(least[at], seen)
        return np.log(least + LEAST)

    @cached_property
    def _factors(self) -> tuple[NDArray[np.int64], list[tuple[Array, Array]]]:
        """The part of every edge, and for each part the low-rank factors of the adjacency without it."""
        from sklearn.utils.extmath import randomized_svd

        row, col = self.edges
        part = np.random.default_rng(0).integers(PARTS, size=row.size)
        factors = []
        for one in range(PARTS):
            keep = part != one
            ends = np.concatenate([row[keep], col[keep]]), np.concatenate([col[keep], row[keep]])
            n = self.features.num_nodes
            matrix = sp.csr_array((np.ones(ends[0].size), ends), shape=(n, n))
            u, values, vt = randomized_svd(matrix, min(RANK, n), n_iter=4, random_state=0)
            factors.append((u * values, np.ascontiguousarray(vt.T)))
        return part, factors

    def _spectral(self, pairs: NDArray[np.int64], joined: bool) -> Array:
        """The entry of the pair in a low-rank approximation of the adjacency, without the part that has its edge.

        Pairs without an edge belong to a part by chance, so that the numbers of both kinds are comparable.
        """
        part, factors = self._factors
        if joined:
            n = self.features.num_nodes
            keys = self.edges[0] * n + self.edges[1]  # sorted, as single edges are
            part = part[np.searchsorted(keys, np.minimum(*pairs) * n + np.maximum(*pairs))]
        else:
            part = (pairs.sum(axis=0) * 2_654_435_761 >> 7) % PARTS
        found = np.empty(pairs.shape[1])
        for one, (left, right) in enumerate(factors):
            at = part == one
            row, col = pairs[:, at]
            found[at] = (dots(left, right, row, col) + dots(left, right, col, row)) / 2
        return found

    def _common(self, pairs: NDArray[np.int64]) -> dict[str, Array]:
        """The number of common neighbours, and the same with each neighbour divided by its degree."""
        adjacency, count, share = self.adjacency, np.empty(pairs.shape[1]), np.empty(pairs.shape[1])
        weight = 1 / np.maximum(self.degree, 1)
        for at in _blocks(self.degree[pairs].sum(axis=0)):
            row, col = pairs[:, at]
            shared = sp.csr_array(adjacency[row].multiply(adjacency[col]))
            count[at] = shared.sum(axis=1)
            share[at] = shared @ weight
        return {"common": np.log1p(count), "allocation": np.log(share + 0.01)}

    def _neighbor_similarity(self, pairs: NDArray[np.int64], joined: bool) -> Array:
        """The mean cosine of each node with the other neighbours of the other one, summed over both directions."""
        total = np.zeros(pairs.shape[1])
        for row, col in (pairs, pairs[::-1]):
            order = np.argsort(row, kind="stable")  # the sums of a node's neighbours are computed once per block
            nodes, start = np.unique(row[order], return_index=True)
            bounds = np.append(start, row.size)
            for some in _blocks(self.degree[nodes] * self._width + np.diff(bounds) * self._width):
                at = order[bounds[some.start] : bounds[some.stop]]
                sums = self.adjacency[nodes[some]] @ self.unit
                local = np.repeat(np.arange(some.stop - some.start), np.diff(bounds[some.start : some.stop + 1]))
                near = dots(sums, self.unit, local, col[at])
                if joined:
                    near = near - dots(self.unit, self.unit, col[at], col[at])
                total[at] += near / np.maximum(self.degree[row[at]] - joined, 1)
        return total

    @cached_property
    def _width(self) -> int:
        """The number of stored features of a node, on average, at least 1."""
        stored = self.unit.size if isinstance(self.unit, np.ndarray) else self.unit.nnz
        return 1 + stored // max(1, self.features.num_nodes)


def dots(left: Any, right: Any, row: Array, col: Array) -> Array:
    """Return the dot products of rows ``row`` of one matrix and ``col`` of another, dense or sparse, in blocks."""
    found = np.empty(row.size)
    for at in _even(row.size, left.shape[1] if isinstance(left, np.ndarray) else 64):
        if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
            found[at] = np.einsum("pc,pc->p", left[row[at]], right[col[at]])
        else:
            found[at] = sp.csr_array(left)[row[at]].multiply(sp.csr_array(right)[col[at]]).sum(axis=1)
    return found


def adjacency_of(data: Data) -> Adjacency:
    """Return the adjacency of a checked graph with its weights."""
    weight = data.get("edge_weight")
    return Adjacency.of(data.edge_index, int(data.num_nodes or 0), None if weight is None else weight.detach())


def _even(size: int, width: int) -> Iterator[slice]:
    step = max(1, BLOCK // max(1, width))
    return (slice(at, min(at + step, size)) for at in range(0, size, step))


def _blocks(cost: Array) -> Iterator[slice]:
    """Slices of about :data:`BLOCK` total cost; at least one element each."""
    if not cost.size:
        return
    block = np.cumsum(cost.astype(np.int64)) // BLOCK
    starts = np.concatenate([[0], np.flatnonzero(np.diff(block)) + 1, [cost.size]])
    for begin, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        yield slice(begin, end)
