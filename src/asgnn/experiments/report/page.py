"""The data that the script of the HTML page draws, ready for JSON."""

from __future__ import annotations

import math
from typing import Any

from asgnn.experiments.records import RECORDS, Rows
from asgnn.experiments.report import text
from asgnn.experiments.report.challenge import EnvelopeTable
from asgnn.experiments.report.data import Report, WorseCell
from asgnn.experiments.report.edges import MEASURES, EdgeFinding
from asgnn.experiments.report.generality import Generality
from asgnn.experiments.report.layers import LayerCurves
from asgnn.experiments.report.published import AgainstPublished
from asgnn.experiments.report.tables import GROUPS, AdaptiveGain, MeanStd, ReportTable, TableCell, metric
from asgnn.experiments.spec import Row


def page_data(report: Report) -> dict[str, Any]:
    names = dict.fromkeys(name for table in report.tables for cell in table.cells for name in cell.figures)
    names |= dict.fromkeys(table.spec.figure for table in report.tables)
    story = report.story
    return {
        "story": {"tables": story.tables, "rows": story.rows, "paper": story.paper},
        "groups": GROUPS,
        "scalars": text.SCALARS,
        "terms": text.TERMS,
        "metrics": {name: vars(metric(name)) for name in names},
        "tables": [_table(table) for table in report.tables],
        "worse": [_worse(one) for one in report.worse],
        "layers": [_layers(one) for one in report.layers],
        "machines": [vars(one) for one in report.machines],
        "published": [_published(one) for one in report.published],
        "generality": report.generality and _generality(report.generality),
        "challenge": report.challenge and [_envelopes(table) for table in report.challenge.tables],
        "edges": report.edges and _edges(report.edges),
        "records": {kind: _record(kind, rows) for kind, rows in report.records.items()},
    }


def _table(table: ReportTable) -> dict[str, Any]:
    spec = table.spec
    cells: dict[str, dict[str, Any]] = {rule: {} for rule in spec.rules}
    for rule, dataset, lines in table.parts:
        cells[rule][dataset] = {row: [_cell(cell) for cell in line] for row, line in lines.items()}
    return {
        "name": spec.name,
        "title": spec.title,
        "figure": spec.figure,
        "unit": spec.unit,
        "columns": table.columns,
        "rates": spec.rates,
        "datasets": table.datasets,
        "rules": spec.rules,
        "rows": [
            {
                "name": row.name,
                "label": table.labels[row.name],
                "group": row.group,
                "twin": row.twin,
                "against": _against(table, row),
            }
            for row in table.rows
        ],
        "assumed": spec.assumed,
        "intro": spec.intro,
        "cells": cells,
    }


def _cell(cell: TableCell) -> dict[str, Any]:
    found: dict[str, Any] = {"paper": _pair(cell.paper)} if cell.paper else {}
    if cell.choice is None or not cell.outcomes:
        return found
    return found | {
        "ours": {name: [*_pair(figure), cell.ranks.get(name, 0)] for name, figure in cell.figures.items()},
        "difference": _finite(cell.difference),
        "gain": cell.gain and _gain(cell.gain),
        "compared": {name: _gain(gain) for name, gain in cell.compared.items()},
        "ensemble": cell.ensemble,
        "trials": len(cell.outcomes),
        "wanted": len(cell.choice.trainings),
        "diverged": text.diverged(cell),
        "rule": cell.choice.rule,
        "search": cell.choice.search,
        "tried": cell.choice.tried,
        "settings": text.settings(cell.choice.settings),
        "seconds": _short(sum(outcome.seconds for outcome in cell.outcomes)),
        "machines": sorted({f"{outcome.machine}, {outcome.version}" for outcome in cell.outcomes}),
        "scalars": {name: list(map(_short, values)) for name, values in cell.scalars.items()},
    }


