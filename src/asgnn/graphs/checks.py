"""Checks of graphs, labels and splits, made once where they enter.

A graph is a :class:`torch_geometric.data.Data` with dense float features ``x`` of shape ``(N, F)`` and an
``edge_index`` of shape ``(2, E)`` that lists every undirected edge in both directions, once each, without self-loops.
Isolated nodes are allowed. Labels may be missing: see :func:`labels_of`.
"""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary
from torch_geometric.data import Data

from asgnn.errors import GraphError
from asgnn.graphs.keys import MAX_NODES, index_dtype, sort_keys, to_keys

if TYPE_CHECKING:
    from asgnn.graphs.splits import Split

SPLITS = ("train", "val", "test")
# A larger label is a mistake (an id, a hash) that would otherwise show as an out-of-memory error in the last layer.
MAX_CLASSES = 65_536
INTEGERS = {torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.int32, torch.int64}
FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
# The sparse products, SVDs and kernels support only these.
COMPUTED = {torch.float32, torch.float64}
BLOCK = 2**24  # values that are checked at a time, so that a check needs little memory of its own


def validate(data: Data, *, need_labels: bool = True, need_split: bool = False, sparse: bool = False) -> None:
    r"""Raises :class:`~asgnn.errors.GraphError` with one sentence if ``data`` is not a valid graph.

    Labels, weights and masks are always checked if present. Time :math:`O(NF + E \log E)`, memory :math:`O(NF + E)`.

    Args:
        data: The graph.
        need_labels: Require ``y`` with at least two classes among the labelled nodes.
        need_split: Require ``train_mask``, ``val_mask`` and ``test_mask``, each with a labelled node.
        sparse: Allow a sparse ``x``, as the identity of a large graph without features is. Models, training and
            evaluation do; attacks and conversions do not.
    """
    _check_type(data)
    x = check_floats(getattr(data, "x", None), sparse=sparse)
    check_finite(x if x.layout == torch.strided else x.detach().to_sparse_coo().coalesce().values())
    num_nodes = nodes_of(data)
    check_edges(getattr(data, "edge_index", None), num_nodes)
    check_weights(getattr(data, "edge_weight", None), data.edge_index.size(1))
    labels = labels_of(data) if need_labels or getattr(data, "y", None) is not None else None
    if need_labels and labels is not None:
        _check_classes(labels)
    _check_masks(data, num_nodes, need_split, labels)
    for name in ("edge_index", "edge_weight", "y", *(f"{part}_mask" for part in SPLITS)):
        value = getattr(data, name, None)
        if value is not None and value.device != data.x.device:
            raise GraphError(
                f"x is on {data.x.device} and {name} on {value.device}; move the graph with data.to(device)."
            )


def nodes_of(data: Data) -> int:
    """Returns the number of nodes: the rows of ``x``, with which a given ``num_nodes`` must agree."""
    _check_type(data)
    x, stated = getattr(data, "x", None), data.get("num_nodes")
    if x is None:
        if stated is None:
            raise GraphError("The graph has neither x nor num_nodes; set data.x.")
        return check_size(stated)
    shape = tuple(_tensor(x, "x", "set data.x to float features of shape (N, F)", sparse=True).shape)
    if stated is not None and shape[:1] != (check_size(stated),):
        raise GraphError(f"num_nodes of the graph is {stated}, but x has shape {shape}; correct one of them.")
    return shape[0] if shape else 0


def _check_type(data: Any) -> None:
    if not isinstance(data, Data):
        raise GraphError(f"The graph must be a torch_geometric.data.Data; it is a {type(data).__name__}.")


def check_size(num_nodes: Any, least: int = 0) -> int:
    """Returns the number of nodes as an int; raises if N² does not fit into int64, which edge keys need."""
    if isinstance(num_nodes, bool) or not isinstance(num_nodes, Integral) or not least <= int(num_nodes) <= MAX_NODES:
        raise GraphError(f"num_nodes must be a whole number from {least} to {MAX_NODES}; it is {num_nodes!r}.")
    return int(num_nodes)


def labels_of(data: Data) -> Tensor:
    r"""Returns the class of every node, (N,) int64, with −1 where the label is missing.

    The only function that reads ``data.y``: integers of any dtype or floats with integer values, of shape (N,) or
    (N, 1), with −1 or NaN for a missing label. int64 labels of shape (N,) are not copied. Time :math:`O(N)`.
    """
    num_nodes = nodes_of(data)
    y = _tensor(getattr(data, "y", None), "y", "set data.y to the N class labels, -1 where one is missing").detach()
    if y.shape not in ((num_nodes,), (num_nodes, 1)):
        raise GraphError(f"y must have shape ({num_nodes},), one label per node; its shape is {tuple(y.shape)}.")
    if y.dtype not in INTEGERS | FLOATS:
        raise GraphError(f"y has dtype {dtype_name(y.dtype)}; class labels must be whole numbers: call .long() on it.")
    y = y.reshape(num_nodes)
    if y.dtype in INTEGERS:
        labels = y.long()
        # The upper half of uint64 becomes negative in int64.
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
    """Returns the largest label plus one; a class in between may have no node."""
    labels = labels_of(data)
    if not bool((labels >= 0).any()):
        raise GraphError("No node of the graph has a label, so the number of classes is unknown.")
    return int(labels.max()) + 1


