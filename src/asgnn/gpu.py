"""The door to the modules of Triton kernels, ``*_gpu``."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from asgnn.errors import ConfigError


def kernels(name: str) -> ModuleType:
    """A module of kernels by its full name, loaded when it is first needed: Triton is only there where a GPU is."""
    try:
        return import_module(name)
    except ImportError as cause:
        raise ConfigError(
            "On a GPU this needs Triton, which comes with torch's builds for CUDA on Linux and is not installed here; "
            "use the CPU, or pip install triton."
        ) from cause
