"""Node features for the first layer; bag-of-words features stay sparse through dropout and matrix product."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import scipy.sparse as sp
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from asgnn.errors import GraphError
from asgnn.graphs.checks import check_finite, check_floats, dtype_name
from asgnn.graphs.csr import csr_matmul, entries_of_rows
from asgnn.kernels import load, on_cpu

# Above this fraction of non-zeros a dense product is faster.
SPARSE_BELOW = 0.1
BLOCK = 2**22  # entries of a dense matrix with dropout that exist at a time


@dataclass(frozen=True, eq=False)
class Rows:
    """A sparse matrix in CSR form: row i holds entries crow[i] … crow[i+1] − 1."""

    crow: Tensor
    col: Tensor
    value: Tensor
    shape: tuple[int, int]

    def __matmul__(self, dense: Tensor) -> Tensor:
        return self.product(dense)

    def product(self, dense: Tensor, out: Tensor | None = None) -> Tensor:
        """Returns this matrix times ``dense`` (cols, H); see :func:`csr_matmul` for ``out``."""
        return csr_matmul(self.crow, self.col, self.value, self.shape, dense, out)

    def times(self, dense: Tensor) -> Tensor:
        """Returns this matrix times ``dense`` (T, cols, H) as one product with T·H columns: (T, rows, H)."""
        if dense.is_cuda:
            return self._on_gpu(dense)
        if (kernels := _kernels(dense)) is not None:
            product: Tensor = kernels.times(self.crow, self.col, self.value, dense)
            return product
        trials, cols, width = dense.shape
        out = self @ dense.permute(1, 0, 2).reshape(cols, -1)
        return out.view(-1, trials, width).permute(1, 0, 2)

    def times_kept(self, dense: Tensor, keep: Tensor, scale: Tensor, order: Tensor | None = None) -> Tensor:
        """Like :meth:`times`, but trial t uses only the entries in ``keep[t]``, scaled by ``scale[t]``.

        ``keep`` is (T, nnz) bool, ``scale`` (T,). ``order`` (nnz,) maps the entries of this matrix to those of
        ``keep``. Without kernels one product with the block-diagonal matrix of the kept entries; time
        O(T nnz + kept · H).
        """
        if dense.is_cuda:
            return self._on_gpu(dense, keep, scale, order)
        if (kernels := _kernels(dense)) is not None:
            product: Tensor = kernels.times(self.crow, self.col, self.value, dense, keep, scale, order)
            return product
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


def is_sparse(x: Tensor) -> tuple[bool, int]:
    """Returns whether a matrix (N, F) is stored sparse, and how many entries are then stored. Time O(N F)."""
    if x.layout != torch.strided:
        return True, x._nnz()
    rows = max(1, BLOCK // x.size(1))
    # in parts, because a GPU needs memory for the whole comparison
    count = sum(int(torch.count_nonzero(part)) for part in x.split(rows if x.is_cuda else len(x)))
    return (True, count) if count < SPARSE_BELOW * x.numel() else (False, x.numel())


@dataclass(frozen=True, eq=False)
class Features:
    """An N × F feature matrix, dense or sparse (by row and by column).

    ``repeats`` names the features, and how often, if these are disjoint copies of them; what was found out about the
    nodes of one copy then holds for all.
    """

    num_nodes: int
    num_features: int
    dense: Tensor | None
    by_row: Rows | None
    by_column: Rows | None
    to_column_order: Tensor | None
    repeats: tuple[Features, int] | None = None

    @classmethod
    def of(cls, x: Tensor | Features) -> Features:
        """Converts a dense or torch-sparse matrix (N, F); stores it sparse if fewer than 10 % are non-zero.

        If x requires a gradient it is stored dense, so that every entry gets one. The sparse form of a dense tensor is
        cached by the tensor's identity and compared with its contents before it is reused.
        """
        if isinstance(x, Features):
            return x
        check_floats(x, sparse=True)
        n, f = x.shape
        if x.requires_grad and torch.is_grad_enabled():
            return cls(n, f, check_finite(x.to_dense()), None, None, None)
        strided = x.layout == torch.strided
        sparse, count = is_sparse(x)
        if not sparse:
            return cls(n, f, check_finite(x), None, None, None, _repeats(x))
        if strided:
            known = _SPARSE.get(x)
            if known is not None and known[1]._holds(x, known[0], count):
                found: Features = known[1]
                return found
            row, col = x.nonzero(as_tuple=True)
            value = x[row, col]
        else:
            coo = x.detach().to_sparse_coo().coalesce()
            (row, col), value = coo.indices(), coo.values()
        made = cls._sparse(row, col, check_finite(value.detach()), (n, f))
        if strided:
            made = replace(made, repeats=_repeats(x))
            _SPARSE[x] = (row, made)
        return made

    @classmethod
    def _sparse(cls, row: Tensor, col: Tensor, value: Tensor, shape: tuple[int, int]) -> Features:
        """The sparse form of entries that are sorted by row, then column."""
        n, f = shape
        order = torch.argsort(col * n + row)
        by_row = Rows(_pointer(row, n), col, value, (n, f))
        by_column = Rows(_pointer(col[order], f), row[order], value[order], (f, n))
        return cls(n, f, None, by_row, by_column, order)

    def rows(self, nodes: Tensor) -> Features:
        """Returns the features of ``nodes`` (n,) alone; of a memory-mapped x, only these rows are read."""
        if self.by_row is None:
            assert self.dense is not None
            return Features(nodes.numel(), self.num_features, self.dense[nodes], None, None, None)
        stored = self.by_row
        entry = entries_of_rows(stored.crow, nodes)
        count = stored.crow[nodes + 1] - stored.crow[nodes]
        row = torch.repeat_interleave(torch.arange(nodes.numel(), device=nodes.device), count)
        return Features._sparse(row, stored.col[entry], stored.value[entry], (nodes.numel(), self.num_features))

    def _holds(self, x: Tensor, row: Tensor, count: int) -> bool:
        """Returns whether x, with ``count`` non-zero entries, equals this matrix."""
        stored = self.by_row
        assert stored is not None
        same = (x.shape, x.dtype, x.device) == (stored.shape, stored.value.dtype, stored.value.device)
        return same and count == row.numel() and torch.equal(x[row, stored.col], stored.value)

    @property
    def requires_grad(self) -> bool:
        return self.dense is not None and self.dense.requires_grad

    @property
    def dtype(self) -> torch.dtype:
        value = self.dense if self.by_row is None else self.by_row.value
        assert value is not None
        return value.dtype

    @property
    def device(self) -> torch.device:
        value = self.dense if self.by_row is None else self.by_row.value
        assert value is not None
        return value.device

    @property
    def size_of_mask(self) -> tuple[int, ...]:
        """The shape of one trial's dropout mask: one bit per stored entry."""
        return (self.num_nodes, self.num_features) if self.by_row is None else tuple(self.by_row.value.shape)

    def linear(self, weight: Tensor, keep: Tensor | None, scale: Tensor | None) -> Tensor:
        """Returns X W for each trial: ``weight`` (T, F, H) → (T, N, H), differentiable in the weight to any order.

        Args:
            weight: One matrix per trial.
            keep: (T, \\*size_of_mask) bool, the entries that dropout keeps; ``None`` keeps all.
            scale: (T,) the factor on the kept entries.
        """
        if weight.size(1) != self.num_features:
            raise GraphError(f"The model was built for {weight.size(1)} features, but x has {self.num_features}.")
        if weight.dtype != self.dtype:
            raise GraphError(
                f"x is {dtype_name(self.dtype)} and the model {dtype_name(weight.dtype)}; convert one of them."
            )
        if self.dense is not None:
            if keep is None or scale is None:
                return self.dense @ weight
            if self.requires_grad:
                return (self.dense * keep * scale.view(-1, 1, 1)) @ weight
            kept: Tensor = _DenseLinear.apply(weight, self.dense, keep, scale, False)
            return kept
        out: Tensor = _SparseLinear.apply(weight, self, keep, scale, False)
        return out

    def range(self, first: int, last: int) -> Features:
        """Returns the rows ``first`` … ``last`` − 1 of dense features, not copied."""
        assert self.dense is not None
        part = self.dense[first:last]
        return Features(len(part), self.num_features, part, None, None, None)

    def gram(self, h: Tensor) -> Tensor:
        """Returns X Xᵀ h for h (N, C) without forming the N×N matrix; no gradient."""
        if self.by_row is None or self.by_column is None:
            assert self.dense is not None
            return self.dense @ (self.dense.t() @ h)
        return self.by_row @ (self.by_column @ h)

    def to_dense(self) -> Tensor:
        """Returns the matrix as a dense tensor (N, F) on the same device."""
        if self.by_row is None:
            assert self.dense is not None
            return self.dense
        rows = self.by_row
        return torch.sparse_csr_tensor(rows.crow, rows.col, rows.value, rows.shape, check_invariants=False).to_dense()

    def to_scipy(self) -> sp.csr_array:
        """Returns the matrix in double precision without stored zeros, on the CPU."""
        if self.by_row is None:
            assert self.dense is not None
            return sp.csr_array(self.dense.detach().cpu().double().numpy())
        rows = self.by_row
        parts = (part.detach().cpu().numpy() for part in (rows.value.double(), rows.col, rows.crow))
        matrix = sp.csr_array(tuple(parts), shape=rows.shape)
        matrix.eliminate_zeros()
        return matrix

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> Features:
        held = self.by_row.value if self.dense is None and self.by_row is not None else self.dense
        if held is not None and held.device == torch.device(device) and dtype in (None, held.dtype):
            return self

        def rows(part: Rows | None) -> Rows | None:
            if part is None:
                return None
            return Rows(part.crow.to(device), part.col.to(device), part.value.to(device, dtype), part.shape)

        dense = None if self.dense is None else self.dense.to(device, dtype)
        order = None if self.to_column_order is None else self.to_column_order.to(device)
        return Features(self.num_nodes, self.num_features, dense, rows(self.by_row), rows(self.by_column), order)


