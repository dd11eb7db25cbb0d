"""The features of a node beside the mean features of its neighbours."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.features import Features
from asgnn.graphs.per_graph import once_per_graph


@once_per_graph
def with_hops(features: Features, adj: Adjacency, hops: int) -> Features:
    r"""Return :math:`[Z, \hat A Z, \dots, \hat A^{hops} Z]` with :math:`\hat A = D^{-1} A` without self-loops.

    A node without neighbours gets zeros. Sparse features stay sparse. Differentiable in the features and the edge
    weights where they require a gradient; then the result is dense. Time O(hops · E · non-zeros per row).
    """
    weight = torch.where(adj.loops, 0, adj.weight).to(features.dtype)
    degree = adj.row_sum(weight)
    average = weight / adj.at_row(torch.where(degree > 0, degree, 1))
    if features.by_row is None or adj.needs_gradient:
        parts = [features.to_dense()]
        for _ in range(hops):
            parts.append(adj.matmul(average, parts[-1]))
        return Features.of(torch.cat(parts, dim=1))
    rows = [features.to_scipy()]
    matrix = sp.csr_array(tuple(part.detach().cpu().numpy() for part in (average.double(), adj.col, adj.crow)))
    for _ in range(hops):
        rows.append(matrix @ rows[-1])
    return Features.of(_tensor(sp.hstack(rows, format="coo"), features.dtype)).to(adj.row.device)


def _tensor(matrix: sp.coo_array, dtype: torch.dtype) -> Tensor:
    """A torch-sparse tensor, or a dense one if most entries are not zero."""
    if matrix.nnz > matrix.shape[0] * matrix.shape[1] / 10:
        return torch.from_numpy(matrix.toarray()).to(dtype)
    index = torch.from_numpy(np.stack([matrix.row, matrix.col]).astype(np.int64))
    values = torch.from_numpy(matrix.data).to(dtype)
    return torch.sparse_coo_tensor(index, values, matrix.shape, check_invariants=False)
