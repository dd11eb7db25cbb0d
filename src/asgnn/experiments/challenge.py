"""Challenges of many models on many splits: kept in a store, shared between the models, run in several processes."""

from __future__ import annotations

import math
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, Self

import torch
from torch import nn
from torch_geometric.data import Data

from asgnn.challenge import (
    EVASION,
    POISONING,
    Attempt,
    AttemptOutcome,
    Envelope,
    Ledger,
    Made,
    NodesChallenge,
    Probe,
    UnitTest,
    Way,
    challenge_evasion,
    challenge_nodes,
    challenge_poisoning,
    chosen,
    load_unit_test,
    signs_of_masking,
)
from asgnn.challenge.attempts import WAYS, Effort, Target, make_flips, planned
from asgnn.challenge.suite import SEEDS
from asgnn.challenge.values import KINDS, Kind, check_budgets
from asgnn.errors import AsgnnError, ConfigError, DataUnavailable
from asgnn.experiments.executors import MAX_WORKERS, begin_worker
from asgnn.experiments.machine import machine
from asgnn.experiments.measure import find_split
from asgnn.experiments.records import REMEMBERS
from asgnn.experiments.store import Store
from asgnn.experiments.values import (
    Attack,
    Case,
    Series,
    Settings,
    SplitName,
    as_settings,
    key_of,
    parse_case,
    parse_settings,
)
from asgnn.graphs import Split, labels_of, load_dataset
from asgnn.settings import check_choice, check_count
from asgnn.training import fit_many, recipe
from asgnn.version import __version__

SERIES, NODES = "challenge", "challenge-nodes"  # kinds of series in a store
SINGLE = "single nodes"  # the kind of a standing of these
PHASES = {"shared": "sets of flips without a model", "own": "attempts", "transfer": "transfers", "nodes": "targets"}
WRITE_EVERY = 2.0  # seconds; as much work is lost if the process is killed
ARGUMENT = "+"  # between a model and its settings, as in asgnn+lam=1


@dataclass(frozen=True)
class Subject:
    """A model that is challenged.

    Args:
        model: a name of ``asgnn.training.RECIPES``, or "package.module:Class".
        settings: what differs from the recipe.
    """

    model: str
    settings: Settings = ()

    @classmethod
    def parse(cls, text: str, words: Sequence[str] = ()) -> Subject:
        """From "model" or "model+name=value+…"; ``words`` are further settings, as name=value."""
        model, *own = text.split(ARGUMENT)
        return cls(model, parse_settings(model, recipe(model).settings, [*own, *words]))

    @property
    def name(self) -> str:
        return ARGUMENT.join([self.model, *(f"{name}={value}" for name, value in self.settings)])


# Models that every table shows; no flip of an edge touches the first two, and evasion cannot touch the third.
CONTROLS: dict[str, Subject] = {
    "MLP": Subject("mlp"),
    "without the given edges": Subject(
        "asgnn", as_settings({"prior_edges": 0.0, "prior_neighbors": 15, "prior_weight": 1.0})
    ),
    REMEMBERS: Subject("asgnn.challenge.controls:Memoriser", as_settings({"hidden_channels": 16})),
}
EDGE_FREE = (CONTROLS["MLP"], CONTROLS["without the given edges"])


@dataclass(frozen=True)
class Job:
    """One model on one split: what one process does at a time.

    ``phase`` is "shared" (make the flips that need no model), "own" (attack the model), "transfer" (try the flips in
    the store that were made against other models, too) or "nodes" (attack single nodes; budgets are shares of the
    degree).
    """

    kind: Kind
    dataset: str
    split: SplitName
    subject: Subject
    budgets: tuple[float, ...]
    effort: Effort = "quick"
    phase: str = "own"
    attacks: tuple[str, ...] = ()
    seeds: int = SEEDS  # trainings on each poisoned graph

    @property
    def ways(self) -> dict[str, Way]:
        """The attacks, those of ``attacks`` alone if it names any; a model that no edge reaches needs only one."""
        table = EVASION if self.kind == "evasion" else POISONING
        if self.subject in EDGE_FREE:
            return {"random": table["random"]}
        return {name: table[name] for name in self.attacks} or chosen(table, self.effort)

    @property
    def key(self) -> str:
        """Of the series with the outcomes; other budgets and another effort add to the same series."""
        return self.key_for(self.subject.name)

    def key_for(self, victim: str) -> str:
        """The key of the same job with another model."""
        asked = {"dataset": self.dataset, "split": str(self.split), "kind": self.kind, "victim": victim}
        other: dict[str, Any] = {"shares": self.budgets} if self.phase == "nodes" else {}
        if self.kind == "poisoning" and self.seeds != SEEDS:
            other["seeds"] = self.seeds
        return key_of({SERIES: asked} | other)

    def __str__(self) -> str:
        return f"{self.subject.name}, {self.dataset}, {self.split}, {self.kind}"


