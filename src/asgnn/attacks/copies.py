"""Several flipped copies of a graph in one call of the victim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from asgnn.attacks.problem import Problem, predict
from asgnn.attacks.surrogate import Victim
from asgnn.errors import ConfigError
from asgnn.graphs.features import Features, repeated


@dataclass(frozen=True, eq=False)
class Copies:
    """``batch`` disjoint copies of the graph of a problem: one graph of batch · N nodes.

    Attributes:
        problem: the problem.
        batch: the number of copies.
        inputs: the features of all copies.
    """

    problem: Problem
    batch: int
    inputs: Tensor | Features

    @classmethod
    def of(cls, problem: Problem, batch: int, x: Tensor) -> Copies:
        """Return the copies; raises if the victim's result for one copy depends on the others.

        Models with a low rank of the graph do so, for example.
        """
        if batch == 1:
            return cls(problem, 1, problem.inputs)
        many = repeated(x.to(problem.device), batch)
        made = cls(problem, batch, Features.of(many) if isinstance(problem.inputs, Features) else many)
        with torch.no_grad():
            alone = predict(problem.victim, problem.inputs, problem.edges.to(problem.device))
            together = made.logits([problem.edges[:, :0]])
        if not torch.allclose(alone, together[0], rtol=1e-3, atol=1e-4):
            raise ConfigError(
                "batch above 1 needs a victim whose prediction for a graph does not depend on other graphs in the same "
                "call; use batch=1 for this one."
            )
        return made

    def logits(self, flips: Sequence[Tensor]) -> Tensor:
        """Return the victim's scores (B, N, C) after each of B ≤ ``batch`` sets of flips (2, ·), from one call."""
        edges = self.shifted([self.problem.flipped(one) for one in self.padded(flips)])
        return predict(self.problem.victim, self.inputs, edges).view(self.batch, self.problem.num_nodes, -1)[
            : len(flips)
        ]

    def weighted(self, model: Victim, edges: Tensor, weight: Tensor) -> Tensor:
        """Return the scores (batch, N, C) of a model on weighted edges (2, E), each once, of all copies."""
        both = torch.cat([edges, edges.flip(0)], dim=1)
        return model(self.inputs, both, torch.cat([weight, weight])).view(self.batch, self.problem.num_nodes, -1)

    def padded(self, flips: Sequence[Tensor]) -> list[Tensor]:
        """Always the same number of copies, so that the features are prepared once."""
        return [*flips, *[self.problem.edges[:, :0]] * (self.batch - len(flips))]

    def shifted(self, edges: Sequence[Tensor]) -> Tensor:
        """Return the edges (2, ·) of all copies in the numbers of the large graph."""
        return torch.cat([one + at * self.problem.num_nodes for at, one in enumerate(edges)], dim=1)
