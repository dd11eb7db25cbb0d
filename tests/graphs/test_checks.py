"""Invalid graphs and splits, and the error message of each."""

import re

import pytest
import torch
from torch_geometric.data import Data

from asgnn.errors import GraphError
from asgnn.graphs import Split, check_split, describe, labels_of, num_classes, validate


def path_graph(**changes) -> Data:
    """Returns the path 0–1–2–3 and the isolated node 4, with two classes and a split; changes replace attributes."""
    edges = torch.tensor([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]])
    parts = {
        "x": torch.arange(10.0).reshape(5, 2),
        "edge_index": edges,
        "y": torch.tensor([0, 0, 1, 1, 0]),
        "train_mask": torch.tensor([1, 0, 0, 0, 0]).bool(),
        "val_mask": torch.tensor([0, 1, 0, 0, 0]).bool(),
        "test_mask": torch.tensor([0, 0, 1, 1, 1]).bool(),
    }
    data = Data()
    for name, value in (parts | changes).items():
        # Set one by one: Data's constructor fails on some of the invalid values.
        data[name] = value
    return data


def columns(*pairs: tuple[int, int]) -> torch.Tensor:
    return torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).t()


def holed(value: float) -> torch.Tensor:
    x = torch.ones(5, 2)
    x[3, 1] = value
    return x


NODES = torch.zeros(5, dtype=torch.bool)
ALL = torch.ones(5, dtype=torch.bool)
TWO_SPLITS = torch.eye(5, 2).bool()

