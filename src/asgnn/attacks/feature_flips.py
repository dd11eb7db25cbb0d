"""Flips of binary features through the gradient of a model, in rounds, with a local search at the end."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.data import Data

from asgnn.attacks.checkpoint import Checkpoint
from asgnn.attacks.problem import Loss, Problem, check_unit, make_problem
from asgnn.attacks.rules import finish
from asgnn.attacks.surrogate import Victim
from asgnn.errors import GraphError
from asgnn.graphs import Perturbation
from asgnn.graphs.checks import node_numbers
from asgnn.graphs.keys import from_keys
from asgnn.progress import Progress
from asgnn.settings import check_count


def feature_flips(
    data: Data,
    budget: int,
    train: Tensor,
    rng: torch.Generator,
    *,
    nodes: Tensor | None = None,
    surrogate: Victim | None = None,
    victim: Victim | None = None,
    changed: Tensor | None = None,
    steps: int = 40,
    repair: int = 10,
    loss: Loss = "tanh_margin",
    device: torch.device | str | None = None,
    checkpoint: Checkpoint | None = None,
    progress: Progress | None = None,
) -> Perturbation:
    """Flip ``budget`` entries of binary features, which raise the loss most by the gradient in x.

    Greedy: each step flips the ``budget / steps`` entries with the highest gradient, of those not flipped yet. Then a
    local search swaps flips for better ones as long as the victim's outcome improves. No edge is flipped.

    Threat model: global evasion of a fixed model, as :func:`~asgnn.attacks.pgd`, with the edges unchanged.

    Args:
        data: the clean graph, whose features are 0 or 1.
        budget: the exact number of entries.
        train, rng, nodes, surrogate, victim, loss, device, checkpoint, progress: as for :func:`~asgnn.attacks.pgd`.
        changed: the nodes whose features may change, as numbers or a mask; by default all.
        steps: number of steps; at most ``budget`` are made.
        repair: attempts to swap flips.

    Time O(steps + repair) forward and backward passes with dense features, memory O(N F).
    """
    meta = {"attack": "feature_flips", "steps": steps, "repair": repair, "loss": loss}
    check_count("steps", steps)
    check_count("repair", repair, 0)
    check_count("budget", budget, 0)
    state = checkpoint.load() if checkpoint is not None else None
    problem = make_problem(
        data, 0, train, rng, nodes=nodes, surrogate=surrogate, victim=victim, loss=loss, device=device, state=state
    )
    x = data.x.to(problem.device).detach()
    if bool(((x != 0) & (x != 1)).any()):
        raise GraphError("Only binary features can be flipped, but x has entries that are neither 0 nor 1.")
    rows = torch.zeros(x.size(0), 1, dtype=torch.bool, device=x.device)
    rows[slice(None) if changed is None else node_numbers(changed, x.size(0), "changed").to(x.device)] = True
    if budget > int(rows.sum()) * x.size(1):
        raise GraphError(
            f"The budget is {budget} flips, but only {int(rows.sum()) * x.size(1)} features can be flipped."
        )
    search = _Search(problem, x, rows)
    made, done = torch.empty(0, dtype=torch.int64, device=x.device), 0
    if state is not None:
        made, done = state["made"].to(x.device), int(state["step"])
    total = min(steps, budget)
    for step in range(done, total):
        gradient = search.gradient(made)
        if step == done:
            check_unit(float(gradient.abs().max()))
        count = (step + 1) * budget // total - made.numel()
        made = torch.cat([made, search.best(gradient, made, count)])
        if checkpoint is not None:
            checkpoint.save(problem.state() | {"step": torch.tensor(step + 1), "made": made})
        if progress is not None:
            progress(step + 1, total)
    if budget:
        made = search.repaired(made, repair)
    empty = torch.empty(2, 0, dtype=torch.int64)
    entries = from_keys(made, x.size(1)).cpu()
    return finish(data, empty, budget, allow_isolated=False, feature_flips=entries, meta=meta)


class _Search:
    """The loss of a problem as a function of flipped entries of x, by their keys node · F + feature."""

    def __init__(self, problem: Problem, x: Tensor, rows: Tensor) -> None:
        self.problem, self.x, self.rows = problem, x, rows
        edges = problem.edges.to(problem.device)
        # the same tensor in every call, so that a model sorts it only once
        self.edges = torch.cat([edges, edges.flip(0)], dim=1)
        self.weight = torch.ones(self.edges.size(1), dtype=x.dtype, device=x.device)

    def flipped(self, made: Tensor) -> Tensor:
        x = self.x.clone()
        x.view(-1)[made] = 1 - x.view(-1)[made]
        return x

    def gradient(self, made: Tensor) -> Tensor:
        """(N F,): the gradient of the loss in the flip of each entry, after ``made``; 0 where no flip is allowed."""
        x = self.flipped(made).requires_grad_()
        found = self.problem.gradient(self.problem.surrogate(x, self.edges, self.weight), x)
        return torch.where(self.rows, (1 - 2 * x.detach()) * found, 0.0).view(-1)

    def best(self, gradient: Tensor, made: Tensor, count: int) -> Tensor:
        """The keys of the ``count`` highest entries that are allowed and not in ``made``, best first."""
        allowed = self.rows.expand_as(self.x).reshape(-1).clone()
        allowed[made] = False
        return gradient.masked_fill(~allowed, -torch.inf).topk(count).indices

    @torch.no_grad()
    def outcome(self, made: Tensor) -> tuple[float, float]:
        return self.problem.outcome_of(self.problem.victim(self.flipped(made), self.edges, self.weight))

    def repaired(self, made: Tensor, rounds: int) -> Tensor:
        """Swap the flips whose reversal helps most for the best others, while the victim's outcome improves."""
        value, count = self.outcome(made), max(1, made.numel() // 4)
        for _ in range(rounds):
            gradient = self.gradient(made)
            undo = gradient[made].sort(descending=True)
            free = int(self.rows.sum()) * self.x.size(1) - made.numel()
            new = self.best(gradient, made, min(count, free))
            size = int((undo.values[: new.numel()] + gradient[new] > 0).sum())
            if size == 0:
                break
            swapped = torch.cat([made[undo.indices[size:].sort().values], new[:size]])
            now = self.outcome(swapped)
            if now > value:
                made, value = swapped, now
            elif count == 1:
                break
            else:
                count //= 2
        return made
