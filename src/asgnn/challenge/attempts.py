"""The attacks of a challenge, by name, and how each is run."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import nn
from torch_geometric.data import Data

from asgnn.attacks import (
    dice,
    evolve,
    grbcd,
    join_unlike,
    meta_greedy,
    meta_pgd,
    metattack,
    prbcd,
    random_flips,
    smoothed,
    straight_through,
    weakest_first,
)
from asgnn.attacks.poison_pairs import STARTS, Trainings, meta_pgd_pairs
from asgnn.attacks.surrogate import Victim
from asgnn.attacks.unrolled import Retrain, UnrolledTraining
from asgnn.challenge.controls import frozen_twin, on_matrices
from asgnn.challenge.values import UNBOUNDED, Attempt, Made, flips_of
from asgnn.graphs import Perturbation, Split, labels_of
from asgnn.graphs.relaxed import Relaxation
from asgnn.models import ASGNN, ElasticGNN
from asgnn.models.foreign import as_model
from asgnn.settings import check_choice

Effort = Literal["quick", "full"]
EFFORTS = ("quick", "full")
Through = Literal[
    "gradient", "relaxed", "twin", "answers", "training", "matrix", "matrix twin", "shrunk matrix", "nothing"
]


def _itself(model: nn.Module) -> Victim:
    return model


@dataclass(frozen=True)
class Way:
    """How flips are chosen.

    Attributes:
        attack: a function of :mod:`asgnn.attacks`, or one with the same arguments.
        through: what it uses of the model: its "gradient", a "relaxed" gradient, that of its frozen "twin" (ASGNN
            only), its "answers", its "training", that on a "matrix", on one of its "matrix twin", or on a "shrunk
            matrix" (Pro-GNN only; see :mod:`asgnn.challenge.controls`), or "nothing". An attack on the training can be
            "relaxed" or use the "twin", too.
        settings: of the attack.
        surrogate: from the trained model, or from the untrained one for an attack on the training, to the one whose
            gradient is taken.
        ordered: whether its first k flips are its result for a budget of k; then one run serves all budgets.
        continues: what it starts from, as its argument ``start``: the "strongest" flips so far with the same budget, or
            its own ones with the next "smaller" budget; "" if from nothing.
        seeds: the number of runs, each with its own random numbers; a gradient attack then starts elsewhere.
        together: whether one call makes the flips of all budgets and seeds, which are its ``starts``.
        full: whether it is run only with effort "full".
    """

    attack: Callable[..., Any]
    through: Through
    settings: Mapping[str, Any] = field(default_factory=dict)
    surrogate: Callable[[nn.Module], Victim | None] = _itself
    ordered: bool = False
    continues: Literal["", "strongest", "smaller"] = ""
    seeds: int = 1
    together: bool = False
    full: bool = False


# Most of the strength of PR-BCD comes from its local search, so a quick run has few steps before it.
QUICK: dict[str, Any] = {"steps": 60, "fine_tune": 15, "repair": 20}
# Each budget goes on from the flips of the one before it.
WEAKEST: dict[str, Any] = {"steps": 40}


# All labels are known to the attacker (Mujkanovic et al., NeurIPS 2022), and the attacked nodes are the test nodes.
EVASION: dict[str, Way] = {
    "prbcd": Way(prbcd, "gradient", QUICK),
    "prbcd-relaxed": Way(prbcd, "relaxed", QUICK, surrogate=straight_through),
    "prbcd-twin": Way(prbcd, "twin", QUICK, surrogate=frozen_twin),
    "weakest-first": Way(weakest_first, "gradient", WEAKEST, continues="smaller"),
    "weakest-first-relaxed": Way(weakest_first, "relaxed", WEAKEST, surrogate=straight_through, continues="smaller"),
    "weakest-first-twin": Way(weakest_first, "twin", WEAKEST, surrogate=frozen_twin, continues="smaller"),
    "weakest-first-blind": Way(weakest_first, "answers", WEAKEST | {"guide": "answers"}, continues="smaller"),
    "join-unlike": Way(join_unlike, "answers"),
    "prbcd-long": Way(prbcd, "gradient", {"repair": 30}, full=True),
    "prbcd-ce": Way(prbcd, "gradient", {"loss": "masked_ce"}, full=True),
    "prbcd-small-steps": Way(prbcd, "gradient", {"base_lr": 0.1, "steps": 250, "fine_tune": 50}, full=True),
    "prbcd-wide": Way(prbcd, "gradient", {"block_size": 1_000_000, "steps": 250}, full=True),
    "prbcd-random-start": Way(prbcd, "gradient", {"start": "random"}, seeds=2, full=True),
    "prbcd-smoothed": Way(prbcd, "relaxed", surrogate=smoothed, full=True),
    "grbcd": Way(grbcd, "gradient", full=True),
    "grbcd-relaxed": Way(grbcd, "relaxed", surrogate=straight_through, full=True),
    "join-alike": Way(join_unlike, "answers", {"partners": "alike"}, full=True),
    "evolve": Way(evolve, "answers", {"steps": 100}, continues="strongest", full=True),
    "dice": Way(dice, "nothing"),
    "random": Way(random_flips, "nothing"),
}
POISONING: dict[str, Way] = {
    "metattack": Way(metattack, "nothing", {"loss": "tanh_margin"}, ordered=True),
    # flips of an evasion attack on the model that was trained on the clean graph, used as poison
    **{name: EVASION[name] for name in ("prbcd", "prbcd-relaxed", "prbcd-twin", "grbcd", "dice", "random")},
    **{name: way for name, way in EVASION.items() if name.startswith("weakest-first")},
    "meta-pgd-pairs": Way(meta_pgd_pairs, "matrix", seeds=len(STARTS), together=True, full=True),
    # fewer steps, because models with a twin take longer, and so do the trainings that decide
    "meta-pgd-pairs-twin": Way(
        meta_pgd_pairs,
        "matrix twin",
        {"steps": 50, "samples": 2, "starts": STARTS[:1]},
        together=True,
        full=True,
    ),
    # few trainings of Pro-GNN decide, because each takes as long as all steps of the attack
    "meta-pgd-pairs-shrunk": Way(
        meta_pgd_pairs,
        "shrunk matrix",
        {"samples": 1, "checks": 2, "starts": STARTS[:1]},
        together=True,
        full=True,
    ),
    "meta-greedy": Way(meta_greedy, "training", {"steps": 60}, ordered=True, full=True),
    "meta-pgd": Way(meta_pgd, "training", full=True),
    "meta-pgd-relaxed": Way(meta_pgd, "relaxed", full=True),
    "meta-pgd-twin": Way(meta_pgd, "twin", surrogate=frozen_twin, full=True),
}
WAYS = EVASION | POISONING


@dataclass(frozen=True, eq=False)
class Target:
    """What an attack can use of a model; an attack that needs nothing of it can do without.

    Attributes:
        model: trained on the clean graph.
        untrained: the model with its initial weights, for attacks through the training.
        training: the settings of its training, as far as an attack unrolls it.
        retrain: trains the model on given edges and returns its logits.
        trainings: does so for several graphs at once.
    """

    model: nn.Module | None = None
    untrained: nn.Module | None = None
    training: UnrolledTraining | None = None
    retrain: Retrain | None = None
    trainings: Trainings | None = None


def chosen(table: Mapping[str, Way], effort: Effort) -> dict[str, Way]:
    """The rows of a table that an effort asks for: all with "full", the fast ones with "quick"."""
    check_choice("effort", effort, EFFORTS)
    return {name: way for name, way in table.items() if effort == "full" or not way.full}


def planned(
    victim: str,
    budgets: Sequence[float],
    ways: Mapping[str, Way],
    through: Sequence[str],
    *,
    unbounded: bool = False,
) -> list[Attempt]:
    """The attempts against one model, in the order in which they are made.

    Args:
        victim: the name of the model.
        budgets: shares of the edges.
        ways: the attacks.
        through: what an attack can use of the model, as a :class:`~asgnn.challenge.Probe` says.
        unbounded: whether the first attack through the gradient is made with as many flips as edges, too.
    """
    usable = {name: way for name, way in ways.items() if way.through in through}
    found = [
        Attempt(name, "" if way.through == "nothing" else victim, budget, seed)
        for name, way in usable.items()
        for seed in range(way.seeds)
        for budget in budgets
    ]
    white = [name for name, way in usable.items() if way.through == "gradient"]
    return found + ([Attempt(white[0], victim, UNBOUNDED)] if unbounded and white else [])


def make_flips(
    attempt: Attempt,
    way: Way,
    target: Target,
    data: Data,
    split: Split,
    budgets: Sequence[float],
    start: Perturbation | None = None,
    device: torch.device | str | None = None,
) -> list[Made]:
    """The flips of an attempt, and of all others that come with them.

    An ordered attack is made once for the largest of ``budgets`` and gives the flips of each. Attacks that are made
    together give those of all budgets and seeds.

    Args:
        attempt, way: what to make, and how.
        target: the attacked model.
        budgets: all budgets of the challenge.
        start: the flips that the way continues, if there are any.
    """
    shares = sorted({attempt.budget, *budgets}) if way.ordered or way.together else [attempt.budget]
    taken = inspect.signature(way.attack).parameters
    everyone = (labels_of(data) >= 0).nonzero().view(-1)
    offered: dict[str, Any] = {
        "budget": flips_of(shares[-1], data),
        "budgets": [flips_of(share, data) for share in shares],
        # an attack on the training tells the labels that the victim is trained with from those that it only knows
        "train": split.train if "known" in taken else everyone,
        "known": everyone,
        "rng": torch.Generator().manual_seed(attempt.seed),
        "nodes": split.test,
        "device": device,
    }
    if way.together and target.untrained is not None:
        model = on_matrices(target.untrained, data, device)
        offered |= {"model": model, "training": target.training, "trainings": target.trainings}
    elif "retrain" in taken and target.untrained is not None:
        training = _unrolled(target.untrained, target.training or UnrolledTraining(), way.through)
        offered |= {"model": way.surrogate(target.untrained), "training": training, "retrain": target.retrain}
    elif way.through == "answers" and target.model is not None:
        offered["victim"] = as_model(target.model)
    elif way.through != "nothing" and target.model is not None:
        offered |= {"surrogate": way.surrogate(target.model), "victim": target.model}
    if start is not None:
        offered["start"] = start if way.continues == "smaller" else [start]
    began = time.perf_counter()
    found = way.attack(data, **{name: value for name, value in offered.items() if name in taken}, **way.settings)
    seconds = time.perf_counter() - began
    if way.together:
        return [
            Made(replace(attempt, budget=share, seed=seed), flips, seconds / (len(shares) * way.seeds))
            for share, each in zip(shares, found, strict=True)
            for seed, flips in enumerate(each)
        ]
    return [
        Made(replace(attempt, budget=share), found.first(flips_of(share, data)) if way.ordered else found, seconds)
        for share in shares
    ]


def _unrolled(model: nn.Module, training: UnrolledTraining, through: Through) -> UnrolledTraining:
    """The unrolled training of an untrained model; kernels of some have first derivatives only."""
    if through == "relaxed":
        training = replace(training, relaxation=Relaxation())
    return replace(training, derivative="difference") if isinstance(model, ASGNN | ElasticGNN) else training
