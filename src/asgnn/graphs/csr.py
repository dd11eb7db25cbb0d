"""The sparse product that everything here is made of: rows of a CSR matrix times a dense one."""

from __future__ import annotations

import warnings
from functools import lru_cache

import torch
from torch import Tensor

from asgnn.kernels import load


def csr_matmul(
    crow: Tensor, col: Tensor, value: Tensor, shape: tuple[int, int], dense: Tensor, out: Tensor | None = None
) -> Tensor:
    """(rows, cols) sparse times (cols, C) dense, no gradient; time O(nnz C); the same bits every time.

    The pattern is trusted: it is made by :class:`Adjacency` and :class:`Features`, which check what they take.
    ``out`` saves a large result the making of fresh memory, which on a CPU can cost more than the product.
    """
    if not dense.is_cuda:
        return torch.mm(torch.sparse_csr_tensor(crow, col, value, shape, check_invariants=False), dense, out=out)
    found: Tensor = load("csr").sum_rows(crow, col, value, dense.unsqueeze(0))[0]
    return found if out is None else out.copy_(found)


def segment_sum(values: Tensor, crow: Tensor) -> Tensor:
    """Σ of rows crow[i] … crow[i+1] − 1 of ``values`` (E, C), for each i, always in the same order."""
    if values.is_cuda:
        sums: Tensor = load("csr").sum_segments(values, crow)
        return sums
    # A product with a 0/1 matrix is the fastest ordered segment sum that torch has on a CPU.
    each, ones = _incidence(values.size(0), values.dtype)
    return csr_matmul(crow, each, ones, (crow.numel() - 1, values.size(0)), values)


@lru_cache(maxsize=4)
def _incidence(size: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return torch.arange(size), torch.ones(size, dtype=dtype)


# torch says once a process that its CSR layout is in beta; say it to nobody, here, rather than to every user.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    _one = torch.zeros(1, dtype=torch.int64)
    csr_matmul(torch.tensor([0, 1]), _one, torch.ones(1), (1, 1), torch.ones(1, 1))
