"""The inputs of the combined score against dense references."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
import torch
from sklearn.metrics.pairwise import cosine_similarity

from asgnn.audit import evidence as module
from asgnn.audit.evidence import LEAST, Evidence, single_edges
from asgnn.graphs import to_scipy
from asgnn.graphs.features import Features
from tests.audit.problem import planted


def evidence(features: str = "words", classes: int = 3) -> Evidence:
    data = planted(features)
    rng = np.random.default_rng(0)
    p, witness = rng.dirichlet(np.ones(classes), (2, data.num_nodes))
    return Evidence(Features.of(data.x), single_edges(data), p, witness)


def some_pairs(joined: bool) -> np.ndarray:
    edges = single_edges(planted("words"))
    if joined:
        return edges
    pairs = np.random.default_rng(1).integers(240, size=(2, 300))
    return pairs[:, pairs[0] != pairs[1]]


def test_single_edges_are_those_of_the_upper_triangle() -> None:
    data = planted()
    row, col = np.triu(to_scipy(data).toarray()).nonzero()
    assert np.array_equal(single_edges(data), np.stack([row, col]))
    shuffled = data.clone()
    shuffled.edge_index = data.edge_index[:, torch.randperm(data.num_edges)]
    assert np.array_equal(single_edges(shuffled), single_edges(data))


@pytest.mark.parametrize("joined", [True, False])
def test_common_neighbours_equal_networkx(joined: bool) -> None:
    found = evidence().columns(pairs := some_pairs(joined), joined=joined)
    graph = nx.Graph(single_edges(planted("words")).T.tolist())
    graph.add_nodes_from(range(240))
    for at, (u, v) in enumerate(pairs.T.tolist()):
        shared = list(nx.common_neighbors(graph, u, v))
        assert np.expm1(found["common"][at]) == pytest.approx(len(shared), abs=1e-9)
        allocation = sum(1 / graph.degree(k) for k in shared)
        assert np.exp(found["allocation"][at]) - 0.01 == pytest.approx(allocation, abs=1e-9)


@pytest.mark.parametrize("joined", [True, False])
@pytest.mark.parametrize("features", ["words", "dense"])
def test_neighbourhoods_leave_out_the_edge_itself(features: str, joined: bool) -> None:
    """An edge's inputs are those of the same pair in the graph without the edge."""
    whole = evidence(features)
    pairs = (single_edges(planted(features)) if joined else some_pairs(False))[:, :40]
    found = whole.columns(pairs, joined=joined)
    for at in range(pairs.shape[1]):
        pair = pairs[:, [at]]
        rest = whole.edges[:, ~(whole.edges == np.sort(pair, axis=0)).all(axis=0)]
        assert rest.shape[1] == whole.edges.shape[1] - joined
        alone = Evidence(whole.features, rest, whole.probabilities, whole.witness).columns(pair, joined=False)
        assert alone.keys() == found.keys()
        for name, values in alone.items():
            assert values[0] == pytest.approx(found[name][at], abs=1e-9), name


@pytest.mark.parametrize("features", ["words", "dense"])
def test_neighbour_similarity_is_a_mean_of_cosines(features: str) -> None:
    whole = evidence(features)
    x = planted(features).x.double().numpy()
    x = (x - x.mean(0)) / x.std(0) if features == "dense" else x
    cosine = cosine_similarity(x)
    adjacency = to_scipy(planted(features)).toarray()
    pairs = some_pairs(False)
    expected = [
        sum(adjacency[i] @ cosine[:, j] / max(adjacency[i].sum(), 1) for i, j in ((u, v), (v, u))) for u, v in pairs.T
    ]
    np.testing.assert_allclose(whole.columns(pairs, joined=False)["neighbor_similarity"], expected, atol=1e-9)


def test_agreements_are_dot_products() -> None:
    whole, pairs = evidence(), some_pairs(True)
    found = whole.columns(pairs, joined=True)
    p = whole.witness
    assert p is not None
    np.testing.assert_allclose(np.exp(found["witness"]) - LEAST, (p @ p.T)[pairs[0], pairs[1]], atol=1e-12)
    adjacency = to_scipy(planted("words")).toarray()
    for name, p in (("neighbors", whole.probabilities), ("witness_neighbors", whole.witness)):
        assert p is not None
        seen = []
        for u, v in pairs.T:
            ways = []
            for one, other in ((u, v), (v, u)):
                total = adjacency[one] @ p - p[other] + p[one] + 0.5 / 3
                ways.append(total @ p[other] / total.sum())
            seen.append(min(ways))
        np.testing.assert_allclose(np.exp(found[name]) - LEAST, seen, atol=1e-9)


@pytest.mark.parametrize("joined", [True, False])
def test_direction_and_blocks_do_not_matter(joined: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = some_pairs(joined)
    found = evidence().columns(pairs, joined=joined)
    turned = evidence().columns(pairs[::-1].copy(), joined=joined)
    monkeypatch.setattr(module, "BLOCK", 7)
    blocks = evidence().columns(pairs, joined=joined)
    for name, values in found.items():
        np.testing.assert_allclose(turned[name], values, atol=1e-12)
        np.testing.assert_allclose(blocks[name], values, atol=1e-12)


def test_features_that_say_nothing_are_left_out() -> None:
    data = planted("none")
    found = Evidence(Features.of(data.x), single_edges(data)).columns(single_edges(data), joined=True)
    assert set(found) == {"spectral", "common", "allocation"}


def test_unknown_similarities_get_the_median() -> None:
    x = planted("words").x.clone()
    x[0] = 0
    edges = single_edges(planted("words"))
    found = Evidence(Features.of(x), edges).similarity(edges)
    unknown = (edges == 0).any(axis=0)
    assert unknown.any()
    assert (found[unknown] == np.median(found[~unknown])).all()


def test_the_spectral_input_does_not_see_the_edge_itself() -> None:
    """It is the entry of the truncated SVD of the graph without a quarter of the edges, which has the edge."""
    data = planted("none")
    edges = single_edges(data)
    whole = Evidence(Features.of(data.x), edges)
    found, (part, _) = whole.columns(edges, joined=True)["spectral"], whole._factors
    for one in range(module.PARTS):
        dense = np.zeros((240, 240))
        dense[edges[0, part != one], edges[1, part != one]] = 1
        u, s, vt = np.linalg.svd(dense + dense.T)
        expected = ((u[:, : module.RANK] * s[: module.RANK]) @ vt[: module.RANK])[edges[0], edges[1]]
        # the randomised SVD is close to the exact one, whose singular values lie close together here
        assert np.corrcoef(found[part == one], expected[part == one])[0, 1] > 0.8
    full = Evidence(Features.of(torch.eye(7)), np.array([[0, 2, 2, 3, 3, 4], [1, 3, 4, 4, 5, 5]]))
    alone = full.columns(full.edges, joined=True)["spectral"]  # of full rank: the matrix without the edge itself
    np.testing.assert_allclose(alone, 0, atol=1e-9)
