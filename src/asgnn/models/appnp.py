"""APPNP."""

from __future__ import annotations

from torch import Tensor

from asgnn.asmp import ASMPParams, Scheme, propagate
from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.features import Features
from asgnn.models.base import NodeClassifier
from asgnn.models.layers import MLPBlock, Rng, check_depth
from asgnn.models.memory import ROWS, Needed, Saving, Sizes, of_asmp, of_mlp
from asgnn.settings import PerTrial, check_number

SCHEME = Scheme("paper", structure="frozen", normalization="sym")


class APPNP(NodeClassifier):
    r"""Predict, then propagate (Klicpera, Bojchevski & Günnemann, ICLR 2019).

    .. math:: H^{(k+1)} = (1 - \alpha) \hat A H^{(k)} + \alpha X, \qquad H^{(0)} = X = \mathrm{MLP}(Z)

    Equal to PyG's ``APPNP`` on the same X, and to ASMP with frozen structure and λ = 1/α − 1 (tests).

    Time O(nnz(Z) H + N H C + K E C).
    """

    repeatable = True
    own_weights = True

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        *,
        num_layers: int = 10,
        alpha: float = 0.1,
        dropout: PerTrial = 0.5,
        mlp_layers: int = 2,
    ) -> None:
        super().__init__()
        check_number("alpha", alpha, 0, 1, "(]")
        check_depth(num_layers)
        self.num_layers, self.alpha = num_layers, alpha
        self.mlp = MLPBlock(in_channels, hidden_channels, out_channels, mlp_layers, dropout)

    def logits(self, features: Features, adj: Adjacency, rng: Rng) -> Tensor:
        x = h = self.mlp(features, rng, self.saving.rows)
        if not x.is_cuda:  # in one operation, if there are kernels for the CPU
            params = ASMPParams(lam=1 / self.alpha - 1)
            return propagate(x, adj, params, SCHEME, layers=self.num_layers, weights=False).h
        weight = (1 - self.alpha) * adj.normalized("sym", x.dtype)
        for _ in range(self.num_layers):
            h = adj.matmul(weight, h) + self.alpha * x
        return h

    def savings(self) -> tuple[Saving, ...]:
        return Saving(), Saving(ROWS)

    def activations(self, sizes: Sizes, saving: Saving) -> Needed | None:
        layers = of_asmp(SCHEME, self.num_layers, self.mlp.widths[-1], sizes, False)
        return None if layers is None else of_mlp(self.mlp, sizes, saving.rows).then(layers)
