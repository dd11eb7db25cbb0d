"""The half-steps of ASMP on a GPU: one kernel each, with a backward pass of one or two kernels.

In :mod:`asgnn.asmp.edges` a layer takes some forty kernel launches and a hundred more in the backward pass, each of
which moves all its values through memory. The kernels here write only H, S and what the backward pass needs. The
gradients in the coefficients are summed per node by the kernels and over the nodes by torch. All sums have a fixed
order. First derivatives only.

Layouts as in :class:`~asgnn.asmp.edges.EdgeSteps`: x and h are (N, C, T), s is (E, T). ``to_x`` is the gradient in x.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from asgnn.kernels.tiles import block, entries_of, rows_of, tile

if TYPE_CHECKING:
    from asgnn.graphs.adjacency import Adjacency


class HStep(torch.autograd.Function):
    """c₀H + c₁D⁻¹SH + c₂X with c (3, T); degrees are clamped to at least ``min_degree``."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, x: Tensor, s: Tensor, c: Tensor, adj: Adjacency, min_degree: float) -> Tensor:
        h, x, s, c = (part.contiguous() for part in (h, x, s, c))
        out, mean = torch.empty_like(h), torch.empty_like(h)
        degree = h.new_empty(h.size(0), h.size(2))
        shape, blocks = tile(h)
        _h_step[h.size(0), blocks](
            adj.crow, adj.col, s, h, x, c, out, mean, degree, *h.shape[1:], MIN=min_degree, **shape
        )
        ctx.adj, ctx.min_degree = adj, min_degree
        ctx.save_for_backward(h, x, s, c, mean, degree)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        h, x, s, c, mean, degree = ctx.saved_tensors
        adj, grad = ctx.adj, grad.contiguous()
        to_h, to_x = torch.empty_like(h), torch.empty_like(h)
        to_s = torch.empty_like(s) if ctx.needs_input_grad[2] else None
        parts = h.new_empty(3, h.size(0), h.size(2))
        shape, blocks = tile(h)
        _h_step_back[h.size(0), blocks](
            adj.crow, adj.col, adj.reverse, s, h, x, c, mean, degree, grad, to_h, to_x, to_s, parts, *h.shape,
            MIN=ctx.min_degree, TO_S=to_s is not None, **shape,
        )  # fmt: skip
        return to_h, to_x, to_s, parts.sum(1), None, None


class DegreeSStep(torch.autograd.Function):
    """The structure step of q with c (5, T); self-loops stay 1.

    With v = c₂ + c₃(e_i + e_j) + c₄‖h_i − h_j‖² it is c₀S + c₁A − v, clipped to [0, 1], for the quadratic penalty. With
    ``mcp``, s is ū of :mod:`asgnn.asmp.penalties`, and the result is c₁A·w(u) and u = c₀ū + v, the next ū.
    """

    @staticmethod
    def forward(
        ctx: Any, h: Tensor, x: Tensor, s: Tensor, c: Tensor, weight: Tensor, adj: Adjacency, mcp: bool
    ) -> tuple[Tensor, Tensor]:
        h, x, s, c = (part.contiguous() for part in (h, x, s, c))
        # u, or where S was not clipped
        seen = torch.empty_like(s) if mcp else torch.empty_like(s, dtype=torch.uint8)
        out = torch.empty_like(s)
        shape, blocks = tile(h)
        _degree_s_step[triton.cdiv(s.size(0), shape["ENTRIES"]), blocks](
            adj.row, adj.col, weight, s, h, x, c, out, seen, s.size(0), *h.shape[1:],
            MCP=mcp, **shape,
        )  # fmt: skip
        ctx.adj, ctx.mcp = adj, mcp
        ctx.save_for_backward(h, x, s, c, weight, seen)
        if not mcp:
            ctx.mark_non_differentiable(seen)
        return out, seen

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, grad_u: Tensor) -> tuple[Tensor | None, ...]:
        h, x, s, c, weight, seen = ctx.saved_tensors
        adj, grad, grad_u = ctx.adj, grad.contiguous(), grad_u.contiguous()
        to_h, to_x, to_s = torch.empty_like(h), torch.empty_like(h), torch.empty_like(s)
        by_weight = torch.empty_like(s) if ctx.needs_input_grad[4] else None
        parts = h.new_empty(5, h.size(0), h.size(2))
        shape, blocks = tile(h)
        _degree_s_step_back[h.size(0), blocks](
            adj.crow, adj.col, adj.reverse, weight, s, h, x, c, seen, grad, grad_u, to_h, to_x, to_s, by_weight, parts,
            *h.shape, MCP=ctx.mcp, TO_WEIGHT=by_weight is not None, **shape,
        )  # fmt: skip
        to_weight = None if by_weight is None else by_weight.sum(1)
        return to_h, to_x, to_s, parts.sum(1), to_weight, None, None


