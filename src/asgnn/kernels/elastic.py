"""A layer of ElasticGNN on a GPU, in Triton: three kernels, and three on the way back.

What has a value for each edge, channel and trial is most of the memory that a layer moves: on the way W is read twice
and written once. Differences along edges are made where they are needed, out of the rows of nodes, and never written.
First derivatives only.
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

# Of a program, at the most; one on a node holds fewer operands than one on edges, and so more of each.
ON_EDGES = {"entries": TILE, "trials": 64, "warps": 4}
ON_NODE = {"entries": 8, "trials": 32, "warps": 2, "size": 2 * TILE}


class Layer(torch.autograd.Function):
    """One layer, in the terms of ``ElasticGNN.propagate``: F, W and −Δ̃ᵀW before it → the same after it.

    Args:
        f, w, pull: (N, C, T), (edges, C, T), (N, C, T); the last two are ``None`` in the first layer, where they are 0.
        own: (N, C, T) γX.
        rest: (T,) 1 − γ.
        radius: (T,) γλ₁.
        average: D^(−1/2) A D^(−1/2), symmetric.
        half: Δ̃/2, two entries in every row; transposed, its transpose.
    """

    @staticmethod
    def forward(
        ctx: Any,
        f: Tensor,
        w: Tensor | None,
        pull: Tensor | None,
        own: Tensor,
        rest: Tensor,
        radius: Tensor,
        average: Rows,
        half: Rows,
        transposed: Rows,
    ) -> tuple[Tensor, Tensor, Tensor]:
        y, _, ahead = _gather(average, f, scale=rest, add=own, more=pull)
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
        ctx: Any, of_f: Tensor | None, of_w: Tensor | None, of_pull: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        average, half, transposed = ctx.matrices
        w, step_from, rest, radius = ctx.saved_tensors
        of_f = torch.zeros_like(step_from) if of_f is None else of_f.contiguous()
        to_z = _on_edges(half, w, step_from, radius, grads=(of_f, of_w, of_pull))
        to_y, to_pull, _ = _gather(transposed, to_z, add=of_f, sums=True)
        to_f, _, _ = _gather(average, to_y, scale=rest)
        return to_f, to_z if w is not None else None, to_pull if w is not None else None, to_y, *(None,) * 5


@triton.jit
def _sum_rows_of(
    crow, col, value, dense, scale, add, more, out, sums, ahead, factor, channels, trials,
    SCALED: tl.constexpr, ADDED: tl.constexpr, SUMS: tl.constexpr, MORE: tl.constexpr,
    ENTRIES: tl.constexpr, CHANNELS: tl.constexpr, TRIALS: tl.constexpr,
):  # fmt: skip
    """sums = factor · scale · matrix · dense; out = sums + add; ahead = out + more."""
    node = tl.program_id(0).to(tl.int64)
    t, real, inside, offset = block(channels, trials, CHANNELS, TRIALS)
    own = node * channels * trials + offset
    total = tl.zeros((CHANNELS, TRIALS), dtype=out.dtype.element_ty)
    end = tl.load(crow + node + 1)
    for start in range(tl.load(crow + node), end, ENTRIES):
        e, there, j, _, _ = entries_of(col, start, end, t, real, trials, ENTRIES)
        values = rows_of(dense, j, there, inside, offset, channels, trials)
        total += tl.sum(tl.load(value + e, mask=there, other=0.0)[:, None, None] * values, axis=0)
    total *= factor
    if SCALED:
        total *= tl.load(scale + t, mask=real, other=0.0)[None, :]
    if SUMS:
        tl.store(sums + own, total, mask=inside)
    if ADDED:
        total += tl.load(add + own, mask=inside, other=0.0)
    tl.store(out + own, total, mask=inside)
    if MORE:
        tl.store(ahead + own, total + tl.load(more + own, mask=inside, other=0.0), mask=inside)


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
    """factor · scale · matrix · dense + add; that without what is added, if asked for; and the first plus ``more``."""
    rows, (_, channels, trials) = matrix.shape[0], dense.shape
    out = dense.new_empty(rows, channels, trials)
    alone = torch.empty_like(out) if sums else None
    ahead = None if more is None else torch.empty_like(out)
    if out.numel():
        shape, blocks = tile(dense, **ON_NODE)
        given = (None if part is None else part.contiguous() for part in (scale, add, more))
        _sum_rows_of[rows, blocks](
            matrix.crow, matrix.col, matrix.value, dense.contiguous(), *given, out, alone, ahead,
            factor, channels, trials,
            SCALED=scale is not None, ADDED=add is not None, SUMS=sums, MORE=more is not None, **shape,
        )  # fmt: skip
    return out, alone, ahead


@triton.jit
def _dual_step(
    node, value, w, f, radius, of_f, of_w, of_pull, out, edges, channels, trials,
    FIRST: tl.constexpr, BACK: tl.constexpr, OF_W: tl.constexpr, OF_PULL: tl.constexpr,
    ENTRIES: tl.constexpr, CHANNELS: tl.constexpr, TRIALS: tl.constexpr,
):  # fmt: skip
    """z · min(1, radius/‖z‖) with z = w + value_i f_i + value_j f_j, or what its derivative makes of the gradients.

    The gradient in the new w is its own, and what comes through −Δ̃ᵀW, of which ``value`` has half.
    """
    e = tl.program_id(0).to(tl.int64) * ENTRIES + tl.arange(0, ENTRIES)
    t, real, inside, offset = block(channels, trials, CHANNELS, TRIALS)
    there = e < edges
    i = tl.load(node + 2 * e, mask=there, other=0).to(tl.int64)
    j = tl.load(node + 2 * e + 1, mask=there, other=0).to(tl.int64)
    a = tl.load(value + 2 * e, mask=there, other=0.0)[:, None, None]
    b = tl.load(value + 2 * e + 1, mask=there, other=0.0)[:, None, None]
    z = a * rows_of(f, i, there, inside, offset, channels, trials)
    z += b * rows_of(f, j, there, inside, offset, channels, trials)
    if not FIRST:
        z += rows_of(w, e, there, inside, offset, channels, trials)
    most = tl.load(radius + t, mask=real, other=0.0)[None, :]
    squared = tl.sum(z * z, axis=1)
    outside = squared > most * most
    shorter = tl.where(outside, most / tl.sqrt(tl.where(outside, squared, 1.0)), 1.0)
    if BACK:
        g = a * rows_of(of_f, i, there, inside, offset, channels, trials)
        g += b * rows_of(of_f, j, there, inside, offset, channels, trials)
        if OF_PULL:
            g += a * rows_of(of_pull, i, there, inside, offset, channels, trials)
            g += b * rows_of(of_pull, j, there, inside, offset, channels, trials)
        g *= -2
        if OF_W:
            g += rows_of(of_w, e, there, inside, offset, channels, trials)
        along = tl.where(outside, shorter / tl.where(outside, squared, 1.0), 0.0) * tl.sum(g * z, axis=1)
        found = g * shorter[:, None, :] - z * along[:, None, :]
    else:
        found = z * shorter[:, None, :]
    place = out + e[:, None, None] * channels * trials + offset[None, :, :]
    tl.store(place, found, mask=there[:, None, None] & inside[None, :, :])


def _on_edges(
    half: Rows,
    w: Tensor | None,
    f: Tensor,
    radius: Tensor,
    grads: tuple[Tensor, Tensor | None, Tensor | None] | None = None,
) -> Tensor:
    """The new W (edges, C, T) or, given the gradients in the new F, W and pull, the gradient in what was projected."""
    edges, (_, channels, trials) = half.shape[0], f.shape
    out = f.new_empty(edges, channels, trials)
    if not out.numel():
        return out
    shape, blocks = tile(f, **ON_EDGES)
    of_f, of_w, of_pull = (None if part is None else part.contiguous() for part in grads or (None, None, None))
    # blocks of edges run fastest: one block's trials of all nodes are few enough to stay in the cache
    _dual_step[triton.cdiv(edges, shape["ENTRIES"]), blocks](
        half.col, half.value, w, f, radius, of_f, of_w, of_pull, out, edges, channels, trials,
        FIRST=w is None, BACK=grads is not None, OF_W=of_w is not None, OF_PULL=of_pull is not None, **shape,
    )  # fmt: skip
    return out
