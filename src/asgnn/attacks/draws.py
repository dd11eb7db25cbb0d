"""Sampling of node pairs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from asgnn.graphs.keys import contains, from_keys, to_keys, unique_keys


def draw_absent(
    num_nodes: int, count: int, present: Tensor, rng: torch.Generator, allowed: Callable[[Tensor], Tensor]
) -> Tensor:
    """Draw ``count`` distinct pairs (2, count), u < v, uniformly from the ``allowed`` ones that are not ``present``.

    Uses rejection sampling, so the caller must make sure that enough such pairs exist.

    Args:
        num_nodes: number of nodes.
        count: number of pairs.
        present: (2, E) pairs, u < v, to exclude.
        rng: a CPU generator.
        allowed: maps pairs (2, P) to a mask (P,) of those that may be drawn; it must exclude u = v.

    Expected time O((count + E) log(count + E)) if most pairs may be drawn, memory O(count + E).
    """
    taken = to_keys(present, num_nodes)
    found = torch.empty(0, dtype=torch.int64)
    while found.numel() < count:
        pairs = torch.randint(num_nodes, (2, 2 * (count - found.numel()) + 64), generator=rng)
        pairs = torch.stack([pairs.min(0).values, pairs.max(0).values])
        keys = to_keys(pairs[:, allowed(pairs)], num_nodes)
        keys = unique_keys(keys[~contains(torch.cat([taken, found]), keys)])
        # shuffled, because unique_keys sorts and the surplus must be dropped at random
        keys = keys[torch.randperm(keys.numel(), generator=rng)]
        found = torch.cat([found, keys[: count - found.numel()]])
    return from_keys(found, num_nodes)
