"""GCN-Jaccard and GCN-SVD against dense references."""

from __future__ import annotations

import gc
import pickle

import numpy as np
import pytest
import torch
from torch import Tensor

from asgnn.errors import GraphError
from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.features import Features
from asgnn.graphs.low_rank import low_rank
from asgnn.graphs.per_graph import once_per_graph
from asgnn.graphs.similarity import _dense_ratio, edge_similarity
from asgnn.models import GCN, GCNSVD, GCNJaccard, stack
from asgnn.training import TrainConfig, Trial, fit_many
from tests.awkward import AWKWARD
from tests.training.problem import CLASSES, WORDS, graph, split_of

F64 = torch.float64
CLOSE = {"rtol": 1e-8, "atol": 1e-8}


def words(n: int, binary: bool, share: float = 0.3) -> Tensor:
    rng = torch.Generator().manual_seed(2)
    x = (torch.rand(n, 12, generator=rng) < share).to(F64)
    x[:, 0] = 1  # a word that all nodes share, so that no graph raises an error
    x[0] = 0  # a node without words
    return x if binary else x * torch.randn(n, 12, generator=rng, dtype=F64)


def dense_adjacency(adj: Adjacency) -> Tensor:
    a = torch.zeros(adj.num_nodes, adj.num_nodes, dtype=F64)
    a[adj.row, adj.col] = adj.weight.to(F64)
    return a.fill_diagonal_(0)


def weights_of(edge_index: Tensor, symmetric: bool) -> Tensor:
    n = int(edge_index.max()) + 1 if edge_index.numel() else 1
    matrix = torch.rand(n, n, generator=torch.Generator().manual_seed(1), dtype=F64)
    return ((matrix + matrix.t()) / 2 if symmetric else matrix)[edge_index[0], edge_index[1]]


# --- similarity ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("name", AWKWARD)
def test_similarity_equals_that_of_the_dense_rows(name: str, binary: bool, sparse: bool) -> None:
    n, edge_index = AWKWARD[name]
    x = words(max(n, 3), binary)[:n] if n > 2 else torch.ones(n, 12, dtype=F64)
    adj = Adjacency.of(edge_index, n)
    similarity = edge_similarity(Features.of(x.to_sparse_csr() if sparse else x), adj)
    # on a GPU it is computed from dense rows
    jaccard = bool(((x == 0) | (x == 1)).all())
    torch.testing.assert_close(_dense_ratio(x.double(), adj, jaccard=jaccard), similarity)
    for (i, j), value in zip(adj.edge_index.t().tolist(), similarity.tolist(), strict=True):
        a, b = x[i], x[j]
        if bool(((x == 0) | (x == 1)).all()):
            either = float(((a + b) > 0).sum())
            expected = float((a * b).sum()) / either if either else 0.0
        else:
            expected = float(torch.cosine_similarity(a, b, dim=0))
        assert value == pytest.approx(expected, abs=1e-12)
    assert torch.equal(similarity, similarity[adj.reverse])


@pytest.mark.parametrize("x", [torch.eye(33), torch.zeros(33, 4)], ids=["identity", "none"])
def test_features_that_no_two_nodes_share_raise(x: Tensor) -> None:
    _, edge_index = AWKWARD["random 33"]
    with pytest.raises(GraphError, match=r"No two nodes share a feature.*structure only\.$"):
        GCNJaccard(x.size(1), 4, 3)(x, edge_index)


@pytest.mark.parametrize("binary", [True, False])
def test_jaccard_is_gcn_on_the_remaining_edges(binary: bool) -> None:
    n, edge_index = AWKWARD["random 33"]
    x, weight = words(n, binary), weights_of(edge_index, symmetric=True)
    model = GCNJaccard(12, 4, 3, threshold=0.2).to(F64).eval()
    adj = Adjacency.of(edge_index, n, weight)
    score = edge_similarity(Features.of(x), adj)[~adj.loops]
    order = torch.argsort(edge_index[0] * n + edge_index[1])
    keep = order[score >= 0.2].sort().values
    assert 0 < keep.numel() < order.numel()
    plain = GCN(12, 4, 3).to(F64).eval()
    plain.load_state_dict(model.state_dict())
    expected = plain(x, edge_index[:, keep], weight[keep])
    torch.testing.assert_close(model(x, edge_index, weight), expected, **CLOSE)


def test_jaccard_with_threshold_zero_is_gcn() -> None:
    n, edge_index = AWKWARD["random 33"]
    model, plain = GCNJaccard(12, 4, 3, threshold=0.0).to(F64).eval(), GCN(12, 4, 3).to(F64).eval()
    plain.load_state_dict(model.state_dict())
    assert torch.equal(model(words(n, True), edge_index), plain(words(n, True), edge_index))


# --- low rank ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("rank", [1, 4, 16, 40])
@pytest.mark.parametrize("name", AWKWARD)
def test_low_rank_is_the_truncated_svd(name: str, rank: int, symmetric: bool) -> None:
    n, edge_index = AWKWARD[name]
    adj = Adjacency.of(edge_index, n, weights_of(edge_index, symmetric))
    assert adj.symmetric == (symmetric or not edge_index.numel())
    a = dense_adjacency(adj).numpy()
    u, s, vt = np.linalg.svd(a)
    factors = low_rank(adj, rank)
    product = (factors.left @ factors.right.t()).numpy()
    # compare the error first, because the best approximation is not unique if two singular values are equal
    assert np.linalg.norm(a - product) == pytest.approx(np.sqrt((s[rank:] ** 2).sum()), abs=1e-7)
    if rank >= n or s[rank - 1] - s[rank] > 1e-6:
        np.testing.assert_allclose(product, (u[:, :rank] * s[:rank]) @ vt[:rank], atol=1e-8)
    np.testing.assert_allclose(factors.row_sums, product.sum(1), atol=1e-9)
    np.testing.assert_allclose(factors.entries(adj), product[adj.row, adj.col], atol=1e-12)


