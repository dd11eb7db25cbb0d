"""The nearest neighbours against a dense reference and scikit-learn; similarity of pairs against both."""

from __future__ import annotations

import gc
import sys
import weakref
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.metrics import jaccard_score
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from asgnn.errors import ConfigError, GraphError
from asgnn.graphs import load_dataset, neighbors
from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.checks import check_edges
from asgnn.graphs.features import Features, Rows
from asgnn.graphs.neighbors import nearest_neighbors, uninformative
from asgnn.graphs.similarity import LATENT, edge_similarity, kind_of, pair_similarity, view, views_of, without_features

F64 = torch.float64
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def binary(n: int = 60, f: int = 90, share: float = 0.06) -> Tensor:
    return (torch.rand(n, f, generator=torch.Generator().manual_seed(n)) < share).to(F64)


def normal(n: int = 50, f: int = 7) -> Tensor:
    return torch.randn(n, f, generator=torch.Generator().manual_seed(n), dtype=F64)


def with_zero_rows(x: Tensor) -> Tensor:
    x = x.clone()
    x[[0, 5, 6]] = 0
    return x


# Name → matrix, and the kind that it should be taken for.
MATRICES: dict[str, tuple[Tensor, str]] = {
    "bag of words": (with_zero_rows(binary()), "binary"),
    "dense binary": (with_zero_rows(binary(33, 10, 0.4)), "binary"),
    "weighted words": (with_zero_rows(binary() * normal(60, 90).abs()), "sparse"),
    "signed words": (binary() * normal(60, 90), "sparse"),
    "normal": (with_zero_rows(normal()), "dense"),
    "scales": (normal() * torch.logspace(-3, 3, 7, dtype=F64) + 5, "dense"),
    "constant column": (torch.cat([normal(), torch.full((50, 1), 0.1, dtype=F64)], dim=1), "dense"),
    "doubles": (normal(8, 5).repeat(6, 1), "dense"),
    "mostly missing": (torch.cat([normal(4, 6), torch.zeros(60, 6, dtype=F64)]), "dense"),
    "one node": (torch.ones(1, 3, dtype=F64), "binary"),
    "two nodes": (torch.tensor([[1.0, 0.5], [1.0, 0.4]], dtype=F64), "dense"),
    "one feature": (normal(20, 1), "dense"),
    "nothing": (torch.zeros(4, 5, dtype=F64), "binary"),
    "identity": (torch.eye(12, dtype=F64), "binary"),
}


def reference(x: NDArray[Any], metric: str, kind: str, auto: str) -> NDArray[Any]:
    """The N × N similarities, NaN where one node has no features."""
    missing = (x == 0).all(1)
    if metric == "auto" and kind == "dense":
        z = np.zeros_like(x)
        z[~missing] = StandardScaler().fit_transform(x[~missing])
        x = z
    dots = x @ x.T
    size = (x * x).sum(1)
    if (auto if metric == "auto" and kind == "binary" else metric) == "jaccard":
        whole = size[:, None] + size - dots
    else:
        whole = np.sqrt(size[:, None] * size)
    found = np.divide(dots, whole, out=np.zeros_like(dots), where=whole > 0)
    found[missing] = np.nan
    found[:, missing] = np.nan
    return found


def k_nearest(similarity: NDArray[Any], k: int) -> NDArray[Any]:
    """The union of the k nearest of each node, ties by index, as a dense 0/1 matrix."""
    n = len(similarity)
    score = np.nan_to_num(similarity, nan=-2.0).round(9)
    np.fill_diagonal(score, -2.0)
    joined = np.zeros((n, n), dtype=bool)
    for i in range(n):
        best = np.lexsort((np.arange(n), -score[i]))[:k]
        joined[i, best[score[i, best] > 0]] = True
    return joined | joined.T


