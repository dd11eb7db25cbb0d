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

from asgnn.attacks import dice, grbcd, metattack, prbcd, random_flips
from asgnn.challenge.controls import frozen_twin
from asgnn.challenge.values import Attempt, Made, flips_of
from asgnn.graphs import Perturbation, Split, labels_of
from asgnn.settings import check_choice

Effort = Literal["quick", "full"]
EFFORTS = ("quick", "full")
Through = Literal["gradient", "twin", "answers", "nothing"]


@dataclass(frozen=True)
class Way:
    """How flips are chosen.

    Attributes:
        attack: a function of :mod:`asgnn.attacks`, or one with the same arguments.
        through: what it uses of the model: its "gradient", the gradient of its frozen "twin" (ASGNN only), its
            "answers", or "nothing".
        settings: of the attack.
        ordered: whether its first k flips are its result for a budget of k; then one run serves all budgets.
        seeds: the number of runs, each with its own random numbers; a gradient attack then starts elsewhere.
        full: whether it is run only with effort "full".
    """

    attack: Callable[..., Perturbation]
    through: Through
    settings: Mapping[str, Any] = field(default_factory=dict)
    ordered: bool = False
    seeds: int = 1
    full: bool = False


# All labels are known to the attacker (Mujkanovic et al., NeurIPS 2022), and the attacked nodes are the test nodes.
EVASION: dict[str, Way] = {
    "prbcd": Way(prbcd, "gradient"),
    "prbcd-ce": Way(prbcd, "gradient", {"loss": "ce"}, full=True),
    "prbcd-small-steps": Way(prbcd, "gradient", {"base_lr": 0.1, "steps": 250, "fine_tune": 50}, full=True),
    "prbcd-wide": Way(prbcd, "gradient", {"block_size": 1_000_000, "steps": 250}, full=True),
    "prbcd-restarts": Way(prbcd, "gradient", seeds=2, full=True),
    "grbcd": Way(grbcd, "gradient"),
    "prbcd-twin": Way(prbcd, "twin"),
    "grbcd-twin": Way(grbcd, "twin", full=True),
    "dice": Way(dice, "nothing"),
    "random": Way(random_flips, "nothing"),
}
POISONING: dict[str, Way] = {
    "metattack": Way(metattack, "nothing", ordered=True),
    "metattack-both": Way(metattack, "nothing", {"variant": "both"}, ordered=True, full=True),
    # flips of an evasion attack on the model that was trained on the clean graph, used as poison
    "prbcd": EVASION["prbcd"],
    "grbcd": EVASION["grbcd"],
    "prbcd-twin": EVASION["prbcd-twin"],
    "dice": EVASION["dice"],
    "random": EVASION["random"],
}
WAYS = EVASION | POISONING


def chosen(table: Mapping[str, Way], effort: Effort) -> dict[str, Way]:
    """The rows of a table that an effort asks for: all with "full", the fast ones with "quick"."""
    check_choice("effort", effort, EFFORTS)
    return {name: way for name, way in table.items() if effort == "full" or not way.full}


def planned(victim: str, budgets: Sequence[float], ways: Mapping[str, Way], through: Sequence[str]) -> list[Attempt]:
    """The attempts against one model, in the order in which they are made.

    ``through`` is what an attack can use of the model, as a :class:`~asgnn.challenge.Probe` says.
    """
    return [
        Attempt(name, "" if way.through == "nothing" else victim, budget, seed)
        for name, way in ways.items()
        if way.through in through
        for seed in range(way.seeds)
        for budget in budgets
    ]


def make_flips(
    attempt: Attempt,
    way: Way,
    model: nn.Module | None,
    data: Data,
    split: Split,
    budgets: Sequence[float],
    device: torch.device | str | None = None,
) -> list[Made]:
    """The flips of an attempt; an ordered attack is made once for the largest of ``budgets`` and gives those of each.

    Args:
        attempt, way: what to make, and how.
        model: the trained model that the attack goes through; ``None`` if it needs none.
        budgets: all budgets of the challenge.
    """
    shares = sorted({attempt.budget, *budgets}) if way.ordered else [attempt.budget]
    offered: dict[str, Any] = {
        "budget": flips_of(shares[-1], data),
        # Metattack trains a surrogate on the labels of the victim's training; every other attack uses all labels
        "train": split.train if way.attack is metattack else (labels_of(data) >= 0).nonzero().view(-1),
        "rng": torch.Generator().manual_seed(attempt.seed),
        "nodes": split.test,
        "surrogate": frozen_twin(model) if way.through == "twin" and model is not None else model,
        "victim": model,
        "device": device,
    }
    taken = inspect.signature(way.attack).parameters
    began = time.perf_counter()
    found = way.attack(data, **{name: value for name, value in offered.items() if name in taken}, **way.settings)
    seconds = time.perf_counter() - began
    return [
        Made(replace(attempt, budget=share), found.first(flips_of(share, data)) if way.ordered else found, seconds)
        for share in shares
    ]
