"""SoftMedianGCN."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.edge_ops import spmm
from asgnn.graphs.features import Features
from asgnn.graphs.relaxed import median_gradient, relaxation
from asgnn.models.base import NodeClassifier
from asgnn.models.layers import Dropout, Linear, Rng
from asgnn.settings import PerTrial, check_number

LARGEST_EXPONENT = 60.0


class SoftMedianGCN(NodeClassifier):
    r"""A two-layer GCN with soft medians for averages (Geisler et al., "Robustness of GNNs at scale", NeurIPS 2021).

    With :math:`\bar x_i` the dimension-wise median over the neighbourhood of node i, each layer computes

    .. math:: \Big(\sum_j \hat A_{ij}\Big) \frac{\sum_j s_{ij} \hat A_{ij} x_j}{\sum_j s_{ij} \hat A_{ij}}, \qquad
              s_{ij} \propto \exp\Big(-\frac{\|x_j - \bar x_i\|}{T \sqrt{d}}\Big)

    in place of :math:`\sum_j \hat A_{ij} x_j`, its limit for T → ∞. The median is the lower median of the neighbourhood
    including the node itself, with every member counted once (the authors' kernel weights the members by Â). An edge
    of weight 0 adds no member. The diffusion that the paper applies first (GDC) is left out.

    The gradient treats the median node as fixed. In an edge weight this is exact except at 0, where the edge becomes a
    member.

    Time O(nnz(Z) H + E H log E), memory O(E H) temporarily and O(E + N H) for the backward pass.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        *,
        temperature: float = 0.2,
        dropout: PerTrial = 0.5,
    ) -> None:
        super().__init__()
        check_number("temperature", temperature, 0, math.inf, "(]")
        self.temperature = temperature
        self.first = Linear(in_channels, hidden_channels)
        self.last = Linear(hidden_channels, out_channels)
        self.dropout = Dropout(dropout)

    def logits(self, features: Features, adj: Adjacency, rng: Rng) -> Tensor:
        h = self.first.add_bias(self.average(features.linear(self.first.weights, None, None), adj))
        h = self.dropout(h.relu(), rng) @ self.last.weights
        return self.last.add_bias(self.average(h, adj))

    def average(self, h: Tensor, adj: Adjacency) -> Tensor:
        """The soft median of each neighbourhood: (T, N, C) → (T, N, C)."""
        x = h.permute(1, 2, 0).contiguous()  # (N, C, T)
        middle = self.median(x, adj)
        squared: Tensor = _SquaredDistance.apply(middle, x, adj)
        # the square root has no derivative at 0, so clamp to the smallest normal number
        distance = squared.clamp(min=torch.finfo(x.dtype).tiny).sqrt() / (self.temperature * math.sqrt(x.size(1)))
        member_distance = distance.detach().masked_fill((adj.weight == 0).unsqueeze(1), torch.inf)
        nearest = torch.segment_reduce(member_distance, "min", offsets=adj.crow, axis=0)
        normal = adj.normalized("sym", x.dtype).unsqueeze(1)
        # only non-members can be nearer than the nearest member; the derivative needs them, so they must not overflow
        weight = normal * (adj.at_row(nearest) - distance).clamp(max=LARGEST_EXPONENT).exp()
        scale = adj.row_sum(normal) / adj.row_sum(weight).clamp(min=torch.finfo(x.dtype).tiny)
        return (spmm(weight, x, adj) * scale.unsqueeze(1)).permute(2, 0, 1)

    def median(self, x: Tensor, adj: Adjacency) -> Tensor:
        """The lower median (N, C, T) of each neighbourhood; relaxed, members count with their weights."""
        if relaxation() is None:
            return take(x, lower_median(x.detach(), adj), adj)
        weight = adj.presence.to(x.dtype).unsqueeze(1)
        mean = spmm(weight, x.detach(), adj) / adj.row_sum(weight).unsqueeze(1)
        return median_gradient(take(x, lower_median(x.detach(), adj, weighted=True), adj), mean)


def lower_median(x: Tensor, adj: Adjacency, *, weighted: bool = False) -> Tensor:
    """(N, C, T) → (N, C, T) int64: the node that holds the lower median of each neighbourhood, in each dimension.

    Every member counts once, or as far as it is present if ``weighted``; an edge of weight 0 has no part. The values of
    each dimension are ranked once; then one sort of the keys row · N + rank sorts all neighbourhoods.
    Time O(E C T log E).
    """
    n, values = adj.num_nodes, x.reshape(adj.num_nodes, -1).t()
    order = torch.argsort(values, dim=1, stable=True)
    dtype = torch.int32 if n * n < 2**31 else torch.int64
    rank = torch.empty(order.shape, dtype=dtype, device=x.device)
    rank.scatter_(1, order, torch.arange(n, dtype=dtype, device=x.device).expand_as(order))
    weight = (adj.presence if weighted else adj.weight).detach().double()
    row, col, weight = (part[weight > 0] for part in (adj.row, adj.col, weight))
    first = torch.zeros(n + 1, dtype=torch.int64, device=x.device)
    first[1:] = torch.bincount(row, minlength=n).cumsum(0)
    # gathering contiguous rows of all dimensions is many times faster than gathering columns
    keys = rank.t().contiguous().index_select(0, col)
    keys = keys.add_((row * n).to(dtype).unsqueeze(1)).t().contiguous()
    if weighted:
        keys, at = keys.sort(dim=1)
        total = torch.nn.functional.pad(weight[at].cumsum(1), (1, 0))
        start, end = total.index_select(1, first[:-1]), total.index_select(1, first[1:])
        # the first member at which half of the weight is reached; the tolerance is for the rounding of the sums
        middle = torch.searchsorted(total[:, 1:].contiguous(), (start + end) / 2 - 1e-9)
        node = order.gather(1, keys.gather(1, middle).long() % n)
    else:
        # on a CPU numpy sorts integers several times faster than torch
        keys = keys.sort(dim=1).values if keys.is_cuda else torch.from_numpy(np.sort(keys.numpy(), axis=1))
        middle = first[:-1] + (first.diff() - 1) // 2
        node = order.gather(1, keys.index_select(1, middle).long() % n)
    return node.t().reshape(x.shape)


def take(x: Tensor, node: Tensor, adj: Adjacency) -> Tensor:
    """x[node[i, c, t], c, t] for every row, dimension and trial: (N, C, T); each node must be an entry of its row."""
    if not x.is_cuda:
        return x.gather(0, node)
    # on a GPU the derivative of gather uses atomics in random order; a sum along the rows is deterministic
    chosen = node.index_select(0, adj.row) == adj.col.view(-1, 1, 1)
    return adj.row_sum(adj.at_col(x) * chosen)


class _SquaredDistance(torch.autograd.Function):
    """‖u_i − v_j‖² for every entry, for u and v (N, C, T) → (E, T); saves nothing of size E·C."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, v: Tensor, adj: Adjacency) -> Tensor:
        ctx.adj = adj
        ctx.save_for_backward(u, v)
        return u.index_select(0, adj.row).sub_(v.index_select(0, adj.col)).square_().sum(1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        u, v = ctx.saved_tensors
        adj, back = ctx.adj, ctx.adj.transpose(grad)
        to_u = adj.row_sum(grad).unsqueeze(1) * u - spmm(grad, v, adj)
        to_v = adj.row_sum(back).unsqueeze(1) * v - spmm(back, u, adj)
        return 2 * to_u, 2 * to_v, None
