"""ElasticGNN."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from asgnn.errors import ConfigError, GraphError
from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.features import Features, Rows
from asgnn.kernels import load
from asgnn.models.base import NodeClassifier
from asgnn.models.layers import MLPBlock, Rng, check_depth
from asgnn.models.per_graph import once_per_graph
from asgnn.settings import PerTrial

Norm = Literal["l21", "l1"]


class ElasticGNN(NodeClassifier):
    r"""An MLP, then elastic message passing (Liu et al., "Elastic Graph Neural Networks", ICML 2021).

    Ten or so primal–dual steps towards the minimum of

    .. math:: \lambda_1 \|\tilde\Delta F\|_{21} + \frac{\lambda_2}{2} \mathrm{tr}(F^\top \tilde L F)
              + \frac12 \|F - X\|_F^2, \qquad \tilde\Delta = \Delta D^{-1/2},
              \quad \tilde\Delta^\top \tilde\Delta = \tilde L = I - D^{-1/2} A D^{-1/2}

    with X = MLP(Z) and one row of the incidence matrix Δ for each undirected edge. ``norm="l1"`` sums the moduli of
    the entries in place of the lengths of the rows. Weights of edges, not in the paper, enter Δ as their roots, which
    keeps the last identity; they must be symmetric.

    Where a gradient in the edge weights is wanted, all is computed by :meth:`propagate_by_entries`, on a GPU, too: the
    other ways take the matrices as fixed, and the root of a weight of 0 has no derivative, while the result has.

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
        if not (0 <= lambda1 < float("inf") and 0 <= lambda2 < float("inf")):
            raise ConfigError(f"lambda1 and lambda2 must be 0 or more and finite; they are {lambda1} and {lambda2}.")
        check_depth(num_layers)
        if norm not in ("l21", "l1"):
            raise ConfigError(f"norm must be l21 or l1; it is {norm!r}.")
        self.has_dual = lambda1 > 0
        self.num_layers, self.norm = num_layers, norm
        for name, value in (("lambda1", lambda1), ("lambda2", lambda2)):
            self.register_buffer(name, torch.tensor(float(value), dtype=torch.float64), persistent=False)
        self.mlp = MLPBlock(in_channels, hidden_channels, out_channels, mlp_layers, dropout)

    def variant(self) -> bool:
        return self.has_dual

    def logits(self, features: Features, adj: Adjacency, rng: Rng) -> Tensor:
        x = self.mlp(features, rng)
        if adj.needs_gradient:
            return self.propagate_by_entries(x, adj)
        return self.propagate(x, adj, incidence_of(features, adj, x.dtype))

    def propagate(self, x: Tensor, adj: Adjacency, incidence: Incidence | None = None) -> Tensor:
        """Elastic message passing of (T, N, C), Eqs. (14)–(18) of the paper, with γZ in place of the dual variables Z.

        In the paper a dual step is Z + βΔ̃(Y − γΔ̃ᵀZ) with β = 1/(2γ), brought back to length λ₁; times γ it is
        W + Δ̃(Y − Δ̃ᵀW)/2, brought back to γλ₁: only the length is left that differs between trials.
        """
        gamma = (1 / (1 + self.lambda2)).view(-1).to(x.dtype)
        radius = (self.lambda1 / (1 + self.lambda2)).view(-1).to(x.dtype)
        # (N, C, T): the matrices are the same for all trials, so each product takes all their columns at once
        f = x.permute(1, 2, 0).contiguous()
        own, average, incidence = gamma * f, adj.normalized("sym", x.dtype), incidence or Incidence(adj, x.dtype)
        w: Tensor | None = None
        pull: Tensor | None = None  # −Δ̃ᵀW, with W = 0 at the start
        if on_gpu(f) and self.has_dual and self.norm == "l21":
            layer = load("elastic").Layer
            size = (adj.num_nodes, adj.num_nodes)
            rest, radii = (part.expand(x.size(0)).contiguous() for part in (1 - gamma, radius))
            matrices = Rows(adj.crow, adj.col, average, size), incidence.half, incidence.half_transposed
            for _ in range(self.num_layers):
                f, w, pull = layer.apply(f, w, pull, own, rest, radii, *matrices)
            return f.permute(2, 0, 1)
        for _ in range(self.num_layers):
            f = y = own + (1 - gamma) * adj.matmul(average, f.flatten(1)).view_as(f)
            if not self.has_dual:
                continue
            step = incidence.half_differences(y if pull is None else y + pull)
            w = self.project(step if w is None else w + step, radius)
            pull = incidence.pull(w)
            f = y + pull
        return f.permute(2, 0, 1)

    def propagate_by_entries(self, x: Tensor, adj: Adjacency) -> Tensor:
        """The same, differentiable in the weights of the edges to any order; memory O(K E C) for each trial.

        With W = √w U both roots of a weight come together: U + (f_i/√d_i − f_j/√d_j)/2 is brought back to length
        γλ₁/√w, and node i is pulled by −Σ_j w_ij U_ij/√d_i. Every edge has a row in each direction, U_ji = −U_ij.
        """
        check_undirected(adj)
        gamma = (1 / (1 + self.lambda2)).view(-1).to(x.dtype)
        radius = (self.lambda1 / (1 + self.lambda2)).view(-1).to(x.dtype)
        start = f = x.permute(1, 2, 0).contiguous()
        weight = adj.weight.to(x.dtype).view(-1, 1, 1)
        average, root = adj.normalized("sym", x.dtype), adj.inverse_root_degree(x.dtype).view(-1, 1, 1)
        # the ball of an edge of weight 0 has no bound; below 10⁻¹² it is wider than anything met in practice
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
        """(edges, C, T), brought back into balls of radius (T,) where it left them."""
        if self.norm == "l1":
            return w.clamp(-radius, radius)
        out: Tensor = _IntoBall.apply(w, radius)
        return out


