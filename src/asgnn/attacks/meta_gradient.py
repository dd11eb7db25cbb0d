"""The meta-gradient: the derivative of the attacker's loss in every node pair, through the surrogate's training."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.data import Data

from asgnn.attacks.inner import Adjoint, InnerTraining, Trace, cuda_graph, reverse, train
from asgnn.graphs import labels_of
from asgnn.graphs.csr import segment_sum
from asgnn.graphs.features import Features, Rows

MetaLoss = Literal["ce", "tanh_margin"]
_Function = Callable[..., Sequence[Tensor]]
TILE = 256


class MetaGradient:
    r"""A graph that is flipped edge by edge, and the meta-gradient of the current graph.

    With :math:`P = \hat A^2 X` and :math:`G = ∂L/∂P`, the derivative in :math:`\hat A` is
    :math:`H \hat A + \hat A H` for :math:`H = G X^\top`. The features enter only as :math:`C_0 = X X^\top`, and H has
    rank C except in the labelled rows. So no matrix has the size of the features, and the N×N pairs are computed only
    once, at the end. :math:`\hat A C_0` is kept between flips, because a flip changes only the rows of its end nodes
    and their neighbours.

    Args:
        data: the graph.
        labelled: (n,) the nodes on which the surrogate is trained.
        pseudo: (N,) pseudo-labels of the other nodes; the attack lowers the accuracy with respect to them.
        share: weight of the labelled nodes in the attacker's loss.
        inner: settings of the surrogate's training.
        nodes: the attacked nodes among the others; by default all of them.
        loss: the attacker's loss: "ce" or "tanh_margin".
        device: device of the computation.
        dtype: dtype of the computation; float64 for tests.

    Memory: three or four N×N matrices.
    """

    def __init__(
        self,
        data: Data,
        labelled: Tensor,
        pseudo: Tensor,
        share: float,
        inner: InnerTraining,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        *,
        nodes: Tensor | None = None,
        loss: MetaLoss = "ce",
    ) -> None:
        self.num_nodes, self.inner, self.device, self.dtype = int(data.num_nodes), inner, torch.device(device), dtype
        self.labelled = labelled.to(self.device)
        self._labelled = labelled.numpy()
        truth = pseudo.clone()
        truth[labelled] = labels_of(data).cpu()[labelled]
        self.onehot = F.one_hot(truth).t().contiguous().to(self.device, dtype)  # (C, N)
        self.loss: MetaLoss = loss
        # the weight of each node in the loss
        attacked = torch.ones(self.num_nodes, dtype=torch.bool)
        attacked[labelled] = False
        if nodes is not None:
            attacked &= torch.zeros_like(attacked).index_fill(0, nodes.cpu(), True)
        weight = attacked.to(dtype) * (1 - share) / max(1, int(attacked.sum()))
        weight[labelled] = share / labelled.numel()
        self.loss_weight = weight.to(self.device) / inner.starts
        x = data.x.to(self.device, dtype)
        self.features = Features.of(x)
        self.gram = self.features.linear(x.t().unsqueeze(0), None, None).squeeze(0)  # C₀
        row, col = data.edge_index.cpu().numpy()
        each = np.arange(self.num_nodes)
        # the entries of Â as sorted keys, including self-loops
        self._keys: NDArray[np.int64] = np.sort(
            np.concatenate([row * self.num_nodes + col, each * (self.num_nodes + 1)])
        )
        self._rebuild()
        self.hat_gram = self._hat @ self.gram  # ÂC₀
        self._half = torch.empty_like(self.gram)
        self._out = torch.full_like(self.gram, -math.inf)
        self._below = self.gram.new_full((TILE, TILE), -math.inf).tril_()
        self._passes: tuple[_Function, _Function] | None = None

    # --- the graph ----------------------------------------------------------------------------------------------------

    @property
    def degree(self) -> Tensor:
        """(N,) int64 degrees on the CPU, without self-loops."""
        return torch.from_numpy(np.diff(self._crow) - 1)

    def edges(self) -> tuple[Tensor, Tensor]:
        """Return the end nodes u < v of the edges."""
        above = self._row < self._col
        return self._row[above], self._col[above]

    def flip(self, u: int, v: int) -> None:
        """Add or remove the edge u–v and update ÂC₀."""
        before = self._neighbourhood(u, v)
        for key in (u * self.num_nodes + v, v * self.num_nodes + u):
            at = int(np.searchsorted(self._keys, key))
            present = at < self._keys.size and self._keys[at] == key
            self._keys = np.delete(self._keys, at) if present else np.insert(self._keys, at, key)
        self._rebuild()
        changed = np.union1d(before, self._neighbourhood(u, v))
        self.hat_gram[torch.from_numpy(changed).to(self.device)] = self._rows(changed) @ self.gram

    def _neighbourhood(self, u: int, v: int) -> NDArray[np.int64]:
        """Return u, v and their neighbours: the rows of Â that depend on the degrees of u and v."""
        return np.concatenate([self._columns[self._crow[i] : self._crow[i + 1]] for i in (u, v)])

    def _rebuild(self) -> None:
        """Compute Â from the keys."""
        n = self.num_nodes
        row, self._columns = np.divmod(self._keys, n)
        self._crow = np.searchsorted(row, np.arange(n + 1))
        self._root = 1 / np.sqrt(np.diff(self._crow))  # d^(−1/2), where d counts the self-loop
        self._values = self._root[row] * self._root[self._columns]
        self._row, self._col = (torch.from_numpy(index).to(self.device) for index in (row, self._columns))
        self.root = torch.from_numpy(self._root).to(self.device, self.dtype)
        # the position of the entry (j, i) for every entry (i, j)
        self._reversed = torch.from_numpy(np.searchsorted(self._keys, self._columns * n + row)).to(self.device)
        self._pointer = torch.from_numpy(self._crow).to(self.device)
        self._hat = self._pack(self._crow, self._columns, self._values, n)
        self._hat_labelled = self._rows(self._labelled)
        # the columns of Â at the labelled nodes, scaled by d^(−1/2) from the left
        place = np.full(n, -1)
        place[self._labelled] = np.arange(self._labelled.size)
        at = place[self._columns] >= 0
        crow = np.concatenate([[0], np.cumsum(at)])[self._crow]
        scaled = (self._values * self._root[row])[at]
        self._at_labelled = self._pack(crow, place[self._columns[at]], scaled, self._labelled.size)

    def _rows(self, rows: NDArray[np.int64]) -> Rows:
        """Return some rows of Â."""
        first, size = self._crow[rows], self._crow[rows + 1] - self._crow[rows]
        crow = np.concatenate([[0], np.cumsum(size)])
        entry = np.arange(crow[-1]) + np.repeat(first - crow[:-1], size)
        return self._pack(crow, self._columns[entry], self._values[entry], self.num_nodes)

    def _pack(self, crow: NDArray[np.int64], col: NDArray[np.int64], value: NDArray[np.float64], width: int) -> Rows:
        on_cpu = self.device.type == "cpu"
        # the sparse product on the CPU needs int32
        crow_t, col_t = (
            torch.from_numpy(a.astype(np.int32 if on_cpu else np.int64)).to(self.device) for a in (crow, col)
        )
        return Rows(crow_t, col_t, torch.from_numpy(value).to(self.device, self.dtype), (crow.size - 1, width))

    # --- the derivative -----------------------------------------------------------------------------------------------

    def start(self, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw initial W₁ (S, F, h) and W₂ (S, h, C), uniform in ±1/√(number of columns)."""
        starts, hidden = self.inner.starts, self.inner.hidden
        shapes = (starts, self.features.num_features, hidden), (starts, hidden, self.onehot.size(0))
        first, second = (
            (torch.rand(shape, generator=rng, dtype=self.dtype) * 2 - 1).div_(math.sqrt(shape[2])).to(self.device)
            for shape in shapes
        )
        return first, second

    def scores(self, w1: Tensor, w2: Tensor, *, exact: bool = True) -> Tensor:
        """Return (N, N): the increase of the attacker's loss when the pair i < j is flipped, to first order.

        The next call overwrites the matrix.
        """
        score = self.gradient(w1, w2, exact=exact)
        row, col = self.edges()
        score[row, col] = -score[row, col]  # flipping an edge removes it
        return score

    def gradient(self, w1: Tensor, w2: Tensor, *, exact: bool = True) -> Tensor:
        """Return (N, N): the sum of ∂L/∂A over both entries of a pair i < j, for training from ``w1`` and ``w2``.

        On and below the diagonal it is −∞. The next call overwrites the matrix.
        """
        hat, hat_labelled = self._hat, self._hat_labelled
        xw = _flat(self.features.linear(w1, None, None))  # XW₁⁰ of all initialisations: (N, S h)
        k_x = hat_labelled @ self.hat_gram  # PₗXᵀ
        k_y = (hat @ k_x.t()).t()  # PₗXᵀÂ
        k = hat_labelled @ k_y.t()  # K = PₗPₗᵀ
        trace = self._train(k, self._by_start(hat_labelled @ (hat @ xw)), w2.mT.contiguous())
        if not exact:
            return self._assemble(*self._first_order(trace, xw, k_x))
        b, w2 = trace.b[-1].view(-1, k.size(0)).t(), trace.w2[-1]
        xw_end = torch.addmm(xw, k_x.t(), b)  # XW₁ after training
        hidden = self._by_start(hat @ (hat @ xw_end))
        r = self._loss_gradient(w2 @ hidden)
        # Q = Pᵀ r W₂ᵀ is ∂L/∂W₁ after training; only XQ is needed
        xq = self.features.gram(hat @ (hat @ _together(w2.mT @ r)))
        b_bar = self._by_start(hat_labelled @ (hat @ xq))
        adjoint = self._reverse(trace, k, b_bar, r @ hidden.mT)
        # ∂L/∂Pₗ through the training, times Xᵀ
        t_x = torch.cat([b, _together(adjoint.z0), adjoint.k], 1) @ torch.cat([xq, xw, k_x.t()], 1).t()
        return self._assemble(_together(r), _together(w2 @ self._by_start(xw_end)), t_x)

    def _by_start(self, flat: Tensor) -> Tensor:
        """(N, S h) → (S, h, N)"""
        return flat.t().contiguous().view(self.inner.starts, -1, flat.size(0))

    def _loss_gradient(self, logits: Tensor) -> Tensor:
        """Return ∂L/∂logits, (S, C, N)."""
        if self.loss == "ce":
            return (torch.softmax(logits, dim=1) - self.onehot) * self.loss_weight
        other, at = logits.masked_fill(self.onehot > 0, -math.inf).max(1, keepdim=True)
        margin = other - (logits * self.onehot).sum(1, keepdim=True)
        slope = (1 - margin.tanh().square()) * self.loss_weight
        return (-slope * self.onehot).scatter_add(1, at, slope)

    def _first_order(self, trace: Trace, xw: Tensor, k_x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the factors of H for the sum of the gradients after each step, with the weights held constant."""
        hidden = self._by_start(self._hat @ (self._hat @ xw))
        kernel = (self._hat @ (self._hat @ k_x.t())).t()  # PₗPᵀ
        total = torch.zeros_like(hidden)
        through_b = torch.zeros_like(kernel)
        for b, w2 in zip(trace.b[1:], trace.w2[1:], strict=True):
            of_hidden = w2.mT @ self._loss_gradient(w2 @ (hidden + b @ kernel))
            total += of_hidden
            through_b.addmm_(_together(b), _together(of_hidden).t())
        return torch.cat([_together(total), through_b.t()], 1), torch.cat([xw, k_x.t()], 1)

    def _assemble(self, left: Tensor, right: Tensor, t_x: Tensor | None = None) -> Tensor:
        """Return ∂L/∂A from H = left rightᵀ + t_x, where t_x is non-zero only in the labelled rows."""
        s, row, col = self.root.unsqueeze(1), self._row, self._col
        # H Â + Â H, each entry times d_i^(−1/2) d_j^(−1/2): first the part of the labelled rows …
        half = self._half.zero_()
        if t_x is not None:
            self._at_labelled.product(t_x * self.root, out=half)
            half[self.labelled] += (self._hat @ t_x.t()).t() * self.root * s[self.labelled]
        # … then the low-rank part
        left, right = left.contiguous(), right.contiguous()
        rows = s * torch.cat([left, self._hat @ left], 1)
        cols = s * torch.cat([self._hat @ right, right], 1)
        # The derivative through the degrees: ∂L/∂d_i is −1/(2 d_i) times the sum of this matrix and its transpose over
        # the entries of row i, including the self-loop.
        entry = (rows[row] * cols[col]).sum(1) + half[row, col]
        by_degree = segment_sum((entry + entry[self._reversed]).unsqueeze(1), self._pointer) * (s.square() / -2)
        rows, cols = torch.cat([rows, by_degree], 1), torch.cat([cols, torch.ones_like(by_degree)], 1)
        torch.addmm(half, rows, cols.t(), out=half)
        # Add the transpose, above the diagonal only. In tiles, because reading a transposed matrix larger than the
        # cache is slow.
        for i in range(0, self.num_nodes, TILE):
            rows_i = slice(i, i + TILE)
            for j in range(i, self.num_nodes, TILE):
                cols_j = slice(j, j + TILE)
                torch.add(half[rows_i, cols_j], half[cols_j, rows_i].t(), out=self._out[rows_i, cols_j])
            diagonal = self._out[rows_i, rows_i]
            diagonal += self._below[: diagonal.size(0), : diagonal.size(0)]
        return self._out

    # --- the inner training -------------------------------------------------------------------------------------------

    def _train(self, k: Tensor, z0: Tensor, w2: Tensor) -> Trace:
        inputs = k, z0, w2, self.onehot[:, self.labelled]
        if self._passes is None:
            self._passes = self._prepare(*inputs)
        return Trace(*self._passes[0](*inputs))

    def _reverse(self, trace: Trace, k: Tensor, b_bar: Tensor, w2_bar: Tensor) -> Adjoint:
        assert self._passes is not None
        return Adjoint(*self._passes[1](*trace, k, b_bar, w2_bar, self.onehot[:, self.labelled]))

    def _prepare(self, k: Tensor, z0: Tensor, w2: Tensor, onehot: Tensor) -> tuple[_Function, _Function]:
        def forward(k: Tensor, z0: Tensor, w2: Tensor, onehot: Tensor) -> Trace:
            return train(k, z0, w2, onehot, self.inner)

        def backward(*inputs: Tensor) -> Adjoint:
            *trace, k, b_bar, w2_bar, onehot = inputs
            return reverse(Trace(*trace), k, b_bar, w2_bar, onehot, self.inner)

        if self.device.type != "cuda":
            return forward, backward
        trace = forward(k, z0, w2, onehot)
        return cuda_graph(forward, k, z0, w2, onehot), cuda_graph(backward, *trace, k, z0, w2, onehot)


def _flat(h: Tensor) -> Tensor:
    """(S, N, h) → (N, S h)"""
    return h.transpose(0, 1).reshape(h.size(1), -1)


def _together(h: Tensor) -> Tensor:
    """(S, h, N) → (N, S h)"""
    return h.reshape(-1, h.size(2)).t()
