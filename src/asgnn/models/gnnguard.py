"""GNNGuard."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.edge_ops import sddmm, spmm
from asgnn.graphs.features import Features
from asgnn.graphs.per_graph import once_per_graph
from asgnn.graphs.relaxed import present, step
from asgnn.graphs.similarity import edge_cosine
from asgnn.models.base import NodeClassifier
from asgnn.models.layers import Dropout, Linear, Rng
from asgnn.settings import PerTrial, check_number


class GNNGuard(NodeClassifier):
    r"""A two-layer GCN that weights edges by the similarity of their ends (Zhang & Zitnik, NeurIPS 2020).

    Before each layer, with :math:`c_{ij}` the cosine similarity of its input features, set to 0 below the threshold,

    .. math:: \hat\omega_{ij} = \frac{c_{ij}}{\sum_{k \ne i} c_{ik}}, \quad \hat\omega_{ii} = \frac{1}{n_i + 1},
              \qquad \omega \leftarrow \beta \omega + (1 - \beta) \hat\omega

    where :math:`n_i` counts the remaining edges and the learned β is the memory between layers. An edge dropped by one
    layer is also dropped by the next. As in the authors' code, but not in the paper, each layer is a GCN layer with the
    symmetrically normalised weights :math:`e^{\omega}` on the remaining edges, and no gradient passes through the
    cosines in training. In evaluation mode, where only attacks and explanations need gradients, the gradient is exact
    for a fixed set of remaining edges. Edge weights multiply the cosines (not in the paper).

    Time O(nnz(Z) H + E (H + C)) and, once per graph, O(E · words per node).
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        *,
        threshold: float = 0.1,
        dropout: PerTrial = 0.5,
    ) -> None:
        super().__init__()
        check_number("threshold", threshold, 0, 1)
        self.threshold = threshold
        self.first = Linear(in_channels, hidden_channels)
        self.second = Linear(hidden_channels, out_channels)
        self.dropout = Dropout(dropout)
        self.raw_memory = nn.Parameter(torch.zeros(()))  # β is its sigmoid and starts at ½

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        super().reset_parameters(generator)
        with torch.no_grad():
            self.raw_memory.zero_()

    def scalars(self) -> Iterable[Tensor]:
        return (self.raw_memory,)

    def logits(self, features: Features, adj: Adjacency, rng: Rng) -> Tensor:
        cosine = cosines(features, adj).to(self.first.weight.dtype).unsqueeze(1)
        cosine = cosine.detach() if self.training else cosine
        near = self.near(cosine)
        omega, kept = self.weigh(cosine, near, adj)
        h = features.linear(self.first.weights, None, None)
        h = self.first.add_bias(self.average(h, omega.expand(-1, h.size(0)), kept, adj)).relu()
        unit = F.normalize((h.detach() if self.training else h).permute(1, 2, 0), dim=1)
        cosine = sddmm(unit, unit, adj)
        second, kept = self.weigh(cosine, near * self.near(cosine), adj)
        memory = self.raw_memory.view(-1).sigmoid()
        mixed = memory * omega + (1 - memory) * second
        h = self.dropout(h, rng) @ self.second.weights
        return self.second.add_bias(self.average(h, mixed, kept, adj))

    def near(self, cosine: Tensor) -> Tensor:
        """1 where the cosine (E, T) reaches the threshold and is above 0, else 0."""
        return step(cosine, self.threshold) * (cosine > 0)

    def weigh(self, cosine: Tensor, near: Tensor, adj: Adjacency) -> tuple[Tensor, Tensor]:
        """ω̂ (E, T) from the cosines (E, T): row sums of 1 without the self-loops, which are 1/(n + 1).

        Also returns which entries are kept: the self-loops, and the edges of positive weight that are ``near``.
        """
        loops, edge = adj.loops.unsqueeze(1), adj.weight.to(cosine.dtype).unsqueeze(1)
        kept = torch.where(loops, 0.0, near * present(adj.presence.to(cosine.dtype)).unsqueeze(1))
        alike = torch.where(loops, 0.0, near * cosine * edge)
        total = adj.row_sum(alike)
        share = alike / adj.at_row(torch.where(total > 0, total, 1.0))
        self_loop = 1 / (adj.row_sum(kept) + 1)
        return torch.where(loops, adj.at_row(self_loop), share), torch.where(loops, 1.0, kept)

    def average(self, h: Tensor, omega: Tensor, kept: Tensor, adj: Adjacency) -> Tensor:
        """D^(−1/2) W D^(−1/2) h for h (T, N, C), with W = exp(ω) (E, T) on the kept entries."""
        weight = adj.normalized("sym", h.dtype, omega.exp() * kept)
        return spmm(weight, h.permute(1, 2, 0).contiguous(), adj).permute(2, 0, 1)


cosines = once_per_graph(edge_cosine)
