"""The three operations of :mod:`asgnn.graphs.edge_ops` on a GPU, without writing anything of size E·C·T.

A program handles a block of trials and either one node with the entries of its row (sums) or a few entries (entry
values). Sums have a fixed order, so results are deterministic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from asgnn.kernels.tiles import block, entries_of, rows_of, tile

if TYPE_CHECKING:
    from asgnn.graphs.adjacency import Adjacency


@triton.jit
def _spmm(
    crow, col, weight, v, out, channels, trials,
    ENTRIES: tl.constexpr, CHANNELS: tl.constexpr, TRIALS: tl.constexpr,
):  # fmt: skip
    node = tl.program_id(0).to(tl.int64)
    t, t_mask, inside, offset = block(channels, trials, CHANNELS, TRIALS)
    total = tl.zeros((CHANNELS, TRIALS), dtype=out.dtype.element_ty)
    end = tl.load(crow + node + 1)
    for start in range(tl.load(crow + node), end, ENTRIES):
        _, valid, j, mask, at = entries_of(col, start, end, t, t_mask, trials, ENTRIES)
        w = tl.load(weight + at, mask=mask, other=0.0)
        total += tl.sum(w[:, None, :] * rows_of(v, j, valid, inside, offset, channels, trials), axis=0)
    tl.store(out + node * channels * trials + offset, total, mask=inside)


@triton.jit
def _entry_values(
    row, col, u, v, out, entries, channels, trials,
    SQUARED: tl.constexpr, ENTRIES: tl.constexpr, CHANNELS: tl.constexpr, TRIALS: tl.constexpr,
):  # fmt: skip
    """The sum over the channels of u_i v_j or (u_i − v_j)² for entries (i, j)."""
    e = tl.program_id(0).to(tl.int64) * ENTRIES + tl.arange(0, ENTRIES)
    t, t_mask, inside, offset = block(channels, trials, CHANNELS, TRIALS)
    valid = e < entries
    i, j = tl.load(row + e, mask=valid, other=0), tl.load(col + e, mask=valid, other=0)
    a = rows_of(u, i, valid, inside, offset, channels, trials)
    b = rows_of(v, j, valid, inside, offset, channels, trials)
    value = tl.sum((a - b) * (a - b) if SQUARED else a * b, axis=1)
    tl.store(out + e[:, None] * trials + t[None, :], value, mask=valid[:, None] & t_mask[None, :])


def spmm(weight: Tensor, v: Tensor, adj: Adjacency) -> Tensor:
    out = torch.empty_like(v, memory_format=torch.contiguous_format)
    if out.numel():
        shape, blocks = tile(v)
        _spmm[adj.num_nodes, blocks](
            adj.crow, adj.col, weight.contiguous(), v.contiguous(), out, v.size(1), v.size(2), **shape
        )
    return out


def sddmm(u: Tensor, v: Tensor, adj: Adjacency) -> Tensor:
    return _entries(u, v, adj, squared=False)


def sqdist(v: Tensor, adj: Adjacency) -> Tensor:
    return _entries(v, v, adj, squared=True)


def _entries(u: Tensor, v: Tensor, adj: Adjacency, squared: bool) -> Tensor:
    entries, (_, channels, trials) = adj.row.numel(), v.shape
    out = v.new_empty(entries, trials)
    if out.numel():
        shape, blocks = tile(v)
        _entry_values[triton.cdiv(entries, shape["ENTRIES"]), blocks](
            adj.row, adj.col, u.contiguous(), v.contiguous(), out, entries, channels, trials, SQUARED=squared, **shape
        )
    return out
