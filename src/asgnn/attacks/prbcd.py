"""PR-BCD and GR-BCD: attacks by the gradient of a random block of pairs, for graphs whose pairs do not fit in memory.

PyG has both (``torch_geometric.contrib.nn``), and a test compares with them. They are written here because PyG's draw
from torch's global generator, cannot be stopped and resumed, may isolate nodes and may return fewer flips than the
budget.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch_geometric.data import Data

from asgnn.attacks.checkpoint import Checkpoint, State
from asgnn.attacks.problem import Loss, Problem, pose, unit_of
from asgnn.attacks.relaxation import best_rounding, check_schedule, first_allowed, project
from asgnn.attacks.rules import finish
from asgnn.attacks.surrogate import Victim
from asgnn.errors import ConfigError
from asgnn.graphs import Perturbation
from asgnn.graphs.keys import contains, from_keys, to_keys, unique_keys
from asgnn.progress import Progress


def prbcd(
    data: Data,
    budget: int,
    train: Tensor,
    rng: torch.Generator,
    *,
    nodes: Tensor | None = None,
    surrogate: Victim | None = None,
    steps: int = 125,
    fine_tune: int = 25,
    block_size: int = 250_000,
    base_lr: float = 1.0,
    loss: Loss = "tanh_margin",
    samples: int = 20,
    allow_isolated: bool = False,
    device: torch.device | str | None = None,
    checkpoint: Checkpoint | None = None,
    progress: Progress | None = None,
) -> Perturbation:
    r"""Projected randomized block coordinate descent (Geisler et al., NeurIPS 2021, Alg. 1).

    As :func:`~asgnn.attacks.pgd`, but only a random block of pairs has a value s > 0 at a time: after each step the
    pairs whose s is 0 (at least the lower half) make room for new ones. The last ``fine_tune`` steps keep the block,
    with steps that shrink as 1/√t. As in the authors' code, though not in their listing, the block of the step whose
    ``budget`` highest pairs, flipped, gave the highest loss is the one that is refined and rounded. Not in the paper:
    steps are counted in units of the largest entry of the first gradient, as for PGD.

    Threat model: as :func:`~asgnn.attacks.pgd`: global evasion of a fixed model, with the labels of ``train``.

    Args:
        data, budget, train, rng, nodes, surrogate, loss, samples, allow_isolated, device, checkpoint, progress:
            as for :func:`~asgnn.attacks.pgd`.
        steps: in all.
        fine_tune: how many of them, at the end, keep the block.
        block_size: pairs that have a value at a time, at least twice the budget; all pairs where there are no more.
        base_lr: the first step of the best pair.

    Time O(steps · (E + block) (H + C)), memory O((E + block) (H + C)); never N².
    """
    meta = {
        "attack": "prbcd",
        "steps": steps,
        "fine_tune": fine_tune,
        "block_size": block_size,
        "base_lr": base_lr,
        "loss": loss,
        "samples": samples,
    }
    check_schedule(steps, base_lr, samples)
    if fine_tune < 0:
        raise ConfigError(f"fine_tune must be 0 or more; it is {fine_tune}.")
    state = checkpoint.load() if checkpoint is not None else None
    problem = pose(data, budget, train, rng, nodes=nodes, surrogate=surrogate, loss=loss, device=device, state=state)
    _check_block(block_size, budget, problem)
    if budget == 0:
        return finish(data, torch.empty(2, 0, dtype=torch.int64), 0, allow_isolated=allow_isolated, meta=meta)
    run = _Run.start(problem, block_size, rng) if state is None else _Run.restore(state, problem, rng)
    drawn = max(0, steps - fine_tune)  # steps after which the block changes
    for step in range(run.step, steps):
        gradient = block_gradient(problem, run.keys, run.s)  # Alg. 1, lines 6–7
        unit = run.unit or unit_of(float(gradient.abs().max()))
        rate = base_lr / unit / math.sqrt(max(0, step - drawn) + 1)
        s = project(run.s + rate * gradient, budget)  # Alg. 1, line 8
        run = _Run(step + 1, run.keys, s, unit, *run.better(problem, s, budget))
        if step < drawn - 1:
            run = run.resampled(problem, block_size, rng)  # Alg. 1, lines 9–14
        elif step == drawn - 1:
            run = run.at_best()
        if checkpoint is not None:
            checkpoint.save(problem.state() | run.state(rng))
        if progress is not None:
            progress(step + 1, steps)
    run = run.at_best()
    gradient = block_gradient(problem, run.keys, run.s)
    if not run.unit:
        unit_of(float(gradient.abs().max()))
    # by s, and where that is 0 by the gradient
    order = gradient.argsort(descending=True, stable=True)
    order = order[run.s[order].argsort(descending=True, stable=True)]
    pairs = from_keys(run.keys[order], problem.num_nodes).cpu()
    chosen = best_rounding(
        problem, pairs, run.s[order].cpu(), budget, samples, rng, allow_isolated=allow_isolated
    )  # Alg. 1, line 16
    return finish(data, chosen, budget, allow_isolated=allow_isolated, meta=meta)


def grbcd(
    data: Data,
    budget: int,
    train: Tensor,
    rng: torch.Generator,
    *,
    nodes: Tensor | None = None,
    surrogate: Victim | None = None,
    steps: int = 125,
    block_size: int = 250_000,
    loss: Loss = "tanh_margin",
    allow_isolated: bool = False,
    device: torch.device | str | None = None,
    checkpoint: Checkpoint | None = None,
    progress: Progress | None = None,
) -> Perturbation:
    """Greedy randomized block coordinate descent (Geisler et al., NeurIPS 2021, Alg. 2).

    Each step draws a block of pairs and makes at once the flips of the highest gradient in it, ``budget / steps`` of
    them. No pair is flipped twice. The flips are in the order in which they were made.

    Threat model: as :func:`~asgnn.attacks.pgd`: global evasion of a fixed model, with the labels of ``train``.

    Args:
        data, budget, train, rng, nodes, surrogate, loss, allow_isolated, device, checkpoint, progress:
            as for :func:`~asgnn.attacks.pgd`.
        steps: at most; no more than ``budget`` are made.
        block_size: pairs drawn for each step, at least twice the budget; all pairs where there are no more.

    Time O(steps · (E + block) (H + C)), memory O((E + block) (H + C)); never N².
    """
    meta = {"attack": "grbcd", "steps": steps, "block_size": block_size, "loss": loss}
    if steps < 1:
        raise ConfigError(f"A greedy attack takes at least one step; steps is {steps}.")
    state = checkpoint.load() if checkpoint is not None else None
    problem = pose(data, budget, train, rng, nodes=nodes, surrogate=surrogate, loss=loss, device=device, state=state)
    _check_block(block_size, budget, problem)
    n, total = problem.num_nodes, min(steps, budget)
    made, start = torch.empty(2, 0, dtype=torch.int64), 0
    if state is not None:
        made, start = state["made"], int(state["step"])
        rng.set_state(state["rng"])
    for step in range(start, total):
        edges = problem.flipped(made)
        keys = draw_block(problem, block_size, rng)  # Alg. 2, lines 3–4
        keys = keys[~contains(to_keys(made, n).to(keys.device), keys)]
        nothing = torch.zeros(keys.numel(), device=keys.device)
        gradient = block_gradient(problem, keys, nothing, edges)  # Alg. 2, lines 7–8
        if step == start:
            unit_of(float(gradient.abs().max()))
        ranked = from_keys(keys[gradient.argsort(descending=True, stable=True)], n).cpu()
        # what an earlier step could not find is made up for here
        count = (step + 1) * budget // total - made.size(1)
        flips = first_allowed(ranked, count, edges.cpu(), n, allow_isolated=allow_isolated)
        made = torch.cat([made, flips], dim=1)
        if checkpoint is not None:
            checkpoint.save(problem.state() | {"step": torch.tensor(step + 1), "made": made, "rng": rng.get_state()})
        if progress is not None:
            progress(step + 1, total)
    return finish(data, made, budget, allow_isolated=allow_isolated, meta=meta)


def _check_block(block_size: int, budget: int, problem: Problem) -> None:
    # a block is drawn with repeats, so one of just the budget's size would hold fewer pairs
    if block_size < min(2 * budget, problem.pairs):
        raise ConfigError(
            f"A block must hold at least twice the budget of {budget} flips, or all pairs; block_size is {block_size}."
        )


def draw_block(problem: Problem, size: int, rng: torch.Generator) -> Tensor:
    """Keys of random pairs, u < v, in order: about ``size`` (pairs drawn twice count once), or all where all fit."""
    n = problem.num_nodes
    if problem.pairs <= size:
        return to_keys(torch.triu_indices(n, n, 1), n).to(problem.device)
    u = torch.randint(n, (size,), generator=rng)
    v = torch.randint(n - 1, (size,), generator=rng)
    v += v >= u  # uniform among the nodes that are not u
    return unique_keys(to_keys(torch.stack([torch.minimum(u, v), torch.maximum(u, v)]), n)).to(problem.device)


def block_gradient(problem: Problem, keys: Tensor, s: Tensor, edges: Tensor | None = None) -> Tensor:
    """The derivative of the loss by each pair's s, on the graph ``edges`` (the clean one by default) flipped by s.

    Time and memory of a forward and a backward pass over E + block edges.
    """
    n = problem.num_nodes
    given = problem.edges.to(problem.device) if edges is None else edges
    place = torch.searchsorted(to_keys(given, n), keys).clamp_(max=max(0, given.size(1) - 1))
    there = contains(to_keys(given, n), keys)
    s = s.detach().to(problem.inputs.dtype).requires_grad_()
    kept = torch.ones(given.size(1), dtype=s.dtype, device=s.device).index_add(0, place[there], -s[there])
    pairs = torch.cat([given, from_keys(keys[~there], n)], dim=1)
    weight = torch.cat([kept, s[~there]]).clamp(0, 1)
    logits = problem.victim(problem.inputs, torch.cat([pairs, pairs.flip(0)], dim=1), torch.cat([weight, weight]))
    return problem.gradient(logits, s)


@dataclass(frozen=True, eq=False)
class _Run:
    """PR-BCD between two steps: the block, by its keys, with its s; and the best one so far."""

    step: int
    keys: Tensor
    s: Tensor
    unit: float
    best_value: float
    best_keys: Tensor
    best_s: Tensor

    @classmethod
    def start(cls, problem: Problem, size: int, rng: torch.Generator) -> _Run:
        keys = draw_block(problem, size, rng)
        s = torch.zeros(keys.numel(), dtype=problem.inputs.dtype, device=keys.device)
        return cls(0, keys, s, 0.0, -math.inf, keys, s)

    def better(self, problem: Problem, s: Tensor, budget: int) -> tuple[float, Tensor, Tensor]:
        """The best so far and ``s`` on the present block: whose highest values, flipped, give the higher loss."""
        highest = s.topk(min(budget, s.numel())).indices
        flips = from_keys(self.keys[highest[s[highest] > 0]], problem.num_nodes)
        value = problem.value_after(flips)
        return (value, self.keys, s) if value > self.best_value else (self.best_value, self.best_keys, self.best_s)

    def resampled(self, problem: Problem, size: int, rng: torch.Generator) -> _Run:
        """The pairs with s > 0, but no more than half of the block, and new ones with s = 0."""
        if self.keys.numel() == problem.pairs:
            return self
        order = self.s.argsort(descending=True, stable=True)
        order = order[: min(int((self.s > 0).sum()), self.keys.numel() // 2)]
        keys, at = self.keys[order].sort()
        fresh = draw_block(problem, size - keys.numel(), rng)
        fresh = fresh[~contains(keys, fresh)]
        keys, place = torch.cat([keys, fresh]).sort()
        s = torch.cat([self.s[order][at], self.s.new_zeros(fresh.numel())])[place]
        return _Run(self.step, keys, s, self.unit, self.best_value, self.best_keys, self.best_s)

    def at_best(self) -> _Run:
        return _Run(self.step, self.best_keys, self.best_s, self.unit, self.best_value, self.best_keys, self.best_s)

    def state(self, rng: torch.Generator) -> State:
        numbers = torch.tensor([self.unit, self.best_value], dtype=torch.float64)
        return {
            "step": torch.tensor(self.step),
            "rng": rng.get_state(),
            "numbers": numbers,
            "keys": self.keys,
            "s": self.s,
            "best_keys": self.best_keys,
            "best_s": self.best_s,
        }

    @classmethod
    def restore(cls, state: State, problem: Problem, rng: torch.Generator) -> _Run:
        rng.set_state(state["rng"])
        unit, best_value = state["numbers"].tolist()
        block = [state[name].to(problem.device) for name in ("keys", "s", "best_keys", "best_s")]
        return cls(int(state["step"]), block[0], block[1], unit, best_value, block[2], block[3])
