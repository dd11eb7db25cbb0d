"""One side of a benchmark as a process of its own that trains when it is its turn.

Two ends: ``serve`` in the process that does the work, which may be one of another environment, and ``Worker`` in the
one that measures. A process says first what it has to show for itself, then trains once for every line it is sent.
While it waits it takes no time of the processor, so the sides can take turns.
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
"""Trains once; what it returns is called when clock and memory have been read, and says what came of it."""


class CannotMeasure(Exception):
    """A sentence that says why there is nothing to compare."""


def read(path: Path | str) -> dict[str, Any]:
    """The arrays of a file."""
    with np.load(path, allow_pickle=False) as archive:
        return dict(archive)


def serve(begin: Callable[[], tuple[Mapping[str, Any], Training]]) -> None:
    """Answer on stdout; what the code that is measured prints goes to stderr."""
    with contextlib.redirect_stdout(sys.stderr):
        shown, train = begin()
        _say(shown)
        for _ in sys.stdin:
            _say(_turn(train))


def _turn(train: Training) -> dict[str, Any]:
    clock = [_now()]
    after = train(lambda: clock.append(_now()))
    clock.append(_now())
    seen = {"clock": clock, "peak_bytes": resident("VmHWM"), "threads": torch.get_num_threads()}
    return {**seen, **after()}


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _say(answer: Mapping[str, Any]) -> None:
    print(json.dumps(answer), file=sys.__stdout__, flush=True)


class Worker:
    """The process of one side; ``shown`` is what it said first."""

    def __init__(self, side: str, command: Sequence[str], env: Mapping[str, str]) -> None:
        self.side = side
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True, env=env
        )
        self.shown = self._hear()

    def turn(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, and what it said will be read
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        return self._hear()

    def _hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            code = self.process.wait()
            self.errors.seek(0)
            raise CannotMeasure(ended(self.side, code, self.errors.read()))
        found: dict[str, Any] = json.loads(line)
        return found

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.process.communicate()  # closes its stdin, at which it ends
        self.errors.close()


def ended(side: str, code: int, said: str) -> str:
    last = (said.strip() or "nothing").splitlines()[-1]
    return f"The process of {side} ended with {code} and said: {last.rstrip('.')}."
