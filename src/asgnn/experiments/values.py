"""What is asked and what was measured, as values; and the one parser for their names on the command line."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from asgnn.errors import ConfigError
from asgnn.graphs import (
    OWN_FLIPS,
    POISONED,
    PUBLISHED_SPLITS,
    Perturbation,
    find_dataset,
    own_source,
    own_split,
    published,
)
from asgnn.settings import Setting

Value = bool | int | float | str | None
Settings = tuple[tuple[str, Value], ...]
LARGEST_SEED = 2**63 - 1  # what SQLite's integers and torch's generators both take
MOST_TRIALS = 10_000
SHARE, PER_TARGET = "share of edges", "flips per target"
MOST_PER_TARGET = 1_000
LARGEST_SETTING = 1e18
# kind of attack → what it takes besides the graph, in order
TAKES: dict[str, tuple[str, ...]] = {
    "metattack": ("budget", "labelled", "rng"),
    "nettack": ("per_target", "labelled", "targets", "rng"),
    "pgd": ("budget", "labelled", "rng"),
    "minmax": ("budget", "labelled", "rng"),
    "prbcd": ("budget", "labelled", "rng"),
    "grbcd": ("budget", "labelled", "rng"),
    "dice": ("budget", "rng"),
    "random": ("budget", "rng"),
}
# name on the command line and in specs/*.toml → (kind, source); a file of flips is named by its path
NAMES: dict[str, tuple[str, str]] = {
    **{kind: (kind, "published") for kind in POISONED},
    **{f"own-{kind}": (kind, "built-in") for kind in OWN_FLIPS},
    **{f"made-{kind}" if kind in POISONED else kind: (kind, "made") for kind in TAKES},
}


def as_settings(values: Mapping[str, Value]) -> Settings:
    """In one order, so that equal settings are equal values."""
    return tuple(sorted(values.items()))


def key_of(content: Mapping[str, Any]) -> str:
    """The sha256 of canonical JSON: equal contents have equal keys, on every machine."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def check_seed(name: str, value: object) -> None:
    if type(value) is not int or not 0 <= value <= LARGEST_SEED:
        raise ConfigError(f"{name} must be a whole number from 0 to 2^63 - 1; it is {value}.")


def check_trials(trials: int) -> None:
    if not 1 <= trials <= MOST_TRIALS:
        raise ConfigError(f"There must be at least one trial and at most {MOST_TRIALS:,}; trials is {trials}.")


def _as_dict(value: Any) -> dict[str, Any]:
    """The fields of a value that are not their defaults: a field added later leaves old keys as they are."""
    found = ((one, getattr(value, one.name)) for one in fields(value) if one.compare)
    return {one.name: content for one, content in found if content != one.default}


@dataclass(frozen=True)
class SplitName:
    """Which split: the published one, or the random one of a trial; ``None`` stands for each trial's own."""

    kind: str
    trial: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in ("published", "random") or (self.kind == "published" and self.trial is not None):
            raise ConfigError(f"split must be published, random or random:I with a whole number I; it is {self}.")
        if self.trial is not None:
            check_seed("I in the split random:I", self.trial)

    def __str__(self) -> str:
        return self.kind if self.trial is None else f"{self.kind}:{self.trial}"

    @classmethod
    def parse(cls, text: str) -> SplitName:
        kind, colon, trial = text.partition(":")
        if colon and not (trial.isascii() and trial.isdecimal() and len(trial) < 40):
            raise ConfigError(f"split must be published, random or random:I with a whole number I; it is {text!r}.")
        return cls(kind, int(trial) if colon else None)


