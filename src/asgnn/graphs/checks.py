"""One place where a graph is looked at before anything is computed on it.

A graph here is a :class:`torch_geometric.data.Data` with dense float features ``x`` of shape ``(N, F)`` and
an ``edge_index`` of shape ``(2, E)`` that lists every undirected edge in both directions, once each, without
self-loops. Isolated nodes are legal: they only keep their own features. Labels may be missing: see
:func:`labels_of`.
"""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary
from torch_geometric.data import Data

from asgnn.errors import GraphError
from asgnn.graphs.keys import MAX_NODES, sort_keys, to_keys

if TYPE_CHECKING:
    from asgnn.graphs.splits import Split

SPLITS = ("train", "val", "test")
# A label far above any real number of classes is a mistake (an id, a hash) that would only show as an
# out-of-memory error of the last layer.
MAX_CLASSES = 65_536
INTEGERS = {torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.int32, torch.int64}
FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
# The sparse products, SVDs and kernels that the models are made of exist for these alone.
COMPUTED = {torch.float32, torch.float64}


def validate(data: Data, *, need_labels: bool = True, need_split: bool = False) -> None:
    r"""Raises :class:`~asgnn.errors.GraphError` with one sentence if ``data`` is no graph to compute on.

    Labels, weights and masks are checked whenever they are there; the two switches say whether they must be.
    Isolated nodes are allowed, and so are nodes without a label. Time :math:`O(NF + E \log E)`, memory
    :math:`O(NF + E)`.

    Args:
        data: The graph.
        need_labels: Also ask for ``y`` with at least two classes among the labelled nodes.
        need_split: Also ask for ``train_mask``, ``val_mask`` and ``test_mask``, each with a labelled node.
    """
    _check_type(data)
    check_features(getattr(data, "x", None))
    num_nodes = nodes_of(data)
    check_edges(getattr(data, "edge_index", None), num_nodes)
    check_weights(getattr(data, "edge_weight", None), data.edge_index.size(1))
    labels = labels_of(data) if need_labels or getattr(data, "y", None) is not None else None
    if need_labels and labels is not None:
        _check_classes(labels)
    _check_masks(data, num_nodes, need_split, labels)
    _check_devices(data)


def nodes_of(data: Data) -> int:
    """The number of nodes: the rows of ``x``, which ``num_nodes`` must agree with where both are there."""
    _check_type(data)
    x, stated = getattr(data, "x", None), data.get("num_nodes")
    if x is None:
        if stated is None:
            raise GraphError("The graph has neither x nor num_nodes, so its number of nodes is unknown; set data.x.")
        return check_size(stated)
    shape = tuple(_tensor(x, "x", "set data.x to the N×F float features").shape)
    if stated is not None and shape[:1] != (check_size(stated),):
        raise GraphError(f"num_nodes of the graph is {stated}, but x has shape {shape}; correct one of them.")
    return shape[0] if shape else 0


def _check_type(data: Any) -> None:
    if not isinstance(data, Data):
        raise GraphError(f"A graph must be a torch_geometric.data.Data, and this is a {type(data).__name__}.")


def check_size(num_nodes: Any) -> int:
    """The number of nodes as an int; raises unless it is a whole number for which edges have keys."""
    if isinstance(num_nodes, bool) or not isinstance(num_nodes, Integral) or not 0 <= int(num_nodes) <= MAX_NODES:
        raise GraphError(f"num_nodes must be a whole number from 0 to {MAX_NODES}, and is {num_nodes!r}.")
    return int(num_nodes)


def labels_of(data: Data) -> Tensor:
    r"""The class of every node, (N,) int64, with −1 where the label is missing.

    The one place that reads ``data.y``. That may have any integer dtype, or be floats that are whole numbers, and has
    shape (N,) or (N, 1); −1 and NaN mark the nodes without a label. int64 labels of shape (N,) are returned as they
    are and not copied. Time :math:`O(N)`.
    """
    num_nodes = nodes_of(data)
    y = _tensor(getattr(data, "y", None), "y", "set data.y to the N class labels, -1 where one is missing").detach()
    if y.shape not in ((num_nodes,), (num_nodes, 1)):
        raise GraphError(f"y must have shape ({num_nodes},), one label for each node, and has {tuple(y.shape)}.")
    if y.dtype not in INTEGERS | FLOATS:
        raise GraphError(f"y has dtype {_dtype(y)}; class labels must be whole numbers: call .long() on it.")
    y = y.reshape(num_nodes)
    if y.dtype in INTEGERS:
        labels = y.long()
        # int64 has no place for the upper half of uint64, which would come out as negative labels.
        lowest = 0 if y.dtype == torch.uint64 else -1
        outside = (labels < lowest) | (labels >= MAX_CLASSES)
    else:
        missing = y.isnan()
        outside = ~(missing | ((y >= -1) & (y < MAX_CLASSES) & (y == y.floor())))
        labels = torch.where(missing | outside, -1, y).long()
    if bool(outside.any()):
        (at,) = _first(outside)
        raise GraphError(
            f"y[{at}] is {y[at].item()}: classes are whole numbers from 0 to {MAX_CLASSES - 1}, and -1 or NaN marks a "
            "missing label."
        )
    return labels


