"""Random blocks of pairs: their gradient, and the local search that improves a set of flips."""

from __future__ import annotations

import torch
from torch import Tensor

from asgnn.attacks.problem import Problem
from asgnn.attacks.rules import first_allowed
from asgnn.errors import ConfigError
from asgnn.graphs.keys import contains, from_keys, to_keys, unique_keys
from asgnn.settings import check_count


def check_block(block_size: int, budget: int, problem: Problem) -> None:
    """Raises unless the block is large enough for the budget."""
    check_count("block_size", block_size)
    # pairs are drawn with replacement, so a block of block_size = budget would have fewer distinct pairs
    if block_size < min(2 * budget, problem.pairs):
        raise ConfigError(
            f"block_size must be at least twice the budget of {budget} flips, or all pairs; it is {block_size}."
        )


def draw_block(problem: Problem, size: int, rng: torch.Generator) -> Tensor:
    """Return the sorted keys of about ``size`` random pairs, u < v (fewer after duplicates), or of all pairs."""
    n = problem.num_nodes
    if problem.pairs <= size:
        return to_keys(torch.triu_indices(n, n, 1), n).to(problem.device)
    u = torch.randint(n, (size,), generator=rng)
    v = torch.randint(n - 1, (size,), generator=rng)
    v += v >= u  # uniform over the nodes other than u
    return unique_keys(to_keys(torch.stack([torch.minimum(u, v), torch.maximum(u, v)]), n)).to(problem.device)


def block_gradient(problem: Problem, keys: Tensor, s: Tensor, edges: Tensor | None = None) -> Tensor:
    """Return the gradient of the loss in s, on the graph ``edges`` (by default the clean one) with relaxed flips s.

    Time and memory of a forward and a backward pass over E + block edges.
    """
    n = problem.num_nodes
    if edges is None:
        edges = problem.edges.to(problem.device)
    position = torch.searchsorted(to_keys(edges, n), keys).clamp_(max=max(0, edges.size(1) - 1))
    present = contains(to_keys(edges, n), keys)
    s = s.detach().to(problem.inputs.dtype).requires_grad_()
    kept = torch.ones(edges.size(1), dtype=s.dtype, device=s.device).index_add(0, position[present], -s[present])
    pairs = torch.cat([edges, from_keys(keys[~present], n)], dim=1)
    weight = torch.cat([kept, s[~present]]).clamp(0, 1)
    logits = problem.surrogate(problem.inputs, torch.cat([pairs, pairs.flip(0)], dim=1), torch.cat([weight, weight]))
    return problem.gradient(logits, s)


def repaired(
    problem: Problem, flips: Tensor, rounds: int, block_size: int, rng: torch.Generator, *, allow_isolated: bool
) -> Tensor:
    """Return flips that are no worse for the victim, by ``rounds`` attempts to swap some of them for others.

    An attempt takes the gradient on the flipped graph. It undoes the flips whose reversal raises the loss most, and
    flips the best pairs of a random block in their place. It is kept if the victim's outcome improves; otherwise the
    next attempt swaps half as many. Time of ``rounds`` gradients of a block and forward passes.
    """
    n, budget = problem.num_nodes, flips.size(1)
    value, count = problem.outcome(flips), max(1, budget // 4)
    for _ in range(rounds):
        made = to_keys(flips, n).to(problem.device)
        keys = draw_block(problem, block_size, rng)
        keys = keys[~contains(made, keys)]
        both, order = torch.cat([made, keys]).sort()
        gradient = torch.empty(both.numel(), dtype=problem.inputs.dtype, device=problem.device)
        gradient[order] = block_gradient(problem, both, torch.zeros_like(gradient), problem.flipped(flips))
        undo, new = gradient[:budget].sort(descending=True), gradient[budget:].sort(descending=True)
        size = min(count, budget, keys.numel())
        size = int((undo.values[:size] + new.values[:size] > 0).sum())
        if size == 0:
            break
        kept = torch.ones(budget, dtype=torch.bool, device=problem.device)
        kept[undo.indices[:size]] = False
        # more candidates than needed, because some may isolate a node
        ranked = torch.cat([made[kept], keys[new.indices[: 2 * size]], made[~kept]])
        swapped = first_allowed(from_keys(ranked, n).cpu(), budget, problem.edges, n, allow_isolated=allow_isolated)
        now = problem.outcome(swapped) if swapped.size(1) == budget else value
        if now > value:
            flips, value = swapped, now
        elif count == 1:
            break
        else:
            count //= 2
    return flips
