"""The report as one page that needs nothing beside it: the data as JSON, drawn by a script of the page's own."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Mapping
from importlib import resources
from typing import Any

from asgnn.experiments.report.data import THE_TEST, Cell, Figure, Lower, Report, Table, metric
from asgnn.experiments.report.layers import Layers
from asgnn.experiments.report.text import HOW_TO_READ, LOWER, TITLE, by_rule, rule_of, shown_time

SIGNIFICANT_DIGITS = 5  # of what is drawn and not printed


def as_html(report: Report) -> str:
    page, css, script = (_resource(f"page.{ending}") for ending in ("html", "css", "js"))
    findings = "".join(f"<li>{html.escape(text)}</li>" for text in report.findings[1:])
    parts = {
        "title": html.escape(TITLE),
        "lead": html.escape("".join(report.findings[:1])),
        "findings": f"<ul>{findings}</ul>" if findings else "",
        "how": html.escape(HOW_TO_READ),
        "test": html.escape(THE_TEST),
        "lower": html.escape(LOWER),
        "time": html.escape(shown_time(report)),
        "css": css,
        "script": script,
        "data": _json(content(report)),
    }
    # In one pass over the template, so that nothing put in is ever taken for a place to fill.
    pieces = page.split("%%")
    return "".join(parts[piece] if i % 2 else piece for i, piece in enumerate(pieces))


def content(report: Report) -> dict[str, Any]:
    """What the script draws."""
    names = dict.fromkeys(name for table in report.tables for cell in table.cells for name in cell.figures)
    names |= dict.fromkeys(table.spec.figure for table in report.tables)
    return {
        "metrics": {name: vars(metric(name)) for name in names},
        "tables": [_table(table) for table in report.tables],
        "lower": [_lower(one) for one in report.lower],
        "layers": [_layers(one) for one in report.layers],
        "machines": [vars(one) for one in report.machines],
    }


def _table(table: Table) -> dict[str, Any]:
    spec = table.spec
    return {
        "name": spec.name,
        "title": spec.title,
        "figure": spec.figure,
        "unit": spec.unit,
        "rates": table.rates,
        "positions": spec.rates,
        "datasets": list(spec.attacks),
        "rules": [{"name": rule, "label": by_rule(rule)} for rule in spec.rules],
        "rows": [{"name": row.name, "label": table.labels[row.name], "twin": row.twin} for row in spec.rows],
        "assumed": spec.assumed,
        "cells": {
            rule: {
                dataset: {row.name: [_cell(cell) for cell in table.line(rule, dataset, row.name)] for row in spec.rows}
                for dataset in spec.attacks
            }
            for rule in spec.rules
        },
    }


def _cell(cell: Cell) -> dict[str, Any]:
    found: dict[str, Any] = {"paper": _pair(cell.paper)} if cell.paper else {}
    if cell.choice is None or not cell.outcomes:
        return found
    return found | {
        "ours": {name: [*_pair(figure), cell.ranks.get(name, 0)] for name, figure in cell.figures.items()},
        "difference": _finite(cell.difference),
        "added": vars(cell.added) | {"difference": _finite(cell.added.difference)} if cell.added else None,
        "trials": len(cell.outcomes),
        "wanted": len(cell.choice.trainings),
        "rule": cell.choice.rule,
        "search": cell.choice.search,
        "tried": cell.choice.tried,
        "model": cell.choice.model,
        "settings": dict(cell.choice.settings),
        "seconds": _short(sum(outcome.seconds for outcome in cell.outcomes)),
        "machines": sorted({f"{outcome.machine}, {outcome.version}" for outcome in cell.outcomes}),
        "scalars": {
            name: [_short(outcome.scalars[name]) for outcome in cell.outcomes if name in outcome.scalars]
            for name in cell.outcomes[0].scalars
        },
    }


def _lower(one: Lower) -> dict[str, Any]:
    cell, table = one.cell, one.table
    return {
        "table": table.spec.name,
        "dataset": cell.dataset,
        "rate": table.spec.column(cell.rate),
        "position": cell.rate,
        "row": table.labels[cell.row],
        "rule": rule_of(cell),
        "digits": table.metric.digits,
        "ours": _pair(one.ours),
        "paper": _pair(one.paper),
        "difference": _finite(one.difference),
        "explanation": one.explanation,
    }


def _layers(one: Layers) -> dict[str, Any]:
    lines = {part: {name: list(map(_short, line)) for name, line in of.items()} for part, of in one.lines.items()}
    return vars(one) | {"lines": lines}


def _pair(figure: Figure) -> list[float | None]:
    return [_finite(figure.mean), _finite(figure.std)]


def _finite(value: float | None) -> float | None:
    """JSON has no word for what is no number."""
    return round(value, 6) if value is not None and math.isfinite(value) else None


def _short(value: float) -> float | None:
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}") if math.isfinite(value) else None


def _json(found: Mapping[str, Any]) -> str:
    """As JSON that no browser takes for anything else: with "<" written out, no text can end the script."""
    text = json.dumps(found, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _resource(name: str) -> str:
    file = resources.files("asgnn.experiments.report").joinpath("resources", name)
    return file.read_text(encoding="utf-8")
