"""DICE: delete internally, connect externally."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.data import Data

from asgnn.errors import ConfigError, GraphError
from asgnn.graphs import Perturbation, validate
from asgnn.graphs.keys import contains, from_keys, to_keys, unique_keys


def dice(data: Data, budget: int, rng: torch.Generator, *, allow_isolated: bool = False) -> Perturbation:
    """Remove edges within classes and add edges between them (Waniek et al., Nature Human Behaviour 2018).

    Each flip is one or the other with probability 1/2; a removal that no edge allows becomes an addition.

    Threat model: global, poisoning or evasion; the attacker knows all labels and the graph, and no model.

    Args:
        data: the clean graph, with labels.
        budget: the number of flips, met exactly.
        rng: a CPU generator; equal states give equal flips.
        allow_isolated: whether a removal may leave a node without an edge.

    Time O((E + budget) log E), memory O(E).
    """
    validate(data)
    if budget < 0:
        raise ConfigError(f"The budget of an attack must be 0 or more; it is {budget}.")
    n, y = int(data.num_nodes), data.y.cpu()
    edges = data.edge_index.cpu()
    edges = edges[:, edges[0] < edges[1]]
    removals = int((torch.rand(budget, generator=rng) < 0.5).sum())
    removed = _remove_within(edges, y, removals, rng, allow_isolated)
    added = _add_between(edges, y, budget - removed.size(1), rng)
    meta = {"attack": "dice", "budget": str(budget)}
    return Perturbation(torch.cat([removed, added], dim=1), n, meta=meta)


def _remove_within(edges: Tensor, y: Tensor, count: int, rng: torch.Generator, allow_isolated: bool) -> Tensor:
    """At most ``count`` random edges within classes, keeping a last edge at every node unless told otherwise."""
    inside = edges[:, y[edges[0]] == y[edges[1]]]
    inside = inside[:, torch.randperm(inside.size(1), generator=rng)]
    if allow_isolated:
        return inside[:, :count]
    degree = torch.bincount(edges.flatten(), minlength=y.numel()).tolist()
    chosen: list[int] = []
    for at, (u, v) in enumerate(inside.t().tolist()):
        if len(chosen) == count:
            break
        if degree[u] > 1 and degree[v] > 1:
            degree[u] -= 1
            degree[v] -= 1
            chosen.append(at)
    return inside[:, chosen]


def _add_between(edges: Tensor, y: Tensor, count: int, rng: torch.Generator) -> Tensor:
    """``count`` random pairs of different classes that are not yet joined, by rejection."""
    n = y.numel()
    sizes = torch.bincount(y)
    possible = (n * n - int(sizes.square().sum())) // 2 - int((y[edges[0]] != y[edges[1]]).sum())
    if count > possible:
        raise GraphError(
            f"The budget asks for {count} new edges between classes, and the graph has room for {possible}."
        )
    present = to_keys(edges, n)
    found = torch.empty(0, dtype=torch.int64)
    while found.numel() < count:
        pairs = torch.randint(n, (2, 2 * (count - found.numel()) + 64), generator=rng)
        pairs = torch.stack([pairs.min(0).values, pairs.max(0).values])
        keys = to_keys(pairs[:, y[pairs[0]] != y[pairs[1]]], n)
        keys = unique_keys(keys[~contains(torch.cat([present, found]), keys)])
        # in random order, so that a surplus is cut at random and not at the high end
        keys = keys[torch.randperm(keys.numel(), generator=rng)]
        found = torch.cat([found, keys[: count - found.numel()]])
    return from_keys(found, n)
