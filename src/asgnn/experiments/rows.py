"""The store's values as canonical text and as bytes, and back."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asgnn.errors import DataCorrupt
from asgnn.graphs import Perturbation


def text(value: Any) -> str:
    """Canonical JSON: equal values have equal texts."""
    return json.dumps(told(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def told(value: Any) -> Any:
    """JSON has no word for what a training that diverged ends with: "nan", "inf" and "-inf" are ours."""
    if isinstance(value, Mapping):
        return {name: told(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [told(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def heard(value: Any) -> Any:
    """What :func:`told` was given."""
    if isinstance(value, dict):
        return {name: heard(one) for name, one in value.items()}
    if isinstance(value, list):
        return [heard(one) for one in value]
    return float(value) if value in ("nan", "inf", "-inf") else value


def columns(values: Mapping[str, float]) -> tuple[str, str]:
    """Names, which many rows share, and numbers, which are a row's own."""
    names = sorted(values)
    return text(names), text([values[name] for name in names])


def mapping(names: str, values: str) -> dict[str, float]:
    found = dict(zip(json.loads(names), heard(json.loads(values)), strict=True))
    require(all(isinstance(value, int | float) for value in found.values()), "its figures are not numbers")
    return found


# Flips are written and read as files, with care and in one place; here they pass through one.


def pack(flips: Perturbation) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "flips.npz"
        flips.save(file)
        return file.read_bytes()


def unpack(archive: bytes) -> Perturbation:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "flips.npz"
        file.write_bytes(archive)
        try:
            return Perturbation.load(file)
        except DataCorrupt:  # its sentence names a file that is gone by now
            raise ValueError("its flips cannot be read") from None


def require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)
