"""Proposals of flips that need no gradient, and the credit that flips get for the errors they cause."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from asgnn.attacks.problem import Problem, predict
from asgnn.attacks.rules import degrees, first_allowed
from asgnn.errors import ConfigError, GraphError
from asgnn.graphs import Perturbation
from asgnn.graphs.keys import contains, from_keys, to_keys, unique_keys

Partners = Literal["unlike", "alike", "any"]
REMOVALS = 0.15  # share of proposals that remove an edge
CHOICES = 8  # nodes from which a partner is chosen by its features


@dataclass(frozen=True, eq=False)
class Proposals:
    """What proposals of flips need to know about the graph and the victim, on the CPU.

    Attributes:
        problem: the problem.
        budget: the number of flips of a set.
        allow_isolated: whether a removal may leave a node without an edge.
        partners: whether a new edge prefers unlike or alike features.
        unit: (N, F) features of length 1; empty if ``partners`` is "any".
        predicted: (N,) the victim's classes on the clean graph.
        right: (N,) the attacked nodes that it classifies correctly there.
        degree: (N,).
        pointer: (N + 1,): node i has the neighbours pointer[i] … pointer[i+1] − 1.
        neighbors: (2 E,).
    """

    problem: Problem
    budget: int
    allow_isolated: bool
    partners: Partners
    unit: Tensor
    predicted: Tensor
    right: Tensor
    degree: Tensor
    pointer: Tensor
    neighbors: Tensor

    @classmethod
    def of(cls, problem: Problem, budget: int, x: Tensor | None, partners: Partners, allow_isolated: bool) -> Proposals:
        """Ask the victim for its predictions on the clean graph; ``x`` is needed unless ``partners`` is "any"."""
        n, attacked = problem.num_nodes, problem.nodes.cpu()
        with torch.no_grad():
            predicted = predict(problem.victim, problem.inputs, problem.edges.to(problem.device)).argmax(1).cpu()
        right = torch.zeros(n, dtype=torch.bool)
        right[attacked] = (predicted == problem.labels.cpu())[attacked]
        row, col = torch.cat([problem.edges, problem.edges.flip(0)], dim=1)
        order = row.argsort(stable=True)
        degree = degrees(problem.edges, n)
        pointer = F.pad(degree.cumsum(0), (1, 0))
        unit = torch.empty(0) if partners == "any" or x is None else F.normalize(x.detach().cpu(), dim=1)
        return cls(problem, budget, allow_isolated, partners, unit, predicted, right, degree, pointer, col[order])

    @torch.no_grad()
    def judged(self, keys: Tensor) -> tuple[tuple[float, float], Tensor]:
        """Return the outcome for the victim, as :meth:`Problem.outcome`, and (N,) which nodes became wrong."""
        problem = self.problem
        logits = predict(problem.victim, problem.inputs, problem.flipped(from_keys(keys, problem.num_nodes)))
        return problem.outcome_of(logits), self.wrong(logits)

    def wrong(self, logits: Tensor) -> Tensor:
        """(N,) bool: the attacked nodes that were classified correctly and no longer are."""
        return self.right & (logits.argmax(1).cpu() != self.problem.labels.cpu())

    def standing(self, wrong: Tensor) -> Tensor:
        """The attacked nodes that are still classified correctly; all attacked nodes if there are none."""
        left = (self.right & ~wrong).nonzero().view(-1)
        return left if left.numel() else self.problem.nodes.cpu()

    def selected(self, keys: Tensor, wrong: Tensor, rng: torch.Generator) -> Tensor:
        """Return ``budget`` of at least as many keys, those with the most credit for the errors ``wrong``, sorted."""
        keys = keys[torch.randperm(keys.numel(), generator=rng)]  # ties are broken at random
        return self.filled(keys[self.credit(keys, wrong).argsort(descending=True, stable=True)], rng)

    def propose(self, targets: Tensor, count: int, rng: torch.Generator) -> Tensor:
        """Return at most ``count`` distinct keys of flips that should harm ``targets``, in random order.

        A flip joins a target to a node of another predicted class, often a target, too; or it removes an edge between a
        target and a node of its class. Nodes of low degree are preferred, because one edge means more to them.
        """
        n, classes = self.problem.num_nodes, self.predicted
        chance = 1 / (1 + self.degree[targets].double())
        u = targets[torch.multinomial(chance, count, replacement=True, generator=rng)]
        choices = 1 if self.partners == "any" else CHOICES
        others = targets[torch.multinomial(chance, count * choices, replacement=True, generator=rng)]
        anyone = torch.multinomial(1 / (1 + self.degree.double()), count * choices, replacement=True, generator=rng)
        v = torch.where(torch.rand(count * choices, generator=rng) < 0.5, others, anyone).view(count, choices)
        v = self._partner(u, v)
        good = classes[u] != classes[v]
        if self.neighbors.numel():
            number = (torch.rand(count, generator=rng) * self.degree[u]).long()
            near = self.neighbors[(self.pointer[u] + number).clamp(max=self.neighbors.numel() - 1)]
            remove = (torch.rand(count, generator=rng) < REMOVALS) & (self.degree[u] > 0)
            remove &= classes[near] == classes[u]
            v, good = torch.where(remove, near, v), good | remove
        u, v = u[good], v[good]
        keys = unique_keys(to_keys(torch.stack([torch.minimum(u, v), torch.maximum(u, v)]), n))
        return keys[torch.randperm(keys.numel(), generator=rng)]

    def begin(self, targets: Tensor, start: Perturbation | None, rng: torch.Generator) -> Tensor:
        """Return the keys of a first set: proposals, or the flips of another attack with the same budget."""
        if start is None:
            return self.filled(self.propose(targets, 2 * self.budget, rng), rng)
        if start.num_nodes != self.problem.num_nodes or start.flips.size(1) != self.budget or len(start) != self.budget:
            raise ConfigError(f"start needs edge flips of this graph with the same budget of {self.budget} flips.")
        return self.filled(to_keys(start.flips, start.num_nodes), rng)

    def _partner(self, u: Tensor, v: Tensor) -> Tensor:
        """For each u (P,) one of v (P, choices): of another class and, if asked for, of unlike or alike features."""
        if self.partners == "any":
            return v[:, 0]
        cosine = (self.unit[u].unsqueeze(1) * self.unit[v]).sum(2)
        score = cosine if self.partners == "alike" else -cosine
        score = score.masked_fill(self.predicted[u].unsqueeze(1) == self.predicted[v], -torch.inf)
        return v.gather(1, score.argmax(1, keepdim=True)).squeeze(1)

    def credit(self, keys: Tensor, wrong: Tensor) -> Tensor:
        """Return for each flip the errors at its ends; flips that share an end share its error.

        An error at a node without a flip counts for those of its neighbours in the clean graph that have one.
        """
        n = self.problem.num_nodes
        pairs = from_keys(keys, n)
        count = torch.bincount(pairs.flatten(), minlength=n)
        row = torch.arange(n).repeat_interleave(self.degree)
        passed = (wrong & (count == 0))[row] & (count > 0)[self.neighbors]
        row, col = row[passed], self.neighbors[passed]
        share = 1 / torch.bincount(row, minlength=n).clamp(min=1).double()
        errors = wrong.double().index_add(0, col, share[row])
        return (errors / count.clamp(min=1))[pairs].sum(0)

    def filled(self, keys: Tensor, rng: torch.Generator) -> Tensor:
        """Return the first ``budget`` distinct keys that are allowed together, filled up with random pairs, sorted."""
        problem, n = self.problem, self.problem.num_nodes
        chosen = keys[: self.budget]
        if chosen.numel() == self.budget and (self.allow_isolated or not self._isolates(chosen)):
            return chosen.sort().values
        more = 4 * self.budget + 64
        u = torch.randint(n, (more,), generator=rng)
        v = (u + torch.randint(1, n, (more,), generator=rng)) % n
        fill = to_keys(torch.stack([torch.minimum(u, v), torch.maximum(u, v)]), n)
        flips = self._allowed(torch.cat([keys, fill]))
        if flips.size(1) < self.budget:  # almost all pairs of a tiny graph
            every = to_keys(torch.triu_indices(n, n, 1), n)[torch.randperm(problem.pairs, generator=rng)]
            flips = self._allowed(torch.cat([keys, every]))
        if flips.size(1) < self.budget:
            raise GraphError(
                f"The attack found {flips.size(1)} allowed flips, but the budget is {self.budget}; "
                "lower the budget or lift a constraint."
            )
        return to_keys(flips, n).sort().values

    def _allowed(self, keys: Tensor) -> Tensor:
        ordered, at = keys.sort(stable=True)
        first = torch.ones_like(ordered, dtype=torch.bool)
        first[1:] = ordered[1:] != ordered[:-1]
        pairs = from_keys(keys[at[first].sort().values], self.problem.num_nodes)
        return first_allowed(
            pairs, self.budget, self.problem.edges, self.problem.num_nodes, allow_isolated=self.allow_isolated
        )

    def _isolates(self, keys: Tensor) -> bool:
        n = self.problem.num_nodes
        pairs = from_keys(keys, n)
        sign = 1 - 2 * contains(to_keys(self.problem.edges, n), keys).long()
        after = self.degree.index_add(0, pairs[0], sign).index_add(0, pairs[1], sign)
        return bool(((self.degree > 0) & (after == 0)).any())