BAD = {
    "x missing": ({"x": None}, "x is missing; set it to float features"),
    "x list": ({"x": [[1.0, 2.0], [3.0]]}, "x is a list, not a tensor"),
    "x sparse": ({"x": torch.eye(5).to_sparse()}, "sparse tensor; call .to_dense()"),
    "x flat": ({"x": torch.ones(5)}, r"shape \(N, F\); its shape is \(5,\)"),
    "x cube": ({"x": torch.ones(5, 1, 1)}, r"shape \(N, F\); its shape is \(5, 1, 1\)"),
    "no nodes": ({"x": torch.ones(0, 2)}, r"x is empty: its shape is \(0, 2\)"),
    "no features": ({"x": torch.ones(5, 0)}, r"x is empty: its shape is \(5, 0\)"),
    "x NaN": ({"x": holed(float("nan"))}, r"x\[3, 1\] is nan"),
    "x inf": ({"x": holed(float("inf"))}, r"x\[3, 1\] is inf"),
    "x -inf": ({"x": holed(float("-inf"))}, r"x\[3, 1\] is -inf"),
    "x int": ({"x": torch.ones(5, 2, dtype=torch.int64)}, r"dtype int64.*call .float\(\)"),
    "x bool": ({"x": torch.ones(5, 2).bool()}, r"dtype bool.*call .float\(\)"),
    "x complex": ({"x": torch.ones(5, 2, dtype=torch.complex64)}, r"dtype complex64.*call .real.float\(\)"),
    "x half": ({"x": torch.ones(5, 2).half()}, r"dtype float16; it must be float32 or float64"),
    "x bfloat16": ({"x": torch.ones(5, 2).bfloat16()}, r"dtype bfloat16.*call .float\(\)"),
    "x without values": ({"x": torch.ones(5, 2, device="meta")}, "x is a meta tensor"),
    "num_nodes": ({"num_nodes": 6}, r"num_nodes of the graph is 6, but x has shape \(5, 2\)"),
    "num_nodes float": ({"num_nodes": 5.0}, "num_nodes must be a whole number from 0 to .*; it is 5.0"),
    "num_nodes huge": ({"num_nodes": 2**40}, "num_nodes must be a whole number"),
    "edges missing": ({"edge_index": None}, "edge_index is missing"),
    "edges ragged": ({"edge_index": [[0, 1], [1]]}, "edge_index is a list, not a tensor.*from_edges"),
    "edges E×2": ({"edge_index": columns((0, 1), (1, 0), (1, 2)).t()}, r"shape \(2, E\); its shape is \(3, 2\)"),
    "edges flat": ({"edge_index": torch.tensor([0, 1])}, r"shape \(2, E\); its shape is \(2,\)"),
    "edges int32": ({"edge_index": columns((0, 1), (1, 0)).int()}, r"dtype int32.*call .long\(\)"),
    "edges float": ({"edge_index": columns((0, 1), (1, 0)).float()}, "dtype float32"),
    "out of range": (
        {"edge_index": columns((0, 1), (1, 0), (2, 5), (5, 2))},
        r"\[:, 2\] is the edge 2–5.*0 to 4",
    ),
    "negative": ({"edge_index": columns((0, 1), (1, 0), (-1, 2), (2, -1))}, r"\[:, 2\] is the edge -1–2"),
    "self-loop": ({"edge_index": columns((0, 1), (1, 0), (3, 3))}, r"\[:, 2\] is a self-loop at node 3"),
    "repeated": ({"edge_index": columns((0, 1), (1, 0), (0, 1), (1, 0))}, "edge 0→1 more than once"),
    "directed": ({"edge_index": columns((0, 1), (1, 0), (3, 2))}, "edge 3→2 without its reverse 2→3"),
    "directed up": ({"edge_index": columns((0, 1), (1, 0), (2, 3))}, "edge 2→3 without its reverse 3→2"),
    "weight length": ({"edge_weight": torch.ones(5)}, r"edge_weight must have shape \(6,\).*shape is \(5,\)"),
    "weight shape": ({"edge_weight": torch.ones(6, 1)}, r"edge_weight.*shape is \(6, 1\)"),
    "weight list": ({"edge_weight": [1.0] * 6}, "edge_weight is a list"),
    "weight int": ({"edge_weight": torch.ones(6).int()}, "edge_weight has dtype int32"),
    "weight NaN": ({"edge_weight": torch.tensor([1, 1, float("nan"), 1, 1, 1])}, r"edge_weight\[2\] is nan"),
    "weight high": ({"edge_weight": torch.tensor([1, 1, 1, 1.5, 1, 1])}, r"weight\[3\] is 1.5.*\[0, 1\]"),
    "weight low": ({"edge_weight": torch.tensor([-0.5, 1, 1, 1, 1, 1])}, r"edge_weight\[0\] is -0.5"),
    "y missing": ({"y": None}, "y is missing; set data.y"),
    "y short": ({"y": torch.tensor([0, 1])}, r"y must have shape \(5,\).*shape is \(2,\)"),
    "y two columns": ({"y": torch.zeros(5, 2).long()}, r"y must have shape \(5,\).*shape is \(5, 2\)"),
    "y row": ({"y": torch.zeros(1, 5).long()}, r"y must have shape \(5,\).*shape is \(1, 5\)"),
    "y list": ({"y": [0, 1, 0, 1, 0]}, "y is a list, not a tensor"),
    "y bool": ({"y": torch.tensor([1, 0, 1, 0, 1]).bool()}, r"y has dtype bool.*call .long\(\)"),
    "y complex": ({"y": torch.zeros(5, dtype=torch.complex64)}, "y has dtype complex64"),
    "y negative": ({"y": torch.tensor([0, 0, 1, -2, 0])}, r"y\[3\] is -2: classes are whole numbers from 0 to 65535"),
    "y half": ({"y": torch.tensor([0, 0, 1, 1.5, 0])}, r"y\[3\] is 1.5"),
    "y inf": ({"y": torch.tensor([0, 0, 1, float("inf"), 0])}, r"y\[3\] is inf"),
    "y -inf": ({"y": torch.tensor([0, 0, 1, float("-inf"), 0])}, r"y\[3\] is -inf"),
    "y uint64": ({"y": torch.tensor([0, 1, 2**64 - 1, 1, 0], dtype=torch.uint64)}, r"y\[2\] is 18446744073709551615"),
    "y 65536": ({"y": torch.tensor([0, 0, 1, 65536, 0])}, r"y\[3\] is 65536"),
    "y float 1e30": ({"y": torch.tensor([0, 0, 1, 1e30, 0])}, r"y\[3\] is 1e\+30|y\[3\] is 1.0000000150474662e\+30"),
    "y huge": ({"y": torch.tensor([0, 0, 1, 10**12, 0])}, r"y\[3\] is 1000000000000"),
    "no label": ({"y": torch.full((5,), -1)}, "Every label in y is missing"),
    "one class with missing labels": ({"y": torch.tensor([3, -1, 3, -1, 3])}, "Every label in y is 3.*two classes"),
    "one class": ({"y": torch.full((5,), 3)}, "Every label in y is 3.*two classes"),
    "mask missing": ({"val_mask": None}, "val_mask is missing; .*apply_split"),
    "mask list": ({"val_mask": [True] * 5}, "val_mask is a list"),
    "mask dtype": ({"train_mask": torch.tensor([1, 0, 0, 0, 0])}, "train_mask has dtype int64.*bool"),
    "mask length": ({"test_mask": ALL[:3]}, r"test_mask must have shape \(5,\).*shape is \(3,\)"),
    "mask cube": ({"test_mask": torch.ones(5, 1, 1).bool()}, r"test_mask must have shape.*\(5, 1, 1\)"),
    "mask unlike": ({"test_mask": ~TWO_SPLITS}, r"train_mask and test_mask have different shapes"),
    "train empty": ({"train_mask": NODES}, "train_mask selects no node"),
    "val empty": ({"val_mask": NODES}, "val_mask selects no node"),
    "test empty": ({"test_mask": NODES}, "test_mask selects no node"),
    "val without a label": ({"y": torch.tensor([0, -1, 1, 1, 0])}, r"val_mask selects no labelled node\."),
    "no column": ({"train_mask": torch.ones(5, 0).bool()}, "train_mask selects no node"),
    "empty column": (
        {"train_mask": torch.eye(5, 2).bool() & torch.tensor([True, False])},
        "train_mask selects no node in split 1",
    ),
    "overlap": ({"test_mask": torch.tensor([0, 1, 1, 0, 0]).bool()}, "Node 1 is in both val_mask and test"),
    "overlap in a column": (
        {"train_mask": TWO_SPLITS, "val_mask": TWO_SPLITS.flip(1), "test_mask": torch.eye(5, 2).bool()},
        "Node 0 is in both train_mask and test_mask of split 0",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "words"), BAD.values(), ids=BAD.keys())
