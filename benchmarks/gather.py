"""A bare gather on a GPU, the roof of a layer: each node sums the rows of its neighbours and does nothing else."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from asgnn.kernels.tiles import first_row, next_columns


@triton.jit
def _sums(
    crow, col, h, out, nodes, channels, NODES: tl.constexpr, ENTRIES: tl.constexpr, CHANNELS: tl.constexpr
):  # fmt: skip
    first, last, start, end, next_end, columns = first_row(crow, col, nodes, NODES, ENTRIES)
    c = tl.arange(0, CHANNELS)
    inside = c < channels
    for node in range(first, last):
        end_after = tl.load(crow + tl.minimum(node + 3, last))
        total = tl.zeros((CHANNELS,), dtype=h.dtype.element_ty)
        for begin in range(start, tl.maximum(end, start + 1), ENTRIES):
            valid = begin + tl.arange(0, ENTRIES) < end
            rows = h + columns.to(tl.int64)[:, None] * channels + c[None, :]
            columns = next_columns(col, begin, end, next_end, ENTRIES)
            total += tl.sum(tl.load(rows, mask=valid[:, None] & inside[None, :], other=0.0), axis=0)
        start, end, next_end = end, next_end, end_after
        tl.store(out + node * channels + c, total, mask=inside)


def sums(crow: Tensor, col: Tensor, h: Tensor, entries: int, warps: int, together: int) -> Tensor:
    """(N, C) the sum of the rows of ``h`` (N, C) at the columns of each row.

    Args:
        crow, col: the pattern in CSR format.
        h: contiguous.
        entries: entries that a program loads at once.
        warps: per program.
        together: nodes per program.
    """
    out = torch.empty_like(h)
    nodes, channels = h.shape
    _sums[(triton.cdiv(nodes, together),)](
        crow, col, h, out, nodes, channels,
        NODES=together, ENTRIES=entries, CHANNELS=triton.next_power_of_2(channels), num_warps=warps,
    )  # fmt: skip
    return out
