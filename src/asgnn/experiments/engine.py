"""Answers to questions: what a store does not have is trained in large batches and kept as it comes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from asgnn.experiments.attacks import make_attack
from asgnn.experiments.executors import Batch, Executor
from asgnn.experiments.figures import ROWS, series_of
from asgnn.experiments.machine import machine
from asgnn.experiments.measure import load_graph
from asgnn.experiments.questions import Plan, Question
from asgnn.experiments.store import Store
from asgnn.experiments.values import Case, Choice, Outcome, SplitName, Training
from asgnn.graphs import DATASETS, Perturbation
from asgnn.graphs.own import LARGEST_RATE
from asgnn.training import recipe

LARGEST_BATCH = {"cpu": 16, "cuda": 1024}


@dataclass
class Engine:
    """Answers questions: trains what the store does not have, and adds it batch by batch.

    Batches are planned from all that is asked for and not from what is missing, and a batch is stored whole or not at
    all; so a run that was interrupted resumes with the same batches, and ends with the same figures.

    Args:
        store: where outcomes are taken from and kept.
        executor: runs batches.
        device, root: where to train, and where data are.
        largest: trainings side by side at the most.
        edge_aucs: whether the figure "edge_auc" is measured, too.
        progress: called after each batch with how many of the trainings asked for are done.
        attacking: called while an attack is made with its case, the flips made and the flips in all.
    """

    store: Store
    executor: Executor
    device: str = "cpu"
    root: str | Path | None = None
    largest: int | None = None
    edge_aucs: bool = False
    progress: Callable[[int, Batch], None] | None = None
    attacking: Callable[[Case, int, int], None] | None = None

    def __post_init__(self) -> None:
        self._settled: set[str] = set()

    def carry_out(self, asked: Plan) -> Iterator[list[Choice]]:
        """Settle a plan wave by wave, then measure the layers that its figures show, where that was not done before."""
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
        answers = [question.answer() for question in asked]
        wanted = {i: next(answer) for i, answer in enumerate(answers)}
        found: dict[str, Outcome] = {}
        choices: dict[int, Choice] = {}
        while wanted:
            asked_for = (training for each in wanted.values() for training in each)
            found |= self.outcomes([training for training in asked_for if training.key not in found])
            for i in list(wanted):
                try:
                    wanted[i] = answers[i].send(found)
                except StopIteration as end:
                    choices[i] = end.value
                    del wanted[i]
        settled = [choices[i] for i in range(len(answers))]
        self.store.add_choices(settled)
        return settled

    def outcomes(self, trainings: Sequence[Training]) -> dict[str, Outcome]:
        """By key, in the order asked for: from the store, or trained and stored."""
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
            known = recipe(training.model).settings
            fixed = tuple(one for one in training.settings if one[0] not in known or not known[one[0]].per_trial)
            groups.setdefault((_graph_of(training.case), training.model, fixed), {})[training.key] = training
        size = self.largest or LARGEST_BATCH[torch.device(self.device).type]
        out = []
        for group in groups.values():
            members = list(group.values())
            flips = self._flips(members[0].case)
            parts = (tuple(members[i : i + size]) for i in range(0, len(members), size))
            out += [Batch(part, flips, self.edge_aucs) for part in parts]
        return out

    def _flips(self, case: Case) -> Perturbation | None:
        """Those of a case with an attack that is made: once, and kept in the store; no other case needs them."""
        if not any(attack.source == "made" for attack in case.attacks):
            return None
        whole = _graph_of(_largest(case))
        found = self.store.attack(whole)
        if found is None:
            began = time.perf_counter()
            before = replace(case, attacks=case.attacks[:-1])
            found = make_attack(
                _largest(case),
                load_graph(before, self.root, self._flips(before)),
                root=self.root,
                device=self._here,
                progress=partial(self.attacking, _largest(case)) if self.attacking else None,
            )
            where = found.meta.get("machine", machine("cpu"))
            self.store.add_attack(whole, found, seconds=time.perf_counter() - began, machine=where)
        if _largest(case) == case:
            return found
        return found.first(int(case.amount * DATASETS[case.dataset].edges))


def _graph_of(case: Case) -> Case:
    """Equal for cases with the same graph: most are the same on all splits, but an attack may be made for one."""
    return replace(case, split=SplitName("random")) if case.same_on_all_splits else case


def _largest(case: Case) -> Case:
    """The case whose first flips are this one's: Metattack's flips are in order, so one attack serves all rates."""
    if len(case.attacks) > 1 or case.attacks[0].kind != "metattack":
        return case
    (attack,) = case.attacks
    return replace(case, attacks=(replace(attack, amount=max(attack.amount, LARGEST_RATE)),))