def on_gpu(f: Tensor) -> bool:
    """A function, so that a test can have the kernels interpreted where there is no GPU."""
    return f.is_cuda


@once_per_graph
def incidence_of(features: Features, adj: Adjacency, dtype: torch.dtype) -> Incidence:
    del features
    return Incidence(adj, dtype)


def check_undirected(adj: Adjacency) -> None:
    if not adj.symmetric:
        raise GraphError("ElasticGNN minimises over undirected edges; the two weights of an edge must be equal.")


class Incidence:
    """Δ̃, one row for each undirected edge (i, j), i < j: √w_ij (f_i/√d_i − f_j/√d_j)."""

    def __init__(self, adj: Adjacency, dtype: torch.dtype) -> None:
        check_undirected(adj)
        root = adj.inverse_root_degree(dtype)
        signed = adj.weight.to(dtype).sqrt() * root[adj.row] * torch.where(adj.row < adj.col, 1.0, -1.0).to(dtype)
        upper = (adj.row < adj.col).nonzero().view(-1)
        edges = torch.arange(upper.numel(), device=upper.device)
        # the edge of each entry: its own where i < j, its reverse's where i > j
        edge_of = torch.zeros_like(adj.row)
        edge_of[upper] = edges
        edge_of[adj.reverse[upper]] = edges
        apart = ~adj.loops
        crow = adj.crow - torch.arange(adj.num_nodes + 1, device=upper.device)  # one loop a row left out
        transposed = Rows(crow.int(), edge_of[apart].int(), signed[apart], (adj.num_nodes, upper.numel()))
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
        """−Δ̃ᵀW: (edges, …) → (N, …); with its sign it is added, and no gradient is negated in a pass of its own."""
        out: Tensor = _Product.apply(w, self.minus_transposed, self.minus)
        return out


class _Product(torch.autograd.Function):
    """A fixed sparse matrix times a dense one; the derivative is the product with its transpose."""

    @staticmethod
    def forward(ctx: Any, dense: Tensor, matrix: Rows, transposed: Rows) -> Tensor:
        ctx.matrices = transposed, matrix
        return (matrix @ dense.flatten(1)).view(-1, *dense.shape[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _Product.apply(grad.contiguous(), *ctx.matrices), None, None


class _IntoBall(torch.autograd.Function):
    """z · min(1, radius/‖z‖) with lengths along dimension 1; one derivative, in one pass where all are inside."""

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
