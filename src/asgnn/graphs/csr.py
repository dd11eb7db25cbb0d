"""Deterministic sparse products: a CSR matrix times a dense matrix, and segment sums."""

from __future__ import annotations

import warnings
from functools import lru_cache

import torch
from torch import Tensor

from asgnn.kernels import load


def csr_matmul(
    crow: Tensor, col: Tensor, value: Tensor, shape: tuple[int, int], dense: Tensor, out: Tensor | None = None
) -> Tensor:
    """Returns (rows, cols) sparse times (cols, C) dense, without gradient, bitwise reproducible; time O(nnz C).

    The pattern is not checked: :class:`Adjacency` and :class:`Features`, which build it, check their inputs.
    ``out`` avoids allocating a large result, which on a CPU can cost more than the product.
    """
    if not dense.is_cuda:
        return torch.mm(torch.sparse_csr_tensor(crow, col, value, shape, check_invariants=False), dense, out=out)
    found: Tensor = load("csr").sum_rows(crow, col, value, dense.unsqueeze(0))[0]
    return found if out is None else out.copy_(found)


def segment_sum(values: Tensor, crow: Tensor) -> Tensor:
    """Returns, for each i, the sum of rows crow[i] … crow[i+1] − 1 of ``values`` (E, C), always in the same order."""
    if values.is_cuda:
        sums: Tensor = load("csr").sum_segments(values, crow)
        return sums
    # On a CPU, a product with a 0/1 matrix is torch's fastest ordered segment sum.
    each, ones = _incidence(values.size(0), values.dtype)
    return csr_matmul(crow, each, ones, (crow.numel() - 1, values.size(0)), values)


def entries_of_rows(crow: Tensor, rows: Tensor) -> Tensor:
    """Returns the positions of the entries of ``rows`` (n,), row after row; time O(n + entries)."""
    first, count = crow[rows], crow[rows + 1] - crow[rows]
    ends = count.cumsum(0)
    shift = torch.repeat_interleave(first - ends + count, count)
    return shift + torch.arange(shift.numel(), device=crow.device)


@lru_cache(maxsize=4)
def _incidence(size: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return torch.arange(size), torch.ones(size, dtype=dtype)


# torch warns once per process that its CSR layout is in beta; trigger and hide that warning here.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    _one = torch.zeros(1, dtype=torch.int64)
    csr_matmul(torch.tensor([0, 1]), _one, torch.ones(1), (1, 1), torch.ones(1, 1))
