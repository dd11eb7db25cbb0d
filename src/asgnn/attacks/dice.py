"""DICE: delete internally, connect externally."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.data import Data

from asgnn.attacks.draws import draw_absent
from asgnn.attacks.rules import check_task, finish, first_allowed
from asgnn.errors import GraphError
from asgnn.graphs import Perturbation, labels_of


def dice(data: Data, budget: int, rng: torch.Generator, *, allow_isolated: bool = False) -> Perturbation:
    """Remove edges within classes and add edges between them (Waniek et al., Nature Human Behaviour 2018).

    Each flip is a removal or an addition with probability 1/2. If no more edges can be removed, edges are added
    instead. Nodes with a missing label are not touched.

    Threat model: global, poisoning or evasion; the attacker knows the graph and all labels, but no model.

    Args:
        data: the clean graph, with labels.
        budget: the exact number of flips.
        rng: a CPU generator; the same state gives the same flips.
        allow_isolated: whether a removal may leave a node without an edge.

    Time O((E + budget) log E), memory O(E).
    """
    edges = check_task(data, budget)
    y = labels_of(data).cpu()
    removals = int((torch.rand(budget, generator=rng) < 0.5).sum())
    inside = edges[:, (y[edges[0]] == y[edges[1]]) & (y[edges[0]] >= 0)]
    inside = inside[:, torch.randperm(inside.size(1), generator=rng)]
    removed = first_allowed(inside, removals, edges, y.numel(), allow_isolated=allow_isolated)
    added = _draw_between(edges, y, budget - removed.size(1), rng)
    flips = torch.cat([removed, added], dim=1)
    return finish(data, flips, budget, allow_isolated=allow_isolated, meta={"attack": "dice"})


def _draw_between(edges: Tensor, y: Tensor, count: int, rng: torch.Generator) -> Tensor:
    """Draw ``count`` random pairs of nodes of different classes that have no edge."""

    def between(pairs: Tensor) -> Tensor:
        first, second = y[pairs[0]], y[pairs[1]]
        return (first != second) & (first >= 0) & (second >= 0)

    sizes = torch.bincount(y[y >= 0])
    possible = int(sizes.sum().square() - sizes.square().sum()) // 2 - int(between(edges).sum())
    if count > possible:
        raise GraphError(
            f"The budget needs {count} new edges between classes, but only {possible} can be added; lower the budget."
        )
    return draw_absent(y.numel(), count, edges, rng, between)
