"""From sets of flips to points of a convex set and back: the projection, and the rounding by sampling."""

from __future__ import annotations

import torch
from torch import Tensor

from asgnn.attacks.problem import Problem
from asgnn.attacks.rules import take
from asgnn.settings import check_count, check_number

LARGEST_LR = 1e18  # beyond this the projection loses every digit of what was there before


def check_schedule(steps: int, base_lr: float, samples: int) -> None:
    check_count("steps", steps, 0)
    check_number("base_lr", base_lr, 0, LARGEST_LR, "(]")
    check_count("samples", samples)


def multiplier(values: Tensor, budget: float, guess: float = 0.0) -> float:
    r"""The :math:`\mu \ge 0` that makes clip(values − μ, 0, 1) the projection onto {s ∈ [0, 1]ᴾ : Σ s ≤ budget}.

    Xu et al. 2019: 0 where clipping alone keeps the budget, else the root of
    :math:`\sum \mathrm{clip}(a - \mu, 0, 1) = \mathrm{budget}`, found by bisection. Of the last interval it is the
    end on which the budget is kept. Time O(P), most of it in two passes if ``guess`` is a little below μ: the entries
    below a lower bound of μ add nothing and are left out.
    """
    if float(values.clamp(0, 1).sum()) <= budget:
        return 0.0
    low, high = guess, float(values.max())
    active = values[values > low]
    if low > 0 and not float((active - low).clamp_(0, 1).sum()) > budget:
        low, high = 0.0, low
        active = values[values > low]
    while True:  # sums of the few entries that are left, in double: they decide the last digits
        middle = (low + high) / 2
        if not low < middle < high or high - low <= 1e-9 * high:
            return high
        if float((active - middle).clamp_(0, 1).sum(dtype=torch.float64)) > budget:
            low = middle
            active = active[active > low]
        else:
            high = middle


def project(values: Tensor, budget: float) -> Tensor:
    """The nearest point of {s ∈ [0, 1]ᴾ : Σ s ≤ budget}."""
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
) -> Tensor:
    """``budget`` of the ``pairs`` (2, P): the best of some random draws by the loss on the flipped graph.

    Each pair is drawn with probability ``values`` (Xu et al. 2019, random sampling). Not in the paper: the first
    candidate is no draw but the highest values; a draw of more than the budget is cut from its low end instead of
    being drawn anew; one of fewer is filled up with the next best pairs.

    Args:
        problem: the task.
        pairs: on the CPU, the best first.
        values: (P,) on the CPU, falling, in [0, 1].
        budget: flips.
        samples: candidates, the first included.
        rng: a CPU generator.
        allow_isolated: whether a removal may leave a node without an edge.

    Time O(samples · (P + one forward pass)).
    """
    best, best_value = pairs[:, :0], -torch.inf
    drawn = torch.zeros(values.numel(), dtype=torch.bool)
    for sample in range(samples):
        if sample > 0:
            drawn = torch.rand(values.numel(), generator=rng) < values
        ranked = torch.cat([pairs[:, drawn], pairs[:, ~drawn]], dim=1)
        flips = first_allowed(ranked, budget, problem.edges, problem.num_nodes, allow_isolated=allow_isolated)
        value = problem.value_after(flips)
        if value > best_value:
            best, best_value = flips, value
    return best


def first_allowed(pairs: Tensor, count: int, edges: Tensor, num_nodes: int, *, allow_isolated: bool) -> Tensor:
    """:func:`take`, which walks pair by pair, over no more of many ranked ``pairs`` than are mostly needed."""
    width = 2 * count + 1000
    chosen = take(pairs[:, :width], count, edges, num_nodes, allow_isolated=allow_isolated)
    if chosen.size(1) < count and width < pairs.size(1):
        return take(pairs, count, edges, num_nodes, allow_isolated=allow_isolated)
    return chosen