class PaperSStep(torch.autograd.Function):
    """c₀S + c₁A − c₂ + (c₃/D_i)(g_ij − a_i), clipped to [0, 1], with c (4, T).

    Here g_ij = h_i·h_j and a_i = Σ_j S_ij g_ij / D_i.
    """

    @staticmethod
    def forward(ctx: Any, h: Tensor, s: Tensor, c: Tensor, weight: Tensor, adj: Adjacency, min_degree: float) -> Tensor:
        h, s, c = (part.contiguous() for part in (h, s, c))
        out, free = torch.empty_like(s), torch.empty_like(s, dtype=torch.bool)
        degree, mean = (h.new_empty(h.size(0), h.size(2)) for _ in range(2))
        shape, blocks = tile(h)
        _paper_s_step[h.size(0), blocks](
            adj.crow, adj.col, weight, s, h, c, out, free.view(torch.uint8), degree, mean, *h.shape[1:],
            MIN=min_degree, **shape,
        )  # fmt: skip
        ctx.adj, ctx.min_degree = adj, min_degree
        ctx.save_for_backward(h, s, c, weight, free, degree, mean)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        h, s, c, weight, free, degree, mean = ctx.saved_tensors
        to_weight = _to_weight(grad, free, c) if ctx.needs_input_grad[3] else None
        adj, grad, free = ctx.adj, grad.contiguous(), free.view(torch.uint8)
        to_h, to_s = torch.empty_like(h), torch.empty_like(s)
        parts = h.new_empty(4, h.size(0), h.size(2))
        shape, blocks = tile(h)
        _paper_s_step_back_to_s[h.size(0), blocks](
            adj.crow, adj.col, weight, s, h, c, free, degree, mean, grad, to_s, parts, *h.shape,
            MIN=ctx.min_degree, **shape,
        )  # fmt: skip
        _paper_s_step_back_to_h[h.size(0), blocks](
            adj.crow, adj.col, adj.reverse, s, h, c, free, degree, grad, parts, to_h, *h.shape,
            MIN=ctx.min_degree, **shape,
        )  # fmt: skip
        return to_h, to_s, parts.sum(1), to_weight, None, None


def _to_weight(grad: Tensor, free: Tensor, c: Tensor) -> Tensor:
    """(E,) the gradient in A, which enters the structure step as c₁A; used by attacks, never in training."""
    return (c[1] * torch.where(free, grad, 0.0)).sum(1)


@triton.jit
def _row(table, i, t, trials):
    """(T,) row i of a table with one column per trial."""
    return tl.load(table + i * trials + t, mask=t < trials, other=0.0)


@triton.jit
def _where_free(grad, free, at, mask):
    """The gradient in the new S where it was not clipped, else 0."""
    return tl.where(tl.load(free + at, mask=mask, other=0) != 0, tl.load(grad + at, mask=mask, other=0.0), 0.0)


