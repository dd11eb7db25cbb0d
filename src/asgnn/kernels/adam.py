"""A step of Adam on a GPU: one kernel per parameter instead of a dozen."""

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024  # elements per program


@triton.jit
def _adam(
    p, grad, first, second, lr, decay, power1, power2, size,
    BETA1: tl.constexpr, BETA2: tl.constexpr, EPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    trial = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside, offset = i < size, trial * size + i
    w = tl.load(p + offset, mask=inside, other=0.0)
    g = tl.load(grad + offset, mask=inside, other=0.0) + tl.load(decay + trial) * w
    m = tl.load(first + offset, mask=inside, other=0.0)
    m += (1 - BETA1) * (g - m)
    v = BETA2 * tl.load(second + offset, mask=inside, other=0.0) + (1 - BETA2) * g * g
    correct1, correct2 = (1 - tl.load(power1)).to(w.dtype), (1 - tl.load(power2)).to(w.dtype)
    w -= (m / correct1) / (tl.sqrt(v / correct2) + EPS) * tl.load(lr + trial)
    tl.store(first + offset, m, mask=inside)
    tl.store(second + offset, v, mask=inside)
    tl.store(p + offset, w, mask=inside)


def step(
    p: Tensor,
    grad: Tensor,
    moments: tuple[Tensor, Tensor],
    lr: Tensor,
    decay: Tensor,
    powers: Sequence[Tensor],
    betas: tuple[float, float],
    eps: float,
) -> None:
    """Update p (T, …) and its two moments in place; lr and decay are (T,), powers β₁ᵗ and β₂ᵗ of this step ()."""
    size = p[0].numel()
    _adam[triton.cdiv(size, BLOCK), p.size(0)](
        p, grad.contiguous(), *moments, lr, decay, *powers, size, BETA1=betas[0], BETA2=betas[1], EPS=eps, BLOCK=BLOCK
    )
