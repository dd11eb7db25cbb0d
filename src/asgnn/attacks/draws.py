"""Random pairs of nodes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from asgnn.graphs.keys import contains, from_keys, to_keys, unique_keys


def draw_absent(
    num_nodes: int, count: int, present: Tensor, rng: torch.Generator, allowed: Callable[[Tensor], Tensor]
) -> Tensor:
    """``count`` different pairs (2, count), u < v, uniform among the ``allowed`` ones that are not ``present``.

    By rejection: the caller has made sure that there are so many.

    Args:
        num_nodes: nodes of the graph.
        count: how many.
        present: (2, E) pairs, u < v, that are not to be drawn.
        rng: a CPU generator.
        allowed: says of pairs (2, P) which may be drawn, as a (P,) mask; it has to exclude u = v.

    Expected time O((count + E) log(count + E)) where most pairs may be drawn, memory O(count + E).
    """
    taken = to_keys(present, num_nodes)
    found = torch.empty(0, dtype=torch.int64)
    while found.numel() < count:
        pairs = torch.randint(num_nodes, (2, 2 * (count - found.numel()) + 64), generator=rng)
        pairs = torch.stack([pairs.min(0).values, pairs.max(0).values])
        keys = to_keys(pairs[:, allowed(pairs)], num_nodes)
        keys = unique_keys(keys[~contains(torch.cat([taken, found]), keys)])
        # in random order, so that a surplus is cut at random and not at the high end
        keys = keys[torch.randperm(keys.numel(), generator=rng)]
        found = torch.cat([found, keys[: count - found.numel()]])
    return from_keys(found, num_nodes)
