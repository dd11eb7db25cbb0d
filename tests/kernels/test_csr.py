"""Sparse products and segment sums equal dense ones."""

from __future__ import annotations

import pytest
import torch

from asgnn.kernels.csr import sum_rows, sum_segments
from tests.kernels.machine import CLOSE, DEVICE, cases


@pytest.mark.parametrize("dtype", CLOSE, ids=["float32", "float64"])
@pytest.mark.parametrize(
    ("rows", "cols", "width", "trials"),
    cases([(5, 7, 3, 2), (4, 3, 300, 1), (1, 1, 1, 1), (3, 50, 70, 2), (9, 2, 7, 3)], [(33, 50, 64, 3), (40, 9, 7, 5)]),
)
def test_sum_rows(rows: int, cols: int, width: int, trials: int, dtype: torch.dtype) -> None:
    rng = torch.Generator().manual_seed(rows)
    matrix = torch.randn(rows, cols, generator=rng, dtype=dtype) * (torch.rand(rows, cols, generator=rng) < 0.6)
    matrix[0], matrix[rows // 2] = 1, 0  # a full row and an empty one
    sparse = matrix.to_sparse_csr()
    parts = [part.to(DEVICE) for part in (sparse.crow_indices(), sparse.col_indices(), sparse.values())]
    dense = torch.randn(trials, cols, width, generator=rng, dtype=dtype)
    for layout in (dense, dense.permute(1, 2, 0).contiguous().permute(2, 0, 1)):
        torch.testing.assert_close(sum_rows(*parts, layout.to(DEVICE)).cpu(), matrix @ dense, **CLOSE[dtype])
    nnz = sparse.values().numel()
    keep, scale = torch.rand(trials, nnz, generator=rng) < 0.5, torch.rand(trials, generator=rng, dtype=dtype)
    masked = torch.zeros(trials, rows, cols, dtype=dtype)
    row, col = matrix.nonzero(as_tuple=True)
    masked[:, row, col] = keep * matrix[row, col] * scale.view(-1, 1)
    out = sum_rows(*parts, dense.to(DEVICE), keep.to(DEVICE), scale.to(DEVICE))
    torch.testing.assert_close(out.cpu(), masked @ dense, **CLOSE[dtype])
    order = torch.randperm(nnz, generator=rng)
    permuted = torch.empty_like(keep)
    permuted[:, order] = keep
    again = sum_rows(*parts, dense.to(DEVICE), permuted.to(DEVICE), scale.to(DEVICE), order.to(DEVICE))
    assert torch.equal(again, out)


@pytest.mark.parametrize("dtype", CLOSE, ids=["float32", "float64"])
@pytest.mark.parametrize("sizes", [[3, 0, 40, 1], [1], [0, 0, 2]])
@pytest.mark.parametrize("width", [1, 7, 300])
def test_sum_segments(sizes: list[int], width: int, dtype: torch.dtype) -> None:
    values = torch.randn(sum(sizes), width, generator=torch.Generator().manual_seed(width), dtype=dtype)
    crow = torch.tensor([0, *sizes]).cumsum(0)
    expected = torch.stack([part.sum(0) for part in values.split(sizes)])
    torch.testing.assert_close(sum_segments(values.to(DEVICE), crow.to(DEVICE)).cpu(), expected, **CLOSE[dtype])
