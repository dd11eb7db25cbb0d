import sys

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from scipy.sparse.csgraph import connected_components
from torch_geometric.data import Data

from asgnn.errors import ConfigError, GraphError
from asgnn.graphs import (
    from_edges,
    from_networkx,
    from_scipy,
    largest_component,
    to_scipy,
    undirected,
    validate,
)

X = np.arange(8.0).reshape(4, 2)
PAIRS = [(0, 1), (1, 0), (2, 2), (3, 1), (3, 1)]
EDGES = torch.tensor([[0, 1, 1, 3], [1, 0, 3, 1]])

FORMS = {
    "list": PAIRS,
    "generator": (pair for pair in PAIRS),
    "set": set(PAIRS),
    "lists": [list(pair) for pair in PAIRS],
    "array": np.array(PAIRS),
    "uint16": np.array(PAIRS, dtype=np.uint16),
    "tensor": torch.tensor(PAIRS),
    "int32 tensor": torch.tensor(PAIRS).int(),
    "big-endian": np.array(PAIRS, dtype=">i4"),
    "backwards": np.array(PAIRS)[::-1, ::-1],
    "matrix": np.array(PAIRS).view(np.matrix),
    "read-only": np.broadcast_to(np.array(PAIRS), (5, 2)),
    "masked, nothing missing": np.ma.array(PAIRS),
    "uint64 tensor": torch.tensor(PAIRS).to(torch.uint64),
    "view": torch.tensor(PAIRS).t().contiguous().t(),
}


@pytest.mark.parametrize("edges", FORMS.values(), ids=FORMS.keys())
def test_from_edges_takes_every_form_of_pairs(edges):
    data = from_edges(X, edges, y=[0, 1, 1, 0])
    assert torch.equal(data.edge_index, EDGES)
    assert data.x.dtype == torch.float32
    assert data.y.dtype == torch.int64


@pytest.mark.parametrize("none", [[], np.empty((0, 2)), torch.empty(0, 2).long()])
def test_no_edges(none):
    data = from_edges(X, none)
    assert data.edge_index.shape == (2, 0)
    assert data.edge_index.dtype == torch.int64


FEATURES = {
    "lists": (X.tolist(), torch.float32),
    "float64 array": (X, torch.float32),
    "read-only array": (np.broadcast_to(np.ones(2), (4, 2)), torch.float32),
    "big-endian array": (X.astype(">f8"), torch.float32),
    "backwards": (X[::-1, ::-1], torch.float32),
    "every second column": (np.repeat(X, 2, axis=1)[:, ::2], torch.float32),
    "matrix": (X.view(np.matrix), torch.float32),
    "long double": (X.astype(np.longdouble), torch.float32),
    "half array": (X.astype(np.float16), torch.float32),
    "int array": (X.astype(int), torch.float32),
    "bool tensor": (torch.eye(4).bool(), torch.float32),
    "double tensor": (torch.from_numpy(X), torch.float64),
    "sparse tensor": (torch.eye(4).to_sparse(), torch.float32),
    "csr": (sp.csr_array(X), torch.float32),
}


@pytest.mark.parametrize(("x", "dtype"), FEATURES.values(), ids=FEATURES.keys())
def test_features_of_every_kind(x, dtype):
    found = from_edges(x, PAIRS).x
    assert found.dtype == dtype
    dense = x.toarray() if sp.issparse(x) else x.to_dense() if isinstance(x, torch.Tensor) else x
    assert np.array_equal(found.numpy(), np.asarray(dense, dtype=np.float64))


LABELS = {
    "−1": [0, -1, 1, 2],
    "None": [0, None, 1, 2],
    "NaN": [0, float("nan"), 1, 2],
    "NaN and None": [0, None, 1.0, 2],
    "array": np.array([0, np.nan, 1, 2], np.float16),
    "big-endian": np.array([0, -1, 1, 2], ">i2"),
    "masked": np.ma.masked_equal(np.array([0, 7, 1, 2]), 7),
    "backwards": np.array([2, 1, -1, 0])[::-1],
    "column": np.array([[0.0], [-1], [1], [2]]),
    "column of objects": np.array([[0], [None], [1], [2]], dtype=object),
    "tensor": torch.tensor([0, -1, 1, 2]).int(),
    "float tensor": torch.tensor([[0], [float("nan")], [1], [2]]),
    "generator": (label for label in (0, None, 1, 2)),
}


@pytest.mark.parametrize("y", LABELS.values(), ids=LABELS.keys())
def test_missing_labels_are_kept_as_minus_one(y):
    assert from_edges(X, PAIRS, y).y.tolist() == [0, -1, 1, 2]


