"""Tables with our results: means, standard deviations, differences from the paper and paired tests."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from asgnn.experiments.spec import RANDOM, Row, Spec, search_rank
from asgnn.experiments.values import Choice, Outcome, Series, count_diverged


@dataclass(frozen=True)
class Metric:
    """How a figure is shown; ``better`` is 1 if higher is better, -1 if lower is better, 0 if neither."""

    label: str
    digits: int
    better: int


METRICS = {
    "test": Metric("test accuracy, %", 2, 1),
    "test_auc": Metric("test ROC-AUC, %", 2, 1),
    "target": Metric("accuracy on the attacked nodes, %", 2, 1),
    "clean_test": Metric("test accuracy on the clean graph, %", 2, 1),
    "val": Metric("validation accuracy, %", 2, 1),
    "test_loss": Metric("test loss", 4, -1),
    "clean_test_loss": Metric("test loss on the clean graph", 4, -1),
    "val_loss": Metric("validation loss", 4, -1),
    "best_epoch": Metric("best epoch", 0, 0),
}


# Parts of a long table: the group of a row → how it is called.
GROUPS = {
    "paper": "searched as in the paper",
    "tuned": "tuned",
    "features": "with features",
    "controls": "controls",
}


def metric(name: str) -> Metric:
    loss = name.endswith("loss")
    return METRICS.get(name) or Metric(name.replace("_", " "), 4 if loss else 2, -1 if loss else 1)


@dataclass(frozen=True)
class MeanStd:
    """A mean and its sample standard deviation; ``std`` is ``None`` for one trial, or if the paper gives none."""

    mean: float
    std: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> MeanStd:
        with np.errstate(invalid="ignore"):  # a training that diverged may have a figure that is not finite
            return cls(float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None)

    def text(self, digits: int) -> str:
        if not math.isfinite(self.mean):
            return "not a number"
        return f"{self.mean:.{digits}f}" + ("" if self.std is None else f" ± {self.std:.{digits}f}")


@dataclass(frozen=True)
class AdaptiveGain:
    """A row minus another, such as the same model with its structure frozen, over the seeds that both have.

    ``p`` is from a paired t test, and ``None`` where there is nothing to test; ``same_search`` says whether the
    settings of both come from the same search.
    """

    difference: float
    p: float | None
    trials: int
    same_search: bool


@dataclass(frozen=True)
class TableCell:
    """One model on one graph, with settings chosen by one rule.

    Attributes:
        choice: the reported choice of settings, or ``None`` if the store has none.
        outcomes: the reported trials that the store holds, in order of their seeds.
        figures: every figure that all trials have, by name.
        ranks: figure → 1 for the best row of the column, 2 for the second best.
        ours, paper: the figure that the table shows; ``difference`` is ours minus the paper's.
        gain: for a row that has a frozen twin.
        compared: name of another row → this row minus that one.
        ensemble: figures of the mean probability of the trials, by name.
    """

    rule: str
    dataset: str
    rate: float
    row: str
    choice: Choice | None
    outcomes: tuple[Outcome, ...]
    figures: Mapping[str, MeanStd]
    ranks: Mapping[str, int]
    ours: MeanStd | None
    paper: MeanStd | None
    difference: float | None
    gain: AdaptiveGain | None
    compared: Mapping[str, AdaptiveGain]
    ensemble: Mapping[str, float]

    @property
    def chosen_by(self) -> str:
        """The rule that chose the settings: "none" where nothing was searched, whatever the cell's rule."""
        return self.choice.rule if self.choice else self.rule

    @property
    def diverged(self) -> int:
        return count_diverged(self.outcomes)

    @property
    def scalars(self) -> dict[str, list[float]]:
        """The learned scalars of the trials, by name."""
        names = self.outcomes[0].scalars if self.outcomes else ()
        return {name: [o.scalars[name] for o in self.outcomes if name in o.scalars] for name in names}


@dataclass(frozen=True)
class ReportTable:
    """A table of the paper with our cells; ``labels`` maps the name of a row to its label."""

    spec: Spec
    labels: Mapping[str, str]
    cells: tuple[TableCell, ...] = field(repr=False)  # many: other values name their table

    @property
    def datasets(self) -> tuple[str, ...]:
        return self.spec.datasets

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """The rows to show: tuned rows only if they have results."""
        found = {cell.row for cell in self.cells if cell.outcomes}
        return tuple(row for row in self.spec.rows if row.search == "grid" or row.name in found)

    @property
    def columns(self) -> list[str]:
        return [self.spec.column(rate) for rate in self.spec.rates]

    @property
    def random(self) -> bool:
        """Whether each trial has its own random split."""
        return self.spec.name.endswith(RANDOM)

    @property
    def metric(self) -> Metric:
        return metric(self.spec.figure)

    def line(self, rule: str, dataset: str, row: str) -> list[TableCell]:
        return [cell for cell in self.cells if (cell.rule, cell.dataset, cell.row) == (rule, dataset, row)]

    @property
    def parts(self) -> Iterator[tuple[str, str, dict[str, list[TableCell]]]]:
        """Rule, dataset, and the cells by row."""
        for rule, dataset in itertools.product(self.spec.rules, self.datasets):
            yield rule, dataset, {row.name: self.line(rule, dataset, row.name) for row in self.rows}


