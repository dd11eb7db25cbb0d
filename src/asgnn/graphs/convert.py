"""Graphs from and to what other programs keep them in; every road ends in the one form of :mod:`checks`."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Sized
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components
from torch import Tensor
from torch_geometric.data import Data

from asgnn.errors import ConfigError, GraphError
from asgnn.graphs.checks import (
    INTEGERS,
    check_edges,
    check_features,
    check_pairs,
    check_size,
    check_weights,
    labels_of,
    nodes_of,
    validate,
)
from asgnn.graphs.keys import from_keys, to_keys, unique_keys


def undirected(edge_index: Tensor, num_nodes: int) -> Tensor:
    r"""Both directions of every edge, once each, sorted by row then column, without self-loops.

    Time :math:`O(E \log E)`.
    """
    # Checked first: the key of a node that is not there is the key of another edge.
    edges = check_pairs(edge_index, check_size(num_nodes))
    edges = edges[:, edges[0] != edges[1]]
    keys = torch.cat([to_keys(edges, num_nodes), to_keys(edges.flip(0), num_nodes)])
    return from_keys(unique_keys(keys), num_nodes)


def from_edges(x: Any, edges: Any, y: Any = None) -> Data:
    r"""A graph from node features and pairs of node numbers.

    The edges may be directed or not, may repeat and may hold self-loops: the graph is undirected, each edge
    is there once and self-loops are dropped. Time :math:`O(NF + E \log E)`.

    Args:
        x: N×F features: tensor, array, SciPy sparse matrix or nested lists. A float tensor keeps its
            dtype, all else becomes torch's default dtype.
        edges: Pairs ``(u, v)``: any iterable of them, or an E×2 array or tensor (an ``edge_index`` is its
            transpose, so give ``edge_index.t()``).
        y: N integer labels, -1, NaN or None where one is missing; or none at all.
    """
    features = _features(x)
    pairs = _pairs(edges)
    num_nodes = features.size(0)
    outside = ((pairs < 0) | (pairs >= num_nodes)).any(axis=1)
    if outside.any():
        at = int(outside.argmax())
        raise GraphError(
            f"Edge number {at} is {pairs[at, 0]}–{pairs[at, 1]}, but the nodes, the rows of x, "
            f"are numbered 0 to {num_nodes - 1}."
        )
    # Range-checked first: an unsigned number too large for int64 must not wrap round.
    edge_index = torch.from_numpy(np.ascontiguousarray(pairs.astype(np.int64).T))
    data = Data(x=features, edge_index=undirected(edge_index, num_nodes), y=_labels(y))
    validate(data, need_labels=False)
    if data.y is not None:
        data.y = labels_of(data)
    return data


def _features(x: Any) -> Tensor:
    features = _as_tensor(x)
    check_features(features)
    return features


def _as_tensor(x: Any) -> Tensor:
    if x is None:
        raise GraphError("The graph has no x; give N×F features, or numpy.eye(N) where there are none.")
    default = torch.get_default_dtype()
    if isinstance(x, Tensor):
        features = x.to_dense() if x.layout != torch.strided else x
        # What is complex is left as it is for the check to name.
        return features if features.is_floating_point() or features.is_complex() else features.to(default)
    sparse: bool = sp.issparse(x)
    array = x.toarray() if sparse else _array(x, "x")
    if array.dtype.kind not in "fiub":
        raise GraphError(f"x holds {array.dtype} values; the features must be numbers.")
    # NumPy does the conversion, because torch does not take every dtype and byte order of an array.
    with np.errstate(over="ignore"):
        values = array.astype(np.float32 if default == torch.float32 else np.float64)
    if not np.isfinite(values).all() and np.isfinite(array).all():
        raise GraphError(f"x holds {array.flat[np.abs(array).argmax()]}, which is too large for {values.dtype}.")
    return torch.from_numpy(values).to(default)


def _labels(y: Any) -> Tensor | None:
    """The labels as a tensor that :func:`~asgnn.graphs.labels_of` can read, or name what is wrong with."""
    if y is None or isinstance(y, Tensor):
        return y
    if np.ma.isMaskedArray(y):
        y = y.tolist()  # None where the mask is
    array = _array(y, "y", objects=True)
    if array.dtype == object:
        # A list in which None, or the missing value of pandas, stands for a missing label.
        shape = array.shape
        array = _array([-1 if _is_missing(label) else label for label in array.flat], "y").reshape(shape)
    if array.dtype.kind not in "iuf":
        raise GraphError(
            f"y holds {array.dtype} values; class labels must be whole numbers from 0, and -1, NaN or None where one "
            "is missing."
        )
    return torch.from_numpy(array.astype(np.float64 if array.dtype.kind == "f" else f"{array.dtype.kind}8"))


def _is_missing(label: Any) -> bool:
    return label is None or type(label).__name__ == "NAType"


def _array(values: Any, name: str, objects: bool = False) -> NDArray[Any]:
    if isinstance(values, Iterable) and not isinstance(values, Sized):
        values = list(values)
    # NumPy would drop the mask and take the values under it for real ones.
    if np.ma.isMaskedArray(values) and np.ma.getmaskarray(values).any():
        raise GraphError(f"{name} is a masked array with values missing; fill them in.")
    try:
        array = np.asarray(values)
    except ValueError as cause:
        raise GraphError(f"{name} is ragged: its rows have different lengths.") from cause
    except Exception as cause:  # whatever the conversion of a foreign object raises
        raise GraphError(f"{name} is a {type(values).__name__} that NumPy cannot read: {cause}.") from cause
    if array.dtype == object and not objects:
        raise GraphError(f"{name} is ragged or holds something other than numbers.")
    return array


def _pairs(edges: Any) -> NDArray[Any]:
    if isinstance(edges, Tensor):
        if edges.dtype not in INTEGERS and edges.numel():
            raise GraphError(
                f"edges holds {str(edges.dtype).removeprefix('torch.')} values; node numbers must be integers."
            )
        edges = edges.detach().cpu().to_dense().numpy()
    if hasattr(edges, "__array__"):
        edges = _array(edges, "edges", objects=True)
    if not isinstance(edges, np.ndarray) or edges.dtype == object:
        if sp.issparse(edges) or not isinstance(edges, Iterable) or isinstance(edges, str | bytes):
            raise GraphError(f"edges must be pairs of node numbers, and is a {type(edges).__name__}.")
        edges = list(edges)
        for at, pair in enumerate(edges):
            if not isinstance(pair, Collection) or len(pair) != 2 or isinstance(pair, str | bytes | dict | set):
                raise GraphError(f"Edge number {at} is {pair!r}, not a pair of node numbers.")
            if any(isinstance(node, bool) for node in pair):
                raise GraphError(f"Edge number {at} is {pair!r}; node numbers must be integers.")
        if not edges:
            return np.empty((0, 2), dtype=np.int64)
        edges = _array(edges, "edges")
    if edges.size == 0:
        return np.empty((0, 2), dtype=np.int64)
    if edges.ndim != 2 or edges.shape[1] != 2:
        hint = "; give its transpose" if edges.ndim == 2 and edges.shape[0] == 2 else ""
        raise GraphError(f"edges must have shape (E, 2), one pair a row, and has {edges.shape}{hint}.")
    if edges.dtype.kind not in "iu":
        raise GraphError(f"edges holds {edges.dtype} values; node numbers must be integers.")
    return edges


def from_scipy(adj: Any, x: Any, y: Any = None) -> Data:
    r"""A graph from an adjacency matrix: every non-zero entry, in either direction, is an edge.

    The entries' values are not kept, nor is the diagonal. Time :math:`O(NF + E \log E)`.

    Args:
        adj: N×N SciPy sparse matrix or array, or a dense NumPy one.
        x: N×F features, as in :func:`from_edges`.
        y: N integer labels, -1, NaN or None where one is missing; or none at all.
    """
    values: Any = adj if sp.issparse(adj) else _array(adj, "adj")
    if values.dtype.kind not in "fiub":
        raise GraphError(
            f"adj must be a matrix of real numbers, and is a {type(adj).__name__} of {values.dtype} values."
        )
    if len(values.shape) != 2 or values.shape[0] != values.shape[1]:
        raise GraphError(f"adj must be square, and has shape {values.shape}.")
    # SciPy takes fewer dtypes and byte orders than NumPy has.
    matrix = sp.coo_array(values.astype(np.float64) if isinstance(values, np.ndarray) else values)
    features = _features(x)
    if features.size(0) != matrix.shape[0]:
        raise GraphError(
            f"adj is for {matrix.shape[0]} nodes, but x has shape {tuple(features.shape)}: one row a node is needed."
        )
    if not np.isfinite(matrix.data).all():
        at = int((~np.isfinite(matrix.data)).argmax())
        raise GraphError(f"adj[{matrix.row[at]}, {matrix.col[at]}] is {matrix.data[at]}: entries must be finite.")
    # Repeated coordinates add up in SciPy; summed first, so that 1 − 1 is no edge here either.
    matrix.sum_duplicates()
    present = matrix.data != 0
    return from_edges(features, np.stack([matrix.row[present], matrix.col[present]], axis=1), y)


def to_scipy(data: Data) -> sp.csr_array:
    """The N×N adjacency matrix, float32, with ``edge_weight`` where the graph has one and ones elsewhere."""
    check_edges(data.edge_index, nodes_of(data))
    check_weights(data.get("edge_weight"), data.edge_index.size(1))
    return _adjacency(data)


def _adjacency(data: Data) -> sp.csr_array:
    num_nodes = nodes_of(data)
    row, col = data.edge_index.cpu().numpy()
    weight = getattr(data, "edge_weight", None)
    values = np.ones(len(row), np.float32) if weight is None else weight.detach().cpu().float().numpy()
    return sp.csr_array((values, (row, col)), shape=(num_nodes, num_nodes))


def from_networkx(graph: Any, x: Any, y: Any = None) -> Data:
    """A graph from a NetworkX one, directed or not; row i of ``x`` belongs to the i-th of ``graph.nodes``.

    Attributes of nodes and edges are not read.
    """
    try:
        import networkx
    except ImportError as cause:
        raise ConfigError("from_networkx needs networkx, which is not here: pip install networkx.") from cause
    if not isinstance(graph, networkx.Graph):
        raise GraphError(f"graph must be a networkx.Graph, and is a {type(graph).__name__}.")
    features = _features(x)
    if features.size(0) != graph.number_of_nodes():
        raise GraphError(
            f"graph has {graph.number_of_nodes()} nodes, but x has shape {tuple(features.shape)}: "
            f"one row a node is needed."
        )
    number = {node: i for i, node in enumerate(graph.nodes)}
    return from_edges(features, [(number[u], number[v]) for u, v in graph.edges()], y)


def largest_component(data: Data) -> Data:
    r"""The graph of the largest connected component.

    Its nodes keep their order, and their features, labels, masks and weights go with them. Of several largest
    components, the one with the smallest node number is taken. Time :math:`O(NF + E \log E)`.
    """
    validate(data, need_labels=False)
    components, member = connected_components(_adjacency(data), directed=False)
    if components == 1:
        return copy.copy(data)
    largest = np.bincount(member).argmax()
    return data.subgraph(torch.from_numpy(member == largest).to(data.edge_index.device))
