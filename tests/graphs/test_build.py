"""Graphs from features: the log-degree model against SciPy's optimiser and its own optimality conditions."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from sklearn.datasets import load_digits
from torch import Tensor
from torch_geometric.data import Data

from asgnn.errors import ConfigError, GraphError
from asgnn.graphs import from_edges, load_dataset, validate
from asgnn.graphs.build import LogDegreeWeights, build_graph, choose_theta, knn_graph, learn_graph, log_degree_weights
from asgnn.graphs.features import Features
from asgnn.graphs.neighbors import nearest_neighbors

F64 = torch.float64
# In place of a degree of 0, which SciPy's optimiser tries.
TINY = 1e-9


def problem(n: int, share: float = 1.0, seed: int = 0) -> tuple[NDArray[Any], NDArray[Any]]:
    """Squared distances of random points, of all pairs or some; every node has a pair."""
    rng = np.random.default_rng(seed)
    points = rng.standard_normal((n, 3))
    pairs = np.array([(i, j) for i, j in combinations(range(n), 2) if j == i + 1 or rng.random() < share]).T
    return ((points[pairs[0]] - points[pairs[1]]) ** 2).sum(1), pairs


def incidence(pairs: NDArray[Any], n: int) -> NDArray[Any]:
    found = np.zeros((n, pairs.shape[1]))
    found[pairs, np.arange(pairs.shape[1])] = 1
    return found


def objective(w: NDArray[Any], z: NDArray[Any], s: NDArray[Any], alpha: float, beta: float) -> float:
    return float(2 * z @ w - alpha * np.log(np.maximum(s @ w, TINY)).sum() + beta * w @ w)


def solved(z: NDArray[Any], pairs: NDArray[Any], n: int, alpha: float, beta: float) -> LogDegreeWeights:
    found = log_degree_weights(z, pairs, n, alpha, beta, tolerance=1e-12, max_steps=100_000)
    assert found.converged
    return found


CASES = [(2, 1.0, 1.0, 1.0), (3, 1.0, 2.0, 0.5), (9, 1.0, 1.0, 1.0), (14, 0.3, 0.7, 3.0), (14, 0.3, 5.0, 0.1)]


@pytest.mark.parametrize(("n", "share", "alpha", "beta"), CASES)
def test_weights_of_scipy(n: int, share: float, alpha: float, beta: float) -> None:
    z, pairs = problem(n, share)
    s = incidence(pairs, n)

    def slope(w: NDArray[Any]) -> NDArray[Any]:
        return 2 * z - alpha * s.T @ (1 / np.maximum(s @ w, TINY)) + 2 * beta * w

    peer = minimize(
        lambda w: (objective(w, z, s, alpha, beta), slope(w)),
        np.ones_like(z),
        jac=True,
        bounds=[(0, None)] * z.size,
        method="L-BFGS-B",
        options={"ftol": 1e-15, "gtol": 1e-10, "maxiter": 10_000},
    )
    found = solved(z, pairs, n, alpha, beta)
    np.testing.assert_allclose(found.weight, peer.x, atol=2e-5)
    assert objective(found.weight, z, s, alpha, beta) <= peer.fun + 1e-9 * n


@pytest.mark.parametrize(("n", "share", "alpha", "beta"), CASES)
def test_optimality_conditions(n: int, share: float, alpha: float, beta: float) -> None:
    """The derivative is 0 where the weight is positive and not negative where it is 0; all degrees are positive."""
    z, pairs = problem(n, share)
    s = incidence(pairs, n)
    w = solved(z, pairs, n, alpha, beta).weight
    degree = s @ w
    assert (w >= 0).all()
    assert (degree > 0).all()
    slope = 2 * z - alpha * s.T @ (1 / degree) + 2 * beta * w
    scale = alpha / degree.min()
    np.testing.assert_allclose(slope[w > 0], 0, atol=1e-4 * scale)
    assert (slope[w == 0] > -1e-4 * scale).all()
    assert n < 9 or (w == 0).any()


def test_no_other_point_is_better_and_the_gap_bounds_the_error() -> None:
    z, pairs = problem(12)
    s = incidence(pairs, 12)
    rng = np.random.default_rng(1)
    best = solved(z, pairs, 12, 1.0, 1.0)
    lowest = objective(best.weight, z, s, 1, 1)
    for _ in range(200):
        noise = rng.standard_normal(z.size) * 10 ** rng.uniform(-3, 0)
        other = np.maximum(0, best.weight + noise) if rng.random() < 0.8 else rng.random(z.size)
        assert objective(other, z, s, 1, 1) >= lowest - 1e-10
    for tolerance in (1e-1, 1e-2, 1e-3):
        rough = log_degree_weights(z, pairs, 12, tolerance=tolerance)
        assert rough.gap <= 12 * tolerance
        assert objective(rough.weight, z, s, 1, 1) - lowest <= rough.gap
        assert ((rough.weight - best.weight) ** 2).sum() <= rough.gap


def test_scaling_laws() -> None:
    """W(Z, α, β) = √(α/β) W(Z / √(αβ), 1, 1): only one parameter matters but for the scale."""
    z, pairs = problem(10)
    alpha, beta = 3.0, 0.2
    one = solved(z / np.sqrt(alpha * beta), pairs, 10, 1.0, 1.0).weight
    two = solved(z, pairs, 10, alpha, beta).weight
    np.testing.assert_allclose(two, np.sqrt(alpha / beta) * one, atol=2e-5)


def test_steps_run_out_and_there_is_nothing_to_solve() -> None:
    z, pairs = problem(10)
    short = log_degree_weights(z, pairs, 10, tolerance=1e-12, max_steps=25)
    assert not short.converged
    assert short.steps == 25
    none = log_degree_weights(np.zeros(0), np.zeros((2, 0), dtype=np.int64), 4)
    assert none.converged
    assert none.weight.size == 0


# --- the number of neighbours ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [2, 3, 6])
def test_theta_gives_a_single_node_its_number_of_neighbors(k: int) -> None:
    """A star whose leaves cannot be joined otherwise: the hub's column of the problem, solved in closed form."""
    z = np.sort(np.random.default_rng(k).random(12))
    theta = choose_theta(z, np.stack([np.zeros(12, dtype=np.int64), np.arange(1, 13)]), 13, k)
    # min θ zᵀw − log(1ᵀw) + ½‖w‖² has w = max(0, u − θz) with k u² − θ b u = 1 for the k smallest z.
    u = max(np.roots([k, -theta * z[:k].sum(), -1]).real)
    assert theta * z[k - 1] < u <= theta * z[k]


