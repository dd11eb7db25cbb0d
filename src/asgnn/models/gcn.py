"""GCN."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.features import Features
from asgnn.models.base import NodeClassifier
from asgnn.models.layers import Dropout, Linear, Rng, check_depth, product
from asgnn.settings import PerTrial


class GCN(NodeClassifier):
    r"""Graph convolutional network (Kipf & Welling, ICLR 2017), with two layers by default.

    .. math:: \hat A\, \mathrm{dropout}(\mathrm{ReLU}(\hat A Z W_1 + b_1)) W_2 + b_2,
              \qquad \hat A = D^{-1/2} A D^{-1/2}

    Dropout acts between the layers only, as in DeepRobust, which the published results on attacked graphs use.
    Equal to a stack of PyG's ``GCNConv`` (tests); implemented here so that many trials share one sparse product.

    Time O(nnz(Z) H + E (K H + C)).
    """

    repeatable = True
    own_weights = True

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        *,
        dropout: PerTrial = 0.5,
        num_layers: int = 2,
    ) -> None:
        super().__init__()
        check_depth(num_layers, least=2)
        self.first = Linear(in_channels, hidden_channels)
        self.between = nn.ModuleList(Linear(hidden_channels, hidden_channels) for _ in range(num_layers - 2))
        self.last = Linear(hidden_channels, out_channels)
        self.dropout = Dropout(dropout)

    def operator(self, features: Features, adj: Adjacency) -> Callable[[Tensor], Tensor]:
        """The propagation h (T, N, C) → Â h of each layer; overridden by defences that clean the graph first."""
        weight = adj.normalized("sym", self.first.weight.dtype)
        return lambda h: adj.matmul(weight, h)

    def logits(self, features: Features, adj: Adjacency, rng: Rng) -> Tensor:
        propagate = self.operator(features, adj)
        h = self.first.add_bias(propagate(features.linear(self.first.weights, None, None)))
        for layer in (*self.between, self.last):
            h = layer.add_bias(propagate(product(self.dropout.of_relu(h, rng), layer.weights)))
        return h
