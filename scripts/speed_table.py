"""The table of docs/speed.md, from the record of a benchmark on an idle machine.

    OMP_NUM_THREADS=1 python benchmarks/run.py --only asmp-appnp --only asmp-bytes --only epoch-asgnn \
        --only epoch-appnp --only epoch-gcn --only start-up -o docs/records/bench-cpu.json
    python scripts/speed_table.py
"""

from __future__ import annotations

import json
from pathlib import Path

from pages import fill

DOCS = Path(__file__).parents[1] / "docs"
RECORD, PAGE = DOCS / "records" / "bench-cpu.json", DOCS / "speed.md"


def tables() -> dict[str, list[str]]:
    """One row for each other side of a case: its time, ours, and ours divided by it."""
    lines = ["| case | ours | compared with | its time | ours / its |", "|:--|--:|:--|--:|--:|"]
    for case in json.loads(RECORD.read_text())["cases"]:
        ours, *others = case["sides"]
        for side in others:
            ratio = ours["seconds"] / side["seconds"]
            lines.append(f"| {case['name']} | {_time(ours)} | {side['name']} | {_time(side)} | {ratio:.2f} |")
    return {"cpu": lines}


def _time(side: dict[str, float]) -> str:
    seconds = side["seconds"]
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.2f} ms"


if __name__ == "__main__":
    fill(PAGE, tables())
