"""ASMP on the rows of one part of a graph, with any backend that takes one half-step at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from asgnn.asmp.params import ASMPParams, Scheme
from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.piece import Piece


class PieceSteps:
    """The steps of a backend on a piece: H has the rows of own nodes, and the others are borrowed once after each step.

    S needs no exchange. An entry between two parts is in a row of each, and both compute it from the same rows of H and
    X. The gradient in a borrowed row goes back to its owner, which adds it to its own.

    Args:
        backend: makes the steps on the pattern of the piece.
        x: (…, own, C).
    """

    def __init__(
        self,
        backend: Callable[[Tensor, Adjacency, ASMPParams, Scheme], Any],
        x: Tensor,
        piece: Piece,
        params: ASMPParams,
        scheme: Scheme,
    ) -> None:
        assert piece.halo is not None
        self.halo = piece.halo
        self.steps = backend(self.halo.extend(x.movedim(-2, 0)).movedim(0, -2), piece.pattern, params, scheme)
        self.h, self.s, self.own = self.steps.h[: piece.own], self.steps.s, piece.own
        self._extended = self.h, self.steps.h

    def _with_borrowed(self, h: Tensor) -> Tensor:
        if self._extended[0] is not h:
            self._extended = h, self.halo.extend(h)
        return self._extended[1]

    def h_step(self, h: Tensor, s: Tensor) -> Tensor:
        out: Tensor = self.steps.h_step(self._with_borrowed(h), s)
        return out[: self.own]

    def s_step(self, h: Tensor, s: Tensor) -> Tensor:
        out: Tensor = self.steps.s_step(self._with_borrowed(h), s)
        return out

    def features(self, h: Tensor) -> Tensor:
        out: Tensor = self.steps.features(h)
        return out
