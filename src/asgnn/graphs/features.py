"""Node features as the first layer wants them: bags of words stay sparse through dropout and product."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import scipy.sparse as sp
import torch
from torch import Tensor

from asgnn.errors import GraphError
from asgnn.graphs.csr import csr_matmul
from asgnn.kernels import load

# Above this share of non-zeros a dense product is the faster one.
SPARSE_BELOW = 0.1


@dataclass(frozen=True, eq=False)
class Rows:
    """A sparse matrix by rows: row i holds entries crow[i] … crow[i+1] − 1."""

    crow: Tensor
    col: Tensor
    value: Tensor
    shape: tuple[int, int]

    def __matmul__(self, dense: Tensor) -> Tensor:
        return self.product(dense)

    def product(self, dense: Tensor, out: Tensor | None = None) -> Tensor:
        """This matrix times ``dense`` (cols, H); see :func:`csr_matmul` for ``out``."""
        return csr_matmul(self.crow, self.col, self.value, self.shape, dense, out)

    def times(self, dense: Tensor) -> Tensor:
        """This matrix times ``dense`` (T, cols, H), one product with all T·H columns: (T, rows, H)."""
        if dense.is_cuda:
            return self._on_gpu(dense)
        trials, cols, width = dense.shape
        out = self @ dense.permute(1, 0, 2).reshape(cols, -1)
        return out.view(-1, trials, width).permute(1, 0, 2)

    def times_kept(self, dense: Tensor, keep: Tensor, scale: Tensor, order: Tensor | None = None) -> Tensor:
        """The same with other entries kept for each trial: ``keep`` (T, nnz) bool, ``scale`` (T,) their factor.

        ``order`` (nnz,) says where in ``keep`` an entry stands, if not in its own place. On a CPU one product with the
        block-diagonal matrix of the kept entries; time O(T nnz + kept · H).
        """
        if dense.is_cuda:
            return self._on_gpu(dense, keep, scale, order)
        keep = keep if order is None else keep[:, order]
        (rows, cols), (trials, _, width) = self.shape, dense.shape
        trial, entry = keep.nonzero(as_tuple=True)
        before = torch.zeros(keep.numel() + 1, dtype=torch.int64, device=keep.device)
        torch.cumsum(keep.view(-1), 0, out=before[1:])
        first = torch.arange(trials, device=keep.device).unsqueeze(1) * keep.size(1) + self.crow[:-1]
        crow = torch.cat([before[first.view(-1)], before[-1:]])
        value = self.value[entry] * scale[trial]
        blocks = (trials * rows, trials * cols)
        out = csr_matmul(crow, self.col[entry] + trial * cols, value, blocks, dense.reshape(-1, width))
        return out.view(trials, rows, width)

    def _on_gpu(self, dense: Tensor, *kept: Tensor | None) -> Tensor:
        found: Tensor = load("csr").sum_rows(self.crow, self.col, self.value, dense, *kept)
        return found


@dataclass(frozen=True, eq=False)
class Features:
    """An N × F feature matrix, dense or sparse, prepared once where it enters."""

    num_nodes: int
    num_features: int
    dense: Tensor | None
    by_row: Rows | None
    by_column: Rows | None
    to_column_order: Tensor | None

    @classmethod
    def of(cls, x: Tensor | Features) -> Features:
        """Take a dense or torch-sparse matrix (N, F); it is kept sparse where fewer than 10 % are non-zero."""
        if isinstance(x, Features):
            return x
        if x.dim() != 2 or not x.is_floating_point():
            raise GraphError(f"x must be floating point of shape (N, F); it is {x.dtype} of shape {tuple(x.shape)}.")
        n, f = x.shape
        if x.layout == torch.strided:
            if int(torch.count_nonzero(x)) >= SPARSE_BELOW * x.numel():
                return cls(n, f, x, None, None, None)
            row, col = x.nonzero(as_tuple=True)
            value = x[row, col]
        else:
            coo = x.to_sparse_coo().coalesce()
            (row, col), value = coo.indices(), coo.values()
        order = torch.argsort(col * n + row)
        by_row = Rows(_pointer(row, n), col, value, (n, f))
        by_column = Rows(_pointer(col[order], f), row[order], value[order], (f, n))
        return cls(n, f, None, by_row, by_column, order)

    @property
    def dtype(self) -> torch.dtype:
        value = self.dense if self.by_row is None else self.by_row.value
        assert value is not None
        return value.dtype

    @property
    def size_of_mask(self) -> tuple[int, ...]:
        """The shape of one trial's dropout mask: a bit for each stored entry."""
        return (self.num_nodes, self.num_features) if self.by_row is None else tuple(self.by_row.value.shape)

    def linear(self, weight: Tensor, keep: Tensor | None, scale: Tensor | None) -> Tensor:
        """Z W for each trial: ``weight`` (T, F, H) → (T, N, H), differentiable in the weight.

        Args:
            weight: one matrix a trial.
            keep: (T, \\*size_of_mask) bool, what dropout leaves; ``None`` leaves all.
            scale: (T,) the factor on what is left.
        """
        if weight.size(1) != self.num_features:
            raise GraphError(f"The model was built for {weight.size(1)} features, and x has {self.num_features}.")
        if weight.dtype != self.dtype:
            ours, theirs = (str(dtype).removeprefix("torch.") for dtype in (self.dtype, weight.dtype))
            raise GraphError(f"x is {ours} and the model {theirs}; convert one of them.")
        if self.dense is not None:
            if keep is None or scale is None:
                return self.dense @ weight
            return (self.dense * keep * scale.view(-1, 1, 1)) @ weight
        out: Tensor = _SparseLinear.apply(weight, self, keep, scale)
        return out

    def gram(self, h: Tensor) -> Tensor:
        """X Xᵀ h for h (N, C), without the N×N matrix; no gradient."""
        if self.by_row is None or self.by_column is None:
            assert self.dense is not None
            return self.dense @ (self.dense.t() @ h)
        return self.by_row @ (self.by_column @ h)

    def to_dense(self) -> Tensor:
        """(N, F), on the same device."""
        if self.by_row is None:
            assert self.dense is not None
            return self.dense
        rows = self.by_row
        return torch.sparse_csr_tensor(rows.crow, rows.col, rows.value, rows.shape, check_invariants=False).to_dense()

    def to_scipy(self) -> sp.csr_array:
        """In double precision and without stored zeros, on the CPU."""
        if self.by_row is None:
            assert self.dense is not None
            return sp.csr_array(self.dense.detach().cpu().double().numpy())
        rows = self.by_row
        parts = (part.detach().cpu().numpy() for part in (rows.value.double(), rows.col, rows.crow))
        matrix = sp.csr_array(tuple(parts), shape=rows.shape)
        matrix.eliminate_zeros()
        return matrix

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> Features:
        def rows(part: Rows | None) -> Rows | None:
            if part is None:
                return None
            return Rows(part.crow.to(device), part.col.to(device), part.value.to(device, dtype), part.shape)

        dense = None if self.dense is None else self.dense.to(device, dtype)
        order = None if self.to_column_order is None else self.to_column_order.to(device)
        return Features(self.num_nodes, self.num_features, dense, rows(self.by_row), rows(self.by_column), order)


def _pointer(index: Tensor, size: int) -> Tensor:
    pointer = torch.zeros(size + 1, dtype=torch.int64, device=index.device)
    pointer[1:] = torch.bincount(index, minlength=size).cumsum(0)
    return pointer


class _SparseLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, features: Features, keep: Tensor | None, scale: Tensor | None) -> Tensor:
        ctx.features = features
        ctx.save_for_backward(keep, scale)
        assert features.by_row is not None
        if keep is None or scale is None:
            return features.by_row.times(weight)
        return features.by_row.times_kept(weight, keep, scale)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        keep, scale = ctx.saved_tensors
        by_column, order = ctx.features.by_column, ctx.features.to_column_order
        if keep is None or scale is None:
            return by_column.times(grad), None, None, None
        return by_column.times_kept(grad, keep, scale, order), None, None, None
