"""The proximal step of the nuclear norm: every singular value moves towards zero by a threshold and stops there."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Method = Literal["exact", "products"]

# The largest scale that keeps rounding errors at the top of the spectrum from changing a sign (Chen & Chow, 2014).
LARGEST_SCALE = 1.697


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
    """By scipy's LAPACK and BLAS: on one thread a third faster than torch's, and only half of the product is formed."""
    from scipy import linalg  # here, because it takes a while to load

    values, vectors = linalg.eigh(matrix, driver="evd", check_finite=False)
    (syrk,) = linalg.get_blas_funcs(("syrk",), (vectors,))
    half = np.zeros_like(matrix, order="F")
    for sign in (1.0, -1.0):
        kept = sign * values > threshold
        if kept.any():
            part = np.asfortranarray(vectors[:, kept] * np.sqrt(sign * values[kept] - threshold))
            half = syrk(sign, part, beta=1.0, c=half, overwrite_c=True)
    return np.ascontiguousarray(half + np.triu(half, 1).T)


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