def _kernels(dense: Tensor) -> ModuleType | None:
    """The CPU kernels of the products; ``None`` where torch has to record them for a derivative."""
    return None if torch.is_grad_enabled() and dense.requires_grad else on_cpu("sparse")


# x → the row indices of its non-zero entries, and its sparse form
_SPARSE = WeakTensorKeyDictionary()


# x → the matrix of which it holds copies, and their number
_REPEATED = WeakTensorKeyDictionary()


def repeated(x: Tensor, count: int) -> Tensor:
    """Returns the features of ``count`` disjoint copies of the nodes; models find out about one copy only."""
    many = x.repeat(count, 1)
    _REPEATED[many] = (x, count)
    return many


def _repeats(x: Tensor) -> tuple[Features, int] | None:
    known = _REPEATED.get(x)
    return None if known is None else (Features.of(known[0]), known[1])


def _pointer(index: Tensor, size: int) -> Tensor:
    pointer = torch.zeros(size + 1, dtype=torch.int64, device=index.device)
    pointer[1:] = torch.bincount(index, minlength=size).cumsum(0)
    return pointer


class _DenseLinear(torch.autograd.Function):
    """X W, or XᵀW if ``transposed``, with the kept entries of a dense X. Each is the derivative of the other.

    X with its zeros exists for some rows at a time only.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, x: Tensor, keep: Tensor, scale: Tensor, transposed: bool) -> Tensor:
        ctx.transposed = transposed
        ctx.save_for_backward(x, keep, scale)
        (trials, nodes, columns), width = keep.shape, weight.size(2)
        rows = max(1, BLOCK // (trials * columns))
        if transposed:
            out = weight.new_zeros(trials, columns, width)
        else:
            weight, out = weight * scale.view(-1, 1, 1), weight.new_empty(trials, nodes, width)
        for first in range(0, nodes, rows):
            at = slice(first, first + rows)
            part = x[at] * keep[:, at]
            if transposed:
                out.baddbmm_(part.transpose(1, 2), weight[:, at])
            else:
                out[:, at] = torch.bmm(part, weight)
        return out * scale.view(-1, 1, 1) if transposed else out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        return _DenseLinear.apply(grad, *ctx.saved_tensors, not ctx.transposed), None, None, None, None


class _SparseLinear(torch.autograd.Function):
    """X W, or XᵀW if ``transposed``, with the kept entries of X. Each is the derivative of the other, to any order."""

    @staticmethod
    def forward(
        ctx: Any, weight: Tensor, features: Features, keep: Tensor | None, scale: Tensor | None, transposed: bool
    ) -> Tensor:
        ctx.features, ctx.transposed = features, transposed
        ctx.save_for_backward(keep, scale)
        rows = features.by_column if transposed else features.by_row
        assert rows is not None
        if keep is None or scale is None:
            return rows.times(weight)
        return rows.times_kept(weight, keep, scale, features.to_column_order if transposed else None)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        keep, scale = ctx.saved_tensors
        return _SparseLinear.apply(grad, ctx.features, keep, scale, not ctx.transposed), None, None, None, None
