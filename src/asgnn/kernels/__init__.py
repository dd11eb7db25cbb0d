"""GPU kernels in Triton: tensors in, tensors out. The CPU never needs them, so they are imported when first used."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from asgnn.errors import ConfigError


def load(name: str) -> ModuleType:
    """The module of kernels ``asgnn.kernels.name``; a :class:`~asgnn.errors.ConfigError` where Triton is missing."""
    try:
        return import_module(f"asgnn.kernels.{name}")
    except ModuleNotFoundError as cause:
        if (cause.name or "").partition(".")[0] != "triton":
            raise
        raise ConfigError(
            "On a GPU this needs Triton, which comes with torch's builds for CUDA on Linux and is not installed here; "
            "use the CPU, or pip install triton."
        ) from cause
