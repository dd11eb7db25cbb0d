"""Evasion of single nodes: each target is attacked on its own, with flips of the pairs it belongs to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch_geometric.data import Data

from asgnn.attacks.copies import Copies
from asgnn.attacks.problem import make_problem, margin
from asgnn.attacks.relaxation import project
from asgnn.attacks.rules import degrees
from asgnn.attacks.surrogate import Victim
from asgnn.errors import ConfigError
from asgnn.graphs import Perturbation
from asgnn.graphs.keys import contains, to_keys
from asgnn.progress import Progress
from asgnn.settings import check_count, check_number

MAX_SHARE = 100.0


@dataclass(frozen=True, eq=False)
class LocalEvasion:
    """The result of :func:`local_evasion` for M targets and S shares, on the CPU.

    Attributes:
        targets: (M,) the attacked nodes.
        shares: the budgets as shares of the degree.
        budgets: (M, S) the largest number of flips.
        flips: for each target and share the flips, at most the budget, after which the margin was smallest.
        margins: (M, S) the label's score minus the highest other one after these flips; negative if the target fell.
        clean: (M,) the margin on the clean graph.
        num_nodes: N.
    """

    targets: Tensor
    shares: tuple[float, ...]
    budgets: Tensor
    flips: tuple[tuple[Tensor, ...], ...]
    margins: Tensor
    clean: Tensor
    num_nodes: int

    @property
    def fallen(self) -> Tensor:
        """(M, S) bool: whether the victim misclassifies the target after the flips (or before)."""
        return (self.margins < 0) | (self.clean < 0).unsqueeze(1)

    @property
    def accuracy(self) -> list[float]:
        """The share of targets that stay correct, for each of the shares."""
        return (1 - self.fallen.double().mean(0)).tolist()

    def perturbation(self, target: int, share: int) -> Perturbation:
        """The flips for the target and share of these positions."""
        return Perturbation(
            self.flips[target][share],
            self.num_nodes,
            self.targets[target : target + 1],
            {"attack": "local_evasion", "share": f"{self.shares[share]:g}"},
        )


def local_evasion(
    data: Data,
    shares: Sequence[float],
    train: Tensor,
    rng: torch.Generator,
    *,
    targets: Tensor,
    surrogate: Victim | None = None,
    victim: Victim | None = None,
    candidates: int = 6,
    draws: int = 2,
    pgd_steps: int = 0,
    samples: int = 5,
    batch: int = 1,
    allow_isolated: bool = False,
    device: torch.device | str | None = None,
    progress: Progress | None = None,
) -> LocalEvasion:
    """Attack each of the ``targets`` on its own, with at most ``share`` times its degree flips, rounded up.

    Greedy: the surrogate's gradient of the target's margin ranks all pairs of the target, the victim decides among the
    ``candidates`` best ones and ``draws`` random nodes of another predicted class. The first flips of the largest
    budget are those of the smaller ones. An attack ends when the target falls. With ``pgd_steps``, targets that stand
    are attacked again by projected gradient ascent on all their pairs for each share, as :func:`~asgnn.attacks.pgd`.

    Threat model: direct evasion of single nodes; the labels of ``train`` are known, other labels are the victim's
    predictions.

    Args:
        data: the clean graph.
        shares: budgets as shares of the degree, such as 0.2 and 2.0.
        train, rng, surrogate, victim, allow_isolated, device: as for :func:`~asgnn.attacks.pgd`.
        targets: the attacked nodes, as numbers or a mask; the result has them in ascending order.
        candidates: pairs with the highest gradient that the victim tries at each flip.
        draws: random pairs that it tries as well, which no masked gradient can hide.
        pgd_steps: steps of gradient ascent for each share; 0 for none.
        samples: roundings of each ascent that the victim tries.
        batch: targets that share one call of the models, as one graph of disjoint copies; see
            :func:`~asgnn.attacks.evolve`.
        progress: called after each batch of targets with the number of targets done and of all targets.

    Time, for each batch and flip, O(candidates + draws) forward passes and one backward pass on ``batch`` graphs of
    E + N edges.
    """
    for share in shares:
        check_number("A share of the degree", share, 0, MAX_SHARE, "(]")
    if not shares:
        raise ConfigError("At least one share of the degree must be given.")
    for name, count, least in (("candidates", candidates, 0), ("draws", draws, 0), ("pgd_steps", pgd_steps, 0)):
        check_count(name, count, least)
    check_count("samples", samples)
    check_count("batch", batch)
    if candidates + draws == 0:
        raise ConfigError("candidates and draws are both 0, so that no flip would be tried.")
    problem = make_problem(
        data, 0, train, rng, nodes=targets, surrogate=surrogate, victim=victim, loss="margin", device=device, state=None
    )
    copies = Copies.of(problem, batch, data.x)
    nodes = problem.nodes.cpu()
    degree = degrees(problem.edges, problem.num_nodes)
    budgets = torch.tensor([[math.ceil(share * int(degree[t]) - 1e-9) for share in shares] for t in nodes])
    budgets = budgets.view(-1, len(shares)).clamp(max=problem.num_nodes - 1)
    found: dict[int, list[tuple[Tensor, float]]] = {}
    clean: dict[int, float] = {}
    # targets of similar degree share a batch, because they need similar numbers of flips
    order = budgets.amax(1).argsort(stable=True)
    for some in order.split(batch):
        attack = _Batch(copies, nodes[some], rng, allow_isolated)
        paths = attack.greedy(budgets[some].amax(1).tolist(), candidates, draws)
        for at, path in zip(some.tolist(), paths, strict=True):
            clean[at] = path[0][1]
            found[at] = [min(path[: int(limit) + 1], key=lambda one: one[1]) for limit in budgets[at]]
        for number in range(len(shares)) if pgd_steps else ():
            standing = [at for at in some.tolist() if found[at][number][1] >= 0 and int(budgets[at, number]) > 0]
            if not standing:
                continue
            again = _Batch(copies, nodes[standing], rng, allow_isolated)
            results = again.ascent([int(budgets[at, number]) for at in standing], pgd_steps, samples)
            for at, result in zip(standing, results, strict=True):
                for later in range(len(shares)):
                    if budgets[at, later] >= budgets[at, number] and result[1] < found[at][later][1]:
                        found[at][later] = result
        if progress is not None:
            progress(len(found), nodes.numel())
    every = range(nodes.numel())
    return LocalEvasion(
        nodes,
        tuple(float(share) for share in shares),
        budgets,
        tuple(tuple(one[0] for one in found[at]) for at in every),
        torch.tensor([[one[1] for one in found[at]] for at in every], dtype=torch.float64).view(-1, len(shares)),
        torch.tensor([clean[at] for at in every], dtype=torch.float64),
        problem.num_nodes,
    )


class _Batch:
    """The attack on at most ``batch`` targets at a time, one in each copy of the graph."""

    def __init__(self, copies: Copies, targets: Tensor, rng: torch.Generator, allow_isolated: bool) -> None:
        self.copies, self.problem, self.targets, self.rng = copies, copies.problem, targets.tolist(), rng
        self.allow_isolated = allow_isolated
        self.labels = self.problem.labels[targets.to(self.problem.device)]

    def margins(self, flips: Sequence[Tensor]) -> list[float]:
        """The label's score of each target minus its highest other one, after its flips, by the victim."""
        with torch.no_grad():
            return (-self.wrongness(self.copies.logits(flips))).tolist()

    def wrongness(self, logits: Tensor) -> Tensor:
        """(B,): the margin of the loss, positive where a target is misclassified."""
        at = torch.arange(len(self.targets), device=logits.device)
        rows = logits[at, torch.tensor(self.targets, device=logits.device)]
        # torch's argmax takes the first of equal scores
        even = rows.argmax(1) != self.labels
        value = margin(rows, self.labels)
        return torch.where((value == 0) & even, torch.finfo(value.dtype).tiny, value)

    def gradient(self, made: Sequence[Tensor], s: Tensor) -> Tensor:
        """(B, N): the gradient of the margins in relaxed flips s (B, N) of the pairs {target, v}, after ``made``."""
        n, problem, device = self.problem.num_nodes, self.problem, self.problem.device
        s = s.detach().requires_grad_()
        parts, weights = [], []
        for at, flips in enumerate(self.copies.padded(made)):
            edges = problem.flipped(flips)
            if at >= len(self.targets):
                parts.append(edges)
                weights.append(torch.ones(edges.size(1), dtype=s.dtype, device=device))
                continue
            target = self.targets[at]
            mine = (edges == target).any(0)
            other = edges.sum(0) - target
            weights.append(torch.where(mine, 1 - s[at][torch.where(mine, other, target)], 1.0))
            absent = torch.ones(n, dtype=torch.bool, device=device)
            absent[other[mine]] = False
            absent[target] = False
            new = absent.nonzero().view(-1)
            parts += [torch.cat([edges, torch.stack([new.clamp(max=target), new.clamp(min=target)])], dim=1)]
            weights[-1] = torch.cat([weights[-1], s[at][new]])
        logits = self.copies.weighted(problem.surrogate, self.copies.shifted(parts), torch.cat(weights).clamp(0, 1))
        value = self.wrongness(logits).sum()
        if not value.requires_grad:
            return torch.zeros_like(s)
        (found,) = torch.autograd.grad(value, [s], allow_unused=True)
        return torch.zeros_like(s) if found is None else found.nan_to_num()

    def allowed(self, at: int, made: Tensor) -> Tensor:
        """(N,) bool: the nodes whose pair with the target may be flipped next: not twice, isolating no node."""
        n, target = self.problem.num_nodes, self.targets[at]
        free = torch.ones(n, dtype=torch.bool)
        free[target] = False
        free[made.sum(0) - target] = False
        if not self.allow_isolated:
            edges = self.problem.flipped(made).cpu()
            degree = degrees(edges, n)
            near = edges.sum(0)[(edges == target).any(0)] - target
            free[near[(degree[near] == 1) | (degree[target] == 1)]] = False
        return free

    def pair(self, at: int, node: int) -> Tensor:
        target = self.targets[at]
        return torch.tensor([[min(node, target)], [max(node, target)]])

    def greedy(self, limits: Sequence[int], candidates: int, draws: int) -> list[list[tuple[Tensor, float]]]:
        """For each target the flips after 0, 1, … steps and the victim's margins, until it falls or at its limit."""
        n, count = self.problem.num_nodes, len(self.targets)
        empty = torch.empty(2, 0, dtype=torch.int64)
        with torch.no_grad():
            logits = self.copies.logits([empty] * count)
        predicted = logits[0].argmax(1).cpu()
        paths = [[(empty, value)] for value in (-self.wrongness(logits)).tolist()]
        zero = torch.zeros(count, n, dtype=logits.dtype, device=logits.device)
        while True:
            active = [at for at in range(count) if len(paths[at]) <= limits[at] and paths[at][-1][1] >= 0]
            made = [path[-1][0] for path in paths]
            if not active:
                return paths
            gradient = self.gradient(made, zero).cpu() if candidates else zero.cpu()
            tries: list[list[int]] = [[] for _ in range(count)]
            for at in active:
                free = self.allowed(at, made[at])
                best = gradient[at].masked_fill(~free, -torch.inf).topk(min(candidates, n)).indices
                unlike = (free & (predicted != predicted[self.targets[at]])).nonzero().view(-1)
                drawn = unlike[torch.randperm(unlike.numel(), generator=self.rng)[:draws]]
                tries[at] = torch.cat([best[free[best]], drawn]).unique().tolist()
            steps: list[tuple[float, Tensor] | None] = [None] * count
            for number in range(max(len(one) for one in tries)):
                flips = [
                    torch.cat([made[at], self.pair(at, tries[at][number])], dim=1)
                    if number < len(tries[at])
                    else made[at]
                    for at in range(count)
                ]
                for at, value in enumerate(self.margins(flips)):
                    now = steps[at]
                    if number < len(tries[at]) and (now is None or value < now[0]):
                        steps[at] = (value, flips[at])
            for at in active:
                now = steps[at]
                # without an allowed flip the path ends here
                paths[at] += [paths[at][-1]] * (limits[at] + 1 - len(paths[at])) if now is None else [(now[1], now[0])]

    def ascent(self, budgets: Sequence[int], steps: int, samples: int) -> list[tuple[Tensor, float]]:
        """For each target the best flips that projected gradient ascent finds, and the victim's margin."""
        n, count = self.problem.num_nodes, len(self.targets)
        empty = torch.empty(2, 0, dtype=torch.int64)
        free = torch.stack([self.allowed(at, empty) for at in range(count)])
        s = torch.zeros(count, n, dtype=self.problem.inputs.dtype, device=self.problem.device)
        for step in range(steps):
            gradient = self.gradient([empty] * count, s).masked_fill(~free.to(s.device), 0)
            unit = gradient.abs().amax(1, keepdim=True).clamp(min=torch.finfo(s.dtype).tiny)
            moved = s + gradient / unit / math.sqrt(step + 1)
            s = torch.stack([project(row, budget) for row, budget in zip(moved, budgets, strict=True)])
        s = s.cpu().masked_fill(~free, 0)
        best: list[tuple[Tensor, float]] = [(empty, math.inf)] * count
        for sample in range(samples):
            flips = []
            for at, budget in enumerate(budgets):
                # the first rounding takes the highest values, the others are drawn with them as probabilities
                drawn = s[at] if sample == 0 else s[at] + (torch.rand(n, generator=self.rng) < s[at])
                chosen = drawn.topk(min(budget, n)).indices
                chosen = chosen[s[at][chosen] > 0]
                pairs = torch.cat([self.pair(at, int(node)) for node in chosen] or [empty], dim=1)
                flips.append(self.without_isolated(at, pairs))
            for at, value in enumerate(self.margins(flips)):
                if value < best[at][1]:
                    best[at] = (flips[at], value)
        return best

    def without_isolated(self, at: int, flips: Tensor) -> Tensor:
        """The flips, without the last removals if all of them would leave the target without an edge."""
        if self.allow_isolated or not flips.numel():
            return flips
        n, edges = self.problem.num_nodes, self.problem.edges
        target = self.targets[at]
        removal = contains(to_keys(edges, n), to_keys(flips, n))
        left = int((edges == target).sum()) + int((~removal).sum()) - int(removal.sum())
        if left > 0 or not bool(removal.any()):
            return flips
        kept = torch.ones(flips.size(1), dtype=torch.bool)
        kept[removal.nonzero().view(-1)[-(1 - left) :]] = False
        return flips[:, kept]
