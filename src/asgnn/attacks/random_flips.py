"""Random flips of edges: the baseline of every attack."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch_geometric.data import Data

from asgnn.attacks.draws import draw_absent
from asgnn.attacks.rules import check_task, finish, first_allowed
from asgnn.errors import GraphError
from asgnn.graphs import Perturbation
from asgnn.settings import check_choice

Kind = Literal["add", "remove", "flip"]


def random_flips(
    data: Data, budget: int, rng: torch.Generator, *, kind: Kind = "add", allow_isolated: bool = False
) -> Perturbation:
    """Flip ``budget`` random pairs of nodes, regardless of their classes.

    The default adds edges, which is the "random attack" of the literature (Jin et al., KDD 2020). "flip" removes or
    adds an edge with probability 1/2 each; if one of the two is impossible, it does the other. (Uniformly drawn pairs
    would almost all be additions in a sparse graph.)

    Threat model: global, poisoning or evasion; uses only the edges, no labels and no model.

    Args:
        data: the clean graph.
        budget: the exact number of flips.
        rng: a CPU generator; the same state gives the same flips.
        kind: "add" adds random edges, "remove" removes random edges, "flip" does both.
        allow_isolated: whether a removal may leave a node without an edge.

    Time O((E + budget) log E), memory O(E).
    """
    edges = check_task(data, budget)
    check_choice("kind", kind, get_args(Kind))
    n = int(data.num_nodes or 0)
    room = n * (n - 1) // 2 - edges.size(1)
    removals = budget if kind == "remove" else 0
    if kind == "flip":
        removals = max(int((torch.rand(budget, generator=rng) < 0.5).sum()), budget - room)
    order = edges[:, torch.randperm(edges.size(1), generator=rng)]
    removed = first_allowed(order, removals, edges, n, allow_isolated=allow_isolated)
    additions = 0 if kind == "remove" else budget - removed.size(1)
    if additions > room:
        raise GraphError(f"The budget needs {additions} new edges, but only {room} can be added; lower the budget.")
    added = draw_absent(n, additions, edges, rng, lambda pairs: pairs[0] != pairs[1])
    flips = torch.cat([removed, added], dim=1)
    # shuffled, so that the first k flips are random flips too
    flips = flips[:, torch.randperm(flips.size(1), generator=rng)]
    return finish(data, flips, budget, allow_isolated=allow_isolated, meta={"attack": "random", "kind": kind})
