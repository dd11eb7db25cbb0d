"""The proximal step of the nuclear norm: soft thresholding of the singular values."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

Method = Literal["exact", "products"]

# The largest scale that keeps rounding errors at the top of the spectrum from changing a sign (Chen & Chow, 2014).
LARGEST_SCALE = 1.697
BLOCK = 256
TILE = 64
POWER_STEPS = 8
TF32_BITS = -(2**13)  # sign, exponent and the first ten bits of a float32


def shrink_spectrum(matrix: Tensor, threshold: float, *, symmetric: bool, method: Method | None = None) -> Tensor:
    r"""Return the proximal step of the nuclear norm for each of T square matrices (T, N, N); not differentiable.

    .. math:: \operatorname*{arg\,min}_X \tfrac12 \|X - M\|_F^2 + \tau \|X\|_*
              = U \max(\Sigma - \tau, 0)\, V^\top, \qquad M = U \Sigma V^\top

    Args:
        matrix: (T, N, N).
        threshold: τ, 0 or more.
        symmetric: whether all matrices are symmetric; the result is then exactly symmetric.
        method: "exact" uses a decomposition: eigenvalues of symmetric matrices, with |λ| shrunk and the sign kept, at a
            third of the cost of the singular values of other matrices. "products" uses matrix products only, with an
            error of up to 1 % of τ in each singular value, see :func:`shrink_by_products`; it is several times as fast
            on a GPU. ``None``: products on a GPU, exact elsewhere.

    A matrix that is not finite becomes NaN and does not affect the others.

    Time O(T N³); memory O(T N²).
    """
    if threshold == 0:
        return matrix.clone()
    finite = matrix.sum((-2, -1), keepdim=True).isfinite()
    if not finite.all():
        out = shrink_spectrum(matrix.where(finite, 0), threshold, symmetric=symmetric, method=method)
        return out.where(finite, torch.nan)
    if method is None:
        method = "products" if matrix.is_cuda else "exact"
    with torch.no_grad():
        if method == "products":
            out = shrink_by_products(matrix, threshold, symmetric=symmetric)
        elif not symmetric:
            u, s, vt = torch.linalg.svd(matrix)
            return (u * (s - threshold).clamp_(min=0).unsqueeze(-2)) @ vt
        elif matrix.device.type == "cpu":
            return torch.stack([torch.from_numpy(_shrink_symmetric(m.numpy(), threshold)) for m in matrix])
        else:
            values, vectors = torch.linalg.eigh(matrix)
            shrunk = values - values.clamp(-threshold, threshold)
            out = (vectors * shrunk.unsqueeze(-2)) @ vectors.mT
        return (out + out.mT).div_(2) if symmetric else out


def _shrink_symmetric(matrix: NDArray[np.floating], threshold: float) -> NDArray[np.floating]:
    """The same with scipy's LAPACK: M = Q (Z Λ Zᵀ) Qᵀ with Q from the reduction to a tridiagonal matrix.

    Faster than ``eigh`` and a product, because Q multiplies only the remaining part of the spectrum, and only half of
    the last product is computed.
    """
    from scipy import linalg  # imported here because it is slow to import

    size = len(matrix)
    if size < 3:  # nothing to reduce
        values, vectors = np.linalg.eigh(matrix)
        shrunk: NDArray[np.floating] = (vectors * (values - values.clip(-threshold, threshold))) @ vectors.T
        return (shrunk + shrunk.T) / 2
    lapack: Any = linalg.get_lapack_funcs(
        ("sytrd", "stevd", "trtri"), (matrix,)
    )  # a list, although the stubs say otherwise
    blas: Any = linalg.get_blas_funcs(("syrk",), (matrix,))
    (sytrd, stevd, trtri), (syrk,) = lapack, blas
    below, diagonal, off_diagonal, tau, _ = sytrd(matrix.T, lower=1, lwork=64 * size)
    values, vectors, failed = stevd(diagonal, off_diagonal)
    if failed:
        raise np.linalg.LinAlgError("The eigenvalues of the matrix did not converge.")
    half = np.zeros_like(matrix, order="F")
    for sign, kept in ((-1.0, values < -threshold), (1.0, values > threshold)):
        if kept.any():
            part = np.ascontiguousarray(vectors[:, kept] * np.sqrt(np.abs(values[kept]) - threshold))
            _reflect(part, below, tau, trtri)
            half = syrk(sign, part.T, beta=1.0, c=half, trans=1, overwrite_c=1)
    return half.T + np.triu(half, 1)


def _reflect(rows: NDArray[np.floating], below: NDArray[np.floating], tau: NDArray[np.floating], trtri: Any) -> None:
    """Multiply ``rows`` by Q in place: the reflections 1 − τ v vᵀ from LAPACK, BLOCK of them in one product.

    A block is 1 − V T Vᵀ, where T⁻¹ has 1/τ on its diagonal and VᵀV above it (Puglisi, 1992). The blocks are wider than
    those of LAPACK's ormqr, which saves a quarter of the time.
    """
    for start in reversed(range(0, len(tau), BLOCK)):
        taus = tau[start : start + BLOCK]
        v = np.tril(below[1 + start :, start : start + len(taus)], -1)
        np.fill_diagonal(v, 1)
        v *= taus != 0  # where τ is 0 there is no reflection
        inverse = np.triu(v.T @ v, 1)
        np.fill_diagonal(inverse, 1 / np.where(taus == 0, 1, taus))
        rows[1 + start :] -= v @ (trtri(inverse)[0] @ (v.T @ rows[1 + start :]))


def shrink_by_products(matrix: Tensor, threshold: float, *, symmetric: bool) -> Tensor:
    r"""The same with batched matrix products only: M minus M with its singular values clipped at τ.

    .. math:: U \max(\Sigma - \tau, 0)\, V^\top = M - \tau\, U c(\Sigma / \tau)\, V^\top,
              \qquad c(\sigma) = \min(\sigma, 1)

    An odd polynomial in M acts on the singular values. Cubic polynomials (Newton–Schulz steps) raise τ to about the
    middle of [0, 1], and larger values stay larger. A polynomial of degree 31 then maps the result to c; see
    :func:`_plan`. It rounds off the corner of c, so each singular value has an error of up to 1 % of τ, largest near τ.
    Only the part of size τ comes from products, so their rounding errors are relative to τ and not to the norm of M:
    on a GPU the last products use TF32, the first ones three TF32 products each.

    Time: about 25 products of N × N matrices on Cora.
    """
    size = matrix.size(-1)
    exponents = (_norm_bound(matrix, symmetric) / threshold).log2().ceil().clamp(min=1).int().tolist()
    # pad to whole tiles: with an odd number of columns a product takes three times as long on a GPU
    padded = F.pad(matrix, (0, -size % TILE) * 2) if matrix.is_cuda else matrix
    out = torch.empty_like(matrix)
    with _reduced_precision(matrix):
        # one plan for all would make the result of a trial depend on the other trials
        for exponent in sorted(set(exponents)):
            members = [i for i, other in enumerate(exponents) if other == exponent]
            cut = _cut_off(padded[members] * (0.5**exponent / threshold), exponent, symmetric)
            out[members] = matrix[members].sub_(cut[..., :size, :size], alpha=threshold)
    return out


def _norm_bound(matrix: Tensor, symmetric: bool) -> Tensor:
    """(T,) an upper bound on the largest singular value, with a margin for rounding.

    For B ≥ 0 and any v > 0 no eigenvalue of B exceeds the largest (Bv)ᵢ / vᵢ (Collatz & Wielandt). Here B is
    |M|ᵀ|M|, and power steps bring v close to the best choice.
    """
    entries = matrix.abs()
    back = entries if symmetric else entries.mT
    v = torch.ones_like(matrix[..., :1])
    bound = torch.full_like(matrix[:, 0, 0], torch.inf)
    for _ in range(POWER_STEPS):
        w = back @ (entries @ v)
        bound = torch.minimum(bound, (w / v).amax((-2, -1)))
        largest = w.amax(-2, keepdim=True)
        v = torch.where(largest > 0, w / largest, 1) + 1e-3
    return bound.sqrt() * 1.001


def _cut_off(x: Tensor, exponent: int, symmetric: bool) -> Tensor:
    """U c(2^exponent · Σ) Vᵀ for matrices of norm at most 1."""
    scales, careful, coefficients = _plan(exponent)
    for step, scale in enumerate(scales):
        gram = _product(x if symmetric else x.mT, x, step < careful)
        x = _product(x, gram, step < careful, x, -0.5 * scale**3, 1.5 * scale)
    # Σ cᵢⱼ Tᵢ(Y) Tⱼ(T₄(Y)) with Y = 2XᵀX − 1; the sum over j by Clenshaw's recurrence
    y = _product(x if symmetric else x.mT, x).mul_(2)
    _add_to_diagonal(y, -1)
    second = _add_to_diagonal(_product(y, y).mul_(2), -1)
    third = _product(y, second, False, y, 2, -1)
    fourth = _add_to_diagonal(_product(second, second).mul_(2), -1)

    def inner(j: int) -> Tensor:
        c0, c1, c2, c3 = coefficients[j]
        return _add_to_diagonal(c1 * y + c2 * second + c3 * third, c0)

    before, last = inner(3), torch.zeros_like(y)
    for j in (2, 1):
        before, last = _product(fourth, before, False, inner(j) - last, 2), before
    return _product(x, _product(fourth, before, False, inner(0) - last))


def _product(
    a: Tensor, b: Tensor, careful: bool = False, c: Tensor | None = None, alpha: float = 1, beta: float = 1
) -> Tensor:
    """alpha · ab + beta · c; ``careful`` keeps float32 accuracy with TF32 products, by splitting into 11-bit parts."""
    if c is None:
        c, beta = a.new_zeros(()).expand_as(b), 0
    if not (careful and a.is_cuda and a.dtype == torch.float32):
        return torch.baddbmm(c, a, b, alpha=alpha, beta=beta)
    (a_high, a_low), (b_high, b_low) = _parts(a), _parts(b)
    out = torch.baddbmm(c, a_high, b_high, alpha=alpha, beta=beta)
    return out.baddbmm_(a_high, b_low, alpha=alpha).baddbmm_(a_low, b_high, alpha=alpha)


def _parts(x: Tensor) -> tuple[Tensor, Tensor]:
    """Split float32 into the part that TF32 can represent and the rest."""
    high = (x.view(torch.int32) & TF32_BITS).view(torch.float32)
    return high, x - high


def _add_to_diagonal(x: Tensor, value: float) -> Tensor:
    x.diagonal(dim1=-2, dim2=-1).add_(value)
    return x


@contextmanager
def _reduced_precision(matrix: Tensor) -> Iterator[None]:
    """Use TF32 for float32 products on a GPU, then restore the caller's setting."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = matrix.is_cuda
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


