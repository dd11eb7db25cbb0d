"""Graphs with the names that their owner gave to nodes, features and classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data

from asgnn.errors import GraphError
from asgnn.graphs.checks import labels_of
from asgnn.graphs.convert import as_features, check_rows, import_networkx
from asgnn.graphs.tables import (
    Table,
    checked_length,
    class_positions,
    counted,
    is_a,
    labels_by_id,
    node_words,
    numbered,
    positions_of,
    some,
    table_of,
)

LABEL = "label"  # the column or attribute with the classes in what a NamedGraph is converted to


@dataclass(frozen=True, eq=False)
class NamedGraph:
    """A graph, the names of its nodes, features and classes, and what was understood when it was read.

    Attributes:
        data: ``x`` (dense, except for the identity of a large graph), ``edge_index`` (both directions, sorted),
            ``edge_weight`` in (0, 1] if the edges have weights, and ``y`` (int64, −1 for a missing label) if there are
            labels.
        ids: (N,) what the owner calls the nodes: int64, or objects.
        feature_names: One name per column of ``x``; empty if there are no features and ``x`` is the identity.
        classes: (C,) the sorted labels; ``y`` holds positions in it. Empty without labels.
        notes: Sentences on what was understood, and what was dropped and why.
        weight_scale: The largest weight that was given, by which all were divided; 1 if all were in [0, 1].
    """

    data: Data
    ids: NDArray[Any]
    feature_names: tuple[str, ...]
    classes: NDArray[Any]
    notes: tuple[str, ...] = ()
    weight_scale: float = 1.0

    @property
    def num_nodes(self) -> int:
        return len(self.ids)

    @property
    def num_edges(self) -> int:
        """The number of undirected edges."""
        return int(self.data.edge_index.size(1)) // 2

    @property
    def has_features(self) -> bool:
        """Whether ``x`` was given; else it is the identity."""
        return len(self.feature_names) > 0

    @cached_property
    def _index(self) -> Any:
        import pandas as pd

        return pd.Index(self.ids)

    def numbers(self, ids: Any) -> NDArray[np.int64]:
        """Returns the positions of nodes by their ids; raises :class:`~asgnn.errors.GraphError` for an unknown id."""
        return positions_of(self._index, ids, "the graph")

    def labels(self) -> NDArray[Any]:
        """Returns the label of every node as the owner wrote it, with ``None`` for a missing one."""
        out = np.full(self.num_nodes, None, dtype=object)
        if len(self.classes):
            y = labels_of(self.data).cpu().numpy()
            out[y >= 0] = self.classes[y[y >= 0]]
        return out

    def edge_list(self, *columns: str) -> Any:
        """Returns a DataFrame with each undirected edge once, and its weight as it was given, if there are weights.

        The edges are the columns of ``edge_index`` with row < column, in this order.

        Args:
            columns: The names of the columns. Default: "source", "target", "weight".
        """
        import pandas as pd

        names = [*columns, *("source", "target", "weight")[len(columns) :]]
        row, col = self.data.edge_index.cpu().numpy()
        once = row < col
        found = {names[0]: self.ids[row[once]], names[1]: self.ids[col[once]]}
        weight = self._given_weights()
        if weight is not None:
            found[names[2]] = weight[once]
        return pd.DataFrame(found)

    def _given_weights(self) -> NDArray[Any] | None:
        weight = self.data.get("edge_weight")
        if weight is None:
            return None
        values: NDArray[Any] = weight.detach().cpu().numpy()
        if self.weight_scale == 1:
            return values
        # The division by the largest weight was rounded in the 8th digit.
        scaled = values.astype(np.float64) * self.weight_scale
        digits = 10.0 ** (5 - np.floor(np.log10(scaled, where=scaled > 0, out=np.zeros_like(scaled))))
        return np.round(scaled * digits) / digits

    def to_scipy(self) -> sp.csr_array:
        """Returns the N×N adjacency matrix with the weights as they were given, or ones."""
        row, col = self.data.edge_index.cpu().numpy()
        weight = self._given_weights()
        values = np.ones(len(row), np.float32) if weight is None else weight
        return sp.csr_array((values, (row, col)), shape=(self.num_nodes, self.num_nodes))

    def to_pandas(self) -> tuple[Any, Any]:
        """Returns two DataFrames: :meth:`edge_list`, and the nodes with features and a column "label" if there is one.

        The ids are the index of the second. ``named_graph(edges, "label", features=nodes)`` gives the graph back.
        """
        import pandas as pd

        x = self.data.x.detach().cpu().numpy() if self.has_features else np.empty((self.num_nodes, 0))
        nodes = pd.DataFrame(x, index=pd.Index(self.ids, name="id"), columns=list(self.feature_names))
        if len(self.classes):
            nodes[LABEL] = pd.Series(self.labels(), index=nodes.index, dtype=object)
        return self.edge_list(), nodes

    def to_networkx(self) -> Any:
        """Returns a ``networkx.Graph`` of the ids, with features and "label" as attributes of nodes, and weights."""
        graph = import_networkx("to_networkx").Graph()
        names = self.feature_names
        rows = self.data.x.detach().cpu().numpy().tolist() if names else [[]] * self.num_nodes
        for node, row, label in zip(self.ids.tolist(), rows, self.labels(), strict=True):
            attributes = dict(zip(names, row, strict=True))
            graph.add_node(node, **attributes) if label is None else graph.add_node(node, **attributes, label=label)
        edges = self.edge_list()
        if len(edges.columns) == 3:
            graph.add_weighted_edges_from(zip(*(edges[name].tolist() for name in edges), strict=True))
        else:
            graph.add_edges_from(zip(*(edges[name].tolist() for name in edges), strict=True))
        return graph

    def with_features(self, names: Sequence[str]) -> NamedGraph:
        """Returns the graph with the features in another order, as a model that was trained on ``names`` needs it.

        A 0/1 column "color=red" of a text column is zero if no node of this graph has the text. Features that are not
        in ``names`` are left out. Raises :class:`~asgnn.errors.GraphError` if a feature is missing.
        """
        names = tuple(names)
        if names == self.feature_names:
            return self
        if not self.has_features or not names:
            had, has = ("features", "none") if names else ("no features", f"{len(self.feature_names)}")
            raise GraphError(f"The model was trained with {had}, and the graph has {has}.")
        place = {name: at for at, name in enumerate(self.feature_names)}
        texts = {name.partition("=")[0] for name in self.feature_names if "=" in name}
        missing = [name for name in names if name not in place and name.partition("=")[0] not in texts]
        if missing:
            raise GraphError(f"The graph lacks {len(missing)} of the model's features: {some(missing)}.")
        at = torch.tensor([place.get(name, -1) for name in names], device=self.data.x.device)
        x = self.data.x[:, at.clamp(min=0)] * (at >= 0)
        extra = [name for name in self.feature_names if name not in set(names)]
        notes = self.notes
        if extra:
            notes += (f"{counted(len(extra), 'feature')} unknown to the model left out: {some(extra)}.",)
        data = self.data.__copy__()
        data.x = x
        return replace(self, data=data, feature_names=names, notes=notes)


def named_graph(graph: Any, labels: Any = None, *, features: Any = None) -> NamedGraph:
    r"""Returns any kind of graph with the names of its nodes, features and classes.

    The result is undirected: self-loops, repeated edges and directions are dropped, and ``notes`` counts them. Weights
    above 1 are divided by the largest. Nodes without features get zeros; without any features ``x`` is the identity.
    Time :math:`O(NF + E \log E)`.

    Args:
        graph: One of

            - a PyG ``Data``, whose nodes are numbered, or a :class:`NamedGraph`;
            - an N×N SciPy matrix or NumPy array, whose values are weights;
            - a NetworkX graph: attributes of nodes are features, "weight" is the weight of an edge;
            - a pandas DataFrame of edges: columns "source" and "target" (or the first two) and "weight", if there is
              one;
            - the path of a file of edges, or the paths of edges and features, see :func:`read_graph`.
        labels: Labels, texts or whole numbers: one per node in order, a dict or Series by id, or the name of an
            attribute or column of the features. None, NaN, "" and −1 are missing.
        features: N×F features in the order of the nodes, or a DataFrame whose index or column "id" holds ids, or a
            path. Nodes then have the order of this table.
    """
    from asgnn.graphs import assemble

    if isinstance(graph, NamedGraph):
        return _changed(graph, labels, features)
    if isinstance(graph, str | PathLike) or (
        isinstance(graph, tuple | list) and graph and all(isinstance(one, str | PathLike) for one in graph)
    ):
        return _of_paths(graph, labels, features)
    if isinstance(features, str | PathLike):
        from asgnn.graphs.read import read_table

        features = read_table(features)
    if isinstance(graph, Data):
        return assemble.of_data(graph, labels, features)
    if sp.issparse(graph) or isinstance(graph, np.ndarray):
        return assemble.of_matrix(graph, labels, features)
    if is_a(graph, "pandas", "DataFrame"):
        return assemble.of_tables(table_of(graph, "edges"), features, labels)
    if is_a(graph, "networkx", "Graph"):
        return assemble.of_networkx(graph, labels, features)
    raise GraphError(
        "The graph must be a PyG Data, a SciPy matrix, a NetworkX graph, a pandas edge list or a path; "
        f"it is a {type(graph).__name__}."
    )


def _of_paths(paths: Any, labels: Any, features: Any) -> NamedGraph:
    from asgnn.graphs.read import read_graph

    files = [paths] if isinstance(paths, str | PathLike) else list(paths)
    if len(files) > 2 or (len(files) == 2 and features is not None):
        raise GraphError(f"A graph has a file of edges and one of features; {len(files)} paths were given.")
    if len(files) == 2:
        features = files[1]
    if isinstance(labels, str) or labels is None:
        return read_graph(files[0], features, label=labels)
    return _changed(read_graph(files[0], features), labels, None)


def _changed(graph: NamedGraph, labels: Any, features: Any) -> NamedGraph:
    """Returns a named graph with other labels or features."""
    if features is not None:
        table = is_a(features, "pandas", "DataFrame") or isinstance(features, Table)
        if table or isinstance(labels, str):
            raise GraphError("A NamedGraph has features; give features as an array in the order of its nodes.")
        x = as_features(features)
        check_rows(x, graph.num_nodes, "graph")
        data = graph.data.__copy__()
        data.x = x
        graph = replace(graph, data=data, feature_names=numbered(x.size(1)))
    if labels is None:
        return graph
    if isinstance(labels, str):
        raise GraphError(f"A NamedGraph has no columns; the label {labels!r} must be chosen when the graph is read.")
    in_order = labels_by_id(labels, graph.ids, graph.numbers)
    y, classes, notes = class_positions(checked_length(in_order, graph.num_nodes), node_words(graph.ids))
    data = graph.data.__copy__()
    data.y = torch.from_numpy(y).to(graph.data.edge_index.device)
    return replace(graph, data=data, classes=classes, notes=(*graph.notes, *notes))
