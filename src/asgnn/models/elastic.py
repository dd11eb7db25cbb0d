"""ElasticGNN."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from asgnn.errors import GraphError
from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.features import Features, Rows
from asgnn.graphs.per_graph import once_per_graph
from asgnn.kernels import load
from asgnn.models.base import NodeClassifier
from asgnn.models.layers import MLPBlock, Rng, check_depth
from asgnn.settings import PerTrial, check_choice, check_number

Norm = Literal["l21", "l1"]


class ElasticGNN(NodeClassifier):
    r"""An MLP, then elastic message passing (Liu et al., "Elastic Graph Neural Networks", ICML 2021).

    ``num_layers`` primal–dual steps towards the minimum of

    .. math:: \lambda_1 \|\tilde\Delta F\|_{21} + \frac{\lambda_2}{2} \mathrm{tr}(F^\top \tilde L F)
              + \frac12 \|F - X\|_F^2, \qquad \tilde\Delta = \Delta D^{-1/2},
              \quad \tilde\Delta^\top \tilde\Delta = \tilde L = I - D^{-1/2} A D^{-1/2}

    with X = MLP(Z) and one row of the incidence matrix Δ for each undirected edge. ``norm="l1"`` uses the ℓ₁ norm of
    the rows in place of their ℓ₂ norm. Edge weights, which the paper does not have, enter Δ as square roots, which
    preserves the last identity; they must be symmetric.

    If the edge weights require a gradient, :meth:`propagate_by_entries` is used on every device: the other
    implementations treat the matrices as constants, and the square root has no derivative at 0, while the result has.

    Time O(nnz(Z) H + N H C + K E C), memory O(F H + N H + K E C).
    """

    repeatable = True
    lambda1: Tensor
    lambda2: Tensor

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        *,
        num_layers: int = 10,
        lambda1: PerTrial = 9.0,
        lambda2: PerTrial = 3.0,
        dropout: PerTrial = 0.5,
        mlp_layers: int = 2,
        norm: Norm = "l21",
    ) -> None:
        super().__init__()
        check_depth(num_layers)
        check_choice("norm", norm, ("l21", "l1"))
        for name, value in (("lambda1", lambda1), ("lambda2", lambda2)):
            check_number(name, value, 0, float("inf"), "[)")
            self.register_buffer(name, torch.tensor(float(value), dtype=torch.float64), persistent=False)
        self.num_layers, self.norm, self.has_dual = num_layers, norm, lambda1 > 0
        self.mlp = MLPBlock(in_channels, hidden_channels, out_channels, mlp_layers, dropout)

    def variant(self) -> bool:
        return self.has_dual

    def logits(self, features: Features, adj: Adjacency, rng: Rng) -> Tensor:
        x = self.mlp(features, rng)
        if adj.needs_gradient:
            return self.propagate_by_entries(x, adj)
        return self.propagate(x, adj, incidence_of(features, adj, x.dtype))

    def propagate(self, x: Tensor, adj: Adjacency, incidence: Incidence | None = None) -> Tensor:
        """Elastic message passing on (T, N, C), Eqs. (14)–(18) of the paper, with W = γZ for the dual variables Z.

        The paper's dual step projects Z + βΔ̃(Y − γΔ̃ᵀZ), β = 1/(2γ), onto the ball of radius λ₁. Multiplied by γ, it
        projects W + Δ̃(Y − Δ̃ᵀW)/2 onto the ball of radius γλ₁, so that only the radius differs between trials.
        """
        gamma = (1 / (1 + self.lambda2)).view(-1).to(x.dtype)
        radius = (self.lambda1 / (1 + self.lambda2)).view(-1).to(x.dtype)
        # (N, C, T): all trials share the matrices, so one product covers the columns of all trials
        f = x.permute(1, 2, 0).contiguous()
        anchor, average, incidence = gamma * f, adj.normalized("sym", x.dtype), incidence or Incidence(adj, x.dtype)
        w: Tensor | None = None
        pull: Tensor | None = None  # −Δ̃ᵀW, with W = 0 at the start
        if on_gpu(f) and self.has_dual and self.norm == "l21":
            layer = load("elastic").Layer
            size = (adj.num_nodes, adj.num_nodes)
            rest, radii = (part.expand(x.size(0)).contiguous() for part in (1 - gamma, radius))
            matrices = Rows(adj.crow, adj.col, average, size), incidence.half, incidence.half_transposed
            for _ in range(self.num_layers):
                f, w, pull = layer.apply(f, w, pull, anchor, rest, radii, *matrices)
            return f.permute(2, 0, 1)
        for _ in range(self.num_layers):
            f = y = anchor + (1 - gamma) * adj.matmul(average, f.flatten(1)).view_as(f)
            if not self.has_dual:
                continue
            step = incidence.half_differences(y if pull is None else y + pull)
            w = self.project(step if w is None else w + step, radius)
            pull = incidence.pull(w)
            f = y + pull
        return f.permute(2, 0, 1)

    def propagate_by_entries(self, x: Tensor, adj: Adjacency) -> Tensor:
        """The same, differentiable to any order in the edge weights; memory O(K E C) for each trial.

        With W = √w U no square root of a weight is left outside the radius: U + (f_i/√d_i − f_j/√d_j)/2 is projected
        onto the ball of radius γλ₁/√w, and −Σ_j w_ij U_ij/√d_i is added to node i. Every edge has one row in each
        direction, U_ji = −U_ij.
        """
        check_undirected(adj)
        gamma = (1 / (1 + self.lambda2)).view(-1).to(x.dtype)
        radius = (self.lambda1 / (1 + self.lambda2)).view(-1).to(x.dtype)
        start = f = x.permute(1, 2, 0).contiguous()
        weight = adj.weight.to(x.dtype).view(-1, 1, 1)
        average, root = adj.normalized("sym", x.dtype), adj.inverse_root_degree(x.dtype).view(-1, 1, 1)
        # an edge of weight 0 has an unbounded ball; at 10⁻¹² the radius is larger than any row in practice
        limit = radius * weight.clamp(min=1e-12).rsqrt()
        u, pull = x.new_zeros(()), x.new_zeros(())
        for _ in range(self.num_layers):
            f = y = gamma * start + (1 - gamma) * adj.matmul(average, f.flatten(1)).view_as(f)
            if self.has_dual:
                ahead = root * (y + pull)
                u = u + (adj.at_row(ahead) - adj.at_col(ahead)) / 2
                if self.norm == "l1":
                    u = u.clamp(-limit, limit)
                else:
                    squared = u.square().sum(1, keepdim=True)
                    outside = squared > limit.square()
                    u = u * torch.where(outside, limit * torch.where(outside, squared, 1.0).rsqrt(), 1.0)
                pull = -root * adj.row_sum(weight * u)
                f = y + pull
        return f.permute(2, 0, 1)

    def project(self, w: Tensor, radius: Tensor) -> Tensor:
        """Project the rows of (edges, C, T) onto balls of radius (T,)."""
        if self.norm == "l1":
            return w.clamp(-radius, radius)
        out: Tensor = _IntoBall.apply(w, radius)
        return out


def on_gpu(f: Tensor) -> bool:
    """A function, so that tests can run the kernels in Triton's interpreter without a GPU."""
    return f.is_cuda


