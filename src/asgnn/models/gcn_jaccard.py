"""GCN-Jaccard."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from asgnn.errors import ConfigError
from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.features import Features
from asgnn.graphs.similarity import edge_similarity
from asgnn.models.gcn import GCN
from asgnn.models.per_graph import once_per_graph
from asgnn.settings import PerTrial


class GCNJaccard(GCN):
    r"""GCN on the graph without the edges between unlike nodes (Wu et al., "Adversarial examples", IJCAI 2019).

    .. math:: A'_{ij} = A_{ij}\, [\mathrm{sim}(z_i, z_j) \ge \tau]

    with the Jaccard index of features of zeros and ones and the cosine of others
    (:func:`~asgnn.graphs.similarity.edge_similarity`). τ = 0.01 is DeepRobust's, and drops on a bag of words the edges
    whose ends share no word. Which edges are left is piecewise constant, so it has no part in any gradient.

    Time O(E words) once a graph, then as :class:`GCN`.
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
        if not -1 <= threshold <= 1:
            raise ConfigError(f"The threshold on the likeness of two nodes must lie in [-1, 1]; it is {threshold}.")
        self.threshold = threshold

    def operator(self, features: Features, adj: Adjacency) -> Callable[[Tensor], Tensor]:
        return super().operator(features, without_unlike(features, adj, self.threshold))


@once_per_graph
def without_unlike(features: Features, adj: Adjacency, threshold: float) -> Adjacency:
    keep = (edge_similarity(features, adj) >= threshold) & ~adj.loops
    return Adjacency.of(adj.edge_index[:, keep], adj.num_nodes, adj.weight[keep])
