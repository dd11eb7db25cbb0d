"""The dual step of ElasticGNN on a GPU, in Triton: one pass over the dual variables, and one on the way back.

The differences along edges are made where they are needed, out of the rows of nodes, and never written.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from asgnn.asmp.edge_ops_gpu import TILE, tile
from asgnn.graphs.features import Rows

TRIALS, WARPS = 64, 4  # of a program


@triton.jit
def _dual_step(
    w, f, node, value, radius, grad, out, edges, channels, trials,
    FIRST: tl.constexpr, BACKWARD: tl.constexpr,
    ENTRIES: tl.constexpr, CHANNELS: tl.constexpr, TRIALS: tl.constexpr,
):  # fmt: skip
    """z · min(1, radius/‖z‖) with z = w + value_i f_i + value_j f_j, or what its derivative makes of ``grad``."""
    e = tl.program_id(0).to(tl.int64) * ENTRIES + tl.arange(0, ENTRIES)
    c, t = tl.arange(0, CHANNELS), tl.program_id(1) * TRIALS + tl.arange(0, TRIALS)
    there = e < edges
    inside = there[:, None, None] & (c < channels)[None, :, None] & (t < trials)[None, None, :]
    offset = (c[:, None] * trials + t[None, :])[None, :, :]
    place = e[:, None, None] * channels * trials + offset
    i = tl.load(node + 2 * e, mask=there, other=0).to(tl.int64)[:, None, None]
    j = tl.load(node + 2 * e + 1, mask=there, other=0).to(tl.int64)[:, None, None]
    a = tl.load(value + 2 * e, mask=there, other=0.0)[:, None, None]
    b = tl.load(value + 2 * e + 1, mask=there, other=0.0)[:, None, None]
    z = a * tl.load(f + i * channels * trials + offset, mask=inside, other=0.0)
    z += b * tl.load(f + j * channels * trials + offset, mask=inside, other=0.0)
    if not FIRST:
        z += tl.load(w + place, mask=inside, other=0.0)
    most = tl.load(radius + t, mask=t < trials, other=0.0)[None, :]
    squared = tl.sum(z * z, axis=1)
    outside = squared > most * most
    shorter = tl.where(outside, most / tl.sqrt(tl.where(outside, squared, 1.0)), 1.0)
    if BACKWARD:
        g = tl.load(grad + place, mask=inside, other=0.0)
        along = tl.where(outside, shorter / tl.where(outside, squared, 1.0), 0.0) * tl.sum(g * z, axis=1)
        found = g * shorter[:, None, :] - z * along[:, None, :]
    else:
        found = z * shorter[:, None, :]
    tl.store(out + place, found, mask=inside)


def dual_step(w: Tensor | None, f: Tensor, radius: Tensor, pairs: Rows) -> Tensor:
    """W + ``pairs`` · F, each vector along C no longer than its trial's radius: (edges, C, T).

    Args:
        w: (edges, C, T); 0 if ``None``.
        f: (N, C, T).
        radius: (T,), or (1,) for all.
        pairs: (edges, N), two entries in every row.
    """
    return _launch(w, f, radius, pairs, None)


def dual_step_backward(w: Tensor | None, f: Tensor, radius: Tensor, pairs: Rows, grad: Tensor) -> Tensor:
    """What the derivative by w makes of ``grad`` (edges, C, T)."""
    return _launch(w, f, radius, pairs, grad)


def _launch(w: Tensor | None, f: Tensor, radius: Tensor, pairs: Rows, grad: Tensor | None) -> Tensor:
    edges, (_, channels, trials) = pairs.shape[0], f.shape
    out = f.new_empty(edges, channels, trials)
    if not out.numel():
        return out
    shape, blocks = tile(f, TILE, TRIALS, WARPS)
    # blocks of edges run fastest: one block's trials of all nodes are few enough to stay in the cache
    _dual_step[triton.cdiv(edges, shape["ENTRIES"]), blocks](
        None if w is None else w.contiguous(), f.contiguous(), pairs.col, pairs.value,
        radius.expand(trials).contiguous(), None if grad is None else grad.contiguous(), out, edges, channels, trials,
        FIRST=w is None, BACKWARD=grad is not None, **shape,
    )  # fmt: skip
    return out