@pytest.mark.parametrize("k", [1, 4, 15, 1000])
@pytest.mark.parametrize("metric", ["auto", "cosine", "jaccard"])
@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("device", DEVICES)
def test_neighbors_of_the_dense_reference(
    device: str, name: str, metric: Any, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, kind = MATRICES[name]
    features = Features.of(x.to(device))
    assert kind_of(features) == kind
    if metric == "jaccard" and kind != "binary":
        with pytest.raises(ConfigError, match="needs features that are 0 or 1"):
            nearest_neighbors(features, k, metric)
        return
    wanted = k_nearest(reference(x.numpy(), metric, kind, "cosine"), k)
    monkeypatch.setattr(neighbors, "BLOCK", 7 * len(x))  # several blocks, the last one shorter
    found = nearest_neighbors(features, k, metric)
    assert found.dtype == torch.int64
    assert found.device.type == device
    check_edges(found, len(x))
    # nonzero is sorted by row then column
    assert found.cpu().tolist() == [part.tolist() for part in np.nonzero(wanted)]


@pytest.mark.parametrize("dense", [False, True], ids=["sparse product", "dense product"])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_stored_sparse_and_dense_are_alike(dense: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two ways to store features, and on a CPU to multiply sparse ones, find the same neighbours."""
    for name in ("bag of words", "weighted words", "signed words", "nothing"):
        x = MATRICES[name][0].to(dtype)
        as_dense = Features(*x.shape, x, None, None, None)
        sparse = Features.of(x)
        assert sparse.dense is None
        monkeypatch.setattr(neighbors, "SPARSE_COST", 1e9 if dense else 0)
        torch.testing.assert_close(nearest_neighbors(sparse, 5), nearest_neighbors(as_dense, 5))


def test_blocks_of_the_gpu_form_on_a_cpu() -> None:
    """On a GPU the products of sparse features are computed from torch's CSR form, which a CPU can do as well."""
    features = Features.of(MATRICES["weighted words"][0])
    assert features.by_row is not None
    usual = neighbors._compared(features, "cosine")
    value = torch.from_numpy(usual.rows.data)  # type: ignore[union-attr]
    rows = Rows(features.by_row.crow, features.by_row.col, value, features.by_row.shape)
    for start, stop in ((0, 60), (0, 1), (5, 33), (59, 60)):
        found = replace(usual, rows=rows).scores(start, stop)
        torch.testing.assert_close(found, usual.scores(start, stop), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["scales", "weighted words"])
def test_neighbors_of_scikit_learn(name: str) -> None:
    x = MATRICES[name][0]
    known = (x != 0).any(1).nonzero().squeeze(1)
    points = StandardScaler().fit_transform(x) if name == "scales" else x.numpy()[known]
    directed = NearestNeighbors(n_neighbors=4, metric="cosine").fit(points).kneighbors_graph().tocoo()
    row, col = known[directed.row], known[directed.col]
    wanted = {*zip(row.tolist(), col.tolist(), strict=True)} | {*zip(col.tolist(), row.tolist(), strict=True)}
    assert {*zip(*nearest_neighbors(Features.of(x), 4).tolist(), strict=True)} == wanted


def test_neighbors_of_cora() -> None:
    """The usual case at its real size, with its many ties; the whole N × N matrix as the reference."""
    x = load_dataset("cora").x
    found = nearest_neighbors(Features.of(x), 10)
    wanted = k_nearest(reference(x.double().numpy(), "cosine", "binary", "cosine"), 10)
    assert found.tolist() == [part.tolist() for part in np.nonzero(wanted)]


def test_a_row_of_nan_is_a_node_without_features() -> None:
    x = MATRICES["normal"][0]
    holes = x.clone()
    holes[[0, 5, 6]] = torch.nan
    zero, nan = Features.of(x), Features(*x.shape, holes, None, None, None)
    assert without_features(zero).nonzero().squeeze(1).tolist() == [0, 5, 6]
    torch.testing.assert_close(without_features(nan), without_features(zero))
    for metric in ("auto", "cosine"):
        edges = nearest_neighbors(zero, 4, metric)
        assert not torch.isin(edges, torch.tensor([0, 5, 6])).any()
        torch.testing.assert_close(nearest_neighbors(nan, 4, metric), edges)
        row, col = torch.cartesian_prod(torch.arange(50), torch.arange(50)).t()
        ours, theirs = (pair_similarity(given, row, col, metric) for given in (nan, zero))
        torch.testing.assert_close(ours, theirs, equal_nan=True)


class ScikitLearn:
    """In place of pynndescent, which takes half a minute to compile; benchmarks/neighbors.py measures the real one."""

    def __init__(self, x: Any, metric: str, n_neighbors: int, **_: Any) -> None:
        assert x.dtype == np.float32
        found = NearestNeighbors(n_neighbors=n_neighbors, metric=metric).fit(x).kneighbors(x)[1]
        found[::7, 3:] = -1  # as where too few were found
        self.neighbor_graph = (found, None)


@pytest.mark.parametrize(("kind", "metric"), [("points", "auto"), ("words", "auto"), ("words", "jaccard")])
def test_approximate_neighbors_of_many_nodes(kind: str, metric: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The candidates are ranked by their exact similarity; nodes without features have none."""
    x = normal(300, 8) if kind == "points" else binary(300, 200)
    x[::50] = 0
    monkeypatch.setattr(neighbors, "EXACT_UP_TO", 100)
    monkeypatch.setitem(sys.modules, "pynndescent", SimpleNamespace(NNDescent=ScikitLearn))
    found = nearest_neighbors(Features.of(x), 4, metric)
    check_edges(found, 300)
    assert not torch.isin(found, torch.arange(0, 300, 50)).any()
    monkeypatch.setattr(neighbors, "EXACT_UP_TO", 1000)
    exact = nearest_neighbors(Features.of(x.clone()), 4, metric)
    ours, theirs = ({*zip(*edges.tolist(), strict=True)} for edges in (found, exact))
    # What is missing are the candidates of every seventh node, and ties.
    assert len(ours & theirs) > 0.85 * len(ours | theirs)
    assert len(ours - theirs) < 0.1 * len(ours)


def test_many_nodes_without_pynndescent_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbors, "EXACT_UP_TO", 10)
    monkeypatch.setitem(sys.modules, "pynndescent", None)
    with pytest.raises(ConfigError, match=r"pip install asgnn\[neighbors\]"):
        nearest_neighbors(Features.of(normal(11, 2)), 3)


# --- the cache -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["normal", "bag of words"])
def test_neighbors_are_searched_once_and_forgotten_with_the_features(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    search = neighbors._search
    monkeypatch.setattr(neighbors, "_search", lambda *given: calls.append(given[1:]) or search(*given))
    x = MATRICES[name][0].clone()
    first = nearest_neighbors(Features.of(x), 3)
    assert nearest_neighbors(Features.of(x), 3) is first
    nearest_neighbors(Features.of(x), 4)
    nearest_neighbors(Features.of(x), 3, "cosine")
    assert len(calls) == 3
    x.copy_(x.flip(0))  # in place: the kept graph no longer fits
    changed = nearest_neighbors(Features.of(x), 3)
    assert not torch.equal(changed, first)
    torch.testing.assert_close(changed, nearest_neighbors(Features.of(x.clone()), 3))
    kept, here = weakref.ref(changed), len(neighbors._KNOWN)
    del changed, x
    calls.clear()
    gc.collect()
    assert kept() is None
    assert len(neighbors._KNOWN) < here


# --- what cannot judge -----------------------------------------------------------------------------------------------

CONSTANT = torch.tensor([[0.0] * 30 + [2.0, 3.0]], dtype=F64)
JUDGES: dict[str, tuple[Tensor, str | None]] = {
    "identity": (torch.eye(40), "No two nodes share a feature"),
    "small identity": (torch.eye(3), "No two nodes share a feature"),
    "scaled identity": (torch.diag(torch.arange(1.0, 41)), "No two nodes share a feature"),
    "identity, some missing": (torch.eye(40) * (torch.arange(40) % 3 > 0), "No two nodes share a feature"),
    "missing": (torch.zeros(5, 4), "No node has features"),
    "constant": (torch.full((5, 4), 0.3), "All nodes with features have the same ones"),
    "constant sparse": (CONSTANT.repeat(6, 1), "All nodes with features have the same ones"),
    "constant sparse, one missing": (torch.cat([CONSTANT, CONSTANT * 0, CONSTANT]), "All nodes with features have"),
    "one node with features": (torch.cat([CONSTANT * 0, CONSTANT]), "All nodes with features have the same ones"),
    "other values": (torch.cat([CONSTANT, CONSTANT * 2]), None),
    "words": (MATRICES["bag of words"][0], None),
    "dense": (MATRICES["normal"][0], None),
}


@pytest.mark.parametrize("name", JUDGES)
@pytest.mark.parametrize("device", DEVICES)
def test_uninformative(device: str, name: str) -> None:
    x, reason = JUDGES[name]
    said = uninformative(Features.of(x.to(device)))
    if reason is None:
        assert said is None
        return
    assert said is not None
    assert said.startswith(reason)
    assert said.endswith(".")
    # True to its word: no pair is more similar than another.
    row, col = torch.triu_indices(len(x), len(x), 1)
    similarity = pair_similarity(Features.of(x), row, col)
    assert similarity[~similarity.isnan()].unique().numel() <= 1


# --- pairs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", ["auto", "cosine", "jaccard"])
@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("device", DEVICES)
def test_similarity_of_pairs(device: str, name: str, metric: Any) -> None:
    x, kind = MATRICES[name]
    features = Features.of(x.to(device))
    row, col = torch.cartesian_prod(torch.arange(len(x)), torch.arange(len(x))).t().to(device)
    if metric == "jaccard" and kind != "binary":
        with pytest.raises(ConfigError, match="needs features that are 0 or 1"):
            pair_similarity(features, row, col, metric)
        return
    found = pair_similarity(features, row, col, metric)
    wanted = torch.from_numpy(reference(x.numpy(), metric, kind, "jaccard")).view(-1)
    torch.testing.assert_close(found.cpu(), wanted, rtol=1e-10, atol=1e-10, equal_nan=True)
    torch.testing.assert_close(found, pair_similarity(features, col, row, metric), rtol=0, atol=0, equal_nan=True)
    assert pair_similarity(features, row[:0], col[:0], metric).shape == (0,)


def test_similarity_of_pairs_of_scikit_learn_and_of_gcn_jaccard() -> None:
    x = MATRICES["bag of words"][0]
    features = Features.of(x)
    adj = Adjacency.of(nearest_neighbors(features, 3), len(x))
    ours = pair_similarity(features, *adj.edge_index)
    known = ~ours.isnan()
    torch.testing.assert_close(ours[known], edge_similarity(features, adj)[known])
    peer = [jaccard_score(x[i], x[j]) for i, j in zip(adj.row[known], adj.col[known], strict=True)]
    torch.testing.assert_close(ours[known], torch.tensor(peer, dtype=F64))


# --- other views -----------------------------------------------------------------------------------------------------

VIEWED = [
    (name, metric)
    for name in ("bag of words", "weighted words", "signed words", "normal", "scales", "many columns", "nothing")
    for metric in ("idf", "latent")
    if metric == "latent" or name not in ("normal", "scales", "many columns")
]
MANY = {**MATRICES, "many columns": (normal(70, 64), "dense")}


def viewed(x: NDArray[Any], metric: str, kind: str) -> NDArray[Any]:
    """The rows of a view, by dense algebra; latent directions may have other signs."""
    if kind == "dense":
        known = (x != 0).any(1)
        z = np.zeros_like(x)
        z[known] = StandardScaler().fit_transform(x[known])
        x = z
    else:
        x = x * np.log(len(x) / np.maximum((x != 0).sum(0), 1))
    if metric == "idf":
        return x
    size = np.linalg.norm(x, axis=1, keepdims=True)
    x = np.divide(x, size, out=np.zeros_like(x), where=size > 0)
    if min(x.shape) > LATENT:
        u, values, _ = np.linalg.svd(x)
        x = u[:, :LATENT] * values[:LATENT]
    return x


@pytest.mark.parametrize(("name", "metric"), VIEWED)
def test_views_by_dense_algebra(name: str, metric: Any) -> None:
    x, kind = MANY[name]
    missing = (x == 0).all(1).numpy()
    features = Features.of(x)
    wanted = reference(viewed(x.numpy(), metric, kind), "cosine", "dense", "cosine")
    wanted[missing] = np.nan
    wanted[:, missing] = np.nan
    if not missing.all():
        assert np.nanmax(np.abs(wanted - reference(x.numpy(), "cosine", kind, "cosine"))) > 0.01  # another view
    n = len(x)
    row, col = torch.cartesian_prod(torch.arange(n), torch.arange(n)).t()
    found = pair_similarity(features, row, col, metric).view(n, n)
    torch.testing.assert_close(found, torch.from_numpy(wanted), rtol=0, atol=1e-5, equal_nan=True)
    joined = np.zeros((n, n), dtype=bool)
    joined[tuple(nearest_neighbors(features, 4, metric).numpy())] = True
    assert (joined == k_nearest(wanted, 4)).all()


def test_views_of_each_kind_of_features() -> None:
    assert views_of(Features.of(MATRICES["bag of words"][0])) == ("auto", "latent", "idf")
    assert views_of(Features.of(MATRICES["weighted words"][0])) == ("auto", "latent", "idf")
    assert views_of(Features.of(MATRICES["normal"][0])) == ("auto",)
    assert views_of(Features.of(MANY["many columns"][0])) == ("auto", "latent")
    with pytest.raises(ConfigError, match='"idf" needs features of which fewer than 10 % are not 0'):
        nearest_neighbors(Features.of(MATRICES["normal"][0]), 3, "idf")


def test_a_view_is_kept_unless_the_features_may_change() -> None:
    features = Features.of(MATRICES["bag of words"][0])
    assert view(features, "auto") is view(features, "jaccard") is features
    assert view(features, "idf") is view(features, "idf")
    loose = Features.of(MATRICES["bag of words"][0].clone().requires_grad_())
    assert view(loose, "idf") is not view(loose, "idf")


def test_bad_input_is_refused() -> None:
    features = Features.of(MATRICES["normal"][0])
    with pytest.raises(ConfigError, match="k must be"):
        nearest_neighbors(features, 0)
    with pytest.raises(ConfigError, match="metric must be"):
        nearest_neighbors(features, 1, "euclidean")  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="but the nodes are numbered 0 to 49"):
        pair_similarity(features, torch.tensor([0]), torch.tensor([50]))
