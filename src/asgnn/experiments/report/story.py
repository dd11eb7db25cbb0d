"""The first part of a report: what holds, what fails and why, in sentences made from the stored figures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from asgnn.experiments.report.generality import LIMIT as GRAPH_LIMIT
from asgnn.experiments.report.generality import Generality
from asgnn.experiments.report.layers import LayerCurves
from asgnn.experiments.report.published import Shortfall
from asgnn.experiments.report.tables import ReportTable, TableCell
from asgnn.experiments.report.text import signed
from asgnn.experiments.spec import TABLES

SUBJECTS = ("asgnn-features", "asgnn-tuned", "asgnn", "asgnn-paper")  # the story is about the first with results
OWN = ("asgnn", "asgnn-paper")  # models that are no competitors of the subject
PLAIN, FLOOR, WITHOUT_FEATURES, PRINTED = "gcn", "asgnn-edge-free", "asgnn-tuned", "asgnn-paper"
MAIN = (PLAIN, "prognn", "rung-tuned", "asgnn", "asgnn-features", FLOOR)  # rows of the first chart
LIMIT = Shortfall.LIMIT  # points below another model that count as equal
SEPARATED = 0.1  # of a mean edge weight


@dataclass(frozen=True)
class Point:
    """One sentence of the story; ``head`` says what it is about, and ``details`` are shorter sentences beside it."""

    head: str
    text: str
    details: tuple[str, ...] = ()


@dataclass(frozen=True)
class Story:
    """The sentences, and the names of the tables and rows that the chart shows; ``paper`` is the row of its ASGNN."""

    points: tuple[Point, ...]
    tables: tuple[str, ...]
    rows: tuple[str, ...] = MAIN
    paper: str = PRINTED


@dataclass(frozen=True)
class Subject:
    """The row that the story is about, in one table with its first rule."""

    table: ReportTable
    row: str

    @property
    def label(self) -> str:
        return self.table.labels[self.row]

    @property
    def attack(self) -> str:
        """The name of the attack, such as Metattack."""
        return self.table.spec.unit.rpartition(" by ")[2]

    @property
    def strongest(self) -> str:
        """The largest number of flips in words."""
        column = self.table.columns[-1]
        return f"{column} {'of the ' if column.endswith('%') else ''}{self.table.spec.unit}"

    @cached_property
    def cells(self) -> list[TableCell]:
        """Those of the row that have a finite result."""
        return [cell for cell in self._of(self.row) if _mean(cell) is not None]

    def other(self, cell: TableCell, row: str, rule: str | None = None) -> float | None:
        """The mean of another row, or of another rule, on the graph of a cell."""
        place = (cell.dataset, cell.rate)
        found = (_mean(one) for one in self._of(row, rule) if (one.dataset, one.rate) == place)
        return next(found, None)

    def best_other(self, cell: TableCell) -> tuple[float, str] | None:
        """The best mean of another model on the graph of a cell, and the label of its row."""
        rows = [row.name for row in self.table.rows if row.model not in OWN]
        means = ((self.other(cell, row), self.table.labels[row]) for row in rows)
        return max(((mean, label) for mean, label in means if mean is not None), default=None)

    def losses(self, row: str) -> dict[str, float]:
        """Dataset → points that a row loses from the clean graph to the largest number of flips."""
        means = {(cell.dataset, cell.rate): _mean(cell) for cell in self._of(row)}
        first, last = self.table.spec.rates[0], self.table.spec.rates[-1]
        ends = {one: (means.get((one, first)), means.get((one, last))) for one in self.table.datasets}
        return {one: clean - hit for one, (clean, hit) in ends.items() if clean is not None and hit is not None}

    def last(self) -> list[TableCell]:
        """The cells with the largest number of flips."""
        return [cell for cell in self.cells if cell.rate == self.table.spec.rates[-1]]

    def published(self) -> tuple[int, int]:
        """In how many cells the row is at or above the best published accuracy, and of how many."""
        best = [(cell, self.table.spec.best_published(cell.dataset, cell.rate)) for cell in self.cells]
        known = [(_mean(cell) or 0.0) >= one.mean for cell, one in best if one]
        return sum(known), len(known)

    def _of(self, row: str, rule: str | None = None) -> list[TableCell]:
        wanted = (rule or self.table.spec.rules[0], row)
        return [cell for cell in self.table.cells if (cell.rule, cell.row) == wanted]


def tell(tables: Sequence[ReportTable], layers: Sequence[LayerCurves], others: Generality | None) -> Story:
    """The story of the paper's tables of accuracies; without results of ASGNN it has no sentences."""
    shown = [table for table in tables if table.spec.name in TABLES and table.metric.better > 0]
    shown = [table for table in shown if any(cell.outcomes for cell in table.cells)]
    subjects = [subject for table in shown if (subject := _subject(table))]
    points = (_holds(subjects), _fails(subjects, others), _why(subjects, layers))
    return Story(tuple(point for point in points if point), tuple(table.spec.name for table in shown))


