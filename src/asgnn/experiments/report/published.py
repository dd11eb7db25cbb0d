"""Our results against the best published accuracy, and against the same model without the given edges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from asgnn.experiments.report.tables import MeanStd, ReportTable, TableCell
from asgnn.experiments.spec import TABLES, Published

HEADLINE = "asgnn-features"  # the row that is compared


@dataclass(frozen=True)
class AgainstPublished:
    """A cell of the headline row and the best accuracy that anyone has published for its graph.

    ``paper`` is the paper's own ASGNN; ``first`` says whether the settings were chosen by the first rule of the table.
    """

    table: ReportTable
    cell: TableCell
    ours: MeanStd
    best: Published

    @property
    def label(self) -> str:
        return self.table.labels[self.cell.row]

    @property
    def ensemble(self) -> float | None:
        return self.cell.ensemble.get(self.table.spec.figure)

    @property
    def difference(self) -> float:
        return self.ours.mean - self.best.mean

    @property
    def paper(self) -> MeanStd | None:
        return self.cell.paper

    @property
    def first(self) -> bool:
        return self.cell.rule == self.table.spec.rules[0]


def against_published(tables: Sequence[ReportTable]) -> Iterator[AgainstPublished]:
    """The cells of the paper's tables that show an accuracy and for which the headline row has a result."""
    for table in tables:
        if table.spec.name in TABLES and table.metric.better > 0:
            for cell in table.cells:
                best = table.spec.best_published(cell.dataset, cell.rate)
                if cell.row == HEADLINE and cell.ours and best:
                    yield AgainstPublished(table, cell, cell.ours, best)


@dataclass(frozen=True)
class Shortfall:
    """A cell in which a row is more than ``LIMIT`` points below a row that it should never be below."""

    LIMIT: ClassVar[float] = 0.5
    table: ReportTable
    cell: TableCell
    other: str

    @property
    def difference(self) -> float:
        return self.cell.compared[self.other].difference

    @property
    def place(self) -> str:
        return f"{self.cell.dataset} at {self.table.spec.column(self.cell.rate)}"


def shortfalls(tables: Sequence[ReportTable]) -> Iterator[Shortfall]:
    for table in tables:
        for cell in table.cells:
            for other, gain in cell.compared.items() if cell.row == HEADLINE else ():
                if table.metric.better * gain.difference < -Shortfall.LIMIT:
                    yield Shortfall(table, cell, other)
