"""The proximal step of the nuclear norm: every singular value moves towards zero by a threshold and stops there."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Method = Literal["exact", "products"]

# The largest scale that keeps rounding errors at the top of the spectrum from changing a sign (Chen & Chow, 2014).
LARGEST_SCALE = 1.697
BLOCK = 256


def shrink_spectrum(matrix: Tensor, threshold: float, *, symmetric: bool, method: Method | None = None) -> Tensor:
    r"""The minimiser of the nuclear norm's proximal problem, for each of T square matrices (T, N, N); no gradient.

    .. math:: \operatorname*{arg\,min}_X \tfrac12 \|X - M\|_F^2 + \tau \|X\|_*
              = U \max(\Sigma - \tau, 0)\, V^\top, \qquad M = U \Sigma V^\top

    Args:
        matrix: (T, N, N).
        threshold: τ, 0 or more.
        symmetric: whether every matrix is: the result is then symmetric to the last bit.
        method: "exact" decomposes: eigenvalues of a symmetric matrix, |λ| shrunk with the sign kept, a third of the
            work of the singular values of any other. "products" takes matrix products only, see
            :func:`shrink_by_products`, and is the one for a GPU. ``None``: products on a GPU, exact elsewhere.

    A matrix that is not finite becomes NaN and leaves the others alone.

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
            out = shrink_by_products(matrix, threshold)
        elif not symmetric:
            u, s, vt = torch.linalg.svd(matrix)
            return (u * (s - threshold).clamp_(min=0).unsqueeze(-2)) @ vt
        elif matrix.device.type == "cpu":
            return torch.stack([torch.from_numpy(_shrink_symmetric(one.numpy(), threshold)) for one in matrix])
        else:
            values, vectors = torch.linalg.eigh(matrix)
            shrunk = values - values.clamp(-threshold, threshold)
            out = (vectors * shrunk.unsqueeze(-2)) @ vectors.mT
        return (out + out.mT).div_(2) if symmetric else out


def _shrink_symmetric(matrix: NDArray[np.floating], threshold: float) -> NDArray[np.floating]:
    """By scipy's LAPACK, M = Q (Z Λ Zᵀ) Qᵀ with Q from the reduction to a tridiagonal matrix.

    Only what is left of the spectrum goes back through Q, and only half of the last product is formed: less time than
    ``eigh`` and a product.
    """
    from scipy import linalg  # here, because it takes a while to load

    size = len(matrix)
    if size < 3:  # nothing to reduce
        values, vectors = np.linalg.eigh(matrix)
        shrunk: NDArray[np.floating] = (vectors * (values - values.clip(-threshold, threshold))) @ vectors.T
        return (shrunk + shrunk.T) / 2
    lapack: Any = linalg.get_lapack_funcs(("sytrd", "stevd", "trtri"), (matrix,))
    blas: Any = linalg.get_blas_funcs(("syrk",), (matrix,))
    (sytrd, stevd, trtri), (syrk,) = lapack, blas
    below, diagonal, beside, tau, _ = sytrd(matrix.T, lower=1, lwork=64 * size)
    values, vectors, failed = stevd(diagonal, beside)
    if failed:
        raise np.linalg.LinAlgError("The eigenvalues of the structure did not converge.")
    half = np.zeros_like(matrix, order="F")
    for sign, kept in ((-1.0, values < -threshold), (1.0, values > threshold)):
        if kept.any():
            part = np.ascontiguousarray(vectors[:, kept] * np.sqrt(np.abs(values[kept]) - threshold))
            _reflect(part, below, tau, trtri)
            half = syrk(sign, part.T, beta=1.0, c=half, trans=1, overwrite_c=1)
    return half.T + np.triu(half, 1)


def _reflect(rows: NDArray[np.floating], below: NDArray[np.floating], tau: NDArray[np.floating], trtri: Any) -> None:
    """Q times ``rows``, in place: the reflections 1 − τ v vᵀ that LAPACK leaves, BLOCK of them in one product.

    A block is 1 − V T Vᵀ with T⁻¹ = the diagonal of 1/τ and VᵀV above it (Puglisi, 1992). Wider blocks than those of
    LAPACK's own ormqr: a quarter less time.
    """
    for start in reversed(range(0, len(tau), BLOCK)):
        own = tau[start : start + BLOCK]
        v = np.tril(below[1 + start :, start : start + len(own)], -1)
        np.fill_diagonal(v, 1)
        v *= own != 0  # where τ is 0 there is no reflection
        inverse = np.triu(v.T @ v, 1)
        np.fill_diagonal(inverse, 1 / np.where(own == 0, 1, own))
        rows[1 + start :] -= v @ (trtri(inverse)[0] @ (v.T @ rows[1 + start :]))


def shrink_by_products(matrix: Tensor, threshold: float) -> Tensor:
    r"""The same by matrix products only, all T matrices in one batch: two signs by Newton–Schulz iterations.

    .. math:: M = Q H, \qquad U \max(\Sigma - \tau, 0)\, V^\top
              = \tfrac12 Q\, \bigl(Y + Y \operatorname{sign} Y\bigr), \qquad Y = H - \tau I

    The polar factor Q need not have converged for singular values below τ: there the other factor is zero. The sign
    of Y converges slowly where a singular value lies close to τ, but there Y itself is that small: values nearer to τ
    than 10⁻³ τ (float32) or 10⁻⁹ τ (float64) are not told apart from it, which is the accuracy of the whole.

    Time: about 2 · (15 + 22) products of N × N matrices in float32 on Cora, more in float64.
    """
    single = matrix.dtype != torch.float64
    close = 1e-3 if single else 1e-9
    size = _norm_bound(matrix).clamp_(min=threshold)
    smallest = threshold / float(size.max())
    polar = _polar(matrix / size, smallest)
    modulus = polar.mT @ matrix
    modulus = (modulus + modulus.mT).div_(2)
    modulus.diagonal(dim1=-2, dim2=-1).sub_(threshold)
    # Y has the eigenvalues σ − τ, of which none is below −τ or above the bound.
    kept = modulus + modulus @ _polar(modulus / size, close * smallest)
    return (polar @ kept).div_(2)


def _norm_bound(matrix: Tensor) -> Tensor:
    """(T, 1, 1) at least the largest singular value, with room for rounding."""
    rows, columns = matrix.abs().sum(-1).amax(-1), matrix.abs().sum(-2).amax(-1)
    frobenius = matrix.square().sum((-2, -1)).sqrt()
    return torch.minimum((rows * columns).sqrt(), frobenius).mul_(1.001).view(-1, 1, 1)


def _polar(matrix: Tensor, smallest: float) -> Tensor:
    """The orthogonal factor, or sign, of matrices of norm 1 or less whose singular values are ``smallest`` or more.

    Newton–Schulz with the scale of Chen & Chow (2014): x ← ρx (3 − ρ²x²) / 2 maps [l, 1] into [l', 1] with the
    largest l', about 2.5 l while l is small. Smaller singular values grow as fast, but do not reach 1.
    """
    out, low, end = matrix, smallest, 1e-7 if matrix.dtype != torch.float64 else 1e-15
    while 1 - low > end:
        scale = min(math.sqrt(3 / (1 + low + low * low)), LARGEST_SCALE)
        gram = out.mT @ out
        out = (1.5 * scale) * out - (0.5 * scale**3) * (out @ gram)
        low = min(0.5 * scale * low * (3 - (scale * low) ** 2), 0.5 * scale * (3 - scale**2))
    return out
