"""The linear surrogate Â²XW of Nettack and Metattack: a two-layer GCN without its non-linearity."""

from __future__ import annotations

import math

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.data import Data

from asgnn.attacks.rules import check_labelled
from asgnn.graphs import labels_of, num_classes
from asgnn.graphs.features import Features


def fit_linear(
    data: Data,
    train: Tensor,
    rng: torch.Generator,
    *,
    hidden: int = 16,
    lr: float = 0.01,
    weight_decay: float = 5e-4,
    epochs: int = 200,
) -> Tensor:
    """Train the linear surrogate softmax(Â²XW) and return W = W₁W₂ (F, C), float32 on the CPU.

    Adam minimises the cross-entropy on ``train``, without bias, dropout or early stopping. Â²X does not change, so
    only its rows at ``train`` are computed.

    Time O(epochs · |train| · F · hidden), memory O(|train| · F).

    Args:
        data: the graph with labels; only those of ``train`` and the number of classes are used.
        train: the nodes whose labels are known, as numbers or a mask.
        rng: a CPU generator for the initial weights.
        hidden: columns of W₁.
        lr: learning rate of Adam.
        weight_decay: L2 penalty.
        epochs: steps of Adam.
    """
    train = check_labelled(train, data)
    y, classes = labels_of(data).cpu(), num_classes(data)
    adj = normalised(data)
    rows = adj[train.numpy()] @ adj @ Features.of(data.x).to_scipy()
    inputs = torch.from_numpy(rows.toarray()).float()
    first = glorot(inputs.size(1), hidden, rng).requires_grad_()
    second = glorot(hidden, classes, rng).requires_grad_()
    adam = torch.optim.Adam([first, second], lr=lr, weight_decay=weight_decay)
    for _ in range(epochs):
        adam.zero_grad()
        F.cross_entropy(inputs @ first @ second, y[train]).backward()
        adam.step()
    with torch.no_grad():
        return first @ second


def linear_logits(data: Data, weight: Tensor) -> Tensor:
    """Return Â²XW (N, C), float64 on the CPU. Time O(nnz(X) C + E C)."""
    adj = normalised(data)
    return torch.from_numpy(adj @ (adj @ (Features.of(data.x).to_scipy() @ weight.double().cpu().numpy())))


def normalised(data: Data) -> sp.csr_array:
    """Return Â = D^-1/2 (A + I) D^-1/2, float64."""
    n = int(data.num_nodes)
    row, col = data.edge_index.cpu().numpy()
    loops = np.arange(n)
    row, col = np.concatenate([row, loops]), np.concatenate([col, loops])
    root = np.bincount(row, minlength=n) ** -0.5
    return sp.csr_array((root[row] * root[col], (row, col)), shape=(n, n))


def glorot(rows: int, columns: int, rng: torch.Generator, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return uniform random weights (rows, columns), as in Glorot & Bengio 2010."""
    bound = math.sqrt(6 / (rows + columns))
    return (2 * torch.rand(rows, columns, generator=rng, dtype=dtype) - 1) * bound