def _against(table: ReportTable, row: Row) -> list[list[str]]:
    """The rows that a row is compared with: name and label."""
    return [[name, table.labels[name]] for name in row.against if name in table.labels]


def _gain(gain: AdaptiveGain) -> dict[str, Any]:
    return {"difference": _finite(gain.difference), "p": text.p_value(gain), "trials": gain.trials}


def _published(one: AgainstPublished) -> dict[str, Any]:
    cell, spec = one.cell, one.table.spec
    return {
        "table": spec.name,
        "dataset": cell.dataset,
        "column": spec.column(cell.rate),
        "rate": cell.rate,
        "rule": cell.chosen_by,
        "row": one.label,
        "digits": one.table.metric.digits,
        "ours": _pair(one.ours),
        "ensemble": one.ensemble,
        "paper": _pair(one.paper),
        "best": one.best.mean,
        "by": one.best.by,
        "difference": _finite(one.difference),
    }


def _generality(found: Generality) -> dict[str, Any]:
    table = found.table
    return {
        "title": table.spec.title,
        "intro": table.spec.intro,
        "rows": [{"name": row.name, "label": table.labels[row.name]} for row in table.rows],
        "assumed": table.spec.assumed,
        "lines": [
            {
                "graph": line.graph,
                "metric": line.metric.label,
                "cells": {
                    row: [*_pair(cell.ours), text.settings(cell.choice.settings)]
                    for row, cell in line.cells.items()
                    if cell.ours and cell.choice
                },
                "best": line.best and table.labels[line.best],
                "difference": _finite(line.difference),
                "below": line.below,
                "portfolio": _finite(line.portfolio),
                "portfolioBelow": line.portfolio_below,
                "lam": line.lam and _pair(line.lam),
            }
            for line in found.lines
        ],
    }


def _envelopes(table: EnvelopeTable) -> dict[str, Any]:
    return {
        "title": table.title,
        "columns": table.columns,
        "rows": [
            {"model": one.model, "role": one.role, "figures": list(one.figures), "worst": one.worst}
            for one in table.lines
        ],
    }


def _edges(found: EdgeFinding) -> dict[str, Any]:
    return {
        "measures": MEASURES,
        "rows": [{**row, "column": text.rate_text(row["rate"])} for row in found.rows],
        "scores": [vars(one) for one in found.scores],
        "published": [[*place, auc] for place, auc in found.published.items()],
        "publishedLabel": found.published_label,
        "judged": found.judged,
    }


def _record(kind: str, rows: Rows) -> dict[str, Any]:
    """Each entry as its text and its value."""
    columns = RECORDS[kind].columns
    return {
        "columns": text.column_titles(columns),
        "rows": [[[text.record_entry(name, row[name]), row[name]] for name in columns] for row in rows],
    }


def _worse(one: WorseCell) -> dict[str, Any]:
    cell, table = one.cell, one.table
    return {
        "table": table.spec.name,
        "dataset": cell.dataset,
        "column": table.spec.column(cell.rate),
        "rate": cell.rate,
        "row": table.labels[cell.row],
        "rule": cell.chosen_by,
        "digits": table.metric.digits,
        "ours": _pair(cell.ours),
        "paper": _pair(cell.paper),
        "difference": _finite(cell.difference),
        "explanation": one.explanation,
    }


def _layers(one: LayerCurves) -> dict[str, Any]:
    lines = {part: {name: list(map(_short, line)) for name, line in of.items()} for part, of in one.lines.items()}
    return vars(one) | {"lines": lines}


def _pair(figure: MeanStd | None) -> list[float | None]:
    return [_finite(figure.mean), _finite(figure.std)] if figure else [None, None]


def _finite(value: float | None) -> float | None:
    """JSON has no NaN and no infinity."""
    return round(value, 6) if value is not None and math.isfinite(value) else None


def _short(value: float) -> float | None:
    """To five digits: for values that are drawn and not printed."""
    return float(f"{value:.5g}") if math.isfinite(value) else None
