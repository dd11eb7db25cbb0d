"""The product of a sparse matrix with a dense one on a CPU, with the entries that dropout keeps."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from asgnn.kernels.cpu.compiled import compiled
from asgnn.kernels.cpu.tasks import Crew, ranges
from asgnn.kernels.cpu.vectors import WIDTH, add, fill, load, mul, store

FOUR = 4 * WIDTH
ZERO, ONE = np.uintp(0), np.uintp(1)


@compiled
def _rows(first, last, crow, col, value, keep, order, scale, dense, width, out):
    """out[r] = scale · Σ over the kept entries e of row r of value[e] · dense[col[e]]; all arrays are flat.

    ``keep`` is empty if all entries are kept, and ``order`` if entry e of the matrix is element e of ``keep``.
    """
    zero = dense.dtype.type(0)
    longest = 0
    for r in range(first, last):
        longest = max(longest, crow[r + 1] - crow[r])
    starts, values = np.empty(longest, np.intp), np.empty(longest, dense.dtype)
    for r in range(first, last):
        count = ZERO
        if keep.size == 0:
            for k in range(crow[r], crow[r + 1]):
                starts[count], values[count] = col[np.uintp(k)] * width, value[np.uintp(k)]
                count += ONE
        else:
            for k in range(crow[r], crow[r + 1]):
                e = np.uintp(k)
                starts[count], values[count] = col[e] * width, scale * value[e]
                # an entry that is not kept is overwritten by the next one
                count += np.uintp(keep[np.uintp(order[e]) if order.size else e])
        mine, column = r * width, 0
        while column + FOUR <= width:
            a, b, c, d = fill(zero), fill(zero), fill(zero), fill(zero)
            for n in range(count):
                at, v = starts[n] + column, fill(values[n])
                a = add(a, mul(v, load(dense, at)))
                b = add(b, mul(v, load(dense, at + WIDTH)))
                c = add(c, mul(v, load(dense, at + 2 * WIDTH)))
                d = add(d, mul(v, load(dense, at + 3 * WIDTH)))
            store(out, mine + column, a)
            store(out, mine + column + WIDTH, b)
            store(out, mine + column + 2 * WIDTH, c)
            store(out, mine + column + 3 * WIDTH, d)
            column += FOUR
        while column + WIDTH <= width:
            a = fill(zero)
            for n in range(count):
                a = add(a, mul(fill(values[n]), load(dense, starts[n] + column)))
            store(out, mine + column, a)
            column += WIDTH
        while column < width:
            number = zero
            for n in range(count):
                number += values[n] * dense[starts[n] + column]
            out[mine + column] = number
            column += 1


def times(
    crow: Tensor,
    col: Tensor,
    value: Tensor,
    dense: Tensor,
    keep: Tensor | None = None,
    scale: Tensor | None = None,
    order: Tensor | None = None,
) -> Tensor:
    """A sparse matrix times each matrix of ``dense`` (T, cols, H): (T, rows, H); not differentiable.

    Args:
        crow, col, value: the sparse matrix in CSR format.
        dense: one matrix per trial.
        keep: (T, nnz) bool, the entries that each trial uses; all of them by default.
        scale: (T,) the factor on the kept entries.
        order: (nnz,) the position of each entry in ``keep``; 0 … nnz − 1 by default.

    Time O(T (nnz + kept · H)).
    """
    trials, _, width = dense.shape
    rows = crow.numel() - 1
    out = torch.empty(trials, rows, width, dtype=dense.dtype)
    matrix = crow.numpy(), col.numpy(), value.numpy()
    kept = np.empty((trials, 0), np.bool_) if keep is None else keep.contiguous().numpy()
    places = np.empty(0, np.int64) if order is None else order.numpy()
    factors = np.ones(trials, matrix[2].dtype) if scale is None else scale.numpy()
    sources, results = dense.contiguous().view(trials, -1).numpy(), out.view(trials, -1).numpy()

    def task(trial: int, first: int, last: int) -> None:
        _rows(first, last, *matrix, kept[trial], places, factors[trial], sources[trial], width, results[trial])

    tasks = [(trial, *part) for trial in range(trials) for part in ranges(matrix[0])]
    with Crew(len(tasks), trials * col.numel() * width) as crew:
        crew.map(task, tasks)
    return out
