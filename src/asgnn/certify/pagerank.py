r"""The exact certificate of personalised-PageRank models by policy iteration (Bojchevski & Günnemann, NeurIPS 2019).

A model scores node v by :math:`\sum_u \pi_{vu} h_u` with fixed logits h and the matrix
:math:`\pi = (1-\alpha)(I - \alpha P)^{-1}`, where P is the random walk of the graph. The frozen ASGNN at convergence is
such a model with α = λ / (1 + λ). An attacker flips fragile entries (i, j) of the adjacency matrix, at most b_i in row
i. To lower the margin of class a over class b at node v is to raise the discounted reward :math:`h_b - h_a` of a walk
from v, and to choose the flips of row i is the action of a Markov decision process in state i. Policy iteration finds
the best actions, for all v together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from asgnn.errors import ConfigError, GraphError
from asgnn.graphs.checks import check_edges, check_floats, check_pairs
from asgnn.settings import MAX_COUNT, check_count, check_number

Floats = NDArray[np.float64]
# Relative to the largest reward; what is left of the error is added to the bound, so that it stays a bound.
TOLERANCE = 1e-11


@dataclass(frozen=True, eq=False)
class PageRankCertificate:
    """The predictions of a personalised-PageRank model and their margins; tensors on the CPU, in double precision.

    Attributes:
        prediction: (N,) the predicted class.
        margin: (N,) the margin over the second class on the given graph.
        worst_margin: (N,) the smallest margin on any graph that the budgets allow. Exact for local budgets and edges
            that are flipped in each direction on their own, a lower bound for edges that are flipped in both directions
            and with a global budget.
    """

    prediction: Tensor
    margin: Tensor
    worst_margin: Tensor

    @property
    def certified(self) -> Tensor:
        """(N,) bool: whether no admissible perturbation changes the prediction."""
        return self.worst_margin > 0


def damping_of(lam: float) -> float:
    """Return α = λ / (1 + λ), with which the frozen ASGNN at convergence, (I + λ L_rw)⁻¹ X, is a PageRank model."""
    check_number("lam", lam, 0, np.inf, "[)")
    return lam / (1 + lam)


def certify_pagerank(
    logits: Tensor,
    edge_index: Tensor,
    fragile: Tensor,
    local_budget: Tensor | int,
    *,
    global_budget: int | None = None,
    damping: float = 0.85,
    self_loops: bool = True,
) -> PageRankCertificate:
    """Return the smallest margins of a personalised-PageRank model on all graphs within the budgets.

    Args:
        logits: (N, C) the logits before propagation. They are fixed: the certificate is against flips after training.
        edge_index: (2, E) the undirected graph.
        fragile: (2, F) the entries (i, j) that an attacker may flip: those of edges may be removed, others added. Both
            directions of an edge are two entries.
        local_budget: the largest number of flips in each row, one number or (N,) int64.
        global_budget: the largest number of flipped entries in all; an undirected flip is two. Adds a bound that needs
            N policy iterations: for small graphs.
        damping: α, the probability to go on; see :func:`damping_of`.
        self_loops: whether every node has a fixed self-loop, as in the models of this library.

    Time O(C² · iterations · (E + F log F)), memory O(E + F + N C); with a global budget also N policy iterations and
    O(N²) memory.
    """
    check_floats(logits, "(N, C)")
    num_nodes, classes = logits.shape
    if classes < 2:
        raise ConfigError("A certificate needs logits of at least two classes.")
    check_edges(edge_index, num_nodes)
    check_number("damping", damping, 0, 1, "()")
    if global_budget is not None:
        check_count("global_budget", global_budget, 0)
    h = logits.detach().cpu().double().numpy()
    walk = _Walk(num_nodes, edge_index, fragile, _budgets(local_budget, num_nodes), damping, self_loops)
    nothing = np.zeros(walk.row.size, dtype=bool)
    scores = (1 - damping) * np.stack([walk.values(column, nothing) for column in h.T], axis=1)
    prediction = scores.argmax(1)
    order = np.sort(scores, axis=1)
    worst = np.full(num_nodes, np.inf)
    reach = None if global_budget is None else walk.reach(global_budget)
    for a in np.unique(prediction):
        nodes = np.flatnonzero(prediction == a)
        for b in range(classes):
            if b == a:
                continue
            reward = h[:, b] - h[:, a]
            most = walk.most(reward, walk.budget)[nodes]
            if reach is not None and global_budget is not None:
                most = np.minimum(most, walk.most_by(reward, global_budget, reach)[nodes])
            worst[nodes] = np.minimum(worst[nodes], -(1 - damping) * most)
    margin = order[:, -1] - order[:, -2]
    return PageRankCertificate(*(torch.from_numpy(part) for part in (prediction, margin, worst)))


def _budgets(given: Tensor | int, num_nodes: int) -> NDArray[np.int64]:
    if not isinstance(given, Tensor):
        check_count("local_budget", given, 0)
        return np.full(num_nodes, given)
    if given.shape != (num_nodes,) or given.is_floating_point() or bool(((given < 0) | (given > MAX_COUNT)).any()):
        raise ConfigError(f"local_budget must be one whole number of at least 0, or {num_nodes} of them, one per node.")
    return given.cpu().long().numpy()


class _Walk:
    """The random walk on a graph whose fragile entries are sorted by row."""

    def __init__(
        self,
        num_nodes: int,
        edge_index: Tensor,
        fragile: Tensor,
        budget: NDArray[np.int64],
        damping: float,
        self_loops: bool,
    ) -> None:
        pairs = check_pairs(fragile, num_nodes, "fragile").cpu().numpy()
        keys = np.sort(pairs[0] * num_nodes + pairs[1])
        if (pairs[0] == pairs[1]).any() or (keys[1:] == keys[:-1]).any():
            raise GraphError("fragile must have no self-loop and no entry twice.")
        self.row, self.col = keys // num_nodes, keys % num_nodes
        edges = edge_index.cpu().numpy()
        known = np.sort(edges[0] * num_nodes + edges[1])
        present = np.isin(keys, known)
        self.sign = np.where(present, -1.0, 1.0)  # what a flip adds to the entry
        a = sp.csr_array((np.ones(edges.shape[1]), (edges[0], edges[1])), shape=(num_nodes, num_nodes))
        self.adjacency = sp.csr_array(a + sp.eye_array(num_nodes)) if self_loops else a
        self.degree = self.adjacency.sum(1)
        self.budget, self.alpha, self.num_nodes = budget, damping, num_nodes
        lost = np.minimum(budget, np.bincount(self.row[present], minlength=num_nodes))
        if (self.degree - lost < 1).any():
            node = int(np.flatnonzero(self.degree - lost < 1)[0])
            raise GraphError(
                f"Node {node} may lose all its edges, so that its random walk is undefined; use self_loops=True, a "
                "smaller local_budget, or fewer fragile edges."
            )

    def transition(self, flipped: NDArray[np.bool_]) -> sp.csr_array:
        """P of the graph with the flips."""
        shape = (self.num_nodes, self.num_nodes)
        change = sp.csr_array((self.sign[flipped], (self.row[flipped], self.col[flipped])), shape=shape)
        matrix = sp.csr_array(self.adjacency + change)
        return sp.csr_array(sp.diags_array(1 / matrix.sum(1)) @ matrix)

    def values(self, reward: Floats, flipped: NDArray[np.bool_], start: Floats | None = None) -> Floats:
        """x = (I − αP)⁻¹ r by fixed-point iteration; the error is below TOLERANCE times the largest reward."""
        p = self.transition(flipped)
        x = reward if start is None else start
        least = TOLERANCE * max(float(np.abs(reward).max()), 1e-300) * (1 - self.alpha)
        while True:
            new = reward + self.alpha * (p @ x)
            if float(np.abs(new - x).max()) <= least:
                return new
            x = new

    def best_flips(self, x: Floats, mean: Floats, budget: NDArray[np.int64]) -> tuple[NDArray[np.bool_], Floats]:
        """The flips of each row that maximise Σ_j (x_j − mean_i) over its neighbours j, and that maximum."""
        score = self.sign * (x[self.col] - mean[self.row])
        order = np.lexsort((-score, self.row))
        first = np.searchsorted(self.row, self.row)  # the sorted entries have the same rows
        rank = np.empty(order.size, dtype=np.int64)
        rank[order] = np.arange(order.size) - first
        chosen = (rank < budget[self.row]) & (score > 0)
        base = self.adjacency @ x - self.degree * mean
        gain = np.bincount(self.row[chosen], score[chosen], minlength=self.num_nodes)
        return chosen, base + gain

    def most(self, reward: Floats, budget: NDArray[np.int64]) -> Floats:
        """(N,) the largest x_v over all flips within the budgets of the rows; errors of the iterations are added."""
        flipped = np.zeros(self.row.size, dtype=bool)
        x = self.values(reward, flipped)
        size = max(float(np.abs(reward).max()), 1e-300)
        while True:
            mean = (x - reward) / self.alpha
            better, left = self.best_flips(x, mean, budget)
            # the mean of row i can rise by at most left_i, because a row has at least one neighbour
            error = self.alpha * max(float(left.max()), 0.0) / (1 - self.alpha)
            if error <= 10 * TOLERANCE * size / (1 - self.alpha) or bool((better == flipped).all()):
                return x + error + TOLERANCE * size
            flipped = better
            x = self.values(reward, flipped, x)

    def reach(self, flips: int) -> Floats:
        """(N, N) the largest entry (v, i) of (I − αP)⁻¹ over all flips within the local budgets, at most ``flips``."""
        budget = np.minimum(self.budget, flips)
        units = (np.eye(1, self.num_nodes, i)[0] for i in range(self.num_nodes))
        return np.stack([self.most(unit, budget) for unit in units], axis=1)

    def most_by(self, reward: Floats, flips: int, reach: Floats) -> Floats:
        """(N,) an upper bound of x_v over all graphs with at most ``flips`` flips in all.

        With x and P of the given graph, x′ − x = (I − αP′)⁻¹ α (P′ − P) x. Row i of α (P′ − P) x is at most what the
        best k_i flips of row i gain, and the entries of the inverse are at most ``reach``. What is left is to
        distribute the flips over the rows, with a concave bound of the gains: the largest increments.
        """
        nothing = np.zeros(self.row.size, dtype=bool)
        x = self.values(reward, nothing)
        gains = np.stack([np.zeros(self.num_nodes), *self._gains(x, flips)])  # (flips + 1, N)
        steps = _concave(gains)  # (flips, N), each column descending
        error = TOLERANCE * max(float(np.abs(reward).max()), 1e-300) / (1 - self.alpha)
        if flips == 0:
            return x + error
        weighted = (steps[:, None, :] * reach[None]).transpose(1, 0, 2).reshape(self.num_nodes, -1)
        keep = min(flips, weighted.shape[1])
        largest = -np.partition(-weighted, keep - 1, axis=1)[:, :keep]
        return x + largest.sum(1) + error

    def _gains(self, x: Floats, flips: int) -> Iterator[Floats]:
        """For k = 1 … ``flips``, (N,) α times the largest rise of the mean of x over the neighbours by k flips."""
        before = (self.adjacency @ x) / self.degree
        for k in range(1, flips + 1):
            mean = before
            while True:  # Dinkelbach's iteration for the largest ratio
                chosen, _ = self.best_flips(x, mean, np.minimum(self.budget, k))
                rows, sign = self.row[chosen], self.sign[chosen]
                total = self.adjacency @ x + np.bincount(rows, sign * x[self.col[chosen]], minlength=self.num_nodes)
                count = self.degree + np.bincount(rows, sign, minlength=self.num_nodes)
                new = np.maximum(total / count, mean)
                if float((new - mean).max()) <= TOLERANCE * max(float(np.abs(x).max()), 1e-300):
                    break
                mean = new
            yield self.alpha * (new - before)


def _concave(gains: Floats) -> Floats:
    """The increments of the least concave majorant of each column, (k + 1, N) → (k, N)."""
    steps = np.zeros((len(gains) - 1, gains.shape[1]))
    at = np.zeros(gains.shape[1], dtype=np.int64)  # where the majorant has been drawn to
    columns = np.arange(gains.shape[1])
    for k in range(len(steps)):
        due = at == k
        if due.any():
            ahead = (gains[k + 1 :, due] - gains[k, due]) / np.arange(1, len(gains) - k)[:, None]
            best = ahead.argmax(0)
            for column, length, slope in zip(columns[due], best + 1, ahead.max(0), strict=True):
                steps[k : k + length, column] = max(slope, 0.0)
                at[column] = k + length
    return steps