@cache
def _plan(exponent: int) -> tuple[list[float], int, list[list[float]]]:
    """The plan to clip at 2^(−exponent): scales of the cubic steps, how many need float32 accuracy, and cᵢⱼ by j.

    A step is x ← ρx (3 − ρ²x²) / 2 with the scale ρ of Chen & Chow (2014). It maps l to l' and [l, 1] into [l', 1] with
    the largest possible l', about 2.5 l for small l. So values above τ stay above the image of τ, and below it the
    steps are invertible. The corner is approximated as a function of the image of σ by least squares, reweighted
    where the error is large to reduce the maximum error (Lawson, 1961).

    A TF32 rounding error of about 3 · 10⁻⁴ is 3 · 10⁻⁴ / l relative to τ, so steps with l < 1/16 need float32 accuracy.
    """
    scales, low, careful = [], 0.5**exponent, 0
    while low < 0.5:
        careful += low < 1 / 16
        scales.append(min(math.sqrt(3 / (1 + low + low * low)), LARGEST_SCALE))
        low = _step(low, scales[-1])
    sigma = np.linspace(0, 0.5**exponent, 4001)
    below = sigma
    for scale in scales:
        below = _step(below, scale)
    grid = np.sin(np.linspace(0, np.pi / 2, 2000))
    wanted = np.where(grid < low, np.interp(grid, below, sigma) * 2.0**exponent, 1.0)
    basis = grid[:, None] * np.polynomial.chebyshev.chebvander(2 * grid**2 - 1, 15)
    weight = np.ones_like(grid)
    least, best = np.inf, np.zeros(16)
    for _ in range(60):
        fitted = np.linalg.lstsq(basis * weight[:, None], wanted * weight, rcond=None)[0]
        error = np.abs(basis @ fitted - wanted)
        if error.max() < least:
            least, best = float(error.max()), fitted
        weight *= np.sqrt(error / error.max() + 1e-3)
        weight /= weight.mean()
    # Tᵢ T₄ⱼ = (T₄ⱼ₊ᵢ + T₄ⱼ₋ᵢ) / 2: from the top down, the terms above 4j give cᵢⱼ; its part below 4j is subtracted
    by_j = [best[:4]]
    for j in (3, 2, 1):
        top = best[4 * j : 4 * j + 4].copy()
        best[4 * j - 3 : 4 * j] -= top[:0:-1]
        by_j.insert(1, np.concatenate([top[:1], 2 * top[1:]]))
    return scales, careful, [row.tolist() for row in by_j]


def _step(x: Any, scale: float) -> Any:
    return 0.5 * scale * x * (3 - (scale * x) ** 2)