def test_invalid_graph_raises_one_sentence(changes, words):
    with pytest.raises(GraphError, match=words) as caught:
        validate(path_graph(**changes), need_split=True)
    assert re.fullmatch(r"[^\n]+\.", str(caught.value))


def test_not_a_graph():
    with pytest.raises(GraphError, match="is a dict"):
        validate({"x": 1})


GOOD = {
    "isolated node": {},
    "no edges": {"edge_index": torch.empty(2, 0, dtype=torch.int64)},
    "double": {"x": torch.ones(5, 2, dtype=torch.float64)},
    "weights": {"edge_weight": torch.tensor([0, 0, 1, 1, 0.5, 0.5])},
    "any order of edges": {"edge_index": columns((3, 0), (1, 4), (0, 3), (4, 1))},
    "classes with a gap": {"y": torch.tensor([0, 7, 7, 0, 0])},
    "num_nodes": {"num_nodes": 5},
    "y column": {"y": torch.tensor([[0], [1], [1], [0], [0]])},
    "y float": {"y": torch.tensor([0.0, 0, 1, 1, 0])},
    "missing labels": {"y": torch.tensor([0, 0, 1, -1, -1])},
    "missing float labels": {"y": torch.tensor([[0], [0], [1], [float("nan")], [-1.0]])},
    "two splits": {
        "train_mask": TWO_SPLITS,
        "val_mask": TWO_SPLITS.flip(0),
        "test_mask": ~(TWO_SPLITS | TWO_SPLITS.flip(0)),
    },
}


@pytest.mark.parametrize("changes", GOOD.values(), ids=GOOD.keys())
def test_legal_graphs_pass(changes):
    validate(path_graph(**changes), need_split=True)


def test_optional_attributes_may_be_missing():
    validate(path_graph(y=None, train_mask=None, val_mask=None, test_mask=None), need_labels=False)
    validate(path_graph(y=torch.zeros(5).long(), train_mask=NODES), need_labels=False)
    validate(path_graph(y=torch.full((5,), -1)), need_labels=False)
    with pytest.raises(GraphError, match=r"y\[0\] is 0.5"):
        validate(path_graph(y=torch.full((5,), 0.5)), need_labels=False)


