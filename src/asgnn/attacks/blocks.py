"""Random blocks of pairs: their gradient, and the local search that improves a set of flips."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from asgnn.attacks.problem import Problem
from asgnn.attacks.proposals import Proposals
from asgnn.errors import ConfigError
from asgnn.graphs.keys import contains, from_keys, to_keys, unique_keys
from asgnn.settings import check_count

# proposals of a round of the local search, relative to the budget
BY_GRADIENT, AT_RANDOM = 0.2, 0.2


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


def resampled(problem: Problem, keys: Tensor, s: Tensor, size: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return a block, as keys and s, with the highest s > 0, at most half of it, and new random pairs with s = 0."""
    if keys.numel() == problem.pairs:
        return keys, s
    order = s.argsort(descending=True, stable=True)
    order = order[: min(int((s > 0).sum()), keys.numel() // 2)]
    kept, at = keys[order].sort()
    fresh = draw_block(problem, size - kept.numel(), rng)
    fresh = fresh[~contains(kept, fresh)]
    both, place = torch.cat([kept, fresh]).sort()
    return both, torch.cat([s[order][at], s.new_zeros(fresh.numel())])[place]


def repaired(
    problem: Problem, flips: Tensor, rounds: int, block_size: int, rng: torch.Generator, *, allow_isolated: bool
) -> Tensor:
    """Return flips that are no worse for the victim, after ``rounds`` of a local search that tries others.

    A round adds the pairs of a random block with the highest gradient on the flipped graph, and some proposals without
    gradient, to the flips. One prediction of the victim shows which nodes become wrong, every flip gets credit for the
    errors at its ends, and those with the most credit are kept, as in :func:`~asgnn.attacks.join_unlike`. The best set
    of all rounds is returned. Time of ``rounds`` gradients of a block and twice as many forward passes.
    """
    if rounds == 0 or flips.size(1) == 0:
        return flips
    n, budget = problem.num_nodes, flips.size(1)
    world = Proposals.of(problem, budget, None, "any", allow_isolated)
    keys = best = to_keys(flips, n)
    value, wrong = world.judged(keys)
    found = flips
    for _ in range(rounds):
        block = draw_block(problem, block_size, rng)
        block = block[~contains(keys.to(block.device), block)]
        none = torch.zeros(block.numel(), dtype=problem.inputs.dtype, device=block.device)
        gradient = block_gradient(problem, block, none, problem.flipped(from_keys(keys, n)))
        top = gradient.topk(min(math.ceil(BY_GRADIENT * budget), block.numel())).indices
        fresh = world.propose(world.standing(wrong), math.ceil(AT_RANDOM * budget), rng)
        fresh = unique_keys(torch.cat([block[top].cpu(), fresh]))
        both = torch.cat([keys, fresh[~contains(keys, fresh)]])
        keys = world.selected(both, world.judged(both)[1], rng)
        now, wrong = world.judged(keys)
        if now > value:
            best, value = keys, now
            found = from_keys(best, n)
    return found
