"""Files of graphs: formats, separators, encodings; every bad file gets one sentence with file, line and column."""

from __future__ import annotations

import gzip
import io
import sys
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch

from asgnn.errors import AsgnnError, ConfigError, DataCorrupt, DataUnavailable, GraphError
from asgnn.graphs import named_graph, read_graph

EDGES = "source,target\na,b\nb,c\nc,d\n"
NODES = "id,size,class\na,1.5,x\nb,2,y\nc,3,\nd,4,x\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("edges.csv").write_text(EDGES)
    Path("nodes.csv").write_text(NODES)
    return tmp_path


def edges_of(text: str | bytes, **options) -> list[tuple]:
    Path("e").write_bytes(text.encode() if isinstance(text, str) else text)
    return list(read_graph("e", **options).edge_list().itertuples(index=False, name=None))


# text of the edges → the edges that are meant
LAYOUTS: dict[str, tuple[str | bytes, list[tuple]]] = {
    "commas": ("source,target\na,b\nb,c\n", [("a", "b"), ("b", "c")]),
    "tabs": ("source\ttarget\na\tb\nb\tc\n", [("a", "b"), ("b", "c")]),
    "semicolons": ("source;target\na;b\nb;c\n", [("a", "b"), ("b", "c")]),
    "bars": ("a|b\nb|c\n", [("a", "b"), ("b", "c")]),
    "spaces": ("a b\nb   c\n", [("a", "b"), ("b", "c")]),
    "spaces in front": ("  1 2\n  2 3\n", [(1, 2), (2, 3)]),
    "comments": ("# a file\n% of edges\n1 2\n2 3\n", [(1, 2), (2, 3)]),
    "SNAP": ("# FromNodeId\tToNodeId\n10\t2\n2\t3\n", [(2, 3), (2, 10)]),
    "empty lines": ("\n\nsource,target\n\na,b\n\n\nb,c\n\n", [("a", "b"), ("b", "c")]),
    "Windows": ("source,target\r\na,b\r\nb,c\r\n", [("a", "b"), ("b", "c")]),
    "old Mac": ("source,target\ra,b\rb,c", [("a", "b"), ("b", "c")]),
    "quotes": ('source,target\n"a, the first",b\nb,"c\nc"\n', [("a, the first", "b"), ("b", "c\nc")]),
    "spaces around": ("source , target\n a , b\nb,c \n", [("a", "b"), ("b", "c")]),
    "numbers without header": ("1,2\n2,3\n", [(1, 2), (2, 3)]),
    "numbers, unusual header": ("first,second\n1,2\n2,3\n", [(1, 2), (2, 3)]),
    "texts without header": ("a,b\nb,c\nc,a\n", [("a", "b"), ("a", "c"), ("b", "c")]),
    "texts, unusual header": ("person,friend\na,b\nb,c\n", [("a", "b"), ("b", "c")]),
    "one edge": ("a,b\n", [("a", "b")]),
    "other order of columns": ("weight,target,kind,source\n1,b,k,a\n1,c,k,b\n", [("b", "a"), ("c", "b")]),
    "leading zeros": ("source,target\n007,010\n010,7\n", [("007", "010"), ("010", "7")]),
    "minus": ("source,target\n-1,2\n2,3\n", [(-1, 2), (2, 3)]),
    "numbers of spreadsheets": ("source,target\n1.0,2.0\n2.0,3.0\n", [(1, 2), (2, 3)]),
    "the id NA": ("source,target\nNA,null\nnull,None\n", [("NA", "null"), ("None", "null")]),
    "weights": ("source,target,weight\na,b,0.5\nb,c,1\n", [("a", "b", 0.5), ("b", "c", 1.0)]),
    "weights without header": ("a b 0.5\nb c 1\n", [("a", "b", 0.5), ("b", "c", 1.0)]),
    "counts": ("source,target,weight\na,b,3\nb,c,700\n", [("a", "b", 3.0), ("b", "c", 700.0)]),
    "decimal comma": ("source;target;weight\na;b;0,5\nb;c;1\n", [("a", "b", 0.5), ("b", "c", 1.0)]),
    "UTF-8": ("source,target\nö,ß\nß,京\n".encode(), [("ß", "ö"), ("ß", "京")]),
    "byte order mark": ("source,target\nö,ß\n".encode("utf-8-sig"), [("ß", "ö")]),
    "UTF-16": ("source,target\nö,ß\n".encode("utf-16"), [("ß", "ö")]),
    "Windows-1252": ("source,target\nö,ß\n".encode("cp1252"), [("ß", "ö")]),
    "gzip": (gzip.compress(b"source,target\na,b\n"), [("a", "b")]),
}


