"""The product of a matrix with one of at most WIDTH columns on a CPU, for which libraries are not made."""

from __future__ import annotations

import torch
from torch import Tensor

from asgnn.kernels.cpu.compiled import compiled
from asgnn.kernels.cpu.vectors import WIDTH, add, fill, load, mul, store


@compiled
def _product(h, weights, rows, inner, columns, out):
    """out = h · weights; all arrays are flat. ``weights`` is (inner, WIDTH); ``out`` has WIDTH − columns to spare."""
    zero = h.dtype.type(0)
    for r in range(rows):
        a, b, c, d = fill(zero), fill(zero), fill(zero), fill(zero)
        row = h[r * inner : (r + 1) * inner]
        k = 0
        while k + 4 <= inner:
            a = add(a, mul(fill(row[k]), load(weights, k * WIDTH)))
            b = add(b, mul(fill(row[k + 1]), load(weights, (k + 1) * WIDTH)))
            c = add(c, mul(fill(row[k + 2]), load(weights, (k + 2) * WIDTH)))
            d = add(d, mul(fill(row[k + 3]), load(weights, (k + 3) * WIDTH)))
            k += 4
        while k < inner:
            a = add(a, mul(fill(row[k]), load(weights, k * WIDTH)))
            k += 1
        # what is beyond the row is overwritten by the next one
        store(out, r * columns, add(add(a, b), add(c, d)))


def product(h: Tensor, weights: Tensor) -> Tensor:
    """h (T, N, in) times ``weights`` (T, in, out) with out ≤ WIDTH; not differentiable."""
    trials, rows, inner = h.shape
    columns = weights.size(2)
    padded = torch.zeros(trials, inner, WIDTH, dtype=h.dtype)
    padded[..., :columns] = weights
    out = torch.empty(trials * rows * columns + WIDTH - columns, dtype=h.dtype)
    whole, factors, results = h.contiguous().view(trials, -1).numpy(), padded.view(trials, -1).numpy(), out.numpy()
    for trial in range(trials):
        _product(whole[trial], factors[trial], rows, inner, columns, results[trial * rows * columns :])
    return out[: trials * rows * columns].view(trials, rows, columns)