def describe(data: Data) -> str:
    """Returns a one-line summary: nodes, labelled nodes if not all are, edges, features and classes."""
    parts = [f"{nodes_of(data):,} nodes"]
    labels = labels_of(data) if getattr(data, "y", None) is not None else None
    if labels is not None and bool((labels < 0).any()):
        parts.append(f"{int((labels >= 0).sum()):,} of them labelled")
    parts += [f"{data.edge_index.size(1) // 2:,} edges", f"{data.x.size(1):,} features"]
    if labels is not None and bool((labels >= 0).any()):
        parts.append(f"{num_classes(data)} classes")
    return ", ".join(parts)


def _tensor(value: Any, name: str, remedy: str, sparse: bool = False) -> Tensor:
    if value is None:
        raise GraphError(f"{name} is missing; {remedy}.")
    if not isinstance(value, Tensor):
        raise GraphError(f"{name} is a {type(value).__name__}, not a tensor; {remedy}.")
    if value.is_nested or value.is_meta:
        raise GraphError(f"{name} is a {'nested' if value.is_nested else 'meta'} tensor; {remedy}.")
    if value.layout != torch.strided and not sparse:
        raise GraphError(f"{name} is a sparse tensor; call .to_dense() on it.")
    return value


def _first(mask: Tensor) -> list[int]:
    """Returns the index of the first true entry."""
    index: list[int] = mask.nonzero()[0].tolist()
    return index


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def check_floats(value: Any, shape: str = "(N, F)", *, batched: bool = False, sparse: bool = False) -> Tensor:
    """Returns ``value``; raises unless it is a non-empty float32 or float64 matrix.

    Args:
        value: What was given as ``x``.
        shape: The expected shape, for the error message.
        batched: Allow leading dimensions.
        sparse: Allow sparse layouts.
    """
    x = _tensor(value, "x", f"set it to float features of shape {shape}, or to torch.eye(N) if there are none", sparse)
    if x.dim() < 2 or (x.dim() > 2 and not batched):
        raise GraphError(f"x must have shape {shape}; its shape is {tuple(x.shape)}.")
    if x.numel() == 0:
        raise GraphError(f"x is empty: its shape is {tuple(x.shape)}; use torch.eye(N) if there are no features.")
    if x.dtype not in COMPUTED:
        real = ".real" if x.is_complex() else ""
        raise GraphError(
            f"x has dtype {dtype_name(x.dtype)}; it must be float32 or float64: call {real}.float() on it."
        )
    return x