class StoreLedger(Ledger):
    """The ledger of a job in a store; flips are shared by all jobs on the same graph and split.

    Flips are written at once. Outcomes are written at most every ``WRITE_EVERY`` seconds and at the end of the ``with``
    block: many processes share one store, and an outcome of a transfer takes less time than a disk.
    """

    def __init__(self, store: Store, job: Job, device: str = "cpu") -> None:
        super().__init__()
        self.store, self.job, self.device = store, job, device
        self._written, self._waiting = time.monotonic(), False
        self._outcomes |= {one.attempt: one for one in _outcomes(store, job, job.subject.name)}
        for series in store.series_of(job.key, SERIES):
            if series.content["probe"] is not None:
                through, *rest = series.content["probe"]
                self._probe = Probe(tuple(through), *rest)

    def _case(self, attempt: Attempt) -> Case:
        made = Attack(
            attempt.attack, "challenge", attempt.budget, settings=(("against", attempt.source),), seed=attempt.seed
        )
        return Case(self.job.dataset, (made,), self.job.split)

    def made(self, attempt: Attempt) -> Made | None:
        found = self.store.made_attack(self._case(attempt))
        return None if found is None else Made(attempt, found.flips, found.seconds)

    def keep_made(self, made: Made) -> None:
        case = self._case(made.attempt)
        self.store.add_attack(case, made.flips, seconds=made.seconds, machine=machine(self.device))

    def pool(self) -> Iterator[Attempt]:
        for case in self.store.attack_cases():
            (attack, *_) = case.attacks
            if attack.source == "challenge" and (case.dataset, case.split) == (self.job.dataset, self.job.split):
                yield Attempt(attack.kind, str(dict(attack.settings)["against"]), attack.amount, attack.seed)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._waiting:
            self._write()

    def keep_outcome(self, outcome: AttemptOutcome) -> None:
        super().keep_outcome(outcome)
        self._waiting = True
        if time.monotonic() - self._written >= WRITE_EVERY:
            self._write()

    def keep_probe(self, probe: Probe) -> None:
        super().keep_probe(probe)
        self._waiting = True

    def _write(self) -> None:
        rows = [
            [
                *asdict(one.attempt).values(),
                *(round(one.before, 4), round(one.after, 4), one.flips, round(one.seconds, 2), one.problem),
            ]
            for one in self.outcomes()
        ]
        content = {
            **{"dataset": self.job.dataset, "split": str(self.job.split), "kind": self.job.kind},
            **{"victim": self.job.subject.name, "machine": machine(self.device), "version": __version__},
            "outcomes": rows,
            "probe": None if self._probe is None else list(asdict(self._probe).values()),
        }
        self.store.add_series([Series(self.job.key, SERIES, content)])
        self._written, self._waiting = time.monotonic(), False


def _outcomes(store: Store, job: Job, victim: str) -> Iterator[AttemptOutcome]:
    """What the store has of a model under the attacks of a job."""
    for series in store.series_of(job.key_for(victim), SERIES):
        for row in series.content["outcomes"]:
            yield AttemptOutcome(job.kind, victim, Attempt(*row[:4]), *row[4:])


def jobs_of(
    kinds: Sequence[str],
    dataset: str,
    splits: Sequence[SplitName],
    subjects: Sequence[Subject],
    budgets: Sequence[float],
    effort: Effort = "quick",
    *,
    nodes: bool = False,
    attacks: Sequence[str] = (),
    seeds: int = SEEDS,
) -> list[Job]:
    """One job for each kind, split and model; with ``nodes`` one that attacks single nodes, with shares of degrees.

    ``attacks`` are the names of the only attacks to make; by default those of the effort. ``seeds`` is the number of
    trainings on each poisoned graph.
    """
    for kind in kinds:
        check_choice("kind", kind, KINDS)
        for attack in attacks:
            check_choice("attack", attack, tuple(EVASION if kind == "evasion" else POISONING))
    shares, name = check_budgets(budgets), parse_case(dataset, split=str(splits[0])).dataset
    chosen({}, effort)
    check_count("seeds", seeds)
    return [
        Job(kind, name, split, subject, shares, effort, "nodes" if nodes else "own", tuple(attacks), seeds)  # type: ignore[arg-type]
        for split in splits
        for kind in kinds
        for subject in dict.fromkeys(subjects)
    ]


