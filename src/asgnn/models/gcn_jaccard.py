"""GCN-Jaccard."""

from __future__ import annotations

from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.features import Features
from asgnn.graphs.per_graph import once_per_graph
from asgnn.graphs.similarity import edge_similarity, measure_of, relaxed_gate
from asgnn.models.gcn import GCN
from asgnn.settings import PerTrial, check_number


class GCNJaccard(GCN):
    r"""GCN on the graph without edges between dissimilar nodes (Wu et al., "Adversarial examples", IJCAI 2019).

    .. math:: A'_{ij} = A_{ij}\, [\mathrm{sim}(z_i, z_j) \ge \tau]

    with the Jaccard index of binary features and the cosine similarity of other features
    (:func:`~asgnn.graphs.similarity.edge_similarity`). τ = 0.01 is DeepRobust's default; with bag-of-words features it
    drops the edges whose ends share no word. The choice of edges is piecewise constant, so no gradient passes
    through it unless it is relaxed.

    Time O(E words) once per graph, then as :class:`GCN`.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        *,
        dropout: PerTrial = 0.5,
        threshold: float = 0.01,
    ) -> None:
        super().__init__(in_channels, hidden_channels, out_channels, dropout=dropout)
        check_number("threshold", threshold, -1, 1)
        self.threshold = threshold

    def informed(self, features: Features, adj: Adjacency) -> Adjacency:
        return without_dissimilar(features, super().informed(features, adj), self.threshold)


@once_per_graph
def without_dissimilar(features: Features, adj: Adjacency, threshold: float) -> Adjacency:
    gate = relaxed_gate(features, adj, measure_of(features, "auto", "jaccard"), threshold)
    if gate is not None:
        return Adjacency.of(adj.edge_index[:, ~adj.loops], adj.num_nodes, (gate * adj.weight)[~adj.loops])
    keep = (edge_similarity(features, adj) >= threshold) & ~adj.loops
    return Adjacency.of(adj.edge_index[:, keep], adj.num_nodes, adj.weight[keep])
