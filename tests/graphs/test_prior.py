"""The feature prior against its dense definition, as a transform, and where features cannot judge."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.transforms import Compose

from asgnn.errors import ConfigError, FeaturesWarning
from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.features import Features
from asgnn.graphs.neighbors import nearest_neighbors
from asgnn.graphs.prior import FeaturePrior
from asgnn.graphs.similarity import pair_similarity
from tests.training.problem import NODES, graph

PRIORS = [
    FeaturePrior(threshold=0.1),
    FeaturePrior(neighbors=3),
    FeaturePrior(neighbors=3, weight=1.0),
    FeaturePrior(threshold=0.05, neighbors=2, weight=0.4, metric="cosine"),
    FeaturePrior(edges=0.5, neighbors=4, metric="jaccard"),
    FeaturePrior(edges=0.0, neighbors=4, weight=1.0),
    FeaturePrior(threshold=0.1, neighbors=3, metric="idf"),
    FeaturePrior(threshold=0.05, neighbors=2, metric="latent"),
    FeaturePrior(edges=0.0),
]


def dense(edge_index: Tensor, weight: Tensor) -> Tensor:
    out = torch.zeros(NODES, NODES, dtype=weight.dtype)
    out[edge_index[0], edge_index[1]] = weight
    return out


def weights(data: Data) -> Tensor:
    row, col = data.edge_index
    return 0.2 + 0.8 * ((row + 3 * col) * (col + 3 * row) % 7 / 7).double()


@pytest.mark.parametrize("prior", PRIORS, ids=str)
@pytest.mark.parametrize("with_weights", [False, True])
def test_structure_is_its_definition(prior: FeaturePrior, with_weights: bool) -> None:
    data = graph()
    features = Features.of(data.x)
    w = weights(data) if with_weights else torch.ones(data.edge_index.size(1), dtype=torch.float64)
    pairs = torch.cartesian_prod(torch.arange(NODES), torch.arange(NODES)).t()
    like = pair_similarity(features, pairs[0], pairs[1], prior.metric).view(NODES, NODES)
    given = prior.edges * dense(data.edge_index, w) * ~(like < prior.threshold)
    joined = torch.zeros(NODES, NODES, dtype=torch.float64)
    if prior.neighbors:
        row, col = nearest_neighbors(features, prior.neighbors, prior.metric)
        joined[row, col] = prior.weight
    expected = 1 - (1 - given) * (1 - joined)
    expected.fill_diagonal_(1)
    adj = prior.structure(features, Adjacency.of(data.edge_index, NODES, w))
    torch.testing.assert_close(dense(adj.edge_index, adj.weight.double()), expected)
    assert adj.symmetric


@pytest.mark.parametrize("prior", PRIORS[:5], ids=str)
def test_derivative_in_the_weights(prior: FeaturePrior) -> None:
    data = graph()
    features = Features.of(data.x)

    def total(w: Tensor) -> Tensor:
        adj = prior.structure(features, Adjacency.of(data.edge_index, NODES, w))
        return (adj.weight * torch.cos(adj.row + 2.0 * adj.col)).sum()

    w = weights(data).requires_grad_()
    (grad,) = torch.autograd.grad(total(w), w)
    step = 1e-6 * torch.eye(w.numel(), dtype=w.dtype)[:: w.numel() // 7]
    for at in step:
        numeric = (total(w.detach() + at) - total(w.detach() - at)) / 2e-6
        torch.testing.assert_close(numeric, grad @ at / 1e-6, rtol=1e-5, atol=1e-7)


def test_as_a_transform() -> None:
    data = graph()
    prior = FeaturePrior(threshold=0.1, neighbors=2)
    out = Compose([prior])(data)
    adj = prior.structure(Features.of(data.x), Adjacency.of(data.edge_index, NODES))
    torch.testing.assert_close(
        dense(out.edge_index, out.edge_weight) + torch.eye(NODES), dense(adj.edge_index, adj.weight)
    )
    assert "edge_weight" not in data
    assert out.x is data.x
    assert data.edge_index.size(1) != out.edge_index.size(1)


@pytest.mark.parametrize(
    ("x", "reason"),
    [(torch.eye(NODES), "share a feature"), (torch.ones(NODES, 4), "same"), (torch.zeros(NODES, 4), "No node has")],
)
def test_stands_aside_where_features_cannot_judge(x: Tensor, reason: str) -> None:
    data = graph()
    adj = Adjacency.of(data.edge_index, NODES)
    with pytest.warns(FeaturesWarning, match=reason):
        found = FeaturePrior(threshold=0.1, neighbors=3).structure(Features.of(x), adj)
    assert torch.equal(found.edge_index, adj.edge_index)
    assert torch.equal(found.weight, adj.weight)


def test_edges_of_a_node_without_features_are_kept() -> None:
    data = graph()
    node = int(data.edge_index[0].bincount().argmax())
    data.x[node] = 0
    features, adj = Features.of(data.x), Adjacency.of(data.edge_index, NODES)
    found = FeaturePrior(threshold=1.0, neighbors=2).structure(features, adj)
    assert set(adj.col[adj.row == node].tolist()) == set(found.col[found.row == node].tolist())


@pytest.mark.parametrize(
    "wrong", [{"threshold": 1.5}, {"neighbors": -1}, {"weight": 2}, {"edges": -0.1}, {"metric": "l2"}], ids=str
)
def test_wrong_settings(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        FeaturePrior(**wrong)  # type: ignore[arg-type]
