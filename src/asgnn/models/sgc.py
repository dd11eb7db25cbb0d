"""SGC."""

from __future__ import annotations

from torch import Tensor

from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.features import Features
from asgnn.models.base import NodeClassifier
from asgnn.models.layers import Linear, Rng, check_depth


class SGC(NodeClassifier):
    r"""Simple graph convolution (Wu et al., ICML 2019): a linear model on propagated features.

    .. math:: \hat A^K Z W + b

    Equal to PyG's ``SGConv`` (tests). Computed from right to left: :math:`Z W` has few columns and Z is sparse, while
    :math:`\hat A^K Z`, which the authors cache, is wide and dense.

    Time O(nnz(Z) C + K E C).
    """

    repeatable = True
    own_weights = True

    def __init__(self, in_channels: int, out_channels: int, *, num_layers: int = 2) -> None:
        super().__init__()
        check_depth(num_layers)
        self.num_layers = num_layers
        self.linear = Linear(in_channels, out_channels)

    def logits(self, features: Features, adj: Adjacency, rng: Rng) -> Tensor:
        h = features.linear(self.linear.weights, None, None)
        weight = adj.normalized("sym", h.dtype)
        for _ in range(self.num_layers):
            h = adj.matmul(weight, h)
        return self.linear.add_bias(h)
