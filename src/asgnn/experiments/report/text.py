"""The report as headings, paragraphs and grids: what Markdown and LaTeX have in common."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from asgnn.experiments.report.data import THE_TEST, Added, Cell, Figure, Machine, Report, Table
from asgnn.experiments.values import Settings

TITLE = "ASGNN beside its paper"
HOW_TO_READ = (
    "Every cell has the mean ± sample standard deviation of our trials, below it the paper's figure and the "
    "difference, ours minus the paper's. The best of ours in a column is marked, and so is the second best. A figure "
    'marked "paper" stands where we have none.'
)
LOWER = (
    "All cells where ours is worse than the paper's, lower in accuracy or higher in loss, and why, where the "
    "difference is larger than both standard deviations."
)


@dataclass(frozen=True)
class Heading:
    level: int
    text: str


@dataclass(frozen=True)
class Paragraph:
    text: str


@dataclass(frozen=True)
class Raw:
    """Text in the writer's own language."""

    text: str


@dataclass(frozen=True)
class Items:
    texts: tuple[str, ...]


@dataclass(frozen=True)
class Entry:
    """A cell of a grid; ``mark`` is "best", "second", "paper" or nothing and is about the first line."""

    lines: tuple[str, ...]
    mark: str = ""


@dataclass(frozen=True)
class Grid:
    """A table; ``prose`` says which columns hold sentences."""

    header: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    prose: tuple[int, ...] = ()


Piece = Heading | Paragraph | Raw | Items | Grid


def pieces(report: Report, marks: Raw) -> Iterator[Piece]:
    """The whole report, top to bottom; ``marks`` says how the writer marks a cell."""
    yield Heading(1, TITLE)
    yield Items(report.findings)
    yield Paragraph(HOW_TO_READ)
    yield marks
    yield Paragraph(f"Under a table stands what adaptivity adds. {THE_TEST}")
    for table in report.tables:
        yield from _table(table)
    yield Heading(2, "Where ours is lower")
    yield Paragraph(LOWER)
    yield _lower(report) if report.lower else Paragraph("There is no such cell.")
    yield Heading(2, "Learned scalars")
    yield Paragraph("Mean ± sample standard deviation over the trials that are reported.")
    for table in report.tables:
        yield from _scalars(table)
    yield Heading(2, "Chosen settings")
    for table in report.tables:
        yield from _settings(table)
    yield Heading(2, "What was assumed")
    for table in report.tables:
        yield Heading(3, table.spec.title)
        yield Items(table.spec.assumed)
    yield Heading(2, "How long it took, and where")
    yield Paragraph(shown_time(report))
    yield _machines(report.machines)


# --- numbers as text ------------------------------------------------------------------------------------------------


def shown(figure: Figure, digits: int) -> str:
    if not math.isfinite(figure.mean):
        return "not a number"
    std = "" if figure.std is None else f" ± {figure.std:.{digits}f}"
    return f"{figure.mean:.{digits}f}{std}"


def signed(difference: float, digits: int) -> str:
    if not math.isfinite(difference):
        return "not a number"
    return f"{difference:+.{digits}f}".replace("-", "−")


def shown_p(added: Added) -> str:
    p = "p not defined" if added.p is None else "p < 0.001" if added.p < 0.001 else f"p = {added.p:.3f}"
    return p if added.fair else f"{p}, searches differ"


def shown_settings(settings: Settings) -> str:
    return ", ".join(
        f"{name} = {value:g}" if isinstance(value, float) else f"{name} = {value}" for name, value in settings
    )


def shown_time(report: Report) -> str:
    totals = report.totals
    return (
        f"The store holds {totals.trainings} trainings that took {totals.seconds / 3600:.2f} hours together, what "
        f"searches tried included, and {totals.attacks} attacks that took {totals.attack_seconds / 3600:.2f} hours. "
        "The table is of the trials that stand in the tables above; the time of each is that of its batch divided by "
        "the trials in it."
    )


def by_rule(rule: str) -> str:
    return f"settings chosen on {rule}"


def rule_of(cell: Cell) -> str:
    """By which a cell's settings were really chosen; the cell stands under a rule even where there was none."""
    return cell.choice.rule if cell.choice else cell.rule


# --- sections -------------------------------------------------------------------------------------------------------


def _places(table: Table) -> Iterator[tuple[str, str]]:
    return ((rule, dataset) for rule in table.spec.rules for dataset in table.spec.attacks)


