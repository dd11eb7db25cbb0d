r"""The penalty "mcp" of the structure step, beside the quadratic one of the paper.

For fixed H, an entry of S with target a and cost z ≥ 0 minimises :math:`s z + 2\gamma' a' f(s / a')` with

.. math:: \gamma' = \gamma + \mu_2, \qquad a' = a \gamma / (\gamma + \mu_2)

and a convex f ≥ 0 with f(1) = 0. The minimiser is :math:`s^* = a' w(u)` with :math:`u = z / 2\gamma'`, where w falls
from w(0) = 1. Here f is called the divergence and w the weight.

A step averages u over the steps, :math:`\bar u \leftarrow (1 - \theta) \bar u + \theta u`, and sets
:math:`S = a' w(\bar u)`, which lies between the old S and s*. ``docs/maths.md`` has the proofs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from asgnn.graphs.relaxed import clip

TINY = 1e-30  # targets a′ up to this count as 0, which keeps s/a′ finite
MIN_STRENGTH = 1e-6  # lower bound on γ′, only active if γ + μ₂ is almost 0


def mcp_weight(u: Tensor) -> Tensor:
    """w of u: the weight of RUNG, capped at 1; a negative u, which needs λ < 0, counts as 0."""
    return clip(u, 0.25, 1, unit=0.75).rsqrt() - 1


def mcp_divergence(r: Tensor) -> Tensor:
    """f of r ≥ 0; beyond r = 1, which only the start S = A reaches, it rises linearly."""
    return 1 / (1 + r.clamp(max=1)) - 0.5 + (r - 1).clamp(min=0) / 4


def mcp_value(s: Tensor, a: Tensor, gamma: Tensor, mu2: Tensor) -> Tensor:
    """2γ′a′ f(s/a′) for each entry; 0 where a′ is 0."""
    strength, trust = strength_and_trust(gamma, mu2)
    target = trust * a
    positive = target > TINY
    ratio = s / torch.where(positive, target, 1.0)
    return 2 * strength * torch.where(positive, target * mcp_divergence(ratio), 0.0)


def strength_and_trust(gamma: Tensor, mu2: Tensor) -> tuple[Tensor, Tensor]:
    """γ′ and a′/a."""
    strength = (gamma + mu2).clamp(min=MIN_STRENGTH)
    return strength, (gamma / strength).clamp(0, 1)


def damping(eta2: Tensor, strength: Tensor) -> Tensor:
    """θ = 2η₂γ′, clipped to [0, 1]: the weight of the new u in one step."""
    return (2 * eta2 * strength).clamp(0, 1)
