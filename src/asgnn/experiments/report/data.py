"""What the report shows, collected from a store: means, sample standard deviations, differences and a paired test."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

import numpy as np

from asgnn.errors import ConfigError
from asgnn.experiments.report.layers import Layers, collect_layers
from asgnn.experiments.report.source import Source, Totals
from asgnn.experiments.spec import RANDOM, TABLES, Spec, load_spec
from asgnn.experiments.values import Choice, Outcome

SEARCHES = ("none", "small", "wide", "paper")  # ever more thorough
EXPLANATIONS = "explanations.toml"
UNEXPLAINED = "not explained yet"
WITHIN = "no more than the larger of the two standard deviations"
SIGNIFICANT = 0.05
THE_TEST = (
    "p is that of a paired t test over the trials with equal seeds: the difference of two accuracies is a mean over "
    "many nodes and so close to normal, and on few nodes accuracies tie too often for a test on ranks. It is not "
    "corrected for the number of cells."
)


@dataclass(frozen=True)
class Metric:
    """A figure for people; ``better`` is 1 where more is better, -1 where less is, 0 where neither."""

    label: str
    digits: int
    better: int


METRICS = {
    "test": Metric("accuracy on the test nodes, %", 2, 1),
    "target": Metric("accuracy on the attacked nodes, %", 2, 1),
    "clean_test": Metric("accuracy on the test nodes, clean graph, %", 2, 1),
    "val": Metric("accuracy on the validation nodes, %", 2, 1),
    "test_loss": Metric("loss on the test nodes", 4, -1),
    "clean_test_loss": Metric("loss on the test nodes, clean graph", 4, -1),
    "val_loss": Metric("loss on the validation nodes", 4, -1),
    "best_epoch": Metric("epoch that was kept", 0, 0),
}


def metric(name: str) -> Metric:
    if name in METRICS:
        return METRICS[name]
    loss = name.endswith("loss")
    return Metric(name.replace("_", " "), 4 if loss else 2, -1 if loss else 1)


@dataclass(frozen=True)
class Figure:
    """A mean and the sample standard deviation, ``None`` where there is but one trial or the paper gives none."""

    mean: float
    std: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Figure:
        with np.errstate(invalid="ignore"):  # a training that diverged has a figure that is no number, and says so
            return cls(float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None)


@dataclass(frozen=True)
class Added:
    """What an adaptive structure adds: the row's mean minus that of its frozen twin, over the seeds of both.

    ``fair`` is whether the settings of both come from the same search.
    """

    difference: float
    p: float | None
    trials: int
    fair: bool = True


@dataclass(frozen=True)
class Cell:
    """One row of a table on one graph, by one rule.

    Attributes:
        choice: what is reported, or ``None`` where the store has nothing.
        outcomes: of the trials that the store holds, in the order of their seeds.
        figures: every figure that all trials have, by name.
        ranks: of the figures among the rows of the column: 1 for the best, 2 for the second best.
        ours, paper: the figure that the table shows.
        difference: ours minus the paper's.
        added: for a row that has a twin.
    """

    rule: str
    dataset: str
    rate: float
    row: str
    choice: Choice | None
    outcomes: tuple[Outcome, ...]
    figures: Mapping[str, Figure]
    ranks: Mapping[str, int]
    ours: Figure | None
    paper: Figure | None
    difference: float | None
    added: Added | None


@dataclass(frozen=True)
class Table:
    """A specification and its cells; ``labels`` has a name for people for every row."""

    spec: Spec
    labels: Mapping[str, str]
    cells: tuple[Cell, ...]

    def line(self, rule: str, dataset: str, row: str) -> list[Cell]:
        return [cell for cell in self.cells if (cell.rule, cell.dataset, cell.row) == (rule, dataset, row)]

    @property
    def rates(self) -> list[str]:
        return [self.spec.column(rate) for rate in self.spec.rates]

    @property
    def random(self) -> bool:
        """Whether each trial has a random split of its own."""
        return self.spec.name.endswith(RANDOM)

    @property
    def metric(self) -> Metric:
        return metric(self.spec.figure)


@dataclass(frozen=True)
class Lower:
    """A cell that is worse than the paper's; ``clear`` where it is by more than both standard deviations."""

    table: Table
    cell: Cell
    ours: Figure
    paper: Figure
    difference: float
    clear: bool
    explanation: str


