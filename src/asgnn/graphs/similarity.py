"""Feature similarity of the two nodes of an edge."""

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

# Entries per block; bounds the temporary memory.
BLOCK = 2**16


def edge_similarity(features: Features, adj: Adjacency) -> Tensor:
    r"""Returns the feature similarity of every entry (E,), self-loops included, bitwise symmetric.

    Uses the Jaccard index for binary features, else the cosine:

    .. math:: J_{ij} = \frac{|x_i \cap x_j|}{|x_i \cup x_j|}, \qquad
              \cos_{ij} = \frac{x_i \cdot x_j}{\|x_i\| \|x_j\|}

    The similarity is 0 if one of the nodes has only zero features.

    Raises :class:`~asgnn.errors.GraphError` if no two nodes share a feature, as with identity features. Time
    O(E · non-zeros per row); never builds an N × N matrix.
    """
    x = features.to_scipy()
    if features.num_nodes > 1 and x.count_nonzero(axis=0).max(initial=0) < 2:
        raise GraphError(
            "No two nodes share a feature (as with identity features), so feature similarity is 0 for every edge; "
            "choose a method that uses the graph structure only."
        )
    return _ratio(x, adj, jaccard=bool((x.data == 1).all()))


def edge_cosine(features: Features, adj: Adjacency) -> Tensor:
    """Returns the cosine similarity of every entry (E,); 0 if one of the nodes has only zero features.

    Differentiable if the features require a gradient; then it needs O(E F) temporary memory.
    """
    if features.requires_grad:
        assert features.dense is not None
        unit = F.normalize(features.dense, dim=1).unsqueeze(2)
        return sddmm(unit, unit, adj).squeeze(1)
    return _ratio(features.to_scipy(), adj, jaccard=False)


def _ratio(x: sp.csr_array, adj: Adjacency, *, jaccard: bool) -> Tensor:
    row, col = adj.row.cpu().numpy(), adj.col.cpu().numpy()
    size = x.multiply(x).sum(axis=1)  # squared norm; for binary rows the number of ones
    starts = range(0, row.size, BLOCK)
    shared = np.concatenate([_dots(x, row[at : at + BLOCK], col[at : at + BLOCK]) for at in starts])
    whole = size[row] + size[col] - shared if jaccard else np.sqrt(size[row] * size[col])
    found = np.divide(shared, whole, out=np.zeros_like(shared), where=whole > 0)
    return torch.from_numpy(found).to(adj.row.device)


def _dots(x: sp.csr_array, row: NDArray[np.int64], col: NDArray[np.int64]) -> NDArray[Any]:
    dots: NDArray[Any] = x[row].multiply(x[col]).sum(axis=1)
    return dots