@triton.jit
def _weight(u):
    """w(u) of the MCP penalty and its derivative."""
    root = 1 / tl.sqrt(tl.minimum(tl.maximum(u, 0.25), 1.0))
    slope = tl.where((u >= 0.25) & (u <= 1), -root * root * root / 2, 0.0)
    return root - 1, slope


@triton.jit
def _h_step(
    crow, col, s, h, x, coefficients, out, mean, degree, channels, trials,
    MIN: tl.constexpr, ENTRIES: tl.constexpr, CHANNELS: tl.constexpr, TRIALS: tl.constexpr,
):  # fmt: skip
    node = tl.program_id(0).to(tl.int64)
    t, t_mask, inside, offset = block(channels, trials, CHANNELS, TRIALS)
    row_offset = node * channels * trials + offset
    total = tl.zeros((CHANNELS, TRIALS), dtype=out.dtype.element_ty)
    sum_s = tl.zeros((TRIALS,), dtype=out.dtype.element_ty)
    end = tl.load(crow + node + 1)
    for start in range(tl.load(crow + node), end, ENTRIES):
        _, valid, j, mask, at = entries_of(col, start, end, t, t_mask, trials, ENTRIES)
        w = tl.load(s + at, mask=mask, other=0.0)
        h_j = rows_of(h, j, valid, inside, offset, channels, trials)
        total += tl.sum(w[:, None, :] * h_j, axis=0)
        sum_s += tl.sum(w, axis=0)
    average = total / tl.maximum(sum_s, MIN)[None, :]
    c0 = _row(coefficients, 0, t, trials)[None, :]
    c1 = _row(coefficients, 1, t, trials)[None, :]
    c2 = _row(coefficients, 2, t, trials)[None, :]
    h_i = tl.load(h + row_offset, mask=inside, other=0.0)
    x_i = tl.load(x + row_offset, mask=inside, other=0.0)
    tl.store(out + row_offset, c0 * h_i + c1 * average + c2 * x_i, mask=inside)
    tl.store(mean + row_offset, average, mask=inside)
    tl.store(degree + node * trials + t, sum_s, mask=t_mask)


@triton.jit
def _h_step_back(
    crow, col, reverse, s, h, x, coefficients, mean, degree, grad, to_h, to_x, to_s, parts, nodes, channels, trials,
    MIN: tl.constexpr, TO_S: tl.constexpr, ENTRIES: tl.constexpr, CHANNELS: tl.constexpr, TRIALS: tl.constexpr,
):  # fmt: skip
    """∂/∂s_ij = (c₁/D_i)(g_i·h_j − g_i·mean_i) and ∂/∂h_i = c₀g_i + c₁Σ_j s_ji g_j/D_j, with g the gradient."""
    node = tl.program_id(0).to(tl.int64)
    t, t_mask, inside, offset = block(channels, trials, CHANNELS, TRIALS)
    row_offset = node * channels * trials + offset
    c0 = _row(coefficients, 0, t, trials)
    c1 = _row(coefficients, 1, t, trials)
    c2 = _row(coefficients, 2, t, trials)
    g_i = tl.load(grad + row_offset, mask=inside, other=0.0)
    along_mean = tl.sum(g_i * tl.load(mean + row_offset, mask=inside, other=0.0), axis=0)
    sum_s = tl.load(degree + node * trials + t, mask=t_mask, other=1.0)
    d_i = tl.maximum(sum_s, MIN)
    by_degree = tl.where(sum_s >= MIN, c1 * along_mean / d_i, 0.0)
    total = c0[None, :] * g_i
    end = tl.load(crow + node + 1)
    for start in range(tl.load(crow + node), end, ENTRIES):
        e, valid, j, mask, at = entries_of(col, start, end, t, t_mask, trials, ENTRIES)
        back = tl.load(reverse + e, mask=valid, other=0).to(tl.int64)
        if TO_S:
            h_j = rows_of(h, j, valid, inside, offset, channels, trials)
            value = (c1 / d_i)[None, :] * tl.sum(g_i[None, :, :] * h_j, axis=1) - by_degree[None, :]
            tl.store(to_s + at, value, mask=mask)
        g_j = rows_of(grad, j, valid, inside, offset, channels, trials)
        d_j = tl.maximum(tl.load(degree + j[:, None] * trials + t[None, :], mask=mask, other=1.0), MIN)
        s_ji = tl.load(s + back[:, None] * trials + t[None, :], mask=mask, other=0.0)
        total += tl.sum((s_ji * c1[None, :] / d_j)[:, None, :] * g_j, axis=0)
    tl.store(to_h + row_offset, total, mask=inside)
    tl.store(to_x + row_offset, c2[None, :] * g_i, mask=inside)
    part = parts + node * trials + t
    tl.store(part, tl.sum(g_i * tl.load(h + row_offset, mask=inside, other=0.0), axis=0), mask=t_mask)
    tl.store(part + nodes * trials, along_mean, mask=t_mask)
    along_x = tl.sum(g_i * tl.load(x + row_offset, mask=inside, other=0.0), axis=0)
    tl.store(part + 2 * nodes * trials, along_x, mask=t_mask)