NAN = float("nan")
INTEGERS = [getattr(torch, name) for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", INTEGERS + FLOATS, ids=str)
@pytest.mark.parametrize("shape", [(5,), (5, 1)])
def test_labels_of_every_dtype_and_shape(dtype, shape):
    expected = [0, 3, 1, 0, 1]
    if dtype.is_signed:
        expected[1] = -1
    data = path_graph(y=torch.tensor(expected, dtype=dtype).reshape(shape))
    if dtype.is_floating_point:
        data.y[4], expected[4] = NAN, -1
    labels = labels_of(data)
    assert labels.dtype == torch.int64
    assert labels.tolist() == expected
    assert num_classes(data) == max(expected) + 1


def test_labels_are_not_copied_and_need_no_gradient():
    data = path_graph()
    assert labels_of(data).data_ptr() == data.y.data_ptr()
    assert not labels_of(path_graph(y=data.y.double().requires_grad_())).requires_grad


def test_the_number_of_classes_needs_a_label():
    with pytest.raises(GraphError, match="No node of the graph has a label"):
        num_classes(path_graph(y=torch.full((5,), NAN)))


def test_describe():
    assert describe(path_graph()) == "5 nodes, 3 edges, 2 features, 2 classes"
    assert describe(path_graph(y=None)) == "5 nodes, 3 edges, 2 features"
    partly = path_graph(y=torch.tensor([0, -1, 2, -1, 1]))
    assert describe(partly) == "5 nodes, 3 of them labelled, 3 edges, 2 features, 3 classes"
    assert describe(path_graph(y=torch.full((5,), -1))) == "5 nodes, 0 of them labelled, 3 edges, 2 features"


def nodes(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int64)


BAD_SPLITS = {
    "empty": (Split(nodes(), nodes(1), nodes(2)), r"split\.train is empty"),
    "outside": (Split(nodes(0), nodes(1, 9), nodes(2)), r"split\.val contains node 9.*0 to 4"),
    "negative": (Split(nodes(0), nodes(1), nodes(-1)), r"split\.test contains node -1"),
    "shared": (Split(nodes(0, 1), nodes(2), nodes(3, 1)), r"Node 1 is in both split\.train and split\.test"),
    "twice": (Split(nodes(0), nodes(2, 3, 2), nodes(4)), r"split\.val contains node 2 more than once"),
    "dtype": (Split(nodes(0), nodes(1).int(), nodes(4)), r"split\.val must be .*int32"),
    "shape": (Split(nodes(0), nodes(1), nodes(4).reshape(1, 1)), r"split\.test must be .*\(1, 1\)"),
    "masks": (Split(ALL, ALL, ALL), r"split\.train must be .*bool"),
    "lists": (Split([0], [1], [2]), r"split\.train is a list"),
}


@pytest.mark.parametrize(("split", "words"), BAD_SPLITS.values(), ids=BAD_SPLITS.keys())
def test_bad_split(split, words):
    with pytest.raises(GraphError, match=words):
        check_split(split, 5)


def test_split_with_unlabelled_nodes_raises():
    split = Split(nodes(0), nodes(1), nodes(2, 3))
    check_split(split, path_graph())
    with pytest.raises(GraphError, match=r"Node 3 in split\.test has no label"):
        check_split(split, path_graph(y=torch.tensor([0, 1, 1, -1, -1])))
    for number in (5.0, True, "5", -1, None):
        with pytest.raises(GraphError, match="num_nodes must be a whole number"):
            check_split(split, number)


def test_error_names_the_edge_without_reverse():
    """Removes one direction of a random edge."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        n = 9
        dense = torch.rand(n, n, generator=generator).triu(1) > 0.6
        edges = (dense | dense.t()).nonzero().t()
        gone = int(torch.randint(edges.size(1), (1,), generator=generator))
        u, v = edges[:, gone].tolist()
        kept = torch.arange(edges.size(1)) != gone
        order = torch.randperm(edges.size(1) - 1, generator=generator)
        data = Data(x=torch.ones(n, 1), edge_index=edges[:, kept][:, order])
        with pytest.raises(GraphError, match=f"edge {v}→{u} without its reverse {u}→{v}"):
            validate(data, need_labels=False)
