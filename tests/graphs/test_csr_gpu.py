"""The GPU's row sums are products with dense matrices. Without a GPU Triton's interpreter runs them: TRITON_INTERPRET=1."""

from __future__ import annotations

import os

import pytest
import torch

pytest.importorskip("triton", reason="Triton comes with torch's builds for CUDA")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not (torch.cuda.is_available() or INTERPRETED):
    pytest.skip("needs a GPU, or TRITON_INTERPRET=1", allow_module_level=True)

from asgnn.graphs.csr_gpu import sum_rows  # noqa: E402

DEVICE = "cpu" if INTERPRETED else "cuda"
CLOSE = {torch.float32: {"rtol": 1e-4, "atol": 1e-4}, torch.float64: {"rtol": 1e-10, "atol": 1e-10}}


@pytest.mark.parametrize("dtype", CLOSE, ids=["float32", "float64"])
@pytest.mark.parametrize(
    ("rows", "cols", "width", "trials"), [(5, 7, 3, 2), (33, 50, 64, 3), (4, 3, 300, 1), (1, 1, 1, 1), (40, 9, 7, 5)]
)
def test_row_sums_are_products(rows: int, cols: int, width: int, trials: int, dtype: torch.dtype) -> None:
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
    elsewhere = torch.empty_like(keep)
    elsewhere[:, order] = keep
    again = sum_rows(*parts, dense.to(DEVICE), elsewhere.to(DEVICE), scale.to(DEVICE), order.to(DEVICE))
    assert torch.equal(again, out)
