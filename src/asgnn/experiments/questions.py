"""Questions: cells of the tables, and the search for settings, which uses validation nodes only."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from statistics import fmean

from asgnn.errors import ConfigError
from asgnn.experiments.figures import FIGURES, RATES, ROWS
from asgnn.experiments.spec import ABLATION, GENERALITY, SEARCHES, SMALL, TABLES, Row, Spec, load_spec, search_rank
from asgnn.experiments.values import MAX_TRIALS, Attack, Case, Choice, Outcome, Settings, Training, trainings_of
from asgnn.settings import check_count

# The two stages of a search, the same for every model: all settings with few trials, the best ones with all trials.
FIRST_TRIALS = 2
FINALISTS = 5
TOPICS = (*TABLES, *FIGURES, "all", ABLATION, GENERALITY, SMALL)


@dataclass(frozen=True)
class Question:
    """One row in one cell of a table: which settings are best, and how good are they?"""

    spec: Spec
    row: Row
    case: Case
    rule: str
    search: str
    trials: int

    @cached_property
    def candidates(self) -> list[Settings]:
        return self.row.candidates(self.search, self.case.dataset)

    def expected(self) -> int:
        """The number of trainings that the answer needs."""
        if len(self.candidates) == 1:
            return self.trials
        first = min(FIRST_TRIALS, self.trials)
        finalists = min(FINALISTS, len(self.candidates))
        again = self.trials if self.judge != (self.case, "val") else 0
        return len(self.candidates) * first + finalists * (self.trials - first) + again

    @cached_property
    def judge(self) -> tuple[Case, str]:
        """The graph and the figure by which settings are chosen; it contains no test label."""
        if self.rule == "attacked validation":
            second = Attack("nettack", "made", self.case.amount, targets="validation")
            return replace(self.case, attacks=(*self.case.attacks, second)), "target"
        return self.case, "val"

    def answer(self) -> Generator[list[Training], Mapping[str, Outcome], Choice]:
        """Yields trainings, is sent the outcomes of all trainings so far, and returns the choice."""
        remaining, searched = self.candidates, len(self.candidates) > 1
        if searched:
            remaining = (yield from self._ranked(remaining, min(FIRST_TRIALS, self.trials)))[:FINALISTS]
            remaining = yield from self._ranked(remaining, self.trials)
        trainings = trainings_of(self.case, self.row.model, remaining[0], self.trials)
        yield trainings
        return Choice(
            table=self.spec.name,
            case=self.case,
            row=self.row.name,
            rule=self.rule if searched else "none",
            search=self.search if searched else "none",
            model=self.row.model,
            settings=remaining[0],
            tried=len(self.candidates),
            trainings=tuple(training.key for training in trainings),
        )

    def _ranked(
        self, remaining: list[Settings], trials: int
    ) -> Generator[list[Training], Mapping[str, Outcome], list[Settings]]:
        """Best first: by the mean of the figure over the trials, then by the lower mean validation loss."""
        case, figure = self.judge
        asked = {settings: trainings_of(case, self.row.model, settings, trials) for settings in remaining}
        found = yield [training for each in asked.values() for training in each]

        def rank(settings: Settings) -> tuple[float, float]:
            figures = [found[training.key].figures for training in asked[settings]]
            loss = fmean(one["val_loss"] for one in figures)
            # NaN, from a diverged training, cannot be sorted
            return -fmean(one[figure] for one in figures), math.inf if math.isnan(loss) else loss

        return sorted(remaining, key=rank)


def questions(
    spec: Spec,
    *,
    datasets: Sequence[str] = (),
    models: Sequence[str] = (),
    rates: Sequence[float] = (),
    trials: int = 10,
    search: str = "paper",
) -> list[Question]:
    """The questions of a table, cell by cell; an empty restriction means everything.

    A row comes with its frozen twin and with the rows that it is compared with. A row that has no such search is left
    out: tuned rows have no grid, and the others are not tuned.
    """
    check_count("trials", trials, 1, MAX_TRIALS)
    if search_rank(search)[0] < 0:
        raise ConfigError(f"search must be one of {', '.join(SEARCHES)}; it is {search!r}.")
    named = [spec.row(name) for name in models] or list(spec.rows)
    wanted = {row.name for row in named} | {name for row in named for name in (row.twin, *row.against) if name}
    searches = {row.name: row.search_for(search) for row in spec.rows if row.name in wanted}
    rows = [row for row in spec.rows if searches.get(row.name) is not None]
    if not rows:
        raise ConfigError(f"None of these rows of {spec.name} has a search {search!r}.")
    # a graph of its own is found by its dataset, too
    graphs = {name: {name, spec.case(name, spec.rates[0]).dataset} for name in spec.datasets}
    known_names = [one for names in graphs.values() for one in names]
    for kind, given, known in (("dataset", datasets, known_names), ("rate", rates, spec.rates)):
        for value in given:
            if value not in known:
                has = spec.datasets if kind == "dataset" else spec.rates
                raise ConfigError(f"{spec.name} has no {kind} {value}; it has {', '.join(map(str, has))}.")
    asked = [name for given in datasets for name, names in graphs.items() if given in names] or spec.datasets
    out = []
    for dataset in dict.fromkeys(asked):
        for rate in dict.fromkeys(rates or spec.rates):
            for row in rows:
                case, of_row = spec.case(dataset, rate), searches[row.name] or "none"
                # without a search all rules are the same
                rules = spec.rules if len(row.candidates(of_row, case.dataset)) > 1 else spec.rules[:1]
                out += [Question(spec, row, case, rule, of_row, trials) for rule in rules]
    return out


@dataclass(frozen=True)
class Plan:
    """Questions in waves: the trainings of a wave run together.

    Attributes:
        drawn: the questions whose answers the figures show.
        kinds: the kinds of series in these figures.
    """

    waves: list[list[Question]]
    drawn: list[Question]
    kinds: list[str]

    @property
    def expected(self) -> int:
        """The number of trainings that the answers need, if no two rules choose the same settings."""
        # tables share questions: table3 reports some of the trainings of table2
        distinct = {
            (question.judge, question.case, question.row.model, tuple(question.candidates), question.trials): question
            for wave in self.waves
            for question in wave
        }
        return sum(question.expected() for question in distinct.values())


def plan(
    what: str,
    *,
    datasets: Sequence[str] = (),
    models: Sequence[str] = (),
    rates: Sequence[float] = (),
    trials: int = 10,
    search: str = "paper",
    splits: str = "given",
    together: bool = False,
) -> Plan:
    """The questions of a table, of a figure or of all of them; a wave is a cell, or everything if ``together``.

    With ``splits="random"``, which is for tables only, trial i has the i-th random split.
    """
    if what not in TOPICS:
        raise ConfigError(f"There is no table or figure {what!r}; choose from {', '.join(TOPICS)}.")
    if splits not in ("given", "random"):
        raise ConfigError(f"splits must be given or random; it is {splits!r}.")
    if what in FIGURES and (datasets or models or rates):
        raise ConfigError(
            f"{what} shows {', '.join(ROWS)} on cora at {' and '.join(f'{rate:g}' for rate in RATES)}; "
            "it cannot be restricted to datasets, models or rates."
        )
    given = splits == "given"
    if what in (*FIGURES, ABLATION, GENERALITY) and not given:
        which = "tables" if what in FIGURES else "the tables of the paper"
        raise ConfigError(f"{what} uses the given splits; {splits} splits are for {which} only.")
    names = [what] if what != "all" else [*TABLES, *FIGURES] if given else list(TABLES)
    waves: list[list[Question]] = []
    for name in names:
        if name not in FIGURES:
            spec = load_spec(name if given else f"{name}-{splits}")
            asked = questions(spec, datasets=datasets, models=models, rates=rates, trials=trials, search=search)
            waves += [list(cell) for _, cell in groupby(asked, key=lambda question: question.case)]
    kinds = [FIGURES[name] for name in names if name in FIGURES]
    drawn: list[Question] = []
    if kinds:  # the figures show cells of table1, whatever the table is restricted to
        table1 = load_spec("table1")
        drawn = questions(table1, datasets=["cora"], models=ROWS, rates=RATES, trials=trials, search=search)
        waves.append(drawn)
    return Plan([[question for wave in waves for question in wave]] if together else waves, drawn, kinds)
