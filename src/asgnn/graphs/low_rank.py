"""Low-rank approximation of the adjacency matrix by its largest singular values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from asgnn.graphs.adjacency import Adjacency
from asgnn.settings import check_count

# Entries per block; bounds the temporary memory.
BLOCK = 2**16


@dataclass(frozen=True, eq=False)
class LowRank:
    """The matrix ``left`` ``right``ᵀ; both factors have at least as many columns as its rank."""

    left: Tensor
    right: Tensor

    @property
    def row_sums(self) -> Tensor:
        """(N,), time O(N r)."""
        return self.left @ self.right.sum(0)

    def entries(self, adj: Adjacency) -> Tensor:
        """Returns its values at the entries of a pattern, (E,); time O(E r)."""
        pairs = zip(adj.row.split(BLOCK), adj.col.split(BLOCK), strict=True)
        return torch.cat([(self.left[row] * self.right[col]).sum(1) for row, col in pairs])


def low_rank(adj: Adjacency, rank: int) -> LowRank:
    r"""Returns the best rank-r approximation of A without self-loops (Eckart & Young 1936), in double precision.

    .. math:: A_r = \sum_{k \le r} \sigma_k u_k v_k^\top

    A symmetric matrix is decomposed by its eigenvalues of largest magnitude. The Lanczos iteration starts from a fixed,
    slightly non-uniform vector, so that no symmetry of the graph confines it to a subspace; the same graph gives the
    same factors. If the r-th and the next singular value are equal, the solver picks one.

    If the weights require a gradient, the spans of U and V are treated as constant, and the result is

    .. math:: U U^\top A + A V V^\top - U U^\top A V V^\top

    which equals :math:`A_r`; its derivative is that of :math:`A_r` as the omitted singular values go to 0. Its factors
    have 2r columns.

    Time O(E r + N r²) per Lanczos restart, memory O(N r). Only graphs too small for the iteration use a dense N × N
    matrix.
    """
    check_count("rank", rank)
    u, values, v = decompose(adj, rank)
    if not adj.needs_gradient:
        return LowRank(u * values, v)
    weight = adj.weight.double().masked_fill(adj.loops, 0)
    forward, backward = adj.matmul(weight, v), adj.matmul(adj.transpose(weight), u)  # A V and Aᵀ U
    return LowRank(torch.cat([u, forward - u @ (u.t() @ forward)], 1), torch.cat([backward, v], 1))


def decompose(adj: Adjacency, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns U (N, r), the r largest singular values (eigenvalues if A is symmetric) and V (N, r); no gradient."""
    n = adj.num_nodes
    apart = ~adj.loops & (adj.weight != 0)
    row, col, weight = (part[apart].cpu().numpy() for part in (adj.row, adj.col, adj.weight.detach().double()))
    if not weight.size:
        zero = torch.zeros(n, 1, dtype=torch.float64, device=adj.row.device)
        return zero, zero[0], zero
    matrix = sp.csr_array((weight, (row, col)), shape=(n, n))
    parts = (_eigen if adj.symmetric else _singular)(matrix, rank)
    u, values, v = (torch.from_numpy(part.copy()).to(adj.row.device) for part in parts)
    return u, values, v


def _is_small(n: int, rank: int) -> bool:
    return n <= max(2 * rank + 1, 20)  # the dimension of ARPACK's Krylov space


def _start(n: int) -> NDArray[Any]:
    return 1 + np.cos(np.arange(n)) / 2


def _eigen(matrix: sp.csr_array, rank: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    from scipy.sparse.linalg import eigsh  # imported here because it is slow to load

    n = matrix.shape[0]
    if _is_small(n, rank):
        values, vectors = np.linalg.eigh(matrix.toarray())
        kept = np.argsort(-np.abs(values), kind="stable")[:rank]
        values, vectors = values[kept], vectors[:, kept]
    else:
        values, vectors = eigsh(matrix, k=rank, which="LM", v0=_start(n))
    return vectors, values, vectors


def _singular(matrix: sp.csr_array, rank: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    from scipy.sparse.linalg import svds

    n = matrix.shape[0]
    if _is_small(n, rank):
        u, values, vt = np.linalg.svd(matrix.toarray())
        u, values, vt = u[:, :rank], values[:rank], vt[:rank]
    else:
        u, values, vt = svds(matrix, k=rank, v0=_start(n))
    return u, values, vt.T
