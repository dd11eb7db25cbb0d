"""The convex relaxation of PGD and PR-BCD: projection onto the budget, and rounding by sampling."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, get_args

import torch
from torch import Tensor

from asgnn.attacks.problem import Problem
from asgnn.attacks.rules import first_allowed
from asgnn.settings import check_choice, check_count, check_number

MAX_LR = 1e18  # above this, the projection loses all digits of the previous values

Start = Literal["zero", "uniform", "random"]


def check_schedule(
    steps: int, base_lr: float, samples: int, start: Start = "zero", repair: int = 0, restarts: int = 1
) -> None:
    check_count("steps", steps, 0)
    check_number("base_lr", base_lr, 0, MAX_LR, "(]")
    check_count("samples", samples)
    check_choice("start", start, get_args(Start))
    check_count("repair", repair, 0)
    check_count("restarts", restarts)


def starting_point(start: Start, size: int, budget: int, rng: torch.Generator) -> Tensor:
    """Return the first s (P,) in float64: 0, or with sum ``budget``, equal or random.

    Some models have no gradient at 0. "random" concentrates the budget on about 2 · budget pairs, so that some s are
    large enough to pass a threshold.
    """
    if start == "zero" or size == 0:
        return torch.zeros(size, dtype=torch.float64)
    if start == "uniform":
        return torch.full((size,), min(1.0, budget / size), dtype=torch.float64)
    s = torch.zeros(size, dtype=torch.float64)
    chosen = torch.randperm(size, generator=rng)[: 2 * budget]
    s[chosen] = torch.rand(chosen.numel(), generator=rng, dtype=torch.float64)
    return project(s, budget)


def multiplier(values: Tensor, budget: float, guess: float = 0.0) -> float:
    r"""Return the :math:`\mu \ge 0` such that clip(values − μ, 0, 1) projects onto {s ∈ [0, 1]ᴾ : Σ s ≤ budget}.

    Xu et al. 2019: 0 if clipping alone meets the budget, otherwise the root of
    :math:`\sum \mathrm{clip}(a - \mu, 0, 1) = \mathrm{budget}`, found by bisection. Returns the end of the last
    interval that meets the budget. Time O(P): about two passes if ``guess`` is slightly below μ, because entries below
    a lower bound of μ contribute nothing and are dropped.
    """
    if float(values.clamp(0, 1).sum()) <= budget:
        return 0.0
    low, high = guess, float(values.max())
    active = values[values > low]
    if low > 0 and not float((active - low).clamp_(0, 1).sum()) > budget:
        low, high = 0.0, low
        active = values[values > low]
    while True:  # float64 sums, because they decide the last digits of μ
        middle = (low + high) / 2
        if not low < middle < high or high - low <= 1e-9 * high:
            return high
        if float((active - middle).clamp_(0, 1).sum(dtype=torch.float64)) > budget:
            low = middle
            active = active[active > low]
        else:
            high = middle


def project(values: Tensor, budget: float) -> Tensor:
    """Return the nearest point of {s ∈ [0, 1]ᴾ : Σ s ≤ budget}."""
    return (values - multiplier(values, budget)).clamp_(0, 1)


def best_rounding(
    problem: Problem,
    pairs: Tensor,
    values: Tensor,
    budget: int,
    samples: int,
    rng: torch.Generator,
    *,
    allow_isolated: bool,
) -> tuple[Tensor, tuple[float, float]]:
    """Sample sets of ``budget`` pairs from ``pairs`` (2, P) and return the one with the best outcome, and the outcome.

    Each pair is drawn with probability ``values`` (Xu et al. 2019, random sampling). Not in the paper: the first
    candidate is not sampled but consists of the pairs with the highest values; a sample above the budget loses its
    lowest values instead of being redrawn; a sample below the budget is filled with the next best pairs.

    Args:
        problem: the problem.
        pairs: pairs on the CPU, best first.
        values: (P,) values in [0, 1] on the CPU, in descending order.
        budget: the number of flips.
        samples: number of candidates, including the first.
        rng: a CPU generator.
        allow_isolated: whether a removal may leave a node without an edge.

    Time O(samples · (P + one forward pass)).
    """
    best, best_value = pairs[:, :0], (-torch.inf, -torch.inf)
    for flips in roundings(pairs, values, budget, samples, rng, problem.edges, problem.num_nodes, allow_isolated):
        value = problem.outcome(flips)
        if value > best_value:
            best, best_value = flips, value
    return best, best_value


def roundings(
    pairs: Tensor,
    values: Tensor,
    budget: int,
    samples: int,
    rng: torch.Generator,
    edges: Tensor,
    num_nodes: int,
    allow_isolated: bool = False,
) -> Iterator[Tensor]:
    """The candidates of :func:`best_rounding`, one after the other."""
    drawn = torch.zeros(values.numel(), dtype=torch.bool)
    for sample in range(samples):
        if sample > 0:
            drawn = torch.rand(values.numel(), generator=rng) < values
        ranked = torch.cat([pairs[:, drawn], pairs[:, ~drawn]], dim=1)
        yield first_allowed(ranked, budget, edges, num_nodes, allow_isolated=allow_isolated)
