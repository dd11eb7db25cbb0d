"""Time and memory of the library, compared with other implementations of the same computation.

    python benchmarks/run.py
    python benchmarks/run.py --quick --only gcn --only scaling
    python benchmarks/run.py --device cuda -o runs/bench-cuda.json

Each case compares the results of its sides first. If they differ by more than the tolerance of the case, it is FAILED,
no time is printed, and the exit code is 1. Ratios are relative to the first side, ours: 3.0 means three times as much
time or memory.

If other programs use the processor, set OMP_WAIT_POLICY=PASSIVE. Otherwise torch's threads wait for each other in busy
loops, and small operations become many times slower when a core is taken away.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from cases import CASES, NOT_QUICK, Setting
from measure import Case, check, peak_memory, timings
from report import about, report


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse(argv)
    setting = Setting(torch.device(arguments.device), arguments.quick)
    if arguments.peak_of is not None:
        (name,) = arguments.only
        print(json.dumps(peak_memory(CASES[name](setting).sides[arguments.peak_of].run, setting.device)))
        return 0
    names = arguments.only or [name for name in CASES if not (setting.quick and name in NOT_QUICK)]
    results = (measure(name, setting) for name in names)
    record = about(setting.device) | {"quick": setting.quick}
    return report(record, results, arguments.output, "case", "quartiles")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and epochs, no large graph")
    parser.add_argument(
        "--only", choices=list(CASES), action="append", metavar="NAME", help=f"one of {', '.join(CASES)}"
    )
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/bench.json"), metavar="FILE")
    # Used by the program for its subprocesses: print the peak memory of one side of the case given by --only.
    parser.add_argument("--peak-of", metavar="SIDE", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no GPU; use --device cpu")
    return arguments


def measure(name: str, setting: Setting) -> dict[str, Any]:
    """Return the result of a case for the file: always its checks, and its sides if all checks pass."""
    torch.manual_seed(0)
    result: dict[str, Any] = {"name": name, "what": "", "ok": False, "checks": [], "sides": []}
    try:
        case = CASES[name](setting)
        checks = check(case)
        result |= {"what": case.what, "unit": case.unit, "checks": [asdict(c) for c in checks]}
        if not checks or not all(c.ok for c in checks):
            return result
        sides = measured_sides(name, case, setting)
    except RuntimeError as error:  # such as out of memory; the other cases can still run
        return {**result, "error": str(error)}
    return {**result, "ok": True, "sides": sides}


def measured_sides(name: str, case: Case, setting: Setting) -> list[dict[str, Any]]:
    seconds, fewest, most = (0.3, 1, 5) if setting.quick else (5, 3, 50)
    times = timings(case, setting.device, seconds, fewest, most)
    peaks = {side: peak(name, side, case, setting) for side in case.sides}
    first, *_ = peaks.values()
    return [
        {
            "name": side,
            "units": case.sides[side].units,
            **asdict(timing),
            "peak_bytes": size,
            "peak_ratio": size / first if first and size is not None else None,
        }
        for (side, timing), size in zip(times.items(), peaks.values(), strict=True)
    ]


def peak(name: str, side: str, case: Case, setting: Setting) -> int | None:
    if setting.device.type == "cuda":
        return peak_memory(case.sides[side].run, setting.device)
    if not case.memory:
        return None
    command = [sys.executable, __file__, "--only", name, "--peak-of", side, *(["--quick"] if setting.quick else [])]
    answer = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if answer.returncode:
        raise RuntimeError(f"the process that measures the memory of {side} failed with code {answer.returncode}")
    found: int | None = json.loads(answer.stdout)
    return found


if __name__ == "__main__":
    sys.exit(main())
