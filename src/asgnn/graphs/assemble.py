"""From edges, features and labels of every kind to a :class:`~asgnn.graphs.NamedGraph`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch_geometric.data import Data

from asgnn.errors import GraphError
from asgnn.graphs.checks import SPLITS, check_pairs, check_size, labels_of, nodes_of, validate
from asgnn.graphs.convert import Simplified, as_features, check_rows, entries_of, simplify
from asgnn.graphs.named import LABEL, NamedGraph
from asgnn.graphs.tables import (
    Table,
    as_ids,
    as_numbers,
    check_different,
    checked_length,
    class_positions,
    clean_ids,
    counted,
    end_columns,
    feature_columns,
    feature_matrix,
    id_column,
    is_a,
    label_column,
    labels_by_id,
    node_words,
    numbered,
    positions_of,
    shown,
    some,
    sorted_ids,
    table_of,
    weight_column,
)

DENSE_IDENTITY = 4_096  # nodes; the dense identity of more would take over 64 MiB


# --- the kinds of graphs --------------------------------------------------------------------------------------------


def of_data(data: Data, labels: Any, features: Any) -> NamedGraph:
    """Returns the graph of a PyG ``Data``; its masks are kept."""
    nodes = nodes_of(data)
    edges = check_pairs(getattr(data, "edge_index", None), nodes).cpu()
    weight = getattr(data, "edge_weight", None)
    if weight is not None:
        if not isinstance(weight, Tensor) or weight.shape != (edges.size(1),):
            raise GraphError(f"edge_weight must have shape ({edges.size(1)},), one weight per column of edge_index.")
        weight = weight.detach().cpu().double().numpy()
    if features is None and getattr(data, "x", None) is not None:
        features = data.x
    if labels is None and getattr(data, "y", None) is not None:
        known = labels_of(data).cpu().numpy()
        labels = known.astype(object)
        labels[known < 0] = None
    ids = np.arange(nodes)
    found = _assemble(ids, edges.t().numpy(), _checked_weights(weight, "edge_weight"), features, labels)
    for part in SPLITS:
        if (mask := getattr(data, f"{part}_mask", None)) is not None:
            found.data[f"{part}_mask"] = mask
    if torch.equal(found.data.edge_index, edges) and data.edge_index.device.type == "cpu":
        found.data.edge_index = data.edge_index  # what is kept with this tensor stays valid
    found.data.to(data.edge_index.device)
    validate(found.data, need_labels=False, sparse=True)
    return found


def of_matrix(adj: Any, labels: Any, features: Any) -> NamedGraph:
    """Returns the graph of a square matrix, whose values are weights."""
    entries = entries_of(adj)
    pairs = np.stack([entries.row, entries.col], axis=1).astype(np.int64)
    weight = _checked_weights(entries.data.astype(np.float64), "The matrix")
    return _assemble(np.arange(entries.shape[0]), pairs, weight, features, labels)


def of_networkx(graph: Any, labels: Any, features: Any) -> NamedGraph:
    """Returns the graph of a NetworkX graph; attributes of nodes are features unless features are given."""
    import pandas as pd

    nodes = list(graph.nodes)
    ids = _object_array(nodes)
    index = pd.Index(ids, tupleize_cols=False)
    ends = list(graph.edges(data="weight", default=None))
    pairs = np.empty((len(ends), 2), dtype=np.int64)
    for side in (0, 1):
        pairs[:, side] = index.get_indexer(pd.Index(_object_array([end[side] for end in ends]), tupleize_cols=False))
    weight = None
    if any(end[2] is not None for end in ends):
        try:
            weight = np.array([1.0 if end[2] is None else end[2] for end in ends], dtype=np.float64)
        except (TypeError, ValueError) as cause:
            raise GraphError(f"The weight of an edge is not a number: {cause}.") from cause
    notes = []
    if features is None:
        frame = _attributes(graph, nodes, index)
        table = Table(frame, "graph", lambda row: f"node {shown(nodes[row])}")
        columns = list(frame.columns)
        if isinstance(labels, str):
            labels_in = table.column(labels)
            columns.remove(labels)
            labels = labels_in.to_numpy(dtype=object)
        elif labels is None and LABEL in columns:
            labels = frame[LABEL].to_numpy(dtype=object)
            columns.remove(LABEL)
            notes.append(f"The attribute {LABEL!r} is taken as the class; name another one to change this.")
        matrix, names, more = feature_matrix(table, columns)
        notes += more
        features = (matrix, tuple(names)) if names else None
    return _assemble(ids, pairs, _checked_weights(weight, "The graph"), features, labels, notes=notes)


def _object_array(values: Sequence[Any]) -> NDArray[Any]:
    """Returns values as an array of ids, also tuples, which NumPy would make a dimension of."""
    kinds = {type(value) for value in values}
    if kinds <= {int}:
        return np.array(values, dtype=np.int64)
    out = np.empty(len(values), dtype=object)
    out[:] = values
    return out


def _attributes(graph: Any, nodes: list[Any], index: Any) -> Any:
    """Returns the attributes of nodes as a DataFrame; an attribute that is a vector becomes several columns."""
    import pandas as pd

    columns: dict[str, list[Any]] = {}
    vectors: dict[str, int] = {}
    for at, (_, attributes) in enumerate(graph.nodes(data=True)):
        for name, value in attributes.items():
            if isinstance(value, list | tuple | np.ndarray | Tensor) and np.ndim(value) == 1:
                if vectors.setdefault(name, len(value)) != len(value):
                    raise GraphError(
                        f"The attribute {name!r} of node {shown(nodes[at])} has {len(value)} numbers, and "
                        f"{vectors[name]} at other nodes."
                    )
                parts = {f"{name}{i}": float(part) for i, part in enumerate(value)}
            else:
                parts = {str(name): value}
            for key, part in parts.items():
                columns.setdefault(key, [None] * len(nodes))[at] = part
    frame = pd.DataFrame({name: pd.Series(values, dtype=object) for name, values in columns.items()})
    return frame.infer_objects() if len(columns) else pd.DataFrame(index=range(len(nodes)))


def of_tables(
    edges: Table,
    features: Any = None,
    labels: Any = None,
    *,
    source: Any = None,
    target: Any = None,
    weight: Any = None,
    headless: bool = False,
) -> NamedGraph:
    """Returns the graph of a table of edges and a table or array of features; see :func:`named_graph`.

    Args:
        edges: The edges.
        features: A :class:`Table`, a DataFrame, or an array in the order of the sorted ids.
        labels: See :func:`named_graph`.
        source, target, weight: The names of columns of the edges; ``None`` for the usual ones.
        headless: Whether the columns of the edges have no names, so that the third of three is the weight.
    """
    said = list(edges.notes)
    ends = end_columns(edges, source, target)
    weighted = weight_column(edges, weight, ends, headless)
    unused = [str(column) for column in edges.frame.columns if column not in (*ends, weighted)]
    if unused:
        said.append(f"{counted(len(unused), 'column')} of the edges not used: {some(unused)}.")
    first, second = clean_ids(edges, ends)
    values = None
    if weighted is not None:
        values = _weights_of(edges, weighted)
    if is_a(features, "pandas", "DataFrame"):
        features = table_of(features, "features")
    if not isinstance(features, Table):
        if edges.text:
            first, second = as_numbers([first, second])
        ids, (u, v) = _numbering([], first, second)
        return _assemble(ids, np.stack([u, v], axis=1), values, features, labels, notes=said)
    said += features.notes
    column = id_column(features)
    (own,) = clean_ids(features, [column])
    keep = check_different(features, own, column)
    if not keep.all():
        said.append(f"{counted(int((~keep).sum()), 'repeated row')} of {features.name} dropped.")
    first, second, own = _same_kind(edges, features, first, second, own)
    known = own[keep]
    ids, (u, v) = _numbering(known, first, second)
    _check_overlap(edges, features, ids, len(known), u, v, first, column)
    lonely = np.setdiff1d(np.arange(len(known)), np.concatenate([u, v]))
    if len(lonely):
        has = "has" if len(lonely) == 1 else "have"
        said.append(f"{counted(len(lonely), 'node')} of {features.name} {has} no edge ({some(ids[lonely])}).")
    kept = replace(features, frame=features.frame[keep], place=_kept_rows(features, keep))
    columns = feature_columns(kept, column, labels if isinstance(labels, str) else None)
    extra = len(ids) - len(known)
    if isinstance(labels, str):
        _check_not_id(kept, labels, column)
        labels = np.concatenate([label_column(kept, labels), np.full(extra, None, dtype=object)])
    matrix, names, more = feature_matrix(kept, columns)
    said += more
    if extra:
        matrix = np.concatenate([matrix, np.zeros((extra, matrix.shape[1]))])
        what = "features are zeros and labels missing" if names else "labels are missing"
        said.append(
            f"{counted(extra, 'node')} of the edges not in {features.name} ({some(ids[len(known) :])}): {what}."
        )
    given = (matrix, tuple(names)) if names else None
    return _assemble(ids, np.stack([u, v], axis=1), values, given, labels, notes=said)


def _check_not_id(table: Table, label: str, column: Any) -> None:
    if label == column:
        raise GraphError(f"{table.name}: the column {label!r} has the ids, so it cannot be the label.")


def _kept_rows(table: Table, keep: NDArray[np.bool_]) -> Callable[[int], str]:
    rows = np.flatnonzero(keep)
    return lambda row: table.place(int(rows[row]))


def _same_kind(edges: Table, features: Table, first: Any, second: Any, own: Any) -> tuple[Any, Any, Any]:
    """Returns the three columns of ids as numbers if all are, else as they are, else as texts."""
    if edges.text and features.text:
        first, second, own = as_numbers([first, second, own])
    elif edges.text or features.text or (own.dtype.kind in "iu") != (first.dtype.kind in "iu"):
        # a text file beside numbers in memory, or numbers beside texts
        texts = [one.astype(str) for one in (first, second, own)]
        first, second, own = as_numbers(texts)
    return first, second, own


def _numbering(known: Any, first: Any, second: Any) -> tuple[NDArray[Any], tuple[NDArray[np.int64], ...]]:
    """Returns all ids, the known ones in front and the others sorted, and the positions of both ends."""
    import pandas as pd

    ends = pd.concat([first, second], ignore_index=True)
    front = as_ids(known)
    places = pd.Index(front, tupleize_cols=False).get_indexer(pd.Index(ends)).astype(np.int64)
    new = places < 0
    ids = front
    if new.any():
        others = sorted_ids(ends[new])
        places[new] = len(front) + pd.Index(others, tupleize_cols=False).get_indexer(pd.Index(ends[new]))
        ids = np.concatenate([front, others]) if len(front) else others
    return ids, (places[: len(first)], places[len(first) :])


def _check_overlap(
    edges: Table, features: Table, ids: NDArray[Any], known: int, u: Any, v: Any, first: Any, column: Any
) -> None:
    """Raises if no end of an edge has a row in the table of features."""
    if len(u) and known and not ((u < known) | (v < known)).any():
        named = "index" if column is None else f"column {str(column)!r}"
        raise GraphError(
            f"No id of {edges.name} ({some(list(first.iloc[:3]), 2)}) is in the {named} of {features.name} "
            f"({some(ids[:3], 2)}); name the column with the ids of the nodes."
        )


def _weights_of(table: Table, column: Any) -> NDArray[np.float64]:
    import pandas as pd

    series = table.column(column).reset_index(drop=True)
    if table.text:
        series = series.str.strip()
    numbers = pd.to_numeric(series, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    wrong = ~(np.isfinite(numbers) & (numbers >= 0))
    if wrong.any():
        row = int(wrong.argmax())
        raise GraphError(f"{table.where(row, column)}: the weight {shown(series.iloc[row])} is not a number from 0 up.")
    return numbers


def _checked_weights(weight: NDArray[np.float64] | None, name: str) -> NDArray[np.float64] | None:
    if weight is not None:
        wrong = ~(np.isfinite(weight) & (weight >= 0))
        if wrong.any():
            raise GraphError(
                f"{name} has the weight {weight[wrong][0]}; every weight must be a finite number from 0 up."
            )
    return weight


# --- assembly -------------------------------------------------------------------------------------------------------


def _assemble(
    ids: NDArray[Any],
    pairs: NDArray[np.int64],
    weight: NDArray[np.float64] | None,
    features: Any,
    labels: Any,
    *,
    notes: Sequence[str] = (),
) -> NamedGraph:
    """Returns the graph of numbered edges.

    Args:
        ids: (N,) the ids.
        pairs: (E, 2) positions in ``ids``.
        weight: (E,) or ``None``.
        features: ``None``, an array, a pair of matrix and names, or a table, whose rows are put into the order of ids.
        labels: ``None``, one per node, or by id; the name of a column if the features are a table.
        notes: Notes so far.
    """
    import pandas as pd

    said = list(notes)
    check_size(len(ids), 1)
    index = pd.Index(ids, tupleize_cols=False)
    if is_a(features, "pandas", "DataFrame"):
        features = table_of(features, "features")
    if isinstance(features, Table):
        features, labels, more = _aligned(features, index, labels)
        said += more
    if isinstance(labels, str):
        raise GraphError(f"The label {labels!r} names a column, but there is no table of features.")
    names: tuple[str, ...] = ()
    if isinstance(features, tuple):
        matrix, names = features
        x = as_features(matrix)
    elif features is not None:
        x = as_features(features)
        check_rows(x, len(ids), "The graph")
        names = numbered(x.size(1))
    else:
        x = identity(len(ids))
        said.append("There are no features: x is the identity, so every node is its own feature.")
    if labels is not None and (given := [name == LABEL or name.startswith(f"{LABEL}=") for name in names]).count(True):
        # labels were given apart: as a feature, this column would give the answer away
        said.append(f"{LABEL!r} is not used as a feature, because labels are given.")
        if all(given):
            x, names = identity(len(ids)), ()
        else:
            x = x[:, ~torch.tensor(given)]
            names = tuple(name for name, own in zip(names, given, strict=True) if not own)
    edges = simplify(pairs, weight, len(ids))
    said += _dropped(edges)
    data = Data(x=x, edge_index=edges.edge_index)
    scale = 1.0
    if edges.edge_weight is not None and edges.edge_weight.size:
        largest = float(edges.edge_weight.max())
        if largest == float(edges.edge_weight.min()):
            if largest != 1:
                said.append(f"Every edge has the same weight, {largest:g}, so weights are not used.")
        else:
            if largest > 1:
                scale = largest
                middle = float(np.median(edges.edge_weight))
                said.append(f"Weights were divided by the largest, {largest:g}; the median weight is {middle:g}.")
            data.edge_weight = torch.from_numpy(edges.edge_weight / scale).to(x.dtype)
    classes: NDArray[Any] = np.empty(0, dtype=object)
    if labels is not None:
        in_order = checked_length(
            labels_by_id(labels, ids, lambda one: positions_of(index, one, "the graph")), len(ids)
        )
        y, classes, more = class_positions(in_order, node_words(ids))
        said += more
        data.y = torch.from_numpy(y)
    return NamedGraph(data, ids, names, classes, tuple(said), scale)


def identity(num_nodes: int) -> Tensor:
    """Returns the features that stand for no features, one column per node; sparse for more than 4,096 nodes."""
    if num_nodes <= DENSE_IDENTITY:
        return torch.eye(num_nodes)
    diagonal = torch.arange(num_nodes).expand(2, -1)
    return torch.sparse_coo_tensor(
        diagonal, torch.ones(num_nodes), (num_nodes, num_nodes), is_coalesced=True, check_invariants=False
    )


def _aligned(table: Table, index: Any, labels: Any) -> tuple[Any, Any, list[str]]:
    """Returns the features of a table in the order of the nodes, the labels in this order, and notes."""
    column = id_column(table)
    (own,) = clean_ids(table, [column])
    keep = check_different(table, own, column)
    if table.text:
        (own,) = as_numbers([own])
    place = positions_of(index, own[keep], "the graph")
    kept = replace(table, frame=table.frame[keep], place=_kept_rows(table, keep))
    columns = feature_columns(kept, column, labels if isinstance(labels, str) else None)
    if isinstance(labels, str):
        _check_not_id(kept, labels, column)
        values, labels = label_column(kept, labels), np.full(len(index), None, dtype=object)
        labels[place] = values
    found, names, more = feature_matrix(kept, columns)
    notes = [*table.notes, *more]
    matrix = np.zeros((len(index), found.shape[1]))
    matrix[place] = found
    if len(place) < len(index):
        notes.append(f"{counted(len(index) - len(place), 'node')} not in {table.name}: features are zeros.")
    return ((matrix, tuple(names)) if names else None), labels, notes


def _dropped(edges: Simplified) -> list[str]:
    """Returns sentences on what was dropped from the edges."""
    count = edges.edge_index.size(1) // 2
    notes = []
    if edges.loops:
        notes.append(f"{counted(edges.loops, 'self-loop')} dropped.")
    if edges.zeros:
        notes.append(f"{counted(edges.zeros, 'edge')} of weight 0 dropped.")
    if edges.repeated:
        notes.append(f"{counted(edges.repeated, 'repeated edge')} dropped.")
    if edges.both_ways and edges.both_ways < count:
        notes.append(
            f"{counted(edges.both_ways, 'edge')} given in both directions, counted once: directions are ignored."
        )
    if edges.unequal:
        notes.append(f"{counted(edges.unequal, 'edge')} with several weights: the largest is used.")
    return notes
