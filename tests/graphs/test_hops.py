"""Features of the neighbours against dense matrix products."""

from __future__ import annotations

import pytest
import torch

from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.features import Features
from asgnn.graphs.hops import with_hops
from tests.awkward import AWKWARD
from tests.training.problem import NODES, graph


@pytest.mark.parametrize("hops", [1, 2, 5])
@pytest.mark.parametrize("sparse", [False, True])
def test_with_hops_is_a_product(hops: int, sparse: bool) -> None:
    data = graph()
    x = data.x if sparse else data.x + 0.1 * torch.arange(NODES).double().cos().unsqueeze(1)
    features = Features.of(x)
    assert (features.by_row is not None) == sparse
    weight = 0.1 + 0.9 * ((data.edge_index.sum(0) % 5) / 5).double()
    a = torch.zeros(NODES, NODES, dtype=torch.float64)
    a[data.edge_index[0], data.edge_index[1]] = weight
    a /= a.sum(1, keepdim=True).clamp(min=1e-300)
    expected = torch.cat([torch.linalg.matrix_power(a, k) @ x for k in range(hops + 1)], dim=1)
    for needs in (False, True):
        adj = Adjacency.of(data.edge_index, NODES, weight.clone().requires_grad_(needs))
        torch.testing.assert_close(with_hops(features, adj, hops).to_dense(), expected)


@pytest.mark.parametrize("name", AWKWARD)
def test_nodes_without_neighbours_get_zeros(name: str) -> None:
    num_nodes, edge_index = AWKWARD[name]
    adj = Adjacency.of(edge_index, num_nodes)
    out = with_hops(Features.of(torch.ones(num_nodes, 3)), adj, 1).to_dense()
    alone = (adj.crow.diff() == 1).float().unsqueeze(1)
    torch.testing.assert_close(out[:, 3:], (1 - alone).expand(-1, 3))