@pytest.mark.parametrize(("text", "truth"), LAYOUTS.values(), ids=LAYOUTS.keys())
def test_layout_of_edges_is_recognised(text, truth, folder: Path) -> None:
    found = edges_of(text)
    assert sorted(tuple(sorted(map(str, one[:2]))) for one in found) == sorted(
        tuple(sorted(map(str, one[:2]))) for one in truth
    )
    assert sorted(one[2:] for one in found) == sorted(one[2:] for one in truth)
    assert {type(one[0]) for one in found} == {type(one[0]) for one in truth}


def test_options_overrule_what_is_recognised(folder: Path) -> None:
    assert edges_of("a,b\nc,d\n", header=True) == [("c", "d")]
    assert edges_of("a,b\nb,c\n", header=False) == [("a", "b"), ("b", "c")]
    assert edges_of("x:a,1;b:c\n", separator=";", header=False) == [("b:c", "x:a,1")]
    assert edges_of("s,t\nö,ß\n".encode("cp850"), encoding="cp850", source="t", target="s") == [("ß", "ö")]
    three = "kind,from,to,strength\nk,a,b,0.5\nk,b,c,0.25\n"
    assert edges_of(three, weight="strength") == [("a", "b", 0.5), ("b", "c", 0.25)]
    assert edges_of(three) == [("a", "b"), ("b", "c")]


def test_features_and_labels_of_a_table(folder: Path) -> None:
    Path("nodes.csv").write_text(
        "name,age,id,color,ok,note,empty,class\n"
        "Anna,1.5,a,red,true,one,,x\nBert,?,b,blue,false,two,,y\nCarl,NA,c,red,,three,,\nDora,3,d,,true,four,,NaN\n"
        "Emil,,f,,,,,x\n"
    )
    found = read_graph("edges.csv", "nodes.csv", label="class", ignore=["name"])
    assert found.ids.tolist() == ["a", "b", "c", "d", "f"]
    assert found.feature_names == ("age", "color=blue", "color=red", "ok")
    middle = (1.5 + 3) / 2
    assert found.data.x.tolist() == [[1.5, 0, 1, 1], [middle, 1, 0, 0], [middle, 0, 1, 0], [3, 0, 0, 1], [0, 0, 0, 0]]
    assert found.classes.tolist() == ["x", "y"]
    assert found.data.y.tolist() == [0, 1, -1, -1, 0]
    assert found.notes[-4:] == (
        "The column 'note' has 4 different texts, too many for 0/1 columns, and was left out.",
        "The column 'empty' is empty and was left out.",
        "1 node without any value: the features are zeros.",
        "5 missing values in 2 columns ('age', 'ok') filled with the mean of the column, or with 0 in columns of 0 and "
        "1.",
    )


def test_nodes_of_the_edges_without_features_and_the_other_way_round(folder: Path) -> None:
    Path("nodes.csv").write_text("id,size,class\nz,1,x\nb,2,y\na,3,x\n")
    found = read_graph("edges.csv", "nodes.csv", label="class")
    assert found.ids.tolist() == ["z", "b", "a", "c", "d"]
    assert found.data.x.view(-1).tolist() == [1, 2, 3, 0, 0]
    assert found.data.y.tolist() == [0, 1, 0, -1, -1]
    assert found.num_edges == 3
    assert "2 nodes of the edges not in nodes.csv ('c', 'd'): features are zeros and labels missing." in found.notes
    assert "1 node of nodes.csv has no edge ('z')." in found.notes


def test_repeated_rows_are_dropped(folder: Path) -> None:
    Path("nodes.csv").write_text(NODES + "a,1.5,x\n")
    found = read_graph("edges.csv", "nodes.csv", label="class")
    assert found.ids.tolist() == list("abcd")
    assert "1 repeated row of nodes.csv dropped." in found.notes


def test_whole_numbers_as_labels(folder: Path) -> None:
    Path("nodes.csv").write_text("id,f,y\na,1,10\nb,1,9\nc,1,-1\nd,1,\n")
    found = read_graph("edges.csv", "nodes.csv", label="y")
    assert found.classes.tolist() == [9, 10]
    assert found.data.y.tolist() == [1, 0, -1, -1]
    Path("nodes.csv").write_text("id,f,y\na,1,010\nb,1,9\nc,1,9\nd,1,\n")
    assert read_graph("edges.csv", "nodes.csv", label="y").classes.tolist() == ["010", "9"]


