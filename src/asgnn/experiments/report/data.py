"""The data of a report, collected from a store once for all formats."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from asgnn.errors import ConfigError
from asgnn.experiments.records import RECORDS, Rows, record_of
from asgnn.experiments.report.challenge import KnowingAttackers, knowing_attackers
from asgnn.experiments.report.edges import EdgeFinding, edge_finding
from asgnn.experiments.report.generality import Generality, generality
from asgnn.experiments.report.layers import LayerCurves, layer_curves
from asgnn.experiments.report.published import HEADLINE, AgainstPublished, Shortfall, against_published, shortfalls
from asgnn.experiments.report.story import Story, tell
from asgnn.experiments.report.tables import ReportTable, TableCell, report_table
from asgnn.experiments.spec import ABLATION, GENERALITY, RANDOM, TABLES, load_spec, read_toml
from asgnn.experiments.store import Store, Summary
from asgnn.experiments.values import ENSEMBLE, Outcome, count_diverged

UNEXPLAINED = "not explained yet"
WITHIN = "within the larger of the two standard deviations"
SIGNIFICANT = 0.05


@dataclass(frozen=True)
class WorseCell:
    """A cell that is worse than the paper's; ``clear`` if by more than both standard deviations."""

    table: ReportTable
    cell: TableCell
    clear: bool
    explanation: str


@dataclass(frozen=True)
class MachineUse:
    """The reported trainings of one version on one machine."""

    machine: str
    version: str
    trainings: int
    seconds: float


@dataclass(frozen=True)
class Report:
    """Everything that a report shows; ``records`` are those of the store that have no part of their own."""

    story: Story
    tables: tuple[ReportTable, ...]
    worse: tuple[WorseCell, ...]
    layers: tuple[LayerCurves, ...]
    machines: tuple[MachineUse, ...]
    totals: Summary
    findings: tuple[str, ...]
    published: tuple[AgainstPublished, ...]
    shortfalls: tuple[Shortfall, ...]
    generality: Generality | None
    challenge: KnowingAttackers | None
    edges: EdgeFinding | None
    records: Mapping[str, Rows]


def collect(store: Store) -> Report:
    """Everything that the report shows."""
    choices = store.choices()
    outcomes = store.get(sorted({key for choice in choices for key in choice.trainings}))
    ensembles = store.series(ENSEMBLE)
    names = [*(name + kind for name in TABLES for kind in ("", RANDOM)), ABLATION, GENERALITY]
    found = {name: report_table(load_spec(name), choices, outcomes, ensembles) for name in names}
    # The paper's tables are shown even if results are missing, the others only if there are results.
    with_results = {name: table for name, table in found.items() if any(cell.outcomes for cell in table.cells)}
    others = with_results.pop(GENERALITY, None)
    tables = tuple(table for name, table in found.items() if name in (*TABLES, *with_results))
    # Tables share trainings; each is counted once.
    shown = [*tables, *([others] if others else [])]
    reported = {outcome.training.key: outcome for table in shown for cell in table.cells for outcome in cell.outcomes}
    if not reported:
        raise ConfigError("The store holds no results for a table of the paper, so there is nothing to report.")
    worse = tuple(_worse(tables))
    published, short = tuple(against_published(tables)), tuple(shortfalls(tables))
    on_others = generality(others) if others else None
    findings = [*_findings(tables, worse, random=False), *_findings(tables, worse, random=True)]
    findings += [
        *_found_elsewhere(published),
        *_found_edge_free(tables, short),
        *(on_others.findings if on_others else ()),
    ]
    if diverged := count_diverged(list(reported.values())):
        affected = sum(cell.diverged > 0 for table in shown for cell in table.cells)
        findings.append(f"{diverged} of the {len(reported)} reported trainings diverged; cells affected: {affected}.")
    layers, machines = tuple(layer_curves(store, tables)), tuple(_machines(list(reported.values())))
    records = {kind: record for kind in RECORDS if (record := record_of(store, kind))}
    challenge = knowing_attackers(records.pop("challenge")) if "challenge" in records else None
    edges = edge_finding(records.pop("edges")) if "edges" in records else None
    return Report(
        story=tell(tables, layers, on_others),
        tables=tables,
        worse=worse,
        layers=layers,
        machines=machines,
        totals=store.summary(),
        findings=(*findings, *(challenge.findings if challenge else ()), *(edges.findings if edges else ())),
        published=published,
        shortfalls=short,
        generality=on_others,
        challenge=challenge,
        edges=edges,
        records=records,
    )


