"""Signs that a model hides its gradient, so that attacks through it are weaker than they could be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch_geometric.data import Data

from asgnn.attacks.blocks import block_gradient, draw_block
from asgnn.attacks.problem import Problem, make_problem
from asgnn.attacks.smoothing import straight_through
from asgnn.challenge.controls import OnLearnedGraph, frozen_twin, matrix_model
from asgnn.challenge.values import UNBOUNDED, AttemptOutcome
from asgnn.graphs import Split, labels_of
from asgnn.graphs.keys import contains, from_keys, to_keys
from asgnn.models.foreign import as_model

MARGIN = 1.0  # points of accuracy by which another attack must be stronger than the white-box one
WHITE = ("gradient", "training", "matrix")  # what an exact gradient goes through
SPREAD = 3.0  # points between restarts
DISAGREEMENT = 0.25  # relative, between finite differences and the gradient
DIRECTIONS = 16
PAIRS = 2_000  # pairs of nodes that a direction changes
WITHOUT_GRADIENT = ("nothing", "answers")
INSIDE, STEP = 0.5, 0.05  # weights of these pairs, and the step of the differences


@dataclass(frozen=True)
class Probe:
    """What is known of a trained model's loss as a function of the edges.

    Attributes:
        through: what an attack can use of it, see :class:`~asgnn.challenge.Way`: "gradient" if its loss has one in the
            edge weights that is not 0 everywhere.
        disagreement: the relative difference between central differences of the loss along random directions and its
            gradient; ``None`` without a gradient.
        guessing: accuracy in percent of always answering with the most frequent class of the test nodes.
    """

    through: tuple[str, ...]
    disagreement: float | None
    guessing: float

    @property
    def gradient(self) -> bool:
        return "gradient" in self.through


def probe(
    model: nn.Module,
    data: Data,
    split: Split,
    rng: torch.Generator,
    *,
    device: torch.device | str | None = None,
) -> Probe:
    """Compare finite differences of the attacker's loss with its gradient, at random weights of edges and non-edges.

    Half of the pairs that a direction changes are edges. Time of 2 · DIRECTIONS forward passes and a backward pass.
    """
    labels = labels_of(data)[split.test.to(data.x.device)]
    guessing = 100 * float(torch.bincount(labels[labels >= 0]).max()) / int((labels >= 0).sum())
    foreign = as_model(model)
    if not getattr(foreign, "takes_weight", True):
        return Probe(WITHOUT_GRADIENT, None, guessing)
    known = (labels_of(data) >= 0).nonzero().view(-1)
    problem = make_problem(
        data, 1, known, rng, nodes=split.test, victim=model, loss="tanh_margin", device=device, state=None
    )
    keys = _pairs(problem, rng)
    s = torch.full((keys.numel(),), INSIDE, dtype=problem.inputs.dtype, device=keys.device)
    through, gradient = list(WITHOUT_GRADIENT), block_gradient(problem, keys, s)
    # at 0, where attacks begin, and inside: clips and thresholds may act at either
    for at in (torch.zeros_like(s), s):
        relaxed = block_gradient(replace(problem, surrogate=straight_through(model)), keys, at)
        if bool(relaxed.any()) and not torch.allclose(relaxed, block_gradient(problem, keys, at), atol=0):
            through.append("relaxed")
            break
    if not bool(gradient.any()):
        return Probe(tuple(through), None, guessing)
    through += ["gradient", "shrunk matrix" if isinstance(model, OnLearnedGraph) else "training"]
    through += [] if frozen_twin(model) is None else ["twin"]
    seen = matrix_model(model)
    through += [] if seen is None else ["matrix" if seen is model else "matrix twin"]
    signs = torch.randint(2, (DIRECTIONS, keys.numel()), generator=rng).to(s) * 2 - 1
    expected = signs @ gradient
    measured = torch.stack([_difference(problem, keys, s, sign) for sign in signs])
    largest = torch.maximum(expected.norm(), measured.norm())
    return Probe(tuple(through), round(float((expected - measured).norm() / largest), 4), guessing)


def _pairs(problem: Problem, rng: torch.Generator) -> torch.Tensor:
    """Keys of random pairs, half of them edges if there are as many."""
    edges = to_keys(problem.edges, problem.num_nodes)
    edges = edges[torch.randperm(edges.numel(), generator=rng)[: PAIRS // 2]].to(problem.device)
    drawn = draw_block(problem, PAIRS // 2, rng)
    return torch.cat([edges, drawn[~contains(edges.sort().values, drawn)]]).sort().values


@torch.no_grad()
def _difference(problem: Problem, keys: torch.Tensor, s: torch.Tensor, sign: torch.Tensor) -> torch.Tensor:
    """The central difference of the loss along ``sign``."""
    n, edges = problem.num_nodes, problem.edges.to(problem.device)
    present = contains(to_keys(edges, n), keys)
    place = torch.searchsorted(to_keys(edges, n), keys[present])
    pairs = torch.cat([edges, from_keys(keys[~present], n)], dim=1)
    both = torch.cat([pairs, pairs.flip(0)], dim=1)
    values = []
    for step in (STEP, -STEP):
        moved = s + step * sign
        kept = torch.ones(edges.size(1), dtype=s.dtype, device=s.device).index_add(0, place, -moved[present])
        weight = torch.cat([kept, moved[~present]])
        values.append(problem.value(problem.victim(problem.inputs, both, torch.cat([weight, weight]))))
    return (values[0] - values[1]) / (2 * STEP)


def signs_of_masking(probed: Probe, outcomes: Sequence[AttemptOutcome], through: Mapping[str, str]) -> tuple[str, ...]:
    """Sentences on what suggests that attacks through the gradient of the model were too weak; none if nothing does.

    Args:
        probed: of the model.
        outcomes: of all attempts on it.
        through: attack → what it used of the model, see :class:`~asgnn.challenge.Way`.
    """
    return tuple(_signs(probed, outcomes, through))


def _signs(probed: Probe, outcomes: Sequence[AttemptOutcome], through: Mapping[str, str]) -> Iterator[str]:
    if not probed.gradient:
        yield (
            "The loss has no gradient in the edge weights, so no attack could go through the model; only transferred "
            "flips and attacks without a gradient were tried."
        )
    if probed.disagreement is not None and probed.disagreement > DISAGREEMENT:
        yield (
            f"Finite differences of the loss disagree with its gradient by {probed.disagreement:.0%} (more than "
            f"{DISAGREEMENT:.0%}): the loss is not smooth at the size of a flip."
        )
    yield from dict.fromkeys(
        f"{one.attempt.attack} could not be made: {one.problem}" for one in outcomes if one.problem
    )
    outcomes = [one for one in outcomes if not one.problem]
    budgets = sorted({one.attempt.budget for one in outcomes})
    for budget in budgets if probed.gradient else ():
        at = [one for one in outcomes if one.attempt.budget == budget]
        white = [one for one in at if through.get(one.attempt.attack) in WHITE and not one.transferred]
        others = [one for one in at if one not in white]
        if white and others:
            best, other = min(white, key=_after), min(others, key=_after)
            if best.after - other.after > MARGIN:
                yield (
                    f"At {budget:.0%} {other.attempt.attack}"
                    f"{f' against {other.attempt.source}' if other.transferred else ''} leaves {other.after:.1f} %, "
                    f"{best.after - other.after:.1f} points less than the best attack through the gradient."
                )
    runs: dict[tuple[str, float], list[float]] = {}
    for one in outcomes:
        # the starts of an attack on matrices have settings of their own
        if not one.transferred and through.get(one.attempt.attack) in ("gradient", "training"):
            runs.setdefault((one.attempt.attack, one.attempt.budget), []).append(one.after)
    for (attack, budget), found in runs.items():
        if max(found) - min(found) > SPREAD:
            yield (
                f"Restarts of {attack} at {budget:.0%} differ by {max(found) - min(found):.1f} points: "
                "more restarts may find more."
            )
    free = [one.after for one in outcomes if one.attempt.budget >= UNBOUNDED]
    if free and min(free) > probed.guessing + SPREAD:
        yield (
            f"With as many flips as edges {min(free):.1f} % are still right, where guessing has "
            f"{probed.guessing:.1f} %: either the features alone carry the model that far, or the attacks are too weak."
        )


def _after(outcome: AttemptOutcome) -> float:
    return outcome.after