def _table(table: Table) -> Iterator[Piece]:
    yield Heading(2, table.spec.title)
    yield Paragraph(f"Columns: {table.spec.unit}. Figure: {table.metric.label}.")
    for rule, dataset in _places(table):
        yield Heading(3, f"{dataset}, {by_rule(rule)}")
        lines = {row.name: table.line(rule, dataset, row.name) for row in table.spec.rows}
        yield Grid(
            ("model", *table.rates, "trials", "settings tried"),
            tuple(
                (
                    _plain(table.labels[name]),
                    *(_entry(cell, table) for cell in cells),
                    _plain(_range([len(cell.outcomes) for cell in cells if cell.outcomes])),
                    _plain(_tried(cells)),
                )
                for name, cells in lines.items()
            ),
        )
        adaptive = [row for row in table.spec.rows if row.twin and any(cell.added for cell in lines[row.name])]
        if adaptive:
            yield Paragraph("What adaptivity adds: each model minus the same with its structure frozen.")
            yield Grid(
                ("model", *table.rates),
                tuple(
                    (_plain(table.labels[row.name]), *(_added(cell.added, table) for cell in lines[row.name]))
                    for row in adaptive
                ),
            )


def _entry(cell: Cell, table: Table) -> Entry:
    digits = table.metric.digits
    paper = shown(cell.paper, digits) if cell.paper else None
    if cell.ours is None:
        return Entry((f"paper {paper}",), "paper") if paper else Entry(("",))
    mark = {1: "best", 2: "second"}.get(cell.ranks.get(table.spec.figure, 0), "")
    below = (f"paper {paper}", signed(cell.difference, digits)) if paper and cell.difference is not None else ()
    return Entry((shown(cell.ours, digits), *below), mark)


def _added(added: Added | None, table: Table) -> Entry:
    return Entry((signed(added.difference, table.metric.digits), shown_p(added))) if added else Entry(("",))


def _tried(cells: Sequence[Cell]) -> str:
    tried = {
        search: [c.choice.tried for c in cells if c.choice and c.choice.search == search] for search in _searches(cells)
    }
    return ", ".join(
        f"{_range(counts)} ({search} search)" if search != "none" else "1" for search, counts in tried.items()
    )


def _searches(cells: Sequence[Cell]) -> list[str]:
    return sorted({cell.choice.search for cell in cells if cell.choice})


def _range(counts: Sequence[int]) -> str:
    if not counts:
        return ""
    return str(min(counts)) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"


def _lower(report: Report) -> Grid:
    rows = []
    for one in report.lower:
        cell, table = one.cell, one.table
        digits = table.metric.digits
        figures = (shown(one.ours, digits), shown(one.paper, digits), signed(one.difference, digits))
        place = (table.spec.name, cell.dataset, table.spec.column(cell.rate), table.labels[cell.row], rule_of(cell))
        rows.append(tuple(map(_plain, (*place, *figures, one.explanation))))
    header = ("table", "dataset", "rate", "model", "rule", "ours", "paper", "difference", "explanation")
    return Grid(header, tuple(rows), prose=(8,))


def _scalars(table: Table) -> Iterator[Piece]:
    for rule, dataset in _places(table):
        cells = [cell for cell in table.cells if (cell.rule, cell.dataset) == (rule, dataset)]
        learned = [cell for cell in cells if cell.outcomes and all(outcome.scalars for outcome in cell.outcomes)]
        names = list(dict.fromkeys(name for cell in learned for name in cell.outcomes[0].scalars))
        if names:
            yield Heading(3, f"{table.spec.title}: {dataset}, {by_rule(rule)}")
            rows = [
                (
                    table.labels[cell.row],
                    table.spec.column(cell.rate),
                    *(shown(Figure.of(scalars), 3) if (scalars := _values(cell, name)) else "" for name in names),
                )
                for cell in sorted(learned, key=lambda cell: [row.name for row in table.spec.rows].index(cell.row))
            ]
            yield Grid(("model", "rate", *names), tuple(tuple(map(_plain, row)) for row in rows))


def _values(cell: Cell, name: str) -> list[float]:
    return [outcome.scalars[name] for outcome in cell.outcomes if name in outcome.scalars]


def _settings(table: Table) -> Iterator[Piece]:
    rows = [
        (
            cell.dataset,
            table.spec.column(cell.rate),
            table.labels[cell.row],
            choice.rule,
            choice.search,
            str(choice.tried),
            shown_settings(choice.settings) or "those of the recipe",
        )
        for cell in table.cells
        if (choice := cell.choice) and cell.outcomes
    ]
    if rows:
        yield Heading(3, table.spec.title)
        header = ("dataset", "rate", "model", "rule", "search", "tried", "settings")
        yield Grid(header, tuple(tuple(map(_plain, row)) for row in rows), prose=(6,))


def _machines(machines: Sequence[Machine]) -> Grid:
    rows = [(one.machine, one.version, str(one.trainings), f"{one.seconds:.0f}") for one in machines]
    rows.append(("all", "", str(sum(one.trainings for one in machines)), f"{sum(one.seconds for one in machines):.0f}"))
    return Grid(("machine", "code version", "trainings", "seconds"), tuple(tuple(map(_plain, row)) for row in rows))


def _plain(text: str) -> Entry:
    return Entry((text,))
