"""RUNG."""

from __future__ import annotations

import math

from torch import Tensor

from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.edge_ops import spmm, sqdist
from asgnn.graphs.features import Features
from asgnn.graphs.relaxed import clip
from asgnn.models.base import NodeClassifier
from asgnn.models.layers import MLPBlock, Rng, check_depth
from asgnn.settings import PerTrial, check_number

# Added to each squared distance before the root, as in the authors' code; not in the paper.
SMOOTHING = 0.01


class RUNG(NodeClassifier):
    r"""An MLP, then robust unbiased aggregation (Hou et al., NeurIPS 2024).

    Quasi-Newton steps of iteratively reweighted least squares towards a minimum of

    .. math:: \sum_{(i,j) \in E} \rho_\gamma(y_{ij}) + \lambda \sum_i \|f_i - f_i^{(0)}\|^2, \qquad
              y_{ij} = \Big\|\frac{f_i}{\sqrt{d_i}} - \frac{f_j}{\sqrt{d_j}}\Big\|

    with the minimax concave penalty ρ (y − y²/2γ up to γ, constant beyond), so that an edge with y ≥ γ has no
    influence. One layer, Eq. (8):

    .. math:: F \leftarrow (\mathrm{diag}(q) + \lambda I)^{-1} \big((W \odot \tilde A) F + \lambda F^{(0)}\big),
              \qquad W_{ij} = \max\Big(0, \frac{1}{2 y_{ij}} - \frac{1}{2\gamma}\Big), \quad
              q_i = \sum_{j \ne i} W_{ij} A_{ij} / d_i

    ``lam_hat`` is 1/(1 + λ), as in the authors' code. As there, but not in the paper, y is the square root of the
    squared distance plus 0.01, and no gradient passes through W in training. In evaluation mode, where only attacks and
    explanations need gradients, the gradient is exact. γ = ∞ is the ℓ₁ penalty.

    Time O(nnz(Z) H + N H C + K E C), memory O(F H + N H + K (E + N C)).
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        *,
        num_layers: int = 10,
        gamma: float = 3.0,
        lam_hat: float = 0.9,
        dropout: PerTrial = 0.5,
        mlp_layers: int = 2,
    ) -> None:
        super().__init__()
        check_number("gamma", gamma, 0, float("inf"), "(]")
        check_number("lam_hat", lam_hat, 0, 1, "()")
        check_depth(num_layers)
        self.num_layers, self.gamma, self.lam = num_layers, gamma, 1 / lam_hat - 1
        self.mlp = MLPBlock(in_channels, hidden_channels, out_channels, mlp_layers, dropout)

    def logits(self, features: Features, adj: Adjacency, rng: Rng) -> Tensor:
        return self.propagate(self.mlp(features, rng), adj)

    def propagate(self, x: Tensor, adj: Adjacency) -> Tensor:
        """QN-IRLS on (T, N, C)."""
        start = f = x.permute(1, 2, 0).contiguous()  # (N, C, T)
        weight = adj.weight.to(x.dtype).unsqueeze(1)
        degree = adj.row_sum(weight)
        off_diagonal = weight.masked_fill(adj.loops.unsqueeze(1), 0)  # W_ii = 0
        normal, root = adj.normalized("sym", x.dtype).unsqueeze(1), degree.rsqrt().unsqueeze(1)
        cuts = self.gamma < math.inf
        for _ in range(self.num_layers):
            scaled = f * root
            distance = (sqdist(scaled.detach() if self.training else scaled, adj) + SMOOTHING).sqrt()
            w = clip(0.5 / distance - 0.5 / self.gamma, low=0, unit=0.5 / self.gamma) if cuts else 0.5 / distance
            q = adj.row_sum(w * off_diagonal) / degree + self.lam
            w = (w * normal).masked_fill(adj.loops.unsqueeze(1), 0)
            f = (spmm(w, f, adj) + self.lam * start) / q.unsqueeze(1)
        return f.permute(2, 0, 1)
