"""Conversion of graphs from and to edge lists, SciPy matrices and NetworkX graphs."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Sized
from dataclasses import dataclass
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
    check_finite,
    check_floats,
    check_pairs,
    check_size,
    check_weights,
    dtype_name,
    labels_of,
    nodes_of,
    validate,
)
from asgnn.graphs.keys import from_keys, to_keys, unique_keys


def undirected(edge_index: Tensor, num_nodes: int) -> Tensor:
    r"""Returns both directions of every edge, once each, sorted by row then column, without self-loops.

    Time :math:`O(E \log E)`.
    """
    # Checked first: an invalid node index would give the key of another edge.
    edges = check_pairs(edge_index, check_size(num_nodes))
    edges = edges[:, edges[0] != edges[1]]
    keys = torch.cat([to_keys(edges, num_nodes), to_keys(edges.flip(0), num_nodes)])
    return from_keys(unique_keys(keys), num_nodes)


@dataclass(frozen=True, eq=False)
class Simplified:
    """Undirected edges and what was dropped to get them.

    Attributes:
        edge_index: (2, E) int64, both directions, sorted by row then column.
        edge_weight: (E,) float64, the same in both directions; ``None`` if none were given.
        loops: The number of self-loops.
        repeated: The number of pairs that are given again in the same direction.
        both_ways: The number of edges that are given in both directions.
        zeros: The number of edges of weight 0.
        unequal: The number of edges that are given with different weights; the largest is taken.
    """

    edge_index: Tensor
    edge_weight: NDArray[np.float64] | None
    loops: int
    repeated: int
    both_ways: int
    zeros: int
    unequal: int


def simplify(pairs: NDArray[np.int64], weight: NDArray[np.float64] | None, num_nodes: int) -> Simplified:
    r"""Returns undirected edges without self-loops, duplicates and edges of weight 0, and the number of each.

    Of several weights of one edge the largest is taken. Time :math:`O(E \log E)`.

    Args:
        pairs: (E, 2) node indices.
        weight: (E,) weights, not negative.
        num_nodes: The number of nodes.
    """
    kept = pairs[:, 0] != pairs[:, 1]
    loops = len(kept) - int(kept.sum())
    zeros = 0
    if weight is not None:
        zeros = int((kept & (weight == 0)).sum())
        kept &= weight > 0
    if not kept.all():
        pairs, weight = pairs[kept], None if weight is None else weight[kept]
    low, high = pairs.min(axis=1, initial=num_nodes), pairs.max(axis=1, initial=-1)
    keys = low * num_nodes + high
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    directed = int(np.count_nonzero(np.diff(np.sort(pairs[:, 0] * num_nodes + pairs[:, 1]), prepend=-1)))
    low, high = keys[starts] // num_nodes, keys[starts] % num_nodes
    row, col = np.concatenate([low, high]), np.concatenate([high, low])
    both = np.argsort(row * num_nodes + col, kind="stable")
    merged, unequal = None, 0
    if weight is not None:
        largest = np.maximum.reduceat(weight[order], starts) if len(starts) else weight[:0]
        smallest = np.minimum.reduceat(weight[order], starts) if len(starts) else weight[:0]
        unequal = int((largest != smallest).sum())
        merged = np.concatenate([largest, largest])[both]
    return Simplified(
        torch.from_numpy(np.stack([row[both], col[both]])),
        merged,
        loops,
        repeated=len(pairs) - directed,
        both_ways=directed - len(starts),
        zeros=zeros,
        unequal=unequal,
    )


def from_edges(x: Any, edges: Any, y: Any = None) -> Data:
    r"""Returns a graph with node features ``x`` and the given edges.

    The graph is undirected: directions, duplicates and self-loops in ``edges`` are dropped.
    Time :math:`O(NF + E \log E)`.

    Args:
        x: N×F features: tensor, array, SciPy sparse matrix or nested lists. A float tensor keeps its dtype, everything
            else is converted to torch's default dtype.
        edges: Pairs ``(u, v)``: any iterable of them, or an E×2 array or tensor (for an ``edge_index``, pass
            ``edge_index.t()``).
        y: N integer labels, with -1, NaN or None for missing ones; or ``None``.
    """
    features = as_features(x)
    pairs = _pairs(edges)
    num_nodes = features.size(0)
    outside = ((pairs < 0) | (pairs >= num_nodes)).any(axis=1)
    if outside.any():
        at = int(outside.argmax())
        raise GraphError(
            f"Edge number {at} is {pairs[at, 0]}–{pairs[at, 1]}, but the nodes (rows of x) are numbered 0 to "
            f"{num_nodes - 1}."
        )
    # After the range check: a large unsigned integer would wrap around in int64.
    edge_index = torch.from_numpy(np.ascontiguousarray(pairs.astype(np.int64).T))
    data = Data(x=features, edge_index=undirected(edge_index, num_nodes), y=_labels(y))
    validate(data, need_labels=False)
    if data.y is not None:
        data.y = labels_of(data)
    return data


def as_features(x: Any) -> Tensor:
    """Returns features of any kind that :func:`from_edges` takes as a checked, dense float tensor."""
    default = torch.get_default_dtype()
    if isinstance(x, Tensor):
        x = x.to_dense() if x.layout != torch.strided else x
        # Complex values are left for the check to reject.
        x = x if x.is_floating_point() or x.is_complex() else x.to(default)
    elif x is not None:
        sparse: bool = sp.issparse(x)
        array = x.toarray() if sparse else _array(x, "x")
        if array.dtype.kind not in "fiub":
            raise GraphError(f"x contains {array.dtype} values; the features must be numbers.")
        # Converted by NumPy, because torch does not support every dtype and byte order.
        with np.errstate(over="ignore"):
            values = array.astype(np.float32 if default == torch.float32 else np.float64)
        if not np.isfinite(values).all() and np.isfinite(array).all():
            raise GraphError(f"x contains {array.flat[np.abs(array).argmax()]}, which is too large for {values.dtype}.")
        x = torch.from_numpy(values).to(default)
    return check_finite(check_floats(x))


def _labels(y: Any) -> Tensor | None:
    """Returns the labels as a tensor for :func:`~asgnn.graphs.labels_of` to check."""
    if y is None or isinstance(y, Tensor):
        return y
    if np.ma.isMaskedArray(y):
        y = y.tolist()  # None for masked entries
    array = _array(y, "y", objects=True)
    if array.dtype == object:
        # None or pandas.NA marks a missing label.
        shape = array.shape
        array = _array([-1 if _is_missing(label) else label for label in array.flat], "y").reshape(shape)
    if array.dtype.kind not in "iuf":
        raise GraphError(
            f"y contains {array.dtype} values; class labels must be whole numbers; use -1, NaN or None if missing."
        )
    return torch.from_numpy(array.astype(np.float64 if array.dtype.kind == "f" else f"{array.dtype.kind}8"))


def _is_missing(label: Any) -> bool:
    return label is None or type(label).__name__ == "NAType"


def _array(values: Any, name: str, objects: bool = False) -> NDArray[Any]:
    if isinstance(values, Iterable) and not isinstance(values, Sized):
        values = list(values)
    # NumPy would drop the mask and use the masked values.
    if np.ma.isMaskedArray(values) and np.ma.getmaskarray(values).any():
        raise GraphError(f"{name} is a masked array with missing values; fill them in.")
    try:
        array = np.asarray(values)
    except ValueError as cause:
        raise GraphError(f"{name} is ragged: its rows have different lengths.") from cause
    except Exception as cause:  # objects may raise anything in their conversion
        raise GraphError(f"{name} is a {type(values).__name__}, which NumPy cannot read: {cause}.") from cause
    if array.dtype == object and not objects:
        raise GraphError(f"{name} is ragged or contains something other than numbers.")
    return array


def _pairs(edges: Any) -> NDArray[Any]:
    if isinstance(edges, Tensor):
        if edges.numel() == 0:
            return np.empty((0, 2), dtype=np.int64)
        if edges.dtype not in INTEGERS:
            raise GraphError(f"edges contains {dtype_name(edges.dtype)} values; node indices must be integers.")
        edges = edges.detach().cpu().to_dense().numpy()
    if hasattr(edges, "__array__"):
        edges = _array(edges, "edges", objects=True)
    if not isinstance(edges, np.ndarray) or edges.dtype == object:
        if sp.issparse(edges) or not isinstance(edges, Iterable) or isinstance(edges, str | bytes):
            raise GraphError(f"edges must be pairs of node indices; it is a {type(edges).__name__}.")
        edges = list(edges)
        for at, pair in enumerate(edges):
            if not isinstance(pair, Collection) or len(pair) != 2 or isinstance(pair, str | bytes | dict | set):
                raise GraphError(f"Edge number {at} is {pair!r}, not a pair of node indices.")
            if any(isinstance(node, bool) for node in pair):
                raise GraphError(f"Edge number {at} is {pair!r}; node indices must be integers.")
        if not edges:
            return np.empty((0, 2), dtype=np.int64)
        edges = _array(edges, "edges")
    if edges.size == 0:
        return np.empty((0, 2), dtype=np.int64)
    if edges.ndim != 2 or edges.shape[1] != 2:
        hint = ", so pass its transpose" if edges.ndim == 2 and edges.shape[0] == 2 else ""
        raise GraphError(f"edges must have shape (E, 2); its shape is {edges.shape}{hint}.")
    if edges.dtype.kind not in "iu":
        raise GraphError(f"edges contains {edges.dtype} values; node indices must be integers.")
    return edges


def from_scipy(adj: Any, x: Any, y: Any = None) -> Data:
    r"""Returns the undirected graph of an adjacency matrix, with an edge for every off-diagonal non-zero entry.

    The values of the entries are dropped. Time :math:`O(NF + E \log E)`.

    Args:
        adj: N×N SciPy sparse matrix or array, or a dense NumPy one.
        x: N×F features, as in :func:`from_edges`.
        y: N integer labels, as in :func:`from_edges`.
    """
    matrix = entries_of(adj)
    features = as_features(x)
    check_rows(features, matrix.shape[0], "adj")
    return from_edges(features, np.stack([matrix.row, matrix.col], axis=1), y)


def entries_of(adj: Any) -> sp.coo_array:
    """Returns the non-zero entries of a square matrix of finite numbers, SciPy or NumPy."""
    values: Any = adj if sp.issparse(adj) else _array(adj, "adj")
    if values.dtype.kind not in "fiub":
        raise GraphError(
            f"adj must be a matrix of real numbers; it is a {type(adj).__name__} of {values.dtype} values."
        )
    if len(values.shape) != 2 or values.shape[0] != values.shape[1]:
        raise GraphError(f"adj must be square; its shape is {values.shape}.")
    # SciPy does not support every dtype and byte order of NumPy.
    matrix = sp.coo_array(values.astype(np.float64) if isinstance(values, np.ndarray) else values)
    if not np.isfinite(matrix.data).all():
        at = int((~np.isfinite(matrix.data)).argmax())
        raise GraphError(f"adj[{matrix.row[at]}, {matrix.col[at]}] is {matrix.data[at]}: every entry must be finite.")
    # SciPy adds up repeated coordinates, so 1 − 1 is not an edge.
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    return matrix


def check_rows(features: Tensor, num_nodes: int, name: str) -> None:
    """Raises unless the features have one row per node."""
    if features.size(0) != num_nodes:
        raise GraphError(
            f"{name} has {num_nodes} nodes, but x has shape {tuple(features.shape)}; give one row per node."
        )


def to_scipy(data: Data) -> sp.csr_array:
    """Returns the N×N adjacency matrix, float32, with the edge weights, or ones if there are none."""
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
    """Returns the undirected graph of a NetworkX graph; row i of ``x`` belongs to the i-th node of ``graph.nodes``.

    Attributes of nodes and edges are ignored.
    """
    networkx = import_networkx("from_networkx")
    if not isinstance(graph, networkx.Graph):
        raise GraphError(f"graph must be a networkx.Graph; it is a {type(graph).__name__}.")
    features = as_features(x)
    check_rows(features, graph.number_of_nodes(), "graph")
    number = {node: i for i, node in enumerate(graph.nodes)}
    return from_edges(features, [(number[u], number[v]) for u, v in graph.edges()], y)


def import_networkx(what: str) -> Any:
    """Returns the package networkx; raises :class:`~asgnn.errors.ConfigError` if it is not installed."""
    try:
        import networkx
    except ImportError as cause:
        raise ConfigError(f"{what} needs networkx; run pip install networkx.") from cause
    return networkx


def largest_component(data: Data) -> Data:
    r"""Returns the largest connected component with its features, labels, masks and weights.

    Nodes keep their order. Among equally large components it is the one with the smallest node index.
    Time :math:`O(NF + E \log E)`.
    """
    validate(data, need_labels=False)
    components, member = connected_components(_adjacency(data), directed=False)
    if components == 1:
        return copy.copy(data)
    largest = np.bincount(member).argmax()
    return data.subgraph(torch.from_numpy(member == largest).to(data.edge_index.device))