@lru_cache(maxsize=4)
def _graph(dataset: str, split: SplitName, root: str | Path | None) -> tuple[Data, Split]:
    data = load_dataset(dataset, root)
    return data, find_split(split, data, dataset, root)


@lru_cache(maxsize=16)  # a model is wanted twice: for its own attempts and for transfers
def _trained(subject: Subject, dataset: str, split: SplitName, device: str, root: str | Path | None) -> nn.Module:
    data, nodes = _graph(dataset, split, root)
    trial = recipe(subject.model, **dict[str, Any](subject.settings)).trial(data, nodes, 0)
    return fit_many([trial], data, device=device)[0].model


def run_job(job: Job, store: Store, *, device: str = "cpu", root: str | Path | None = None) -> int:
    """Make and judge what the store lacks; returns the number of new outcomes."""
    if job.phase == "nodes":
        return _challenge_nodes(job, store, device, root)
    with StoreLedger(store, job, device) as ledger:
        return (_make_shared if job.phase == "shared" else _challenge)(job, ledger, device, root)


def _challenge(job: Job, ledger: StoreLedger, device: str, root: str | Path | None) -> int:
    """Attack one model, or try flips that were made against others; returns the number of new outcomes."""
    ways = job.ways
    before = len(ledger.outcomes())
    pool = _pool(job, ledger) if job.phase == "transfer" else []
    known, probed = {one.attempt for one in ledger.outcomes()}, ledger.probe()
    name, unbounded = job.subject.name, job.effort == "full" and job.kind == "evasion"
    if probed is not None and known >= {
        *pool,
        *planned(name, job.budgets, ways, probed.through, unbounded=unbounded),
    }:
        return 0
    data, split = _graph(job.dataset, job.split, root)
    missing = [made for attempt in pool if attempt not in known and (made := ledger.made(attempt)) is not None]
    options: dict[str, Any] = {"name": name, "ways": ways, "pool": missing, "ledger": ledger}
    if job.kind == "evasion":
        model = _trained(job.subject, job.dataset, job.split, device, root)
        challenge_evasion(model, data, split, job.budgets, unbounded=unbounded, device=device, **options)
    else:
        of = recipe(job.subject.model, **dict[str, Any](job.subject.settings))
        challenge_poisoning(of, data, split, job.budgets, seeds=job.seeds, device=device, **options)
    return len(ledger.outcomes()) - before


def _make_shared(job: Job, ledger: Ledger, device: str, root: str | Path | None) -> int:
    """Make the flips that need no model; returns how many sets."""
    (data, split), made = _graph(job.dataset, job.split, root), 0
    for attempt in planned("", job.budgets, job.ways, ("nothing",)):
        if ledger.made(attempt) is None:
            way = job.ways[attempt.attack]
            for one in make_flips(attempt, way, Target(), data, split, job.budgets, device=device):
                ledger.keep_made(one)
                made += 1
    return made


def _challenge_nodes(job: Job, store: Store, device: str, root: str | Path | None) -> int:
    """Attack single nodes and keep what became of them, with the flips; returns the number of targets."""
    if store.series_of(job.key, NODES):
        return 0
    data, split = _graph(job.dataset, job.split, root)
    model = _trained(job.subject, job.dataset, job.split, device, root)
    began = time.monotonic()
    found = challenge_nodes(model, data, split, job.budgets, name=job.subject.name, device=device)
    content = {**asdict(found), "seconds": round(time.monotonic() - began, 2), "machine": machine(device)}
    store.add_series([Series(job.key, NODES, {**content, "version": __version__})])
    return len(found.targets)