def num_classes(data: Data) -> int:
    """The number of classes: the largest label and one. A class that no node has may be among them."""
    labels = labels_of(data)
    if not bool((labels >= 0).any()):
        raise GraphError("No node of the graph has a label, so the number of classes is unknown.")
    return int(labels.max()) + 1


def describe(data: Data) -> str:
    """A graph in a few words: its nodes, how many of them have a label, its edges, features and classes."""
    parts = [f"{nodes_of(data):,} nodes"]
    labels = labels_of(data) if getattr(data, "y", None) is not None else None
    if labels is not None and bool((labels < 0).any()):
        parts.append(f"{int((labels >= 0).sum()):,} of them labelled")
    parts += [f"{data.edge_index.size(1) // 2:,} edges", f"{data.x.size(1):,} features"]
    if labels is not None and bool((labels >= 0).any()):
        parts.append(f"{num_classes(data)} classes")
    return ", ".join(parts)


def _tensor(value: Any, name: str, remedy: str) -> Tensor:
    if value is None:
        raise GraphError(f"The graph has no {name}; {remedy}.")
    if not isinstance(value, Tensor):
        raise GraphError(f"{name} is a {type(value).__name__}, not a tensor; {remedy}.")
    if value.layout != torch.strided:
        raise GraphError(f"{name} is a sparse tensor; call .to_dense() on it.")
    if value.is_nested or value.is_meta:
        raise GraphError(f"{name} is a tensor {'of tensors' if value.is_nested else 'without values'}; {remedy}.")
    return value


def _first(mask: Tensor) -> list[int]:
    """The index of the first true entry of a mask that has one."""
    flat = int(mask.flatten().to(torch.uint8).argmax())
    place: list[int] = []
    for size in reversed(mask.shape):
        flat, index = divmod(flat, size)
        place.insert(0, index)
    return place


def check_features(value: Any) -> None:
    """Raises unless ``value`` is N×F finite floats. Time O(NF)."""
    x = _tensor(value, "x", "set data.x to the N×F float features, or use torch.eye(N) where there are none")
    if x.dim() != 2:
        raise GraphError(f"x must have two dimensions, nodes × features, and has shape {tuple(x.shape)}.")
    if x.size(0) == 0:
        raise GraphError(f"The graph has no nodes: x has shape {tuple(x.shape)}.")
    if x.size(1) == 0:
        raise GraphError(f"The nodes have no features: x has shape {tuple(x.shape)}; torch.eye(N) serves.")
    if x.dtype not in COMPUTED:
        real = ".real" if x.is_complex() else ""
        raise GraphError(
            f"x has dtype {_dtype(x)}; the features must be floats of 32 or 64 bits: call {real}.float() on it."
        )
    finite = torch.isfinite(x)
    if not bool(finite.all()):
        row, column = _first(~finite)
        raise GraphError(f"x[{row}, {column}] is {float(x[row, column])}: every feature must be finite.")


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def check_pairs(value: Any, num_nodes: int, name: str = "edge_index") -> Tensor:
    """Raises unless ``value`` is (2, E) int64 numbers of nodes of the graph, and returns it. Time O(E)."""
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
    return edges


def check_edges(value: Any, num_nodes: int, name: str = "edge_index", *, allow_loops: bool = False) -> None:
    r"""Raises unless ``value`` lists undirected edges, both directions once each, and self-loops if allowed.

    ``name`` is what the sentence calls it. Time :math:`O(E \log E)` the first time, then :math:`O(E)`.
    """
    edges = check_pairs(value, num_nodes, name)
    loops = edges[0] == edges[1]
    if not allow_loops and bool(loops.any()):
        (at,) = _first(loops)
        raise GraphError(
            f"{name}[:, {at}] is a self-loop at node {int(edges[0, at])}; asgnn.graphs.undirected drops self-loops."
        )
    if checked_copy(edges, num_nodes) is not None:
        return
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
    mark_checked(edges, num_nodes)


# edge_index → a copy of it and the number of nodes, for tensors that were found to list undirected edges
_CHECKED = WeakTensorKeyDictionary()


def checked_copy(edge_index: Tensor, num_nodes: int) -> Tensor | None:
    """The copy kept of a tensor that was checked before; ``None`` if it was not, or has changed since.

    The contents are compared, so a change in place is seen, also one through a NumPy array that shares the memory.
    """
    copy, nodes = _CHECKED.get(edge_index, (None, 0))
    same = copy is not None and nodes == num_nodes and copy.device == edge_index.device
    return copy if same and torch.equal(copy, edge_index) else None


