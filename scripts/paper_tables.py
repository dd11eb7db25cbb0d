"""Update the tables of the README and of docs/reproduction.md from docs/results and docs/records/search.json.

python scripts/paper_tables.py
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from pages import fill
from search_record import RECORD

from asgnn.experiments.report.data import SIGNIFICANT, collect
from asgnn.experiments.report.generality import Generality
from asgnn.experiments.report.tables import ReportTable, TableCell
from asgnn.experiments.report.text import signed
from asgnn.experiments.store import Store

ROOT = Path(__file__).resolve().parents[1]
STORE = ROOT / "docs" / "results" / "results.sqlite"
RULE = "validation"
ROWS = {
    "gcn": "GCN",
    "gcn-jaccard": "GCN-Jaccard",
    "gcn-svd": "GCN-SVD",
    "elastic": "Elastic GNN",
    "appnp": "APPNP",
    "asgnn-frozen": "ASGNN, frozen",
    "asgnn": "ASGNN",
}
TUNED = {
    "mlp": "MLP",
    "gcn-tuned": "GCN",
    "appnp-tuned": "APPNP",
    "rung-tuned": "RUNG",
    "asgnn-edge-free": "ASGNN, no edges",
    "asgnn-tuned": "ASGNN",
    "asgnn-features": "ASGNN + features",
}
# "ASGNN + witness" is not tuned: it stands for a user who expects a targeted attack, which validation cannot see.
TARGETED = {**TUNED, "rung-features": "RUNG + features", "asgnn-witness": "ASGNN + witness"}
# rows, settings and datasets where one setting decides the result under a targeted attack
HELD = (
    ("gcn-jaccard", "threshold", "cora"),
    ("gcn-jaccard", "threshold", "cora_ml"),
    ("gcn-svd", "rank", "acm"),
    ("elastic", "num_layers", "citeseer"),
)


def tables() -> dict[str, dict[str, list[str]]]:
    """Page → name of the table → lines."""
    with Store.open(STORE, create=False) as store:
        report = collect(store)
    first, second = (next(table for table in report.tables if table.spec.name == name) for name in ("table1", "table2"))
    record = json.loads(RECORD.read_text())
    assert report.generality is not None
    return {
        "README.md": {"features": _features(first, (0.0, 0.1, 0.25), TUNED)},
        "docs/reproduction.md": {
            "features": _features(first, first.spec.rates, TUNED),
            "features-targeted": _features(second, second.spec.rates, TARGETED),
            "searched": _searched(first, (0.0, 0.25)),
            "targeted": _searched(second, (0.0, 5.0)),
            "others": _others(report.generality),
            "adaptivity": _adaptivity(first),
            "adaptivity-targeted": _adaptivity(second),
            "held": _held(second, record["table2"]),
            "sees": _sees((first, second), record),
        },
    }


def _searched(table: ReportTable, rates: Sequence[float]) -> list[str]:
    """Accuracies at some rates; settings from the paper's grid, chosen on validation nodes."""
    lines = [
        f"| graph, flips | {' | '.join(ROWS.values())} | the paper's ASGNN |",
        f"|---|{'---:|' * (len(ROWS) + 1)}",
    ]
    for dataset in table.spec.attacks:
        for rate in rates:
            cells = [table.line(RULE, dataset, row)[table.spec.rates.index(rate)] for row in ROWS]
            means = [_mean(cell) for cell in cells]
            shown = [f"**{mean:.1f}**" if mean == max(means) else f"{mean:.1f}" for mean in means]
            paper = cells[list(ROWS).index("asgnn")].paper
            assert paper is not None
            lines.append(f"| {dataset}, {table.spec.column(rate)} | {' | '.join(shown)} | {paper.mean:.1f} |")
    return lines


