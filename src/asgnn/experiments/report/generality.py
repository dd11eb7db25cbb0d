"""One table of many graphs: ASGNN against other models with the same choice of settings, graph by graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from asgnn.experiments.report.tables import MeanStd, Metric, ReportTable, TableCell, metric
from asgnn.experiments.report.text import signed

TUNED, PORTFOLIO, PLAIN = "asgnn-features", "asgnn-portfolio", "gcn-default"
LIMIT = 1.0  # points below the best other model that a full search may be


@dataclass(frozen=True)
class GraphLine:
    """One graph.

    Attributes:
        cells: the cells by row.
        best: the row with the best mean among the models that are not ASGNN, or ``None`` without results.
        difference: ASGNN by a full search minus the best other model, if both have results.
        portfolio: ASGNN by portfolio minus GCN with its defaults, if both have results.
        either: as ``difference``, but of the search or the portfolio, whichever is better on validation.
        lam: the learned λ of ASGNN by a full search.
    """

    graph: str
    metric: Metric
    cells: Mapping[str, TableCell]
    best: str | None
    difference: float | None
    portfolio: float | None
    either: float | None
    lam: MeanStd | None

    @property
    def below(self) -> bool:
        return self.difference is not None and self.difference < -LIMIT

    @property
    def portfolio_below(self) -> bool:
        return self.portfolio is not None and self.portfolio < 0


@dataclass(frozen=True)
class Generality:
    """The whole table; ``findings`` are sentences."""

    table: ReportTable
    lines: tuple[GraphLine, ...]
    findings: tuple[str, ...]

    @property
    def labels(self) -> list[str]:
        return [self.table.labels[row.name] for row in self.table.rows]


def generality(table: ReportTable) -> Generality:
    """The lines of the graphs for which there is a result."""
    lines = tuple(_lines(table))
    return Generality(table, lines, tuple(_findings(lines)))


def _lines(table: ReportTable) -> Iterator[GraphLine]:
    for _, graph, by_row in table.parts:
        cells = {row: line[0] for row, line in by_row.items()}
        means = {row: cell.ours.mean for row, cell in cells.items() if cell.ours}
        others = {row: mean for row, mean in means.items() if row not in (TUNED, PORTFOLIO)}
        best = max(others, key=lambda row: others[row], default=None)
        lam = cells[TUNED].scalars.get("lam") if TUNED in cells else None
        validated = {row: cells[row].figures["val"].mean for row in (TUNED, PORTFOLIO) if row in means}
        either = max(validated, key=lambda row: validated[row], default=None)
        if means:
            yield GraphLine(
                graph=graph,
                metric=metric(table.spec.figure_of(graph)),
                cells=cells,
                best=best,
                difference=means[TUNED] - others[best] if TUNED in means and best else None,
                either=means[either] - others[best] if either and best else None,
                portfolio=means[PORTFOLIO] - means[PLAIN] if {PORTFOLIO, PLAIN} <= means.keys() else None,
                lam=MeanStd.of(lam) if lam else None,
            )


def _findings(lines: Sequence[GraphLine]) -> Iterator[str]:
    searches = {
        "full search": {line.graph: line.difference for line in lines},
        "full search or portfolio, whichever is better on validation": {line.graph: line.either for line in lines},
    }
    for search, differences in searches.items():
        known = {graph: value for graph, value in differences.items() if value is not None}
        below = [f"{graph} ({signed(value, 1)})" for graph, value in known.items() if value < -LIMIT]
        if known:
            yield (
                f"Other graphs, {search}: ASGNN is at most {LIMIT:g} point below the best other model on "
                f"{len(known) - len(below)} of {len(known)} graphs{_except(below)}."
            )
    plain = [line for line in lines if line.portfolio is not None]
    if plain:
        below = [f"{line.graph} ({signed(line.portfolio or 0.0, 1)})" for line in plain if line.portfolio_below]
        yield (
            f"Other graphs, portfolio: ASGNN is at or above GCN with its default settings on "
            f"{len(plain) - len(below)} of {len(plain)} graphs{_except(below)}."
        )


def _except(graphs: Sequence[str]) -> str:
    return f"; not on {', '.join(graphs)}" if graphs else ""
