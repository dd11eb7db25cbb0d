"""The paper's tables: settings chosen on validation alone, trained in large batches, kept in a store as they come."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Protocol

import torch
from torch_geometric.data import Data

from asgnn.asmp import SCALARS
from asgnn.attacks import nettack, nettack_targets
from asgnn.errors import ConfigError
from asgnn.experiments.attack import TARGETED, AttackSpec, run_attack
from asgnn.experiments.figures import FIGURES, RATES, ROWS, series_of
from asgnn.experiments.machine import machine
from asgnn.experiments.run import find_split, load_graph
from asgnn.experiments.spec import ANEW, TABLES, Row, Spec, load_spec
from asgnn.experiments.trainings import Case, Choice, Outcome, Series, Settings, Training
from asgnn.experiments.work import Batch, Executor
from asgnn.graphs import DATASETS, Perturbation, Split, diff, load_dataset
from asgnn.graphs.own import LARGEST_RATE
from asgnn.progress import Progress

# The two stages of a search, the same for every model: all settings with few trials, the best again with all.
FIRST_TRIALS = 2
FINALISTS = 5
# For the choice on attacked validation, validation nodes are attacked besides, on the graph of the cell: those of as
# high a degree as the test nodes that Nettack attacks or, where they are few, this many of the highest.
VALIDATION_TARGETS = 40
VALIDATION_ATTACK = "+validation-nettack"  # after the name of the cell's own attack
# What may differ between the trials of one batch, see asgnn.models.base.
PER_TRIAL = {"lr", "weight_decay", "scalar_lr", "dropout", "lambda1", "lambda2", *SCALARS}
LARGEST_BATCH = {"cpu": 16, "cuda": 1024}


class Keeps(Protocol):
    """What is asked of a store; :class:`~asgnn.experiments.store.Store` is one."""

    def add(self, outcomes: Iterable[Outcome]) -> int: ...
    def get(self, keys: Iterable[str]) -> dict[str, Outcome]: ...
    def add_choices(self, choices: Iterable[Choice]) -> None: ...
    def add_series(self, series: Iterable[Series]) -> None: ...
    def series(self, kind: str) -> list[Series]: ...
    def attack(self, spec: Mapping[str, object]) -> Perturbation | None: ...
    def add_attack(self, spec: Mapping[str, object], flips: Perturbation, *, seconds: float, machine: str) -> None: ...


@dataclass(frozen=True)
class Question:
    """One row in one cell of a table: which settings, and what comes of them?"""

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
            return replace(self.case, poisoned=f"{self.case.poisoned or ''}{VALIDATION_ATTACK}"), "target"
        return self.case, "val"

    def answer(self) -> Generator[list[Training], Mapping[str, Outcome], Choice]:
        """Asks for trainings, is sent what came of all that were asked for so far, and ends with the choice."""
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
        return [Training(case.of_trial(seed), self.row.model, settings, seed) for seed in range(trials)]

    def _ranked(
        self, remaining: list[Settings], trials: int
    ) -> Generator[list[Training], Mapping[str, Outcome], list[Settings]]:
        """Best first: the mean of the figure over the trials, then the lower mean loss on validation."""
        case, figure = self.judge
        asked = {settings: self.trainings(case, settings, trials) for settings in remaining}
        found = yield [training for each in asked.values() for training in each]

        def worth(settings: Settings) -> tuple[float, float]:
            figures = [found[training.key].figures for training in asked[settings]]
            loss = fmean(one["val_loss"] for one in figures)
            # of a training that diverged; what is not a number would be neither before nor after any other
            return -fmean(one[figure] for one in figures), math.inf if math.isnan(loss) else loss

        return sorted(remaining, key=worth)


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
    if trials < 1:
        raise ConfigError(f"There must be at least one trial; trials is {trials}.")
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


@dataclass
class Engine:
    """Answers questions: trains what the store does not have, and adds it batch by batch.

    Batches are planned from all that is asked for and not from what is missing, and a batch is stored whole or not at
    all; so a run that was stopped goes on with the same batches, and ends with the same figures.
    """

    store: Keeps
    executor: Executor
    device: str = "cpu"
    root: str | Path | None = None
    largest: int | None = None
    progress: Callable[[int, Batch], None] | None = None
    """Told, after each batch, how many of the trainings asked for there are by now."""
    attacking: Callable[[Case, int, int], None] | None = None
    """Told, while an attack is made, how many flips it has and how many it will have."""

    def __post_init__(self) -> None:
        self._settled: set[str] = set()

    def carry_out(self, asked: Plan) -> Iterator[list[Choice]]:
        """Settle a plan wave by wave, then watch the layers that its figures show, where that was not done before."""
        for wave in asked.waves:
            yield self.settle(wave)
        there = {(one.training, one.kind) for kind in asked.kinds for one in self.store.series(kind)}
        for choice in self.settle(asked.drawn):
            wanted = {(key, kind) for key in choice.trainings for kind in asked.kinds}
            if choice.row in ROWS and not wanted <= there:
                self.store.add_series(series_of(choice, asked.kinds, root=self.root, device=self._here))

    @property
    def _here(self) -> str:
        """For what is done in this process: the GPU of a cluster is not this machine's."""
        return self.device if torch.cuda.is_available() else "cpu"

    def settle(self, asked: Sequence[Question]) -> list[Choice]:
        """The choices for a wave of questions, stored; what they need is trained together, stage by stage."""
        walks = [question.answer() for question in asked]
        wanted = {i: next(walk) for i, walk in enumerate(walks)}
        found: dict[str, Outcome] = {}
        choices: dict[int, Choice] = {}
        while wanted:
            asked_for = (training for each in wanted.values() for training in each)
            found |= self._outcomes([training for training in asked_for if training.key not in found])
            for i in list(wanted):
                try:
                    wanted[i] = walks[i].send(found)
                except StopIteration as end:
                    choices[i] = end.value
                    del wanted[i]
        settled = [choices[i] for i in range(len(walks))]
        self.store.add_choices(settled)
        return settled

    def _outcomes(self, trainings: Sequence[Training]) -> dict[str, Outcome]:
        keys = [training.key for training in trainings]
        have = self.store.get(keys).keys()
        self._settled |= have
        missing = [batch for batch in self._batches(trainings) if not batch.keys <= have]
        for batch, outcomes in self.executor(missing):
            self.store.add(outcomes)
            self._settled |= batch.keys
            if self.progress is not None:
                self.progress(len(self._settled), batch)
        return self.store.get(keys)

    def _batches(self, trainings: Sequence[Training]) -> list[Batch]:
        groups: dict[object, dict[str, Training]] = {}
        for training in trainings:
            fixed = tuple((name, value) for name, value in training.settings if name not in PER_TRIAL)
            case = training.case
            # the clean graph is one for all splits; an attack may be made for one of them
            group = (case if case.poisoned else replace(case, split=""), training.model, fixed)
            groups.setdefault(group, {})[training.key] = training
        size = self.largest or LARGEST_BATCH[torch.device(self.device).type]
        out = []
        for group_of in groups.values():
            members = list(group_of.values())
            flips = self._flips(members[0].case)
            out += [Batch(tuple(members[i : i + size]), flips) for i in range(0, len(members), size)]
        return out

    def _flips(self, case: Case) -> Perturbation | None:
        """Those of an attack that is made here, once, and kept in the store; no other case needs them."""
        name = case.poisoned or ""
        if not name.startswith(ANEW) and not name.endswith(VALIDATION_ATTACK):
            return None
        whole = to_make(case)
        asked = {"attack": case.poisoned, "dataset": case.dataset, "rate": whole.rate, "split": case.split}
        found = self.store.attack(asked)
        if found is None:
            began = time.perf_counter()
            progress = partial(self.attacking, whole) if self.attacking else None
            if name.endswith(VALIDATION_ATTACK):
                found = attack_validation(case, self._flips(given_to(case)), self.root, progress)
            else:
                found = attack_split(whole, self.root, progress, self._here)
            where = found.meta.get("machine", machine("cpu"))
            self.store.add_attack(asked, found, seconds=time.perf_counter() - began, machine=where)
        return found if whole == case else found.first(int(case.rate * DATASETS[case.dataset].edges))


