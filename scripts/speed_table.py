"""The tables and the plot of docs/speed.md, from the records of benchmarks on an idle machine.

    OMP_NUM_THREADS=1 python benchmarks/run.py --only asmp-appnp --only asmp-bytes --only epoch-asgnn \
        --only epoch-appnp --only epoch-gcn --only start-up -o docs/records/bench-cpu.json
    OMP_NUM_THREADS=1 python benchmarks/distributed.py -o docs/records/distributed.json
    python benchmarks/big.py …  # as docs/speed.md says
    python scripts/speed_table.py  # tables, and docs/figures/cost.svg
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pages import fill

DOCS = Path(__file__).parents[1] / "docs"
RECORD, PAGE = DOCS / "records" / "bench-cpu.json", DOCS / "speed.md"
DISTRIBUTED = DOCS / "records" / "distributed.json"
PLOT = DOCS / "figures" / "cost.svg"
DEVICES = {"gpu": "NVIDIA H200", "cpu": "two CPU cores"}


def tables() -> dict[str, list[str]]:
    """One row for each other side of a case: its time, ours, and ours divided by it."""
    lines = ["| case | ours | compared with | its time | ours / its |", "|:--|--:|:--|--:|--:|"]
    for case in json.loads(RECORD.read_text())["cases"]:
        ours, *others = case["sides"]
        for side in others:
            ratio = ours["seconds"] / side["seconds"]
            lines.append(f"| {case['name']} | {_time(ours)} | {side['name']} | {_time(side)} | {ratio:.2f} |")
    return {"cpu": lines, "distributed": _distributed(), "big": _big(), "layer": _layer()}


def record(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DOCS / "records" / f"bench-{name}.json").read_text())
    return found


def _big() -> list[str]:
    """One row for each model and graph: the time of an epoch, the peak of the memory, and what was planned.

    The records of a device are bench-big-DEVICE.json and those of other graphs, bench-big-DEVICE-….json.
    """
    lines = ["| machine | nodes | edges | features | model | epoch | peak memory | planned |"]
    lines.append("|:--|--:|--:|--:|:--|--:|--:|--:|")
    for device, machine in DEVICES.items():
        names = sorted(path.stem for path in RECORD.parent.glob(f"bench-big-{device}*.json"))
        for found in (record(name.removeprefix("bench-")) for name in names):
            lines += _models(found, machine)
    return lines


def _models(found: dict[str, Any], machine: str) -> list[str]:
    """The rows of one record."""
    lines = []
    for name in ("asgnn", "appnp", "gcn"):
        if name in found:
            row = found[name]
            planned = _bytes(row["graph_bytes_before"] + row["planned_bytes"]) if "planned_bytes" in row else "–"
            graph = found["graph"]
            cells = [machine, f"{graph['nodes']:,}", f"{row['edges']:,}", f"{graph['features']}", row["model"]]
            cells += [_time({"seconds": row["seconds_per_epoch"]}), _bytes(row["peak_bytes"]), planned]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def _layer() -> list[str]:
    """One row for each size: the time of a layer on both machines, and its bytes per second beside those of a copy."""
    lines = [f"| edges | {' | '.join(f'{name} | share of a copy' for name in DEVICES.values())} |"]
    lines.append(f"|--:|{'--:|--:|' * len(DEVICES)}")
    rows = {device: record(f"layer-{device}")["layer"] for device in DEVICES}
    for number in range(max(map(len, rows.values()))):
        cells = []
        for found in rows.values():
            row = found[number] if number < len(found) else None
            cells += (
                [_time({"seconds": row["seconds_per_layer"]}), f"{row['share_of_copy']:.0%}"] if row else ["–", "–"]
            )
        edges = next(found[number]["edges"] for found in rows.values() if number < len(found))
        lines.append(f"| {edges:,} | {' | '.join(cells)} |")
    return lines


def draw() -> None:
    """The time of a layer against the number of edges, and the time in which a copy moves the same bytes."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4), layout="constrained")
    axes = figure.subplots()
    for (device, machine), colour in zip(DEVICES.items(), ("#0072b2", "#d55e00"), strict=True):
        found = record(f"layer-{device}")
        edges = [row["edges"] for row in found["layer"]]
        taken = [1000 * row["seconds_per_layer"] for row in found["layer"]]
        floor = [1000 * row["bytes"] / found["copy_bytes_per_second"] for row in found["layer"]]
        axes.loglog(edges, taken, "o-", color=colour, label=f"one layer, {machine}")
        axes.loglog(edges, floor, "--", color=colour, label="the same bytes copied")
    axes.set_xlabel("undirected edges (20 neighbours per node, 16 columns)")
    axes.set_ylabel("milliseconds, forward and backward")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    with rc_context({"svg.hashsalt": "cost"}):  # the same file for the same records
        figure.savefig(PLOT, metadata={"Date": None})


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
    if count >= 1e9:
        return f"{count / 1e9:.1f} GB"
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.0f} kB"


def _time(side: dict[str, float]) -> str:
    seconds = side["seconds"]
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.2f} ms"


if __name__ == "__main__":
    fill(PAGE, tables())
    draw()