BAD = {
    "ragged x": (([[1.0, 2.0], [3.0]], []), "x is ragged"),
    "text x": ((["a", "b"], []), "x contains <U1 values"),
    "no x": ((None, []), "x is missing"),
    "flat x": (([1.0, 2.0], []), r"shape \(N, F\)"),
    "NaN": (([[1.0], [float("nan")]], []), r"x\[1, 0\] is nan"),
    "complex x": ((X + 1j, []), "x contains complex128"),
    "complex tensor x": ((torch.ones(4, 2, dtype=torch.complex64), []), "x has dtype complex64"),
    "half x": ((torch.ones(4, 2).half(), []), "x has dtype float16"),
    "too large for float32": ((np.full((4, 2), -1e300), []), "x contains -1e.300, which is too large for float32"),
    "masked x": ((np.ma.masked_less(X, 1), []), "x is a masked array"),
    "digits as text": ((X.astype(str), []), "x contains <U32 values"),
    "dates": ((X.astype("datetime64[s]"), []), "x contains datetime64"),
    "objects": ((X.astype(object), []), "x is ragged or contains something other"),
    "complex edges": ((X, np.array([[0, 1j]])), "edges contains complex128"),
    "complex tensor edges": ((X, torch.tensor([[0, 1j]])), "edges contains complex64"),
    "bfloat16 edges": ((X, torch.ones(1, 2).bfloat16()), "edges contains bfloat16"),
    "bool edges": ((X, [(True, False)]), "node indices must be integers"),
    "bool among edges": ((X, [(0, 1), (2, True)]), r"Edge number 1 is \(2, True\)"),
    "edges as digits": ((X, [("0", "1")]), "edges contains <U1"),
    "NaN edges": ((X, np.array([[0, np.nan]])), "edges contains float64"),
    "masked edges": ((X, np.ma.masked_equal(np.array([[0, 1]]), 1)), "edges is a masked array"),
    "sparse edges": ((X, sp.eye_array(4)), "edges must be pairs of node indices; it is a dia_array"),
    "dict in edges": ((X, [{0: 1, 1: 2}]), "not a pair"),
    "huge edges": ((X, [(0, 10**30)]), "edges is ragged or contains something other"),
    "ragged edges": ((X, [(0, 1), (1, 2, 3)]), r"Edge number 1 is \(1, 2, 3\), not a pair"),
    "text edges": ((X, ["01", "12"]), "Edge number 0 is '01'"),
    "names": ((X, [("a", "b")]), "node indices must be integers"),
    "float edges": ((X, [(0.0, 1.0)]), "edges contains float64"),
    "one number": ((X, 3), "edges must be pairs of node indices; it is a int"),
    "edge_index": ((X, EDGES), r"shape \(E, 2\).*\(2, 4\), so pass its transpose"),
    "outside": ((X, [(0, 1), (0, 4)]), "Edge number 1 is 0–4.*0 to 3"),
    "negative": ((X, [(0, 1), (-2, 1)]), "Edge number 1 is -2–1"),
    "wrapping": ((X, np.array([[0, 2**64 - 1]], dtype=np.uint64)), "Edge number 0 is 0–18446744073709551615"),
    "y between classes": ((X, [], [0.0, 1.5, 1.0, 0.0]), r"y\[1\] is 1.5"),
    "tensor y between classes": ((X, [], torch.tensor([0, 0.5, 0, 1])), r"y\[1\] is 0.5"),
    "y below -1": ((X, [], [0, 1, -2, 0]), r"y\[2\] is -2"),
    "y complex": ((X, [], [0, 1j, 1, 0]), "y contains complex128"),
    "y bool": ((X, [], [True, False, True, True]), "y contains bool"),
    "y text and None": ((X, [], ["a", None, "b", "a"]), "y contains <U"),
    "y wraps": ((X, [], np.array([0, 1, 2**64 - 1, 1], np.uint64)), r"y\[2\] is 18446744073709551615"),
    "text y": ((X, [], ["a"] * 4), "y contains <U1"),
    "short y": ((X, [], [0, 1]), r"y must have shape \(4,\)"),
    "ragged y": ((X, [], [[0], [1, 2]]), "y is ragged"),
}


@pytest.mark.parametrize(("arguments", "words"), BAD.values(), ids=BAD.keys())
def test_from_edges_refuses(arguments, words):
    with pytest.raises(GraphError, match=words):
        from_edges(*arguments)


def random_directed(seed: int, n: int = 33, density: float = 0.03) -> sp.csr_array:
    return sp.csr_array(sp.random_array((n, n), density=density, rng=np.random.default_rng(seed)))


@pytest.mark.parametrize("seed", range(10))
def test_symmetrising_agrees_with_scipy(seed):
    adj = random_directed(seed)
    peer = ((adj + adj.T) != 0).toarray()
    np.fill_diagonal(peer, False)
    row, col = np.nonzero(peer)
    coo = adj.tocoo()
    edges = undirected(torch.from_numpy(np.stack([coo.row, coo.col]).astype(np.int64)), 33)
    assert np.array_equal(edges.numpy(), np.stack([row, col]))
    data = from_scipy(adj, np.eye(33))
    assert torch.equal(data.edge_index, edges)
    assert np.array_equal(to_scipy(data).toarray(), peer.astype(np.float32))