def test_a_table_without_a_header(folder: Path) -> None:
    """As the .content files of citation graphs: id, 0/1 features, label."""
    Path("cora.content").write_text("31336 0 1 1 Neural\n1061127 1 0 0 Rules\n1106406 0 0 1 Rules\n")
    Path("cora.cites").write_text("31336 1061127\n1061127 1106406\n")
    found = read_graph("cora.cites", "cora.content", label="5")
    assert found.ids.tolist() == [31336, 1061127, 1106406]
    assert found.data.x.tolist() == [[0, 1, 1], [1, 0, 0], [0, 0, 1]]
    assert found.classes.tolist() == ["Neural", "Rules"]


def test_a_graph_without_features(folder: Path) -> None:
    found = read_graph("edges.csv")
    assert found.feature_names == ()
    assert torch.equal(found.data.x, torch.eye(4))
    Path("labels.csv").write_text("id,class\na,x\nc,y\n")
    found = read_graph("edges.csv", "labels.csv", label="class")
    assert found.feature_names == ()
    assert torch.equal(found.data.x, torch.eye(4))
    assert found.data.y.tolist() == [0, 1, -1, -1]


def test_the_identity_of_many_nodes_is_sparse(folder: Path) -> None:
    pd.DataFrame({"u": range(5000), "v": range(1, 5001)}).to_csv("path.csv", index=False)
    x = read_graph("path.csv").data.x
    assert x.layout == torch.sparse_coo
    assert torch.equal(x.to_dense(), torch.eye(5001))


def test_archives(folder: Path) -> None:
    adj = sp.csr_array(np.array([[0, 1, 0], [0, 0, 2], [0, 0, 0.0]]))
    truth = named_graph(adj)
    for name in ("csr", "csc", "coo"):
        sp.save_npz(f"{name}.npz", adj.asformat(name))
        assert torch.equal(read_graph(f"{name}.npz").data.edge_weight, truth.data.edge_weight)
    np.savez(
        "data.npz", edge_index=[[0, 1], [1, 2]], x=np.ones((4, 2)), y=[1, 0, -1, 1], classes=["cat", "dog"],
        ids=[10, 20, 30, 40], feature_names=["p", "q"],
    )  # fmt: skip
    found = read_graph("data.npz")
    assert found.ids.tolist() == [10, 20, 30, 40]
    assert found.feature_names == ("p", "q")
    assert found.labels().tolist() == ["dog", "cat", None, "dog"]
    assert found.edge_list().to_numpy().tolist() == [[10, 20], [20, 30]]
    parts = {f"adj_{part}": getattr(adj, part) for part in ("data", "indices", "indptr", "shape")}
    features = sp.csr_array(np.eye(3))
    parts |= {f"attr_{part}": getattr(features, part) for part in ("data", "indices", "indptr", "shape")}
    np.savez("attacked.npz", labels=[0, 1, 0], **parts)
    found = read_graph("attacked.npz")
    assert torch.equal(found.data.x, torch.eye(3))
    assert found.data.y.tolist() == [0, 1, 0]
    assert len(found.feature_names) == 3
    sp.save_npz("x.npz", features)
    assert torch.equal(read_graph("csr.npz", "x.npz").data.x, torch.eye(3))
    np.save("x.npy", np.eye(3))
    assert torch.equal(read_graph("csr.npz", "x.npy").data.x, torch.eye(3))


def test_pickled_objects_are_never_loaded(folder: Path) -> None:
    class Trap:
        def __reduce__(self):
            return Path.touch, (Path("sprung"),)

    np.savez("trap.npz", edge_index=np.array([[Trap()], [Trap()]], dtype=object))
    np.save("trap.npy", np.array([Trap()], dtype=object))
    with pytest.raises(DataCorrupt, match=r"The array edge_index in trap\.npz is damaged"):
        read_graph("trap.npz")
    with pytest.raises(DataCorrupt, match="damaged or not a NumPy array"):
        read_graph("edges.csv", "trap.npy")
    assert not Path("sprung").exists()


