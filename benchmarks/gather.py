"""A bare gather on a GPU, the roof of a layer: each node sums the rows of its neighbours and does nothing else."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from asgnn.kernels.tiles import columns_of, row_of


@triton.jit
def _sums(crow, col, h, out, channels, ENTRIES: tl.constexpr, CHANNELS: tl.constexpr):
    node, first, length, columns = row_of(crow, col, ENTRIES)
    c = tl.arange(0, CHANNELS)
    inside = c < channels
    total = tl.zeros((CHANNELS,), dtype=h.dtype.element_ty)
    for begin in range(0, length, ENTRIES):
        valid = begin + tl.arange(0, ENTRIES) < length
        rows = h + columns.to(tl.int64)[:, None] * channels + c[None, :]
        columns = columns_of(col + first, begin + ENTRIES, length, ENTRIES)
        total += tl.sum(tl.load(rows, mask=valid[:, None] & inside[None, :], other=0.0), axis=0)
    tl.store(out + node * channels + c, total, mask=inside)


def sums(crow: Tensor, col: Tensor, h: Tensor, entries: int, warps: int) -> Tensor:
    """(N, C) the sum of the rows of ``h`` (N, C) at the columns of each row.

    Args:
        crow, col: the pattern in CSR format.
        h: contiguous.
        entries: entries that a program loads at once.
        warps: per program.
    """
    out = torch.empty_like(h)
    nodes, channels = h.shape
    _sums[(nodes,)](
        crow, col, h, out, channels, ENTRIES=entries, CHANNELS=triton.next_power_of_2(channels), num_warps=warps
    )
    return out