@dataclass(frozen=True)
class Attack:
    """How edges were flipped.

    Args:
        kind: a name of :data:`TAKES`; of a file, what the file says.
        source: "published" (by Pro-GNN), "built-in" (made by this project, in the package), "made" (when it is needed,
            against the split of the case) or "file".
        amount: flips as a share of the edges, or for each target; 0 of a targeted attack is the clean graph with the
            targets known, and 0 of a file is all it holds.
        targets: of a targeted attack that is made, "test" or "validation": where the nodes are taken from.
        settings, seed: of an attack that is made.
        sha256: of a file, which is what its flips are known by.
        path: of a file, on this machine.
    """

    kind: str
    source: str
    amount: float = 0.0
    targets: str = "test"
    settings: Settings = ()
    seed: int = 0
    sha256: str = ""
    path: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if self.source not in ("published", "built-in", "made", "file") or self.targets not in ("test", "validation"):
            raise ConfigError(f"There is no attack from {self.source!r} on {self.targets} nodes.")
        if self.source != "file" and self.kind not in TAKES:
            raise ConfigError(f"There is no attack {self.kind!r}; the attacks are {', '.join(TAKES)}.")
        targeted = self.unit == PER_TARGET
        number = isinstance(self.amount, int | float)
        if not number or not 0 <= self.amount <= (MOST_PER_TARGET if targeted else 1) or (targeted and self.amount % 1):
            most = f"a whole number up to {MOST_PER_TARGET:,}" if targeted else "at most 1"
            raise ConfigError(f"The rate of {self.kind} is in {self.unit}: 0 or more, {most}; it is {self.amount}.")
        object.__setattr__(self, "amount", float(self.amount))
        check_seed("seed", self.seed)

    @property
    def unit(self) -> str:
        return PER_TARGET if "per_target" in TAKES.get(self.kind, ()) else SHARE

    @property
    def knows_labels(self) -> bool:
        """Whether the flips depend on the split: on its training labels, or on its nodes as targets."""
        return self.source == "made" and "labelled" in TAKES[self.kind]

    @property
    def name(self) -> str:
        """As on the command line; for an attack on validation nodes, which that has not, a name to read."""
        if self.source == "file":
            return self.path or f"flips {self.sha256[:12]}"
        known = {named: name for name, named in NAMES.items()}.get((self.kind, self.source), self.kind)
        return known if self.targets == "test" else f"{known} on validation nodes"

    def as_dict(self) -> dict[str, Any]:
        found = _as_dict(self)
        return found | {"settings": dict(self.settings)} if self.settings else found

    @classmethod
    def of_dict(cls, found: Mapping[str, Any]) -> Attack:
        return cls(**{**found, "settings": as_settings(found.get("settings", {}))})


@dataclass(frozen=True)
class Case:
    """A graph, the attacks on it, each on what the one before left, and the split it is used with."""

    dataset: str
    attacks: tuple[Attack, ...]
    split: SplitName

    def of_trial(self, trial: int) -> Case:
        """The same with the split that one trial has."""
        return replace(self, split=SplitName("random", trial)) if self.split == SplitName("random") else self

    @property
    def amount(self) -> float:
        """Of the attack that the case is about; 0 for the clean graph."""
        return self.attacks[0].amount if self.attacks else 0.0

    @property
    def same_on_all_splits(self) -> bool:
        return not any(attack.knows_labels for attack in self.attacks)

    @property
    def label(self) -> str:
        """The graph for people: "clean", "metattack, 25%" or "nettack, 2 a target"."""
        shown = (
            f"{one.name}, {one.amount:g} a target" if one.unit == PER_TARGET else f"{one.name}, {one.amount:.0%}"
            for one in self.attacks
        )
        return " and ".join(shown) or "clean"

    def as_dict(self) -> dict[str, Any]:
        attacks = [attack.as_dict() for attack in self.attacks]
        return {"dataset": self.dataset, "attacks": attacks, "split": _as_dict(self.split)}

    @classmethod
    def of_dict(cls, found: Mapping[str, Any]) -> Case:
        attacks = tuple(Attack.of_dict(attack) for attack in found["attacks"])
        return cls(found["dataset"], attacks, SplitName(**found["split"]))


