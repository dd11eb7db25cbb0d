"""What a report needs of a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from asgnn.experiments.values import Choice, Outcome, Series


class Totals(Protocol):
    """Of everything in a store, what a search tried besides included."""

    @property
    def trainings(self) -> int: ...

    @property
    def seconds(self) -> float: ...

    @property
    def attacks(self) -> int: ...

    @property
    def attack_seconds(self) -> float: ...


class Source(Protocol):
    def get(self, keys: list[str], /) -> Mapping[str, Outcome]: ...

    def choices(self) -> Sequence[Choice]: ...

    def series(self, kind: str, /) -> Sequence[Series]: ...

    def summary(self) -> Totals: ...