@triton.jit
def _degree_s_step(
    row, col, weight, s, h, x, coefficients, out, seen, entries, channels, trials,
    MCP: tl.constexpr, ENTRIES: tl.constexpr, CHANNELS: tl.constexpr, TRIALS: tl.constexpr,
):  # fmt: skip
    e = tl.program_id(0).to(tl.int64) * ENTRIES + tl.arange(0, ENTRIES)
    t, t_mask, inside, offset = block(channels, trials, CHANNELS, TRIALS)
    valid = e < entries
    mask = valid[:, None] & t_mask[None, :]
    i, j = tl.load(row + e, mask=valid, other=0), tl.load(col + e, mask=valid, other=0)
    h_i = rows_of(h, i, valid, inside, offset, channels, trials)
    h_j = rows_of(h, j, valid, inside, offset, channels, trials)
    far_i = h_i - rows_of(x, i, valid, inside, offset, channels, trials)
    far_j = h_j - rows_of(x, j, valid, inside, offset, channels, trials)
    from_x = tl.sum(far_i * far_i + far_j * far_j, axis=1)
    distance = tl.sum((h_i - h_j) * (h_i - h_j), axis=1)
    c0 = _row(coefficients, 0, t, trials)[None, :]
    c1 = _row(coefficients, 1, t, trials)[None, :]
    c2 = _row(coefficients, 2, t, trials)[None, :]
    c3 = _row(coefficients, 3, t, trials)[None, :]
    c4 = _row(coefficients, 4, t, trials)[None, :]
    at = e[:, None] * trials + t[None, :]
    a = tl.load(weight + e, mask=valid, other=0.0)[:, None]
    old = c0 * tl.load(s + at, mask=mask, other=0.0)
    loop = (i == j)[:, None]
    if MCP:
        u = old + c2 + c3 * from_x + c4 * distance
        w, _ = _weight(u)
        new = c1 * a * w
        tl.store(seen + at, u, mask=mask)
    else:
        new = old + (c1 * a - c2) - c3 * from_x - c4 * distance
        tl.store(seen + at, ((new >= 0) & (new <= 1) & (loop == 0)).to(tl.uint8), mask=mask)
    tl.store(out + at, tl.where(loop, 1.0, tl.minimum(tl.maximum(new, 0.0), 1.0)), mask=mask)