def _subject(table: ReportTable) -> Subject | None:
    return next((one for row in SUBJECTS if (one := Subject(table, row)).cells), None)


# --- the sentences ----------------------------------------------------------------------------------------------------


def _holds(subjects: Sequence[Subject]) -> Point | None:
    """About the table in which most of the cells are at or above the best published accuracy."""
    if not subjects:
        return None
    subject = _strongest(subjects)
    losses = subject.losses(subject.row)
    above, known = subject.published()
    published = f"at or above the best published accuracy in {above} of {known} cells"
    if not losses:
        return Point("What holds", f"{subject.label} is {published}.") if known else None
    most = max(losses.values())
    plain = [loss for graph, loss in subject.losses(PLAIN).items() if graph in losses]
    beside = f"; {subject.table.labels[PLAIN]} loses {_range(plain)}" if plain else ""
    text = f"With {subject.strongest}, {subject.label} loses {_points(most, at_most=True)} of accuracy{beside}."
    each = [f"{signed(loss, 1).removeprefix('+')} on {graph}" for graph, loss in losses.items()]
    details = [f"It loses {_list(each)}."] if len(each) > 1 else []
    details += [f"It is {published}."] if known else []
    return Point("What holds", text, tuple(details))


def _fails(subjects: Sequence[Subject], others: Generality | None) -> Point | None:
    """Where another model, or the same model without the given edges, is better."""
    gaps = [(subject, found) for subject in subjects if (found := list(_gaps(subject)))]
    if not gaps:
        return None
    counts = {
        subject.attack: f"{sum(gap.points > LIMIT for gap in found)} of {len(found)} cells" for subject, found in gaps
    }
    worst, subject = max(((gap, subject) for subject, found in gaps for gap in found), key=lambda pair: pair[0].points)
    clear = worst.points > LIMIT
    text = (
        f"Under {subject.attack}, {subject.label} is more than {LIMIT:g} points below the best other model in "
        f"{counts.pop(subject.attack)}" + (f", by up to {_points(worst.points)}." if clear else ".")
    )
    details = [f"Under {attack}: {count}." for attack, count in counts.items()]
    if clear:
        figures = f"{worst.ours:.1f} %, and {worst.best:.1f} % with {worst.by}"
        details.insert(0, f"The largest gap is on {worst.place}: {figures}.")
    for one in subjects:
        if floors := list(_below_floor(one)):
            cells = f"{len(floors)} {'cell' if len(floors) == 1 else 'cells'}"
            where = ", ".join(floors)
            details.append(f"In {cells} under {one.attack}, it would be better without the given edges ({where}).")
    if others and (known := [line for line in others.lines if line.difference is not None]):
        below = sum(line.below for line in known)
        details.append(
            f"Of {len(known)} other graphs, it is more than {GRAPH_LIMIT:g} point below the best other model on "
            f"{below}."
        )
    return Point("What fails", text, tuple(details))


