"""GPU kernels in Triton, imported on first use because the CPU does not need them."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from asgnn.errors import ConfigError


def load(name: str) -> ModuleType:
    """Import the kernels ``asgnn.kernels.name``; raise :class:`~asgnn.errors.ConfigError` if Triton is missing."""
    try:
        return import_module(f"asgnn.kernels.{name}")
    except ModuleNotFoundError as cause:
        if (cause.name or "").partition(".")[0] != "triton":
            raise
        raise ConfigError(
            "Computing on a GPU needs Triton, which is not installed; use the CPU or run pip install triton (torch's "
            "CUDA builds for Linux include it)."
        ) from cause