def test_low_rank_is_deterministic() -> None:
    n, edge_index = AWKWARD["random 33"]
    first, again = (low_rank(Adjacency.of(edge_index, n), 5) for _ in range(2))
    assert torch.equal(first.left, again.left)
    assert torch.equal(first.right, again.right)


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("name", ["one node", "no edges", "isolated node", "random 33"])
def test_svd_equals_a_dense_gcn(name: str, weighted: bool) -> None:
    n, edge_index = AWKWARD[name]
    x = words(max(n, 3), False)[:n]
    weight = weights_of(edge_index, symmetric=True) if weighted else None
    model = GCNSVD(12, 4, 3, rank=7).to(F64).eval()
    a = dense_adjacency(Adjacency.of(edge_index, n, weight))
    values, vectors = torch.linalg.eigh(a)
    kept = values.abs().argsort(descending=True)[:7]
    a = (vectors[:, kept] * values[kept]) @ vectors[:, kept].t() + torch.eye(n, dtype=F64)
    degree = a.sum(1)
    assert bool((degree > 0).all())
    norm = a / (degree.unsqueeze(1) * degree).sqrt()
    first, second = model.first, model.last
    hidden = (norm @ (x @ first.weight) + first.bias).relu()
    torch.testing.assert_close(model(x, edge_index, weight), norm @ (hidden @ second.weight) + second.bias, **CLOSE)


def test_svd_of_full_rank_is_gcn() -> None:
    n, edge_index = AWKWARD["random 33"]
    x = words(n, False)
    model, plain = GCNSVD(12, 4, 3, rank=33).to(F64).eval(), GCN(12, 4, 3).to(F64).eval()
    plain.load_state_dict(model.state_dict())
    torch.testing.assert_close(model(x, edge_index), plain(x, edge_index), **CLOSE)


def test_a_node_without_positive_row_sum_keeps_its_features(monkeypatch: pytest.MonkeyPatch) -> None:
    from asgnn.graphs.low_rank import LowRank

    left = torch.tensor([[-2.0], [0.5], [0.25]], dtype=F64)
    monkeypatch.setattr("asgnn.models.gcn_svd.low_rank", lambda adj, rank: LowRank(left, torch.ones(3, 1, dtype=F64)))
    adj, features = Adjacency.of(torch.tensor([[0, 1], [1, 0]]), 3), Features.of(torch.ones(3, 2, dtype=F64))
    h = torch.tensor([[[1.0], [10.0], [100.0]]], dtype=F64)
    out = GCNSVD(2, 4, 3, rank=1).to(F64).operator(features, adj)(h)
    assert float(out[0, 0, 0]) == 1.0
    assert bool(out.isfinite().all())
    degree = torch.tensor([2.5, 1.75], dtype=F64)
    part = (left[1:] + torch.eye(2, dtype=F64)) / (degree.unsqueeze(1) * degree).sqrt()
    torch.testing.assert_close(out[0, 1:], part @ h[0, 1:])


# --- caching --------------------------------------------------------------------------------------------------------


def test_purification_runs_once_for_all_epochs_and_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr("asgnn.models.gcn_svd.low_rank", lambda *args: (calls.append(args), low_rank(*args))[1])
    monkeypatch.setattr(
        "asgnn.models.gcn_jaccard.edge_similarity", lambda *args: (calls.append(args), edge_similarity(*args))[1]
    )
    for kind in (GCNSVD, GCNJaccard):
        trials = [Trial(kind(WORDS, 4, CLASSES).to(F64), TrainConfig(5), split_of(i)) for i in range(4)]
        fit_many(trials, graph(), batch_size=2)
        assert len(calls) == 1
        calls.clear()


def test_cache_entries_die_with_the_graph() -> None:
    class Result:
        alive = 0

        def __init__(self) -> None:
            Result.alive += 1

        def __del__(self) -> None:
            Result.alive -= 1

    @once_per_graph
    def make(features: Features, adj: Adjacency, setting: int) -> Result:
        return Result()

    n, edge_index = AWKWARD["random 33"]
    edge_index = edge_index.clone()  # its adjacency lives as long as this tensor
    adj, features, other = Adjacency.of(edge_index, n), Features.of(torch.eye(n)), Features.of(torch.eye(n))
    assert make(features, adj, 1) is make(features, adj, 1)
    assert len({make(features, adj, 1), make(features, adj, 2), make(other, adj, 1)}) == 3
    del other
    gc.collect()
    assert Result.alive == 2
    del adj, edge_index
    gc.collect()
    assert Result.alive == 0


@pytest.mark.parametrize("kind", [GCNJaccard, GCNSVD])
def test_models_can_be_copied_and_pickled_after_use(kind: type[GCN]) -> None:
    data = graph()
    model = kind(WORDS, 4, CLASSES).to(F64).eval()
    out = model(data.x, data.edge_index)
    assert torch.equal(stack([model]).eval()(data.x, data.edge_index)[0], out)
    assert torch.equal(pickle.loads(pickle.dumps(model))(data.x, data.edge_index), out)
