"""What a benchmark is and how it is taken: first whether the sides agree, then their times, then their memory."""

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
"""Does the work once and returns what it computed, by name: outputs and gradients."""


@dataclass(frozen=True)
class Side:
    """One way of doing the work; its time is given for each of ``units`` (epochs, edges) it does in one run."""

    run: Run
    units: int = 1


@dataclass(frozen=True)
class Case:
    """Ways of doing the same work, ours first.

    Attributes:
        what: one line for the reader.
        sides: by name; ratios are to the first.
        tolerance: of every check, as a share of the largest value compared.
        unit: what a time is given for.
        pairs: what is compared where it is not what is timed, because the timed sides draw random numbers of their
            own or there is only one of them; by default the first side with each other.
        memory: whether the peak is worth a fresh process for each side on a CPU; on a GPU it is always taken.
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
    """The largest difference of two sides, as a share of the largest value, and where it is."""

    where: str
    error: float
    tolerance: float

    @property
    def ok(self) -> bool:
        return self.error <= self.tolerance  # false for NaN


@dataclass(frozen=True)
class Timing:
    """Seconds a unit, and how many times as long as the first side: median and quartiles over the rounds."""

    seconds: float
    ratio: float
    ratio_low: float
    ratio_high: float
    rounds: int


def compare(ours: Values, other: Values, tolerance: float) -> Check:
    """The worst of all values; different names or shapes, and anything not finite, count as infinitely wrong."""
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
    """Every side once a round, in turn, until ``seconds`` are over; from ``fewest`` to ``most`` rounds.

    A ratio is taken within a round, so that what slows the machine down for a while slows both of its parts.
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
    """Bytes that one run needs at its peak on top of what is there before it; ``None`` where this cannot be known.

    On a GPU what torch allocates. On a CPU the growth of the process, which must be a fresh one: memory that was used
    before and kept by the allocator would hide some of it. Linux's VmHWM is read, and not ru_maxrss: the latter
    starts, in a child, at the size of its parent.
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
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again; refused, it is that of the set-up too
    resting = resident("VmRSS")
    run()
    peak = resident("VmHWM")
    return None if resting is None or peak is None else max(0, peak - resting)


def resident(field: str) -> int | None:
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
    return None


def _start_libraries() -> None:
    """Let torch start its threads and take its buffers, so that they are not counted."""
    a = torch.rand(256, 256, requires_grad=True)
    ((a @ a).relu() @ a).sum().backward()  # type: ignore[no-untyped-call]
    torch.eye(256).to_sparse_csr() @ a.detach()


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
