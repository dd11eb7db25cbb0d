"""A graph as one dense matrix for each trial, for attacks that weigh every pair of nodes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from asgnn.errors import ConfigError
from asgnn.graphs.adjacency import Normalization


@dataclass(eq=False)
class Tape:
    """The derivative of many products with the same matrices M in M, as the factors of its terms.

    Each term is a matrix N × N of low rank. Their sum is one product of two long matrices, which reads and writes N²
    numbers once and not once per term.
    """

    left: list[Tensor] = field(default_factory=list)
    right: list[Tensor] = field(default_factory=list)
    running: bool = False

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Within the block, backward passes through products add their terms."""
        self.running = True
        try:
            yield
        finally:
            self.running = False

    def total(self) -> Tensor:
        """The derivative (T, N, N): the sum of all terms."""
        return torch.cat(self.left, -1) @ torch.cat(self.right, -1).mT


@dataclass(frozen=True, eq=False)
class DenseAdjacency:
    """The normalised adjacency matrices of T graphs on the same nodes, with self-loops.

    It takes the place of an :class:`~asgnn.graphs.adjacency.Adjacency` in models that only multiply with the normalised
    matrix: GCN, SGC, APPNP, and ASMP with a frozen structure.

    Attributes:
        weight: (T, N, N), normalised; it may require a gradient.
        normalization: how; a model that asks for another one gets an error.
        tape: takes the derivative in the matrices, which autograd then does not see.
        sparse: the block-diagonal matrix of all graphs in CSR form, and its transpose, for products on a CPU.
    """

    weight: Tensor
    normalization: Normalization
    tape: Tape | None = None
    sparse: tuple[Tensor, Tensor] | None = None

    @classmethod
    def of(cls, matrix: Tensor, normalization: Normalization) -> DenseAdjacency:
        """Normalise (T, N, N) symmetric weights without self-loops. Time and memory O(T N²)."""
        matrix = matrix + torch.eye(matrix.size(-1), dtype=matrix.dtype, device=matrix.device)
        degree = matrix.sum(-1, keepdim=True)
        if normalization == "rw":
            return cls(matrix / degree, normalization)
        root = degree.rsqrt()
        return cls(matrix * root * root.mT, normalization)

    @property
    def num_nodes(self) -> int:
        return self.weight.size(-1)

    def normalized(self, kind: Normalization, dtype: torch.dtype) -> Tensor:
        """Returns the normalised matrices (T, N, N)."""
        if kind != self.normalization:
            raise ConfigError(f'The matrix was normalised by "{self.normalization}", and the model needs "{kind}".')
        return self.weight.to(dtype)

    def matmul(self, weight: Tensor, h: Tensor) -> Tensor:
        """Returns ``weight`` (T, N, N) times ``h`` (T, N, C)."""
        if self.tape is None:
            return weight @ h
        out: Tensor = _Product.apply(h, self, False)
        return out

    def recorded(self, tape: Tape) -> DenseAdjacency:
        """The same graphs without a gradient of their own: the derivative in the matrices goes to the tape.

        On a CPU products then use the entries that are not 0, of which there are few.
        """
        weight = self.weight.detach()
        if weight.is_cuda:
            return replace(self, weight=weight, tape=tape)
        forth = _block_diagonal(weight)
        return replace(
            self,
            weight=weight,
            tape=tape,
            sparse=(forth, _block_diagonal(weight.mT) if self.normalization == "rw" else forth),
        )

    def product(self, h: Tensor, transposed: bool) -> Tensor:
        """M h, or Mᵀ h, without a gradient."""
        if self.sparse is None:
            return (self.weight.mT if transposed else self.weight) @ h
        return (self.sparse[transposed] @ h.reshape(-1, h.size(-1))).view(h.shape)


def _block_diagonal(matrices: Tensor) -> Tensor:
    """(T, N, N) → (T N, T N) in CSR form."""
    trial, row, col = matrices.nonzero().unbind(1)
    n, size = matrices.size(-1), matrices.size(0) * matrices.size(-1)
    count = torch.bincount(trial * n + row, minlength=size)
    crow = torch.cat([count.new_zeros(1), count.cumsum(0)])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")
        return torch.sparse_csr_tensor(
            crow, trial * n + col, matrices[trial, row, col], (size, size), check_invariants=True
        )


class _Product(torch.autograd.Function):
    """M h, or Mᵀ h; differentiable in h to any order, with the derivative in M on a tape."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, graphs: DenseAdjacency, transposed: bool) -> Tensor:
        ctx.save_for_backward(h)
        ctx.graphs, ctx.transposed = graphs, transposed
        return graphs.product(h, transposed)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (h,) = ctx.saved_tensors
        tape = ctx.graphs.tape
        if tape.running:
            left, right = (h, grad) if ctx.transposed else (grad, h)
            tape.left.append(left.detach())
            tape.right.append(right.detach())
        return _Product.apply(grad, ctx.graphs, not ctx.transposed), None, None


def shrunk(matrix: Tensor, threshold: float) -> Tensor:
    r"""Symmetric matrices (T, N, N) with all singular values reduced by ``threshold``, or to 0; differentiable once.

    .. math:: dX = U \big(F \circ (U^\top dM\, U)\big) U^\top, \qquad
              F_{ij} = \frac{f(\lambda_i) - f(\lambda_j)}{\lambda_i - \lambda_j}

    for a decomposition :math:`U \Lambda U^\top`, with f the soft threshold and :math:`F_{ij} = f'(\lambda_i)` for equal
    eigenvalues (Daleckii & Krein). Time O(T N³).
    """
    out: Tensor = _Shrunk.apply(matrix, threshold) if threshold else matrix
    return out


class _Shrunk(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, matrix: Tensor, threshold: float) -> Tensor:
        values, vectors = torch.linalg.eigh(matrix)
        kept = values - values.clamp(-threshold, threshold)
        ctx.save_for_backward(values, vectors, kept)
        return (vectors * kept.unsqueeze(-2)) @ vectors.mT

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        values, vectors, kept = ctx.saved_tensors
        gap = values.unsqueeze(-1) - values.unsqueeze(-2)
        equal = gap.abs() <= 8 * torch.finfo(gap.dtype).eps * values.abs().amax(-1)[..., None, None]
        ratio = (kept.unsqueeze(-1) - kept.unsqueeze(-2)) / gap.masked_fill(equal, 1)
        slope = torch.where(equal, (kept != 0).to(gap.dtype).unsqueeze(-1), ratio.clamp(0, 1))
        grad = (grad + grad.mT) / 2  # the matrix stays symmetric
        return vectors @ (slope * (vectors.mT @ grad @ vectors)) @ vectors.mT, None
