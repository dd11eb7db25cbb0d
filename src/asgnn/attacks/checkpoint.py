"""Where a long attack keeps its state, so that an interrupted one resumes instead of starting again."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
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
    """What an attack asks of it: the state of the interrupted run, and to keep a new one after every step."""

    def load(self) -> State | None: ...

    def save(self, state: State) -> None: ...


class FileCheckpoint:
    """A checkpoint in a NumPy archive: written whole, at most once in ``every`` seconds and when the block is left.

    Use it as ``with FileCheckpoint(path, spec) as checkpoint``: leaving the block, by Ctrl-C too, writes what
    the attack saved last. A file that another attack wrote (another ``spec``) is named and not touched.
    """

    def __init__(self, path: str | Path, spec: Mapping[str, str], *, every: float = 1.0) -> None:
        self.path = Path(path)
        self.spec = dict(spec)
        self.every = every
        self._written = time.monotonic()
        self._waiting: State | None = None

    def __enter__(self) -> FileCheckpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._write()

    def load(self) -> State | None:
        if not self.path.exists():
            return None
        if not self.path.is_file():
            raise DataCorrupt(f"{self.path} is a folder, a device or a pipe, and not what an interrupted attack wrote.")
        about = read_npz(self.path, ["spec", "names", "checksum"])
        try:
            spec, names = (json.loads(about[key].tobytes()) for key in ("spec", "names"))
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                raise ValueError("it names no arrays")
        except (RecursionError, ValueError) as cause:
            raise DataCorrupt(f"{self.path} is not what an interrupted attack wrote: {cause}.") from cause
        if spec != self.spec:
            raise ConfigError(
                f"{self.path} is left from an attack with other settings; finish that one, or remove the file."
            )
        arrays = read_npz(self.path, names)
        if about["checksum"].tobytes() != _checksum(spec, arrays):
            raise DataCorrupt(f"{self.path} is not as an interrupted attack wrote it; remove it, or use --fresh.")
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def save(self, state: State) -> None:
        self._waiting = state
        if time.monotonic() - self._written >= self.every:
            self._write()

    def remove(self) -> None:
        """The attack is done and its result is written: nothing is left to go on from."""
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
    """Of all that an attack resumes from: a value out of range would be used as it is."""
    found = hashlib.sha256(json.dumps(spec, sort_keys=True).encode())
    for name in sorted(arrays):
        found.update(repr((name, arrays[name].dtype.str, arrays[name].shape)).encode())
        found.update(np.ascontiguousarray(arrays[name]).tobytes())
    return found.digest()