GRAPHML = """<?xml version="1.0"?><graphml xmlns="http://graphml.graphdrawing.org/xmlns">
<key id="w" for="edge" attr.name="weight" attr.type="double"/><key id="s" for="node" attr.name="size" attr.type="int"/>
<key id="k" for="node" attr.name="kind" attr.type="string"/>
<graph edgedefault="undirected">
<node id="7"><data key="s">3</data><data key="k">p</data></node><node id="5"><data key="s">4</data></node>
<node id="6"><data key="s">5</data><data key="k">q</data></node>
<edge source="7" target="5"><data key="w">0.5</data></edge><edge source="5" target="6"/></graph></graphml>"""


def test_graphml(folder: Path) -> None:
    Path("g.graphml").write_text(GRAPHML)
    found = read_graph("g.graphml", label="kind")
    assert found.ids.tolist() == [7, 5, 6]
    assert found.data.x.view(-1).tolist() == [3, 4, 5]
    assert found.data.y.tolist() == [0, -1, 1]
    assert found.edge_list().to_numpy().tolist() == [[7, 5, 0.5], [5, 6, 1]]
    Path("other.csv").write_text("id,f\n5,1\n6,2\n7,3\n")
    assert read_graph("g.graphml", "other.csv").data.x.view(-1).tolist() == [3, 1, 2]


def write(name: str, content: str | bytes) -> None:
    Path(name).write_bytes(content.encode() if isinstance(content, str) else content)


def npz(**arrays) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


