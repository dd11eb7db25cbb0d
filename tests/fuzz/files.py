"""Fuzzing of own graphs: files with unusual or damaged contents, and unusual tables in memory."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import scipy.sparse as sp
import torch
from torch_geometric.data import Data

from asgnn.graphs import NamedGraph, labels_of, named_graph, read_graph, validate
from tests.fuzz.draw import Draw, must

CELLS = (
    "", " ", "0", "1", "-1", "007", "1.0", "2.5", "1,5", "1e400", "inf", "nan", "NA", "None", "true", "a", "é", "\0",
    '"', "a,b", "a;b", "a\tb", "a b", "x" * 200, "#", "-", "2020-01-01", "9" * 30, "=1+1",
)  # fmt: skip


def check_graph(found: NamedGraph) -> None:
    """Checks that a graph is valid and that its parts belong together."""
    if found.num_edges or found.has_features:
        validate(found.data, need_labels=False, sparse=True)
    n = found.num_nodes
    must(found.data.x.size(0) == n, "rows of x")
    must(len(found.feature_names) in (0, found.data.x.size(1)), "names of features")
    must(found.numbers(found.ids).tolist() == list(range(n)), "ids")
    must(len(found.edge_list()) == found.num_edges, "edges")
    if found.data.get("y") is not None:
        must(max(labels_of(found.data).tolist()) < len(found.classes), "labels")
    must(all(note.endswith(".") and "\n" not in note for note in found.notes), f"notes {found.notes}")


def odd_frame(draw: Draw, rows: int, columns: list[str]) -> pd.DataFrame:
    """A table of numbers and texts, with up to three unusual cells."""
    ids = [f"n{i}" for i in range(rows)] if draw.chance(0.8) else list(range(rows))
    frame = pd.DataFrame(
        {
            name: draw.rng.choice(np.array(ids, dtype=object), rows)
            if name in ("source", "target")
            else ids
            if name == "id"
            else draw.rng.choice(["p", "q", "r"], rows)
            if name == "class"
            else draw.rng.random(rows).round(3)
            for name in columns
        }
    ).astype(object)
    for _ in range(draw.count(1, 3) if draw.chance(0.3) else 0):
        frame.iloc[draw.count(0, rows - 1), draw.count(0, len(columns) - 1)] = draw.one(*CELLS, None, 3, 2.5, True)
    if draw.chance(0.1):
        frame = pd.concat([frame, frame.head(2)], ignore_index=True)
    return frame


def text_of(draw: Draw, frame: pd.DataFrame) -> bytes:
    separator = draw.one(",", ",", ";", "\t", "|")
    text: str = frame.to_csv(index=False, sep=separator, header=draw.chance(0.85), quoting=0, escapechar="\\")
    return text.encode(draw.one("utf-8", "utf-8", "utf-8-sig", "utf-16", "latin-1"), errors="replace")


def case_read_graph(draw: Draw) -> None:
    """Reads tables with unusual cells, damaged bytes and unusual options."""
    rows = draw.count(2, 25)
    edges = odd_frame(draw, rows, ["source", "target", *(["weight"] if draw.chance(0.3) else [])])
    nodes = odd_frame(draw, rows, ["id", "f", "g", "class"])
    files = {"e.csv": text_of(draw, edges), "n.csv": text_of(draw, nodes)}
    for name, content in files.items():
        Path(name).write_bytes(draw.damage(content) if draw.chance(0.25) else content)
    options: dict[str, Any] = {}
    if draw.chance(0.15):
        name = draw.one("label", "id", "source", "target", "weight", "header", "separator", "encoding")
        options[name] = draw.one("id", "class", "source", "", "é", ";", "utf-16", "ascii", True, False)
    label = options.pop("label", "class" if draw.chance(0.7) else None)
    features = draw.mostly("n.csv", None, draw.path())
    check_graph(read_graph(draw.mostly("e.csv", draw.path()), features, label=label, **options))


def case_archive(draw: Draw) -> None:
    """Reads archives, matrices, GraphML and Parquet, whole or damaged."""
    rows = draw.count(2, 12)
    u, v = draw.rng.integers(0, rows, (2, draw.count(0, 30)))
    kind = draw.one("npz", "matrix", "graphml", "parquet")
    file = io.BytesIO()
    name = f"e.{'npz' if kind == 'matrix' else kind}"
    if kind == "npz":
        pairs: Any = draw.mostly(np.stack([u, v]), np.stack([u, v], 1), np.stack([u, v]) - 1, u, np.zeros((2, 0)))
        arrays: dict[str, Any] = {"edge_index": pairs}
        if draw.chance(0.5):
            arrays["x"] = draw.mostly(np.ones((rows, 2)), np.ones(rows), np.full((rows, 1), np.nan), ["a"] * rows)
        if draw.chance(0.5):
            arrays["y"] = draw.mostly(np.arange(rows) % 2, np.arange(rows + 1), np.ones((rows, 2)), ["a"] * rows)
        if draw.chance(0.3):
            arrays["ids"] = draw.mostly(np.arange(rows) * 7, ["a"] * rows, np.arange(3), np.ones((rows, rows)))
        np.savez(file, **arrays)
    elif kind == "matrix":
        values = draw.mostly(np.ones(len(u)), -np.ones(len(u)), np.full(len(u), np.inf), np.ones(len(u)) * 1j)
        sp.save_npz(file, sp.csr_array((values, (u, v)), shape=(rows, draw.mostly(rows, rows + 1))))
    elif kind == "graphml":
        graph = nx.Graph(zip(u.tolist(), v.tolist(), strict=True))
        graph.add_nodes_from(range(rows), **draw.one({}, {"f": 1.5}, {"f": "text"}, {"f": 1, "weight": 2}))
        nx.write_graphml(graph, file)
    else:
        odd_frame(draw, rows, ["source", "target"]).astype(str).to_parquet(file)
    content = file.getvalue()
    Path(name).write_bytes(draw.damage(content) if draw.chance(0.5) else content)
    check_graph(read_graph(name))


def case_named_graph(draw: Draw) -> None:
    """Converts unusual objects."""
    rows = draw.count(1, 15)
    dense = draw.rng.integers(0, 3, (rows, rows)).astype(float)
    graph = draw.one(
        lambda d: d.odd_graph(),
        lambda d: sp.csr_array(dense),
        lambda d: dense,
        lambda d: nx.gnp_random_graph(rows, 0.3, seed=1, directed=d.chance(0.5)),
        lambda d: odd_frame(d, rows, ["source", "target"]),
        lambda d: odd_frame(d, rows, ["source", "target", "weight"]),
        lambda d: d.one(None, 3, "x", [], ["a", "b"], {}, np.ones(3), Data(), torch.ones(2, 2)),
    )
    labels = draw.one(
        None, None, ["a", "b"] * rows, np.arange(rows) % 2, [1.5] * rows, {"n0": "a"}, {0: 1}, [None] * rows,
        [True, None] * rows, pd.Series(["a"] * rows), [[1]] * rows, "class", 3, torch.arange(rows), [object()] * rows,
    )  # fmt: skip
    features = draw.one(
        None, None, np.ones((rows, 2)), odd_frame(draw, rows, ["id", "f", "class"]), np.ones(rows), [["a"]] * rows,
        sp.eye_array(rows), pd.DataFrame(index=range(rows)), "nowhere.csv",
    )  # fmt: skip
    if isinstance(labels, list) and draw.chance(0.7):
        labels = labels[:rows]
    check_graph(named_graph(graph, labels, features=features))