def report_table(
    spec: Spec, choices: Sequence[Choice], outcomes: Mapping[str, Outcome], ensembles: Sequence[Series] = ()
) -> ReportTable:
    """``ensembles`` are the series of the kind "ensemble"."""
    # A frozen twin is named after its row, so that its label stands alone.
    owner = {row.twin: row.label for row in spec.rows if row.twin}
    labels = {row.name: f"{owner[row.name]}, frozen" if row.name in owner else row.label for row in spec.rows}
    together = {(one.training, one.content["trials"]): one.content["figures"] for one in ensembles}
    return ReportTable(spec, labels, tuple(_cells(spec, choices, outcomes, together)))


def _cells(
    spec: Spec,
    choices: Sequence[Choice],
    outcomes: Mapping[str, Outcome],
    ensembles: Mapping[tuple[str, int], Mapping[str, float]],
) -> Iterator[TableCell]:
    choices = [choice for choice in choices if choice.table == spec.name]
    for rule, dataset, rate in itertools.product(spec.rules, spec.datasets, spec.rates):
        figure = spec.figure_of(dataset)
        here = [choice for choice in choices if choice.case == spec.case(dataset, rate)]
        chosen = {row.name: most_thorough([c for c in here if c.row == row.name], rule) for row in spec.rows}
        keys = {name: choice.trainings if choice else () for name, choice in chosen.items()}
        found = {name: tuple(outcomes[key] for key in of_row if key in outcomes) for name, of_row in keys.items()}
        figures = {name: _figures(trials) for name, trials in found.items()}
        ranks = _ranks(figures)
        for row in spec.rows:
            published = spec.paper.get(dataset, {}).get(rate, {}).get(row.paper or "")
            ours = figures[row.name].get(figure)
            choice = chosen[row.name]
            gains = {}
            for name in (row.twin, *row.against):
                if name:
                    same_search = len({one.search for one in (choice, chosen.get(name)) if one}) == 1
                    gains[name] = adaptive_gain(found[row.name], found.get(name, ()), figure, same_search)
            yield TableCell(
                rule=rule,
                dataset=dataset,
                rate=rate,
                row=row.name,
                choice=choice,
                outcomes=found[row.name],
                figures=figures[row.name],
                ranks=ranks[row.name],
                ours=ours,
                paper=MeanStd(*published) if published else None,
                difference=ours.mean - published[0] if ours and published else None,
                gain=gains.get(row.twin or ""),
                compared={name: gain for name in row.against if (gain := gains[name])},
                ensemble=ensembles.get((choice.trainings[0], len(choice.trainings)), {}) if choice else {},
            )


def most_thorough(choices: Sequence[Choice], rule: str) -> Choice | None:
    """The choice with the widest search, then the most trials; a choice without a rule serves for every rule."""
    usable = [choice for choice in choices if choice.rule in (rule, "none") and search_rank(choice.search)[0] >= 0]
    return max(usable, key=lambda choice: (search_rank(choice.search), len(choice.trainings)), default=None)


def _figures(trials: Sequence[Outcome]) -> dict[str, MeanStd]:
    """Only figures that all trials have: a mean over some of them would be of another sample."""
    first = trials[0].figures if trials else ()
    names = [name for name in first if name != "diverged" and all(name in trial.figures for trial in trials)]
    return {name: MeanStd.of([trial.figures[name] for trial in trials]) for name in names}


def _ranks(figures: Mapping[str, Mapping[str, MeanStd]]) -> dict[str, dict[str, int]]:
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


def adaptive_gain(
    row: Sequence[Outcome], frozen: Sequence[Outcome], figure: str, same_search: bool = True
) -> AdaptiveGain | None:
    """The mean difference over the seeds that both have, and the p of a paired t test."""
    from scipy import stats  # imported here: it takes most of a second, and the command line imports this module

    a, b = ({o.training.seed: o.figures[figure] for o in trials if figure in o.figures} for trials in (row, frozen))
    difference = np.array([a[seed] - b[seed] for seed in sorted(a.keys() & b.keys())])
    if not len(difference):
        return None
    # The same difference in every trial has no variance to test against.
    varies = np.isfinite(difference).all() and not np.allclose(difference, difference[0], rtol=0, atol=1e-9)
    p = float(stats.ttest_1samp(difference, 0).pvalue) if varies else None
    return AdaptiveGain(float(difference.mean()), p, len(difference), same_search)