@dataclass(frozen=True)
class Training:
    """One training; equal trainings are equal measurements.

    Args:
        case: the graph and the split.
        model: a name of ``asgnn.training.RECIPES``, or "package.module:Class".
        settings: what differs from the recipe, by name.
        seed: of start and dropout.
    """

    case: Case
    model: str
    settings: Settings = ()
    seed: int = 0

    def as_dict(self) -> dict[str, Any]:
        return {**self.case.as_dict(), "model": self.model, "settings": dict(self.settings), "seed": self.seed}

    @classmethod
    def of_dict(cls, found: Mapping[str, Any]) -> Training:
        return cls(Case.of_dict(found), found["model"], as_settings(found["settings"]), found["seed"])

    @cached_property
    def key(self) -> str:
        return key_of(self.as_dict())


def trainings_of(case: Case, model: str, settings: Settings = (), trials: int = 10) -> list[Training]:
    """One for each trial: trial i has seed i and, where the split is each trial's own, the i-th random split."""
    return [Training(case.of_trial(seed), model, settings, seed) for seed in range(trials)]


@dataclass(frozen=True)
class Outcome:
    """What was measured after a training.

    Attributes:
        figures: accuracies in percent at the epoch that was kept: "val" and "test", and on an attacked graph
            "clean_test", of the same weights on the clean graph; "target" on the nodes of a targeted attack; losses:
            "val_loss", "test_loss" and "clean_test_loss"; "best_epoch"; "diverged", 1.0, of a training that diverged;
            and "edge_auc" where it was asked for.
        scalars: the learned ones, by name.
        seconds: the batch's, divided by the number of its trials.
        batch: how many were trained side by side.
        machine, version: where and with what.
    """

    training: Training
    figures: Mapping[str, float]
    seconds: float
    batch: int
    machine: str
    version: str
    scalars: Mapping[str, float] = field(default_factory=dict)


def diverged(outcomes: Sequence[Outcome]) -> str:
    """How many diverged, for people; nothing where none did."""
    count = sum("diverged" in one.figures for one in outcomes)
    return f"{count} of {len(outcomes)} trainings diverged" if count else ""


@dataclass(frozen=True)
class Choice:
    """The settings that a cell of a table reports, and the trainings that it is the mean of.

    Attributes:
        table: the name of the specification, such as "table1" or, on random splits, "table1-random".
        case: the graph that the figure is for.
        row: the name of the row in the specification.
        rule: "validation", "attacked validation" (on validation nodes attacked like the test nodes) or "none".
        search: "paper", "wide", "small" or "none": what was tried.
        model, settings: what was chosen.
        tried: between how many settings.
        trainings: the keys of the trials that are reported, in the order of their seeds.
    """

    table: str
    case: Case
    row: str
    rule: str
    search: str
    model: str
    settings: Settings
    tried: int
    trainings: tuple[str, ...]

    @property
    def key(self) -> str:
        """Of the question; what was chosen is the answer."""
        asked = {"table": self.table, "row": self.row, "rule": self.rule, "search": self.search}
        return key_of({**asked, **self.case.as_dict(), "trials": len(self.trainings)})

    def as_dict(self) -> dict[str, Any]:
        found = {one.name: getattr(self, one.name) for one in fields(self)}
        return found | {"case": self.case.as_dict(), "settings": dict(self.settings), "trainings": list(self.trainings)}

    @classmethod
    def of_dict(cls, found: Mapping[str, Any]) -> Choice:
        case, settings = Case.of_dict(found["case"]), as_settings(found["settings"])
        return cls(**{**found, "case": case, "settings": settings, "trainings": tuple(found["trainings"])})


@dataclass(frozen=True)
class Series:
    """What a figure is drawn from: something a trained model does layer by layer.

    Attributes:
        training: the key of the training.
        kind: "objective" (content: "trained", the number of layers it was trained with, and "terms", a list with the
            value of each term by name at the start and after each layer) or "weights" (content: "clean" and "added",
            each a list with the quantiles "q05", "q25", "q50", "q75", "q95" and the "mean" of the edges' weights at
            the start and after each layer; no "added" where there are none).
        content: numbers and lists of them, by name.
    """

    training: str
    kind: str
    content: Mapping[str, Any]


