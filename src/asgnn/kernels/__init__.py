"""Kernels in Triton for the GPU and in Numba for the CPU, imported on first use because both are optional."""

from __future__ import annotations

import warnings
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from asgnn.errors import ConfigError


def load(name: str) -> ModuleType:
    """Import the GPU kernels ``asgnn.kernels.name``; raise :class:`~asgnn.errors.ConfigError` if Triton is missing."""
    try:
        return import_module(f"asgnn.kernels.{name}")
    except ModuleNotFoundError as cause:
        if (cause.name or "").partition(".")[0] != "triton":
            raise
        raise ConfigError(
            "Computing on a GPU needs Triton, which is not installed; use the CPU or run pip install triton (torch's "
            "CUDA builds for Linux include it)."
        ) from cause


USE_NUMBA = True
"""Whether the CPU kernels are used where Numba is installed; benchmarks and tests compare with torch alone."""


def on_cpu(name: str) -> ModuleType | None:
    """Import the CPU kernels ``asgnn.kernels.cpu.name``; ``None`` without Numba, the extra ``asgnn[fast]``.

    If Numba is installed but cannot be imported, a warning says why.
    """
    return _load_numba(name) if USE_NUMBA else None


@lru_cache
def _load_numba(name: str) -> ModuleType | None:
    if find_spec("numba") is None:
        return None
    try:
        return import_module(f"asgnn.kernels.cpu.{name}")
    except ImportError as cause:  # Numba refuses versions of NumPy that it was not made for
        warnings.warn(f"Numba cannot be imported, so asgnn does without its CPU kernels: {cause}", stacklevel=2)
        return None
