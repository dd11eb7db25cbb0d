"""What every attack holds to: exact budget, no pair twice, no self-loop, no node left alone unless allowed."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral

import torch
from torch import Tensor
from torch_geometric.data import Data

from asgnn.errors import ConfigError, GraphError
from asgnn.graphs import Perturbation, labels_of, validate
from asgnn.graphs.keys import contains, to_keys
from asgnn.version import __version__


def check_task(data: Data, budget: int) -> Tensor:
    """The edges (2, ·) of the graph with u < v, on the CPU; raises on a graph or a budget that cannot be attacked."""
    validate(data)
    if isinstance(budget, bool) or not isinstance(budget, Integral) or budget < 0:
        raise ConfigError(f"The budget of an attack must be 0 or more; it is {budget}.")
    if data.get("edge_weight") is not None:
        raise GraphError("The attacks flip edges of an unweighted graph, and this one has edge_weight; remove it.")
    edges = data.edge_index.cpu()
    return edges[:, edges[0] < edges[1]]


def check_labelled(train: Tensor, data: Data) -> Tensor:
    """The nodes whose labels the attacker knows, as sorted numbers on the CPU; takes numbers or a mask.

    Of nodes whose label is missing nobody knows it, so they are left out.
    """
    train = check_nodes(train, data, "labelled")
    train = train[labels_of(data).cpu()[train] >= 0]
    if train.numel() == 0:
        raise GraphError("An attack needs at least one labelled node, and the label of every given one is missing.")
    return train


def check_nodes(nodes: Tensor, data: Data, kind: str) -> Tensor:
    """A set of nodes as sorted numbers on the CPU; takes numbers or a mask. ``kind`` names it in the sentences."""
    n = int(data.num_nodes or 0)
    if isinstance(nodes, Tensor) and nodes.dtype == torch.bool and nodes.shape == (n,):
        nodes = nodes.nonzero().squeeze(1)
    if not isinstance(nodes, Tensor) or nodes.dtype != torch.int64 or nodes.dim() != 1:
        raise ConfigError(f"The {kind} nodes must be an int64 tensor of node numbers or a bool mask over the nodes.")
    nodes = nodes.cpu().unique()
    if nodes.numel() == 0:
        raise ConfigError(f"An attack needs at least one {kind} node, and none was given.")
    if int(nodes[0]) < 0 or int(nodes[-1]) >= n:
        wrong = int(nodes[0]) if int(nodes[0]) < 0 else int(nodes[-1])
        raise GraphError(f"The {kind} nodes name node {wrong}, but the nodes are numbered 0 to {n - 1}.")
    return nodes


def degrees(edges: Tensor, num_nodes: int) -> Tensor:
    """(N,) int64 out of edges given once each."""
    return torch.bincount(edges.flatten(), minlength=num_nodes)


def take(pairs: Tensor, count: int, edges: Tensor, num_nodes: int, *, allow_isolated: bool = False) -> Tensor:
    """The first ``count`` of the distinct ``pairs`` (2, P) whose flips, made in this order, leave no node alone.

    Fewer, where the pairs do not suffice. A pair that had to be passed over gets a second chance after the others,
    because a later addition may have given its ends another edge. Time O(P).
    """
    if allow_isolated:
        return pairs[:, :count]
    present = contains(
        to_keys(edges, num_nodes), to_keys(torch.stack([pairs.min(0).values, pairs.max(0).values]), num_nodes)
    )
    degree = degrees(edges, num_nodes).tolist()
    chosen: list[int] = []
    waiting = list(enumerate(zip(*pairs.tolist(), present.tolist(), strict=True)))
    for _ in range(2):
        passed = []
        for at, (u, v, there) in waiting:
            if len(chosen) == count:
                break
            step = -1 if there else 1
            if there and (degree[u] == 1 or degree[v] == 1):
                passed.append((at, (u, v, there)))
                continue
            degree[u] += step
            degree[v] += step
            chosen.append(at)
        waiting = passed
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
    """The result of an attack, after the checks that are the same for all.

    ``meta`` says which attack with which settings made the flips; the budget and the version are added here.
    """
    about = {key: str(value) for key, value in (meta or {}).items()}
    found = Perturbation(
        flips, int(data.num_nodes), targets, about | {"budget": str(budget), "version": __version__}, feature_flips
    )
    if len(found) != budget:
        raise GraphError(
            f"The attack found {len(found)} flips that it may make, and the budget asks for {budget}; "
            "lower the budget or lift a constraint."
        )
    if not allow_isolated:
        before = degrees(check_task(data, budget), found.num_nodes)
        after = torch.bincount(found.apply(data).edge_index[0].cpu(), minlength=found.num_nodes)
        alone = ((before > 0) & (after == 0)).nonzero()
        if alone.numel():
            raise GraphError(f"The flips would leave node {int(alone[0])} without an edge.")
    return found
