"""What a challenge has done so far; a ledger in a store lets an interrupted one resume."""

from __future__ import annotations

from collections.abc import Iterator

from asgnn.challenge.signs import Probe
from asgnn.challenge.values import Attempt, AttemptOutcome, Made


class Ledger:
    """Flips, outcomes and the probe of one model on one graph and split; this one forgets them at its end.

    ``pool`` yields the flips that were made against any model on this graph and split, also by other challenges.
    """

    def __init__(self) -> None:
        self._made: dict[Attempt, Made] = {}
        self._outcomes: dict[Attempt, AttemptOutcome] = {}
        self._probe: Probe | None = None

    def made(self, attempt: Attempt) -> Made | None:
        return self._made.get(attempt)

    def keep_made(self, made: Made) -> None:
        self._made[made.attempt] = made

    def pool(self) -> Iterator[Attempt]:
        yield from self._made

    def outcome(self, attempt: Attempt) -> AttemptOutcome | None:
        return self._outcomes.get(attempt)

    def keep_outcome(self, outcome: AttemptOutcome) -> None:
        self._outcomes[outcome.attempt] = outcome

    def outcomes(self) -> list[AttemptOutcome]:
        return list(self._outcomes.values())

    def probe(self) -> Probe | None:
        return self._probe

    def keep_probe(self, probe: Probe) -> None:
        self._probe = probe
