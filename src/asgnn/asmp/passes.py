"""The half-steps of ASMP for q as passes over the nodes, which the backends "cpu" and "gpu" share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from asgnn.asmp.params import HalfStep, Scheme


def of_q(scheme: Scheme) -> bool:
    """Whether the variant alternates between H and S for q, which is what the passes are for."""
    adaptive = scheme.structure != "frozen" and scheme.objective == "degree"
    return adaptive and scheme.update == "alternating" and not scheme.unit_norm


@dataclass(frozen=True)
class Plan:
    """The half-steps as passes over the nodes; a structure step and the feature step after it are one pass.

    Attributes:
        passes: (passes, 7) int64: whether a pass does a structure step and a feature step, whether it reads S = A, and
            the positions of H before and after it, and of S before and after it; −1 is the start.
        results: for each result of the run, the pass and what it is.
    """

    passes: NDArray[Any]
    results: tuple[tuple[int, Literal["H", "S"]], ...]


@lru_cache
def plan_of(half_steps: tuple[HalfStep, ...], record: bool) -> Plan:
    """The passes of these half-steps, whose results are those of all that end, if ``record``, or of the last."""
    passes: list[list[int]] = []
    results: list[tuple[int, Literal["H", "S"]]] = []
    h = z = -1
    for position, step in enumerate(half_steps):
        before = h, z
        joined = step.kind == "H" and bool(passes) and passes[-1][:2] == [1, 0]
        if step.kind == "H":
            h += 1
        else:
            z += 1
        if joined:
            passes[-1][1], passes[-1][4] = 1, h
        else:
            passes.append([step.kind == "S", step.kind == "H", z < 0, before[0], h, before[1], z])
        if step.ends if record else position == len(half_steps) - 1:
            results.append((len(passes) - 1, "H" if step.kind == "H" else "S"))
    return Plan(np.array(passes, dtype=np.int64).reshape(-1, 7), tuple(results))


def segments(passes: int, recompute: bool) -> list[range]:
    """The passes in parts: one part that is kept, or about √passes parts of which only the start is kept.

    The backward pass computes a part again before it goes through it, so it needs the memory of about 2√passes passes,
    and one more forward pass.
    """
    size = max(1, math.isqrt(max(0, passes - 1)) + 1) if recompute else max(1, passes)
    return [range(start, min(start + size, passes)) for start in range(0, passes, size)]
