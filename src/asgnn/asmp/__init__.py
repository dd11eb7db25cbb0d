"""ASMP, message passing with adaptive structure, as a function of tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from asgnn.asmp.objective import Terms
from asgnn.asmp.params import (
    SCALARS,
    ASMPParams,
    Objective,
    PenaltyName,
    Scheme,
    Structure,
    SupportKind,
    Update,
)
from asgnn.asmp.propagate import BACKENDS, Backend, Propagation, propagate
from asgnn.asmp.theory import lipschitz_h, lipschitz_joint, lipschitz_s, max_eta
from asgnn.errors import ConfigError
from asgnn.graphs.adjacency import Adjacency, Normalization
from asgnn.graphs.checks import check_finite, check_floats

__all__ = [
    "BACKENDS",
    "SCALARS",
    "ASMPParams",
    "Propagation",
    "Scheme",
    "Terms",
    "asmp",
    "lipschitz_h",
    "lipschitz_joint",
    "lipschitz_s",
    "max_eta",
    "propagate",
]


def asmp(
    x: Tensor,
    edge_index: Tensor | Adjacency,
    params: ASMPParams,
    *,
    layers: int,
    edge_weight: Tensor | None = None,
    objective: Objective = "degree",
    support: SupportKind = "edges",
    structure: Structure = "adaptive",
    update: Update = "alternating",
    normalization: Normalization = "rw",
    h_steps: int = 1,
    s_steps: int = 1,
    unit_norm: bool = False,
    penalty: PenaltyName = "quadratic",
    backend: Backend = "auto",
    trace: bool = False,
) -> Propagation:
    r"""Run K layers of ASMP, starting at :math:`H = X, S = A`.

    .. math::
        H^{+} &= (1 - 2\eta_1 - 2\eta_1\lambda) H + 2\eta_1\lambda D^{-1} S H + 2\eta_1 X \\
        S^{+} &= \min\{1, \mathrm{ReLU}(S - \eta_2 T - \eta_2 \mu_1)\}

    with T the gradient in S of the smooth part of the objective (see :mod:`asgnn.asmp.dense`).

    Args:
        x: (…, N, C) float32 or float64; leading dimensions are trials that run as one batch.
        edge_index: (2, E) int64, undirected, or a prepared :class:`~asgnn.graphs.adjacency.Adjacency`.
        params: the six scalars.
        layers: K, the number of layers.
        edge_weight: (E,) in [0, 1]; ones by default. Self-loops of weight 1 are always added. It may require a
            gradient, like x and the scalars.
        objective, support, structure, update, normalization, h_steps, s_steps, unit_norm, penalty: the variant to
            run; see :class:`Scheme`.
        backend: "auto" uses "dense" if S may grow outside the edges, "gpu" on a GPU if it has kernels for the variant
            (first derivatives only), "cpu" on a CPU if Numba is installed (``asgnn[fast]``) and it has kernels for the
            variant (second derivatives are computed as by "edges"), and "edges" otherwise; the result records the
            choice.
        trace: also return the terms of the objective after every half-step.

    Per trial, time O(K E C) and memory O(N C + K E) with edge support; O(K N² C) and O(K N²) with dense support.
    """
    scheme = Scheme(objective, support, structure, update, normalization, h_steps, s_steps, unit_norm, penalty)
    check_floats(x, "(…, N, C)", batched=True)
    check_finite(x)
    for name, value in zip(SCALARS, params.resolved(), strict=True):
        if not bool(torch.as_tensor(value).isfinite().all()):
            raise ConfigError(f"{name} is {value}; it must be finite.")
    adj = Adjacency.of(edge_index, x.size(-2), edge_weight)
    found = propagate(x, adj, params, scheme, layers=layers, backend=backend, weights=True, trace=trace)
    if not bool(found.h.isfinite().all()):
        raise ConfigError("The propagation diverged: H is not finite; lower eta1 and eta2 or rescale x.")
    return found
