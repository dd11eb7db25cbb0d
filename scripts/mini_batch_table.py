"""The tables of mini-batches in docs/speed.md, from the record of benchmarks/mini_batches.py.

python scripts/mini_batch_table.py
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from pages import fill

DOCS = Path(__file__).parents[1] / "docs"
RECORD, PAGE = DOCS / "records" / "mini_batches.json", DOCS / "speed.md"
# parts, parts of a step, how they are made
WAYS: dict[tuple[Any, ...], str] = {
    (1, None, None): "whole graph",
    (8, 2, "metis"): "8, 2, METIS",
    (40, 4, "metis"): "40, 4, METIS",
    (40, 1, "metis"): "40, 1, METIS",
    (8, 2, "order"): "8, 2, order",
    (40, 4, "order"): "40, 4, order",
}
NONE = "–"


def tables() -> dict[str, list[str]]:
    record = json.loads(RECORD.read_text())
    rows: dict[tuple[str, str], dict[tuple[Any, ...], dict[str, Any]]] = {}
    for row in record["rows"]:
        way = (row["parts"], row.get("parts_per_step"), row.get("partition"))
        rows.setdefault((row["graph"], row["model"]), {})[way] = row
    return {"mini": _accuracies(rows), "mini-cost": _costs(rows), "mini-sampling": _sampling(record["sampling"])}


def _accuracies(rows: dict[tuple[str, str], dict[tuple[Any, ...], dict[str, Any]]]) -> list[str]:
    """One line for each model on each graph, and one for the share of the edges that an epoch sees."""
    lines = [f"| graph | model | {' | '.join(WAYS.values())} |", "|:--|:--" + "|--:" * len(WAYS) + "|"]
    for graph in dict.fromkeys(graph for graph, _ in rows):
        of_graph = {model: found for (its, model), found in rows.items() if its == graph}
        for model in sorted(of_graph, key=["asgnn", "asgnn, dropout 0.5", "gcn", "appnp"].index):
            cells = [_accuracy(of_graph[model].get(way)) for way in WAYS]
            lines.append(f"| {graph} | {model} | {' | '.join(cells)} |")
        seen = [of_graph["gcn"].get(way) for way in WAYS]
        shares = [NONE if row is None else f"{row['edges_seen']:.0%}".replace("%", " %") for row in seen]
        lines.append(f"| {graph} | *edges seen* | {' | '.join(shares)} |")
    return lines


def _accuracy(row: dict[str, Any] | None) -> str:
    if row is None:
        return NONE
    percent = [100 * value for value in row["accuracy"]]
    return f"{mean(percent):.1f} ± {stdev(percent):.1f}"


def _costs(rows: dict[tuple[str, str], dict[tuple[Any, ...], dict[str, Any]]]) -> list[str]:
    """Time and memory on the larger graphs."""
    lines = [
        "| graph | model | way | steps | s / epoch | s / training | peak memory |",
        "|:--|:--|:--|--:|--:|--:|--:|",
    ]
    for (graph, model), found in rows.items():
        for way, name in WAYS.items():
            if graph.startswith("planted") and way in found:
                row = found[way]
                total = row["epochs"] * row["epoch_seconds"]
                lines.append(
                    f"| {graph} | {model} | {name} | {row['steps']} | {row['epoch_seconds']:.3f} | {total:.0f} "
                    f"| {row['peak_bytes'] / 2**20:.0f} MB |"
                )
    return lines


def _sampling(rows: list[dict[str, Any]]) -> list[str]:
    """The share of the nodes that sampled neighbourhoods of 1 % of them reach."""
    layers = list(rows[0]["reached"]["2"])
    lines = [
        f"| graph | fan-out | {' | '.join(f'{n} layers' for n in layers)} |",
        "|:--|--:" + "|--:" * len(layers) + "|",
    ]
    for row in rows:
        for fan_out, reached in row["reached"].items():
            shares = " | ".join(f"{100 * reached[n]:.0f} %" for n in layers)
            lines.append(f"| {row['graph']} | {fan_out} | {shares} |")
    return lines


if __name__ == "__main__":
    fill(PAGE, tables())
