"""The device of the kernel tests: the GPU or, without one, the CPU with Triton's interpreter."""

from __future__ import annotations

from typing import TypeVar

import torch
import triton

INTERPRETED = not torch.cuda.is_available()
DEVICE = "cpu" if INTERPRETED else "cuda"
CLOSE = {torch.float32: {"rtol": 1e-4, "atol": 1e-4}, torch.float64: {"rtol": 1e-10, "atol": 1e-10}}
assert triton.knobs.runtime.interpret == INTERPRETED, "TRITON_INTERPRET was not set when Triton was imported"

Case = TypeVar("Case")


def cases(small: list[Case], large: list[Case]) -> list[Case]:
    """The cases of a test; the interpreter, which takes milliseconds per program, runs only the small ones."""
    return small if INTERPRETED else small + large
