"""Shared parts of the kernels on nodes and edges: a program handles a block of trials and a node or a few entries.

Features are (N, C, T) and entry values (E, T), with the T trials last.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl
from torch import Tensor

ENTRIES, TRIALS = 8, 16  # maximum per program
LONG_ROW = 32  # entries at a time, at most, of rows that are long on average
TILE = 1024  # elements per operand and program; more would need too many registers


@triton.jit
def block(channels, trials, CHANNELS: tl.constexpr, TRIALS: tl.constexpr, ONE_TRIAL: tl.constexpr = False):
    """The trials of a program and their mask, (T,); the mask of (C, T), and the offsets of (C, T) in a node's row.

    With ``ONE_TRIAL`` the compiler knows that a row starts where its trial does, and loads several channels at once.
    """
    c, t = tl.arange(0, CHANNELS), tl.arange(0, TRIALS)
    if not ONE_TRIAL:
        t += tl.program_id(1) * TRIALS
    t_mask = t < trials
    return t, t_mask, (c < channels)[:, None] & t_mask[None, :], c[:, None] * trials + t[None, :]


@triton.jit
def rows_of(v, nodes, valid, inside, offset, channels, trials):
    """(entries, C, T) the rows of v (N, C, T) at ``nodes``."""
    pointer = v + nodes[:, None, None].to(tl.int64) * channels * trials + offset[None, :, :]
    return tl.load(pointer, mask=valid[:, None, None] & inside[None, :, :], other=0.0)


@triton.jit
def columns_of(col, start, end, ENTRIES: tl.constexpr):
    """The columns of the entries from ``start`` on; 0 from ``end`` on."""
    e = start + tl.arange(0, ENTRIES)
    return tl.load(col + e, mask=e < end, other=0)


@triton.jit
def row_of(crow, col, ENTRIES: tl.constexpr):
    """The node of a program, the first entry of its row, the length of the row and its first columns.

    Places in a row are 32-bit, which saves registers; only its first entry may be beyond.
    """
    node = tl.program_id(0).to(tl.int64)
    first = tl.load(crow + node)
    length = (tl.load(crow + node + 1) - first).to(tl.int32)
    return node, first, length, columns_of(col + first, 0, length, ENTRIES)


@triton.jit
def places_of(first, start, end, t, t_mask, trials, ENTRIES: tl.constexpr):
    """Entries of a row: index and mask of each; mask and offsets of their (entries, T) values.

    ``start`` and ``end`` are counted from ``first``.
    """
    place = start + tl.arange(0, ENTRIES)
    valid = place < end
    e = first + place
    return e, valid, valid[:, None] & t_mask[None, :], e[:, None].to(tl.int64) * trials + t[None, :]


@triton.jit
def entries_of(col, start, end, t, t_mask, trials, ENTRIES: tl.constexpr):
    """Entries of a row: index, mask and column of each; mask and offsets of their (entries, T) values."""
    j = columns_of(col, start, end, ENTRIES).to(tl.int64)
    e, valid, mask, at = places_of(0, start, end, t, t_mask, trials, ENTRIES)
    return e, valid, j, mask, at


def tile(
    v: Tensor,
    entries: int = ENTRIES,
    trials: int = TRIALS,
    warps: int = 1,
    size: int = TILE,
    per_row: float | None = None,
) -> tuple[dict[str, int], int]:
    """The numbers of entries, channels and trials per program, and the number of blocks of trials, for v (…, C, T).

    Args:
        v: the features.
        entries, trials: the maximum per program.
        warps: warps per program.
        size: the maximum number of elements per operand.
        per_row: the mean number of entries per row. If a program handles few trials, it loads this number of entries
            at once and not ``entries``, because it waits for memory each time.
    """
    channels = triton.next_power_of_2(v.size(1))
    trials = max(1, min(triton.next_power_of_2(v.size(2)), trials, size // channels))
    if per_row is not None:
        entries = max(entries, min(triton.next_power_of_2(math.ceil(per_row)), LONG_ROW))
    entries = max(1, min(entries, size // (channels * trials)))
    shape = {"ENTRIES": entries, "CHANNELS": channels, "TRIALS": trials, "num_warps": warps}
    return shape, triton.cdiv(v.size(2), trials)
