"""Sparse products on a GPU: one program sums each row of the result, always in the same order.

cuSPARSE sums in an order that changes from run to run; gathering, multiplying and reducing with torch moves every
product through memory three times.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

MANY = 2**15  # number of programs that keeps the GPU busy


@triton.jit
def _sum_rows(
    crow, col, value, keep, order, scale, dense, out,
    nnz, columns, dense_trial, dense_row, out_trial, out_row,
    GATHERED: tl.constexpr, MASKED: tl.constexpr, ORDERED: tl.constexpr, ENTRIES: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """out[t, r, c] = scale[t] · Σ over entries e of row r with keep[t, e] of value[e] · dense[t, col[e], c]."""
    row, trial = tl.program_id(0).to(tl.int64), tl.program_id(2).to(tl.int64)
    c = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = c < columns
    total = tl.zeros((WIDTH,), dtype=out.dtype.element_ty)
    end = tl.load(crow + row + 1)
    for start in range(tl.load(crow + row), end, ENTRIES):
        e = start + tl.arange(0, ENTRIES)
        valid = e < end
        if MASKED:
            position = e
            if ORDERED:
                position = tl.load(order + e, mask=valid, other=0)
            valid = valid & (tl.load(keep + trial * nnz + position, mask=valid, other=0) != 0)
        source = e
        if GATHERED:
            source = tl.load(col + e, mask=valid, other=0)
        block = tl.load(
            dense + trial * dense_trial + source[:, None].to(tl.int64) * dense_row + c[None, :],
            mask=valid[:, None] & inside[None, :],
            other=0.0,
        )
        if GATHERED:
            block *= tl.load(value + e, mask=valid, other=0.0)[:, None]
        total += tl.sum(block, axis=0)
    if MASKED:
        total *= tl.load(scale + trial)
    tl.store(out + trial * out_trial + row * out_row + c, total, mask=inside)


def sum_rows(
    crow: Tensor,
    col: Tensor,
    value: Tensor,
    dense: Tensor,
    keep: Tensor | None = None,
    scale: Tensor | None = None,
    order: Tensor | None = None,
) -> Tensor:
    """A sparse matrix times each matrix of ``dense`` (T, cols, C): (T, rows, C); not differentiable.

    Args:
        crow, col, value: the sparse matrix in CSR format.
        dense: copied unless its last dimension is contiguous.
        keep: (T, nnz) bool, the entries that each trial uses; all of them by default.
        scale: (T,) the factor on the kept entries.
        order: (nnz,) the position of each entry in ``keep``; 0 … nnz − 1 by default.
    """
    return _launch(crow, col, value, dense, keep, scale, order)


def sum_segments(values: Tensor, crow: Tensor) -> Tensor:
    """The sum of the rows crow[i] … crow[i+1] − 1 of ``values`` (E, C) for each i."""
    return _launch(crow, None, None, values.unsqueeze(0), None, None, None)[0]


def _launch(
    crow: Tensor,
    col: Tensor | None,
    value: Tensor | None,
    dense: Tensor,
    keep: Tensor | None,
    scale: Tensor | None,
    order: Tensor | None,
) -> Tensor:
    trials, size, columns = dense.shape
    rows = crow.numel() - 1
    dense = dense if dense.stride(2) == 1 else dense.contiguous()
    out = torch.empty(trials, rows, columns, dtype=dense.dtype, device=dense.device)
    if out.numel() == 0:
        return out
    size = size if col is None else col.numel()
    # With few programs the longest row determines the time, so load many entries at once. With many programs the GPU
    # stays busy, so load no more entries than an average row has.
    mean = triton.next_power_of_2(max(2, size // rows))
    width = min(triton.next_power_of_2(columns), 256)
    if mean > 2 and rows * trials * triton.cdiv(columns, width) < MANY:
        width, entries = min(width, 64), 32
    else:
        entries = min(mean, 16)
    grid = (rows, triton.cdiv(columns, width), trials)
    _sum_rows[grid](
        crow, col, value, None if keep is None else keep.contiguous().view(torch.uint8), order, scale, dense, out,
        size, columns, dense.stride(0), dense.stride(1), out.stride(0), out.stride(1),
        GATHERED=col is not None, MASKED=keep is not None, ORDERED=order is not None, ENTRIES=entries, WIDTH=width,
        num_warps=1 if entries * width <= 1024 else 4,
    )  # fmt: skip
    return out
