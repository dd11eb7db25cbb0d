"""The default surrogate of the gradient attacks: a two-layer GCN that is differentiable in its edge weights."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch_geometric.data import Data

from asgnn.attacks.linear import glorot
from asgnn.attacks.rules import check_labelled
from asgnn.graphs import labels_of, num_classes, prepare
from asgnn.graphs.csr import csr_matmul
from asgnn.graphs.features import Features
from asgnn.settings import check_count, check_number

Victim = Callable[[Any, Tensor, Tensor], Tensor]
"""(x, edge_index, edge_weight) → logits (N, C), differentiable in edge_weight; edge_index has both directions."""

Product = Callable[[Tensor], Tensor]
"""h (N, ·) → (A + I) h for a symmetric weighted adjacency matrix A."""


@dataclass(frozen=True, eq=False)
class SurrogateGCN:
    r"""Two-layer GCN (Kipf & Welling, ICLR 2017) for weighted edges, without dropout.

    .. math:: \hat A\, \mathrm{ReLU}(\hat A X W_1 + b_1) W_2 + b_2,
              \qquad \hat A = D^{-1/2} (A + I) D^{-1/2},\quad D = \mathrm{diag}((A + I) 1)

    The degrees are sums of the weights, so the gradient passes through them. An attack accepts any other
    :data:`Victim` instead, such as a model of this library or of PyG.

    Args:
        w1: (F, H).
        b1: (H,).
        w2: (H, C).
        b2: (C,).
    """

    w1: Tensor
    b1: Tensor
    w2: Tensor
    b2: Tensor

    def __call__(self, x: Tensor | Features, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        """Return the logits (N, C). Time O(nnz(x) H + E (H + C)), memory O((N + E) (H + C)); deterministic.

        Args:
            x: (N, F); pass :class:`Features` to convert it only once for many calls.
            edge_index: (2, E) without self-loops.
            edge_weight: (E,), differentiable.
        """
        features = Features.of(x)
        edges = Edges.of(edge_index, features.num_nodes)

        def product(h: Tensor) -> Tensor:
            return edges.product(edge_weight, h) + h

        degree = product(edge_weight.new_ones(features.num_nodes, 1))
        return self.layers(features, degree, product)[0]

    def layers(
        self, features: Features, degree: Tensor, product: Product, keep: Tensor | None = None
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """Return the logits, and the input and output of each product with A + I: [(u, (A + I) u)].

        With the gradients g of a loss in the outputs, Σ g uᵀ is its gradient in all N × N entries of A, as a product
        of two thin matrices.

        Args:
            features: x.
            degree: (N, 1), the row sums of A + I.
            product: multiplies by A + I.
            keep: (N, H) scaled dropout mask of the hidden layer.
        """
        root = degree.rsqrt()
        first = root * features.linear(self.w1.unsqueeze(0), None, None)[0]
        first_out = product(first)
        hidden = (root * first_out + self.b1).relu()
        second = root * ((hidden if keep is None else hidden * keep) @ self.w2)
        second_out = product(second)
        return root * second_out + self.b2, [(first, first_out), (second, second_out)]

    @property
    def weights(self) -> dict[str, Tensor]:
        return {"w1": self.w1, "b1": self.b1, "w2": self.w2, "b2": self.b2}

    def to(self, device: torch.device | str) -> SurrogateGCN:
        return replace(self, **{name: value.to(device) for name, value in self.weights.items()})


def fit_surrogate(
    data: Data,
    train: Tensor,
    rng: torch.Generator,
    *,
    hidden: int = 16,
    epochs: int = 200,
    lr: float = 0.01,
    weight_decay: float = 5e-4,
    dropout: float = 0.5,
    device: torch.device | str | None = None,
) -> SurrogateGCN:
    """Train the surrogate GCN on the graph, using only the labels of ``train``.

    Glorot initialisation, Adam, dropout on the hidden layer. Returns the weights of the last epoch, because there are
    no validation labels to select one by.

    Args:
        data: the graph.
        train: the nodes whose labels are known, as numbers or a mask.
        rng: a CPU generator, for initialisation and dropout.
        hidden: hidden units.
        epochs: full-batch steps.
        lr: learning rate of Adam.
        weight_decay: L2 penalty on all weights.
        dropout: dropout rate in [0, 1).
        device: device of the training; that of ``data`` by default.

    Time O(epochs (nnz(x) H + E (H + C))).
    """
    features, adj = prepare(data, device, need_labels=True)
    train = check_labelled(train, data)
    check_count("hidden", hidden)
    check_count("epochs", epochs, 0)
    check_number("dropout", dropout, 0, 1, "[)")
    place = torch.device(device or data.x.device)
    # The attacker knows the number of classes, though not every label.
    sizes = (features.num_features, hidden, num_classes(data))
    model = _initial(sizes, rng, data.x.dtype).to(place)
    weight = adj.weight.to(data.x.dtype)
    degree = adj.row_sum(weight).unsqueeze(1)
    train = train.to(place)
    y = labels_of(data).to(place)[train]
    parameters = [value.requires_grad_() for value in model.weights.values()]
    optimizer = torch.optim.Adam(parameters, lr=lr, weight_decay=weight_decay)
    for _ in range(epochs):
        kept = torch.rand(features.num_nodes, hidden, generator=rng) >= dropout
        keep = kept.to(place, data.x.dtype) / (1 - dropout)
        logits, _ = model.layers(features, degree, lambda h: adj.matmul(weight, h), keep)
        loss = F.cross_entropy(logits[train], y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return SurrogateGCN(*(value.detach() for value in parameters))


def _initial(sizes: tuple[int, int, int], rng: torch.Generator, dtype: torch.dtype) -> SurrogateGCN:
    weights = []
    for width, out in itertools.pairwise(sizes):
        weights += [glorot(width, out, rng, dtype), torch.zeros(out, dtype=dtype)]
    return SurrogateGCN(*weights)


@dataclass(frozen=True, eq=False)
class Edges:
    """Edges in any order, with the permutations that sort them by row and by column."""

    num_nodes: int
    row: Tensor
    col: Tensor
    by_row: tuple[Tensor, Tensor]
    by_col: tuple[Tensor, Tensor]

    @classmethod
    def of(cls, edge_index: Tensor, num_nodes: int) -> Edges:
        row, col = edge_index
        return cls(num_nodes, row, col, _grouped(row, num_nodes), _grouped(col, num_nodes))

    def product(self, weight: Tensor, h: Tensor) -> Tensor:
        """Return the sparse matrix with values ``weight`` (E,) times ``h`` (N, C); once differentiable in both."""
        out: Tensor = _WeightedProduct.apply(weight, h, self)
        return out


def _grouped(index: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
    """Return (pointer, order): order[pointer[i]:pointer[i+1]] are the entries of node i. Time O(N + E)."""
    pointer = torch.zeros(num_nodes + 1, dtype=torch.int64, device=index.device)
    pointer[1:] = torch.bincount(index, minlength=num_nodes).cumsum(0)
    if index.is_cuda:
        return pointer, index.argsort(stable=True)
    # On the CPU, SciPy's COO to CSR conversion is a counting sort, several times faster than argsort.
    each = np.arange(index.numel())
    shape = (num_nodes, index.numel())
    order = sp.coo_array((np.ones(index.numel(), dtype=np.bool_), (index.numpy(), each)), shape=shape).tocsr().indices
    return pointer, torch.from_numpy(order.astype(np.int64))


class _WeightedProduct(torch.autograd.Function):
    """Sparse matrix times (N, C), differentiable in the edge weights and in h; sums in a fixed order."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, h: Tensor, edges: Edges) -> Tensor:
        ctx.edges = edges
        ctx.save_for_backward(weight, h)
        return _product(edges.by_row, edges.col, weight, h)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        edges: Edges = ctx.edges
        weight, h = ctx.saved_tensors
        of_weight = of_h = None
        if ctx.needs_input_grad[0]:
            of_weight = (grad.index_select(0, edges.row) * h.index_select(0, edges.col)).sum(1)
        if ctx.needs_input_grad[1]:
            of_h = _product(edges.by_col, edges.row, weight, grad)
        return of_weight, of_h, None


def _product(grouped: tuple[Tensor, Tensor], other: Tensor, weight: Tensor, h: Tensor) -> Tensor:
    pointer, order = grouped
    if order.numel() == 0:  # on some devices an empty segment sum is NaN
        return torch.zeros_like(h)
    return csr_matmul(pointer, other[order], weight[order], (h.size(0), h.size(0)), h.contiguous())
