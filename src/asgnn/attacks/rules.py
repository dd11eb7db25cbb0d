"""Rules for every attack: exact budget, no pair flipped twice, no self-loop, no isolated node unless allowed."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch_geometric.data import Data

from asgnn.errors import GraphError
from asgnn.graphs import Perturbation, labels_of, validate
from asgnn.graphs.checks import node_numbers
from asgnn.graphs.keys import contains, to_keys
from asgnn.settings import check_count
from asgnn.version import __version__


def check_task(data: Data, budget: int) -> Tensor:
    """Check the graph and the budget; return the edges (2, ·) with u < v, on the CPU."""
    validate(data)
    check_count("budget", budget, 0)
    if data.get("edge_weight") is not None:
        raise GraphError("Attacks need an unweighted graph, but data has edge_weight; remove it.")
    edges = data.edge_index.cpu()
    return edges[:, edges[0] < edges[1]]


def check_labelled(train: Tensor, data: Data) -> Tensor:
    """Return the nodes whose labels the attacker knows, as sorted numbers on the CPU.

    ``train`` holds node numbers or is a mask. Nodes with a missing label are left out.
    """
    train = node_numbers(train, int(data.num_nodes or 0), "labelled")
    train = train[labels_of(data).cpu()[train] >= 0]
    if train.numel() == 0:
        raise GraphError("An attack needs at least one labelled node, but the label of every node in train is missing.")
    return train


def degrees(edges: Tensor, num_nodes: int) -> Tensor:
    """Return the degrees (N,) int64; ``edges`` lists each edge once."""
    return torch.bincount(edges.flatten(), minlength=num_nodes)


def first_allowed(pairs: Tensor, count: int, edges: Tensor, num_nodes: int, *, allow_isolated: bool = False) -> Tensor:
    """Return the first ``count`` of the distinct ``pairs`` (2, P) whose flips, in this order, isolate no node.

    Returns fewer if the pairs do not suffice. A skipped pair is tried again after the others, because an edge added
    later may allow it. Time O(P).
    """
    if allow_isolated:
        return pairs[:, :count]
    # The search is a Python loop, and almost always a prefix suffices.
    width = 2 * count + 1000
    chosen = _first_allowed(pairs[:, :width], count, edges, num_nodes)
    if chosen.size(1) < count and width < pairs.size(1):
        return _first_allowed(pairs, count, edges, num_nodes)
    return chosen


def _first_allowed(pairs: Tensor, count: int, edges: Tensor, num_nodes: int) -> Tensor:
    present = contains(
        to_keys(edges, num_nodes), to_keys(torch.stack([pairs.min(0).values, pairs.max(0).values]), num_nodes)
    )
    degree = degrees(edges, num_nodes).tolist()
    chosen: list[int] = []
    waiting = list(enumerate(zip(*pairs.tolist(), present.tolist(), strict=True)))
    for _ in range(2):
        skipped = []
        for at, (u, v, is_edge) in waiting:
            if len(chosen) == count:
                break
            if is_edge and (degree[u] == 1 or degree[v] == 1):
                skipped.append((at, (u, v, is_edge)))
                continue
            step = -1 if is_edge else 1
            degree[u] += step
            degree[v] += step
            chosen.append(at)
        waiting = skipped
    return pairs[:, chosen]


def finish(
    data: Data,
    flips: Tensor,
    budget: int,
    *,
    allow_isolated: bool,
    targets: Tensor | None = None,
    feature_flips: Tensor | None = None,
    meta: Mapping[str, object] | None = None,
) -> Perturbation:
    """Check the flips of an attack against the common rules and return them as a perturbation.

    ``meta`` names the attack and its settings; the budget and the version are added here.
    """
    about = {key: str(value) for key, value in (meta or {}).items()}
    found = Perturbation(
        flips, int(data.num_nodes), targets, about | {"budget": str(budget), "version": __version__}, feature_flips
    )
    if len(found) != budget:
        raise GraphError(
            f"The attack found {len(found)} allowed flips, but the budget is {budget}; "
            "lower the budget or lift a constraint."
        )
    if not allow_isolated:
        before = degrees(check_task(data, budget), found.num_nodes)
        after = torch.bincount(found.apply(data).edge_index[0].cpu(), minlength=found.num_nodes)
        isolated = ((before > 0) & (after == 0)).nonzero()
        if isolated.numel():
            raise GraphError(f"The flips would isolate node {int(isolated[0])}; pass allow_isolated=True to allow it.")
    return found