# files → the error, and words of its sentence; e and n are edges and nodes
BAD: dict[str, tuple[dict[str, str | bytes], type[AsgnnError], str]] = {
    "no file": ({"e": b""}, DataCorrupt, r"^e is empty\.$"),
    "only spaces": ({"e": " \n\n "}, DataCorrupt, "e is empty"),
    "only comments": ({"e": "# nothing\n"}, DataCorrupt, "e is empty"),
    "only a header": ({"e": "source,target\n"}, DataCorrupt, "e has a header but no edges"),
    "one column": ({"e": "a\nb\n"}, GraphError, "e has 1 column; a list of edges has two or more"),
    "missing end": ({"e": "source,target\na,b\nb,\n"}, GraphError, "e, line 3, column 'target': the id is empty"),
    "missing end, spaces": ({"e": "1 2\n3\n"}, DataCorrupt, "e, line 2: there is 1 column, but 2 in the first line"),
    "too many cells": ({"e": "source,target\n\na,b\na,b,c\n"}, DataCorrupt, "e, line 4: there are 3 columns, but 2"),
    "too few cells": ({"e": "source,target,weight\na,b,1\na,b\n"}, DataCorrupt, "e, line 3: there are 2 columns"),
    "open quote": ({"e": 'source,target\na,"b\nb,c\n'}, DataCorrupt, "e"),
    "text as weight": (
        {"e": "# c\nsource,target,weight\na,b,1\n\nb,c,heavy\n"},
        GraphError,
        "e, line 5, column 'weight': the weight 'heavy' is not a number from 0 up",
    ),
    "negative weight": ({"e": "a b 1\nb c -1\n"}, GraphError, "e, line 2, column '3': the weight '-1' is not"),
    "infinite weight": ({"e": "a b 1\nb c inf\n"}, GraphError, "e, line 2, column '3': the weight 'inf' is not"),
    "zero bytes": ({"e": b"a,b\x00\n"}, DataCorrupt, "not a text file"),
    "a spreadsheet": ({"e.xlsx": b"PK\x03\x04\x14\x00\x81\x8d"}, DataCorrupt, "save a spreadsheet as CSV"),
    "UTF-16 without its mark": ({"e": EDGES.encode("utf-16-le")}, DataCorrupt, "name the encoding"),
    "UTF-32": ({"e": EDGES.encode("utf-32")}, DataCorrupt, "e contains zero bytes"),
    "JSON of records": ({"e.json": '[{"source": "a", "target": "b"}]'}, DataCorrupt, "e.json is JSON, which"),
    "JSON of columns": ({"e": '{"source": ["a"], "target": ["b"]}'}, DataCorrupt, "e is JSON, which is not read"),
    "JSON of lists": ({"e": "[[1, 2], [2, 3]]"}, DataCorrupt, "e is JSON, which is not read"),
    "unusual separator": ({"e": "a~b\nb~c\n"}, GraphError, "two or more; name the separator if it is an unusual one"),
    "unknown encoding": ({"e": b"a,b\nc,\x81\xff\n"}, DataCorrupt, "e, line 2: the encoding is neither UTF-8 nor"),
    "cut gzip": ({"e": gzip.compress(EDGES.encode())[:-9]}, DataCorrupt, "e is a damaged gzip file"),
    "Matrix Market": ({"e": "%%MatrixMarket matrix\n"}, DataCorrupt, "Matrix Market"),
    "two names": ({"e": "source,target,target\na,b,c\n"}, DataCorrupt, "more than one column 'target'"),
    "text in a number column": (
        {"n": "id,size,class\na,1,x\nb,two,y\nc,3,x\nd,4,x\n"},
        GraphError,
        "n, line 3, column 'size': 'two' is not a number",
    ),
    "text after an empty line": (
        {"n": "id,size,class\n\n\na,1,x\nb,2,y\n\nc,3.1.2,x\nd,4,x\n"},
        GraphError,
        "n, line 7, column 'size': '3.1.2' is not a number",
    ),
    "text after a line break in quotes": (
        {"n": 'id,note,size,class\na,"one\ntwo",1,x\nb,b,2,y\nc,c,x,x\nd,d,4,x\n'},
        GraphError,
        "n, line 5, column 'size': 'x' is not a number",
    ),
    "infinite feature": ({"n": "id,size,class\na,1,x\nb,inf,y\n"}, GraphError, "n, line 3, column 'size': inf is too"),
    "too large a feature": ({"n": "id,size,class\na,1e39,x\nb,1,y\n"}, GraphError, "n, line 2, column 'size': 1e.39"),
    "duplicate id": (
        {"n": NODES + "b,7,y\n"},
        GraphError,
        "n, line 6, column 'id': the id 'b' has another row with other values, line 3",
    ),
    "empty id": ({"n": "id,size,class\na,1,x\n,2,y\n"}, GraphError, "n, line 3, column 'id': the id is empty"),
    "other ids": (
        {"n": "id,size,class\n1,1,x\n2,2,y\n"},
        GraphError,
        r"No id of e \('a', 'b', …\) is in the column 'id' of n \('1', '2', …\); name the column",
    ),
    "one class": ({"n": "id,size,class\na,1,x\nb,2,x\n"}, GraphError, "n, column 'class': every label is 'x'; "),
    "no labels": ({"n": "id,size,class\na,1,\nb,2,\n"}, GraphError, "n, column 'class': every label is missing"),
    "a class for each node": (
        {"n": "id,size,class\na,1,p\nb,2,q\nc,3,r\n"},
        GraphError,
        "each of the 3 labels is different, so they are not classes",
    ),
    "numbers to predict": (
        {"n": "id,size,class\na,1,1.5\nb,2,1.5\nc,3,2\n"},
        GraphError,
        "n, line 2, column 'class': the label '1.5' is neither a text nor a whole number",
    ),
    "no such label": ({"n": "id,size\na,1\n"}, GraphError, "n has no column 'class'; its columns are 'id', 'size'"),
    "label is the id": ({"n": "class,size\na,1\nb,2\n"}, GraphError, "'class' has the ids, so it cannot be the label"),
    "header of nodes alone": ({"n": "id,size,class\n"}, DataCorrupt, "n has a header but no rows"),
    "cells of nodes": ({"n": "id,size,class\na,1,x\nb,2\n"}, DataCorrupt, "n, line 3: there are 2 columns, but 3"),
    "more cells of nodes": ({"n": "id,size,class\na,1,x\nb,2,y,z\n"}, DataCorrupt, "n, line 3: there are 4 columns"),
    "no archive": ({"e.npz": "text"}, DataCorrupt, "e.npz is damaged or not a NumPy archive"),
    "archive of something else": ({"e.npz": npz(a=[1])}, DataCorrupt, "neither edge_index, edges nor a SciPy matrix"),
    "shape of edges": ({"e.npz": npz(edges=np.ones((3, 3), int))}, DataCorrupt, r"of shape \(2, E\) or \(E, 2\)"),
    "negative node": ({"e.npz": npz(edges=np.array([[0, -1]]))}, DataCorrupt, "the negative number -1"),
    "weights of other edges": (
        {"e.npz": npz(edges=np.array([[0, 1]]), edge_weight=[1, 2])},
        DataCorrupt,
        "one number per edge",
    ),
    "matrix that points outside": (
        {"e.npz": npz(format="csr", data=[1.0], indices=[9], indptr=[0, 1, 1], shape=[2, 2])},
        DataCorrupt,
        "e.npz holds a damaged matrix",
    ),
    "twice the same id": ({"e.npz": npz(edges=np.array([[0, 1]]), ids=["a", "a"])}, DataCorrupt, "an id occurs twice"),
    "no Parquet": ({"e.parquet": "PAR1"}, DataCorrupt, "damaged or not a Parquet file"),
    "no GraphML": ({"e.graphml": "<graphml>"}, DataCorrupt, "damaged or not GraphML"),
    "empty GraphML": ({"e.graphml": ""}, DataCorrupt, "e.graphml is empty"),
    "no nodes": ({"e.graphml": GRAPHML.split("<node")[0] + "</graph></graphml>"}, DataCorrupt, "has no nodes"),
}  # fmt: skip