@pytest.mark.parametrize("seed", range(10))
def test_largest_component_agrees_with_scipy(seed):
    data = from_scipy(random_directed(seed), np.eye(33), np.arange(33) % 3)
    data.train_mask = torch.arange(33) % 2 == 0
    data.edge_weight = torch.rand(data.num_edges)
    data.name = "a name"
    full = to_scipy(data).toarray()
    _, member = connected_components(full)
    kept = np.flatnonzero(member == np.bincount(member).argmax())
    part = largest_component(data)
    validate(part, need_labels=False)
    assert 1 < len(kept) < 33
    assert np.array_equal(part.x.argmax(dim=1).numpy(), kept)
    assert np.array_equal(part.y.numpy(), kept % 3)
    assert np.array_equal(part.train_mask.numpy(), kept % 2 == 0)
    assert np.array_equal(to_scipy(part).toarray(), full[np.ix_(kept, kept)])
    assert part.name == "a name"
    assert data.num_nodes == 33


def test_of_equal_components_the_first_is_taken():
    data = largest_component(from_edges(np.eye(5), [(3, 4), (1, 2)]))
    assert data.x.argmax(dim=1).tolist() == [1, 2]
    assert largest_component(from_edges(np.eye(3), [])).x.argmax(dim=1).tolist() == [0]


def test_from_scipy_counts_non_zero_sums_as_edges():
    stored_zero = sp.coo_array(([0.0, 2.0, 1.0, -1.0], ([0, 1, 2, 2], [1, 2, 3, 3])), shape=(4, 4))
    assert from_scipy(stored_zero, X).edge_index.tolist() == [[1, 2], [2, 1]]
    assert from_scipy(np.ones((4, 4)), X).num_edges == 12


BAD_ADJ = {
    "not square": (sp.csr_array((2, 3)), r"adj must be square; its shape is \(2, 3\)"),
    "other size": (sp.csr_array((5, 5)), r"adj has 5 nodes, but x has shape \(4, 2\)"),
    "NaN": (sp.csr_array(np.diag([float("nan")] * 4)), r"adj\[0, 0\] is nan"),
    "text": ("abc", "adj must be a matrix of real numbers; it is a str"),
    "complex": (sp.csr_array(np.eye(4) * 1j), "adj must be a matrix of real numbers; it is a csr_array of complex128"),
    "flat": (np.ones(4), r"adj must be square; its shape is \(4,\)"),
    "masked": (np.ma.masked_equal(np.eye(4), 1), "adj is a masked array"),
    "objects": (np.eye(4).astype(object), "adj is ragged or contains something other than numbers"),
    "sparse tensor": (torch.eye(4).to_sparse(), "adj is a Tensor, which NumPy cannot read"),
}


@pytest.mark.parametrize(("adj", "words"), BAD_ADJ.values(), ids=BAD_ADJ.keys())
def test_from_scipy_refuses(adj, words):
    with pytest.raises(GraphError, match=words):
        from_scipy(adj, X)


@pytest.mark.parametrize("kind", [nx.Graph, nx.DiGraph, nx.MultiGraph, nx.MultiDiGraph])
def test_from_networkx(kind):
    graph = kind()
    graph.add_nodes_from("abcd")
    graph.add_edges_from([("a", "b"), ("d", "b"), ("c", "c"), ("b", "a")])
    assert torch.equal(from_networkx(graph, X).edge_index, EDGES)


def test_from_networkx_refuses(monkeypatch):
    with pytest.raises(GraphError, match=r"graph has 3 nodes, but x has shape \(4, 2\)"):
        from_networkx(nx.path_graph(3), X)
    with pytest.raises(GraphError, match=r"must be a networkx\.Graph; it is a list"):
        from_networkx([(0, 1)], X)
    monkeypatch.setitem(sys.modules, "networkx", None)
    with pytest.raises(ConfigError, match=r"needs networkx.*pip install networkx"):
        from_networkx(None, X)


BAD_EDGES = {
    "outside": (torch.tensor([[0], [5]]), 3, r"\[:, 0\] is the edge 0–5.*0 to 2"),
    "float": (torch.zeros(2, 1), 3, "dtype float32"),
    "pairs": (torch.zeros(3, 2).long(), 3, r"shape \(2, E\)"),
    "list": ([[0], [1]], 3, "is a list"),
    "too many nodes": (torch.zeros(2, 1).long(), 2**40, "num_nodes must be a whole number from 0 to 3037000499"),
}


@pytest.mark.parametrize(("edges", "num_nodes", "words"), BAD_EDGES.values(), ids=BAD_EDGES.keys())
def test_undirected_refuses(edges, num_nodes, words):
    with pytest.raises(GraphError, match=words):
        undirected(edges, num_nodes)


def test_to_scipy_refuses_weights_that_do_not_fit():
    data = from_edges(X, PAIRS)
    data.edge_weight = torch.ones(3)
    with pytest.raises(GraphError, match="edge_weight must have shape"):
        to_scipy(data)


def test_to_scipy_refuses_a_directed_graph():
    with pytest.raises(GraphError, match="0→1 without its reverse"):
        to_scipy(Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0], [1]])))