@triton.jit
def _degree_s_step_back(
    crow, col, reverse, weight, s, h, x, coefficients, seen, grad, grad_u, to_h, to_x, to_s, by_weight, parts,
    nodes, channels, trials, MCP: tl.constexpr, TO_WEIGHT: tl.constexpr,
    ENTRIES: tl.constexpr, CHANNELS: tl.constexpr, TRIALS: tl.constexpr,
):  # fmt: skip
    """∂/∂h_i = −2 Σ_j (m_ij + m_ji)(c₄(h_i − h_j) + c₃(h_i − x_i)) with −m the gradient in v.

    Quadratic: m is the gradient in S where S was not clipped. MCP: −m is the gradient in u plus c₁A·w′(u) times the
    gradient in S.
    """
    node = tl.program_id(0).to(tl.int64)
    t, t_mask, inside, offset = block(channels, trials, CHANNELS, TRIALS)
    row_offset = node * channels * trials + offset
    c0 = _row(coefficients, 0, t, trials)
    c1 = _row(coefficients, 1, t, trials)
    c3 = _row(coefficients, 3, t, trials)
    c4 = _row(coefficients, 4, t, trials)
    h_i = tl.load(h + row_offset, mask=inside, other=0.0)
    far = h_i - tl.load(x + row_offset, mask=inside, other=0.0)
    total = tl.zeros((CHANNELS, TRIALS), dtype=s.dtype.element_ty)
    sum_both = tl.zeros((TRIALS,), dtype=s.dtype.element_ty)
    sum_m, sum_gs, sum_a, sum_m_distance = sum_both, sum_both, sum_both, sum_both
    end = tl.load(crow + node + 1)
    for start in range(tl.load(crow + node), end, ENTRIES):
        e, valid, j, mask, at = entries_of(col, start, end, t, t_mask, trials, ENTRIES)
        back = tl.load(reverse + e, mask=valid, other=0).to(tl.int64)
        at_back = back[:, None] * trials + t[None, :]
        a = tl.load(weight + e, mask=valid, other=0.0)[:, None]
        if MCP:
            edge = mask & (j != node)[:, None]
            by_s = tl.load(grad + at, mask=edge, other=0.0)
            w, slope = _weight(tl.load(seen + at, mask=mask, other=0.0))
            slope = c1[None, :] * a * slope  # symmetric, as u and A are
            g = tl.load(grad_u + at, mask=mask, other=0.0) + slope * by_s  # the gradient in c₀s
            m = -g
            m_back = -tl.load(grad_u + at_back, mask=mask, other=0.0)
            m_back -= slope * tl.load(grad + at_back, mask=edge, other=0.0)
            by_a = by_s * w  # the gradient in c₁A
        else:
            m = _where_free(grad, seen, at, mask)
            m_back = _where_free(grad, seen, at_back, mask)
            g = m
            by_a = m
        tl.store(to_s + at, c0[None, :] * g, mask=mask)
        if TO_WEIGHT:
            tl.store(by_weight + at, c1[None, :] * by_a, mask=mask)
        h_j = rows_of(h, j, valid, inside, offset, channels, trials)
        difference = h_i[None, :, :] - h_j
        both = m + m_back
        total += tl.sum(both[:, None, :] * difference, axis=0)
        sum_both += tl.sum(both, axis=0)
        sum_m += tl.sum(m, axis=0)
        sum_gs += tl.sum(g * tl.load(s + at, mask=mask, other=0.0), axis=0)
        sum_a += tl.sum(by_a * a, axis=0)
        sum_m_distance += tl.sum(m * tl.sum(difference * difference, axis=1), axis=0)
    by_x = (2 * c3 * sum_both)[None, :] * far
    tl.store(to_x + row_offset, by_x, mask=inside)
    tl.store(to_h + row_offset, (-2 * c4)[None, :] * total - by_x, mask=inside)
    part = parts + node * trials + t
    tl.store(part, sum_gs, mask=t_mask)
    tl.store(part + nodes * trials, sum_a, mask=t_mask)
    tl.store(part + 2 * nodes * trials, -sum_m, mask=t_mask)
    tl.store(part + 3 * nodes * trials, -sum_both * tl.sum(far * far, axis=0), mask=t_mask)
    tl.store(part + 4 * nodes * trials, -sum_m_distance, mask=t_mask)


