"""Clips and thresholds that an attack can relax: where the exact function has no gradient, the relaxed one has.

Models use :func:`clip`, :func:`step` and :func:`present` in place of ``clamp`` and comparisons. Outside of
:func:`relaxed` they are exactly these.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from asgnn.errors import ConfigError
from asgnn.settings import check_number


@dataclass(frozen=True)
class Relaxation:
    """How clips and thresholds are relaxed; lengths are in units of each clip's own scale.

    Args:
        temperature: if above 0, values are smooth, too: a clip becomes a difference of softplus functions and a
            threshold a sigmoid of this width. 0 keeps the values exact (a straight-through estimate).
        reach: with temperature 0, the derivative of a clip falls linearly from 1 at its bound to 0 at this distance
            beyond it, and that of a threshold is a triangle of this half-width. ∞ passes every gradient of a clip.
    """

    temperature: float = 0.0
    reach: float = 1.0

    def __post_init__(self) -> None:
        check_number("temperature", self.temperature, 0, math.inf, "[)")
        check_number("reach", self.reach, 0, math.inf, "(]")


_CURRENT: ContextVar[Relaxation | None] = ContextVar("relaxation", default=None)


def relaxation() -> Relaxation | None:
    """Return the relaxation in force, or ``None``."""
    return _CURRENT.get()


@contextmanager
def relaxed(how: Relaxation | None) -> Iterator[None]:
    """Relax all clips and thresholds within the block, in this thread; ``None`` makes them exact again."""
    if not isinstance(how, Relaxation | None):
        raise ConfigError(f"relaxed takes a Relaxation; it was given {how!r}.")
    token = _CURRENT.set(how)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def clip(x: Tensor, low: float = -math.inf, high: float = math.inf, unit: float = 1.0) -> Tensor:
    """Return x clipped to [low, high], or its relaxation; ``unit`` is the scale of x."""
    how = _CURRENT.get()
    if how is None:
        return x.clamp(low, high)
    if how.temperature > 0:
        beta = 1 / (how.temperature * unit)
        above = x if low == -math.inf else low + F.softplus(x - low, beta)
        return above if high == math.inf else above - F.softplus(x - high, beta)
    fixed = x.detach()
    value = fixed.clamp(low, high)
    slope = (1 - (fixed - value).abs() / (how.reach * unit)).clamp(min=0)
    return value + slope * (x - fixed)


def step(x: Tensor, threshold: float, unit: float = 1.0) -> Tensor:
    """Return 1 where x ≥ threshold and 0 elsewhere, in the dtype of x, or its relaxation."""
    how = _CURRENT.get()
    if how is not None and how.temperature > 0:
        return ((x - threshold) / (how.temperature * unit)).sigmoid()
    value = (x >= threshold).to(x.dtype)
    if how is None or how.reach == math.inf:
        return value
    fixed, width = x.detach(), how.reach * unit
    slope = (1 - (fixed - threshold).abs() / width).clamp(min=0) / width
    return value + slope * (x - fixed)


def present(presence: Tensor) -> Tensor:
    """Return 1 where an edge is present (above 0) and 0 elsewhere; relaxed, the presence itself.

    Both agree for 0 and 1. Without the relaxation, an edge counts in full as soon as its weight is above 0, and the
    derivative at 0 does not see it.
    """
    return (presence > 0).to(presence.dtype) if _CURRENT.get() is None else presence


def median_gradient(median: Tensor, mean: Tensor) -> Tensor:
    """Return the median, whose derivative in the edge weights is 0; relaxed, with the derivative of ``mean``."""
    return median if _CURRENT.get() is None else median + (mean - mean.detach())


__all__ = ["Relaxation", "clip", "median_gradient", "present", "relaxation", "relaxed", "step"]