def _pool(job: Job, ledger: StoreLedger) -> list[Attempt]:
    """The flips made against other models that are tried.

    For poisoning, of several runs of one attack only the one that was the worst for the model that it was made against,
    unless the effort is full.
    """
    found = [attempt for attempt in ledger.pool() if _transfers(job, attempt)]
    if job.kind == "evasion" or job.effort == "full":
        return found
    sources = dict.fromkeys(attempt.source for attempt in found)
    after = {one.attempt: one.after for source in sources for one in _outcomes(ledger.store, job, source)}
    worst: dict[Attempt, Attempt] = {}
    for attempt in sorted(found, key=lambda one: after.get(one, math.inf)):
        worst.setdefault(replace(attempt, seed=0), attempt)
    return list(worst.values())


def _transfers(job: Job, attempt: Attempt) -> bool:
    """Whether flips made against another model are tried: all for evasion, which costs a forward pass each.

    For poisoning, which costs trainings, only those of attacks on the training, of the unit test, and those that were
    made against a GCN; with full effort all.
    """
    if job.subject in EDGE_FREE or attempt.source in ("", job.subject.name) or attempt.budget > max(job.budgets):
        return False
    return job.kind == "evasion" or job.effort == "full" or attempt.attack not in EVASION or attempt.source == "gcn"


def add_unit_test(path: Path, file: Path, jobs: Sequence[Job]) -> int:
    """Put the flips of a unit-test file into the pool of a store, where jobs find them; returns how many sets.

    Raises unless the graph and the splits of the file are those of the jobs.
    """
    added = 0
    with Store.open(path) as store:
        for job in {(job.kind, job.dataset, job.split): job for job in jobs}.values():
            found = _unit_test(file, job.dataset)
            data, split = _graph(job.dataset, job.split, None)
            number = -1 if job.split.trial is None else job.split.trial
            theirs = found.splits.get(number) if job.split.kind == "stratified" else None
            if theirs is None or not all(
                mine.equal(other)
                for mine, other in (
                    (data.edge_index, found.data.edge_index),
                    (labels_of(data), labels_of(found.data)),
                    (split.train, theirs.train),
                    (split.val, theirs.val),
                    (split.test, theirs.test),
                )
            ):
                raise ConfigError(f"{file} does not hold the graph {job.dataset} with the split {job.split}.")
            for made in found.strongest(job.kind, number, job.budgets):
                StoreLedger(store, job).keep_made(made)
                added += 1
    return added


@lru_cache(maxsize=2)
def _unit_test(file: Path, dataset: str) -> UnitTest:
    return load_unit_test(file, dataset)


def run_challenge(
    jobs: Sequence[Job],
    path: Path,
    *,
    device: str = "cpu",
    workers: int = 1,
    root: str | Path | None = None,
    transfers: bool = True,
    report: Callable[[str], object] | None = None,
) -> None:
    """Run jobs and keep their results in the store at ``path``; resumes if interrupted.

    Flips that need no model are made first. Then every model is attacked for itself, and at last, with ``transfers``,
    every model gets the flips that were made against the others.
    """
    check_count("workers", workers, 1, MAX_WORKERS)
    Store.open(path).close()
    failed: list[str] = []
    with _runner(workers) as run:
        nodes = [job for job in jobs if job.phase == "nodes"]
        others = [job for job in jobs if job.phase != "nodes"]
        for phase, what in PHASES.items():
            if phase == "transfer" and not transfers:
                continue
            wave = nodes if phase == "nodes" else [replace(job, phase=phase) for job in others]
            if phase == "shared":  # of one model for each graph and split
                wave = list({(job.kind, job.dataset, job.split): job for job in reversed(wave)}.values())
            began = time.monotonic()
            for done, one in enumerate(run(wave, path, device, root), 1):
                result = one.problem or f"{one.new} {what} in {one.seconds:.1f} s"
                failed += [f"{one.job}: {one.problem}"] if one.problem else []
                if report is not None:
                    report(f"{done}/{len(wave)}, {time.monotonic() - began:.0f} s: {one.job}: {result}")
    if failed:
        raise ConfigError(
            f"{len(failed)} of the challenges failed, and all other results are stored; the first is {failed[0]}"
        )


class _Done(NamedTuple):
    """A job that was run; ``problem`` says why it failed."""

    job: Job
    new: int
    seconds: float
    problem: str = ""


Runner = Callable[[Sequence[Job], Path, str, str | Path | None], Iterator[_Done]]


