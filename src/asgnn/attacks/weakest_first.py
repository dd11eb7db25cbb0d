"""An attack that makes the nodes fall which need the fewest flips."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor
from torch_geometric.data import Data

from asgnn.attacks.blocks import block_gradient
from asgnn.attacks.checkpoint import Checkpoint
from asgnn.attacks.problem import LOSSES, Loss, Problem, make_problem, predict
from asgnn.attacks.proposals import Proposals
from asgnn.attacks.rules import degrees, finish
from asgnn.attacks.surrogate import Victim
from asgnn.errors import ConfigError
from asgnn.graphs import Perturbation
from asgnn.graphs.keys import contains, from_keys, to_keys, unique_keys
from asgnn.progress import Progress
from asgnn.settings import check_choice, check_count

Guide = Literal["gradient", "answers"]
# The share of the nodes that are tested in one call. Flips for one node hardly touch the others.
TESTED_TOGETHER = 0.02
LEAST_POOL = 256  # nodes that a step considers
PATIENCE = 3  # steps in which no node falls, after which the attack ends
ENOUGH = 1.5  # more flips than a step makes, because some exclude each other
TAKE_BACK_EVERY = 4  # steps, after which the flips that no fallen node needs are taken back


def weakest_first(
    data: Data,
    budget: int,
    train: Tensor,
    rng: torch.Generator,
    *,
    nodes: Tensor | None = None,
    surrogate: Victim | None = None,
    victim: Victim | None = None,
    guide: Guide = "gradient",
    start: Perturbation | None = None,
    steps: int = 64,
    most: int = 5,
    partners: int = 300,
    choices: int = 12,
    reuse: int = 4,
    block_size: int = 250_000,
    loss: Loss = "tanh_margin",
    allow_isolated: bool = False,
    device: torch.device | str | None = None,
    checkpoint: Checkpoint | None = None,
    progress: Progress | None = None,
) -> Perturbation:
    """Make the attacked nodes fall one by one, those first that need the fewest flips.

    Each step ranks, for the nodes with the smallest margins, the pairs that should harm them most. Then it asks the
    victim what the best one of every node does, the best two, and so on: in one call for some nodes at a time, which
    hardly touch each other. So it learns for every node how many flips make it fall, and takes the nodes with the
    fewest.

    A gradient for the whole graph compares flips by what a small weight would do. This attack compares nodes by what
    whole flips do, and spends nothing on nodes that do not fall. It takes back flips that later ones make needless, and
    spends their budget again.

    Threat model: as :func:`~asgnn.attacks.pgd`: global evasion of a fixed model, with the labels of ``train``.

    Args:
        data, budget, train, rng, nodes, surrogate, victim, loss, allow_isolated: as for :func:`~asgnn.attacks.pgd`.
        device, checkpoint, progress: as for :func:`~asgnn.attacks.pgd`.
        guide: what ranks the pairs of a node. "answers" are those of the victim, which no masked gradient can fool: new
            edges lead to nodes of the class that is second at the node, preferably to those of whose class the victim
            is sure, and edges to nodes of its own class are removed. "gradient" tries a second ranking of the same
            pairs, too: by the surrogate's gradient of the node's margin.
        start: the result of this or of another attack with no larger budget, to begin with.
        steps: in each of which an equal part of the budget is spent. If no node falls any more, the attack ends and
            fills up the budget.
        most: flips that are spent on a node at most.
        partners: random nodes of which each step looks for pairs.
        choices: pairs that are kept for each node.
        reuse: flips of a step, or of a call, that a node may be the partner of.
        block_size: pairs whose gradient is computed at once.

    Time O(steps · (pool · partners / block_size gradients of E + block_size pairs + 100 · most forward passes)), where
    the pool has four nodes for each flip of a step, but at least 256. In every fourth step another
    budget / (0.02 · N) passes find the needless flips.
    """
    meta: dict[str, object] = {"attack": "weakest_first", "guide": guide, "steps": steps, "most": most}
    meta |= {"partners": partners, "choices": choices, "reuse": reuse, "loss": loss}
    check_choice("guide", guide, get_args(Guide))
    for name, count in (("most", most), ("partners", partners), ("choices", choices), ("reuse", reuse)):
        check_count(name, count)
    check_count("steps", steps)
    check_count("block_size", block_size)
    if start is not None:
        meta["start"] = start.meta.get("attack", "flips")
        if start.num_nodes != data.num_nodes or start.flips.size(1) != len(start) or len(start) > budget:
            raise ConfigError(f"start needs at most {budget} edge flips of this graph, and nothing else.")
    state = checkpoint.load() if checkpoint is not None else None
    problem = make_problem(
        data, budget, train, rng, nodes=nodes, surrogate=surrogate, victim=victim, loss=loss, device=device, state=state
    )
    if budget == 0:
        return finish(data, torch.empty(2, 0, dtype=torch.int64), 0, allow_isolated=allow_isolated, meta=meta)
    search = _Search(problem, guide, most, partners, choices, reuse, block_size, rng)
    keys, done = torch.empty(0, dtype=torch.int64), 0
    idle = 0  # steps since the last one in which a node fell
    if state is None and start is not None:
        keys = search.needed(to_keys(start.flips, problem.num_nodes).cpu())
    if state is not None:
        keys, done, idle = state["keys"], int(state["step"]), int(state["idle"])
        rng.set_state(state["rng"])
    for step in range(done, steps):
        share = math.ceil((budget - keys.numel()) / (steps - step))
        if share and idle < PATIENCE:
            before = keys.numel()
            keys = search.extended(keys, share)
            idle = 0 if keys.numel() > before else idle + 1
            if (step + 1) % TAKE_BACK_EVERY == 0 and step + 1 < steps:
                keys = search.needed(keys)
        if checkpoint is not None:
            counts = {"step": torch.tensor(step + 1), "idle": torch.tensor(idle)}
            checkpoint.save(problem.state() | counts | {"rng": rng.get_state(), "keys": keys.clone()})
        if progress is not None:
            progress(step + 1, steps)
    world = Proposals.of(problem, budget, None, "any", allow_isolated)
    rest = _new(world.propose(world.standing(world.judged(keys)[1]), 2 * budget, rng), keys)
    keys = world.filled(torch.cat([keys, rest]), rng)
    return finish(data, from_keys(keys, problem.num_nodes), budget, allow_isolated=allow_isolated, meta=meta)


def _new(keys: Tensor, known: Tensor) -> Tensor:
    """The keys that are not among the known ones."""
    return keys[~contains(known, keys)]


def _neighbors(nodes: Tensor, edges: Tensor) -> list[set[int]]:
    """The neighbours of some nodes."""
    near: dict[int, set[int]] = {node: set() for node in nodes.tolist()}
    for u, v in edges[:, torch.isin(edges, nodes).any(0)].t().tolist():
        for node, other in ((u, v), (v, u)):
            if node in near:
                near[node].add(other)
    return list(near.values())


Pair = tuple[int, int]
"""The key of a pair that may be flipped, and which of its nodes is the partner of the attacked one."""
Ranking = list[list[Pair]]
"""For each of some nodes its pairs, those first that should harm it most."""
Test = tuple[float, float, int, list[Pair]]
"""Of a node that falls: flips for each node that falls with it, its margin, the node, its pairs."""


@dataclass(frozen=True, eq=False)
class _Search:
    """Finds, for one node after the other, the flips that make it fall. All tensors are on the CPU."""

    problem: Problem
    guide: Guide
    most: int
    partners: int
    choices: int
    reuse: int
    block_size: int
    rng: torch.Generator

    def extended(self, keys: Tensor, share: int) -> Tensor:
        """The keys with at most ``share`` more: those that make the most nodes fall."""
        scores = self.scores(keys)
        margin, attacked = self.margins(scores), self.problem.nodes.cpu()
        standing = attacked[margin[attacked] >= 0]
        pool = standing[margin[standing].argsort(stable=True)[: max(4 * share, LEAST_POOL)]]
        if not pool.numel():
            return keys
        edges = self.problem.flipped(from_keys(keys, self.problem.num_nodes)).cpu()
        rankings = self.ranked(pool, keys, edges, scores)
        tests = self.tested(pool.tolist(), rankings, _neighbors(pool, edges), keys, self.down(margin), share)
        chosen: list[int] = []
        known, used = set(keys.tolist()), _Partners(self.reuse)
        fallen: set[int] = set()
        for _, _, node, wanted in sorted(tests):
            fresh = [pair for pair in wanted if pair[0] not in known]
            if node not in fallen and len(chosen) + len(fresh) <= share and used.free(fresh, len(fresh)) == fresh:
                used.add(fresh)
                fallen.add(node)
                chosen += [key for key, _ in fresh]
                known.update(chosen)
        return torch.cat([keys, torch.tensor(chosen, dtype=torch.int64)])

    @property
    def together(self) -> int:
        """The number of nodes, or flips, that are tested in one call."""
        return max(1, round(TESTED_TOGETHER * self.problem.num_nodes))

    def tested(
        self,
        pool: list[int],
        rankings: Sequence[Ranking],
        near: list[set[int]],
        keys: Tensor,
        before: set[int],
        share: int,
    ) -> list[Test]:
        """How nodes of the pool fall, until there are enough flips; ``before`` has fallen already.

        A node that has not fallen is tried with as many flips of each ranking, and then with one more. Attacked nodes
        next to it, and its partners, may fall with it.
        """
        found: list[Test] = []
        left, made = list(range(len(pool))), 0
        for count in range(1, self.most + 1):
            fallen: set[int] = set()
            for pairs in rankings:
                left = [left[at] for at in torch.randperm(len(left), generator=self.rng).tolist()]
                for at in range(0, len(left), self.together):
                    tries = self.tries(left[at : at + self.together], pairs, count)
                    flips = torch.tensor([key for some in tries.values() for key, _ in some], dtype=torch.int64)
                    after = self.margins(self.scores(torch.cat([keys, flips.unique()])))
                    others = self.down(after) - before - {pool[i] for i in tries}
                    for i in [i for i in tries if after[pool[i]] < 0]:
                        with_it = others & (near[i] | {partner for _, partner in tries[i]})
                        found.append((count / (1 + len(with_it)), float(after[pool[i]]), pool[i], tries[i]))
                        fallen.add(i)
            made += count * len(fallen)
            left = [i for i in left if i not in fallen]
            if not left or made >= ENOUGH * share:
                break
        return found

    def tries(self, wanted: Sequence[int], pairs: Ranking, count: int) -> dict[int, list[Pair]]:
        """The best pairs of each of some nodes, but for nodes whose partners are used too often."""
        used, found = _Partners(self.reuse), {}
        for i in wanted:
            some = used.free(pairs[i], count)
            if len(some) == count:
                used.add(some)
                found[i] = some
        return found

    def needed(self, keys: Tensor) -> Tensor:
        """The keys without those that no fallen node needs, taken back some at a time."""
        n = self.problem.num_nodes
        edges = self.problem.flipped(from_keys(keys, n)).cpu()
        down = self.down(self.margins(self.scores(keys)))

        def risen(left: Tensor) -> set[int]:
            return down - self.down(self.margins(self.scores(left)))

        for some in keys[torch.randperm(keys.numel(), generator=self.rng)].split(self.together):
            left = _new(keys, some)
            up = torch.tensor(sorted(risen(left)), dtype=torch.int64)
            if up.numel():  # because of flips at these nodes, or next to them
                around = torch.cat([up, edges[:, torch.isin(edges, up).any(0)].flatten()])
                left = torch.cat([left, some[torch.isin(from_keys(some, n), around).any(0)]])
                if risen(left):
                    continue
            keys = left
        return keys

    def down(self, margins: Tensor) -> set[int]:
        """The attacked nodes that have fallen."""
        attacked = self.problem.nodes.cpu()
        return set(attacked[margins[attacked] < 0].tolist())

    def ranked(self, pool: Tensor, keys: Tensor, edges: Tensor, scores: Tensor) -> list[Ranking]:
        """For each node of the pool its best pairs, best first: with random partners, and its own edges."""
        n = self.problem.num_nodes
        partners = torch.randperm(n, generator=self.rng)[: self.partners]
        u, v = pool.repeat_interleave(partners.numel()), partners.repeat(pool.numel())
        pairs = torch.stack([torch.minimum(u, v), torch.maximum(u, v)])[:, u != v]
        theirs = edges[:, torch.isin(edges, pool).any(0)]
        every = _new(unique_keys(torch.cat([to_keys(pairs, n), to_keys(theirs, n)])), keys)
        ends, removal = from_keys(every, n), contains(to_keys(edges, n), every)
        allowed = ~removal | (degrees(edges, n)[ends] > 1).all(0)  # isolates no node
        every, ends, removal = every[allowed], ends[:, allowed], removal[allowed]
        node, partner = torch.cat([ends, ends.flip(0)], dim=1)
        harms = [self.by_answers(node, partner, removal.repeat(2), scores)]
        if self.guide == "gradient":
            harms.insert(0, self.by_gradient(pool, every, edges).repeat(2))
        place = torch.full((n,), -1)
        place[pool] = torch.arange(pool.numel())
        own = (place[node] >= 0).nonzero().view(-1)
        every = every.repeat(2)
        rankings: list[Ranking] = []
        for harm in harms:
            at = own[harm[own].argsort(descending=True, stable=True)]
            at = at[place[node[at]].argsort(stable=True)]
            bounds = torch.searchsorted(place[node[at]], torch.arange(pool.numel() + 1)).tolist()
            best = [at[first : min(last, first + self.choices)] for first, last in itertools.pairwise(bounds)]
            rankings.append([list(zip(every[one].tolist(), partner[one].tolist(), strict=True)) for one in best])
        return rankings

    def by_gradient(self, pool: Tensor, keys: Tensor, edges: Tensor) -> Tensor:
        """(P,) how much a small weight of each flip lowers the margins of the pool, by the surrogate's gradient."""
        problem = replace(self.problem, loss="margin", nodes=pool.to(self.problem.device))
        parts = []
        for some in keys.to(problem.device).split(self.block_size):
            none = torch.zeros(some.numel(), dtype=problem.inputs.dtype, device=problem.device)
            parts.append(block_gradient(problem, some, none, edges.to(problem.device)).cpu())
        return torch.cat(parts)

    def by_answers(self, node: Tensor, partner: Tensor, removal: Tensor, scores: Tensor) -> Tensor:
        """(P,) random numbers, higher for edges to nodes of a node's second class, and for removals of its own."""
        labels = self.problem.labels.cpu()
        sure, predicted = scores.softmax(1).max(1)
        second = scores.scatter(1, labels.unsqueeze(1), -torch.inf).argmax(1)
        helps = predicted[partner] == torch.where(removal, labels[node], second[node])
        return torch.rand(node.numel(), generator=self.rng) + helps * (1 + sure[partner])

    @torch.no_grad()
    def scores(self, keys: Tensor) -> Tensor:
        """(N, C) the victim's scores after flips."""
        problem = self.problem
        return predict(problem.victim, problem.inputs, problem.flipped(from_keys(keys, problem.num_nodes))).cpu()

    def margins(self, scores: Tensor) -> Tensor:
        """(N,) how far each node is from falling; negative where it has fallen."""
        labels = self.problem.labels.cpu()
        margin = -LOSSES["margin"](scores, labels)
        # of equal scores torch's argmax takes the first
        return torch.where(scores.argmax(1) == labels, margin, margin.clamp(max=-torch.finfo(margin.dtype).tiny))


class _Partners:
    """Counts how often each node is the partner of another one in flips that are made together."""

    def __init__(self, limit: int) -> None:
        self.limit, self.uses = limit, Counter[int]()

    def free(self, pairs: Sequence[Pair], count: int) -> list[Pair]:
        """The first ``count`` pairs whose partners are below the limit, fewer if there are not as many."""
        return list(itertools.islice((pair for pair in pairs if self.uses[pair[1]] < self.limit), count))

    def add(self, pairs: Sequence[Pair]) -> None:
        self.uses.update(partner for _, partner in pairs)