def given_to(case: Case) -> Case:
    """The case whose graph validation nodes are attacked on."""
    return replace(case, poisoned=str(case.poisoned).removesuffix(VALIDATION_ATTACK) or None)


def attack_validation(
    case: Case, flips: Perturbation | None, root: str | Path | None = None, progress: Progress | None = None
) -> Perturbation:
    """Nettack on validation nodes, on the graph that a defender has; of the labels, the training ones.

    Args:
        case: one whose attack ends with ``VALIDATION_ATTACK``.
        flips: of the case without that, where its name does not say them.
        root, progress: where data are kept; told how far it is.

    Returns:
        Both attacks as one, on the clean graph; its targets are the validation nodes.
    """
    graph = load_graph(given_to(case), root, flips)
    data = graph.data
    split = find_split(case.split, data, case.dataset, root)
    targets = validation_targets(data, split)
    attacked, meta = data, dict[str, str]()
    if case.rate:
        found = nettack(data, int(case.rate), split.train, targets, torch.Generator().manual_seed(0), progress=progress)
        attacked, meta = found.apply(data), dict(found.meta)
    return replace(diff(graph.clean, attacked), targets=targets, meta=meta)


def validation_targets(data: Data, split: Split) -> torch.Tensor:
    """The validation nodes that are attacked on a graph, those of the highest degree."""
    degree = torch.bincount(data.edge_index[0], minlength=data.num_nodes)[split.val]
    count = max(VALIDATION_TARGETS, nettack_targets(data, split.val).numel())
    return split.val[degree.argsort(descending=True, stable=True)[:count]]


def to_make(case: Case) -> Case:
    """The attack whose first flips are a case's: that of the largest rate for Metattack, whose flips are in order, and
    one flip a target where a case without flips needs the targets alone."""
    if case.poisoned == f"{ANEW}metattack":
        return replace(case, rate=LARGEST_RATE)
    return replace(case, rate=case.rate or 1.0) if case.poisoned == f"{ANEW}nettack" else case


def attack_split(
    case: Case, root: str | Path | None = None, progress: Progress | None = None, device: str = "cpu"
) -> Perturbation:
    """What ``asgnn attack`` makes for the case's split; its training labels are those that the attacker knows."""
    method = str(case.poisoned).removeprefix(ANEW)
    per_target, rate = (int(case.rate), 0.0) if method in TARGETED else (0, case.rate)
    spec = AttackSpec(case.dataset, method, rate=rate, per_target=per_target, split=case.split)
    return run_attack(spec, load_dataset(case.dataset, root), device=device, progress=progress)