@contextmanager
def _runner(workers: int) -> Iterator[Runner]:
    def local(jobs: Sequence[Job], path: Path, device: str, root: str | Path | None) -> Iterator[_Done]:
        for job in jobs:
            yield _in_worker(job, path, device, root)

    if workers == 1:
        yield local
        return
    others = multiprocessing.active_children()
    # spawn, because a forked process cannot use CUDA
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=begin_worker)

    def spread(jobs: Sequence[Job], path: Path, device: str, root: str | Path | None) -> Iterator[_Done]:
        waiting = {pool.submit(_in_worker, job, path, device, root) for job in jobs}
        try:
            while waiting:
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for one in done:
                    yield one.result()
        except BrokenProcessPool as lost:
            raise DataUnavailable(
                "A worker process was killed, perhaps for lack of memory; finished attempts are stored, and the same "
                "command resumes. Fewer workers need less memory."
            ) from lost

    try:
        yield spread
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for child in multiprocessing.active_children():
            if child not in others:
                child.terminate()  # a job that is not finished resumes from the store


def _in_worker(job: Job, path: Path, device: str, root: str | Path | None) -> _Done:
    """Run a job; one that fails must not end the others, so its problem is returned."""
    began, new, problem = time.monotonic(), 0, ""
    if multiprocessing.parent_process() is not None:
        torch.set_num_threads(1)
    try:
        with Store.open(path, create=False) as store:
            new = run_job(job, store, device=device, root=root)
    except (AsgnnError, RuntimeError) as cause:  # torch raises RuntimeError, for example if memory is short
        if os.environ.get("ASGNN_DEBUG"):
            raise
        problem = " ".join(str(cause).split())
    return _Done(job, new, time.monotonic() - began, problem)


# --- the table --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Standing:
    """A model under one kind of attack, over the splits of a dataset.

    Attributes:
        kind: "evasion", "poisoning" or "single nodes".
        clean: mean test accuracy in percent on the clean graph.
        envelope: budget → mean over the splits of the accuracy after the worst attempt.
        worst: budget → the attempts that were the worst, one for each split, in words.
        random: budget → mean accuracy after random flips.
        signs: signs of a masked gradient, each with the splits that show it.
        seconds: attack → the mean time of one run of it.
    """

    kind: str
    dataset: str
    subject: Subject
    splits: tuple[str, ...]
    clean: float
    envelope: Mapping[float, float]
    worst: Mapping[float, tuple[str, ...]]
    random: Mapping[float, float]
    signs: tuple[str, ...]
    seconds: Mapping[str, float]


def standing(store: Store, jobs: Sequence[Job]) -> list[Standing]:
    """What the store says about the models of the jobs, in their order; models without results are left out."""
    groups: dict[tuple[str, str, Subject], list[Job]] = {}
    for job in jobs:
        kind = SINGLE if job.phase == "nodes" else job.kind
        groups.setdefault((kind, job.dataset, job.subject), []).append(job)
    found = [(_of_nodes if kind == SINGLE else _standing)(store, group) for (kind, *_), group in groups.items()]
    return [one for one in found if one is not None]


def _of_nodes(store: Store, jobs: Sequence[Job]) -> Standing | None:
    found = {str(job.split): series.content for job in jobs for series in store.series_of(job.key, NODES)}
    if not found:
        return None
    first = jobs[0]
    of_split = [
        NodesChallenge(*(_tuples(one[name]) for name in ("victim", "shares", "targets", "clean", "fell", "flips")))
        for one in found.values()
    ]
    attacks = {
        share: [attack for one in of_split for attack in one.fell[one.shares.index(share)] if attack]
        for share in first.budgets
    }
    return Standing(
        SINGLE,
        first.dataset,
        first.subject,
        tuple(found),
        fmean(one.clean_accuracy for one in of_split),
        {share: fmean(one.accuracy(share) for one in of_split) for share in first.budgets},
        {share: tuple(each) for share, each in attacks.items()},
        {},
        (),
        {SINGLE: fmean(one["seconds"] for one in found.values())},
    )


def _tuples(value: Any) -> Any:
    return tuple(_tuples(one) for one in value) if isinstance(value, list) else value


