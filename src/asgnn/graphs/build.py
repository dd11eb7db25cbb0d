"""A graph where none is given: nearest neighbours, or weights learned from smooth features."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch_geometric.data import Data

from asgnn.errors import GraphError
from asgnn.graphs.checks import check_finite, check_floats
from asgnn.graphs.convert import from_edges
from asgnn.graphs.features import Features
from asgnn.graphs.neighbors import nearest_neighbors, uninformative
from asgnn.graphs.similarity import Metric, measure_of, measured, view
from asgnn.settings import check_choice, check_count

How = Literal["knn", "smooth"]
# Candidates per wanted neighbour in learn_graph.
CANDIDATES = 3
# Weights are divided by this quantile and cut off at 1. On Cora's validation nodes that was better than the median or
# the largest weight, and as good as no weights at all.
QUARTILE = 0.25
# Steps between two computations of the duality gap.
EVERY = 25

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def build_graph(given: Any, how: How = "knn", neighbors: int = 10, metric: Metric = "auto") -> Data:
    """Returns a graph made from features alone, with ``edge_index`` and ``edge_weight`` in [0, 1].

    Args:
        given: Features (N, F), as a tensor, array, SciPy matrix or nested lists; or a ``Data`` with ``x``. Its other
            attributes are kept, but its edges are not used.
        how: "knn" joins each node to its nearest neighbours (:func:`knn_graph`), with weight 1. "smooth" learns the
            weights (:func:`learn_graph`).
        neighbors: The number of neighbours: of each node with "knn", on average with "smooth".
        metric: As in :func:`~asgnn.graphs.neighbors.nearest_neighbors`.

    Raises :class:`~asgnn.errors.GraphError` if similarity of the features means nothing, as with identity features.
    """
    check_choice("how", how, ("knn", "smooth"))
    data = copy.copy(given) if isinstance(given, Data) else from_edges(given, [])
    features = Features.of(check_finite(check_floats(getattr(data, "x", None))))
    reason = uninformative(features)
    if reason is not None:
        raise GraphError(f"No graph can be built from these features. {reason}")
    edge_index, weight = (knn_graph if how == "knn" else learn_graph)(features, neighbors, metric)
    data.edge_index = edge_index
    data.edge_weight = (torch.ones_like(weight) if how == "knn" else weight).to(data.x.dtype)
    return data


def knn_graph(x: Tensor | Features, k: int = 10, metric: Metric = "auto") -> tuple[Tensor, Tensor]:
    """Returns the ``edge_index`` of the k-nearest-neighbour graph and the similarity of each edge, in (0, 1].

    The similarity is that of the search; see :func:`~asgnn.graphs.neighbors.nearest_neighbors`, also for the cost.
    """
    features = Features.of(x)
    edges = nearest_neighbors(features, k, metric)
    similarity = measured(view(features, metric), edges[0], edges[1], measure_of(features, metric, "cosine"))
    return edges, similarity.clamp(0, 1)


def learn_graph(x: Tensor | Features, neighbors: int = 10, metric: Metric = "auto") -> tuple[Tensor, Tensor]:
    r"""Returns ``edge_index`` and weights in (0, 1] of the graph on which the features are smooth (Kalofolias, 2016).

    .. math:: \min_{W \geq 0} \; \theta \|W \circ Z\|_1 - \mathbf 1^\top \log(W \mathbf 1) + \tfrac12 \|W\|_F^2

    with W symmetric, without diagonal, and :math:`Z_{ij} = 1 - \cos_{ij}`, half the squared distance of the rows with
    norm 1. Alike nodes get large weights; the logarithm gives every node an edge; the last term spreads the weights.
    W may be non-zero only on candidates, the nearest neighbours of each node, three times as many as wanted. θ is
    chosen for the wanted number (:func:`choose_theta`). Models add self-loops of weight 1, beside which small weights
    would be lost, so the weights are divided by their lower quartile and cut at 1.

    Every node that has a candidate has an edge. Time: that of the neighbour search, and O(N · neighbors) for each of
    some hundred steps of :func:`log_degree_weights`.

    Args:
        x: The features.
        neighbors: The wanted number of neighbours of a node, on average.
        metric: As in :func:`~asgnn.graphs.neighbors.nearest_neighbors`.
    """
    check_count("neighbors", neighbors)
    features = Features.of(x)
    edges, similarity = knn_graph(features, CANDIDATES * neighbors, metric)
    once = edges[0] < edges[1]
    pairs, distance = edges[:, once].cpu().numpy(), 1 - similarity[once].cpu().numpy()
    theta = choose_theta(distance, pairs, features.num_nodes, neighbors)
    found = log_degree_weights(theta * distance, pairs, features.num_nodes)
    if not found.converged:
        warnings.warn(
            f"The learned graph is not exact: the duality gap is {found.gap:.1e} after {found.steps} steps.",
            stacklevel=2,
        )
    used = found.weight > 0
    weight = found.weight[used]
    weight = np.minimum(1, weight / np.quantile(weight, QUARTILE)) if weight.size else weight
    (row, col), value = pairs[:, used], np.concatenate([weight, weight])
    there, back = np.concatenate([row, col]), np.concatenate([col, row])
    order = np.lexsort((back, there))
    edge_index = torch.from_numpy(np.stack([there[order], back[order]]))
    return edge_index.to(edges.device), torch.from_numpy(value[order]).to(edges.device)


def choose_theta(distance: Floats, pairs: Ints, num_nodes: int, neighbors: int) -> float:
    r"""Returns the θ of :func:`learn_graph` for a wanted number of neighbours (Kalofolias & Perraudin, ICLR 2019).

    Without symmetry, a node whose candidates have the sorted distances z₁ ≤ z₂ ≤ … has exactly k neighbours for

    .. math:: \theta \in \Bigl[ \frac{1}{\sqrt{k z_{k+1}^2 - b_k z_{k+1}}},
              \frac{1}{\sqrt{k z_k^2 - b_k z_k}} \Bigr), \qquad b_k = \sum_{i \leq k} z_i.

    The result is the median over the nodes of the geometric mean of the two ends. The paper takes the mean of each end
    over the nodes, which a few nodes with nearly equal distances make as large as they like. If no node has more than k
    candidates, k is lowered. Time O(E log E).

    Args:
        distance: (E,) of the candidates.
        pairs: (2, E), each pair once.
        num_nodes: N.
        neighbors: k.
    """
    node = np.concatenate([pairs[0], pairs[1]])
    z = np.concatenate([distance, distance])
    order = np.lexsort((z, node))
    z = z[order]
    count = np.bincount(node, minlength=num_nodes)
    start = np.cumsum(count) - count
    before = np.concatenate([[0.0], np.cumsum(z)])
    k = min(neighbors, int(count.max(initial=0)) - 1)
    if k < 1:
        return 1.0  # one candidate each, whose weight does not matter
    first = start[count > k]
    total = before[first + k] - before[first]
    low, high = (k * end**2 - total * end for end in (z[first + k], z[first + k - 1]))
    # Rounding errors of differences that are 0: k or k + 1 equal distances, and an infinite end.
    low, high = (np.where(part > 1e-9, part, 0.0) for part in (low, high))
    finite = low > 0
    if not finite.any():
        return 1.0
    high = np.where(high > 0, high, low)
    return float(np.median((low[finite] * high[finite]) ** -0.25))


@dataclass(frozen=True)
class LogDegreeWeights:
    """The solution of :func:`log_degree_weights`.

    Attributes:
        weight: (E,) the weights.
        gap: the duality gap, an upper bound of how far the objective is above its minimum. The sum of the squared
            errors of the weights is at most gap / β.
        steps: the number of steps.
        converged: whether the gap is as small as was wanted.
    """

    weight: Floats
    gap: float
    steps: int
    converged: bool


def log_degree_weights(
    distance: Floats,
    pairs: Ints,
    num_nodes: int,
    alpha: float = 1.0,
    beta: float = 1.0,
    *,
    tolerance: float = 1e-6,
    max_steps: int = 20_000,
) -> LogDegreeWeights:
    r"""Solves the log-degree model of Kalofolias (AISTATS 2016) on given pairs of nodes.

    With one weight per pair and S the incidence matrix, so that Sw are the degrees:

    .. math:: \min_{w \geq 0} \; 2 z^\top w - \alpha \mathbf 1^\top \log(S w) + \beta \|w\|^2

    by forward-backward-forward steps on w and the dual variables d of the degrees. Their negatives are positive, and
    :math:`w(d) = \max(0, -(2z + S^\top d) / 2\beta)`, which is exactly sparse, is the solution if d is. The
    difference between the objective of w(d) and the dual objective of d bounds the error; it ends the loop. Nodes
    without pairs are left out of the logarithm. Time O(E) per step, memory O(E).

    Args:
        distance: (E,) z, at least 0.
        pairs: (2, E), each pair once.
        num_nodes: N.
        alpha: the weight of the logarithm.
        beta: the weight of the squares.
        tolerance: the duality gap to reach, per node, as a multiple of alpha.
        max_steps: the largest number of steps.
    """
    z = np.asarray(distance, dtype=np.float64)
    count = z.size
    if count == 0:
        return LogDegreeWeights(np.zeros(0), 0.0, 0, True)
    used, ends = np.unique(np.asarray(pairs), return_inverse=True)
    row, col = ends.reshape(2, count)
    each = np.tile(np.arange(count), 2)
    incidence = sp.csr_array((np.ones(2 * count), (np.concatenate([row, col]), each)), shape=(used.size, count))
    # ‖S‖² is at most twice the largest number of pairs of a node.
    step = 0.99 / (2 * beta + np.sqrt(2 * incidence.sum(axis=1).max()))

    def slope(w: Floats, d: Floats) -> Floats:
        """2βw + Sᵀd"""
        return 2 * beta * w + d[row] + d[col]

    w = np.zeros(count)
    # Degrees of about 1, which balance the second and third term for few neighbours.
    d = np.full(used.size, -alpha)
    best, gap = w, np.inf
    for steps in range(1, max_steps + 1):
        # Kalofolias (2016), Algorithm 1
        y, y_dual = w - step * slope(w, d), d + step * (incidence @ w)
        p = np.maximum(0, y - 2 * step * z)
        p_dual = (y_dual - np.sqrt(y_dual**2 + 4 * alpha * step)) / 2
        w = w - y + p - step * slope(p, p_dual)
        d = d - y_dual + p_dual + step * (incidence @ p)
        if steps % EVERY:
            continue
        # p_dual, not d: it is negative, so that it has a dual objective.
        tension = np.maximum(0, -(2 * z + p_dual[row] + p_dual[col]))
        candidate = tension / (2 * beta)
        degree = incidence @ candidate
        if degree.min() <= 0:
            continue
        primal = 2 * z @ candidate - alpha * np.log(degree).sum() + beta * candidate @ candidate
        dual = alpha * (1 + np.log(-p_dual / alpha)).sum() - tension @ tension / (4 * beta)
        if primal - dual < gap:
            best, gap = candidate, float(primal - dual)
        if gap <= tolerance * alpha * used.size:
            return LogDegreeWeights(best, gap, steps, True)
    return LogDegreeWeights(best, gap, max_steps, False)
