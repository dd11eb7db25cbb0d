"""Removal of suspicious edges from a graph of any kind."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import nn
from torch_geometric.data import Data
from torch_geometric.transforms import BaseTransform

from asgnn.audit.evidence import Array, single_edges
from asgnn.audit.report import Audit
from asgnn.audit.scores import SCORES, Score, edge_scores
from asgnn.errors import ConfigError, GraphError
from asgnn.graphs.named import NamedGraph, named_graph
from asgnn.graphs.tables import clean_ids, end_columns, like_ids, table_of
from asgnn.settings import check_choice, check_count, check_number


def clean(
    graph: Any,
    by: Audit | Score = "combined",
    *,
    number: int | None = None,
    share: float | None = None,
    threshold: float | None = None,
    precision: float | None = None,
    model: nn.Module | None = None,
    temperature: float = 1.0,
) -> Any:
    """Return a copy of the graph without its most suspicious edges; everything else of it is kept.

    Say how many in one of four ways. Edges are undirected: both directions of an edge, and repeated edges, go together.

    Args:
        graph: a PyG ``Data``, a :class:`~asgnn.graphs.NamedGraph`, a SciPy matrix, a NetworkX graph or a pandas edge
            list; the result is of the same kind.
        by: an :class:`Audit` of this graph, or the name of a score (see :func:`~asgnn.audit.edge_scores`).
        number: how many undirected edges to remove.
        share: the share of the edges to remove, in [0, 1].
        threshold: remove the edges with at least this suspicion.
        precision: remove as many edges as possible such that, by their suspicion, at least this share of them is
            expected to be false; only with the score "combined", which is a probability.
        model: a trained model, if ``by`` is the name of a score; "weights" and "disagreement" need it.
        temperature: see :func:`~asgnn.audit.edge_scores`.
    """
    if isinstance(by, Audit):
        if model is not None:
            raise ConfigError("An audit already has scores; give an audit or a model, not both.")
        named = by.graph
        scores = by.edges["suspicion"].to_numpy()
        probability = scores.size == 0 or (scores.min() >= 0 and scores.max() <= 1)
    else:
        check_choice("by", by, SCORES)
        named = named_graph(graph)
        scores = edge_scores(named.data, by, model, temperature=temperature)
        probability = by == "combined"
    if precision is not None and not probability:
        raise ConfigError('precision needs the score "combined": no other score is a probability.')
    order = np.argsort(by.edges["rank"].to_numpy()) if isinstance(by, Audit) else None
    chosen = choose(scores, order, number=number, share=share, threshold=threshold, precision=precision)
    return remove(graph, named, single_edges(named.data)[:, chosen])


def choose(
    scores: Array,
    order: NDArray[np.int64] | None = None,
    *,
    number: int | None = None,
    share: float | None = None,
    threshold: float | None = None,
    precision: float | None = None,
) -> NDArray[np.bool_]:
    """Return which edges to remove, (E,) bool.

    Args:
        scores: (E,) the suspicion of each edge.
        order: (E,) the edges by falling score. Default: of equally suspicious ones, the first.
        number, share, threshold, precision: see :func:`clean`.
    """
    given = {"number": number, "share": share, "threshold": threshold, "precision": precision}
    if sum(value is not None for value in given.values()) != 1:
        raise ConfigError("Give exactly one of number, share, threshold and precision.")
    if order is None:
        order = np.argsort(-scores, kind="stable")
    if number is not None:
        check_count("number", number, 0, max(scores.size, 0))
        count = int(number)
    elif share is not None:
        check_number("share", share, 0, 1)
        count = round(share * scores.size)
    elif threshold is not None:
        check_number("threshold", threshold, -np.inf, np.inf)
        count = int((scores >= threshold).sum())
    else:
        check_number("precision", precision, 0, 1)
        assert precision is not None
        expected = np.cumsum(scores[order]) / np.arange(1, scores.size + 1)
        count = int((expected >= precision).sum())  # the mean of falling numbers falls
    chosen = np.zeros(scores.size, dtype=bool)
    chosen[order[:count]] = True
    return chosen


def remove(graph: Any, named: NamedGraph, edges: NDArray[np.int64]) -> Any:
    """Return a copy of a graph of any kind without undirected edges (2, R), numbered as the nodes of ``named``."""
    if isinstance(graph, NamedGraph):
        return replace(graph, data=_of_data(graph.data, edges))
    if isinstance(graph, Data):
        return _of_data(graph, edges)
    if sp.issparse(graph) or isinstance(graph, np.ndarray):
        return _of_matrix(graph, edges)
    if hasattr(graph, "remove_edges_from"):
        return _of_networkx(graph, named.ids[edges])
    if hasattr(graph, "columns"):
        return _of_table(graph, named, edges)
    raise GraphError(
        "The graph must be a PyG Data, a NamedGraph, a SciPy matrix, a NetworkX graph or a pandas edge list; "
        f"it is a {type(graph).__name__}."
    )


def _hit(row: Array, col: Array, edges: NDArray[np.int64], nodes: int) -> NDArray[np.bool_]:
    """Return which pairs are, in either direction, one of the edges; raises if an edge is not among them."""
    if edges.size and (int(edges.max()) >= nodes):
        raise GraphError(f"The audit has a node {int(edges.max())}, but the graph has {nodes} nodes.")
    keys = np.minimum(row, col) * nodes + np.maximum(row, col)
    wanted = edges[0] * nodes + edges[1]
    absent = ~np.isin(wanted, keys)
    if absent.any():
        u, v = edges[:, absent][:, 0]
        raise GraphError(f"The audit is of another graph: the edge {u}–{v} is not in this one.")
    return np.isin(keys, wanted)


def _of_data(data: Data, edges: NDArray[np.int64]) -> Data:
    row, col = data.edge_index.cpu().numpy()
    keep = ~_hit(row, col, edges, int(data.num_nodes or 0))
    out: Data = data.edge_subgraph(torch.from_numpy(keep).to(data.edge_index.device))
    return out


def _of_matrix(graph: Any, edges: NDArray[np.int64]) -> Any:
    if isinstance(graph, np.ndarray):
        row, col = np.nonzero(graph)
        _hit(row, col, edges, graph.shape[0])
        out = graph.copy()
        out[edges[0], edges[1]] = 0
        out[edges[1], edges[0]] = 0
        return out
    matrix = graph.tocoo()
    keep = ~_hit(matrix.row.astype(np.int64), matrix.col.astype(np.int64), edges, matrix.shape[0])
    kept = type(matrix)((matrix.data[keep], (matrix.row[keep], matrix.col[keep])), shape=matrix.shape)
    return kept.asformat(graph.format)


def _of_networkx(graph: Any, ends: NDArray[Any]) -> Any:
    out = graph.copy()
    for u, v in zip(*ends.tolist(), strict=True):
        found = [(a, b) for a, b in ((u, v), (v, u)) if out.has_edge(a, b)]
        if not found:
            raise GraphError(f"The audit is of another graph: the edge {u}–{v} is not in this one.")
        for a, b in found:
            while out.has_edge(a, b):  # a multigraph has several
                out.remove_edge(a, b)
    return out


def _of_table(table: Any, named: NamedGraph, edges: NDArray[np.int64]) -> Any:
    rows = table_of(table, "edges")
    row, col = (named.numbers(one) for one in like_ids(clean_ids(rows, end_columns(rows)), named.ids))
    return table[~_hit(row, col, edges, named.num_nodes)]


class CleanEdges(BaseTransform):
    """A PyG transform that removes the most suspicious edges of a graph; see :func:`clean`.

    Args:
        score: the name of a score.
        model: a trained model, for the scores that use one.
        temperature: see :func:`~asgnn.audit.edge_scores`.
        number, share, threshold, precision: how many edges to remove; exactly one of them.
    """

    def __init__(
        self,
        score: Score = "combined",
        model: nn.Module | None = None,
        *,
        number: int | None = None,
        share: float | None = None,
        threshold: float | None = None,
        precision: float | None = None,
        temperature: float = 1.0,
    ) -> None:
        check_choice("score", score, SCORES)
        self.score, self.model, self.temperature = score, model, temperature
        self.how = {"number": number, "share": share, "threshold": threshold, "precision": precision}
        if sum(value is not None for value in self.how.values()) != 1:
            raise ConfigError("Give exactly one of number, share, threshold and precision.")

    def forward(self, data: Data) -> Data:
        """Return a copy of the graph without its most suspicious edges."""
        out: Data = clean(copy.copy(data), self.score, model=self.model, temperature=self.temperature, **self.how)  # type: ignore[arg-type]
        return out

    def __repr__(self) -> str:
        (how,) = ((name, value) for name, value in self.how.items() if value is not None)
        return f"{type(self).__name__}({self.score!r}, {how[0]}={how[1]})"
