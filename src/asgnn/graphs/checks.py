"""One place where a graph is looked at before anything is computed on it.

A graph here is a :class:`torch_geometric.data.Data` with dense float features ``x`` of shape ``(N, F)`` and
an ``edge_index`` of shape ``(2, E)`` that lists every undirected edge in both directions, once each, without
self-loops. Isolated nodes are legal: they only keep their own features.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from asgnn.errors import GraphError
from asgnn.graphs.keys import sort_keys, to_keys

if TYPE_CHECKING:
    from asgnn.graphs.splits import Split

SPLITS = ("train", "val", "test")
# A label far above any real number of classes is a mistake (an id, a hash) that would only show as an
# out-of-memory error of the last layer.
MAX_CLASSES = 65_536


def validate(data: Data, *, need_labels: bool = True, need_split: bool = False) -> None:
    r"""Raises :class:`~asgnn.errors.GraphError` with one sentence if ``data`` is no graph to compute on.

    Labels, weights and masks are checked whenever they are there; the two switches say whether they must be.
    Isolated nodes are allowed. Time :math:`O(NF + E \log E)`, memory :math:`O(NF + E)`.

    Args:
        data: The graph.
        need_labels: Also ask for ``y`` with at least two classes.
        need_split: Also ask for ``train_mask``, ``val_mask`` and ``test_mask``, none of them empty.
    """
    if not isinstance(data, Data):
        raise GraphError(f"A graph must be a torch_geometric.data.Data, and this is a {type(data).__name__}.")
    num_nodes = _check_features(getattr(data, "x", None))
    check_edges(getattr(data, "edge_index", None), num_nodes)
    check_weights(getattr(data, "edge_weight", None), data.edge_index.size(1))
    _check_labels(getattr(data, "y", None), num_nodes, need_labels)
    _check_masks(data, num_nodes, need_split)
    _check_devices(data)


def _tensor(value: Any, name: str, remedy: str) -> Tensor:
    if value is None:
        raise GraphError(f"The graph has no {name}; {remedy}.")
    if not isinstance(value, Tensor):
        raise GraphError(f"{name} is a {type(value).__name__}, not a tensor; {remedy}.")
    if value.layout != torch.strided:
        raise GraphError(f"{name} is a sparse tensor; call .to_dense() on it.")
    return value


def _first(mask: Tensor) -> list[int]:
    """The index of the first true entry of a mask that has one."""
    flat = int(mask.flatten().to(torch.uint8).argmax())
    place: list[int] = []
    for size in reversed(mask.shape):
        flat, index = divmod(flat, size)
        place.insert(0, index)
    return place


def _check_features(value: Any) -> int:
    x = _tensor(value, "x", "set data.x to the N×F float features, or use torch.eye(N) where there are none")
    if x.dim() != 2:
        raise GraphError(f"x must have two dimensions, nodes × features, and has shape {tuple(x.shape)}.")
    if x.size(0) == 0:
        raise GraphError(f"The graph has no nodes: x has shape {tuple(x.shape)}.")
    if x.size(1) == 0:
        raise GraphError(f"The nodes have no features: x has shape {tuple(x.shape)}; torch.eye(N) serves.")
    if not x.is_floating_point():
        raise GraphError(f"x has dtype {_dtype(x)}; the features must be floats: call .float() on it.")
    finite = torch.isfinite(x)
    if not bool(finite.all()):
        row, column = _first(~finite)
        raise GraphError(f"x[{row}, {column}] is {float(x[row, column])}: every feature must be finite.")
    return x.size(0)


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def check_edges(value: Any, num_nodes: int, name: str = "edge_index", *, allow_loops: bool = False) -> None:
    r"""Raises unless ``value`` lists undirected edges, both directions once each, and self-loops if allowed.

    ``name`` is what the sentence calls it. Time :math:`O(E \log E)`.
    """
    edges = _tensor(value, name, "build the graph with asgnn.graphs.from_edges")
    if edges.dim() != 2 or edges.size(0) != 2:
        raise GraphError(f"{name} must have shape (2, E), and has {tuple(edges.shape)}.")
    if edges.dtype != torch.int64:
        raise GraphError(f"{name} has dtype {_dtype(edges)}; node numbers must be int64: call .long() on it.")
    outside = (edges < 0) | (edges >= num_nodes)
    if bool(outside.any()):
        _, at = _first(outside.any(dim=0, keepdim=True))
        u, v = edges[:, at].tolist()
        raise GraphError(f"{name}[:, {at}] is the edge {u}–{v}, but the nodes are numbered 0 to {num_nodes - 1}.")
    loops = edges[0] == edges[1]
    if not allow_loops and bool(loops.any()):
        (at,) = _first(loops)
        raise GraphError(
            f"{name}[:, {at}] is a self-loop at node {int(edges[0, at])}; asgnn.graphs.undirected drops self-loops."
        )
    forward = sort_keys(to_keys(edges, num_nodes))
    repeated = forward[1:] == forward[:-1]
    if bool(repeated.any()):
        (at,) = _first(repeated)
        u, v = divmod(int(forward[at]), num_nodes)
        raise GraphError(f"{name} lists the edge {u}→{v} more than once; asgnn.graphs.undirected merges it.")
    backward = sort_keys(to_keys(edges.flip(0), num_nodes))
    different = forward != backward
    if bool(different.any()):
        # Both lists are sorted and free of repeats: at the first difference the smaller key is in one only.
        (at,) = _first(different)
        there, back = int(forward[at]), int(backward[at])
        u, v = divmod(there, num_nodes) if there < back else divmod(back, num_nodes)[::-1]
        raise GraphError(
            f"{name} lists the edge {u}→{v} without its reverse {v}→{u}; asgnn.graphs.undirected adds the reverses."
        )


def check_weights(value: Any, num_edges: int) -> None:
    """Raises unless ``value`` is none, or one float in [0, 1] for each edge."""
    if value is None:
        return
    weight = _tensor(value, "edge_weight", "give one float for each column of edge_index")
    if weight.dim() != 1 or weight.size(0) != num_edges:
        raise GraphError(
            f"edge_weight must have shape ({num_edges},), one weight for each column of edge_index, "
            f"and has {tuple(weight.shape)}."
        )
    if not weight.is_floating_point():
        raise GraphError(f"edge_weight has dtype {_dtype(weight)}; call .float() on it.")
    # Written so that NaN, which compares false with everything, is caught too.
    outside = ~((weight >= 0) & (weight <= 1))
    if bool(outside.any()):
        (at,) = _first(outside)
        raise GraphError(f"edge_weight[{at}] is {float(weight[at])}: every weight must lie in [0, 1].")


def _check_labels(value: Any, num_nodes: int, needed: bool) -> None:
    if value is None and not needed:
        return
    y = _tensor(value, "y", "set data.y to the N int64 class labels")
    if y.dim() != 1 or y.size(0) != num_nodes:
        raise GraphError(f"y must have shape ({num_nodes},), one label for each node, and has {tuple(y.shape)}.")
    if y.dtype != torch.int64:
        raise GraphError(f"y has dtype {_dtype(y)}; class labels must be int64: call .long() on it.")
    outside = (y < 0) | (y >= MAX_CLASSES)
    if bool(outside.any()):
        (at,) = _first(outside)
        raise GraphError(f"y[{at}] is {int(y[at])}: classes are numbered from 0, and there are at most {MAX_CLASSES}.")
    if needed and bool((y == y[0]).all()):
        raise GraphError(f"Every label in y is {int(y[0])}: classification needs at least two classes.")


def _check_masks(data: Data, num_nodes: int, needed: bool) -> None:
    masks: dict[str, Tensor] = {}
    for part in SPLITS:
        name = f"{part}_mask"
        value = getattr(data, name, None)
        if value is None and not needed:
            continue
        mask = _tensor(value, name, "asgnn.graphs.apply_split sets the three masks from a Split")
        if mask.dtype != torch.bool:
            raise GraphError(f"{name} has dtype {_dtype(mask)}; a mask must be bool.")
        # Several splits of one graph lie side by side as columns, as in PyG.
        if mask.dim() not in (1, 2) or mask.size(0) != num_nodes:
            raise GraphError(
                f"{name} must have shape ({num_nodes},), or ({num_nodes}, splits) for several splits, "
                f"and has {tuple(mask.shape)}."
            )
        if needed:
            empty = ~mask.reshape(num_nodes, -1).any(dim=0)
            if empty.numel() == 0 or bool(empty.any()):
                where = f" in split {_first(empty)[0]}" if mask.dim() == 2 and empty.numel() else ""
                raise GraphError(f"{name} selects no node{where}.")
        for other, earlier in masks.items():
            if earlier.shape != mask.shape:
                raise GraphError(
                    f"{other} and {name} have different shapes, {tuple(earlier.shape)} and {tuple(mask.shape)}."
                )
            both = earlier & mask
            if bool(both.any()):
                node, *split = _first(both)
                where = f" of split {split[0]}" if split else ""
                raise GraphError(f"Node {node} is in both {other} and {name}{where}.")
        masks[name] = mask


def _check_devices(data: Data) -> None:
    for name in ("edge_index", "edge_weight", "y", *(f"{part}_mask" for part in SPLITS)):
        value = getattr(data, name, None)
        if value is not None and value.device != data.x.device:
            raise GraphError(
                f"x is on {data.x.device} and {name} on {value.device}; move the graph with data.to(device)."
            )


def check_split(split: Split, num_nodes: int) -> None:
    r"""Raises unless the three parts of ``split`` are non-empty, disjoint sets of nodes of the graph.

    Time :math:`O(N)`.
    """
    owner = torch.full((num_nodes,), -1, dtype=torch.int64)
    for number, part in enumerate(SPLITS):
        nodes = _tensor(getattr(split, part), part, "a Split holds three int64 tensors of node numbers")
        if nodes.dim() != 1 or nodes.dtype != torch.int64:
            raise GraphError(
                f"{part} of the split must be a one-dimensional int64 tensor of node numbers, "
                f"and is {_dtype(nodes)} of shape {tuple(nodes.shape)}."
            )
        nodes = nodes.cpu()
        if nodes.numel() == 0:
            raise GraphError(f"The {part} part of the split is empty.")
        outside = (nodes < 0) | (nodes >= num_nodes)
        if bool(outside.any()):
            (at,) = _first(outside)
            raise GraphError(
                f"{part}[{at}] of the split is node {int(nodes[at])}, but the nodes are numbered 0 to {num_nodes - 1}."
            )
        taken = owner[nodes] >= 0
        if bool(taken.any()):
            node = int(nodes[_first(taken)[0]])
            raise GraphError(f"Node {node} is in both the {SPLITS[int(owner[node])]} and the {part} part of the split.")
        owner[nodes] = number
        if int((owner == number).sum()) != nodes.numel():
            repeated = torch.bincount(nodes) > 1
            raise GraphError(f"Node {_first(repeated)[0]} is listed more than once in the {part} part of the split.")
