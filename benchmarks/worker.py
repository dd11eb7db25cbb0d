"""One side of a benchmark in its own process, so that the sides can take turns.

``serve`` runs in the process that does the work, possibly in another environment, and ``Worker`` in the process that
measures. A worker process first sends information about itself and then trains once for every line that it receives.
While it waits, it uses no processor time.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from measure import resident

Tick = Callable[[], None]
"""Called after each epoch."""
Training = Callable[[Tick], Callable[[], Mapping[str, Any]]]
"""Trains once and returns a function that gives the results, called after time and memory have been read."""


class CannotMeasure(Exception):
    """A side of a benchmark failed; the message says why."""


def read(path: Path | str) -> dict[str, Any]:
    """Return the arrays of a file."""
    with np.load(path, allow_pickle=False) as archive:
        return dict(archive)


def serve(begin: Callable[[], tuple[Mapping[str, Any], Training]]) -> None:
    """Answer on stdout; the output of the measured code goes to stderr."""
    with contextlib.redirect_stdout(sys.stderr):
        info, train = begin()
        _send(info)
        for _ in sys.stdin:
            _send(_measure(train))


def _measure(train: Training) -> dict[str, Any]:
    clock = [_now()]
    results = train(lambda: clock.append(_now()))
    clock.append(_now())
    measured = {"clock": clock, "peak_bytes": resident("VmHWM"), "threads": torch.get_num_threads()}
    return {**measured, **results()}


def _now() -> tuple[float, float]:
    """Return (wall, CPU) seconds."""
    return time.perf_counter(), time.process_time()


def _send(answer: Mapping[str, Any]) -> None:
    print(json.dumps(answer), file=sys.__stdout__, flush=True)


class Worker:
    """The process of one side; ``info`` is its first answer."""

    def __init__(self, side: str, command: Sequence[str], env: Mapping[str, str]) -> None:
        self.side = side
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True, env=env
        )
        self.info = self._receive()

    def turn(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the process has ended; _receive reports its error
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        return self._receive()

    def _receive(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            code = self.process.wait()
            self.errors.seek(0)
            raise CannotMeasure(failure(self.side, code, self.errors.read()))
        found: dict[str, Any] = json.loads(line)
        return found

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.process.communicate()  # closes its stdin, which ends the process
        self.errors.close()


def failure(side: str, code: int, stderr: str) -> str:
    """Return the message for a process that has ended early."""
    last = (stderr.strip() or "no output").splitlines()[-1]
    return f"The process of {side} failed with code {code}: {last.rstrip('.')}."
