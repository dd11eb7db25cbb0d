"""Speed and memory of what the library does, beside other ways of doing the same.

    python benchmarks/run.py
    python benchmarks/run.py --quick --only gcn --only scaling
    python benchmarks/run.py --device cuda -o runs/bench-cuda.json

For each case the sides are compared first; where they differ by more than the case's tolerance it is FAILED, no time
is given, and the exit code is 1. A ratio is to the first side, ours: 3.0 is three times as long, or as much memory.

Where other programs use the processor, set OMP_WAIT_POLICY=PASSIVE: torch's threads otherwise wait for each other in
busy loops, and a core that is taken away makes small operations many times as long.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch_geometric
from cases import CASES, NOT_QUICK, Setting
from measure import Case, check, peak_memory, timings

from asgnn.experiments.machine import machine

COLUMNS = "{:<15} {:<16} {:>10} {:>8} {:>15} {:>10} {:>8}  {}"


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse(argv)
    setting = Setting(torch.device(arguments.device), arguments.quick)
    if arguments.peak_of is not None:
        (name,) = arguments.only
        print(json.dumps(peak_memory(CASES[name](setting).sides[arguments.peak_of].run, setting.device)))
        return 0
    record = about(setting)
    print(", ".join(f"{key} {value}" for key, value in record.items()))
    print(COLUMNS.format("case", "side", "time", "ratio", "(quartiles)", "memory", "ratio", "difference"), flush=True)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    results = []
    for name in arguments.only or [name for name in CASES if not (setting.quick and name in NOT_QUICK)]:
        results.append(measure(name, setting))
        print("\n".join(lines(results[-1])), flush=True)
        # after each case, so that what was measured is kept if the program is stopped
        arguments.output.write_text(json.dumps({**record, "cases": results}, indent=1) + "\n")
    failed = [result["name"] for result in results if not result["ok"]]
    if failed:
        print(f"FAILED: {', '.join(failed)}")
    return 1 if failed else 0


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and epochs, no large graph")
    parser.add_argument(
        "--only", choices=list(CASES), action="append", metavar="NAME", help=f"one of {', '.join(CASES)}"
    )
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/bench.json"), metavar="FILE")
    # What the program calls itself with: print the peak memory of one side of the case named by --only.
    parser.add_argument("--peak-of", metavar="SIDE", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no GPU that torch can use here; run with --device cpu")
    return arguments


def about(setting: Setting) -> dict[str, Any]:
    return {
        "machine": machine(setting.device),
        "device": setting.device.type,
        "threads": torch.get_num_threads(),
        "wait_policy": os.environ.get("OMP_WAIT_POLICY", "default"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_geometric": torch_geometric.__version__,
        "quick": setting.quick,
    }


def measure(name: str, setting: Setting) -> dict[str, Any]:
    """One case as it goes into the file: checks always, sides only where all checks hold."""
    torch.manual_seed(0)
    result: dict[str, Any] = {"name": name, "what": "", "ok": False, "checks": [], "sides": []}
    try:
        case = CASES[name](setting)
        checks = check(case)
        result |= {"what": case.what, "unit": case.unit, "checks": [asdict(c) for c in checks]}
        if not checks or not all(c.ok for c in checks):
            return result
        sides = measured_sides(name, case, setting)
    except RuntimeError as error:  # torch's own, out of memory among them: the other cases can still run
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
        raise RuntimeError(f"the process that measures the memory of {side} ended with {answer.returncode}")
    found: int | None = json.loads(answer.stdout)
    return found


def lines(result: dict[str, Any]) -> list[str]:
    """A result as rows of the table."""
    if not result["ok"]:
        why = result.get("error") or ", ".join(
            f"{c['where']} differs by {c['error']:.1e}, allowed {c['tolerance']:.0e}"
            for c in result["checks"]
            if not c["error"] <= c["tolerance"]  # NaN is wrong too
        )
        return [f"{result['name']:<15} FAILED: {why or 'nothing was compared'}"]
    worst = max(result["checks"], key=lambda c: c["error"])
    notes = [f"{worst['error']:.0e} of {worst['tolerance']:.0e}"] + [""] * len(result["sides"])
    out = []
    for row, (side, note) in enumerate(zip(result["sides"], notes, strict=False)):
        out.append(
            COLUMNS.format(
                "" if row else result["name"],
                side["name"],
                duration(side["seconds"]),
                f"{side['ratio']:.2f}",
                "" if row == 0 else f"({side['ratio_low']:.2f}–{side['ratio_high']:.2f})",
                "" if side["peak_bytes"] is None else f"{side['peak_bytes'] / 1e6:.1f} MB",
                "" if side["peak_ratio"] is None else f"{side['peak_ratio']:.1f}",
                note,
            ).rstrip()
        )
    unit = "" if result["unit"] == "run" else f"; times for one {result['unit']}"
    return [*out, f"    {result['what']}{unit}"]


def duration(seconds: float) -> str:
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "µs")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


if __name__ == "__main__":
    sys.exit(main())
