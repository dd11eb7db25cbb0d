"""Adjacency against SciPy's matrices and PyG's normalisation."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from asgnn.errors import GraphError
from asgnn.graphs import adjacency
from asgnn.graphs.adjacency import Adjacency, Normalization, index_dtype
from asgnn.models import ASGNN, GCN
from tests.awkward import AWKWARD

F64 = torch.float64
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def shuffled(graph: str, weights: str) -> tuple[int, Tensor, Tensor | None]:
    """Returns an awkward graph with shuffled edges and no, symmetric or asymmetric weights."""
    n, edge_index = AWKWARD[graph]
    rng = torch.Generator().manual_seed(5)
    edge_index = edge_index[:, torch.randperm(edge_index.size(1), generator=rng)]
    matrix = torch.rand(n, n, generator=rng, dtype=F64)
    if weights == "symmetric":
        matrix = (matrix + matrix.t()) / 2
    return n, edge_index, None if weights == "none" else matrix[edge_index[0], edge_index[1]]


def scipy_matrix(n: int, edge_index: Tensor, weight: Tensor | None) -> sp.csr_array:
    values = np.ones(edge_index.size(1)) if weight is None else weight.numpy()
    matrix = sp.csr_array((values, tuple(edge_index.numpy())), shape=(n, n)) + sp.eye_array(n, format="csr")
    matrix.sort_indices()
    return matrix


@pytest.mark.parametrize("weights", ["none", "symmetric", "asymmetric"])
@pytest.mark.parametrize("graph", AWKWARD)
@pytest.mark.parametrize("device", DEVICES)
def test_matrix_equals_scipy(device: str, graph: str, weights: str) -> None:
    n, edge_index, weight = shuffled(graph, weights)
    expected = scipy_matrix(n, edge_index, weight)
    adj = Adjacency.of(edge_index.to(device), n, None if weight is None else weight.to(device))
    values = adj.weight.to(F64)

    np.testing.assert_array_equal(adj.crow.cpu(), expected.indptr)
    np.testing.assert_array_equal(adj.col.cpu(), expected.indices)
    np.testing.assert_array_equal(values.cpu(), expected.data)
    np.testing.assert_array_equal(adj.row.cpu(), np.repeat(np.arange(n), np.diff(expected.indptr)))
    assert torch.equal(adj.loops, adj.row == adj.col)
    assert adj.loops.sum() == n
    assert adj.symmetric == (abs(expected - expected.T).max() == 0)

    flipped = sp.csr_array((values[adj.reverse].cpu().numpy(), expected.indices, expected.indptr), shape=(n, n))
    np.testing.assert_array_equal(flipped.toarray(), expected.T.toarray())
    assert torch.equal(adj.reverse[adj.reverse], torch.arange(adj.row.numel(), device=device))

    np.testing.assert_allclose(adj.row_sum(values).cpu(), expected.sum(axis=1), rtol=1e-14)
    h = torch.randn(3, n, 2, generator=torch.Generator().manual_seed(1), dtype=F64)
    product = adj.matmul(values, h.to(device)).cpu()
    for ours, one in zip(product, h, strict=True):
        np.testing.assert_allclose(ours, expected @ one.numpy(), rtol=1e-13, atol=1e-13)
    assert torch.equal(adj.matmul(values, h[0].to(device)).cpu(), product[0])  # no leading dimension


@pytest.mark.parametrize("weights", ["none", "symmetric"])
@pytest.mark.parametrize("graph", AWKWARD)
def test_normalisation_equals_pyg(graph: str, weights: str) -> None:
    n, edge_index, weight = shuffled(graph, weights)
    adj = Adjacency.of(edge_index, n, weight)
    expected = torch.zeros(n, n, dtype=F64)
    (row, col), value = gcn_norm(edge_index, weight, n, dtype=F64)
    expected[row, col] = value
    ours = torch.zeros(n, n, dtype=F64)
    ours[adj.row, adj.col] = adj.normalized("sym", F64)
    torch.testing.assert_close(ours, expected, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("kind", ["sym", "rw"])
@pytest.mark.parametrize("trials", [None, 2])
@pytest.mark.parametrize("graph", AWKWARD)
def test_normalised_rows_and_weights_of_several_trials(graph: str, trials: int | None, kind: Normalization) -> None:
    n, edge_index = AWKWARD[graph]
    adj = Adjacency.of(edge_index, n)
    shape = (adj.row.numel(), *([] if trials is None else [trials]))
    weight = 0.1 + torch.rand(shape, generator=torch.Generator().manual_seed(1), dtype=F64)
    found = adj.normalized(kind, F64, weight)
    for ours, given in zip(found.view(shape[0], -1).t(), weight.view(shape[0], -1).t(), strict=True):
        dense, expected = (torch.zeros(n, n, dtype=F64) for _ in range(2))
        dense[adj.row, adj.col], expected[adj.row, adj.col] = given, ours
        d = dense.sum(1, keepdim=True)
        torch.testing.assert_close(dense / d if kind == "rw" else dense / (d * d.t()).sqrt(), expected)


@pytest.mark.parametrize("kind", ["sym", "rw", "as given"])
@pytest.mark.parametrize("weights", ["symmetric", "asymmetric"])
def test_derivatives_of_the_product_in_weights_and_h(weights: str, kind: str) -> None:
    n, edge_index, weight = shuffled("isolated node", weights)
    assert weight is not None
    h = torch.randn(2, n, 3, generator=torch.Generator().manual_seed(0), dtype=F64, requires_grad=True)

    def product(weight: Tensor, h: Tensor) -> Tensor:
        adj = Adjacency.of(edge_index, n, weight)
        return adj.matmul(adj.weight if kind == "as given" else adj.normalized(kind, F64), h)  # type: ignore[arg-type]

    leaves = (weight.requires_grad_(), h)
    assert torch.autograd.gradcheck(product, leaves)
    assert torch.autograd.gradgradcheck(lambda *inputs: product(*inputs).tanh(), leaves)


def test_constant_weights_do_not_save_h_for_backward() -> None:
    n, edge_index = AWKWARD["star"]
    adj, h = Adjacency.of(edge_index, n), torch.randn(n, 3, requires_grad=True)
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        adj.matmul(adj.weight, h * 2)
        assert h.numel() not in kept
        adj.matmul(adj.weight.clone().requires_grad_(), h * 2)
        assert h.numel() in kept


@pytest.mark.parametrize("trailing", [(), (2,), (2, 3)])
def test_row_sum_has_derivatives_of_every_order(trailing: tuple[int, ...]) -> None:
    n, edge_index = AWKWARD["isolated node"]
    adj = Adjacency.of(edge_index, n)
    values = torch.rand(adj.row.numel(), *trailing, generator=torch.Generator().manual_seed(0), dtype=F64)
    values.requires_grad_()
    assert adj.row_sum(values).shape == (n, *trailing)
    assert torch.autograd.gradcheck(lambda v: adj.row_sum(v * v), (values,))
    assert torch.autograd.gradgradcheck(lambda v: adj.row_sum(v * v).rsqrt(), (values,))


def test_given_loops_are_replaced_by_loops_of_weight_one() -> None:
    n, edge_index = AWKWARD["isolated node"]
    looped = torch.cat([torch.tensor([[2, 4], [2, 4]]), edge_index], dim=1)
    weight = torch.rand(looped.size(1), generator=torch.Generator().manual_seed(0))
    ours, plain = Adjacency.of(looped, n, weight), Adjacency.of(edge_index, n, weight[2:])
    for field in ("row", "col", "crow", "reverse", "loops", "weight"):
        assert torch.equal(getattr(ours, field), getattr(plain, field)), field
    assert ours.weight[ours.loops].tolist() == [1] * n


def test_weights_keep_their_dtype_and_ones_have_the_default() -> None:
    n, edge_index = AWKWARD["one edge"]
    assert Adjacency.of(edge_index, n).weight.dtype == torch.get_default_dtype()
    assert Adjacency.of(edge_index, n, torch.ones(2, dtype=F64)).weight.dtype == F64


def test_adjacency_is_returned_unchanged() -> None:
    n, edge_index = AWKWARD["star"]
    adj = Adjacency.of(edge_index, n)
    assert Adjacency.of(adj, n) is adj
    again = Adjacency.of(adj.edge_index, n)  # edge_index includes the self-loops
    assert torch.equal(again.edge_index, adj.edge_index)
    assert torch.equal(adj.to("cpu").reverse, adj.reverse)


BAD = {
    "other size": ("has 30 nodes, but x has 31 rows", 31, None),
    "weights twice": ("already has weights", 30, torch.ones(58)),
}


@pytest.mark.parametrize("case", BAD)
def test_adjacency_that_does_not_fit_raises(case: str) -> None:
    message, n, weight = BAD[case]
    adj = Adjacency.of(AWKWARD["star"][1], 30)
    with pytest.raises(GraphError, match=message) as caught:
        Adjacency.of(adj, n, weight)
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize("graph", AWKWARD)
def test_long_and_short_indices_are_equal(graph: str, monkeypatch: pytest.MonkeyPatch) -> None:
    n, edge_index = AWKWARD[graph]
    short = Adjacency.of(edge_index.clone(), n)
    monkeypatch.setattr(adjacency, "index_dtype", lambda largest: torch.int64)
    long = Adjacency.of(edge_index.clone(), n)
    for name in ("row", "col", "reverse"):
        assert (getattr(short, name).dtype, getattr(long, name).dtype) == (torch.int32, torch.int64)
        assert torch.equal(getattr(short, name).long(), getattr(long, name))
    assert torch.equal(short.crow, long.crow)
    x = torch.randn(n, 3, generator=torch.Generator().manual_seed(0))
    model = ASGNN(3, 4, 2, num_layers=3).eval()
    assert torch.equal(model(x, short), model(x, long))
    other = GCN(3, 4, 2).eval()
    assert torch.equal(other(x, short), other(x, long))


@pytest.mark.parametrize(("largest", "dtype"), [(0, torch.int32), (2**31 - 1, torch.int32), (2**31, torch.int64)])
def test_indices_are_as_short_as_they_can_be(largest: int, dtype: torch.dtype) -> None:
    assert index_dtype(largest) == dtype


def test_entries_equal_brute_force() -> None:
    """Rows, columns, transposed order and the place of each weight, from edges in any order and with loops."""
    rng = torch.Generator().manual_seed(3)
    n, pairs = 12, [(i, j) for i in range(12) for j in range(i) if (i * j) % 5 == 2]
    edges = torch.tensor([*pairs, *(pair[::-1] for pair in pairs), (4, 4), (7, 7)]).t()
    edges = edges[:, torch.randperm(edges.size(1), generator=rng)]
    weight = (edges.min(0).values * n + edges.max(0).values) / n**2
    adj = Adjacency.of(edges, n, weight)
    expected = sorted({*pairs, *(pair[::-1] for pair in pairs), *((i, i) for i in range(n))})
    assert list(zip(adj.row.tolist(), adj.col.tolist(), strict=True)) == expected
    for entry, (i, j) in enumerate(expected):
        assert expected[int(adj.reverse[entry])] == (j, i)
        assert adj.weight[entry] == (1 if i == j else (min(i, j) * n + max(i, j)) / n**2)
        assert int(adj.crow[i]) <= entry < int(adj.crow[i + 1])
