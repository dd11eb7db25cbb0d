"""Checkpoints of attacks, from which an interrupted attack resumes."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asgnn.errors import ConfigError, DataCorrupt
from asgnn.graphs import read_npz
from asgnn.graphs.sources import write_npz

State = dict[str, Tensor]


class Checkpoint(Protocol):
    """Loads the state of an interrupted run, and saves the state after every step."""

    def load(self) -> State | None: ...

    def save(self, state: State) -> None: ...


class FileCheckpoint:
    """A checkpoint in a NumPy archive, written at most once in ``every`` seconds and at the end of the ``with`` block.

    Leaving ``with FileCheckpoint(path, spec) as checkpoint``, also by Ctrl-C, writes the last saved state. A file of
    another attack, with another ``spec``, is an error and stays unchanged.
    """

    def __init__(self, path: str | Path, spec: Mapping[str, str], *, every: float = 1.0) -> None:
        self.path = Path(path)
        self.spec = dict(spec)
        self.every = every
        self._written = time.monotonic()
        self._waiting: State | None = None

    def __enter__(self) -> FileCheckpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self._write()

    def load(self) -> State | None:
        if not self.path.exists():
            return None
        if not self.path.is_file():
            raise DataCorrupt(f"{self.path} is a folder, a device or a pipe, not the checkpoint of an attack.")
        about = read_npz(self.path, ["spec", "names", "checksum"])
        try:
            spec, names = (json.loads(about[key].tobytes()) for key in ("spec", "names"))
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                raise ValueError("it lists no arrays")
        except (RecursionError, ValueError) as cause:
            raise DataCorrupt(f"{self.path} is not the checkpoint of an attack: {cause}.") from cause
        if spec != self.spec:
            raise ConfigError(
                f"{self.path} belongs to an attack with other settings; finish that attack, or remove the file."
            )
        arrays = read_npz(self.path, names)
        if about["checksum"].tobytes() != _checksum(spec, arrays):
            raise DataCorrupt(f"{self.path} was changed after an attack wrote it; remove it, or use --fresh.")
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def save(self, state: State) -> None:
        self._waiting = state
        if time.monotonic() - self._written >= self.every:
            self._write()

    def remove(self) -> None:
        """Delete the file once the result of the attack is written."""
        self._waiting = None
        self.path.unlink(missing_ok=True)

    def _write(self) -> None:
        if self._waiting is None:
            return
        arrays = {name: value.detach().cpu().numpy() for name, value in self._waiting.items()}
        about = {"checksum": _checksum(self.spec, arrays)}
        about |= {key: json.dumps(text).encode() for key, text in (("spec", self.spec), ("names", sorted(arrays)))}
        write_npz(self.path, arrays | {key: np.frombuffer(text, dtype=np.uint8) for key, text in about.items()})
        self._waiting = None
        self._written = time.monotonic()


def _checksum(spec: Mapping[str, str], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Of the whole state, because the attack does not check the values that it resumes from."""
    found = hashlib.sha256(json.dumps(spec, sort_keys=True).encode())
    for name in sorted(arrays):
        found.update(repr((name, arrays[name].dtype.str, arrays[name].shape)).encode())
        found.update(np.ascontiguousarray(arrays[name]).tobytes())
    return found.digest()