@pytest.mark.parametrize(("files", "kind", "words"), BAD.values(), ids=BAD.keys())
def test_bad_files_get_one_sentence(files, kind, words: str, folder: Path) -> None:
    Path("e").write_text(EDGES)
    for name, content in files.items():
        write(name, content)
    edges = next((name for name in files if name.startswith("e")), "e")
    with pytest.raises(kind, match=words) as found:
        read_graph(edges, "n", label="class") if "n" in files else read_graph(edges)
    assert str(found.value).endswith(".")
    assert "\n" not in str(found.value)


def test_missing_files_and_wrong_options(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for edges, nodes in (("none.csv", None), ("edges.csv", "none.csv"), ("none.npz", None), ("none.graphml", None)):
        with pytest.raises(DataUnavailable, match=r"There is no file none\."):
            read_graph(edges, nodes)
    for name in ("", ".npz", ".parquet"):
        Path(f"folder{name}").mkdir()
        with pytest.raises(DataUnavailable, match="is a folder, not a file"):
            read_graph(f"folder{name}")
    with pytest.raises(ConfigError, match="no file of features was given"):
        read_graph("edges.csv", label="class")
    with pytest.raises(ConfigError, match="There is no encoding 'klingon'"):
        read_graph("edges.csv", encoding="klingon")
    with pytest.raises(ConfigError, match="The separator must be one character"):
        read_graph("edges.csv", separator="::")
    with pytest.raises(GraphError, match="has no column 'from'; its columns are 'source', 'target'"):
        read_graph("edges.csv", source="from")
    with pytest.raises(GraphError, match="source and target are the same column"):
        read_graph("edges.csv", source="target")
    with pytest.raises(GraphError, match="has no column 'colour'"):
        read_graph("edges.csv", "nodes.csv", ignore=["colour"])
    Path("g.graphml").write_text(GRAPHML)
    monkeypatch.setitem(sys.modules, "networkx", None)
    with pytest.raises(ConfigError, match="Reading GraphML needs networkx"):
        read_graph("g.graphml")


def test_a_bomb_is_not_unpacked(folder: Path) -> None:
    with zipfile.ZipFile("bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("edges.npy", b"\0" * (600 << 20))
    with pytest.raises(DataCorrupt, match="over the limit"):
        read_graph("bomb.npz")


def test_features_by_the_names_that_a_model_knows(folder: Path) -> None:
    Path("nodes.csv").write_text("id,a,b,color\na,1,x,red\nb,2,y,5\nc,3,z,blue\nd,4,w,\n")
    found = read_graph("edges.csv", "nodes.csv", feature_names=["color=blue", "a", "color=green", "color=5"])
    assert found.feature_names == ("color=blue", "a", "color=green", "color=5")
    assert found.data.x.tolist() == [[0, 1, 0, 0], [0, 2, 0, 1], [1, 3, 0, 0], [0, 4, 0, 0]]
    with pytest.raises(GraphError, match="lacks 1 of the model's features: 'height'"):
        read_graph("edges.csv", "nodes.csv", feature_names=["a", "height"])
    assert not read_graph("edges.csv", "nodes.csv", feature_names=[]).has_features


def test_edges_of_a_file_with_features_in_memory(folder: Path) -> None:
    nodes = pd.DataFrame({"size": [1.0, 2, 3, 4], "kind": list("pqpq")}, index=list("abcd"))
    found = read_graph("edges.csv", nodes, label="kind")
    assert found.data.x.view(-1).tolist() == [1, 2, 3, 4]
    assert found.data.y.tolist() == [0, 1, 0, 1]
    assert torch.equal(read_graph("edges.csv", np.eye(4)).data.x, torch.eye(4))
    assert torch.equal(named_graph("edges.csv", nodes["kind"], features=nodes[["size"]]).data.y, found.data.y)