# --- names on the command line, in specs/*.toml and in scripts ------------------------------------------------------


def parse_attack(name: str, amount: float = 0.0) -> Attack:
    """An attack by its name, see :data:`NAMES`; or a file of flips, which ends in .npz."""
    if name.endswith(".npz"):
        if amount:
            raise ConfigError(f"{name} says itself how many flips it holds; leave the rate out.")
        kind = Perturbation.load(regular_file(Path(name))).meta.get("attack", "flips")
        return Attack(kind, "file", sha256=hashlib.sha256(Path(name).read_bytes()).hexdigest(), path=name)
    if name not in NAMES:
        raise ConfigError(
            f"There is no attack {name!r}; the attacks are {', '.join(NAMES)}, and a file of flips ends in .npz."
        )
    return Attack(*NAMES[name], amount)


def parse_case(dataset: str, attack: str | None = None, amount: float = 0.0, split: str | None = None) -> Case:
    """A case by names, checked before anything is loaded.

    Args:
        dataset: a name of ``asgnn.graphs.DATASETS``.
        attack: see :func:`parse_attack`; ``None`` for the clean graph.
        amount: flips as a share of the edges, or for each target.
        split: "published", "random" for each trial's own, or "random:I"; by default the one that the attack was made
            against, else the published one, else each trial's own.
    """
    name = find_dataset(dataset).name
    named = None if split is None else SplitName.parse(split)
    if named == SplitName("published") and name not in PUBLISHED_SPLITS:
        raise ConfigError(
            f"No split of {name} is published, only of {', '.join(PUBLISHED_SPLITS)}; use the split random."
        )
    usual = SplitName("published" if name in PUBLISHED_SPLITS else "random")
    if attack is None:
        if amount:
            raise ConfigError(f"A rate of {amount:g} needs an attack: name one of {', '.join(NAMES)}.")
        return Case(name, (), named or usual)
    found = parse_attack(attack, amount)
    if found.source != "file" and not amount > 0:
        raise ConfigError(f"The attack {attack} needs a rate above 0; it is {amount:g}.")
    if found.source == "published":
        published(name, found.kind, amount)
    if found.source == "built-in":
        own_source(name, found.kind, amount)
    return Case(name, (found,), named or made_against(name, found) or usual)


def made_against(dataset: str, attack: Attack) -> SplitName | None:
    """The split whose training labels an attack was made with, where that is known."""
    if attack.source == "file":
        split = Perturbation.load(regular_file(Path(attack.path))).meta.get("split")
        return None if split is None else SplitName.parse(split)
    if attack.source == "made":
        return None
    return SplitName("published") if attack.source == "published" else SplitName.parse(own_split(dataset, attack.kind))


def parse_settings(owner: str, known: Mapping[str, Setting], words: Sequence[str]) -> Settings:
    """Settings given as ``name=value``, each of the kind that its owner takes."""
    found: dict[str, Value] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise ConfigError(f"A setting is given as name=value, and {word!r} is not.")
        if name not in known:
            raise ConfigError(f"{owner} has no setting {name!r}, only {', '.join(known)}.")
        value = known[name].parse(text)
        # single precision has no number beyond 3e38, and what is computed of a setting is larger than it
        if isinstance(value, int | float) and not abs(value) <= LARGEST_SETTING:
            raise ConfigError(
                f"The setting {name} of {owner} must be at most {LARGEST_SETTING:g} in size; it is {text}."
            )
        found[name] = value
    return as_settings(found)


def regular_file(path: Path) -> Path:
    """The path; a folder, a device or a pipe in the place of a file is refused before it is read."""
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path} is {'a folder' if path.is_dir() else 'a device or a pipe'} and not a file.")
    return path
