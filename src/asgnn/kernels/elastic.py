"""A layer of ElasticGNN on a GPU: three kernels forward and three backward.

Tensors with a value per edge, channel and trial cause most of the memory traffic: the forward pass reads W twice and
writes it once. Differences along edges are computed from the node rows where needed and never written. First
derivatives only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from asgnn.kernels.tiles import TILE, block, entries_of, rows_of, tile

if TYPE_CHECKING:
    from asgnn.graphs.features import Rows

# Maximum per program; a program on a node has fewer operands than one on edges, so each may be larger.
ON_EDGES = {"entries": TILE, "trials": 64, "warps": 4}
ON_NODE = {"entries": 8, "trials": 32, "warps": 2, "size": 2 * TILE}


class Layer(torch.autograd.Function):
    """One layer of ``ElasticGNN.propagate``: maps F, W and −Δ̃ᵀW to their next values.

    Args:
        f, w, pull: (N, C, T), (edges, C, T), (N, C, T); w and pull are ``None`` in the first layer, where they are 0.
        anchor: (N, C, T) γX.
        rest: (T,) 1 − γ.
        radius: (T,) γλ₁.
        average: D^(−1/2) A D^(−1/2), symmetric.
        half: Δ̃/2, with two entries in every row.
        transposed: the transpose of ``half``.
    """

    @staticmethod
    def forward(
        ctx: Any,
        f: Tensor,
        w: Tensor | None,
        pull: Tensor | None,
        anchor: Tensor,
        rest: Tensor,
        radius: Tensor,
        average: Rows,
        half: Rows,
        transposed: Rows,
    ) -> tuple[Tensor, Tensor, Tensor]:
        y, _, ahead = _gather(average, f, scale=rest, add=anchor, more=pull)
        step_from = y if ahead is None else ahead
        new_w = _on_edges(half, w, step_from, radius)
        new_f, new_pull, _ = _gather(transposed, new_w, factor=-2.0, add=y, sums=True)
        ctx.matrices = average, half, transposed
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(w, step_from, rest, radius)
        assert new_pull is not None
        return new_f, new_w, new_pull

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_f: Tensor | None, grad_w: Tensor | None, grad_pull: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        average, half, transposed = ctx.matrices
        w, step_from, rest, radius = ctx.saved_tensors
        grad_f = torch.zeros_like(step_from) if grad_f is None else grad_f.contiguous()
        to_z = _on_edges(half, w, step_from, radius, grads=(grad_f, grad_w, grad_pull))
        to_y, to_pull, _ = _gather(transposed, to_z, add=grad_f, sums=True)
        to_f, _, _ = _gather(average, to_y, scale=rest)
        return to_f, to_z if w is not None else None, to_pull if w is not None else None, to_y, *(None,) * 5


@triton.jit
def _sum_rows(
    crow, col, value, dense, scale, add, more, out, sums, ahead, factor, channels, trials,
    SCALED: tl.constexpr, ADDED: tl.constexpr, SUMS: tl.constexpr, MORE: tl.constexpr,
    ENTRIES: tl.constexpr, CHANNELS: tl.constexpr, TRIALS: tl.constexpr,
):  # fmt: skip
    """sums = factor · scale · matrix · dense; out = sums + add; ahead = out + more."""
    node = tl.program_id(0).to(tl.int64)
    t, t_mask, inside, offset = block(channels, trials, CHANNELS, TRIALS)
    row_offset = node * channels * trials + offset
    total = tl.zeros((CHANNELS, TRIALS), dtype=out.dtype.element_ty)
    end = tl.load(crow + node + 1)
    for start in range(tl.load(crow + node), end, ENTRIES):
        e, valid, j, _, _ = entries_of(col, start, end, t, t_mask, trials, ENTRIES)
        values = rows_of(dense, j, valid, inside, offset, channels, trials)
        total += tl.sum(tl.load(value + e, mask=valid, other=0.0)[:, None, None] * values, axis=0)
    total *= factor
    if SCALED:
        total *= tl.load(scale + t, mask=t_mask, other=0.0)[None, :]
    if SUMS:
        tl.store(sums + row_offset, total, mask=inside)
    if ADDED:
        total += tl.load(add + row_offset, mask=inside, other=0.0)
    tl.store(out + row_offset, total, mask=inside)
    if MORE:
        tl.store(ahead + row_offset, total + tl.load(more + row_offset, mask=inside, other=0.0), mask=inside)


def _gather(
    matrix: Rows,
    dense: Tensor,
    *,
    factor: float = 1.0,
    scale: Tensor | None = None,
    add: Tensor | None = None,
    more: Tensor | None = None,
    sums: bool = False,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """out = factor · scale · matrix · dense + add, the same without add if ``sums``, and out + ``more`` if given."""
    rows, (_, channels, trials) = matrix.shape[0], dense.shape
    out = dense.new_empty(rows, channels, trials)
    alone = torch.empty_like(out) if sums else None
    ahead = None if more is None else torch.empty_like(out)
    if out.numel():
        shape, blocks = tile(dense, **ON_NODE)
        optional = (None if part is None else part.contiguous() for part in (scale, add, more))
        _sum_rows[rows, blocks](
            matrix.crow, matrix.col, matrix.value, dense.contiguous(), *optional, out, alone, ahead,
            factor, channels, trials,
            SCALED=scale is not None, ADDED=add is not None, SUMS=sums, MORE=more is not None, **shape,
        )  # fmt: skip
    return out, alone, ahead


@triton.jit
def _dual_step(
    node, value, w, f, radius, grad_f, grad_w, grad_pull, out, edges, channels, trials,
    FIRST: tl.constexpr, BACK: tl.constexpr, GRAD_W: tl.constexpr, GRAD_PULL: tl.constexpr,
    ENTRIES: tl.constexpr, CHANNELS: tl.constexpr, TRIALS: tl.constexpr,
):  # fmt: skip
    """z · min(1, radius/‖z‖) with z = w + value_i f_i + value_j f_j, or the gradient in z.

    The gradient in the new w is its own plus the one through −Δ̃ᵀW; ``value`` holds Δ̃/2.
    """
    e = tl.program_id(0).to(tl.int64) * ENTRIES + tl.arange(0, ENTRIES)
    t, t_mask, inside, offset = block(channels, trials, CHANNELS, TRIALS)
    valid = e < edges
    i = tl.load(node + 2 * e, mask=valid, other=0).to(tl.int64)
    j = tl.load(node + 2 * e + 1, mask=valid, other=0).to(tl.int64)
    a = tl.load(value + 2 * e, mask=valid, other=0.0)[:, None, None]
    b = tl.load(value + 2 * e + 1, mask=valid, other=0.0)[:, None, None]
    z = a * rows_of(f, i, valid, inside, offset, channels, trials)
    z += b * rows_of(f, j, valid, inside, offset, channels, trials)
    if not FIRST:
        z += rows_of(w, e, valid, inside, offset, channels, trials)
    limit = tl.load(radius + t, mask=t_mask, other=0.0)[None, :]
    squared = tl.sum(z * z, axis=1)
    outside = squared > limit * limit
    shorter = tl.where(outside, limit / tl.sqrt(tl.where(outside, squared, 1.0)), 1.0)
    if BACK:
        g = a * rows_of(grad_f, i, valid, inside, offset, channels, trials)
        g += b * rows_of(grad_f, j, valid, inside, offset, channels, trials)
        if GRAD_PULL:
            g += a * rows_of(grad_pull, i, valid, inside, offset, channels, trials)
            g += b * rows_of(grad_pull, j, valid, inside, offset, channels, trials)
        g *= -2
        if GRAD_W:
            g += rows_of(grad_w, e, valid, inside, offset, channels, trials)
        along = tl.where(outside, shorter / tl.where(outside, squared, 1.0), 0.0) * tl.sum(g * z, axis=1)
        result = g * shorter[:, None, :] - z * along[:, None, :]
    else:
        result = z * shorter[:, None, :]
    pointer = out + e[:, None, None] * channels * trials + offset[None, :, :]
    tl.store(pointer, result, mask=valid[:, None, None] & inside[None, :, :])


def _on_edges(
    half: Rows,
    w: Tensor | None,
    f: Tensor,
    radius: Tensor,
    grads: tuple[Tensor, Tensor | None, Tensor | None] | None = None,
) -> Tensor:
    """The new W (edges, C, T) or, with gradients in the new F, W and pull, the gradient in W before the projection."""
    edges, (_, channels, trials) = half.shape[0], f.shape
    out = f.new_empty(edges, channels, trials)
    if not out.numel():
        return out
    shape, blocks = tile(f, **ON_EDGES)
    grad_f, grad_w, grad_pull = (None if part is None else part.contiguous() for part in grads or (None, None, None))
    # the blocks of edges vary fastest, so that the node features of one block of trials stay in the cache
    _dual_step[triton.cdiv(edges, shape["ENTRIES"]), blocks](
        half.col, half.value, w, f, radius, grad_f, grad_w, grad_pull, out, edges, channels, trials,
        FIRST=w is None, BACK=grads is not None, GRAD_W=grad_w is not None, GRAD_PULL=grad_pull is not None, **shape,
    )  # fmt: skip
    return out
