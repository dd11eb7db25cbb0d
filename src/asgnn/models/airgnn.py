"""AirGNN."""

from __future__ import annotations

import torch
from torch import Tensor

from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.features import Features
from asgnn.models.base import NodeClassifier
from asgnn.models.layers import MLPBlock, Rng, check_depth
from asgnn.settings import PerTrial, check_number


class AirGNN(NodeClassifier):
    r"""An MLP, then message passing with adaptive residual (Liu et al., NeurIPS 2021).

    Proximal gradient steps of size γ = 1/(2(1 − λ)) towards the minimum of

    .. math:: \lambda \sum_i \|X_i - X_{in,i}\|_2 + (1 - \lambda)\, \mathrm{tr}(X^\top \tilde L X),
              \qquad X_{in} = \mathrm{MLP}(Z)

    so that a node keeps its own features unless its neighbourhood average differs from them by more than a threshold:

    .. math:: Y = \hat A X, \qquad X_i \leftarrow X_{in,i} + \max\Big(1 - \frac{\gamma\lambda}{\|Y_i - X_{in,i}\|},
              0\Big) (Y_i - X_{in,i})

    λ = 0 averages K times, without any residual.

    Time O(nnz(Z) H + N H C + K E C).
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        *,
        num_layers: int = 10,
        lam: float = 0.5,
        dropout: PerTrial = 0.8,
        mlp_layers: int = 2,
    ) -> None:
        super().__init__()
        check_number("lam", lam, 0, 1, "[)")
        check_depth(num_layers)
        self.num_layers, self.lam = num_layers, lam
        self.mlp = MLPBlock(in_channels, hidden_channels, out_channels, mlp_layers, dropout)

    def logits(self, features: Features, adj: Adjacency, rng: Rng) -> Tensor:
        return self.propagate(self.mlp(features, rng), adj)

    def propagate(self, start: Tensor, adj: Adjacency) -> Tensor:
        """Adaptive message passing on (T, N, C), Eqs. (9)–(14) of the paper."""
        threshold = self.lam / (2 * (1 - self.lam))  # γλ
        weight = adj.normalized("sym", start.dtype)
        x = start
        for _ in range(self.num_layers):
            # with this γ, Y = X − 2γ(1 − λ)L̃X is ÂX
            x = start + shrink(adj.matmul(weight, x) - start, threshold)
        return x


def shrink(rows: Tensor, threshold: float) -> Tensor:
    """max(1 − threshold/‖row‖, 0) · row, the proximal step of the sum of row norms; the derivative at 0 is 0."""
    if threshold == 0:
        return rows
    length = rows.square().sum(-1, keepdim=True).clamp(min=threshold**2)
    return rows * (1 - threshold * torch.rsqrt(length)).clamp(min=0)