def _worse(tables: Sequence[ReportTable]) -> Iterator[WorseCell]:
    entries = explanations()
    seen = set()  # a choice without a rule stands under every rule, and is listed once
    for table in tables:
        for cell in table.cells:
            key = (table.spec.name, cell.choice)
            if cell.ours is None or cell.paper is None or cell.difference is None or key in seen:
                continue
            worse_by = -table.metric.better * cell.difference
            if worse_by > 0 or not math.isfinite(worse_by):
                seen.add(key)
                clear = not worse_by <= max(cell.ours.std or 0.0, cell.paper.std or 0.0)  # true for NaN, too
                yield WorseCell(table, cell, clear, explain(entries, table.spec.name, cell) if clear else WITHIN)


def explanations() -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = read_toml("explanations")["explanation"]
    return entries


def explain(entries: Sequence[Mapping[str, Any]], table: str, cell: TableCell) -> str:
    """The text of the first entry that fits the cell; a key that an entry leaves out fits every cell."""
    place = {"table": table, "row": cell.row, "dataset": cell.dataset, "rate": cell.rate, "rule": cell.rule}
    fits = (entry["text"] for entry in entries if all(entry.get(key, value) == value for key, value in place.items()))
    return str(next(fits, UNEXPLAINED))


# --- the whole store ------------------------------------------------------------------------------------------------


def _machines(outcomes: Sequence[Outcome]) -> Iterator[MachineUse]:
    for machine, version in sorted({(outcome.machine, outcome.version) for outcome in outcomes}):
        seconds = [one.seconds for one in outcomes if (one.machine, one.version) == (machine, version)]
        yield MachineUse(machine, version, len(seconds), sum(seconds))


def _findings(tables: Sequence[ReportTable], worse: Sequence[WorseCell], random: bool) -> Iterator[str]:
    """Counts over the first rule of each table: a second choice of settings is not a second chance."""
    where = " on random splits" if random else ""
    tables = [table for table in tables if table.random == random]
    first = [(table, cell) for table in tables for cell in table.cells if cell.rule == table.spec.rules[0]]
    compared = [(table, cell) for table, cell in first if cell.difference is not None]
    if compared:
        clearly = sum(one.clear and (one.table, one.cell) in compared for one in worse)
        yield (
            f"Our results{where} match or beat the paper's in {_good(compared)} of the {len(compared)} cells that both "
            f"report; in {clearly} cells they are worse by more than both standard deviations."
        )
    adaptive = {row.name: row.label for table in tables for row in table.spec.rows if row.twin}
    for name, label in adaptive.items():
        cells = [(table, cell) for table, cell in compared if cell.row == name]
        if cells:
            yield f"{label}{where}: matches or beats the paper's ASGNN in {_good(cells)} of {len(cells)} cells."
    for name, label in adaptive.items():
        gains = [(t.metric.better * c.gain.difference, c.gain.p) for t, c in first if c.row == name and c.gain]
        if gains:
            clear = [gain for gain, p in gains if p is not None and p < SIGNIFICANT]
            yield (
                f"{label}{where}: the adaptive structure is better than a frozen one in "
                f"{sum(gain > 0 for gain, _ in gains)} of {len(gains)} cells; with p < {SIGNIFICANT:g} it is better in "
                f"{sum(gain > 0 for gain in clear)} and worse in {sum(gain < 0 for gain in clear)}."
            )


def _found_elsewhere(published: Sequence[AgainstPublished]) -> Iterator[str]:
    """Counts over the first rule of each table, as above."""
    for table in dict.fromkeys(one.table.spec.name for one in published):
        cells = [one for one in published if one.table.spec.name == table and one.first]
        above = sum(one.difference >= 0 for one in cells)
        yield (f"{cells[0].label}, {table}: at or above the best published accuracy in {above} of {len(cells)} cells.")


def _found_edge_free(tables: Sequence[ReportTable], short: Sequence[Shortfall]) -> Iterator[str]:
    for table in tables:
        cells = [cell for cell in table.cells if cell.row == HEADLINE and cell.compared]
        first = [cell for cell in cells if cell.rule == table.spec.rules[0]]
        for other in {name: None for cell in first for name in cell.compared}:
            compared = [cell for cell in first if other in cell.compared]
            below = [one for one in short if one.table is table and one.other == other and one.cell in compared]
            yield (
                f"{table.labels[HEADLINE]}, {table.spec.name}: more than {Shortfall.LIMIT:g} points below "
                f"“{table.labels[other]}” in {len(below)} of {len(compared)} cells"
                + (f" ({', '.join(one.place for one in below)})." if below else ".")
            )


def _good(cells: Sequence[tuple[ReportTable, TableCell]]) -> int:
    return sum(table.metric.better * (cell.difference or 0.0) >= 0 for table, cell in cells)
