"""GCN-SVD."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.features import Features
from asgnn.graphs.low_rank import low_rank
from asgnn.graphs.per_graph import once_per_graph
from asgnn.models.gcn import GCN
from asgnn.settings import PerTrial, check_count


class GCNSVD(GCN):
    r"""GCN on the best rank-r approximation of the graph (Entezari et al., WSDM 2020).

    .. math:: \hat A = D^{-1/2} (A_r + I) D^{-1/2}, \qquad D = \mathrm{diag}((A_r + I) 1)

    as in DeepRobust, where r = 50 is the default. A_r is stored as a product of two factors, so no N × N matrix is
    built. It has negative entries, and where a row sum is not positive :math:`D^{-1/2}` does not exist (DeepRobust
    returns NaN). Such a node keeps its own features and exchanges none with other nodes.

    The gradient in the edge weights treats as constant the spaces of the r largest singular vectors
    (:func:`~asgnn.graphs.low_rank.low_rank`) and the set of nodes with a positive row sum.

    Time O(restarts · (E r + N r²)) once per graph, then O(nnz(Z) H + N r (H + C)).
    """

    own_weights = False
    whole_graph = True  # parts of the graph have other low-rank approximations

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        *,
        dropout: PerTrial = 0.5,
        rank: int = 50,
    ) -> None:
        super().__init__(in_channels, hidden_channels, out_channels, dropout=dropout)
        check_count("rank", rank)
        self.rank = rank

    def operator(self, features: Features, adj: Adjacency) -> Callable[[Tensor], Tensor]:
        left, right, loop = normalized_factors(features, adj, self.rank, self.first.weight.dtype)
        return lambda h: left @ (right.t() @ h) + loop * h


@once_per_graph
def normalized_factors(
    features: Features, adj: Adjacency, rank: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """left (N, r), right (N, r) and loop (N, 1); the normalised matrix is left rightᵀ + diag(loop)."""
    del features
    factors = low_rank(adj, rank)
    degree = (factors.row_sums + 1).unsqueeze(1)
    positive = degree > 0
    root = torch.where(positive, degree, torch.inf).rsqrt()
    loop = torch.where(positive, root.square(), 1)
    return (root * factors.left).to(dtype), (root * factors.right).to(dtype), loop.to(dtype)
