"""Audits and cleaned graphs of every kind."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from torch_geometric.data import Data

from asgnn.audit import Audit, CleanEdges, audit_graph, clean, edge_scores, single_edges
from asgnn.audit.cleaning import choose
from asgnn.audit.combine import learn
from asgnn.audit.scores import combined_evidence
from asgnn.audit.views import ModelView
from asgnn.errors import ConfigError, GraphError
from asgnn.graphs import named_graph, to_scipy
from asgnn.graphs.named import NamedGraph
from tests.audit.problem import false_edges, planted, trained

IDS = np.array([f"node {i:03d}" for i in range(240)], dtype=object)


@cache
def named() -> NamedGraph:
    """The planted graph with names of nodes and classes."""
    data = planted()
    edges = pd.DataFrame(IDS[data.edge_index.t().numpy()], columns=["source", "target"])
    nodes = pd.DataFrame(data.x.numpy(), index=IDS)
    nodes["kind"] = np.array(["red", "green", "blue"])[data.y.numpy()]
    return named_graph(edges, "kind", features=nodes)


@cache
def audit() -> Audit:
    return audit_graph(named(), trained(), missing=50)


def pairs_of(graph: Any) -> set[frozenset[Any]]:
    """The undirected edges of a graph of any kind, as pairs of positions."""
    if isinstance(graph, NamedGraph):
        graph = graph.data
    if isinstance(graph, Data):
        return {frozenset(pair) for pair in graph.edge_index.t().tolist()}
    if isinstance(graph, nx.Graph):
        return {frozenset((int(u[5:]), int(v[5:]))) for u, v in graph.edges()}
    if isinstance(graph, pd.DataFrame):
        ends = ("source", "target") if "source" in graph else ("src", "dst")
        return {frozenset((int(u[5:]), int(v[5:]))) for u, v in zip(*(graph[end] for end in ends), strict=True)}
    return {frozenset(pair) for pair in zip(*(part.tolist() for part in graph.nonzero()), strict=True)}


def test_the_table_has_every_edge_once() -> None:
    table, row_col = audit().edges, single_edges(named().data)
    assert table["source"].tolist() == IDS[row_col[0]].tolist()
    assert table["target"].tolist() == IDS[row_col[1]].tolist()
    assert sorted(table["rank"]) == list(range(1, len(table) + 1))
    ordered = table.sort_values("rank")["suspicion"].to_numpy()
    assert (np.diff(ordered) <= 0).all()
    assert table["suspicion"].between(0, 1).all()


def test_edges_of_suspicion_one_are_ranked_too() -> None:
    """The rank is that of the density ratio, which the suspicion cuts at 1."""
    view = ModelView(trained(), named().data)
    evidence = combined_evidence(named().data, view)
    columns = evidence.columns(single_edges(named().data), joined=True)
    judge = learn(evidence, columns)
    always = replace(judge, false_share=1e9)
    ratio = judge.log_ratio(columns)
    assert (always.suspicion(ratio) == 1).all()
    np.testing.assert_array_equal(ratio[np.argsort(audit().edges["rank"])], np.sort(ratio))
    table = audit().edges.assign(suspicion=1.0)
    left = clean(named(), replace(audit(), edges=table), number=100)
    assert pairs_of(left) == pairs_of(clean(named(), audit(), number=100))


def test_the_columns_agree_with_the_model() -> None:
    table, data, model = audit().edges, planted(), trained()
    row, col = single_edges(data)
    p = model(data.x, data.edge_index).exp().detach().numpy()
    np.testing.assert_allclose(table["agreement"], (p[row] * p[col]).sum(1), atol=1e-5)
    np.testing.assert_allclose(table["confidence_source"], p[row].max(1), atol=1e-5)
    names = np.array(["blue", "green", "red"])  # sorted, as classes are
    assert named().classes.tolist() == names.tolist()
    assert set(table["class_target"]) <= set(names)
    np.testing.assert_allclose(1 - table["weight_3"], edge_scores(data, "weights", model), atol=1e-6)
    assert "weight_4" not in table
    np.testing.assert_allclose(table["suspicion"], edge_scores(data, "combined", model), atol=1e-9)


def test_missing_edges_are_not_joined_and_mostly_of_one_class() -> None:
    table = audit().missing
    assert len(table) == 50
    u, v = named().numbers(table["source"]), named().numbers(table["target"])
    given = pairs_of(planted())
    assert not {frozenset(pair) for pair in zip(u.tolist(), v.tolist(), strict=True)} & given
    assert table["plausibility"].between(0, 1).all()
    assert (np.diff(table["plausibility"]) <= 0).all()
    y = planted().y.numpy()
    assert (y[u] == y[v]).mean() > 0.8  # a third of random pairs
    assert audit_graph(named(), trained(), missing=0).missing.empty


def test_an_audit_by_another_score() -> None:
    found = audit_graph(named(), trained(), missing=0, score="cosine").edges
    np.testing.assert_allclose(found["suspicion"], edge_scores(planted(), "cosine"), atol=1e-9)


def turned(table: pd.DataFrame) -> pd.DataFrame:
    return table[["target", "source"]].set_axis(["source", "target"], axis=1)


KINDS: dict[str, Any] = {
    "Data": lambda: planted(),
    "NamedGraph": named,
    "csr": lambda: to_scipy(planted()),
    "coo": lambda: sp.coo_array(to_scipy(planted())),
    "lil matrix": lambda: sp.lil_matrix(to_scipy(planted())),
    "array": lambda: to_scipy(planted()).toarray(),
    "networkx": lambda: nx.relabel_nodes(nx.from_scipy_sparse_array(to_scipy(planted())), dict(enumerate(IDS))),
    "digraph": lambda: nx.DiGraph(KINDS["networkx"]()),
    "pandas": lambda: named().edge_list(),
    "pandas, both ways": lambda: pd.concat([named().edge_list(), turned(named().edge_list())]),
    "pandas, other columns": lambda: named().edge_list("src", "dst").assign(kind="a")[["kind", "dst", "src"]],
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_cleaned_alike(kind: str) -> None:
    graph = KINDS[kind]()
    before = pairs_of(graph)
    expected = {frozenset(pair) for pair in single_edges(planted())[:, audit().edges["rank"] > 100].T.tolist()}
    out = clean(graph, audit(), number=100)
    assert type(out) is type(graph)
    assert pairs_of(out) == expected
    assert pairs_of(graph) == before  # the graph given is not changed
    assert len(before) == len(expected) + 100


def test_ids_of_a_table_may_be_numbers_or_their_texts() -> None:
    edges = named_graph(planted()).edge_list()
    found = audit_graph(planted(), trained(), missing=0)
    for kind in (float, str):
        left = clean(edges.astype(kind), found, number=100)
        assert left.astype(float).astype(int).equals(clean(edges, found, number=100))


def test_everything_else_of_a_graph_is_kept() -> None:
    data = planted().clone()
    data.edge_attr = torch.arange(data.num_edges)
    data.train_mask = torch.ones(240, dtype=torch.bool)
    out = clean(data, audit(), share=0.1)
    assert torch.equal(out.edge_index, data.edge_index[:, out.edge_attr])
    assert torch.equal(out.train_mask, data.train_mask)
    table = named().edge_list()
    table["note"] = np.arange(len(table))
    left = clean(table, audit(), number=10)
    assert left["note"].tolist() == left.index.tolist()
    graph = KINDS["networkx"]()
    nx.set_node_attributes(graph, "x", "colour")
    nx.set_edge_attributes(graph, 7, "note")
    smaller = clean(graph, audit(), number=10)
    assert set(nx.get_node_attributes(smaller, "colour").values()) == {"x"}
    assert len(nx.get_edge_attributes(smaller, "note")) == smaller.number_of_edges()


def test_all_copies_of_an_edge_are_removed() -> None:
    multi = nx.MultiGraph(KINDS["networkx"]())
    multi.add_edges_from(list(multi.edges()))
    out = clean(multi, audit(), number=960)
    assert out.number_of_edges() == 0
    assert out.number_of_nodes() == 240


def test_how_many() -> None:
    scores = np.array([0.2, 0.9, 0.5, 0.5, 0.0])
    assert choose(scores, number=2).tolist() == [False, True, True, False, False]
    assert choose(scores, share=0.6).tolist() == [False, True, True, True, False]
    assert choose(scores, threshold=0.5).tolist() == [False, True, True, True, False]
    assert choose(scores, precision=0.65).tolist() == [False, True, True, False, False]  # means .9, .7, .633, …
    assert choose(scores, precision=0.95).sum() == 0
    assert choose(scores, precision=0.0).all()
    assert choose(np.empty(0), share=0.5).size == 0


def test_expected_precision_is_near_the_true_one() -> None:
    chosen = choose(audit().edges["suspicion"].to_numpy(), precision=0.8)
    assert chosen.sum() > 50
    assert false_edges()[chosen].mean() > 0.7


@pytest.mark.parametrize("score", ["combined", "weights", "cosine"])
def test_the_transform_equals_clean(score: str) -> None:
    model = trained() if score != "cosine" else None
    transform = CleanEdges(score, model, share=0.2)  # type: ignore[arg-type]
    out = transform(planted())
    expected = clean(planted(), score, share=0.2, model=model)  # type: ignore[arg-type]
    assert torch.equal(out.edge_index, expected.edge_index)
    assert out.num_edges == 2 * 768
    assert repr(transform) == f"CleanEdges({score!r}, share=0.2)"


BAD = {
    "nothing": (ConfigError, "exactly one of", lambda: clean(planted(), audit())),
    "two": (ConfigError, "exactly one of", lambda: clean(planted(), audit(), number=1, share=0.1)),
    "transform": (ConfigError, "exactly one of", lambda: CleanEdges()),
    "number": (ConfigError, "number must be", lambda: clean(planted(), audit(), number=10_000)),
    "share": (ConfigError, "share must be", lambda: clean(planted(), audit(), share=1.5)),
    "precision of another score": (ConfigError, "precision needs", lambda: clean(planted(), "cosine", precision=0.5)),
    "audit and model": (
        ConfigError,
        "not both",
        lambda: clean(planted(), audit(), number=1, model=trained()),
    ),
    "another graph": (GraphError, "another graph", lambda: clean(planted("words").clone(), _other(), number=900)),
    "smaller graph": (GraphError, "but the graph has 3 nodes", lambda: clean(sp.eye_array(3), audit(), number=900)),
    "a list": (GraphError, "it is a list", lambda: clean([], audit(), number=1)),
}


def _other() -> Audit:
    found = audit()
    edges = planted().edge_index[:, planted().edge_index[0] < planted().edge_index[1]]
    data = planted().clone()
    data.edge_index = torch.cat([(edges + 1) % 240, ((edges + 1) % 240).flip(0)], 1)
    return audit_graph(data, trained(), missing=0) if found else found


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_a_sentence(case: str) -> None:
    kind, message, call = BAD[case]
    with pytest.raises(kind, match=message):
        call()