def mark_checked(edge_index: Tensor, num_nodes: int) -> Tensor:
    """Keep a copy of a tensor that lists undirected edges, for as long as the tensor lives."""
    copy = edge_index.detach().clone()
    _CHECKED[edge_index] = (copy, num_nodes)
    return copy


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
    if weight.dtype not in COMPUTED:
        raise GraphError(f"edge_weight has dtype {_dtype(weight)}; the weights must be floats: call .float() on it.")
    # Written so that NaN, which compares false with everything, is caught too.
    outside = ~((weight >= 0) & (weight <= 1))
    if bool(outside.any()):
        (at,) = _first(outside)
        raise GraphError(f"edge_weight[{at}] is {float(weight[at])}: every weight must lie in [0, 1].")


def _check_classes(labels: Tensor) -> None:
    present = labels[labels >= 0]
    if present.numel() == 0:
        raise GraphError("Every label in y is missing: classification needs labels of at least two classes.")
    if bool((present == present[0]).all()):
        raise GraphError(f"Every label in y is {int(present[0])}: classification needs at least two classes.")


def _check_masks(data: Data, num_nodes: int, needed: bool, labels: Tensor | None) -> None:
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
            chosen = mask.reshape(num_nodes, -1)
            usable = chosen if labels is None else chosen & (labels >= 0).to(mask.device).unsqueeze(1)
            empty = ~usable.any(dim=0)
            if empty.numel() == 0 or bool(empty.any()):
                column = _first(empty)[0] if empty.numel() else 0
                what = "node with a label" if bool(chosen[:, column : column + 1].any()) else "node"
                where = f" in split {column}" if mask.dim() == 2 and empty.numel() else ""
                raise GraphError(f"{name} selects no {what}{where}.")
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


def check_split(split: Split, nodes: int | Data) -> None:
    r"""Raises unless the three parts of ``split`` are non-empty, disjoint sets of nodes of the graph.

    ``nodes`` is their number, or the graph; nodes without a label are then refused, too
    (:func:`~asgnn.graphs.split_of` leaves them out). Time :math:`O(N)`.
    """
    labels = labels_of(nodes).cpu() if isinstance(nodes, Data) else None
    num_nodes = check_size(nodes if labels is None else labels.numel())
    owner = torch.full((num_nodes,), -1, dtype=torch.int64)
    for number, part in enumerate(SPLITS):
        members = _tensor(getattr(split, part, None), part, "a Split holds three int64 tensors of node numbers")
        if members.dim() != 1 or members.dtype != torch.int64:
            raise GraphError(
                f"{part} of the split must be a one-dimensional int64 tensor of node numbers, "
                f"and is {_dtype(members)} of shape {tuple(members.shape)}."
            )
        members = members.cpu()
        if members.numel() == 0:
            raise GraphError(f"The {part} part of the split is empty.")
        outside = (members < 0) | (members >= num_nodes)
        if bool(outside.any()):
            (at,) = _first(outside)
            raise GraphError(
                f"{part}[{at}] of the split is node {int(members[at])}, but the nodes are numbered "
                f"0 to {num_nodes - 1}."
            )
        taken = owner[members] >= 0
        if bool(taken.any()):
            node = int(members[_first(taken)[0]])
            raise GraphError(f"Node {node} is in both the {SPLITS[int(owner[node])]} and the {part} part of the split.")
        owner[members] = number
        if int((owner == number).sum()) != members.numel():
            repeated = torch.bincount(members) > 1
            raise GraphError(f"Node {_first(repeated)[0]} is listed more than once in the {part} part of the split.")
        if labels is not None and bool((labels[members] < 0).any()):
            node = int(members[_first(labels[members] < 0)[0]])
            raise GraphError(
                f"Node {node} in the {part} part of the split has no label; asgnn.graphs.split_of leaves them out."
            )


def node_numbers(nodes: Tensor, num_nodes: int, kind: str = "") -> Tensor:
    """A set of nodes as sorted numbers on the CPU; takes numbers or a mask. ``kind`` names it in the sentences."""
    named = f"{kind} nodes" if kind else "nodes"
    if isinstance(nodes, Tensor) and nodes.dtype == torch.bool and nodes.shape == (num_nodes,):
        nodes = nodes.nonzero().squeeze(1)
    if not isinstance(nodes, Tensor) or nodes.dtype != torch.int64 or nodes.dim() != 1:
        raise GraphError(f"The {named} must be an int64 tensor of node numbers or a bool mask over the nodes.")
    nodes = nodes.cpu().unique()
    if nodes.numel() == 0:
        raise GraphError(f"At least one of the {named} must be given, and there is none.")
    if int(nodes[0]) < 0 or int(nodes[-1]) >= num_nodes:
        wrong = int(nodes[0]) if int(nodes[0]) < 0 else int(nodes[-1])
        raise GraphError(f"The {named} name node {wrong}, but the nodes are numbered 0 to {num_nodes - 1}.")
    return nodes