@once_per_graph
def incidence_of(features: Features, adj: Adjacency, dtype: torch.dtype) -> Incidence:
    del features
    return Incidence(adj, dtype)


def check_undirected(adj: Adjacency) -> None:
    if not adj.symmetric:
        raise GraphError(
            "ElasticGNN needs symmetric edge weights: the weights of an edge in both directions must be equal."
        )


class Incidence:
    """Δ̃, one row for each undirected edge (i, j), i < j: √w_ij (f_i/√d_i − f_j/√d_j)."""

    def __init__(self, adj: Adjacency, dtype: torch.dtype) -> None:
        check_undirected(adj)
        root = adj.inverse_root_degree(dtype)
        signed = adj.weight.to(dtype).sqrt() * root[adj.row] * torch.where(adj.row < adj.col, 1.0, -1.0).to(dtype)
        upper = (adj.row < adj.col).nonzero().view(-1)
        edges = torch.arange(upper.numel(), device=upper.device)
        # the undirected edge of each entry; both directions share one edge
        edge_of = torch.zeros_like(adj.row, dtype=torch.int64)
        edge_of[upper] = edges
        edge_of[adj.reverse[upper]] = edges
        no_loop = ~adj.loops
        crow = adj.crow - torch.arange(adj.num_nodes + 1, device=upper.device)  # one self-loop per row is left out
        transposed = Rows(crow.int(), edge_of[no_loop].int(), signed[no_loop], (adj.num_nodes, upper.numel()))
        matrix = Rows(
            torch.arange(0, 2 * upper.numel() + 1, 2, device=upper.device).int(),
            torch.stack([adj.row[upper], adj.col[upper]], 1).view(-1).int(),
            torch.stack([signed[upper], signed[adj.reverse[upper]]], 1).view(-1),
            (upper.numel(), adj.num_nodes),
        )
        self.half, self.half_transposed = (replace(rows, value=rows.value / 2) for rows in (matrix, transposed))
        self.minus, self.minus_transposed = (replace(rows, value=-rows.value) for rows in (matrix, transposed))

    def half_differences(self, f: Tensor) -> Tensor:
        """Δ̃F/2: (N, …) → (edges, …)."""
        out: Tensor = _Product.apply(f, self.half, self.half_transposed)
        return out

    def pull(self, w: Tensor) -> Tensor:
        """−Δ̃ᵀW: (edges, …) → (N, …); the sign is part of the matrix, which saves a pass that negates the gradient."""
        out: Tensor = _Product.apply(w, self.minus_transposed, self.minus)
        return out


class _Product(torch.autograd.Function):
    """A constant sparse matrix times a dense one; the gradient is a product with the transpose."""

    @staticmethod
    def forward(ctx: Any, dense: Tensor, matrix: Rows, transposed: Rows) -> Tensor:
        ctx.matrices = transposed, matrix
        return (matrix @ dense.flatten(1)).view(-1, *dense.shape[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _Product.apply(grad.contiguous(), *ctx.matrices), None, None


class _IntoBall(torch.autograd.Function):
    """z · min(1, radius/‖z‖) with norms along dimension 1; first derivatives only, free if all rows are inside."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, radius: Tensor) -> Tensor:
        squared = z.square().sum(1, keepdim=True)
        outside = squared > radius.square()
        ctx.all_inside = not bool(outside.any())
        if ctx.all_inside:
            return z.view_as(z)
        shorter = torch.where(outside, radius * squared.rsqrt(), 1.0)
        ctx.save_for_backward(z, shorter, torch.where(outside, shorter / squared, 0.0))
        return z * shorter

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        if ctx.all_inside:
            return grad, None
        z, shorter, along = ctx.saved_tensors
        return torch.addcmul(grad * shorter, z, along * (grad * z).sum(1, keepdim=True), value=-1), None
