"""The engine: answers questions from a store, and trains what is missing in large batches."""

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
from asgnn.experiments.values import (
    ENSEMBLE,
    Case,
    Choice,
    Outcome,
    Series,
    SplitName,
    Training,
    trainings_of,
)
from asgnn.graphs import DATASETS, Perturbation, find_dataset
from asgnn.graphs.own import LARGEST_RATE
from asgnn.training import recipe

LARGEST_BATCH = {"cpu": 16, "cuda": 1024}
# The edges of all trainings of a batch on a GPU, which several processes may share: about 13 GB.
MAX_EDGES = 2**23
WRITE_EVERY = 0.5  # seconds; as much work is lost if the process is killed


@dataclass
class Engine:
    """Answers questions: trains what the store lacks and adds it batch by batch.

    Batches are planned from all requested trainings, not only from missing ones, and a batch is stored as a whole. An
    interrupted run therefore resumes with the same batches and ends with the same figures.

    Args:
        device, root: where to train, and the folder of the data.
        largest: the maximal number of trainings in a batch.
        edge_aucs: whether to measure the figure "edge_auc".
        progress: called after each batch with the number of finished trainings.
        attacking: called during an attack with its case, the number of flips made and the number of all flips.
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
        self._done: set[str] = set()

    def run(self, asked: Plan) -> Iterator[list[Choice]]:
        """Answer a plan wave by wave, then measure the layers that its figures show and the store lacks."""
        for wave in asked.waves:
            choices = self.answer(wave)
            self.ensembles([one for one, question in zip(choices, wave, strict=True) if question.row.search != "grid"])
            yield choices
        known = {(one.training, one.kind) for kind in asked.kinds for one in self.store.series(kind)}
        for choice in self.answer(asked.drawn):
            wanted = {(key, kind) for key in choice.trainings for kind in asked.kinds}
            if choice.row in ROWS and not wanted <= known:
                self.store.add_series(series_of(choice, asked.kinds, root=self.root, device=self._local_device))

    @property
    def _local_device(self) -> str:
        """For work in this process: a cluster may have a GPU where this machine has none."""
        return self.device if torch.cuda.is_available() else "cpu"

    def answer(self, asked: Sequence[Question]) -> list[Choice]:
        """The stored choices for a wave of questions; the trainings of a stage run together."""
        answers = [question.answer() for question in asked]
        wanted = {i: next(answer) for i, answer in enumerate(answers)}
        found: dict[str, Outcome] = {}
        choices: dict[int, Choice] = {}
        while wanted:
            trainings = (training for each in wanted.values() for training in each)
            found |= self.outcomes([training for training in trainings if training.key not in found])
            for i in list(wanted):
                try:
                    wanted[i] = answers[i].send(found)
                except StopIteration as end:
                    choices[i] = end.value
                    del wanted[i]
        self.store.add_choices(choices.values())
        return [choices[i] for i in range(len(answers))]

    def ensembles(self, choices: Sequence[Choice]) -> None:
        """Store the figures of the mean probability of the reported trials, as a series of the first of them.

        The trials are trained once more, as one batch, because a store holds no probabilities. Trials with splits of
        their own have no such figure.
        """
        known = {(one.training, one.content["trials"]) for one in self.store.series(ENSEMBLE)}
        missing = {}
        for choice in choices:
            trainings = trainings_of(choice.case, choice.model, choice.settings, len(choice.trainings))
            key = (choice.trainings[0], len(trainings))
            if len(trainings) > 1 and len({one.case for one in trainings}) == 1 and key not in known:
                missing[key] = Batch(tuple(trainings), self._flips(choice.case), ensemble=True)
        for batch, outcomes in self.executor(list(missing.values())):
            prefix = f"{ENSEMBLE}_"
            figures = {
                name.removeprefix(prefix): value
                for name, value in outcomes[0].figures.items()
                if name.startswith(prefix)
            }
            content = {"trials": len(batch.trainings), "figures": figures}
            self.store.add_series([Series(batch.trainings[0].key, ENSEMBLE, content)])

    def outcomes(self, trainings: Sequence[Training]) -> dict[str, Outcome]:
        """Outcomes by key in the order of ``trainings``, from the store or trained and stored."""
        keys = [training.key for training in trainings]
        have = self.store.has(keys)
        self._done |= have
        missing = [batch for batch in self._batches(trainings) if not batch.keys <= have]
        finished: list[tuple[Batch, list[Outcome]]] = []
        written = 0.0

        def write() -> None:
            nonlocal written
            self.store.add([outcome for _, outcomes in finished for outcome in outcomes])
            for batch, _ in finished:
                self._done |= batch.keys
                if self.progress is not None:
                    self.progress(len(self._done), batch)
            finished.clear()
            written = time.monotonic()

        # Small batches on a GPU finish more often than a disk confirms that it has written.
        try:
            for done in self.executor(missing):
                finished.append(done)
                if time.monotonic() - written >= WRITE_EVERY:
                    write()
        finally:
            write()
        return self.store.get(keys)

    def _batches(self, trainings: Sequence[Training]) -> list[Batch]:
        groups: dict[object, dict[str, Training]] = {}
        for training in trainings:
            known = recipe(training.model).settings
            fixed = tuple(one for one in training.settings if one[0] not in known or not known[one[0]].per_trial)
            groups.setdefault((_graph_of(training.case), training.model, fixed), {})[training.key] = training
        out = []
        for group in groups.values():
            members = list(group.values())
            size = self.largest or self._largest_batch(members[0].case.dataset)
            flips = self._flips(members[0].case)
            parts = (tuple(members[i : i + size]) for i in range(0, len(members), size))
            out += [Batch(part, flips, self.edge_aucs) for part in parts]
        return out

    def _largest_batch(self, dataset: str) -> int:
        kind = torch.device(self.device).type
        if kind != "cuda":
            return LARGEST_BATCH[kind]
        return min(LARGEST_BATCH[kind], max(1, MAX_EDGES // max(1, find_dataset(dataset).edges)))

    def _flips(self, case: Case) -> Perturbation | None:
        """The flips of an attack that is made, from the store or made and stored; ``None`` for other attacks."""
        if not any(attack.source == "made" for attack in case.attacks):
            return None
        largest = _largest(case)
        found = self.store.attack(_graph_of(largest))
        if found is None:
            began = time.perf_counter()
            before = replace(case, attacks=case.attacks[:-1])
            found = make_attack(
                largest,
                load_graph(before, self.root, self._flips(before)),
                root=self.root,
                device=self._local_device,
                progress=partial(self.attacking, largest) if self.attacking else None,
            )
            seconds, where = time.perf_counter() - began, found.meta.get("machine", machine("cpu"))
            self.store.add_attack(_graph_of(largest), found, seconds=seconds, machine=where)
        return found if largest == case else found.first(int(case.amount * DATASETS[case.dataset].edges))


def _graph_of(case: Case) -> Case:
    """Equal for cases with the same graph: it depends on the split only if an attack needs the split."""
    return case if any(attack.needs_split for attack in case.attacks) else replace(case, split=SplitName("random"))


def _largest(case: Case) -> Case:
    """The case whose first flips are those of ``case``: Metattack orders its flips, so one attack serves all rates."""
    attack = case.attacks[0]
    if len(case.attacks) > 1 or attack.kind != "metattack":
        return case
    return replace(case, attacks=(replace(attack, amount=max(attack.amount, LARGEST_RATE)),))
