"""A file of finished trainings, one JSON object per line, so that an interrupted search resumes."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from asgnn.errors import ConfigError, DataCorrupt
from asgnn.graphs import Split, labels_of

VERSION = 1


@dataclass(frozen=True)
class Score:
    """The result of one training.

    Attributes:
        val_score, val_loss: at the best epoch, the loss after calibration; −1 and infinity if the training diverged.
        best_epoch: counted from 1.
        epochs: the epochs that were run.
        seconds: the time of its batch divided by the number of trials.
        scalars: the learned scalars by name.
    """

    val_score: float
    val_loss: float
    best_epoch: int
    epochs: int
    seconds: float
    scalars: Mapping[str, float] = field(default_factory=dict)


def graph_hash(data: Data) -> str:
    """The SHA-256 of features, edges, weights and labels. Time O(N F + E)."""
    return content_hash(data.x, data.edge_index, data.get("edge_weight"), labels_of(data))


def content_hash(*values: Tensor | None) -> str:
    """The SHA-256 of the shapes, types and contents of dense or sparse tensors."""
    found = hashlib.sha256()
    for value in values:
        for part in _parts(value):
            found.update(f"{tuple(part.shape)} {part.dtype}".encode())
            found.update(part.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


def _parts(value: Tensor | None) -> Iterable[Tensor]:
    if value is None:
        return [torch.empty(0)]
    if value.layout == torch.strided:
        return [value]
    sparse = value.detach().to_sparse_coo().coalesce()
    return [sparse.indices(), sparse.values()]


def split_hash(split: Split) -> str:
    """The SHA-256 of the training and validation nodes; no search reads the others."""
    found = hashlib.sha256()
    for part in (split.train, split.val):
        found.update(str(part.numel()).encode())
        found.update(part.cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


class TuningFile:
    """Finished trainings by key, kept in a file if a path is given.

    The first line names the graph and the split; each further line is one training. A last line that was cut off by an
    interruption is removed. Raises :class:`~asgnn.errors.ConfigError` if the file is of another graph or split, and
    :class:`~asgnn.errors.DataCorrupt` if it is not such a file.
    """

    def __init__(self, path: str | Path | None, data: Data, split: Split) -> None:
        self.path = None if path is None else Path(path)
        self.scores: dict[str, Score] = {}
        if self.path is None:
            return
        self.head = {"asgnn_tuning": VERSION, "graph": graph_hash(data), "split": split_hash(split)}
        if self.path.exists() and not self.path.is_file():
            raise ConfigError(f"{self.path} is not a file.")
        text = self.path.read_bytes() if self.path.exists() else b""
        whole = text[: text.rfind(b"\n") + 1]
        lines = whole.splitlines()
        if not lines:
            if text and not json.dumps(self.head).encode().startswith(text):
                raise DataCorrupt(f"{self.path} is not a file of trainings that tune wrote.")
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(json.dumps(self.head) + "\n")
            return
        self._check_head(_object(lines[0], self.path))
        for line in lines[1:]:
            self._read(_object(line, self.path))
        if len(whole) < len(text):
            with self.path.open("r+b") as file:
                file.truncate(len(whole))

    def _check_head(self, found: dict[str, Any]) -> None:
        if found.get("asgnn_tuning") != VERSION:
            raise DataCorrupt(f"{self.path} is not a file of trainings that this version of tune wrote.")
        for what in ("graph", "split"):
            if found.get(what) != self.head[what]:
                raise ConfigError(f"{self.path} holds trainings on another {what}; use another file.")

    def _read(self, found: dict[str, Any]) -> None:
        try:
            values = {**found["score"]}
            values["val_loss"] = math.inf if values["val_loss"] is None else values["val_loss"]
            self.scores.setdefault(found["key"], Score(**values))
        except (KeyError, TypeError) as cause:
            raise DataCorrupt(f"{self.path} has a line that is not a training.") from cause

    def add(self, scores: dict[str, Score]) -> None:
        """Keep results that are new; on return they are on the disk."""
        new = {key: score for key, score in scores.items() if key not in self.scores}
        self.scores |= new
        if self.path is None or not new:
            return
        with self.path.open("a", encoding="utf-8") as file:
            for key, score in new.items():
                values = asdict(score)
                # JSON has no infinity
                values["val_loss"] = values["val_loss"] if math.isfinite(score.val_loss) else None
                file.write(json.dumps({"key": key, "score": values}) + "\n")
            file.flush()
            os.fsync(file.fileno())


def _object(line: bytes, path: Path) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as cause:
        raise DataCorrupt(f"{path} is not a file of trainings that tune wrote.") from cause
    if not isinstance(found, dict):
        raise DataCorrupt(f"{path} is not a file of trainings that tune wrote.")
    return found
