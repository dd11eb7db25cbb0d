r"""The terms of the two objectives.

.. math::
    p(H, S) &= \|H - X\|^2 + \lambda\, \mathrm{Tr}(H^\top L_{rw} H)
               + \gamma \|S - A\|^2 + \mu_1 \|S\|_1 + \mu_2 \|S\|^2 \\
    q(H, S) &= \textstyle\sum_i D_i \|h_i - x_i\|^2 + \lambda\, \mathrm{Tr}(H^\top (D - S) H)
               + \gamma \|S - A\|^2 + \mu_1 \|S\|_1 + \mu_2 \|S\|^2

With ``penalty="mcp"``, q has the terms of :mod:`asgnn.asmp.penalties` in place of γ‖S − A‖² and μ₂‖S‖².
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from asgnn.asmp.penalties import mcp_value

# Lower bound on D. Not in the paper, which assumes D ≥ c > 0 (its Assumption 2) but lets S fall to 0. With the degree
# objective self-loops stay 1, so D ≥ 1 and the bound is never active.
MIN_DEGREE = 1e-2


@dataclass(frozen=True)
class Terms:
    """The terms of the objective at one point; every tensor has the batch shape."""

    after: Literal["start", "H", "S", "joint"]
    layer: int
    fidelity: Tensor
    smoothness: Tensor
    structure: Tensor
    l1: Tensor
    l2: Tensor

    @property
    def total(self) -> Tensor:
        return self.fidelity + self.smoothness + self.structure + self.l1 + self.l2


def paper_terms(
    h: Tensor, s: Tensor, x: Tensor, a: Tensor, average: Tensor, scalars: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """The five terms of p on dense matrices; ``average`` is D⁻¹SH, so that L_rw H = H − average."""
    lam, gamma, mu1, mu2, _, _ = scalars
    return (
        total(h - x, square=True),
        lam * total(h * (h - average)),
        gamma * total(s - a, square=True),
        mu1 * total(s.abs()),
        mu2 * total(s, square=True),
    )


def degree_terms(
    h: Tensor, s: Tensor, x: Tensor, a: Tensor, scalars: tuple[Tensor, ...], mcp: bool
) -> tuple[Tensor, ...]:
    """The five terms of q on dense matrices, with the MCP or the quadratic penalty."""
    lam, gamma, mu1, mu2, _, _ = scalars
    laplacian = torch.diag_embed(s.sum(-1)) - s
    if mcp:
        structure = total(mcp_value(s, a, gamma[..., None, None], mu2[..., None, None]))
        l2 = torch.zeros_like(structure)
    else:
        structure, l2 = gamma * total(s - a, square=True), mu2 * total(s, square=True)
    return (
        total(s.sum(-1, keepdim=True) * (h - x).square()),
        lam * total(h * (laplacian @ h)),
        structure,
        mu1 * total(s.abs()),
        l2,
    )


def total(matrix: Tensor, square: bool = False) -> Tensor:
    """The sum over the last two dimensions."""
    return (matrix.square() if square else matrix).sum((-2, -1))
