"""GCN."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.features import Features
from asgnn.models.base import NodeClassifier
from asgnn.models.layers import Dropout, Linear, Rng


class GCN(NodeClassifier):
    r"""Two-layer graph convolutional network (Kipf & Welling, ICLR 2017).

    .. math:: \hat A\, \mathrm{dropout}(\mathrm{ReLU}(\hat A Z W_1 + b_1)) W_2 + b_2,
              \qquad \hat A = D^{-1/2} A D^{-1/2}

    Dropout after the first layer only, as in DeepRobust, whose figures are the ones published for the attacked graphs.
    Equal to a pair of PyG's ``GCNConv`` (a test); written here so that many trials share one sparse product.

    Time O(nnz(Z) H + E (H + C)).
    """

    def __init__(self, in_channels: int, hidden_channels: int, out_channels: int, dropout: float = 0.5) -> None:
        super().__init__()
        self.signature = (in_channels, hidden_channels, out_channels)
        self.first = Linear(in_channels, hidden_channels)
        self.second = Linear(hidden_channels, out_channels)
        self.dropout = Dropout(dropout)

    def logits(self, features: Features, adj: Adjacency, rng: Rng) -> Tensor:
        weight = adj.sym_weight(self.first.weight.dtype)
        return self.convolve(features, lambda h: adj.matmul(weight, h), rng)

    def convolve(self, features: Features, spread: Callable[[Tensor], Tensor], rng: Rng) -> Tensor:
        """(T, N, out_channels): the two layers around any product ``spread`` with a matrix in the place of Â."""
        h = self.first.add_bias(spread(features.linear(self.first.weights, None, None)))
        h = self.dropout(h.relu(), rng) @ self.second.weights
        return self.second.add_bias(spread(h))