@triton.jit
def _paper_s_step(
    crow, col, weight, s, h, coefficients, out, free, degree, mean, channels, trials,
    MIN: tl.constexpr, ENTRIES: tl.constexpr, CHANNELS: tl.constexpr, TRIALS: tl.constexpr,
):  # fmt: skip
    node = tl.program_id(0).to(tl.int64)
    t, t_mask, inside, offset = block(channels, trials, CHANNELS, TRIALS)
    h_i = tl.load(h + node * channels * trials + offset, mask=inside, other=0.0)
    sum_s = tl.zeros((TRIALS,), dtype=s.dtype.element_ty)
    sum_sg = sum_s
    begin, end = tl.load(crow + node), tl.load(crow + node + 1)
    for start in range(begin, end, ENTRIES):
        e, valid, j, mask, at = entries_of(col, start, end, t, t_mask, trials, ENTRIES)
        w = tl.load(s + at, mask=mask, other=0.0)
        h_j = rows_of(h, j, valid, inside, offset, channels, trials)
        sum_s += tl.sum(w, axis=0)
        sum_sg += tl.sum(w * tl.sum(h_i[None, :, :] * h_j, axis=1), axis=0)
    d = tl.maximum(sum_s, MIN)
    average = sum_sg / d
    tl.store(degree + node * trials + t, sum_s, mask=t_mask)
    tl.store(mean + node * trials + t, average, mask=t_mask)
    c0 = _row(coefficients, 0, t, trials)[None, :]
    c1 = _row(coefficients, 1, t, trials)[None, :]
    c2 = _row(coefficients, 2, t, trials)[None, :]
    pull = (_row(coefficients, 3, t, trials) / d)[None, :]
    for start in range(begin, end, ENTRIES):
        e, valid, j, mask, at = entries_of(col, start, end, t, t_mask, trials, ENTRIES)
        h_j = rows_of(h, j, valid, inside, offset, channels, trials)
        a = tl.load(weight + e, mask=valid, other=0.0)[:, None]
        new = c0 * tl.load(s + at, mask=mask, other=0.0) + (c1 * a - c2)
        new += pull * (tl.sum(h_i[None, :, :] * h_j, axis=1) - average[None, :])
        tl.store(free + at, ((new >= 0) & (new <= 1)).to(tl.uint8), mask=mask)
        tl.store(out + at, tl.minimum(tl.maximum(new, 0.0), 1.0), mask=mask)


@triton.jit
def _paper_s_step_back_to_s(
    crow, col, weight, s, h, coefficients, free, degree, mean, grad, to_s, parts, nodes, channels, trials,
    MIN: tl.constexpr, ENTRIES: tl.constexpr, CHANNELS: tl.constexpr, TRIALS: tl.constexpr,
):  # fmt: skip
    """With m the gradient where S was not clipped, a_i the mean, M_i = Σ_j m_ij and Q_i = Σ_j m_ij (g_ij − a_i):

    ∂/∂a_i = −c₃M_i/D_i; through D_i, s_ij also gets −c₃Q_i/D_i² directly and −(a_i/D_i) ∂/∂a_i through the mean.
    """
    node = tl.program_id(0).to(tl.int64)
    t, t_mask, inside, offset = block(channels, trials, CHANNELS, TRIALS)
    h_i = tl.load(h + node * channels * trials + offset, mask=inside, other=0.0)
    sum_s = tl.load(degree + node * trials + t, mask=t_mask, other=1.0)
    average = tl.load(mean + node * trials + t, mask=t_mask, other=0.0)
    sum_m = tl.zeros((TRIALS,), dtype=s.dtype.element_ty)
    sum_mg, sum_ms, sum_ma = sum_m, sum_m, sum_m
    begin, end = tl.load(crow + node), tl.load(crow + node + 1)
    for start in range(begin, end, ENTRIES):
        e, valid, j, mask, at = entries_of(col, start, end, t, t_mask, trials, ENTRIES)
        m = _where_free(grad, free, at, mask)
        h_j = rows_of(h, j, valid, inside, offset, channels, trials)
        sum_m += tl.sum(m, axis=0)
        sum_mg += tl.sum(m * (tl.sum(h_i[None, :, :] * h_j, axis=1) - average[None, :]), axis=0)
        sum_ms += tl.sum(m * tl.load(s + at, mask=mask, other=0.0), axis=0)
        sum_ma += tl.sum(m * tl.load(weight + e, mask=valid, other=0.0)[:, None], axis=0)
    d = tl.maximum(sum_s, MIN)
    c0 = _row(coefficients, 0, t, trials)
    c3 = _row(coefficients, 3, t, trials)
    by_mean = -c3 * sum_m / d
    by_degree = tl.where(sum_s >= MIN, -c3 * sum_mg / (d * d) - by_mean * average / d, 0.0)
    for start in range(begin, end, ENTRIES):
        e, valid, j, mask, at = entries_of(col, start, end, t, t_mask, trials, ENTRIES)
        m = _where_free(grad, free, at, mask)
        h_j = rows_of(h, j, valid, inside, offset, channels, trials)
        product = tl.sum(h_i[None, :, :] * h_j, axis=1)
        tl.store(to_s + at, c0[None, :] * m + (by_mean / d)[None, :] * product + by_degree[None, :], mask=mask)
    part = parts + node * trials + t
    tl.store(part, sum_ms, mask=t_mask)
    tl.store(part + nodes * trials, sum_ma, mask=t_mask)
    tl.store(part + 2 * nodes * trials, -sum_m, mask=t_mask)
    tl.store(part + 3 * nodes * trials, sum_mg / d, mask=t_mask)