@dataclass(frozen=True)
class Machine:
    """Trainings of one version on one machine."""

    machine: str
    version: str
    trainings: int
    seconds: float


@dataclass(frozen=True)
class Report:
    tables: tuple[Table, ...]
    lower: tuple[Lower, ...]
    layers: tuple[Layers, ...]
    machines: tuple[Machine, ...]
    totals: Totals
    findings: tuple[str, ...]


def collect(source: Source) -> Report:
    """Everything that the report shows; reads the store and trains nothing."""
    choices = source.choices()
    outcomes = source.get(sorted({key for choice in choices for key in choice.trainings}))
    both = [_table(load_spec(name + kind), choices, outcomes) for name in TABLES for kind in ("", RANDOM)]
    # the paper's tables as a whole, whatever there is of them; on random splits only what there is
    tables = tuple(table for table in both if not table.random or any(cell.outcomes for cell in table.cells))
    shown = [cell for table in tables for cell in table.cells if cell.outcomes]
    if not shown:
        raise ConfigError("The store holds no cell of a table yet, so there is nothing to report.")
    lower = tuple(_lower(tables, load_explanations()))
    layers = tuple(collect_layers(source, _names(tables)))
    findings = tuple(finding for random in (False, True) for finding in _findings(tables, lower, random))
    return Report(tables, lower, layers, _machines(shown), source.summary(), findings)


# --- tables ---------------------------------------------------------------------------------------------------------


def _table(spec: Spec, choices: Sequence[Choice], outcomes: Mapping[str, Outcome]) -> Table:
    # A twin is named after its row: sorting and legends part the two.
    owner = {row.twin: row.label for row in spec.rows if row.twin}
    labels = {row.name: f"{owner[row.name]}, frozen" if row.name in owner else row.label for row in spec.rows}
    ours = [choice for choice in choices if choice.table == spec.name]
    cells = [
        cell
        for rule in spec.rules
        for dataset in spec.attacks
        for rate in spec.rates
        for cell in _column(spec, rule, dataset, rate, ours, outcomes)
    ]
    return Table(spec, labels, tuple(cells))


def _column(
    spec: Spec, rule: str, dataset: str, rate: float, choices: Sequence[Choice], outcomes: Mapping[str, Outcome]
) -> Iterator[Cell]:
    here = [choice for choice in choices if choice.case == spec.case(dataset, rate)]
    chosen = {row.name: most_thorough([c for c in here if c.row == row.name], rule) for row in spec.rows}
    found = {name: _found(choice, outcomes) for name, choice in chosen.items()}
    figures = {name: _figures(of_row) for name, of_row in found.items()}
    ranks = _ranks(figures)
    for row in spec.rows:
        paper = spec.paper.get(dataset, {}).get(rate, {}).get(row.paper or "")
        ours = figures[row.name].get(spec.figure)
        yield Cell(
            rule=rule,
            dataset=dataset,
            rate=rate,
            row=row.name,
            choice=chosen[row.name],
            outcomes=found[row.name],
            figures=figures[row.name],
            ranks=ranks[row.name],
            ours=ours,
            paper=Figure(*paper) if paper else None,
            difference=ours.mean - paper[0] if ours and paper else None,
            added=_added(row.name, row.twin, chosen, found, spec.figure) if row.twin else None,
        )


