"""The three operations of :mod:`asgnn.asmp.edge_ops` on a GPU, in Triton: nothing of size E·C·T is ever written.

A program takes a block of trials and either one node with the entries of its row, a few at a time (sums), or a few
entries (values of entries); sums run in the order of the entries, so results are the same every time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

if TYPE_CHECKING:
    from asgnn.graphs.adjacency import Adjacency


ENTRIES, TRIALS = 8, 16  # of a program, at the most
TILE = 1024  # numbers that a program holds of one operand: no more, or few programs fit into the registers


@triton.jit
def block(channels, trials, CHANNELS: tl.constexpr, TRIALS: tl.constexpr):
    """A program's trials and whether there are such, (T,); the same for (C, T), and where in a node's row each lies."""
    c, t = tl.arange(0, CHANNELS), tl.program_id(1) * TRIALS + tl.arange(0, TRIALS)
    real = t < trials
    return t, real, (c < channels)[:, None] & real[None, :], c[:, None] * trials + t[None, :]


@triton.jit
def rows_of(v, nodes, there, inside, offset, channels, trials):
    """(entries, C, T) the rows of v (N, C, T) at some nodes."""
    place = v + nodes[:, None, None] * channels * trials + offset[None, :, :]
    return tl.load(place, mask=there[:, None, None] & inside[None, :, :], other=0.0)


@triton.jit
def _spmm(
    crow, col, weight, v, out, channels, trials,
    ENTRIES: tl.constexpr, CHANNELS: tl.constexpr, TRIALS: tl.constexpr,
):  # fmt: skip
    node = tl.program_id(0).to(tl.int64)
    t, real, inside, offset = block(channels, trials, CHANNELS, TRIALS)
    total = tl.zeros((CHANNELS, TRIALS), dtype=out.dtype.element_ty)
    end = tl.load(crow + node + 1)
    for start in range(tl.load(crow + node), end, ENTRIES):
        e = start + tl.arange(0, ENTRIES)
        there = e < end
        other = tl.load(col + e, mask=there, other=0)
        w = tl.load(weight + e[:, None] * trials + t[None, :], mask=there[:, None] & real[None, :], other=0.0)
        total += tl.sum(w[:, None, :] * rows_of(v, other, there, inside, offset, channels, trials), axis=0)
    tl.store(out + node * channels * trials + offset, total, mask=inside)


@triton.jit
def _of_entries(
    row, col, u, v, out, entries, channels, trials,
    SQUARED: tl.constexpr, ENTRIES: tl.constexpr, CHANNELS: tl.constexpr, TRIALS: tl.constexpr,
):  # fmt: skip
    """Σ over c of u_i v_j, or of (u_i − v_j)², for entries (i, j)."""
    e = tl.program_id(0).to(tl.int64) * ENTRIES + tl.arange(0, ENTRIES)
    t, real, inside, offset = block(channels, trials, CHANNELS, TRIALS)
    there = e < entries
    i, j = tl.load(row + e, mask=there, other=0), tl.load(col + e, mask=there, other=0)
    a = rows_of(u, i, there, inside, offset, channels, trials)
    b = rows_of(v, j, there, inside, offset, channels, trials)
    found = tl.sum((a - b) * (a - b) if SQUARED else a * b, axis=1)
    tl.store(out + e[:, None] * trials + t[None, :], found, mask=there[:, None] & real[None, :])


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
        _of_entries[triton.cdiv(entries, shape["ENTRIES"]), blocks](
            adj.row, adj.col, u.contiguous(), v.contiguous(), out, entries, channels, trials, SQUARED=squared, **shape
        )
    return out


def tile(
    v: Tensor, entries: int = ENTRIES, trials: int = TRIALS, warps: int = 1, size: int = TILE
) -> tuple[dict[str, int], int]:
    """How much of (entries, channels, trials) a program holds, and how many blocks of trials of v (…, C, T) there are.

    Args:
        v: whose channels and trials.
        entries, trials: of a program, at the most.
        warps: of a program.
        size: of what it holds, at the most.
    """
    channels = triton.next_power_of_2(v.size(1))
    trials = max(1, min(triton.next_power_of_2(v.size(2)), trials, size // channels))
    entries = max(1, min(entries, size // (channels * trials)))
    shape = {"ENTRIES": entries, "CHANNELS": channels, "TRIALS": trials, "num_warps": warps}
    return shape, triton.cdiv(v.size(2), trials)
