"""Attempts to break a model, what became of them, and the worst of them for each budget."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from torch_geometric.data import Data

from asgnn.errors import ConfigError
from asgnn.graphs import Perturbation
from asgnn.settings import check_number

Kind = Literal["evasion", "poisoning"]
KINDS = ("evasion", "poisoning")
UNBOUNDED = 1.0  # a budget with which any attack should reach the accuracy of guessing: as many flips as edges


@dataclass(frozen=True)
class Attempt:
    """One set of flips, by how it is chosen.

    Attributes:
        attack: a name of :data:`~asgnn.challenge.EVASION` or :data:`~asgnn.challenge.POISONING`.
        source: the name of the model that the attack was made against; "" for an attack that needs no model.
        budget: the number of flips as a share of the edges.
        seed: of the attack's random numbers.
    """

    attack: str
    source: str
    budget: float
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Made:
    """The flips of an attempt, and the seconds that it took to find them."""

    attempt: Attempt
    flips: Perturbation
    seconds: float


@dataclass(frozen=True)
class AttemptOutcome:
    """What one set of flips did to one model.

    Attributes:
        kind: "evasion" (the model was trained on the clean graph) or "poisoning" (retrained on the flipped one).
        victim: the name of the judged model; another one than ``attempt.source`` if the flips were transferred.
        before, after: test accuracy in percent on the clean and on the flipped graph; the mean over the seeds of the
            training.
        flips: their number.
        seconds: those of the attack.
        problem: why the attack could not be made, as a sentence; "" if it was. Then nothing was flipped.
    """

    kind: Kind
    victim: str
    attempt: Attempt
    before: float
    after: float
    flips: int
    seconds: float
    problem: str = ""

    @property
    def transferred(self) -> bool:
        """Whether the flips were made against another model."""
        return self.attempt.source not in ("", self.victim)

    def __str__(self) -> str:
        against = f" against {self.attempt.source}" if self.transferred else ""
        return f"{self.attempt.attack}{against}, {self.attempt.budget:.0%}"


@dataclass(frozen=True)
class Envelope:
    """For each budget, the worst outcome: that of the attempt after which the fewest test nodes were right."""

    worst: Mapping[float, AttemptOutcome]

    def accuracy(self, budget: float) -> float:
        """Test accuracy in percent that is left at a budget."""
        return self.worst[budget].after

    @classmethod
    def of(cls, outcomes: Iterable[AttemptOutcome], budgets: Sequence[float]) -> Envelope:
        """The worst of all outcomes with at most this budget: an attacker may leave flips unused."""
        known = list(outcomes)
        allowed = {budget: [one for one in known if one.attempt.budget <= budget] for budget in budgets}
        return cls({budget: min(found, key=lambda one: one.after) for budget, found in allowed.items() if found})


def check_budgets(budgets: Sequence[float], data: Data | None = None) -> tuple[float, ...]:
    """Return the budgets, sorted; raises unless each is a share of the edges, and at least one flip on ``data``."""
    if isinstance(budgets, int | float) or not budgets:
        raise ConfigError(f"budgets must be a list of shares of the edges, such as [0.05, 0.1]; it is {budgets!r}.")
    for budget in budgets:
        check_number("A budget (flips as a share of the edges)", budget, 0, 10, "(]")
        if data is not None:
            flips_of(budget, data)
    return tuple(sorted({float(budget) for budget in budgets}))


def flips_of(budget: float, data: Data) -> int:
    """The number of flips of a budget; rounded down, as Mujkanovic et al. do."""
    count = int(budget * (data.num_edges // 2))
    if count < 1:
        raise ConfigError(f"A budget of {budget:g} is less than one flip on a graph of {data.num_edges // 2} edges.")
    return count
