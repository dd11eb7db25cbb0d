"""Models under attackers who know them, beside the published figures, from the record of that name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from asgnn.experiments.records import REMEMBERS, Rows
from asgnn.experiments.spec import read_toml

CONTROL = "control"  # the role of a model that is no defence


@dataclass(frozen=True)
class EnvelopeLine:
    """One model: the accuracy that is left at each budget, in percent, and the attack that was the worst at the last.

    ``role`` is "model", "control" or "published".
    """

    model: str
    role: str
    figures: tuple[float | None, ...]
    worst: str = ""


@dataclass(frozen=True)
class EnvelopeTable:
    """The models on one graph under one kind of attack; ``budgets`` are shares of the edges or, locally, of degrees."""

    graph: str
    kind: str
    budgets: tuple[float, ...]
    lines: tuple[EnvelopeLine, ...]

    @property
    def title(self) -> str:
        return f"{self.graph}, {self.kind}"

    @property
    def columns(self) -> list[str]:
        return ["clean" if not budget else f"{budget:.0%}" for budget in self.budgets]


@dataclass(frozen=True)
class KnowingAttackers:
    """All tables, and what they say."""

    tables: tuple[EnvelopeTable, ...]
    findings: tuple[str, ...]


def knowing_attackers(rows: Rows) -> KnowingAttackers:
    """The record as tables, in the order of its rows; published figures come last in each."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["graph"], row["kind"]), []).append(row)
    tables = tuple(_table(graph, kind, group) for (graph, kind), group in groups.items())
    return KnowingAttackers(tables, tuple(_findings(tables)))


def _table(graph: str, kind: str, rows: Sequence[Mapping[str, Any]]) -> EnvelopeTable:
    budgets = tuple(sorted({row["budget"] for row in rows}))
    models = {row["model"]: row for row in rows}  # in the order of the record; the last row has the largest budget
    lines = []
    for model, last in models.items():
        of = {row["budget"]: row["accuracy"] for row in rows if row["model"] == model}
        role = CONTROL if last["control"] else "model"
        lines.append(EnvelopeLine(model, role, tuple(of.get(budget) for budget in budgets), last["worst"]))
    return EnvelopeTable(graph, kind, budgets, (*lines, *_published(graph, kind, budgets)))


def _published(graph: str, kind: str, budgets: Sequence[float]) -> Iterator[EnvelopeLine]:
    found = read_toml("published")["challenge"]
    known = found["shares" if kind == "single nodes" else "budgets"]
    for model, figures in found.get(kind, {}).get(graph, {}).items():
        of = {budget: figure for budget, figure in zip(known, figures, strict=True) if figure >= 0}
        yield EnvelopeLine(model, "published", tuple(of.get(budget) for budget in budgets))


def _findings(tables: Sequence[EnvelopeTable]) -> Iterator[str]:
    """For each table, which model keeps most at its last budget, beside the best control and published model."""
    for table in tables:
        best = {role: _best(table, role) for role in ("model", CONTROL, "published")}
        if best["model"] is None:
            continue
        where = f"{table.title}, {table.columns[-1]}"
        text = f"{where}: {best['model'].model} keeps most, {best['model'].figures[-1]:.1f} %"
        if best[CONTROL] is not None:
            text += f"; the best control ({best[CONTROL].model}) has {best[CONTROL].figures[-1]:.1f} %"
        if best["published"] is not None:
            text += f", the best published model ({best['published'].model}) {best['published'].figures[-1]:.1f} %"
        yield f"{text}."


def _best(table: EnvelopeTable, role: str) -> Any:
    """The line of a role that keeps most; what remembers the clean graph is no floor and does not count."""
    lines = [one for one in table.lines if one.role == role and one.figures[-1] is not None and one.model != REMEMBERS]
    return max(lines, key=lambda one: one.figures[-1] or 0.0, default=None)
