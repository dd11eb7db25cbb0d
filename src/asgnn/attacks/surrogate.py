"""The model that a gradient attack differentiates through: a two-layer GCN whose edges have weights."""

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
from asgnn.errors import ConfigError
from asgnn.graphs import labels_of, num_classes, validate
from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.csr import csr_matmul
from asgnn.graphs.features import Features

Victim = Callable[[Any, Tensor, Tensor], Tensor]
"""(x, edge_index, edge_weight) → logits (N, C), differentiable in edge_weight; both directions of every edge given."""

Product = Callable[[Tensor], Tensor]
"""h (N, ·) → (A + I) h for a symmetric matrix A of weights."""


@dataclass(frozen=True, eq=False)
class Surrogate:
    r"""Two-layer GCN (Kipf & Welling, ICLR 2017) for weighted edges, without dropout.

    .. math:: \hat A\, \mathrm{ReLU}(\hat A X W_1 + b_1) W_2 + b_2,
              \qquad \hat A = D^{-1/2} (A + I) D^{-1/2},\quad D = \mathrm{diag}((A + I) 1)

    The degrees are those of the weights, so the gradient passes through them. Any :data:`Victim` may be given to an
    attack instead, such as a model of this library or of PyG.

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
        """Logits (N, C). Time O(nnz(x) H + E (H + C)), memory O((N + E) (H + C)); the same bits every time.

        Args:
            x: (N, F); as :class:`Features` where the call is made many times.
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
        """The logits, and what went into each product and came out of it: [(u, (A + I) u)].

        With the gradients g of the outputs, Σ g uᵀ is the gradient of a loss by the matrix A, all N × N entries of
        it, as a product of two thin matrices.

        Args:
            features: x.
            degree: (N, 1), the row sums of A + I.
            product: by A + I.
            keep: (N, H) what dropout leaves of the hidden layer, scaled.
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

    def to(self, device: torch.device | str) -> Surrogate:
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
) -> Surrogate:
    """Train the surrogate on the graph as it is, with the labels of ``train`` and no others.

    The last weights are kept: without other labels there is nothing to choose an epoch by. Glorot's start, Adam,
    dropout on the hidden layer.

    Args:
        data: the graph.
        train: the nodes whose labels are known, numbers or a mask.
        rng: a CPU generator, for the start and the dropout.
        hidden: units.
        epochs: full-graph steps.
        lr: Adam's.
        weight_decay: L2 on all weights.
        dropout: rate in [0, 1).
        device: where to train; where ``data`` is by default.

    Time O(epochs (nnz(x) H + E (H + C))).
    """
    validate(data)
    train = check_labelled(train, data)
    if hidden < 1 or epochs < 0 or not 0 <= dropout < 1:
        raise ConfigError(
            f"A surrogate has at least one hidden unit, is trained for 0 epochs or more and drops a share in [0, 1); "
            f"hidden is {hidden}, epochs {epochs} and dropout {dropout}."
        )
    place = torch.device(device or data.x.device)
    features = Features.of(data.x).to(place)
    adj = Adjacency.of(data.edge_index, features.num_nodes, data.get("edge_weight")).to(place)
    # The number of classes is known to everyone, whose label is which is not.
    sizes = (features.num_features, hidden, num_classes(data))
    model = _start(sizes, rng, data.x.dtype).to(place)
    weight = adj.weight.to(data.x.dtype)
    degree = adj.row_sum(weight).unsqueeze(1)
    y = labels_of(data).to(place)[train.to(place)]
    train = train.to(place)
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
    return Surrogate(*(value.detach() for value in parameters))


def _start(sizes: tuple[int, int, int], rng: torch.Generator, dtype: torch.dtype) -> Surrogate:
    weights = []
    for width, out in itertools.pairwise(sizes):
        weights += [glorot(width, out, rng, dtype), torch.zeros(out, dtype=dtype)]
    return Surrogate(*weights)


@dataclass(frozen=True, eq=False)
class Edges:
    """Edges in the order given, and where each lies in the matrix stored by rows and in its transpose."""

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
        """The matrix with the values ``weight`` (E,) times ``h`` (N, C), differentiable in both once."""
        out: Tensor = _WeightedProduct.apply(weight, h, self)
        return out


def _grouped(index: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
    """(pointer, order): entries order[pointer[i]] … order[pointer[i+1] − 1] are the ones of node i. Time O(N + E)."""
    pointer = torch.zeros(num_nodes + 1, dtype=torch.int64, device=index.device)
    pointer[1:] = torch.bincount(index, minlength=num_nodes).cumsum(0)
    if index.is_cuda:
        return pointer, index.argsort(stable=True)
    # On a CPU SciPy's conversion of a coordinate list is a counting sort, several times faster than argsort.
    each = np.arange(index.numel())
    shape = (num_nodes, index.numel())
    order = sp.coo_array((np.ones(index.numel(), dtype=np.bool_), (index.numpy(), each)), shape=shape).tocsr().indices
    return pointer, torch.from_numpy(order.astype(np.int64))


class _WeightedProduct(torch.autograd.Function):
    """A sparse matrix given by its edges' weights, times (N, C); differentiable in both, with ordered sums."""

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
    if order.numel() == 0:  # an empty sum over segments is no number on every device
        return torch.zeros_like(h)
    return csr_matmul(pointer, other[order], weight[order], (h.size(0), h.size(0)), h.contiguous())
