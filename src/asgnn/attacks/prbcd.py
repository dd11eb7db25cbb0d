"""PR-BCD and GR-BCD: gradient attacks on random blocks of pairs, for graphs whose N² pairs do not fit in memory.

PyG has both (``torch_geometric.contrib.nn``), and a test compares with them. They are reimplemented here because those
of PyG use torch's global generator, cannot be resumed, may isolate nodes and may return fewer flips than the budget.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch_geometric.data import Data

from asgnn.attacks.blocks import block_gradient, check_block, draw_block, repaired, resampled
from asgnn.attacks.checkpoint import Checkpoint, State
from asgnn.attacks.problem import Loss, Problem, check_unit, make_problem
from asgnn.attacks.relaxation import Start, best_rounding, check_schedule, project, starting_point
from asgnn.attacks.restarts import Restarts
from asgnn.attacks.rules import finish, first_allowed
from asgnn.attacks.surrogate import Victim
from asgnn.graphs import Perturbation
from asgnn.graphs.keys import contains, from_keys, to_keys
from asgnn.progress import Progress
from asgnn.settings import check_count


def prbcd(
    data: Data,
    budget: int,
    train: Tensor,
    rng: torch.Generator,
    *,
    nodes: Tensor | None = None,
    surrogate: Victim | None = None,
    victim: Victim | None = None,
    steps: int = 125,
    fine_tune: int = 25,
    block_size: int = 250_000,
    base_lr: float = 1.0,
    loss: Loss = "tanh_margin",
    samples: int = 20,
    start: Start = "zero",
    repair: int = 10,
    restarts: int = 1,
    allow_isolated: bool = False,
    device: torch.device | str | None = None,
    checkpoint: Checkpoint | None = None,
    progress: Progress | None = None,
) -> Perturbation:
    r"""Projected randomized block coordinate descent (Geisler et al., NeurIPS 2021, Alg. 1).

    As :func:`~asgnn.attacks.pgd`, but only the pairs of a random block can have s > 0. After each step, the pairs with
    s = 0 (at least the lower half of the block) are replaced by new random pairs. The last ``fine_tune`` steps keep
    the block, and their step size decreases as 1/√t. The block that is fine-tuned and rounded is the best one: that
    of the step at which flipping the ``budget`` pairs with the highest s gave the victim the most errors (as in the
    authors' code, not in Alg. 1). Not in the paper: the step size is relative to the largest entry of the first
    gradient, as for PGD; and a local search follows, which swaps flips for better ones (``repair``).

    Threat model: as :func:`~asgnn.attacks.pgd`: global evasion of a fixed model, with the labels of ``train``.

    Args:
        data, budget, train, rng, nodes, surrogate, victim, loss, samples, start, repair, restarts: as for
            :func:`~asgnn.attacks.pgd`.
        allow_isolated, device, checkpoint, progress: as for :func:`~asgnn.attacks.pgd`.
        steps: number of steps of each restart.
        fine_tune: number of final steps that keep the block.
        block_size: number of pairs in the block, at least twice the budget or all pairs.
        base_lr: the first step of the best pair.

    Time O(restarts · steps · (E + block) (H + C)), memory O((E + block) (H + C)); never N².
    """
    meta = {
        "attack": "prbcd",
        "steps": steps,
        "fine_tune": fine_tune,
        "block_size": block_size,
        "base_lr": base_lr,
        "loss": loss,
        "samples": samples,
        "start": start,
        "repair": repair,
        "restarts": restarts,
    }
    check_schedule(steps, base_lr, samples, start, repair, restarts)
    check_count("fine_tune", fine_tune, 0)
    state = checkpoint.load() if checkpoint is not None else None
    problem = make_problem(
        data, budget, train, rng, nodes=nodes, surrogate=surrogate, victim=victim, loss=loss, device=device, state=state
    )
    check_block(block_size, budget, problem)
    if budget == 0:
        return finish(data, torch.empty(2, 0, dtype=torch.int64), 0, allow_isolated=allow_isolated, meta=meta)
    runs = Restarts(problem, restarts, state)
    resampling = max(0, steps - fine_tune)  # number of steps before fine-tuning
    for restart in runs.left():
        if state is None:
            block = _Block.start(problem, block_size, start, budget, rng)
        else:
            block, state = _Block.restore(state, problem, rng), None
        for step in range(block.step, steps):
            gradient = block_gradient(problem, block.keys, block.s)  # Alg. 1, lines 6–7
            unit = block.unit or check_unit(float(gradient.abs().max()))
            rate = base_lr / unit / math.sqrt(max(0, step - resampling) + 1)
            s = project(block.s + rate * gradient, budget)  # Alg. 1, line 8
            block = block.updated(problem, s, unit, budget)
            if step < resampling - 1:
                block = block.resampled(problem, block_size, rng)  # Alg. 1, lines 9–14
            elif step == resampling - 1:
                block = block.at_best()
            if checkpoint is not None:
                checkpoint.save(problem.state() | runs.state() | block.state(rng))
            if progress is not None:
                progress(restart * steps + step + 1, restarts * steps)
        block = block.at_best()
        gradient = block_gradient(problem, block.keys, block.s)
        if not block.unit:
            check_unit(float(gradient.abs().max()))
        # sorted by s, and by the gradient where s = 0
        order = gradient.argsort(descending=True, stable=True)
        order = order[block.s[order].argsort(descending=True, stable=True)]
        pairs = from_keys(block.keys[order], problem.num_nodes).cpu()
        chosen, _ = best_rounding(
            problem, pairs, block.s[order].cpu(), budget, samples, rng, allow_isolated=allow_isolated
        )  # Alg. 1, line 16
        runs.add(repaired(problem, chosen, repair, block_size, rng, allow_isolated=allow_isolated))
    return finish(data, runs.best, budget, allow_isolated=allow_isolated, meta=meta)


def grbcd(
    data: Data,
    budget: int,
    train: Tensor,
    rng: torch.Generator,
    *,
    nodes: Tensor | None = None,
    surrogate: Victim | None = None,
    victim: Victim | None = None,
    steps: int = 125,
    block_size: int = 250_000,
    loss: Loss = "tanh_margin",
    repair: int = 0,
    restarts: int = 1,
    allow_isolated: bool = False,
    device: torch.device | str | None = None,
    checkpoint: Checkpoint | None = None,
    progress: Progress | None = None,
) -> Perturbation:
    """Greedy randomized block coordinate descent (Geisler et al., NeurIPS 2021, Alg. 2).

    Each step draws a random block of pairs and flips the ``budget / steps`` pairs with the highest gradient in it. No
    pair is flipped twice. The flips are in the order in which they were made, unless ``repair`` swaps some of them.

    Threat model: as :func:`~asgnn.attacks.pgd`: global evasion of a fixed model, with the labels of ``train``.

    Args:
        data, budget, train, rng, nodes, surrogate, victim, loss, repair, restarts: as for :func:`~asgnn.attacks.pgd`.
        allow_isolated, device, checkpoint, progress: as for :func:`~asgnn.attacks.pgd`.
        steps: number of steps of each restart; at most ``budget`` are made.
        block_size: number of pairs drawn for each step, at least twice the budget or all pairs.

    Time O(steps · (E + block) (H + C)), memory O((E + block) (H + C)); never N².
    """
    meta = {"attack": "grbcd", "steps": steps, "block_size": block_size, "loss": loss}
    meta |= {"repair": repair, "restarts": restarts}
    check_count("steps", steps)
    check_count("repair", repair, 0)
    check_count("restarts", restarts)
    state = checkpoint.load() if checkpoint is not None else None
    problem = make_problem(
        data, budget, train, rng, nodes=nodes, surrogate=surrogate, victim=victim, loss=loss, device=device, state=state
    )
    check_block(block_size, budget, problem)
    n, total = problem.num_nodes, min(steps, budget)
    runs = Restarts(problem, restarts, state)
    for restart in runs.left():
        made, start = torch.empty(2, 0, dtype=torch.int64), 0
        if state is not None:
            made, start = state["made"], int(state["step"])
            rng.set_state(state["rng"])
            state = None
        for step in range(start, total):
            edges = problem.flipped(made)
            keys = draw_block(problem, block_size, rng)  # Alg. 2, lines 3–4
            keys = keys[~contains(to_keys(made, n).to(keys.device), keys)]
            no_flips = torch.zeros(keys.numel(), device=keys.device)
            gradient = block_gradient(problem, keys, no_flips, edges)  # Alg. 2, lines 7–8
            if step == start:
                check_unit(float(gradient.abs().max()))
            ranked = from_keys(keys[gradient.argsort(descending=True, stable=True)], n).cpu()
            # includes flips that earlier steps could not find
            count = (step + 1) * budget // total - made.size(1)
            flips = first_allowed(ranked, count, edges.cpu(), n, allow_isolated=allow_isolated)
            made = torch.cat([made, flips], dim=1)
            if checkpoint is not None:
                now = {"step": torch.tensor(step + 1), "made": made, "rng": rng.get_state()}
                checkpoint.save(problem.state() | runs.state() | now)
            if progress is not None:
                progress(restart * total + step + 1, restarts * total)
        if made.size(1) == budget:
            made = repaired(problem, made, repair, block_size, rng, allow_isolated=allow_isolated)
        runs.add(made)
    return finish(data, runs.best, budget, allow_isolated=allow_isolated, meta=meta)


@dataclass(frozen=True, eq=False)
class _Block:
    """The state of PR-BCD after ``step`` steps: the keys and s of the block, and of the best block so far."""

    step: int
    keys: Tensor
    s: Tensor
    unit: float
    best_value: tuple[float, float]
    best_keys: Tensor
    best_s: Tensor

    @classmethod
    def start(cls, problem: Problem, size: int, start: Start, budget: int, rng: torch.Generator) -> _Block:
        keys = draw_block(problem, size, rng)
        s = starting_point(start, keys.numel(), budget, rng).to(keys.device, problem.inputs.dtype)
        return cls(0, keys, s, 0.0, (-math.inf, -math.inf), keys, s)

    def updated(self, problem: Problem, s: Tensor, unit: float, budget: int) -> _Block:
        """Return the state after a step to ``s``: the new best if flipping the highest s is worse for the victim."""
        highest = s.topk(min(budget, s.numel())).indices
        flips = from_keys(self.keys[highest[s[highest] > 0]], problem.num_nodes)
        value = problem.outcome(flips)
        block = replace(self, step=self.step + 1, s=s, unit=unit)
        return replace(block, best_value=value, best_keys=self.keys, best_s=s) if value > self.best_value else block

    def resampled(self, problem: Problem, size: int, rng: torch.Generator) -> _Block:
        keys, s = resampled(problem, self.keys, self.s, size, rng)
        return replace(self, keys=keys, s=s)

    def at_best(self) -> _Block:
        return replace(self, keys=self.best_keys, s=self.best_s)

    def state(self, rng: torch.Generator) -> State:
        return {
            "step": torch.tensor(self.step),
            "rng": rng.get_state(),
            "numbers": torch.tensor([self.unit, *self.best_value], dtype=torch.float64),
            "keys": self.keys,
            "s": self.s,
            "best_keys": self.best_keys,
            "best_s": self.best_s,
        }

    @classmethod
    def restore(cls, state: State, problem: Problem, rng: torch.Generator) -> _Block:
        rng.set_state(state["rng"])
        unit, *best_value = state["numbers"].tolist()
        keys, s, best_keys, best_s = (state[name].to(problem.device) for name in ("keys", "s", "best_keys", "best_s"))
        return cls(int(state["step"]), keys, s, unit, (best_value[0], best_value[1]), best_keys, best_s)
