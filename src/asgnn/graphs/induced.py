"""Subgraphs that a set of nodes induces, cut from a prepared graph."""

from __future__ import annotations

import torch
from torch import Tensor

from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.csr import entries_of_rows


def induced(adj: Adjacency, nodes: Tensor, local: Tensor) -> Adjacency:
    """Returns the adjacency among ``nodes``, with the weights that the edges have in ``adj``.

    Args:
        adj: the whole graph.
        nodes: (n,) int64, ascending, without repetition; node i of the result is ``nodes[i]``.
        local: (N,) int64, scratch memory that holds −1 before and after the call.

    Time O(entries of the rows of ``nodes`` · log), memory O(the same): independent of the size of the whole graph.
    """
    local[nodes] = torch.arange(nodes.numel(), device=nodes.device)
    entry = entries_of_rows(adj.crow, nodes)
    entry = entry[local[adj.col[entry]] >= 0]
    row, col = local[adj.row[entry]].to(adj.row.dtype), local[adj.col[entry]].to(adj.col.dtype)
    local[nodes] = -1
    crow = torch.zeros(nodes.numel() + 1, dtype=torch.int64, device=nodes.device)
    torch.cumsum(torch.bincount(row, minlength=nodes.numel()), 0, out=crow[1:])
    # The k-th entry by column is the transpose of the k-th entry by row, because the pattern is symmetric.
    reverse = torch.argsort(col, stable=True).to(adj.reverse.dtype)
    trust = None if adj.trust is None else adj.trust[entry]
    return Adjacency(nodes.numel(), row, col, crow, reverse, adj.loops[entry], adj.weight[entry], adj.symmetric, trust)