def most_thorough(choices: Sequence[Choice], rule: str) -> Choice | None:
    """Of a cell's choices the one with the widest search, then with the most trials.

    What was chosen by no rule, since there was nothing to choose, serves for every rule.
    """
    fit = [choice for choice in choices if choice.rule in (rule, "none") and choice.search in SEARCHES]
    return max(fit, key=lambda c: (SEARCHES.index(c.search), len(c.trainings)), default=None)


def _found(choice: Choice | None, outcomes: Mapping[str, Outcome]) -> tuple[Outcome, ...]:
    return tuple(outcomes[key] for key in choice.trainings if key in outcomes) if choice else ()


def _figures(outcomes: Sequence[Outcome]) -> dict[str, Figure]:
    """Of every figure that all trials have; a mean over some of them would be of another sample."""
    names = [name for name in outcomes[0].figures if all(name in o.figures for o in outcomes)] if outcomes else []
    return {name: Figure.of([outcome.figures[name] for outcome in outcomes]) for name in names}


def _ranks(figures: Mapping[str, Mapping[str, Figure]]) -> dict[str, dict[str, int]]:
    """Row → figure → 1 or 2; equal means share a rank."""
    ranks: dict[str, dict[str, int]] = {row: {} for row in figures}
    for name in {name for of_row in figures.values() for name in of_row}:
        better = metric(name).better
        means = {row: better * of_row[name].mean for row, of_row in figures.items() if name in of_row}
        places = sorted({mean for mean in means.values() if math.isfinite(mean)}, reverse=True)[:2]
        if better and len(means) > 1:
            for row, mean in means.items():
                if mean in places:
                    ranks[row][name] = 1 + places.index(mean)
    return ranks


def _added(
    row: str,
    twin: str,
    chosen: Mapping[str, Choice | None],
    found: Mapping[str, tuple[Outcome, ...]],
    figure: str,
) -> Added | None:
    added, a, b = paired(found[row], found.get(twin, ()), figure), chosen[row], chosen.get(twin)
    return replace(added, fair=a.search == b.search) if added and a and b else None


def paired(row: Sequence[Outcome], twin: Sequence[Outcome], figure: str) -> Added | None:
    """The mean difference over the seeds of both, and the p of a paired t test; see ``THE_TEST``."""
    from scipy import stats  # here, because it takes most of a second to load, and the command line loads this file

    ours = {outcome.training.seed: outcome.figures[figure] for outcome in row if figure in outcome.figures}
    frozen = {outcome.training.seed: outcome.figures[figure] for outcome in twin if figure in outcome.figures}
    seeds = sorted(ours.keys() & frozen.keys())
    if not seeds:
        return None
    a, b = (np.array([values[seed] for seed in seeds]) for values in (ours, frozen))
    # The same difference in every trial leaves nothing to test against.
    testable = len(seeds) > 1 and np.isfinite(a - b).all() and not np.allclose(a - b, (a - b)[0], rtol=0, atol=1e-9)
    return Added(float((a - b).mean()), float(stats.ttest_rel(a, b).pvalue) if testable else None, len(seeds))


# --- where ours is lower --------------------------------------------------------------------------------------------


def _lower(tables: Sequence[Table], explain: Callable[[str, Cell], str]) -> Iterator[Lower]:
    seen = set()  # what was chosen by no rule stands under every rule, and is lower once
    for table in tables:
        for cell in table.cells:
            ours, paper, difference = cell.ours, cell.paper, cell.difference
            if ours is None or paper is None or difference is None or (key := (table.spec.name, cell.choice)) in seen:
                continue
            worse = -table.metric.better * difference
            no_number = not math.isfinite(difference)
            if worse > 0 or no_number:
                seen.add(key)
                clear = no_number or worse > max(ours.std or 0.0, paper.std or 0.0)
                why = explain(table.spec.name, cell) if clear else WITHIN
                yield Lower(table, cell, ours, paper, difference, clear, why)


