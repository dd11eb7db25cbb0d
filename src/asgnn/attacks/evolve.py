"""An evolutionary search for flips, which needs nothing but the victim's predictions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import torch
from torch import Tensor
from torch_geometric.data import Data

from asgnn.attacks.checkpoint import Checkpoint, State
from asgnn.attacks.copies import Copies
from asgnn.attacks.problem import Loss, make_problem
from asgnn.attacks.proposals import Partners, Proposals
from asgnn.attacks.rules import finish
from asgnn.attacks.surrogate import Victim
from asgnn.graphs import Perturbation
from asgnn.graphs.keys import contains, from_keys
from asgnn.progress import Progress
from asgnn.settings import check_choice, check_count, check_number

TOURNAMENT = 3  # members that compete to be a parent


def evolve(
    data: Data,
    budget: int,
    train: Tensor,
    rng: torch.Generator,
    *,
    nodes: Tensor | None = None,
    surrogate: Victim | None = None,
    victim: Victim | None = None,
    steps: int = 200,
    population: int = 48,
    elite: int = 8,
    mutation: float = 0.3,
    partners: Partners = "any",
    start: Sequence[Perturbation] = (),
    batch: int = 1,
    loss: Loss = "tanh_margin",
    allow_isolated: bool = False,
    device: torch.device | str | None = None,
    checkpoint: Checkpoint | None = None,
    progress: Progress | None = None,
) -> Perturbation:
    """Evolutionary search, after EvA (arXiv 2507.08212): nothing in a model can mask a gradient that is not used.

    A population of sets of flips. Each step keeps the ``elite`` best and fills up with children: a child takes its
    flips at random from two parents and exchanges a share of about ``mutation`` of them. The fitness is the victim's
    errors, then its loss. Not in the paper: new flips join a node that is attacked and still classified correctly to a
    node of another predicted class, or remove an edge within a class; and the flips that most children drop are
    those with the least credit for errors, found by one more prediction, as in :func:`~asgnn.attacks.join_unlike`.

    Threat model: as :func:`~asgnn.attacks.pgd`, but only predictions of the victim are asked for (scores, too, unless
    the victim returns one-hot rows). It is called without gradients.

    Args:
        data, budget, train, rng, nodes, loss, allow_isolated, device, checkpoint, progress: as for
            :func:`~asgnn.attacks.pgd`.
        surrogate: stands for ``victim`` where that is not given; no gradient is taken.
        victim: the attacked model; by default a GCN trained on the clean graph.
        steps: number of generations.
        population: number of sets.
        elite: number of sets that survive a step, fewer than ``population``.
        mutation: average share of new flips that are tried for a child, in (0, 1].
        partners: as for :func:`~asgnn.attacks.join_unlike`.
        start: results of other attacks with the same budget, which are members of the first population.
        batch: sets that share one call of the victim, as one graph of disjoint copies. Above 1 needs a victim whose
            result for one copy does not depend on the others, which the first call checks.

    Time O(steps · population) forward passes, memory O(population · (budget + nodes)) and that of a batch.
    """
    meta = {"attack": "evolve", "steps": steps, "population": population, "elite": elite, "mutation": mutation}
    meta |= {"partners": partners, "start": len(start), "loss": loss}
    check_count("steps", steps, 0)
    check_count("population", population, 2)
    check_count("elite", elite, 1, population - 1)
    check_number("mutation", mutation, 0, 1, "(]")
    check_choice("partners", partners, get_args(Partners))
    check_count("batch", batch)
    state = checkpoint.load() if checkpoint is not None else None
    problem = make_problem(
        data, budget, train, rng, nodes=nodes, surrogate=surrogate, victim=victim, loss=loss, device=device, state=state
    )
    if budget == 0:
        return finish(data, torch.empty(2, 0, dtype=torch.int64), 0, allow_isolated=allow_isolated, meta=meta)
    world = Proposals.of(problem, budget, data.x, partners, allow_isolated)
    colony = _Colony(world, Copies.of(problem, batch, data.x))
    if state is None:
        targets = world.standing(torch.zeros_like(world.right))
        given = [*start[:population], *[None] * (population - len(start))]
        members, done = colony.judged([world.begin(targets, one, rng) for one in given]), 0
    else:
        members, done = _Members(*(state[name] for name in ("sets", "fitness", "wrong"))), int(state["step"])
        rng.set_state(state["rng"])
    for step in range(done, steps):
        members = members.at(members.order())
        children = colony.children(members, population - elite, mutation, rng)
        members = members.at(torch.arange(elite)).plus(colony.judged(children))
        if checkpoint is not None:
            now = {"step": torch.tensor(step + 1), "rng": rng.get_state()}
            checkpoint.save(problem.state() | now | members.state())
        if progress is not None:
            progress(step + 1, steps)
    best = members.sets[members.order()[0]]
    return finish(data, from_keys(best, problem.num_nodes), budget, allow_isolated=allow_isolated, meta=meta)


@dataclass(frozen=True, eq=False)
class _Members:
    """P sets of flips, on the CPU: keys (P, budget), fitness (P, 2), and which nodes became wrong (P, N)."""

    sets: Tensor
    fitness: Tensor
    wrong: Tensor

    def order(self) -> Tensor:
        """The members, best first: by errors, then by loss."""
        by_loss = self.fitness[:, 1].argsort(descending=True, stable=True)
        return by_loss[self.fitness[by_loss, 0].argsort(descending=True, stable=True)]

    def at(self, index: Tensor) -> _Members:
        return _Members(self.sets[index], self.fitness[index], self.wrong[index])

    def plus(self, other: _Members) -> _Members:
        pairs = ((self.sets, other.sets), (self.fitness, other.fitness), (self.wrong, other.wrong))
        return _Members(*(torch.cat(pair) for pair in pairs))

    def state(self) -> State:
        return {"sets": self.sets, "fitness": self.fitness, "wrong": self.wrong}


@dataclass(frozen=True, eq=False)
class _Colony:
    """Breeds and judges members."""

    world: Proposals
    copies: Copies

    def wrong_after(self, sets: Sequence[Tensor]) -> list[tuple[tuple[float, float], Tensor]]:
        """The outcome of each set of keys for the victim, and which nodes became wrong."""
        found, n = [], self.world.problem.num_nodes
        with torch.no_grad():
            for at in range(0, len(sets), self.copies.batch):
                flips = [from_keys(keys, n) for keys in sets[at : at + self.copies.batch]]
                for logits in self.copies.logits(flips):
                    found.append((self.world.problem.outcome_of(logits), self.world.wrong(logits)))
        return found

    def judged(self, sets: Sequence[Tensor]) -> _Members:
        outcomes, wrong = zip(*self.wrong_after(sets), strict=True)
        return _Members(torch.stack(list(sets)), torch.tensor(outcomes, dtype=torch.float64), torch.stack(wrong))

    def children(self, members: _Members, count: int, mutation: float, rng: torch.Generator) -> list[Tensor]:
        """The keys of ``count`` children of members that are sorted by fitness, best first."""
        world = self.world
        tried: list[Tensor] = []
        blind: list[Tensor] = []
        for _ in range(count):
            one, two = torch.randint(members.sets.size(0), (2, TOURNAMENT), generator=rng).min(1).values.tolist()
            keys = torch.cat([members.sets[one], members.sets[two]]).unique()
            keys = keys[torch.randperm(keys.numel(), generator=rng)[: world.budget]]
            number = max(1, math.ceil(2 * mutation * float(torch.rand((), generator=rng)) * world.budget))
            fresh = world.propose(world.standing(members.wrong[one]), number, rng)
            fresh = fresh[~contains(keys, fresh)]
            if len(tried) < 3 * count // 4:
                tried.append(torch.cat([keys, fresh]))
            else:  # credit may be wrong, so some children exchange flips at random
                blind.append(world.filled(torch.cat([fresh[: max(1, number // 4)], keys]), rng))
        wrong = [found for _, found in self.wrong_after(tried)]
        return [world.selected(keys, found, rng) for keys, found in zip(tried, wrong, strict=True)] + blind
