"""Benchmark cases and their measurement: compare the results first, then measure time and memory."""

from __future__ import annotations

import contextlib
import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

Values = Mapping[str, Tensor]
Run = Callable[[], Values]
"""Does the work once and returns the computed outputs and gradients by name."""


@dataclass(frozen=True)
class Side:
    """One implementation of the work; a run does ``units`` units (epochs, edges), and times are per unit."""

    run: Run
    units: int = 1


@dataclass(frozen=True)
class Case:
    """Implementations of the same work, ours first.

    Attributes:
        what: a one-line description.
        sides: the implementations by name; ratios are relative to the first.
        tolerance: tolerance of every check, relative to the largest compared value.
        unit: the unit of a time.
        pairs: the runs to compare, if they differ from the timed ones (because these draw different random numbers, or
            because there is only one side); by default the first side with each of the others.
        memory: whether to measure the peak memory on a CPU, which needs a new process per side; on a GPU it is always
            measured.
    """

    what: str
    sides: Mapping[str, Side]
    tolerance: float
    unit: str = "run"
    pairs: tuple[tuple[Run, Run], ...] | None = None
    memory: bool = False

    def compared(self) -> tuple[tuple[Run, Run], ...]:
        if self.pairs is not None:
            return self.pairs
        first, *others = self.sides.values()
        return tuple((first.run, other.run) for other in others)


@dataclass(frozen=True)
class Check:
    """The largest difference of two sides, relative to the largest value, and the name of that value."""

    where: str
    error: float
    tolerance: float

    @property
    def ok(self) -> bool:
        return self.error <= self.tolerance  # false for NaN


@dataclass(frozen=True)
class Timing:
    """Seconds per unit (median), and the ratio to the first side: median and quartiles over the rounds."""

    seconds: float
    ratio: float
    ratio_low: float
    ratio_high: float
    rounds: int


def compare(ours: Values, other: Values, tolerance: float) -> Check:
    """Return the check of the value that differs most.

    Different names or shapes and values that are not finite count as an infinite difference.
    """
    if ours.keys() != other.keys() or not ours:
        return Check(f"{', '.join(sorted(ours.keys() ^ other.keys())) or 'nothing'} to compare", torch.inf, tolerance)
    worst = Check("", -1.0, tolerance)
    for name, value in ours.items():
        a, b = value.detach().double().cpu(), other[name].detach().double().cpu()
        error = torch.inf
        if a.shape == b.shape and bool(a.isfinite().all() and b.isfinite().all()):
            scale = float(b.abs().max()) if b.numel() else 0.0
            error = float((a - b).abs().max()) / (scale or 1.0) if b.numel() else 0.0
        if error > worst.error:
            worst = Check(name, error, tolerance)
    return worst


def check(case: Case) -> list[Check]:
    return [compare(ours(), other(), case.tolerance) for ours, other in case.compared()]


def timings(case: Case, device: torch.device, seconds: float, fewest: int, most: int) -> dict[str, Timing]:
    """Time every side once per round for about ``seconds`` seconds, with ``fewest`` to ``most`` rounds.

    Ratios are computed within a round, so that a temporary slowdown of the machine affects both sides.
    """
    taken: dict[str, list[float]] = {name: [] for name in case.sides}
    if case.pairs is not None:  # otherwise the check has just run every side
        for side in case.sides.values():
            side.run()
    gc.collect()
    gc.disable()
    began = time.perf_counter()
    try:
        for done in range(most):
            if done >= fewest and time.perf_counter() - began > seconds:
                break
            for name, side in case.sides.items():
                _wait(device)
                start = time.perf_counter()
                side.run()
                _wait(device)
                taken[name].append((time.perf_counter() - start) / side.units)
    finally:
        gc.enable()
    first = next(iter(taken.values()))
    out = {}
    for name, values in taken.items():
        ratios = [value / reference for value, reference in zip(values, first, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
        out[name] = Timing(statistics.median(values), middle, low, high, len(values))
    return out


def peak_memory(run: Run, device: torch.device) -> int | None:
    """Return the peak memory of one run in bytes, minus the memory in use before it; ``None`` if unknown.

    On a GPU this is what torch allocates. On a CPU it is the growth of the process, which must be a new one, because
    memory that the allocator has kept from earlier work would hide a part. It reads VmHWM (Linux) and not ru_maxrss,
    which in a child process starts at the size of its parent.
    """
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
        _wait(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        _wait(device)
        return torch.cuda.max_memory_allocated(device) - before
    _start_libraries()
    gc.collect()
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak; if refused, it includes the set-up
    resting = resident("VmRSS")
    run()
    peak = resident("VmHWM")
    return None if resting is None or peak is None else max(0, peak - resting)


def resident(field: str) -> int | None:
    """Return a field of /proc/self/status in bytes, such as VmRSS or VmHWM; ``None`` if unknown."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
    return None


def _start_libraries() -> None:
    """Make torch start its threads and allocate its buffers, so that they are not counted."""
    a = torch.rand(256, 256, requires_grad=True)
    ((a @ a).relu() @ a).sum().backward()  # type: ignore[no-untyped-call]
    torch.eye(256).to_sparse_csr() @ a.detach()


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
