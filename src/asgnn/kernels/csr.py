"""Sparse products on a GPU, in Triton: each row of the result is summed by one program, always in the same order.

cuSPARSE adds in an order that changes from run to run; to gather, multiply and reduce with torch moves every product
through memory three times. Triton comes with torch's builds for CUDA.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

MANY = 2**15  # programs


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
        there = e < end
        if MASKED:
            place = e
            if ORDERED:
                place = tl.load(order + e, mask=there, other=0)
            there = there & (tl.load(keep + trial * nnz + place, mask=there, other=0) != 0)
        place = e
        if GATHERED:
            place = tl.load(col + e, mask=there, other=0)
        block = tl.load(
            dense + trial * dense_trial + place[:, None].to(tl.int64) * dense_row + c[None, :],
            mask=there[:, None] & inside[None, :],
            other=0.0,
        )
        if GATHERED:
            block *= tl.load(value + e, mask=there, other=0.0)[:, None]
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
    """A sparse matrix times each of ``dense`` (T, cols, C): (T, rows, C); no gradient.

    Args:
        crow, col, value: the matrix by rows.
        dense: its last dimension without gaps.
        keep: (T, nnz) bool, the entries that each trial has; all of them by default.
        scale: (T,) the factor on what is kept.
        order: (nnz,) where in ``keep`` an entry stands; in its own place by default.
    """
    return _launch(crow, col, value, dense, keep, scale, order)


def sum_segments(values: Tensor, crow: Tensor) -> Tensor:
    """Σ of rows crow[i] … crow[i+1] − 1 of ``values`` (E, C), for each i."""
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
    # With few programs all wait for the longest row, so many of its entries are fetched at once; with many there is
    # always work, and no more is fetched than a row has.
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
