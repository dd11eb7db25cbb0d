"""The GPU backend: each half-step is one kernel of :mod:`asgnn.kernels.asmp_steps`. First derivatives only."""

from __future__ import annotations

import torch
from torch import Tensor

from asgnn.asmp.edges import EdgeSteps
from asgnn.asmp.objective import MIN_DEGREE
from asgnn.kernels import load


class GpuSteps(EdgeSteps):
    """:class:`~asgnn.asmp.edges.EdgeSteps` with the two half-steps as kernels."""

    def prepare(self) -> None:
        self.steps, trials = load("asmp_steps"), self.x.size(2)

        def rows(*values: Tensor) -> Tensor:
            return torch.stack([value.expand(trials) for value in values])

        self.h_coefficients = rows(
            1 - 2 * self.eta1 - 2 * self.eta1 * self.lam, 2 * self.eta1 * self.lam, 2 * self.eta1
        )
        self.s = self.s.contiguous()
        if self.scheme.structure == "frozen":
            return
        self.weight = self.a[:, 0].contiguous()
        if self.mcp:
            size, theta, trust = self.averaging()
            size = theta * size
            self.s_coefficients = rows(1 - theta, trust, size * self.mu1, size / 2, size * self.lam / 2)
            self.u = torch.zeros_like(self.s)
            return
        exact = self.scheme.structure == "exact"
        size = 1 / (2 * (self.gamma + self.mu2)) if exact else self.eta2
        s_factor = torch.zeros_like(size) if exact else 1 - 2 * size * (self.gamma + self.mu2)
        common = s_factor, 2 * size * self.gamma, size * self.mu1
        if self.scheme.objective == "paper":
            self.s_coefficients = rows(*common, size * self.lam)
        else:
            self.s_coefficients = rows(*common, size / 2, size * self.lam / 2)

    def h_step(self, h: Tensor, s: Tensor) -> Tensor:
        out: Tensor = self.steps.HStep.apply(h, self.x, s, self.h_coefficients, self.adj, MIN_DEGREE)
        return out

    def s_step(self, h: Tensor, s: Tensor) -> Tensor:
        if self.scheme.objective == "paper":
            out: Tensor = self.steps.PaperSStep.apply(h, s, self.s_coefficients, self.weight, self.adj, MIN_DEGREE)
            return out
        parts = self.s_coefficients, self.weight, self.adj, self.mcp
        if self.mcp:
            out, self.u = self.steps.DegreeSStep.apply(h, self.x, self.u, *parts)
        else:
            out, _ = self.steps.DegreeSStep.apply(h, self.x, s, *parts)
        return out
