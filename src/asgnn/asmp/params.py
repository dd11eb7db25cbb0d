"""The six scalars of ASMP and the options that select its variant."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Literal

import torch
from torch import Tensor

from asgnn.errors import ConfigError
from asgnn.graphs.adjacency import Normalization
from asgnn.settings import PER_TRIAL, check_choice, check_count, check_number

Objective = Literal["paper", "degree"]
SupportKind = Literal["edges", "dense"]
Structure = Literal["adaptive", "exact", "frozen"]
Update = Literal["alternating", "joint"]
PenaltyName = Literal["quadratic", "mcp"]

MAX_STEPS = 1000
MAX_SCALAR = 1e30  # leaves room for products in float32
SCALARS = ("lam", "gamma", "mu1", "mu2", "eta1", "eta2")

Scalar = float | Tensor


@dataclass(frozen=True)
class ASMPParams:
    r"""The six scalars :math:`\lambda, \gamma, \mu_1, \mu_2, \eta_1, \eta_2`.

    Each is a number or a tensor of the batch shape of ``x`` (one value per trial). The defaults were tuned on the
    validation accuracy on three clean and three attacked graphs (``scripts/choose_defaults.py``).

    Args:
        lam: λ, the weight of the smoothness over the graph; may be negative for heterophily.
        gamma: γ, the weight of ‖S − A‖², which keeps the structure close to the given graph.
        mu1: μ₁, the weight of ‖S‖₁.
        mu2: μ₂, the weight of ‖S‖².
        eta1: η₁, the step size of the features; ``None`` is 1/(2+2λ), which makes a step an average of X and D⁻¹SH.
        eta2: η₂, the step size of the structure; ``None`` is 1/(2(γ+μ₂)), the exact minimiser for
            ``objective="degree"``.
    """

    lam: Annotated[Scalar, PER_TRIAL] = 2.6
    gamma: Annotated[Scalar, PER_TRIAL] = 2.8
    mu1: Annotated[Scalar, PER_TRIAL] = 0.0088
    mu2: Annotated[Scalar, PER_TRIAL] = 0.01
    eta1: Annotated[Scalar | None, PER_TRIAL] = None
    eta2: Annotated[Scalar | None, PER_TRIAL] = 0.023

    def __post_init__(self) -> None:
        for name in SCALARS:
            value = getattr(self, name)
            if isinstance(value, Tensor) and not value.is_complex():
                continue
            if value is None and name in ("eta1", "eta2"):
                continue
            check_number(name, value, -MAX_SCALAR, MAX_SCALAR)
            object.__setattr__(self, name, float(value))

    def resolved(self) -> tuple[Scalar, Scalar, Scalar, Scalar, Scalar, Scalar]:
        """The six values in the order of :data:`SCALARS`, with default step sizes in place of ``None``."""
        if self.eta1 is None and not isinstance(self.lam, Tensor) and self.lam == -1:
            raise ConfigError("eta1 has no default if lam is -1; set eta1.")
        curvature = self.gamma + self.mu2
        if self.eta2 is None and not isinstance(curvature, Tensor) and curvature == 0:
            raise ConfigError("eta2 has no default if gamma + mu2 is 0; set eta2.")
        eta1 = 1 / (2 + 2 * self.lam) if self.eta1 is None else self.eta1
        eta2 = 1 / (2 * curvature) if self.eta2 is None else self.eta2
        return self.lam, self.gamma, self.mu1, self.mu2, eta1, eta2

    def tensors(self, like: Tensor, batch_shape: torch.Size) -> tuple[Tensor, ...]:
        """The six scalars with the dtype and device of ``like``, each of shape () or ``batch_shape``."""
        values = []
        for name, value in zip(SCALARS, self.resolved(), strict=True):
            tensor = torch.as_tensor(value, dtype=like.dtype, device=like.device)
            if tensor.shape not in (torch.Size(), batch_shape):
                raise ConfigError(
                    f"{name} has shape {tuple(tensor.shape)}; it must be one number or one per trial, of shape "
                    f"{tuple(batch_shape)}."
                )
            values.append(tensor)
        return tuple(values)


@dataclass(frozen=True)
class HalfStep:
    """One step in H, in S, or in both.

    Attributes:
        layer: the layer, counted from 1.
        kind: what it changes.
        ends: whether it is the last of its kind in the layer; H and S are recorded after it.
    """

    layer: int
    kind: Literal["H", "S", "joint"]
    ends: bool


@dataclass(frozen=True)
class Scheme:
    """The variant of ASMP.

    Args:
        objective: "paper" is p with its recursion as printed; "degree" is q, which no half-step increases (proved).
        support: "edges" keeps S on the given edges; "dense" lets S grow anywhere (N × N memory).
        structure: "adaptive" takes gradient steps in S; "exact" minimises over S ("degree" only); "frozen" keeps S = A.
        update: "alternating" (H, then S at the new H) or "joint" (both from the old pair, as in the paper's appendix).
        normalization: "rw" is D⁻¹S; "sym" is D^(−1/2) S D^(−1/2), for a frozen structure only.
        h_steps: feature steps per layer.
        s_steps: structure steps per layer.
        unit_norm: normalise the rows of H in the structure step (not in the paper; descent of "degree" is then not
            guaranteed).
        penalty: how the weight of an edge falls with its cost ("degree" only): "quadratic" is γ‖S − A‖² of the
            objectives; "mcp" is in :mod:`asgnn.asmp.penalties`.
    """

    objective: Objective = "degree"
    support: SupportKind = "edges"
    structure: Structure = "adaptive"
    update: Update = "alternating"
    normalization: Normalization = "rw"
    h_steps: int = 1
    s_steps: int = 1
    unit_norm: bool = False
    penalty: PenaltyName = "quadratic"

    def __post_init__(self) -> None:
        check_choice("objective", self.objective, ("paper", "degree"))
        check_choice("support", self.support, ("edges", "dense"))
        check_choice("structure", self.structure, ("adaptive", "exact", "frozen"))
        check_choice("update", self.update, ("alternating", "joint"))
        check_choice("normalization", self.normalization, ("rw", "sym"))
        check_choice("penalty", self.penalty, ("quadratic", "mcp"))
        check_count("h_steps", self.h_steps, 1, MAX_STEPS)
        check_count("s_steps", self.s_steps, 1, MAX_STEPS)
        if self.structure == "exact" and self.objective != "degree":
            raise ConfigError(
                'structure="exact" needs objective="degree": the paper\'s objective has no closed-form minimiser.'
            )
        if self.penalty == "mcp" and self.objective != "degree":
            raise ConfigError('penalty="mcp" needs objective="degree"; the paper has only "quadratic".')
        if self.normalization == "sym" and self.structure != "frozen":
            raise ConfigError('normalization="sym" needs structure="frozen": the structure step is derived for D⁻¹S.')
        if self.update == "joint" and (self.h_steps, self.s_steps) != (1, 1):
            raise ConfigError('update="joint" updates H and S together, so h_steps and s_steps must both be 1.')

    def leaves_edges(self, lam: Scalar) -> bool:
        """Whether S may grow outside the edges.

        Never for q with λ ≥ 0, whose gradient there is ≥ 0, nor for penalty="mcp", where S* ≤ A.
        """
        if self.support != "dense" or self.structure == "frozen" or self.penalty == "mcp":
            return False
        return self.objective == "paper" or bool(torch.as_tensor(lam < 0).any())


@lru_cache
def half_steps(scheme: Scheme, layers: int, last_structure: bool) -> tuple[HalfStep, ...]:
    """The half-steps of ``layers`` layers in order, with the structure step of the last layer or without."""
    plan = []
    for layer in range(1, layers + 1):
        update_s = scheme.structure != "frozen" and (layer < layers or last_structure)
        if update_s and scheme.update == "joint":
            plan.append(HalfStep(layer, "joint", True))
            continue
        plan += [HalfStep(layer, "H", step == scheme.h_steps) for step in range(1, scheme.h_steps + 1)]
        if update_s:
            plan += [HalfStep(layer, "S", step == scheme.s_steps) for step in range(1, scheme.s_steps + 1)]
    return tuple(plan)
