"""A heuristic that joins nodes of different classes and keeps the edges that cause errors; it needs no gradient."""

from __future__ import annotations

import math
from typing import get_args

import torch
from torch import Tensor
from torch_geometric.data import Data

from asgnn.attacks.checkpoint import Checkpoint
from asgnn.attacks.problem import Loss, make_problem
from asgnn.attacks.proposals import Partners, Proposals
from asgnn.attacks.rules import finish
from asgnn.attacks.surrogate import Victim
from asgnn.graphs import Perturbation
from asgnn.graphs.keys import contains, from_keys
from asgnn.progress import Progress
from asgnn.settings import check_choice, check_count, check_number


def join_unlike(
    data: Data,
    budget: int,
    train: Tensor,
    rng: torch.Generator,
    *,
    nodes: Tensor | None = None,
    surrogate: Victim | None = None,
    victim: Victim | None = None,
    steps: int = 60,
    width: float = 1.0,
    partners: Partners = "unlike",
    start: Perturbation | None = None,
    loss: Loss = "tanh_margin",
    allow_isolated: bool = False,
    device: torch.device | str | None = None,
    checkpoint: Checkpoint | None = None,
    progress: Progress | None = None,
) -> Perturbation:
    """Join attacked nodes to nodes of other predicted classes, by group testing.

    Each step adds ``width · budget`` proposals to the flips so far: edges from nodes that are still classified
    correctly, preferably of low degree, to nodes of another class with unlike features, and some removals within a
    class. One prediction shows which nodes became wrong. Every flip gets credit for the errors at its ends (or
    next to them), and the ``budget`` flips with the most credit are kept. The result is the best of these sets.

    Threat model: as :func:`~asgnn.attacks.evolve`: only predictions of the victim are asked for.

    Args:
        data, budget, train, rng, nodes, loss, allow_isolated, device, checkpoint, progress: as for
            :func:`~asgnn.attacks.pgd`.
        surrogate: stands for ``victim`` where that is not given; no gradient is taken.
        victim: the attacked model; by default a GCN trained on the clean graph.
        steps: number of steps, each with two predictions.
        width: proposals of a step, relative to the budget.
        partners: "unlike" prefers new neighbours with unlike features, "alike" those with similar ones, which defences
            by similarity keep, and "any" does not look at the features.
        start: the result of another attack with the same budget, to begin with in place of proposals.

    Time O(steps) forward passes, memory O(E + budget) and, unless ``partners`` is "any", that of the features.
    """
    meta = {"attack": "join_unlike", "steps": steps, "width": width, "partners": partners, "loss": loss}
    meta |= {"start": "" if start is None else start.meta.get("attack", "flips")}
    check_count("steps", steps, 0)
    check_number("width", width, 0, math.inf, "()")
    check_choice("partners", partners, get_args(Partners))
    state = checkpoint.load() if checkpoint is not None else None
    problem = make_problem(
        data, budget, train, rng, nodes=nodes, surrogate=surrogate, victim=victim, loss=loss, device=device, state=state
    )
    if budget == 0:
        return finish(data, torch.empty(2, 0, dtype=torch.int64), 0, allow_isolated=allow_isolated, meta=meta)
    world = Proposals.of(problem, budget, data.x, partners, allow_isolated)
    if state is None:
        nobody, done = torch.zeros_like(world.right), 0
        keys = best = world.begin(world.standing(nobody), start, rng)
        value, wrong = world.judged(keys)
    else:
        keys, best, done = state["keys"], state["best"], int(state["step"])
        (value, _), (_, wrong) = world.judged(best), world.judged(keys)
        rng.set_state(state["rng"])
    for step in range(done, steps):
        fresh = world.propose(world.standing(wrong), math.ceil(width * budget), rng)
        both = torch.cat([keys, fresh[~contains(keys, fresh)]])
        keys = world.selected(both, world.judged(both)[1], rng)
        now, wrong = world.judged(keys)
        if now > value:
            best, value = keys, now
        if checkpoint is not None:
            saved = {"step": torch.tensor(step + 1), "rng": rng.get_state(), "keys": keys, "best": best}
            checkpoint.save(problem.state() | saved)
        if progress is not None:
            progress(step + 1, steps)
    flips = from_keys(best, problem.num_nodes)
    return finish(data, flips, budget, allow_isolated=allow_isolated, meta=meta)
