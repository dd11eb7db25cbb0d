"""Shared code of the benchmarks against DeepRobust: its environment, the task file, and the ratios."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from torch_geometric.data import Data
from worker import CannotMeasure

from asgnn.errors import DataUnavailable
from asgnn.graphs import Split, published_split, random_split, to_scipy

HERE = Path(__file__).parent
ENVIRONMENT = HERE.parent / ".venv-peers"
PEER = "deeprobust==0.2.11"


def build(folder: Path) -> Path:
    """Return the interpreter of DeepRobust's environment; create it if it is missing or has other versions."""
    pins, ready, python = HERE / "peers.txt", folder / ".ready", folder / "bin" / "python"
    versions = f"{PEER}\n{pins.read_text()}"
    if ready.exists() and ready.read_text() == versions:
        return python
    print(f"creating {folder.name} for {PEER}", file=sys.stderr)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for command in (
        [sys.executable, "-m", "venv", "--clear", str(folder)],
        [*pip, "-r", str(pins)],
        # Without its dependencies, such as torchvision and gensim, which the measured code does not use.
        [*pip, "--no-deps", PEER],
    ):
        try:
            done = subprocess.run(command, capture_output=True, text=True)
        except OSError as cause:
            raise CannotMeasure(f"Cannot create the environment {folder.name} for {PEER}: {cause}.") from cause
        if done.returncode:
            error = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()[-1]
            raise CannotMeasure(f"Cannot create the environment {folder.name} for {PEER}: {error.rstrip('.')}.")
    ready.write_text(versions)
    return python


def peer_command(python: Path, script: str, *arguments: object) -> list[str]:
    # isolated from the caller's environment; not -I, because the scripts import each other
    return [str(python), "-E", "-s", str(HERE / script), *map(str, arguments)]


def choose_split(data: Data) -> tuple[Split, str]:
    try:
        return published_split("cora"), "published"
    except DataUnavailable:
        return random_split(data, 0), "random, trial 0"


def write(path: Path, data: Data, split: Split, **more: Any) -> None:
    """Write the task that both sides read, as plain arrays without pickled objects."""
    arrays: dict[str, Any] = {}
    for name, matrix in (("adjacency", to_scipy(data)), ("features", sp.csr_array(data.x.numpy()))):
        parts = {"data": matrix.data, "indices": matrix.indices, "indptr": matrix.indptr, "shape": matrix.shape}
        arrays |= {f"{name}_{part}": np.asarray(value) for part, value in parts.items()}
    arrays |= {"train": split.train, "val": split.val, "test": split.test, "labels": data.y, **more}
    np.savez(path, allow_pickle=False, **{name: np.asarray(value) for name, value in arrays.items()})


def sides(answers: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the medians of each side, ours first.

    The range of a ratio covers every time of one side divided by every time of the other.
    """
    first = next(iter(answers.values()))
    ours, size = first["seconds"], first["peak_bytes"]
    out = []
    for side, answer in answers.items():
        times, same = answer["seconds"], answer is first
        ratio = statistics.median(times) / statistics.median(ours)
        out.append(
            {
                "name": side,
                "units": 1,
                "seconds": statistics.median(times),
                "ratio": ratio,
                "ratio_low": ratio if same else min(times) / max(ours),
                "ratio_high": ratio if same else max(times) / min(ours),
                "rounds": len(times),
                "peak_bytes": answer["peak_bytes"],
                "peak_ratio": answer["peak_bytes"] / size if size and answer["peak_bytes"] else None,
                "all_seconds": times,
                "versions": answer.get("versions"),
            }
        )
    return out
