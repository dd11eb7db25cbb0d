"""The sparse product that everything here is made of: rows of a CSR matrix times a dense one."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor


def csr_matmul(crow: Tensor, col: Tensor, value: Tensor, shape: tuple[int, int], dense: Tensor) -> Tensor:
    """(rows, cols) sparse times (cols, C) dense, no gradient; time O(nnz C).

    The pattern is trusted: it is made by :class:`Adjacency` and :class:`Features`, which check what they take.
    """
    return torch.sparse_csr_tensor(crow, col, value, shape, check_invariants=False) @ dense


# torch says once a process that its CSR layout is in beta; say it to nobody, here, rather than to every user.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    _one = torch.zeros(1, dtype=torch.int64)
    csr_matmul(torch.tensor([0, 1]), _one, torch.ones(1), (1, 1), torch.ones(1, 1))
