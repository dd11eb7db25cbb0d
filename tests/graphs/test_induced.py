"""Subgraphs cut from a prepared graph, against the rows and columns of the dense matrices."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.features import Features
from asgnn.graphs.induced import induced
from tests.awkward import AWKWARD

F64 = torch.float64


def dense(adj: Adjacency, values: Tensor) -> Tensor:
    return torch.zeros(adj.num_nodes, adj.num_nodes, *values.shape[1:]).index_put((adj.row, adj.col), values)


def subsets(num_nodes: int) -> list[Tensor]:
    """The empty set, all nodes, the first half, and two random sets."""
    nodes = torch.arange(num_nodes)
    rng = torch.Generator().manual_seed(num_nodes)
    drawn = [nodes[torch.rand(num_nodes, generator=rng) < share] for share in (0.3, 0.7)]
    return [nodes[:0], nodes, nodes[: (num_nodes + 1) // 2], *drawn]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=["int32", "int64"])
@pytest.mark.parametrize("columns", [None, 3], ids=["one weight", "weights of trials"])
@pytest.mark.parametrize("name", AWKWARD)
def test_a_subgraph_holds_exactly_the_edges_among_its_nodes(name: str, columns: int | None, dtype: torch.dtype) -> None:
    num_nodes, edge_index = AWKWARD[name]
    rng = torch.Generator().manual_seed(0)
    shape = (edge_index.size(1),) if columns is None else (edge_index.size(1), columns)
    adj = Adjacency.of(edge_index, num_nodes, torch.rand(shape, generator=rng))
    short = {field: getattr(adj, field).to(dtype) for field in ("row", "col", "reverse")}
    adj = replace(adj, trust=torch.rand(adj.row.numel(), generator=rng), **short)
    ones = torch.ones(adj.row.numel())
    for nodes in subsets(num_nodes):
        local = torch.full((num_nodes,), -1)
        cut = induced(adj, nodes, local)
        assert bool((local == -1).all())
        # the pattern, and everything that a fresh adjacency of the same edges would have
        pattern = dense(adj, ones)[nodes][:, nodes]
        fresh = Adjacency.of(pattern.nonzero().t().contiguous(), nodes.numel())
        for field in ("row", "col", "crow", "reverse", "loops"):
            assert torch.equal(getattr(cut, field).long(), getattr(fresh, field).long()), field
            assert getattr(cut, field).dtype == getattr(adj, field).dtype, field
        assert torch.equal(dense(cut, cut.weight), dense(adj, adj.weight)[nodes][:, nodes])
        assert adj.trust is not None
        assert cut.trust is not None
        assert torch.equal(dense(cut, cut.trust), dense(adj, adj.trust)[nodes][:, nodes])


@pytest.mark.parametrize("share", [0.02, 1.0], ids=["sparse", "dense"])
def test_rows_of_features(share: float) -> None:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(33, 50, generator=rng, dtype=F64) * (torch.rand(33, 50, generator=rng) < share)
    features = Features.of(x)
    assert (features.by_row is None) == (share == 1)
    weight = torch.randn(2, 50, 4, generator=rng, dtype=F64, requires_grad=True)
    for nodes in subsets(33)[1:]:
        ours, fresh = features.rows(nodes), x[nodes]
        assert (ours.num_nodes, ours.num_features) == (nodes.numel(), 50)
        assert torch.equal(ours.to_dense(), fresh)
        keep = torch.rand(2, *ours.size_of_mask, generator=rng) < 0.5
        scale = torch.tensor([1.0, 3.0], dtype=F64)
        out = ours.linear(weight, keep, scale)
        kept = keep.to(F64) if ours.by_row is None else torch.stack([_spread(ours, one) for one in keep])
        torch.testing.assert_close(out, (fresh * kept * scale.view(-1, 1, 1)) @ weight)
        (ours_grad,) = torch.autograd.grad(out.square().sum(), weight)
        (grad,) = torch.autograd.grad(((fresh * kept * scale.view(-1, 1, 1)) @ weight).square().sum(), weight)
        torch.testing.assert_close(ours_grad, grad)


def _spread(features: Features, keep: Tensor) -> Tensor:
    """The mask of the stored entries as a matrix."""
    rows = features.by_row
    assert rows is not None
    return torch.sparse_csr_tensor(rows.crow, rows.col, keep.to(F64), rows.shape, check_invariants=True).to_dense()


def test_memory_mapped_features_stay_on_disk(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
    values.tofile(tmp_path / "x")
    mapped = np.memmap(tmp_path / "x", dtype=np.float32, mode="r+", shape=(40, 6))
    x = torch.from_numpy(mapped)
    features = Features.of(x)
    assert features.dense is not None
    assert features.dense.data_ptr() == x.data_ptr() == mapped.ctypes.data
    assert torch.equal(features.rows(torch.tensor([3, 39])).to_dense(), torch.from_numpy(values[[3, 39]]))
