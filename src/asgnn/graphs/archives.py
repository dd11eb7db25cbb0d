"""Graphs and features in NumPy archives and GraphML files."""

from __future__ import annotations

import io
import re
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data

from asgnn.errors import DataCorrupt
from asgnn.graphs.convert import import_networkx
from asgnn.graphs.named import NamedGraph, named_graph
from asgnn.graphs.sources import MAX_UNPACKED, read_npz
from asgnn.graphs.tables import INTEGER
from asgnn.graphs.text import check_file, content_of, sentence_of

SCIPY = ("data", "indices", "indptr", "shape", "format", "row", "col")
NAMES = {
    "edge_index": ("edge_index", "edges"),
    "edge_weight": ("edge_weight", "edge_weights", "weight"),
    "x": ("x", "features", "node_features"),
    "y": ("y", "labels", "node_labels"),
    "ids": ("ids", "node_ids", "names"),
    "feature_names": ("feature_names",),
    "classes": ("classes", "class_names"),
}


def names_in(path: Path) -> list[str]:
    """Returns the names of the arrays in a NumPy archive, without reading them."""
    check_file(path)
    try:
        with zipfile.ZipFile(path) as archive:
            return [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
    except Exception as cause:  # zipfile raises many types; the cause is always the content
        raise DataCorrupt(f"{path} is damaged or not a NumPy archive: {sentence_of(cause)}.") from cause


def read_archive(path: Path) -> tuple[Any, dict[str, NDArray[Any]]]:
    """Returns the graph of an archive, a matrix or a Data, and the arrays with names."""
    there = names_in(path)
    if "format" in there and "data" in there:
        return _matrix(path, ""), {}
    if "adj_data" in there:
        adj = _matrix(path, "adj_")
        found: dict[str, Any] = {"x": _matrix(path, "attr_")} if "attr_data" in there else {}
        key = next((key for key in NAMES["y"] if key in there), None)
        found |= {} if key is None else {"y": read_npz(path, [key])[key]}
        return adj, found
    chosen = {name: next((key for key in keys if key in there), None) for name, keys in NAMES.items()}
    keys = [key for key in chosen.values() if key is not None]
    if chosen["edge_index"] is None:
        raise DataCorrupt(
            f"{path} contains neither edge_index, edges nor a SciPy matrix; its arrays are "
            f"{', '.join(there) or 'none'}."
        )
    arrays = read_npz(path, keys)
    found = {name: arrays[key] for name, key in chosen.items() if key is not None}
    pairs = found.pop("edge_index")
    if pairs.ndim != 2 or 2 not in pairs.shape or pairs.dtype.kind not in "iu":
        raise DataCorrupt(
            f"{path}: {chosen['edge_index']} must be whole numbers of shape (2, E) or (E, 2); it is {pairs.dtype} of "
            f"shape {pairs.shape}."
        )
    # (2, 2) is read as PyG reads it, unless the name says pairs.
    by_row = pairs.shape[0] != 2 or (pairs.shape[1] == 2 and chosen["edge_index"] == "edges")
    pairs = (pairs if by_row else pairs.T).astype(np.int64)
    nodes = max([int(pairs.max(initial=-1)) + 1, *(len(found[key]) for key in ("x", "y", "ids") if key in found)])
    if pairs.size and pairs.min() < 0:
        raise DataCorrupt(f"{path}: {chosen['edge_index']} contains the negative number {pairs.min()}.")

    graph = Data(edge_index=torch.from_numpy(np.ascontiguousarray(pairs.T)), num_nodes=nodes)
    if "edge_weight" in found:
        weight = found.pop("edge_weight")
        if weight.shape != (len(pairs),) or weight.dtype.kind not in "fiub":
            raise DataCorrupt(f"{path}: edge_weight must have one number per edge; its shape is {weight.shape}.")
        graph.edge_weight = torch.from_numpy(weight.astype(np.float64))
    return graph, found


def _matrix(path: Path, prefix: str) -> Any:
    """Returns a sparse matrix as ``scipy.sparse.save_npz`` writes it; the names of its arrays may have a prefix."""
    arrays = read_npz(path, [f"{prefix}data", f"{prefix}shape"], [f"{prefix}{name}" for name in SCIPY])
    get: dict[str, Any] = {name: arrays.get(f"{prefix}{name}") for name in SCIPY}
    kind = "csr" if get["format"] is None else _word(get["format"])
    shape: Any = tuple(int(size) for size in np.ravel(arrays[f"{prefix}shape"]))
    try:
        if kind == "coo":
            matrix: Any = sp.coo_array((get["data"], (get["row"], get["col"])), shape=shape)
        elif kind in ("csr", "csc"):
            build = sp.csr_array if kind == "csr" else sp.csc_array
            matrix = build((get["data"], get["indices"], get["indptr"]), shape=shape)
            matrix.check_format(full_check=True)
        else:
            raise DataCorrupt(f"{path} holds a matrix of format {kind!r}; save it as csr, csc or coo.")
    except (ValueError, TypeError, IndexError) as cause:
        raise DataCorrupt(f"{path} holds a damaged matrix: {sentence_of(cause)}.") from cause
    return matrix


def _word(array: NDArray[Any]) -> str:
    value = array.item() if array.size == 1 else ""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def with_names(graph: NamedGraph, kept: dict[str, NDArray[Any]], path: Path) -> NamedGraph:
    """Returns the graph of an archive with the features, labels, ids and names that it contains."""
    if "x" in kept:
        graph = named_graph(graph, features=kept["x"])
        said = tuple(note for note in graph.notes if not note.startswith("There are no features"))
        graph = replace(graph, notes=said)
    if "y" in kept:
        graph = named_graph(graph, kept["y"])
    for name, count in (("ids", graph.num_nodes), ("feature_names", len(graph.feature_names))):
        if name in kept and kept[name].shape != (count,):
            raise DataCorrupt(f"{path}: {name} must have {count} entries; its shape is {kept[name].shape}.")
    if "ids" in kept:
        ids = kept["ids"]
        if len(np.unique(ids)) != len(ids):
            raise DataCorrupt(f"{path}: an id occurs twice in ids.")
        graph = replace(graph, ids=ids.astype(object) if ids.dtype.kind in "US" else ids)
    if "feature_names" in kept:
        graph = replace(graph, feature_names=tuple(map(str, kept["feature_names"])))
    if "classes" in kept and len(graph.classes) and graph.classes.dtype.kind == "i":
        names = kept["classes"]
        if names.ndim != 1 or int(graph.classes.max()) >= len(names) or int(graph.classes.min()) < 0:
            raise DataCorrupt(f"{path}: classes has {names.size} names, too few for the labels.")
        labels = [None if label is None else str(names[label]) for label in graph.labels()]
        graph = named_graph(graph, labels)
    return graph


def read_array(path: Path) -> Any:
    """Returns features in the order of the nodes: a .npy array, or a SciPy matrix or the array x of an archive."""
    if path.suffix.lower() == ".npz":
        there = names_in(path)
        if "format" in there:
            return _matrix(path, "")
        key = next((key for key in NAMES["x"] if key in there), None)
        if key is None:
            raise DataCorrupt(f"{path} contains neither x nor features; its arrays are {', '.join(there) or 'none'}.")
        return read_npz(path, [key])[key]
    try:
        return np.load(io.BytesIO(content_of(path)), allow_pickle=False)
    except (ValueError, EOFError, OSError) as cause:
        raise DataCorrupt(f"{path} is damaged or not a NumPy array: {sentence_of(cause)}.") from cause


def read_graphml(path: Path) -> Any:
    networkx = import_networkx("Reading GraphML")
    content = content_of(path)
    if len(content) > MAX_UNPACKED:
        raise DataCorrupt(f"{path} is larger than the limit of {MAX_UNPACKED >> 20} MiB.")
    if not content.strip():
        raise DataCorrupt(f"{path} is empty.")
    try:
        graph = networkx.read_graphml(io.BytesIO(content))
    except Exception as cause:  # the parser and networkx raise many types; the cause is always the content
        raise DataCorrupt(f"{path} is damaged or not GraphML: {sentence_of(cause)}.") from cause
    if graph.number_of_nodes() == 0:
        raise DataCorrupt(f"{path} has no nodes.")
    if all(re.fullmatch(INTEGER, str(node)) for node in graph.nodes):
        graph = networkx.relabel_nodes(graph, {node: int(node) for node in graph.nodes})
    return graph
