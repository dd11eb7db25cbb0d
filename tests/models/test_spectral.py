"""Both methods of shrink_spectrum, and the differentiable form, are soft thresholding of the singular values."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from asgnn.graphs.dense import shrunk
from asgnn.models import spectral
from asgnn.models.spectral import Method, shrink_spectrum

F64 = torch.float64
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def graphs(n: int, symmetric: bool, dtype: torch.dtype) -> Tensor:
    """Three sparse graphs of different densities, an empty one, and one with all singular values at a threshold."""
    rng = torch.Generator().manual_seed(n)
    out = torch.rand(3, n, n, generator=rng, dtype=F64)
    out = (out < torch.tensor([0.02, 0.1, 0.5], dtype=F64).view(-1, 1, 1)) + 0.02 * out
    if symmetric:
        out = out + out.mT
    return torch.cat([out, torch.zeros(1, n, n), 0.3 * torch.eye(n).unsqueeze(0)]).to(dtype)


def by_numpy(matrix: Tensor, threshold: float) -> Tensor:
    u, s, vt = np.linalg.svd(matrix.double().numpy())
    return torch.from_numpy((u * np.maximum(s - threshold, 0)[:, None, :]) @ vt)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("method", ["exact", "products"])
@pytest.mark.parametrize("dtype", [torch.float32, F64], ids=["float32", "float64"])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("n", [1, 2, 3, 33, 150])
@pytest.mark.parametrize("threshold", [0.015, 0.3, 4.0])
def test_soft_threshold_of_singular_values(
    n: int, threshold: float, symmetric: bool, dtype: torch.dtype, method: Method, device: str
) -> None:
    matrix = graphs(n, symmetric, dtype)
    out = shrink_spectrum(matrix.to(device), threshold, symmetric=symmetric, method=method).cpu()
    assert out.dtype == dtype
    expected = by_numpy(matrix, threshold)
    size = 1 + float(torch.linalg.matrix_norm(matrix, 2).max())
    error = float(torch.linalg.matrix_norm(out.double() - expected, 2).max())
    # cuSOLVER's float32 decompositions have four correct digits
    rounding = 1e-10 if dtype == F64 else 1e-4 if device == "cuda" else 2e-6
    assert error <= size * rounding + (0.01 * threshold if method == "products" else 0)
    if symmetric:
        assert torch.equal(out, out.mT)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("threshold", [0.0, 0.2, 1.0])
def test_the_differentiable_form(threshold: float, device: str) -> None:
    """Its derivative is that of central differences, also where all eigenvalues are equal."""
    matrix = graphs(12, True, F64).to(device).requires_grad_()
    out = shrunk(matrix, threshold)
    torch.testing.assert_close(out, shrink_spectrum(matrix.detach(), threshold, symmetric=True, method="exact"))
    weight = torch.randn(matrix.shape, dtype=F64, generator=torch.Generator().manual_seed(1)).to(device)
    (gradient,) = torch.autograd.grad((out * weight).sum(), matrix)
    along = torch.randn(matrix.shape, dtype=F64, generator=torch.Generator().manual_seed(2)).to(device)
    along = (along + along.mT) * 1e-5
    with torch.no_grad():
        change = ((shrunk(matrix + along, threshold) - shrunk(matrix - along, threshold)) * weight).sum((-2, -1))
    torch.testing.assert_close((2 * along * gradient).sum((-2, -1)), change, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, F64], ids=["float32", "float64"])
@pytest.mark.parametrize("block", [1, 7, 32, 149, 150])
def test_blocks_of_reflections(block: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = graphs(150, True, dtype)
    expected = shrink_spectrum(matrix, 0.3, symmetric=True, method="exact")
    monkeypatch.setattr(spectral, "BLOCK", block)
    out = shrink_spectrum(matrix, 0.3, symmetric=True, method="exact")
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-10 if dtype == F64 else 1e-4)


@pytest.mark.parametrize("method", ["exact", "products"])
def test_matrices_of_a_batch_are_independent(method: Method) -> None:
    matrix = graphs(33, True, F64)
    many = shrink_spectrum(matrix, 0.1, symmetric=True, method=method)
    for i in range(len(matrix)):
        alone = shrink_spectrum(matrix[i : i + 1], 0.1, symmetric=True, method=method)
        torch.testing.assert_close(many[i], alone[0], rtol=0, atol=1e-9)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("method", ["exact", "products"])
def test_a_non_finite_matrix_does_not_affect_the_others(method: Method, symmetric: bool) -> None:
    matrix = graphs(33, symmetric, F64)
    expected = shrink_spectrum(matrix, 0.1, symmetric=symmetric, method=method)
    matrix[1, 2, 2], matrix[2, 0, 0] = torch.nan, torch.inf
    out = shrink_spectrum(matrix, 0.1, symmetric=symmetric, method=method)
    assert out[1:3].isnan().all()
    torch.testing.assert_close(out[[0, 3, 4]], expected[[0, 3, 4]], rtol=0, atol=1e-9)


def test_zero_threshold_copies() -> None:
    matrix = graphs(5, False, F64)
    out = shrink_spectrum(matrix, 0.0, symmetric=False)
    assert torch.equal(out, matrix)
    assert out.data_ptr() != matrix.data_ptr()


@pytest.mark.parametrize("method", ["exact", "products"])
def test_threshold_above_the_largest_singular_value_gives_zero(method: Method) -> None:
    out = shrink_spectrum(graphs(33, True, F64), 100.0, symmetric=True, method=method)
    assert float(torch.linalg.matrix_norm(out, 2).max()) <= (1.0 if method == "products" else 1e-8)