def _why(subjects: Sequence[Subject], layers: Sequence[LayerCurves]) -> Point | None:
    """What the model does with false edges, what its parts add, and what the choice of settings cannot see."""
    reasons, details = [], []
    if ends := _weights(layers):
        graph, by_model = ends
        (label, (added, clean)), *rest = by_model
        verb = "lose" if added < clean - SEPARATED else "keep"
        reasons.append(f"added edges {verb} their weight (mean {added:.2f}, clean edges {clean:.2f})")
        also = "".join(f"; with “{name}”, they are {a:.2f} and {c:.2f}" for name, (a, c) in rest)
        details.append(f"these are the weights after the last layer of “{label}” on {graph}{also}")
    if subjects:
        subject = _strongest(subjects)
        frozen = [cell.gain.difference for cell in subject.last() if cell.gain]
        pairs = [(_mean(cell), subject.other(cell, WITHOUT_FEATURES)) for cell in subject.last()]
        features = [mean - other for mean, other in pairs if mean is not None and other is not None]
        found = {"learned structure": frozen, "features": [] if subject.row == WITHOUT_FEATURES else features}
        adds = [f"the {name} {_range(values, plus=True)}" for name, values in found.items() if values]
        if adds:
            added_points = f"points added with {subject.strongest}: {_list(adds)}"
            (details if reasons else reasons).append(added_points)
    for subject, rule, changes in _second_rules(subjects):
        first = subject.table.spec.rules[0]
        reasons.append(f"under {subject.attack} settings are chosen on {first} nodes that are not attacked")
        details.append(
            f"chosen on {rule} nodes, they change the accuracy with {subject.strongest} by "
            f"{_range(changes, plus=True)} points"
        )
    return Point("Why", _sentence("; ".join(reasons)), tuple(map(_sentence, details))) if reasons else None


@dataclass(frozen=True)
class Gap:
    """How far the subject is below the best other model in a cell."""

    place: str
    ours: float
    best: float
    by: str

    @property
    def points(self) -> float:
        return self.best - self.ours


def _gaps(subject: Subject) -> Iterator[Gap]:
    spec = subject.table.spec
    for cell in subject.cells:
        best, mean = subject.best_other(cell), _mean(cell)
        if best and mean is not None:
            yield Gap(f"{cell.dataset}, {spec.column(cell.rate)} {spec.unit}", mean, *best)


def _below_floor(subject: Subject) -> Iterator[str]:
    """The cells in which the same model without the given edges is better."""
    for cell in subject.cells:
        floor, mean = subject.other(cell, FLOOR), _mean(cell)
        if floor is not None and mean is not None and mean < floor - LIMIT:
            yield f"{cell.dataset} at {subject.table.spec.column(cell.rate)}"


Ends = list[tuple[str, tuple[float, float]]]


def _weights(layers: Sequence[LayerCurves]) -> tuple[str, Ends] | None:
    """The graph with most flips, and label → mean weights of added and clean edges after the last layer.

    The model that separates them best comes first.
    """
    known = [one for one in layers if one.kind == "weights" and {"clean", "added"} <= one.lines.keys()]
    if not known:
        return None
    most = max(known, key=lambda one: one.rate)
    same = [one for one in known if (one.dataset, one.graph) == (most.dataset, most.graph)]
    ends = [(one.label, (one.lines["added"]["mean"][-1], one.lines["clean"]["mean"][-1])) for one in same]
    return f"{most.dataset}, {most.graph}", sorted(ends, key=lambda end: end[1][0] - end[1][1])


def _second_rules(subjects: Sequence[Subject]) -> Iterator[tuple[Subject, str, list[float]]]:
    """What another rule for the choice of settings changes at most flips, if it is better on average."""
    for subject in subjects:
        for rule in subject.table.spec.rules[1:]:
            pairs = [(_mean(cell), subject.other(cell, subject.row, rule)) for cell in subject.last()]
            changes = [other - mean for mean, other in pairs if mean is not None and other is not None]
            if changes and fmean(changes) > 0:
                yield subject, rule, changes


# --- words ------------------------------------------------------------------------------------------------------------


def _strongest(subjects: Sequence[Subject]) -> Subject:
    def share(subject: Subject) -> float:
        above, known = subject.published()
        return above / known if known else -1.0

    return max(subjects, key=share)


def _mean(cell: TableCell) -> float | None:
    return cell.ours.mean if cell.ours and math.isfinite(cell.ours.mean) else None


def _range(values: Iterable[float], *, plus: bool = False) -> str:
    """The least and the largest as "0.5 to 3.7"; one number if they are equal as text."""
    found = sorted(values)
    texts = [signed(value, 1) for value in (found[0], found[-1])]
    return " to ".join(dict.fromkeys(text if plus else text.removeprefix("+") for text in texts))


def _list(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _points(value: float, *, at_most: bool = False) -> str:
    """A number of points in words; what is lost at most may be nothing."""
    if at_most and value < 0.05:
        return "no points"
    return f"{'at most ' if at_most else ''}{value:.1f} points"
