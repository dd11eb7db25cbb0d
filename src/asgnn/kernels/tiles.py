"""What kernels on nodes and edges share: a program takes a block of trials, and a node or a few entries.

Features are (N, C, T), values of entries (E, T), T trials innermost.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

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
def entries_of(col, start, end, t, real, trials, ENTRIES: tl.constexpr):
    """Some entries of a row: number, mask and column of each; mask and place of their (entries, T) values."""
    e = start + tl.arange(0, ENTRIES)
    there = e < end
    j = tl.load(col + e, mask=there, other=0).to(tl.int64)
    return e, there, j, there[:, None] & real[None, :], e[:, None] * trials + t[None, :]


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
