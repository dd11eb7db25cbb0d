"""The tables of docs/speed.md, from the records of benchmarks on an idle machine.

    OMP_NUM_THREADS=1 python benchmarks/run.py --only asmp-appnp --only asmp-bytes --only epoch-asgnn \
        --only epoch-appnp --only epoch-gcn --only start-up -o docs/records/bench-cpu.json
    OMP_NUM_THREADS=1 python benchmarks/distributed.py -o docs/records/distributed.json
    python scripts/speed_table.py
"""

from __future__ import annotations

import json
from pathlib import Path

from pages import fill

DOCS = Path(__file__).parents[1] / "docs"
RECORD, PAGE = DOCS / "records" / "bench-cpu.json", DOCS / "speed.md"
DISTRIBUTED = DOCS / "records" / "distributed.json"


def tables() -> dict[str, list[str]]:
    """One row for each other side of a case: its time, ours, and ours divided by it."""
    lines = ["| case | ours | compared with | its time | ours / its |", "|:--|--:|:--|--:|--:|"]
    for case in json.loads(RECORD.read_text())["cases"]:
        ours, *others = case["sides"]
        for side in others:
            ratio = ours["seconds"] / side["seconds"]
            lines.append(f"| {case['name']} | {_time(ours)} | {side['name']} | {_time(side)} | {ratio:.2f} |")
    return {"cpu": lines, "distributed": _distributed()}


def _distributed() -> list[str]:
    """One row for each training: processes, time, bytes, and how far the losses are from those of one process."""
    lines = [
        "| graph | precision | processes | nodes divided by | time of an epoch | of the processor "
        "| rows sent per epoch | sums per epoch | largest difference of a loss |",
        "|:--|:--|--:|:--|--:|--:|--:|--:|--:|",
    ]
    for row in json.loads(DISTRIBUTED.read_text())["rows"]:
        cells = [row["graph"], row["dtype"], f"{row['processes']}{', last digit' if 'what' in row else ''}"]
        cells.append({"metis": "METIS", "order": "order", None: "–"}[row["partition"]])
        cells += [_time({"seconds": row[name]}) if name in row else "–" for name in ("seconds", "processor_seconds")]
        cells += [_bytes(row[name]) if name in row else "–" for name in ("row_bytes", "sum_bytes")]
        cells.append(f"{row['difference']:.0e}" if "difference" in row else "–")
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _bytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.0f} kB"


def _time(side: dict[str, float]) -> str:
    seconds = side["seconds"]
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.2f} ms"


if __name__ == "__main__":
    fill(PAGE, tables())
