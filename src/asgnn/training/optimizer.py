"""Adam with one learning rate and weight decay per trial."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from asgnn.kernels import load, on_cpu

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8


class TrialAdam:
    """Adam (Kingma & Ba, ICLR 2015) with coupled weight decay; equal to ``torch.optim.Adam`` for each trial (tests).

    Args:
        parameters: each of shape (T, …), or of any shape if ``lr`` and ``weight_decay`` are 0-dimensional.
        lr, weight_decay: (T,) or ().
    """

    def __init__(self, parameters: Iterable[Tensor], lr: Tensor, weight_decay: Tensor) -> None:
        self.parameters = list(parameters)
        self.lr, self.weight_decay = lr, weight_decay
        self.first = [torch.zeros_like(p) for p in self.parameters]
        self.second = [torch.zeros_like(p) for p in self.parameters]
        # β₁ᵗ and β₂ᵗ live on the device, so that a step captured in a CUDA graph can be replayed
        self.powers = [torch.ones((), dtype=torch.float64, device=lr.device) for _ in (BETA1, BETA2)]

    @torch.no_grad()
    def step(self, grads: Iterable[Tensor | None]) -> None:
        for power, beta in zip(self.powers, (BETA1, BETA2), strict=True):
            power *= beta
        found = [
            (p, grad, m, v)
            for p, grad, m, v in zip(self.parameters, grads, self.first, self.second, strict=True)
            if grad is not None
        ]
        if not found:
            return
        if self.lr.is_cuda and self.lr.dim():
            for p, grad, m, v in found:
                load("adam").step(p, grad, (m, v), self.lr, self.weight_decay, self.powers, (BETA1, BETA2), EPS)
        elif self.lr.dim() and (kernels := on_cpu("adam")) is not None:
            kernels.steps(found, self.lr, self.weight_decay, self.powers, (BETA1, BETA2), EPS)
        else:
            self._step_in_torch(found)

    def _step_in_torch(self, found: Iterable[tuple[Tensor, Tensor, Tensor, Tensor]]) -> None:
        correct1, correct2 = (1 - power for power in self.powers)
        for p, grad, m, v in found:
            shape = (-1, *(1,) * (p.dim() - 1)) if self.lr.dim() else ()
            grad = grad + self.weight_decay.view(shape) * p
            m.lerp_(grad, 1 - BETA1)
            v.mul_(BETA2).addcmul_(grad, grad, value=1 - BETA2)
            p.sub_(m.div(correct1) / v.div(correct2).sqrt_().add_(EPS) * self.lr.view(shape))
