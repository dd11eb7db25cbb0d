"""Output of the benchmarks: a table on stdout, a JSON file and an exit code."""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch_geometric

from asgnn.experiments.machine import machine

COLUMNS = "{:<15} {:<16} {:>10} {:>8} {:>15} {:>10} {:>8}  {}"


def about(device: torch.device) -> dict[str, Any]:
    return {
        "machine": machine(device),
        "device": device.type,
        "threads": torch.get_num_threads(),
        "wait_policy": os.environ.get("OMP_WAIT_POLICY", "default"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_geometric": torch_geometric.__version__,
    }


def report(
    record: Mapping[str, Any], results: Iterable[dict[str, Any]], output: Path, kind: str, spread: str = "range"
) -> int:
    """Print each result and write all results so far to the file; return the exit code, 1 if a case failed.

    The file is written after each result, so that an interrupted run keeps its results.
    """
    print(", ".join(f"{key} {value}" for key, value in record.items()))
    print(COLUMNS.format(kind, "side", "time", "ratio", f"({spread})", "memory", "ratio", "difference"), flush=True)
    output.parent.mkdir(parents=True, exist_ok=True)
    done: list[dict[str, Any]] = []
    for result in results:
        done.append(result)
        print("\n".join(lines(result)), flush=True)
        output.write_text(json.dumps({**record, "cases": done}, indent=1) + "\n")
    failed = [result["name"] for result in done if not result["ok"]]
    if failed:
        print(f"FAILED: {', '.join(failed)}")
    return 1 if failed else 0


def lines(result: Mapping[str, Any]) -> list[str]:
    """Return a result as rows of the table."""
    margins = [f"{side} {value:.2f}" for side, value in result.get("margins", {}).items()]
    after = [f"    margin: {', '.join(margins)}"] if margins else []
    if not result["ok"]:
        why = result.get("error") or ", ".join(
            f"{c['where']} differs by {c['error']:.1e}, allowed {c['tolerance']:.0e}"
            for c in result["checks"]
            if not c["error"] <= c["tolerance"]  # true for NaN
        )
        return [f"{result['name']:<15} FAILED: {why or 'nothing was compared'}", *after]
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
    return [*out, f"    {result['what']}{unit}", *after]


def duration(seconds: float) -> str:
    if seconds >= 1000:
        return f"{seconds:.0f} s"
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "µs")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def positive(text: str) -> int:
    """Parse a positive integer for argparse."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more; it is {number}")
    return number