def _features(table: ReportTable, rates: Sequence[float], rows: dict[str, str]) -> list[str]:
    """Accuracies of rows that use features or are tuned; of the last one also that of its trials' mean probability."""
    head = [*rows.values(), "ensemble", "best published"]
    lines = [f"| graph, flips | {' | '.join(head)} |", f"|---|{'---:|' * len(head)}"]
    for dataset, rate in itertools.product(table.spec.attacks, rates):
        cells = [table.line(RULE, dataset, row)[table.spec.rates.index(rate)] for row in rows]
        means = [cell.ours.mean for cell in cells if cell.ours]
        shown = [f"**{mean:.1f}**" if mean == max(means) else f"{mean:.1f}" for mean in means]
        best = table.spec.best_published(dataset, rate)
        together = cells[-1].ensemble.get(table.spec.figure)
        assert best is not None
        assert together is not None
        label = f"{dataset}, {table.spec.column(rate)}"
        lines.append(f"| {label} | {' | '.join(shown)} | {together:.1f} | {best.mean:.1f} |")
    return lines


def _others(found: Generality) -> list[str]:
    """Other graphs: ASGNN by search and by portfolio, the other models, and the learned λ."""
    rows = [row.name for row in found.table.rows]
    lines = [f"| graph | {' | '.join(found.labels)} | learned λ |", f"|---|{'---:|' * (len(rows) + 1)}"]
    for line in found.lines:
        means = [line.cells[row].ours for row in rows]
        best = max(mean.mean for mean in means if mean)
        shown = ["–" if m is None else f"**{m.mean:.1f}**" if m.mean == best else f"{m.mean:.1f}" for m in means]
        lines.append(f"| {line.graph} | {' | '.join(shown)} | {line.lam.text(1) if line.lam else '–'} |")
    return lines


def _adaptivity(table: ReportTable) -> list[str]:
    """The gain of an adaptive over a frozen structure, with the same search for both."""
    lines = _head(table)
    for row, label in (("asgnn", "degree"), ("asgnn-paper", "paper")):
        for dataset in table.spec.attacks:
            shown = []
            for cell in table.line(RULE, dataset, row):
                assert cell.gain is not None
                clear = cell.gain.p is not None and cell.gain.p < SIGNIFICANT
                shown.append(signed(cell.gain.difference, 1) + ("*" if clear else ""))
            lines.append(f"| `{label}`, {dataset} | {' | '.join(shown)} |")
    return lines


def _held(table: ReportTable, record: dict[str, Any]) -> list[str]:
    """Validation accuracy and accuracy on the targets at five flips, for each value of one setting."""
    lines = ["| | each value: validation → attacked nodes | the paper's |", "|---|---|---:|"]
    for row, setting, dataset in HELD:
        found = record[row][dataset]["5"][setting]
        best = max(val for val, _ in found.values())
        shown = (
            f"{value}: **{val:.1f}** → {figure:.1f}" if val == best else f"{value}: {val:.1f} → {figure:.1f}"
            for value, (val, figure) in found.items()
        )
        paper = table.line(RULE, dataset, row)[-1].paper
        assert paper is not None
        lines.append(f"| {ROWS[row]}, {dataset}, {setting} | {', '.join(shown)} | {paper.mean:.1f} |")
    return lines


def _sees(tables: Sequence[ReportTable], record: dict[str, Any]) -> list[str]:
    """The rank correlation between a rule's figure and the table's figure, averaged over the rows."""
    lines = _head(tables[-1])
    for table in tables:
        for rule, dataset in itertools.product(table.spec.rules, table.spec.attacks):
            of_rows = [row[dataset].values() for row in record[table.spec.name].values()]
            shown = (fmean(entry["sees"][rule] for entry in column) for column in zip(*of_rows, strict=True))
            label = f"{table.spec.name.replace('table', 'Table ')}, {rule}, {dataset}"
            lines.append(f"| {label} | {' | '.join(signed(value, 2) for value in shown)} |")
    return lines


def _head(table: ReportTable) -> list[str]:
    return [f"| | {' | '.join(table.columns)} |", f"|---|{'---:|' * len(table.columns)}"]


def _mean(cell: TableCell) -> float:
    assert cell.ours is not None
    assert cell.choice is not None
    assert cell.choice.search == "paper"
    return cell.ours.mean


if __name__ == "__main__":
    for page, found in tables().items():
        fill(ROOT / page, found)