@triton.jit
def _paper_s_step_back_to_h(
    crow, col, reverse, s, h, coefficients, free, degree, grad, parts, to_h, nodes, channels, trials,
    MIN: tl.constexpr, ENTRIES: tl.constexpr, CHANNELS: tl.constexpr, TRIALS: tl.constexpr,
):  # fmt: skip
    """∂/∂h_i = Σ_j (b_ij + b_ji) h_j with b_ij = ∂/∂g_ij = (c₃/D_i)(m_ij − M_i s_ij/D_i); −M is the third part."""
    node = tl.program_id(0).to(tl.int64)
    t, t_mask, inside, offset = block(channels, trials, CHANNELS, TRIALS)
    minus_mass = parts + 2 * nodes * trials
    c3 = _row(coefficients, 3, t, trials)
    d_i = tl.maximum(tl.load(degree + node * trials + t, mask=t_mask, other=1.0), MIN)
    mass_i = tl.load(minus_mass + node * trials + t, mask=t_mask, other=0.0)
    total = tl.zeros((CHANNELS, TRIALS), dtype=s.dtype.element_ty)
    end = tl.load(crow + node + 1)
    for start in range(tl.load(crow + node), end, ENTRIES):
        e, valid, j, mask, at = entries_of(col, start, end, t, t_mask, trials, ENTRIES)
        back = tl.load(reverse + e, mask=valid, other=0).to(tl.int64)
        at_back = back[:, None] * trials + t[None, :]
        at_j = j[:, None] * trials + t[None, :]
        m = _where_free(grad, free, at, mask)
        m_back = _where_free(grad, free, at_back, mask)
        d_j = tl.maximum(tl.load(degree + at_j, mask=mask, other=1.0), MIN)
        mass_j = tl.load(minus_mass + at_j, mask=mask, other=0.0)
        b = (m + mass_i[None, :] * tl.load(s + at, mask=mask, other=0.0) / d_i[None, :]) / d_i[None, :]
        b += (m_back + mass_j * tl.load(s + at_back, mask=mask, other=0.0) / d_j) / d_j
        h_j = rows_of(h, j, valid, inside, offset, channels, trials)
        total += tl.sum((c3[None, :] * b)[:, None, :] * h_j, axis=0)
    tl.store(to_h + node * channels * trials + offset, total, mask=inside)
