"""Named graphs: the same data in every form gives the same tensors; what is dropped is counted."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from torch_geometric.data import Data

from asgnn.errors import GraphError
from asgnn.graphs import NamedGraph, named_graph, planted_graph, random_split, read_graph, validate
from asgnn.graphs.convert import simplify
from asgnn.training import fit, recipe

FIELDS = ("x", "edge_index", "edge_weight", "y")


def assert_equal(found: NamedGraph, truth: NamedGraph) -> None:
    for name in FIELDS:
        one, other = found.data.get(name), truth.data.get(name)
        assert (one is None) == (other is None), name
        if one is not None:
            assert one.dtype == other.dtype, name
            assert torch.equal(one, other), name


def random_case(seed: int, weights: str, nodes: int = 23):
    """Edges (each once), weights, features and labels; some labels are missing, some nodes isolated."""
    rng = np.random.default_rng(seed)
    upper = np.triu(rng.random((nodes, nodes)) < 0.12, 1)
    upper[-1] = upper[:, -1] = False
    u, v = np.nonzero(upper)
    weight = {"none": None, "small": rng.random(len(u)), "counts": rng.integers(1, 9, len(u)).astype(float)}[weights]
    x = rng.normal(size=(nodes, 4))
    y = rng.integers(0, 3, nodes)
    known = rng.random(nodes) < 0.7
    known[:3], y[:3] = True, [0, 1, 2]
    return u, v, weight, x, y, known


NAMES = np.array(["ant", "bee", "cat"])


def in_every_form(seed: int, weights: str, folder) -> dict[str, NamedGraph]:
    u, v, weight, x, y, known = random_case(seed, weights)
    n = len(x)
    names = [f"f{i}" for i in range(x.shape[1])]
    words = np.where(known, NAMES[y].astype(object), None)
    ids = np.array([f"n{i:02}" for i in np.random.default_rng(seed).permutation(n)], dtype=object)
    edges = pd.DataFrame({"source": ids[u], "target": ids[v]} | ({} if weight is None else {"weight": weight}))
    nodes = pd.DataFrame(x, columns=names, index=pd.Index(ids, name="id")).assign(kind=words)
    values = np.ones(len(u)) if weight is None else weight
    upper = sp.coo_array((values, (u, v)), shape=(n, n))
    graph = nx.Graph()
    graph.add_nodes_from((node, dict(zip(names, row, strict=True))) for node, row in zip(ids, x, strict=True))
    for node, word in zip(ids, words, strict=True):
        if word is not None:
            graph.nodes[node]["kind"] = word
    graph.add_weighted_edges_from(zip(ids[u], ids[v], values, strict=True))
    both = torch.from_numpy(np.concatenate([[u, v], [v, u]], axis=1))
    data = Data(x=torch.from_numpy(x).float(), edge_index=both, y=torch.from_numpy(np.where(known, y, -1)))
    if weight is not None:
        data.edge_weight = torch.from_numpy(np.concatenate([weight, weight]))
    edges.to_csv(folder / "edges.csv", index=False)
    nodes.to_csv(folder / "nodes.csv")
    edges.to_csv(folder / "edges.tsv", index=False, sep="\t")
    nodes.to_csv(folder / "nodes.tsv", sep="\t")
    edges.to_parquet(folder / "edges.parquet")
    nodes.to_parquet(folder / "nodes.parquet")
    edges.to_csv(folder / "edges.txt", index=False, header=False, sep=" ")
    nx.write_graphml(graph, folder / "graph.graphml")
    arrays = {} if weight is None else {"edge_weight": weight}
    np.savez(
        folder / "data.npz", edges=np.stack([u, v], 1), x=x, y=np.where(known, y, -1), ids=ids.astype(str), **arrays
    )
    sp.save_npz(folder / "adj.npz", sp.csr_array(upper))
    nodes.reset_index(drop=True).to_csv(folder / "numbered.csv")
    return {
        "CSV": read_graph(folder / "edges.csv", folder / "nodes.csv", label="kind"),
        "TSV": read_graph(folder / "edges.tsv", folder / "nodes.tsv", label="kind"),
        "Parquet": read_graph(folder / "edges.parquet", folder / "nodes.parquet", label="kind"),
        "edge list": read_graph(folder / "edges.txt", folder / "nodes.csv", label="kind"),
        "GraphML": read_graph(folder / "graph.graphml", label="kind"),
        "npz": read_graph(folder / "data.npz"),
        "SciPy npz": read_graph(folder / "adj.npz", folder / "numbered.csv", label="kind"),
        "paths": named_graph((folder / "edges.csv", str(folder / "nodes.tsv")), "kind"),
        "pandas": named_graph(edges, "kind", features=nodes),
        "pandas, id column": named_graph(edges, "kind", features=nodes.reset_index()),
        "pandas, labels apart": named_graph(edges, nodes["kind"], features=nodes.drop(columns="kind")),
        "SciPy": named_graph(sp.csr_array(upper), np.where(known, y, -1), features=x),
        "SciPy, both triangles": named_graph(sp.csc_array(upper + upper.T), words, features=sp.csr_array(x)),
        "NumPy": named_graph(upper.toarray(), words.tolist(), features=pd.DataFrame(x)),
        "NetworkX": named_graph(graph, "kind"),
        "NetworkX, directed": named_graph(graph.to_directed(), "kind"),
        "NetworkX, features apart": named_graph(graph, dict(graph.nodes(data="kind")), features=x),
        "Data": named_graph(data),
        "Data, labels apart": named_graph(Data(data.x, data.edge_index, edge_weight=data.get("edge_weight")), words),
    }  # fmt: skip


@pytest.mark.parametrize("weights", ["none", "small", "counts"])
@pytest.mark.parametrize("seed", range(3))
def test_every_form_gives_the_same_graph(seed: int, weights: str, tmp_path) -> None:
    forms = in_every_form(seed, weights, tmp_path)
    truth = forms["Data"]
    validate(truth.data)
    assert (truth.data.get("edge_weight") is None) == (weights == "none")
    u, v, weight, x, y, known = random_case(seed, weights)
    dense = np.zeros((len(x), len(x)))
    dense[u, v] = dense[v, u] = 1 if weight is None else weight
    assert np.allclose(truth.to_scipy().toarray(), dense, rtol=1e-6)
    assert np.array_equal(truth.data.y.numpy(), np.where(known, y, -1))
    assert np.array_equal(truth.data.x.numpy(), x.astype(np.float32))
    for name, found in forms.items():
        try:
            assert_equal(found, truth)
        except AssertionError as wrong:
            raise AssertionError(f"{name}: {wrong}") from wrong
    for name in ("CSV", "Parquet", "NetworkX", "GraphML"):
        assert forms[name].ids.tolist() == forms["pandas"].ids.tolist(), name
        assert forms[name].classes.tolist() == NAMES.tolist(), name
        assert forms[name].feature_names == ("f0", "f1", "f2", "f3"), name
    assert forms["npz"].ids.tolist() == forms["pandas"].ids.tolist()


@pytest.mark.parametrize("weights", ["none", "small", "counts"])
@pytest.mark.parametrize("ids", ["numbers", "texts"])
def test_conversions_give_the_graph_back(ids: str, weights: str, tmp_path) -> None:
    forms = in_every_form(7, weights, tmp_path)
    graph = forms["Data" if ids == "numbers" else "CSV"]
    edges, nodes = graph.to_pandas()
    assert list(edges.columns) == ["source", "target"] + ["weight"] * (weights != "none")
    assert_equal(named_graph(edges, "label", features=nodes), graph)
    assert_equal(named_graph(graph.to_networkx(), "label"), graph)
    again = named_graph(graph.to_scipy(), graph.data.y, features=graph.data.x)
    assert_equal(again, graph)
    if weights == "counts":  # as they were given, in spite of the division
        given = random_case(7, weights)[2]
        assert sorted(edges["weight"]) == sorted(given)
        assert edges["weight"].dtype == np.float64
    assert len(edges) == graph.num_edges
    assert list(graph.edge_list("from", "to").columns)[:2] == ["from", "to"]


def test_features_of_networkx_are_its_numeric_attributes() -> None:
    graph = nx.DiGraph()
    graph.add_node("a", x=[1.0, 2.0], age=3, kind="p", name="Anna")
    graph.add_node("b", x=np.array([3.0, 4.0]), age=True, kind="q", name="Berta")
    graph.add_node("c", x=torch.tensor([5.0, 6.0]), kind="p", name="Carla")
    graph.add_edge("a", "b", weight=0.5)
    graph.add_edge("b", "c")
    found = named_graph(graph, {"a": "yes", "c": "no"})
    assert found.feature_names == ("x0", "x1", "age", "kind=p", "kind=q")
    assert found.data.x.tolist() == [[1, 2, 3, 1, 0], [3, 4, 1, 0, 1], [5, 6, 2, 1, 0]]
    assert found.data.edge_weight.tolist() == [0.5, 0.5, 1, 1]
    assert found.classes.tolist() == ["no", "yes"]
    assert found.data.y.tolist() == [1, -1, 0]
    assert any("'name' has 3 different texts" in note for note in found.notes)
    assert any("1 missing value in 1 column ('age')" in note for note in found.notes)


def test_a_label_is_no_feature_if_labels_are_given_apart() -> None:
    graph = nx.path_graph(4)
    for node in graph:
        graph.nodes[node].update(age=float(node), label="ab"[node % 2])
    given = named_graph(graph, ["a", "b", "a", None])
    assert given.feature_names == ("age",)
    assert given.data.x.flatten().tolist() == [0.0, 1.0, 2.0, 3.0]
    assert "'label' is not used as a feature, because labels are given." in given.notes
    nodes = pd.DataFrame({"id": range(4), "label": [0, 1, 0, 1]})
    alone = named_graph(pd.DataFrame({"source": [0, 1, 2], "target": [1, 2, 3]}), [0, 1, 0, None], features=nodes)
    assert not alone.has_features
    assert torch.equal(alone.data.x, torch.eye(4))


def test_ids_of_every_kind() -> None:
    graph = nx.Graph([((0, 0), (0, 1)), ((0, 1), "corner"), ("corner", 5)])
    found = named_graph(graph, ["a", "b", "a", "b"])
    assert found.numbers([(0, 1), 5]).tolist() == [1, 3]
    assert found.to_networkx().edges == graph.edges
    with pytest.raises(GraphError, match=r"There is no node 'nowhere' in the graph; its first ids are \(0, 0\), "):
        found.numbers(["nowhere"])


LABELS = {
    "texts": (["b", "a", None, "b"], ["a", "b"], [1, 0, -1, 1]),
    "empty text": (["b", "a", "", "b"], ["a", "b"], [1, 0, -1, 1]),
    "NaN": (["b", "a", np.nan, "b"], ["a", "b"], [1, 0, -1, 1]),
    "NA": (pd.array(["b", "a", pd.NA, "b"], dtype="string"), ["a", "b"], [1, 0, -1, 1]),
    "categories": (pd.Categorical(["b", "a", None, "b"]), ["a", "b"], [1, 0, -1, 1]),
    "whole numbers": ([7, 5, -1, 7], [5, 7], [1, 0, -1, 1]),
    "floats": (np.array([7, 5, np.nan, 7]), [5, 7], [1, 0, -1, 1]),
    "-1 and 1": ([1, -1, None, 1], [-1, 1], [1, 0, -1, 1]),
    "booleans": ([True, False, None, True], [False, True], [1, 0, -1, 1]),
    "texts and numbers": (["b", 3, None, "b"], ["3", "b"], [1, 0, -1, 1]),
    "by id": ({3: "b", 1: "a", 0: "b"}, ["a", "b"], [1, 0, -1, 1]),
    "by id in a Series": (pd.Series(["b", "a", "b"], index=[3, 1, 0]), ["a", "b"], [1, 0, -1, 1]),
    "tensor": (torch.tensor([7, 5, -1, 7]), [5, 7], [1, 0, -1, 1]),
    "column": (np.array([[7], [5], [-1], [7]]), [5, 7], [1, 0, -1, 1]),
    "masked": (np.ma.masked_equal([7, 5, 9, 7], 9), [5, 7], [1, 0, -1, 1]),
    "generator": ((one for one in ("b", "a", "", "b")), ["a", "b"], [1, 0, -1, 1]),
    "none known": ([None, None, "", None], [], [-1, -1, -1, -1]),
}


@pytest.mark.parametrize(("labels", "classes", "y"), LABELS.values(), ids=LABELS.keys())
def test_labels_of_every_kind(labels, classes, y) -> None:
    found = named_graph(sp.eye_array(4, k=1), labels, features=np.ones((4, 1)))
    assert found.classes.tolist() == classes
    assert found.data.y.tolist() == y
    assert found.labels().tolist() == [None if one < 0 else classes[one] for one in y]


def test_a_series_with_the_default_index_is_in_the_order_of_the_nodes_unless_ids_are_numbers() -> None:
    edges = pd.DataFrame({"a": ["x", "y"], "b": ["y", "z"]})
    assert named_graph(edges, pd.Series(["p", "q", "p"])).data.y.tolist() == [0, 1, 0]
    numbered = pd.DataFrame({"a": [2, 1], "b": [1, 0]})
    nodes = pd.DataFrame({"f": [1.0, 2.0, 3.0]}, index=[2, 1, 0])
    assert named_graph(numbered, pd.Series(["p", "q", "r"]), features=nodes).data.y.tolist() == [2, 1, 0]


def test_what_is_dropped_is_counted() -> None:
    edges = pd.DataFrame(
        {"source": [0, 1, 1, 2, 2, 0, 3], "target": [1, 0, 0, 2, 3, 3, 4], "weight": [0.2, 0.2, 0.9, 1, 1, 0, 0.5]}
    )
    found = named_graph(edges)
    assert found.edge_list().to_dict("list") == {
        "source": [0, 2, 3],
        "target": [1, 3, 4],
        "weight": [np.float32(0.9), 1, 0.5],
    }
    assert found.notes == (
        "There are no features: x is the identity, so every node is its own feature.",
        "1 self-loop dropped.",
        "1 edge of weight 0 dropped.",
        "1 repeated edge dropped.",
        "1 edge given in both directions, counted once: directions are ignored.",
        "1 edge with several weights: the largest is used.",
    )


@pytest.mark.parametrize("seed", range(20))
def test_simplify_agrees_with_a_dictionary(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, count = int(rng.integers(1, 12)), int(rng.integers(0, 60))
    pairs = rng.integers(0, n, (count, 2))
    weight = rng.choice([0.0, 0.25, 0.5, 1.0], count) if seed % 2 else None
    kept: dict[tuple[int, int], list[float]] = {}
    directed, loops, zeros, repeated = set(), 0, 0, 0
    for at, (u, v) in enumerate(pairs.tolist()):
        value = 1.0 if weight is None else float(weight[at])
        if u == v:
            loops += 1
        elif value == 0:
            zeros += 1
        else:
            repeated += (u, v) in directed
            directed.add((u, v))
            kept.setdefault((min(u, v), max(u, v)), []).append(value)
    found = simplify(pairs, weight, n)
    both = sorted([*kept, *((v, u) for u, v in kept)])
    assert found.edge_index.t().tolist() == [list(pair) for pair in both]
    assert (found.loops, found.zeros, found.repeated) == (loops, zeros, repeated)
    assert found.both_ways == sum((v, u) in directed for u, v in kept if (u, v) in directed)
    if weight is not None:
        assert found.edge_weight.tolist() == [max(kept[min(pair), max(pair)]) for pair in both]
        assert found.unequal == sum(len(set(values)) > 1 for values in kept.values())


def test_the_given_graph_is_not_changed() -> None:
    data = Data(x=torch.ones(3, 2), edge_index=torch.tensor([[0, 1], [1, 0]]), y=torch.tensor([4, 2, -1]))
    data.train_mask = torch.tensor([True, False, False])
    found = named_graph(data)
    assert data.y.tolist() == [4, 2, -1]
    assert found.data.y.tolist() == [1, 0, -1]
    assert found.classes.tolist() == [2, 4]
    assert found.data.x is data.x  # not copied: what models keep with it stays valid
    assert found.data.edge_index is data.edge_index
    assert torch.equal(found.data.train_mask, data.train_mask)
    again = named_graph(found, ["p", None, "q"])
    assert found.data.y.tolist() == [1, 0, -1]
    assert again.data.y.tolist() == [0, -1, 1]
    assert named_graph(found) is found


def test_features_of_another_graph_are_put_into_the_order_of_the_model() -> None:
    nodes = pd.DataFrame({"age": [1.0, 2, 3, 4], "color": ["red", "blue", "red", "blue"]}, index=list("abcd"))
    edges = pd.DataFrame({"u": list("abc"), "v": list("bcd")})
    found = named_graph(edges, features=nodes)
    assert found.feature_names == ("age", "color=blue", "color=red")
    wanted = found.with_features(["color=green", "color=red", "age"])
    assert wanted.data.x.tolist() == [[0, 1, 1], [0, 0, 2], [0, 1, 3], [0, 0, 4]]
    assert "1 feature unknown to the model left out: 'color=blue'." in wanted.notes
    with pytest.raises(GraphError, match="lacks 1 of the model's features: 'height'"):
        found.with_features(["age", "height"])
    with pytest.raises(GraphError, match="trained with no features, and the graph has 3"):
        found.with_features([])
    assert found.with_features(found.feature_names) is found


EDGES = pd.DataFrame({"source": ["a", "b"], "target": ["b", "c"]})
NODES = pd.DataFrame({"f": [1.0, 2.0, 3.0]}, index=["a", "b", "c"])
BAD = {
    "no graph": (lambda: named_graph([(0, 1)]), "it is a list"),
    "no columns": (lambda: named_graph(EDGES[["source"]]), "edges has 1 column"),
    "missing end": (lambda: named_graph(EDGES.replace("c", None)), "edges, row 1, column 'target': the id is empty"),
    "negative weight": (
        lambda: named_graph(EDGES.assign(weight=[1, -2])),
        "edges, row 1, column 'weight': the weight -2 is not a number from 0 up",
    ),
    "text as weight": (lambda: named_graph(EDGES.assign(weight=["1", "x"])), "the weight 'x' is not a number"),
    "negative in matrix": (lambda: named_graph(np.array([[0, -1], [-1, 0]])), "The matrix has the weight -1.0"),
    "not square": (lambda: named_graph(np.ones((2, 3))), "must be square"),
    "text among numbers": (
        lambda: named_graph(EDGES, features=NODES.assign(f=["1", "2", "two"])),
        "features, row 2, column 'f': 'two' is not a number",
    ),
    "infinite": (lambda: named_graph(EDGES, features=NODES * np.inf), "row 0, column 'f': inf is too large"),
    "two rows of one id": (
        lambda: named_graph(EDGES, features=pd.concat([NODES, 2 * NODES])),
        "features, row 3: the id 'a' has another row with other values, row 0",
    ),
    "two columns of one name": (
        lambda: named_graph(EDGES, features=pd.concat([NODES, NODES], axis=1)),
        "more than one column 'f'",
    ),
    "other ids": (
        lambda: named_graph(EDGES, features=NODES.set_axis(["x", "y", "z"])),
        r"No id of edges \('a', 'b'\) is in the index of features \('x', 'y', …\)",
    ),
    "no such label": (lambda: named_graph(EDGES, "kind", features=NODES), "no column 'kind'; its columns are 'f'"),
    "label without table": (lambda: named_graph(EDGES, "kind"), "there is no table of features"),
    "too few labels": (lambda: named_graph(EDGES, ["p", "q"]), "labels has 2 entries, but the graph has 3 nodes"),
    "label of no node": (lambda: named_graph(EDGES, {"z": "p"}), "There is no node 'z'"),
    "two labels of one node": (
        lambda: named_graph(EDGES, pd.Series(["p", "q"], index=["a", "a"])),
        "labels has two values for the node 'a'",
    ),
    "label between classes": (lambda: named_graph(EDGES, [1, 2.5, 1]), "Node 'b': the label 2.5 is neither"),
    "list as label": (lambda: named_graph(EDGES, {"a": [1]}), "A label is a list"),
    "too few features": (lambda: named_graph(EDGES, features=np.ones((2, 2))), r"The graph has 3 nodes, but x has"),
    "row of no node": (
        lambda: named_graph(sp.eye_array(2, k=1), features=NODES),
        "There is no node 'a' in the graph; its first ids are 0, 1",
    ),
    "weight in NetworkX": (
        lambda: named_graph(nx.Graph([(0, 1, {"weight": "heavy"})])),
        "The weight of an edge is not a number",
    ),
    "vectors of two lengths": (
        lambda: named_graph(nx.Graph([(0, 1)]).__class__(_vectors())),
        "The attribute 'x' of node 1 has 1 numbers, and 2 at other nodes",
    ),
    "edges outside": (
        lambda: named_graph(Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0], [2]]))),
        "the nodes are numbered 0 to 1",
    ),
    "NaN in a tensor": (
        lambda: named_graph(Data(x=torch.full((2, 1), torch.nan), edge_index=torch.tensor([[0], [1]]))),
        "x.0, 0. is nan",
    ),
    "three paths": (lambda: named_graph(["a.csv", "b.csv", "c.csv"]), "3 paths were given"),
}  # fmt: skip


def _vectors() -> nx.Graph:
    graph = nx.Graph([(0, 1)])
    graph.nodes[0]["x"], graph.nodes[1]["x"] = [1, 2], [3]
    return graph


@pytest.mark.parametrize(("make", "words"), BAD.values(), ids=BAD.keys())
def test_bad_input_gets_one_sentence(make, words: str) -> None:
    with pytest.raises(GraphError, match=words) as found:
        make()
    assert str(found.value).endswith(".")
    assert "\n" not in str(found.value)


def test_models_take_the_sparse_identity_as_the_dense_one(monkeypatch: pytest.MonkeyPatch) -> None:
    data = planted_graph(60, 3, 6, 0.1, features=None, seed=1)
    graph = Data(edge_index=data.edge_index, y=data.y, num_nodes=60)
    assert torch.equal(named_graph(graph).data.x, data.x)
    monkeypatch.setattr("asgnn.graphs.assemble.DENSE_IDENTITY", 10)
    sparse = named_graph(graph).data
    assert sparse.x.layout == torch.sparse_coo
    split = random_split(data, 0, train=0.4, val=0.2)
    for model in ("gcn", "asgnn"):
        fits = [fit(recipe(model, epochs=5).trial(one, split, 0).model, one, split=split) for one in (data, sparse)]
        assert torch.equal(fits[0].logits[0], fits[1].logits[0]), model
    with pytest.raises(GraphError, match="x is a sparse tensor"):
        validate(sparse)
    bad = Data(
        x=(torch.eye(2) * torch.inf).nan_to_num(0, posinf=torch.inf).to_sparse(), edge_index=data.edge_index[:, :0]
    )
    with pytest.raises(GraphError, match="must be finite"):
        validate(bad, need_labels=False, sparse=True)
