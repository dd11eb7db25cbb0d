"""MLP."""

from __future__ import annotations

from torch import Tensor

from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.features import Features
from asgnn.models.base import NodeClassifier
from asgnn.models.layers import MLPBlock, Rng
from asgnn.models.memory import ROWS, Needed, Saving, Sizes, of_mlp
from asgnn.settings import PerTrial


class MLP(NodeClassifier):
    """A multilayer perceptron on the features alone, the baseline that uses no edge.

    Its gradient in the edge weights is 0.

    Time O(nnz(Z) H + N H C).
    """

    repeatable = True
    own_weights = True

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        *,
        num_layers: int = 2,
        dropout: PerTrial = 0.5,
    ) -> None:
        super().__init__()
        self.mlp = MLPBlock(in_channels, hidden_channels, out_channels, num_layers, dropout)

    def logits(self, features: Features, adj: Adjacency, rng: Rng) -> Tensor:
        out: Tensor = self.mlp(features, rng, self.saving.rows)
        return out

    def savings(self) -> tuple[Saving, ...]:
        return Saving(), Saving(ROWS)

    def activations(self, sizes: Sizes, saving: Saving) -> Needed | None:
        return of_mlp(self.mlp, sizes, saving.rows)
