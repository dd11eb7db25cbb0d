"""A structure informed by the features: given edges between unlike nodes are dropped, similar nodes are joined."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch_geometric.data import Data

from asgnn.errors import FeaturesWarning
from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.features import Features
from asgnn.graphs.keys import from_keys, to_keys
from asgnn.graphs.neighbors import nearest_neighbors, uninformative
from asgnn.graphs.per_graph import once_per_graph
from asgnn.graphs.prepare import prepare
from asgnn.graphs.similarity import METRICS, VIEWS, Metric, measure_of, pair_similarity, relaxed_gate
from asgnn.settings import check_choice, check_count, check_number


@dataclass(frozen=True)
class FeaturePrior:
    r"""The structure that the given edges and the raw features suggest together.

    .. math:: \bar A_{ij} = 1 - (1 - \alpha A_{ij}\, [\mathrm{sim}(z_i, z_j) \ge \tau])\, (1 - \beta K_{ij})

    with :math:`K_{ij} = 1` if i or j is among the k nearest neighbours of the other, else 0.

    Every model takes it as ``prior=``. It is also a PyG transform: ``FeaturePrior(...)(data)`` returns a copy of the
    graph with the new edges and weights, for any other model. The default changes nothing.

    If the features cannot judge pairs of nodes (no features, the same for all, or none shared), the prior stands aside:
    it issues a :class:`~asgnn.errors.FeaturesWarning`, keeps the given edges as ``edges`` says and adds none. An edge
    of a node without features (a row of zeros) is kept.

    Args:
        threshold: τ; given edges whose ends are less similar are dropped. 0 keeps all edges.
        neighbors: k; every node is joined to its k nearest neighbours. 0 adds no edge.
        weight: β, the weight of the added edges, in [0, 1].
        metric: the similarity, see :func:`~asgnn.graphs.similarity.pair_similarity`. "auto" is the Jaccard index of
            binary features for τ and their cosine for the neighbours, and for other features their cosine.
        edges: α, the factor on the given edges. 0 throws them away: the edge-free model, which no change of the edges
            can affect.

    Time O(E · non-zeros per row) for τ, O(N² F) for the neighbours, once per graph; never N × N memory.
    """

    threshold: float = 0.0
    neighbors: int = 0
    weight: float = 0.3
    metric: Metric = "auto"
    edges: float = 1.0

    def __post_init__(self) -> None:
        check_number("threshold", self.threshold, 0, 1)
        check_count("neighbors", self.neighbors, 0)
        check_number("weight", self.weight, 0, 1)
        check_choice("metric", self.metric, METRICS)
        check_number("edges", self.edges, 0, 1)

    @property
    def active(self) -> bool:
        """Whether it changes anything."""
        return self.threshold > 0 or self.edges < 1 or (self.neighbors > 0 and self.weight > 0)

    def __call__(self, data: Data) -> Data:
        """Return a shallow copy of ``data`` with the prior's ``edge_index`` and ``edge_weight``."""
        features, adj = prepare(data)
        informed = self.structure(features, adj)
        out, no_loop = data.__copy__(), ~informed.loops
        out.edge_index, out.edge_weight = informed.edge_index[:, no_loop], informed.weight[no_loop]
        return out

    def structure(self, features: Features, adj: Adjacency) -> Adjacency:
        """Return the structure for prepared features and edges, differentiable in the weights of the edges."""
        return _structure(features, adj, self) if self.active else adj


# features → (k, metric) → their neighbours, for attacks, which call a model on many graphs with the same features
_NEIGHBORS: WeakKeyDictionary[Features, dict[tuple[int, Metric], Tensor]] = WeakKeyDictionary()


def _neighbors(features: Features, k: int, metric: Metric) -> Tensor:
    if features.requires_grad:
        return nearest_neighbors(features, k, metric)
    known = _NEIGHBORS.setdefault(features, {})
    if (k, metric) not in known:
        if features.repeats is None:
            known[k, metric] = nearest_neighbors(features, k, metric)
        else:
            one, count = features.repeats
            pairs = _neighbors(one, k, metric)
            known[k, metric] = torch.cat([pairs + copy * one.num_nodes for copy in range(count)], dim=1)
    return known[k, metric]


@once_per_graph
def _structure(features: Features, adj: Adjacency, prior: FeaturePrior) -> Adjacency:
    keep = ~adj.loops
    if prior.edges == 0:
        keep = torch.zeros_like(keep)
    given_weight = adj.weight
    reason = uninformative(features) if prior.threshold > 0 or prior.neighbors > 0 else None
    if reason is not None:
        warnings.warn(f"The feature prior stands aside. {reason}", FeaturesWarning, stacklevel=2)
    elif prior.threshold > 0 and prior.edges > 0:
        gate = None
        if prior.metric not in VIEWS:
            gate = relaxed_gate(features, adj, measure_of(features, prior.metric, "jaccard"), prior.threshold)
        # an unknown similarity is NaN, which compares false, so that the edge is kept
        row, col = adj.edge_index
        near = ~(pair_similarity(features, row, col, prior.metric) < prior.threshold)
        if gate is None:
            keep &= near
        else:  # the values of ``near``, the derivative of the gate
            given_weight = given_weight * (near + gate - gate.detach())
    given = to_keys(adj.edge_index, adj.num_nodes)[keep]
    added = given.new_empty(0)
    if reason is None and prior.neighbors > 0 and prior.weight > 0:
        pairs = _neighbors(features, prior.neighbors, prior.metric).to(adj.row.device)
        added = to_keys(pairs, adj.num_nodes)
    keys = torch.cat([given, added]).unique()

    def spread(at: Tensor, values: Tensor) -> Tensor:
        return values.new_zeros(keys.numel(), *columns).index_copy(0, torch.searchsorted(keys, at), values)

    columns = adj.weight.shape[1:]  # those of the trials, if each has weights of its own
    ours = adj.weight.new_full((added.numel(), *columns), prior.weight)
    first, second = spread(given, prior.edges * given_weight[keep]), spread(added, ours)
    weight = first + second * (1 - first)  # unlike a maximum, it hides no entry from the gradient
    # an added edge is present whatever the given edges are
    trust = torch.where(second > 0, weight.detach(), prior.edges) if prior.edges > 0 else weight.detach()
    edges = from_keys(keys, adj.num_nodes)
    made = Adjacency.of(edges, adj.num_nodes, weight)
    return replace(made, symmetric=adj.symmetric, trust=Adjacency.of(edges, adj.num_nodes, trust).weight)