def _standing(store: Store, jobs: Sequence[Job]) -> Standing | None:
    of_split = {str(job.split): StoreLedger(store, job) for job in jobs}
    of_split = {split: ledger for split, ledger in of_split.items() if ledger.outcomes()}
    if not of_split:
        return None
    first, through = jobs[0], {name: way.through for name, way in WAYS.items()}
    envelopes = {split: Envelope.of(ledger.outcomes(), first.budgets) for split, ledger in of_split.items()}
    complete = [budget for budget in first.budgets if all(budget in one.worst for one in envelopes.values())]
    signs: dict[str, list[str]] = {}
    for split, ledger in of_split.items():
        probed = ledger.probe()
        for sentence in signs_of_masking(probed, ledger.outcomes(), through) if probed else ():
            signs.setdefault(sentence, []).append(split)
    every = [one for ledger in of_split.values() for one in ledger.outcomes()]
    at_random = {
        budget: [one.after for one in every if one.attempt.attack == "random" and one.attempt.budget == budget]
        for budget in complete
    }
    seconds: dict[str, list[float]] = {}
    for one in every:
        if not one.transferred:
            seconds.setdefault(one.attempt.attack, []).append(one.seconds)
    return Standing(
        first.kind,
        first.dataset,
        first.subject,
        tuple(of_split),
        fmean(ledger.outcomes()[0].before for ledger in of_split.values()),
        {budget: fmean(one.accuracy(budget) for one in envelopes.values()) for budget in complete},
        {budget: tuple(str(one.worst[budget]) for one in envelopes.values()) for budget in complete},
        {budget: fmean(found) for budget, found in at_random.items() if found},
        tuple(f"{sentence} ({', '.join(splits)})" for sentence, splits in signs.items()),
        {attack: fmean(found) for attack, found in seconds.items()},
    )


def record_rows(found: Sequence[Standing]) -> list[dict[str, Any]]:
    """The rows of the record "challenge" for the report: each model at each budget, and on the clean graph."""
    names = {subject: name for name, subject in CONTROLS.items()}
    rows = []
    for one in found:
        about: dict[str, Any] = {"graph": one.dataset, "kind": one.kind}
        about["model"] = names.get(one.subject, one.subject.name)
        about |= {"control": one.subject in names, "splits": len(one.splits)}
        for budget, accuracy in {0.0: one.clean, **one.envelope}.items():
            worst = _commonest(one.worst.get(budget, ()))
            rows.append({**about, "budget": budget, "accuracy": round(accuracy, 2), "worst": worst})
        if one.random:
            rows[-1] |= {"random": round(one.random[max(one.random)], 2)}
        seconds = {attack: round(mean, 1) for attack, mean in one.seconds.items()}
        rows[-1] |= {"signs": list(one.signs), "seconds": seconds}
    return rows


def headings(budgets: Sequence[float]) -> list[str]:
    """Of a table: budgets in percent of the edges or, for single nodes, of the degree."""
    return ["model", "clean", f"random, {budgets[-1]:.0%}", *(f"{budget:.0%}" for budget in budgets), "worst attack"]


def table_rows(found: Sequence[Standing], budgets: Sequence[float]) -> list[list[str]]:
    """The cells of a table: one row for each model, controls last and named."""
    names = {subject: name for name, subject in CONTROLS.items()}
    rows = []
    for one in sorted(found, key=lambda each: each.subject in names):
        last = max(one.envelope, default=budgets[-1])
        cells = [_number(one.envelope.get(budget)) for budget in budgets]
        rows.append(
            [
                names.get(one.subject, one.subject.name),
                _number(one.clean),
                _number(one.random.get(budgets[-1])),
                *cells,
                _commonest(one.worst.get(last, ())),
            ]
        )
    return rows


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _commonest(words: Sequence[str]) -> str:
    """The attempt that was the worst on most splits."""
    if not words:
        return ""
    best = max(dict.fromkeys(words), key=words.count)
    return best if len(words) == 1 else f"{best} ({words.count(best)} of {len(words)})"


def parse_splits(text: str) -> list[SplitName]:
    """Splits from "stratified:0..4", "stratified:0,random:3" or one name."""
    found = []
    for word in text.split(","):
        first, dots, last = word.strip().partition("..")
        name = SplitName.parse(first)
        if name.trial is None and name.kind != "published":
            raise ConfigError(
                f"A challenge is made against one split; choose its trial, such as {name}:0 or {name}:0..4."
            )
        if dots and not (last.isdecimal() and name.trial is not None and int(last) >= name.trial):
            raise ConfigError(f"Several splits are given as {name.kind}:0..4; it is {word!r}.")
        found += [replace(name, trial=trial) for trial in range(name.trial or 0, int(last) + 1)] if dots else [name]
    return found
