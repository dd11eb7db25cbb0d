"""Surrogates of a model whose clips and thresholds are relaxed, so that they do not hide its gradient."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from asgnn.attacks.problem import eval_mode
from asgnn.attacks.surrogate import Victim
from asgnn.graphs.relaxed import Relaxation, relaxed
from asgnn.settings import check_number


def straight_through(model: Victim, reach: float = 1.0) -> Victim:
    """Return the model with exact values and relaxed derivatives, to be passed as ``surrogate=``.

    A clip passes gradients from beyond its bounds, less the further beyond, and none beyond ``reach`` (in units of each
    clip's scale; ∞ passes all). A threshold has a triangular derivative. Where a model asks whether an edge has weight,
    the weight itself is used, which agrees on an unweighted graph. Models of other packages are unchanged.

    Args:
        model: a module, which is called in evaluation mode, or a function.
        reach: see :class:`~asgnn.graphs.relaxed.Relaxation`.
    """
    return _relaxed(model, Relaxation(reach=reach))


def smoothed(model: Victim, temperature: float = 0.1) -> Victim:
    """Return the model with smooth clips and thresholds, to be passed as ``surrogate=`` beside ``victim=model``.

    A clip is a difference of two softplus functions and a threshold a sigmoid, so values change, too; the gradient is
    exact for these values. The model itself is the limit for temperature → 0.

    Args:
        model: a module, which is called in evaluation mode, or a function.
        temperature: above 0; see :class:`~asgnn.graphs.relaxed.Relaxation`.
    """
    check_number("temperature", temperature, 0, math.inf, "()")
    return _relaxed(model, Relaxation(temperature))


def _relaxed(model: Victim, how: Relaxation) -> Victim:
    exact = eval_mode(model) if isinstance(model, nn.Module) else model

    def call(x: Any, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        with relaxed(how):
            return exact(x, edge_index, edge_weight)

    return call
