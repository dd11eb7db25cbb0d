"""A step of Adam on a CPU: one loop over a parameter instead of a dozen passes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from asgnn.kernels.cpu.compiled import compiled


@compiled
def _adam(p, grad, first, second, lr, decay, power1, power2, beta1, beta2, eps):
    number = p.dtype.type
    trials, size = p.shape
    correct1, correct2 = number(1 - power1), number(1 - power2)
    one, other, keep = number(1 - beta1), number(1 - beta2), number(beta2)
    for trial in range(trials):
        rate, shrink = lr[trial], decay[trial]
        for i in range(size):
            g = grad[trial, i] + shrink * p[trial, i]
            m = first[trial, i] + one * (g - first[trial, i])
            v = keep * second[trial, i] + other * (g * g)
            first[trial, i], second[trial, i] = m, v
            p[trial, i] -= (m / correct1) / (np.sqrt(v / correct2) + number(eps)) * rate


def steps(
    parameters: Sequence[tuple[Tensor, Tensor, Tensor, Tensor]],
    lr: Tensor,
    decay: Tensor,
    powers: Sequence[Tensor],
    betas: tuple[float, float],
    eps: float,
) -> None:
    """Update parameters (T, …) and their two moments in place.

    Args:
        parameters: each with its gradient and its two moments.
        lr, decay: (T,).
        powers: β₁ᵗ and β₂ᵗ of this step, ().
        betas: β₁ and β₂.
        eps: ε.
    """
    trials = lr.numel()
    rates = lr.numpy(), decay.numpy(), *(float(power) for power in powers), *betas, eps
    for p, grad, first, second in parameters:
        arrays = [part.detach().view(trials, -1).numpy() for part in (p, grad.contiguous(), first, second)]
        _adam(*arrays, *rates)
