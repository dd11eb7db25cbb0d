"""Restarts of an attack: the best result by the outcome for the victim is kept."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from asgnn.attacks.checkpoint import State
from asgnn.attacks.problem import Problem


class Restarts:
    """Counts the restarts of an attack and keeps its best flips; part of the attack's checkpoint."""

    def __init__(self, problem: Problem, total: int, state: State | None) -> None:
        self.problem, self.total, self.done = problem, total, 0
        self.best, self.value = torch.empty(2, 0, dtype=torch.int64), (-math.inf, -math.inf)
        if state is not None and int(state["restart"]):
            self.done, self.best = int(state["restart"]), state["best_flips"]
            self.value = problem.outcome(self.best)

    def left(self) -> Iterator[int]:
        """Yield the numbers of the restarts that remain; each must call :meth:`add` once."""
        while self.done < self.total:
            yield self.done

    def add(self, flips: Tensor) -> None:
        """Finish a restart with its result, which is kept if it is the best so far."""
        if self.total > 1:
            # the fuller set first: a restart may have found fewer allowed flips than the budget
            value = self.problem.outcome(flips)
            if (flips.size(1), value) > (self.best.size(1), self.value):
                self.best, self.value = flips, value
        else:
            self.best = flips
        self.done += 1

    def state(self) -> State:
        return {"restart": torch.tensor(self.done), "best_flips": self.best}
