"""How alike the features of two joined nodes are."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from asgnn.errors import GraphError
from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.edge_ops import sddmm
from asgnn.graphs.features import Features

# Entries of the matrix whose rows are looked at together: what a graph of any size needs for a moment.
BLOCK = 2**16


def edge_similarity(features: Features, adj: Adjacency) -> Tensor:
    r"""(E,) the likeness of the two ends of every entry, self-loops included, symmetric to the bit.

    With features of zeros and ones the Jaccard index, else the cosine:

    .. math:: J_{ij} = \frac{|x_i \cap x_j|}{|x_i \cup x_j|}, \qquad
              \cos_{ij} = \frac{x_i \cdot x_j}{\|x_i\| \|x_j\|}

    Two nodes of which one has no feature at all have likeness 0.

    Raises :class:`~asgnn.errors.GraphError` where no feature is shared by two nodes, as with the identity: then the
    features say nothing about any pair. Time O(E words), with as many words as the two rows hold; never N × N.
    """
    x = features.to_scipy()
    if features.num_nodes > 1 and x.count_nonzero(axis=0).max(initial=0) < 2:
        raise GraphError(
            "No two nodes share a feature, as where the identity stands in for features that are missing, so there is "
            "no likeness of the ends of an edge to judge it by; choose a method that looks at the structure only."
        )
    return _ratio(x, adj, jaccard=bool((x.data == 1).all()))


def edge_cosine(features: Features, adj: Adjacency) -> Tensor:
    """(E,) the cosine of the two ends of every entry, whatever the features; 0 where one of them has none.

    Differentiable where the features require a gradient, then with memory O(E F) for a moment.
    """
    if features.requires_grad:
        assert features.dense is not None
        unit = F.normalize(features.dense, dim=1).unsqueeze(2)
        return sddmm(unit, unit, adj).squeeze(1)
    return _ratio(features.to_scipy(), adj, jaccard=False)


def _ratio(x: sp.csr_array, adj: Adjacency, *, jaccard: bool) -> Tensor:
    row, col = adj.row.cpu().numpy(), adj.col.cpu().numpy()
    size = x.multiply(x).sum(axis=1)  # of a row of ones their number, else the squared norm
    starts = range(0, row.size, BLOCK)
    shared = np.concatenate([_dots(x, row[at : at + BLOCK], col[at : at + BLOCK]) for at in starts])
    whole = size[row] + size[col] - shared if jaccard else np.sqrt(size[row] * size[col])
    found = np.divide(shared, whole, out=np.zeros_like(shared), where=whole > 0)
    return torch.from_numpy(found).to(adj.row.device)


def _dots(x: sp.csr_array, row: NDArray[np.int64], col: NDArray[np.int64]) -> NDArray[Any]:
    dots: NDArray[Any] = x[row].multiply(x[col]).sum(axis=1)
    return dots