def load_explanations(text: str | None = None) -> Callable[[str, Cell], str]:
    """A function from a table's name and a cell to the explanation that was written for it, or that there is none."""
    if text is None:
        file = resources.files("asgnn.experiments").joinpath("specs", EXPLANATIONS)
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
    entries: list[dict[str, Any]] = tomllib.loads(text).get("explanation", [])
    for entry in entries:
        unknown = entry.keys() - {"table", "row", "dataset", "rate", "rule", "text"}
        missing = {"table", "text"} - entry.keys()
        if unknown or missing:
            wrong = f"has no {min(missing)}" if missing else f"has {min(unknown)!r}, which means nothing"
            raise ConfigError(f"An explanation in {EXPLANATIONS} {wrong}: {entry}.")
        spec = load_spec(entry["table"])  # a sentence of its own where there is no such table, nor such a row
        if "row" in entry:
            spec.row(entry["row"])

    def explain(table: str, cell: Cell) -> str:
        place = {"table": table, "row": cell.row, "dataset": cell.dataset, "rate": cell.rate, "rule": cell.rule}
        fits = (e["text"] for e in entries if all(e.get(key, value) == value for key, value in place.items()))
        return str(next(fits, UNEXPLAINED))

    return explain


# --- the whole ------------------------------------------------------------------------------------------------------


def _names(tables: Sequence[Table]) -> dict[str, str]:
    """The label of the row that a training stands in."""
    return {
        key: table.labels[cell.row]
        for table in tables
        for cell in table.cells
        if cell.choice
        for key in cell.choice.trainings
    }


def _machines(cells: Sequence[Cell]) -> tuple[Machine, ...]:
    # Tables share trainings; each is counted once.
    once = {outcome.training: outcome for cell in cells for outcome in cell.outcomes}
    places: dict[tuple[str, str], list[float]] = {}
    for outcome in once.values():
        places.setdefault((outcome.machine, outcome.version), []).append(outcome.seconds)
    return tuple(Machine(*place, len(seconds), sum(seconds)) for place, seconds in sorted(places.items()))


def _findings(tables: Sequence[Table], lower: Sequence[Lower], random: bool) -> Iterator[str]:
    """Counted over the first rule of every table: a second choice of settings is no second chance."""
    where = " on random splits" if random else ""
    tables = [table for table in tables if table.random == random]
    first = [(table, cell) for table in tables for cell in table.cells if cell.rule == table.spec.rules[0]]
    compared = [(table, cell) for table, cell in first if cell.difference is not None]
    if compared:
        clearly = sum(
            one.clear and one.table.random == random and one.cell.rule == one.table.spec.rules[0] for one in lower
        )
        yield (
            f"Ours{where} is as good as the paper's figure or better in {_good(compared)} of the {len(compared)} cells "
            f"that both have; in {clearly} it is worse by more than both standard deviations."
        )
    labels = {row.name: row.label for table in tables for row in table.spec.rows if row.twin}
    for name, label in labels.items():
        cells = [(table, cell) for table, cell in compared if cell.row == name]
        if cells:
            yield f"{label}{where}: as good as the paper's ASGNN or better in {_good(cells)} of {len(cells)}."
    for name, label in labels.items():
        signs = [
            (table.metric.better * cell.added.difference, cell.added.p)
            for table, cell in first
            if cell.row == name and cell.added is not None
        ]
        if signs:
            helps, hurts = (
                sum(sign * by > 0 and p is not None and p < SIGNIFICANT for by, p in signs) for sign in (1, -1)
            )
            yield (
                f"{label}{where}: next to the same model with its structure frozen, adaptivity makes it better in "
                f"{sum(by > 0 for by, _ in signs)} of {len(signs)} cells; with p < {SIGNIFICANT:g} it helps in {helps} "
                f"and harms in {hurts}."
            )


def _good(cells: Sequence[tuple[Table, Cell]]) -> int:
    return sum(table.metric.better * (cell.difference or 0.0) >= 0 for table, cell in cells)
