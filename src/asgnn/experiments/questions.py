"""What is asked: cells of the paper's tables, with a search of settings that looks at validation alone."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from statistics import fmean

from asgnn.errors import ConfigError
from asgnn.experiments.figures import FIGURES, RATES, ROWS
from asgnn.experiments.spec import TABLES, Row, Spec, load_spec
from asgnn.experiments.values import Attack, Case, Choice, Outcome, Settings, Training, check_trials, trainings_of

# The two stages of a search, the same for every model: all settings with few trials, the best again with all.
FIRST_TRIALS = 2
FINALISTS = 5


@dataclass(frozen=True)
class Question:
    """One row in one cell of a table: which settings, and how good are they?"""

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
        """How many trainings the answer takes."""
        if len(self.candidates) == 1:
            return self.trials
        first = min(FIRST_TRIALS, self.trials)
        finalists = min(FINALISTS, len(self.candidates))
        again = self.trials if self.judge != (self.case, "val") else 0
        return len(self.candidates) * first + finalists * (self.trials - first) + again

    @cached_property
    def judge(self) -> tuple[Case, str]:
        """The graph and the figure by which settings are chosen; no test label is in it."""
        if self.rule == "attacked validation":
            besides = Attack("nettack", "made", self.case.amount, targets="validation")
            return replace(self.case, attacks=(*self.case.attacks, besides)), "target"
        return self.case, "val"

    def answer(self) -> Generator[list[Training], Mapping[str, Outcome], Choice]:
        """Asks for trainings, is sent the outcomes of all that were asked for so far, and ends with the choice."""
        remaining = self.candidates
        if len(remaining) > 1:
            remaining = (yield from self._ranked(remaining, min(FIRST_TRIALS, self.trials)))[:FINALISTS]
            remaining = yield from self._ranked(remaining, self.trials)
        trainings = self.trainings(self.case, remaining[0], self.trials)
        yield trainings
        return Choice(
            table=self.spec.name,
            case=self.case,
            row=self.row.name,
            rule=self.rule if len(self.candidates) > 1 else "none",
            search=self.search if len(self.candidates) > 1 else "none",
            model=self.row.model,
            settings=remaining[0],
            tried=len(self.candidates),
            trainings=tuple(training.key for training in trainings),
        )

    def trainings(self, case: Case, settings: Settings, trials: int) -> list[Training]:
        """Of the row with some settings, on the cell's graph or the one that settings are judged on."""
        return trainings_of(case, self.row.model, settings, trials)

    def _ranked(
        self, remaining: list[Settings], trials: int
    ) -> Generator[list[Training], Mapping[str, Outcome], list[Settings]]:
        """Best first: the mean of the figure over the trials, then the lower mean loss on validation."""
        case, figure = self.judge
        asked = {settings: self.trainings(case, settings, trials) for settings in remaining}
        found = yield [training for each in asked.values() for training in each]

        def rank(settings: Settings) -> tuple[float, float]:
            figures = [found[training.key].figures for training in asked[settings]]
            loss = fmean(one["val_loss"] for one in figures)
            # of a training that diverged; what is not a number would be neither before nor after any other
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
    """What a table asks, a cell after the other; everything that is not restricted.

    A row that has a twin brings it along: what adaptivity adds is always beside it.
    """
    check_trials(trials)
    named = [spec.row(name) for name in models] or list(spec.rows)
    wanted = {row.name for row in named} | {row.twin for row in named if row.twin}
    for kind, given, known in (("dataset", datasets, spec.attacks), ("rate", rates, spec.rates)):
        for value in given:
            if value not in known:
                raise ConfigError(f"{spec.name} has no {kind} {value}; it has {', '.join(map(str, known))}.")
    out = []
    for dataset in dict.fromkeys(datasets or spec.attacks):
        for rate in dict.fromkeys(rates or spec.rates):
            for row in spec.rows:
                if row.name in wanted:
                    # without a choice there is one way to make none
                    rules = spec.rules if len(row.candidates(search, dataset)) > 1 else spec.rules[:1]
                    out += [Question(spec, row, spec.case(dataset, rate), rule, search, trials) for rule in rules]
    return out


@dataclass(frozen=True)
class Plan:
    """What is asked for.

    Attributes:
        waves: questions whose trainings are run together, a wave after the other.
        drawn: questions whose answers figures are drawn from.
        kinds: of the series that are drawn.
    """

    waves: list[list[Question]]
    drawn: list[Question]
    kinds: list[str]

    @property
    def expected(self) -> int:
        """How many trainings the answers take, where no two rules choose the same in the end."""
        # tables share questions: table3 is about some of the trainings of table2
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
    """The questions of a table, of a figure or of all of them; a wave is a cell, or everything ``together``.

    With ``splits="random"`` trial i has the i-th random split, in the tables alone.
    """
    if what in FIGURES and (datasets or models or rates):
        raise ConfigError(
            f"{what} shows {', '.join(ROWS)} on cora at {' and '.join(f'{rate:g}' for rate in RATES)}; "
            "it cannot be restricted to datasets, models or rates."
        )
    given = splits == "given"
    if what in FIGURES and not given:
        raise ConfigError(f"{what} is drawn from trainings on the given splits; {splits} ones are for tables.")
    names = [what] if what != "all" else [*TABLES, *FIGURES] if given else list(TABLES)
    waves: list[list[Question]] = []
    for name in names:
        if name not in FIGURES:
            spec = load_spec(name if given else f"{name}-{splits}")
            asked = questions(spec, datasets=datasets, models=models, rates=rates, trials=trials, search=search)
            waves += [list(cell) for _, cell in groupby(asked, key=lambda question: question.case)]
    kinds = [FIGURES[name] for name in names if name in FIGURES]
    drawn: list[Question] = []
    if kinds:  # of the cells of table1 that the figures show, whatever the table itself is restricted to
        drawn = questions(
            load_spec("table1"), datasets=["cora"], models=ROWS, rates=RATES, trials=trials, search=search
        )
        waves.append(drawn)
    return Plan([[question for wave in waves for question in wave]] if together else waves, drawn, kinds)