def check_finite(values: Tensor) -> Tensor:
    """Returns ``values``, a dense x or the stored entries of a sparse one; raises if one is NaN or infinite."""
    rows = max(1, BLOCK * len(values) // max(1, values.numel()))
    for begin in range(0, len(values), rows):
        finite = torch.isfinite(values[begin : begin + rows])
        if not bool(finite.all()):
            first, *rest = _first(~finite)
            at = [begin + first, *rest]
            where = f"x{at} is" if values.dim() > 1 else "x contains"
            raise GraphError(f"{where} {float(values[tuple(at)])}: every feature must be finite.")
    return values


def check_pairs(value: Any, num_nodes: int | None, name: str = "edge_index") -> Tensor:
    """Returns ``value``; raises unless it is (2, E) int64 and, given ``num_nodes``, holds node indices. Time O(E)."""
    edges = _tensor(value, name, "give an int64 tensor of shape (2, E), for instance with asgnn.graphs.from_edges")
    if edges.dim() != 2 or edges.size(0) != 2:
        raise GraphError(f"{name} must have shape (2, E); its shape is {tuple(edges.shape)}.")
    if edges.dtype != torch.int64:
        raise GraphError(f"{name} has dtype {dtype_name(edges.dtype)}; it must be int64: call .long() on it.")
    if num_nodes is None:
        return edges
    outside = (edges < 0) | (edges >= num_nodes)
    if bool(outside.any()):
        (at,) = _first(outside.any(dim=0))
        u, v = edges[:, at].tolist()
        raise GraphError(f"{name}[:, {at}] is the edge {u}–{v}, but the nodes are numbered 0 to {num_nodes - 1}.")
    return edges


def check_edges(value: Any, num_nodes: int, name: str = "edge_index", *, allow_loops: bool = False) -> None:
    r"""Raises unless ``value`` lists undirected edges in both directions, once each.

    ``name`` is its name in the error message. Time :math:`O(E \log E)` the first time, then :math:`O(E)`.
    """
    edges = check_pairs(value, num_nodes, name)
    loops = edges[0] == edges[1]
    if not allow_loops and bool(loops.any()):
        (at,) = _first(loops)
        raise GraphError(
            f"{name}[:, {at}] is a self-loop at node {int(edges[0, at])}; asgnn.graphs.undirected removes self-loops."
        )
    if checked_copy(edges, num_nodes) is not None:
        return
    forward = sort_keys(to_keys(edges, num_nodes))
    repeated = forward[1:] == forward[:-1]
    if bool(repeated.any()):
        (at,) = _first(repeated)
        u, v = divmod(int(forward[at]), num_nodes)
        raise GraphError(f"{name} lists the edge {u}→{v} more than once; asgnn.graphs.undirected removes duplicates.")
    backward = sort_keys(to_keys(edges.flip(0), num_nodes))
    different = forward != backward
    if bool(different.any()):
        # Both lists are sorted without duplicates: at the first difference, the smaller key is in one list only.
        (at,) = _first(different)
        there, back = int(forward[at]), int(backward[at])
        u, v = divmod(there, num_nodes) if there < back else divmod(back, num_nodes)[::-1]
        raise GraphError(
            f"{name} lists the edge {u}→{v} without its reverse {v}→{u}; asgnn.graphs.undirected adds the reverses."
        )
    mark_checked(edges, num_nodes)


# edge_index → a copy of it and the number of nodes, for tensors that passed the check
_CHECKED = WeakTensorKeyDictionary()


def checked_copy(edge_index: Tensor, num_nodes: int) -> Tensor | None:
    """Returns the copy kept of a tensor that passed the check; ``None`` if it did not, or has changed since.

    Compares the contents, so changes in place are detected, even through a NumPy array that shares the memory.
    """
    copy, nodes = _CHECKED.get(edge_index, (None, 0))
    same = copy is not None and nodes == num_nodes and copy.device == edge_index.device
    return copy if same and _equal(copy, edge_index) else None


def _equal(copy: Tensor, edge_index: Tensor) -> bool:
    """Returns whether two tensors of integers are equal, in parts, because their dtypes may differ."""
    if copy.shape != edge_index.shape:
        return False
    parts = zip(copy.split(BLOCK, dim=1), edge_index.split(BLOCK, dim=1), strict=True)
    return all(torch.equal(a.long(), b) for a, b in parts)


def mark_checked(edge_index: Tensor, num_nodes: int) -> Tensor:
    """Returns a copy of a tensor that lists undirected edges, and keeps it as long as the tensor lives.

    The copy is int32 if that holds all nodes, because it takes half the memory.
    """
    copy = edge_index.detach().to(index_dtype(num_nodes), copy=True)
    _CHECKED[edge_index] = (copy, num_nodes)
    return copy


def check_weights(value: Any, num_edges: int, *, per_trial: bool = False) -> None:
    """Raises unless ``value`` is ``None`` or one float in [0, 1] per edge; with ``per_trial``, per edge and trial."""
    if value is None:
        return
    weight = _tensor(value, "edge_weight", "give one float per column of edge_index")
    if weight.dim() not in ((1, 2) if per_trial else (1,)) or weight.size(0) != num_edges:
        raise GraphError(
            f"edge_weight must have shape ({num_edges},), one weight per column of edge_index; "
            f"its shape is {tuple(weight.shape)}."
        )
    if weight.dtype not in COMPUTED:
        raise GraphError(
            f"edge_weight has dtype {dtype_name(weight.dtype)}; it must be float32 or float64: call .float() on it."
        )
    # Negated, because NaN compares false with everything.
    outside = ~((weight >= 0) & (weight <= 1))
    if bool(outside.any()):
        at = tuple(_first(outside))
        where = ", ".join(map(str, at))
        raise GraphError(f"edge_weight[{where}] is {float(weight[at])}: every weight must be in [0, 1].")


def _check_classes(labels: Tensor) -> None:
    present = labels[labels >= 0]
    if present.numel() == 0:
        raise GraphError("Every label in y is missing; classification needs labels of at least two classes.")
    if bool((present == present[0]).all()):
        raise GraphError(f"Every label in y is {int(present[0])}; classification needs at least two classes.")


def _check_masks(data: Data, num_nodes: int, needed: bool, labels: Tensor | None) -> None:
    masks: dict[str, Tensor] = {}
    for part in SPLITS:
        name = f"{part}_mask"
        value = getattr(data, name, None)
        if value is None and not needed:
            continue
        mask = _tensor(value, name, "asgnn.graphs.apply_split sets the three masks from a Split")
        if mask.dtype != torch.bool:
            raise GraphError(f"{name} has dtype {dtype_name(mask.dtype)}; a mask must be bool.")
        # Several splits are columns of one mask, as in PyG.
        if mask.dim() not in (1, 2) or mask.size(0) != num_nodes:
            raise GraphError(
                f"{name} must have shape ({num_nodes},), or ({num_nodes}, splits) for several splits; "
                f"its shape is {tuple(mask.shape)}."
            )
        if needed:
            _check_not_empty(mask, name, labels)
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


def _check_not_empty(mask: Tensor, name: str, labels: Tensor | None) -> None:
    selected = mask.reshape(mask.size(0), -1)
    usable = selected if labels is None else selected & (labels >= 0).to(mask.device).unsqueeze(1)
    empty = ~usable.any(dim=0)
    if empty.numel() == 0:
        raise GraphError(f"{name} selects no node.")
    if bool(empty.any()):
        (column,) = _first(empty)
        what = "labelled node" if bool(selected[:, column].any()) else "node"
        raise GraphError(f"{name} selects no {what}{f' in split {column}' if mask.dim() == 2 else ''}.")


def check_split(split: Split, nodes: int | Data, *, need_test: bool = True) -> None:
    r"""Raises unless the three parts of ``split`` are non-empty, disjoint sets of nodes of the graph.

    ``nodes`` is the number of nodes, or the graph; given the graph, every node must have a label
    (:func:`~asgnn.graphs.split_of` removes the others). With ``need_test=False`` there may be no test nodes, which
    training does not use. Time :math:`O(N)`.
    """
    labels = labels_of(nodes).cpu() if isinstance(nodes, Data) else None
    num_nodes = check_size(nodes if labels is None else labels.numel())
    owner = torch.full((num_nodes,), -1, dtype=torch.int64)
    for number, part in enumerate(SPLITS):
        members = check_nodes(getattr(split, part, None), num_nodes, f"split.{part}")
        if members.numel() == 0 and (need_test or part != "test"):
            raise GraphError(f"split.{part} is empty.")
        taken = owner[members] >= 0
        if bool(taken.any()):
            node = int(members[taken][0])
            raise GraphError(f"Node {node} is in both split.{SPLITS[int(owner[node])]} and split.{part}.")
        owner[members] = number
        if int((owner == number).sum()) != members.numel():
            (node,) = _first(torch.bincount(members) > 1)
            raise GraphError(f"split.{part} contains node {node} more than once.")
        if labels is not None and bool((labels[members] < 0).any()):
            node = int(members[labels[members] < 0][0])
            raise GraphError(f"Node {node} in split.{part} has no label; asgnn.graphs.split_of removes such nodes.")


def check_nodes(value: Any, num_nodes: int, name: str) -> Tensor:
    """Returns ``value`` on the CPU; raises unless it is a one-dimensional int64 tensor of node indices."""
    nodes = _tensor(value, name, "give an int64 tensor of node indices")
    if nodes.dim() != 1 or nodes.dtype != torch.int64:
        raise GraphError(
            f"{name} must be a one-dimensional int64 tensor of node indices; "
            f"it is {dtype_name(nodes.dtype)} of shape {tuple(nodes.shape)}."
        )
    nodes = nodes.cpu()
    outside = (nodes < 0) | (nodes >= num_nodes)
    if bool(outside.any()):
        node = int(nodes[outside][0])
        raise GraphError(f"{name} contains node {node}, but the nodes are numbered 0 to {num_nodes - 1}.")
    return nodes


def node_numbers(nodes: Tensor, num_nodes: int, kind: str = "") -> Tensor:
    """Returns a set of nodes, given as indices or as a bool mask, as sorted indices on the CPU.

    ``kind`` describes the nodes in error messages.
    """
    name = f"{kind} nodes" if kind else "nodes"
    if isinstance(nodes, Tensor) and nodes.dtype == torch.bool and nodes.shape == (num_nodes,) and not nodes.is_meta:
        nodes = nodes.nonzero().squeeze(1)
    if not isinstance(nodes, Tensor) or nodes.dtype != torch.int64 or nodes.dim() != 1 or nodes.is_meta:
        raise GraphError(f"The {name} must be an int64 tensor of node indices or a bool mask of shape ({num_nodes},).")
    nodes = nodes.cpu().unique()
    if nodes.numel() == 0:
        raise GraphError(f"At least one of the {name} must be given.")
    for node in (int(nodes[0]), int(nodes[-1])):
        if not 0 <= node < num_nodes:
            raise GraphError(f"The {name} name node {node}, but the nodes are numbered 0 to {num_nodes - 1}.")
    return nodes