def test_theta_of_few_or_equal_candidates() -> None:
    pairs = np.array([[0, 1, 2], [1, 2, 0]])
    for distance in ([1.0, 1.0, 1.0], [0.0, 0.0, 0.0], [0.1, 0.5, 0.9]):
        theta = choose_theta(np.array(distance), pairs, 3, 10)
        assert 0 < theta < np.inf
    assert choose_theta(np.array([0.5]), np.array([[0], [1]]), 2, 10) == 1


@pytest.mark.parametrize("neighbors", [5, 10, 20])
@pytest.mark.parametrize("name", ["cora", "digits"])
def test_mean_number_of_neighbors(name: str, neighbors: int) -> None:
    x = load_dataset("cora").x if name == "cora" else torch.tensor(load_digits().data)
    edges, weight = learn_graph(x, neighbors)
    assert edges.size(1) / len(x) == pytest.approx(neighbors, rel=0.2)
    assert (torch.bincount(edges[0], minlength=len(x)) > 0).all()
    assert (weight > 0).all()


# --- graphs ----------------------------------------------------------------------------------------------------------


def normal(n: int = 40, f: int = 6) -> Tensor:
    return torch.randn(n, f, generator=torch.Generator().manual_seed(n), dtype=F64)


def words(n: int = 40, f: int = 80) -> Tensor:
    return (torch.rand(n, f, generator=torch.Generator().manual_seed(n)) < 0.08).float()


@pytest.mark.parametrize("how", ["knn", "smooth"])
@pytest.mark.parametrize("x", [normal(), words(), normal(3, 2), words().numpy()], ids=["dense", "words", "3", "array"])
def test_the_graph_is_a_valid_one(x: Any, how: Any) -> None:
    data = build_graph(x, how, 4)
    validate(data, need_labels=False)
    assert data.edge_weight.dtype == data.x.dtype
    assert data.edge_weight.max() == 1
    keys = data.edge_index[0] * data.num_nodes + data.edge_index[1]
    assert (keys.diff() > 0).all()
    back = data.edge_index.flip(0)
    order = (back[0] * data.num_nodes + back[1]).argsort()
    torch.testing.assert_close(data.edge_weight[order], data.edge_weight, rtol=0, atol=0)


def test_the_edges_of_a_graph_are_replaced_and_its_labels_kept() -> None:
    given = from_edges(words(), [(0, 1), (2, 3)], [0, 1] * 20)
    data = build_graph(given, "knn", 5)
    assert given.edge_index.tolist() == [[0, 1, 2, 3], [1, 0, 3, 2]]
    assert data.y is given.y
    assert data.x is given.x
    torch.testing.assert_close(data.edge_index, nearest_neighbors(Features.of(given.x), 5))


@pytest.mark.parametrize("how", ["knn", "smooth"])
def test_scale_does_not_matter(how: Any) -> None:
    """Neither that of the features nor, for dense ones, that of each column."""
    one, two = build_graph(normal(), how, 4), build_graph(3 * normal() * torch.arange(1, 7) - 2, how, 4)
    torch.testing.assert_close(two.edge_index, one.edge_index)
    torch.testing.assert_close(two.edge_weight, one.edge_weight)


def test_learned_weights_follow_the_similarity() -> None:
    """Two groups: weights within a group are larger than between, and alike nodes have heavier edges."""
    x = torch.cat([normal() + 2, normal() - 2])
    edges, weight = learn_graph(x, 4)
    within = (edges[0] < 40) == (edges[1] < 40)
    assert weight[within].sum() > 0.95 * weight.sum()
    kept, similarity = knn_graph(x, 12)
    used = torch.searchsorted(kept[0] * 80 + kept[1], edges[0] * 80 + edges[1])
    torch.testing.assert_close(kept[:, used], edges)
    ours = similarity[used]
    assert ours[weight == 1].mean() > ours[weight < 1].mean() + 0.01
    # Weight 0 for the less similar candidates.
    assert ours.mean() > similarity.mean() + 0.02


def test_a_node_without_features_stays_alone() -> None:
    x = normal()
    x[[3, 7]] = 0
    for how in ("knn", "smooth"):
        data = build_graph(x, how, 4)  # type: ignore[arg-type]
        assert not torch.isin(data.edge_index, torch.tensor([3, 7])).any()
        validate(data, need_labels=False)


def test_bad_input_is_refused() -> None:
    with pytest.raises(GraphError, match=r"No graph can be built .* No two nodes share a feature"):
        build_graph(torch.eye(20))
    with pytest.raises(GraphError, match="x is missing"):
        build_graph(Data())
    with pytest.raises(ConfigError, match="how must be"):
        build_graph(normal(), "epsilon")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="neighbors must be"):
        build_graph(normal(), "smooth", 0)
