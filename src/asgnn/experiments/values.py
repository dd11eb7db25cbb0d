"""Questions and results as values, and the parsers of their names on the command line."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Self

from asgnn.attacks import dice, grbcd, metattack, minmax, nettack, pgd, prbcd, random_flips, weakest_first
from asgnn.errors import ConfigError
from asgnn.graphs import (
    OWN_FLIPS,
    POISONED,
    STRATIFIED_SEEDS,
    Perturbation,
    check_published,
    count_published,
    find_dataset,
    own_source,
    own_split,
    published,
)
from asgnn.settings import Setting, check_count, check_number
from asgnn.training.config import MAX_SEED

Value = bool | int | float | str | None
Settings = tuple[tuple[str, Value], ...]
MAX_TRIALS = 10_000
SPLIT_NAMES = "published, random or stratified, or published:I, random:I or stratified:I with a whole number I"
SHARE, PER_TARGET = "share of edges", "flips per target"
MAX_PER_TARGET = 1_000
MAX_SHARE = 10  # of the edges, in a challenge
MAX_SETTING = 1e18
METHODS: dict[str, Callable[..., Perturbation]] = {
    **{method.__name__: method for method in (metattack, nettack, pgd, minmax, prbcd, grbcd, weakest_first, dice)},
    "random": random_flips,
}
# name on the command line and in specs/*.toml → (kind, source); a file of flips is named by its path
NAMES: dict[str, tuple[str, str]] = {
    **{kind: (kind, "published") for kind in POISONED},
    **{f"own-{kind}": (kind, "built-in") for kind in OWN_FLIPS},
    **{f"made-{kind}" if kind in POISONED else kind: (kind, "made") for kind in METHODS},
}


@cache
def inputs_of(kind: str) -> tuple[str, ...]:
    """The positional arguments of an attack after the graph; none for an attack that is only known from a file."""
    parameters = inspect.signature(METHODS[kind]).parameters.values() if kind in METHODS else ()
    return tuple(one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD and one.name != "data")


def as_settings(values: Mapping[str, Value]) -> Settings:
    """Sorted by name, so that equal settings are equal values."""
    return tuple(sorted(values.items()))


def key_of(content: Mapping[str, Any]) -> str:
    """The sha256 of canonical JSON: equal contents have equal keys on every machine."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


class Record:
    """A dataclass that is stored as a dictionary of its fields."""

    def as_dict(self) -> dict[str, Any]:
        """Fields with their default value are left out, so a new field with a default keeps old keys valid."""
        found = {one.name: (getattr(self, one.name), one.default) for one in fields(self) if one.compare}  # type: ignore[arg-type]
        return {
            name: dict(value) if name == "settings" else _plain(value)
            for name, (value, default) in found.items()
            if value != default
        }

    @classmethod
    def of_dict(cls, found: Mapping[str, Any]) -> Self:
        return cls(**{name: READ[name](value) if name in READ else value for name, value in found.items()})


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return value.as_dict() if isinstance(value, Record) else value


# fields whose stored form differs from the value
READ: dict[str, Callable[[Any], Any]] = {
    "attacks": lambda found: tuple(Attack.of_dict(one) for one in found),
    "case": lambda found: Case.of_dict(found),
    "settings": as_settings,
    "split": lambda found: SplitName.of_dict(found),
    "trainings": tuple,
}


@dataclass(frozen=True)
class SplitName(Record):
    """A published, a random or a stratified split.

    "random" means that trial i has the i-th random split, by the rule of the dataset; "random:I" is one of them. For a
    dataset with several published splits, "published" means that trial i has split i modulo their number, and
    "published:I" is one of them. Other datasets have one published split or none. "stratified:I" is one of the five of
    :func:`~asgnn.graphs.stratified_split`, and "stratified" means that trial i has split i modulo 5.
    """

    kind: str
    trial: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in ("published", "random", "stratified"):
            raise ConfigError(f"split must be {SPLIT_NAMES}; it is {self}.")
        if self.trial is not None:
            most = len(STRATIFIED_SEEDS) - 1 if self.kind == "stratified" else MAX_SEED
            check_count(f"I in the split {self.kind}:I", self.trial, 0, most)

    def __str__(self) -> str:
        return self.kind if self.trial is None else f"{self.kind}:{self.trial}"

    @classmethod
    def parse(cls, text: str) -> SplitName:
        kind, colon, trial = text.partition(":")
        if colon and not (trial.isascii() and trial.isdecimal() and len(trial) < 40):
            raise ConfigError(f"split must be {SPLIT_NAMES}; it is {text!r}.")
        return cls(kind, int(trial) if colon else None)

    @classmethod
    def usual(cls, dataset: str) -> SplitName:
        """The published splits of a dataset, or random ones if it has none."""
        return cls("published" if count_published(dataset) else "random")

    def of_trial(self, dataset: str, trial: int) -> SplitName:
        """The split of one trial, for a name that means another split for each trial; else the name itself."""
        counts = {"published": count_published(dataset), "stratified": len(STRATIFIED_SEEDS)}
        count = counts.get(self.kind, 0)
        if self.trial is not None or count == 1:
            return self
        return SplitName(self.kind, trial % count if count else trial)


@dataclass(frozen=True)
class Attack(Record):
    """How edges are flipped.

    Args:
        kind: a name of :data:`METHODS`; for a file, the kind that its metadata names.
        source: "published" (by Pro-GNN), "built-in" (part of the package), "made" (computed when needed, against the
            split of the case), "challenge" (made by a challenge; its setting "against" names the model) or "file".
        amount: flips as a share of the edges, or per target. A targeted attack with amount 0 is the clean graph with
            known targets. A file has amount 0 and is used whole.
        targets: for a targeted attack that is made: "test" or "validation" nodes.
        settings, seed: for an attack that is made.
        sha256: identifies the content of a file.
        path: of the file on this machine.
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
        sources = ("published", "built-in", "made", "challenge", "file")
        if self.source not in sources or self.targets not in ("test", "validation"):
            raise ConfigError(f"There is no attack from {self.source!r} on {self.targets} nodes.")
        if self.source not in ("file", "challenge") and self.kind not in METHODS:
            raise ConfigError(f"There is no attack {self.kind!r}; the attacks are {', '.join(METHODS)}.")
        targeted = self.unit == PER_TARGET
        most = MAX_PER_TARGET if targeted else MAX_SHARE if self.source == "challenge" else 1
        check_number(f"The rate of {self.kind} ({self.unit})", self.amount, 0, most)
        if targeted and self.amount % 1:
            raise ConfigError(f"The rate of {self.kind} ({self.unit}) must be a whole number; it is {self.amount}.")
        object.__setattr__(self, "amount", float(self.amount))
        check_count("seed", self.seed, 0, MAX_SEED)

    @property
    def unit(self) -> str:
        return PER_TARGET if "per_target" in inputs_of(self.kind) else SHARE

    @property
    def needs_split(self) -> bool:
        """Whether the flips depend on the split: on its training labels, or on its nodes as targets."""
        return self.source == "made" and "train" in inputs_of(self.kind)

    @property
    def name(self) -> str:
        """The name on the command line, which has none for attacks on validation nodes."""
        if self.source == "file":
            return self.path or f"flips {self.sha256[:12]}"
        name = next((name for name, one in NAMES.items() if one == (self.kind, self.source)), self.kind)
        return name if self.targets == "test" else f"{name} on validation nodes"


@dataclass(frozen=True)
class Case(Record):
    """A dataset, the attacks on it, each applied after the one before, and the split."""

    dataset: str
    attacks: tuple[Attack, ...]
    split: SplitName

    def of_trial(self, trial: int) -> Case:
        """The same case with the split of one trial."""
        return replace(self, split=self.split.of_trial(self.dataset, trial))

    @property
    def amount(self) -> float:
        """The amount of the first attack; 0 for the clean graph."""
        return self.attacks[0].amount if self.attacks else 0.0

    @property
    def label(self) -> str:
        """The graph in words: "clean", "metattack, 25%" or "nettack, 2 per target"."""
        shown = (
            f"{one.name}, {one.amount:g} per target" if one.unit == PER_TARGET else f"{one.name}, {one.amount:.0%}"
            for one in self.attacks
        )
        return " and ".join(shown) or "clean"


@dataclass(frozen=True)
class Training:
    """One training; equal trainings are equal measurements.

    Args:
        case: the graph and the split.
        model: a name of ``asgnn.training.RECIPES``, or "package.module:Class".
        settings: what differs from the recipe.
        seed: of the initial weights and of dropout.
    """

    case: Case
    model: str
    settings: Settings = ()
    seed: int = 0

    def as_dict(self) -> dict[str, Any]:
        return {**self.case.as_dict(), "model": self.model, "settings": dict(self.settings), "seed": self.seed}

    @classmethod
    def of_dict(cls, found: Mapping[str, Any]) -> Training:
        case = Case.of_dict({name: found[name] for name in ("dataset", "attacks", "split")})
        return cls(case, found["model"], as_settings(found["settings"]), found["seed"])

    @cached_property
    def key(self) -> str:
        return key_of(self.as_dict())


def trainings_of(case: Case, model: str, settings: Settings = (), trials: int = 10) -> list[Training]:
    """One training per trial: trial i has seed i and, if each trial has its own split, the i-th random split."""
    return [Training(case.of_trial(seed), model, settings, seed) for seed in range(trials)]


@dataclass(frozen=True)
class Outcome:
    """The result of a training.

    Attributes:
        figures: accuracies in percent at the best epoch: "val" and "test"; on an attacked graph "clean_test", of the
            same weights on the clean graph; "target" on the nodes of a targeted attack. Losses: "val_loss",
            "test_loss" and "clean_test_loss". "best_epoch"; "diverged" (1.0) only if the training diverged; "edge_auc"
            only on request.
        seconds: the time of the batch divided by its size.
        batch: the number of trainings in the batch.
        scalars: the learned scalars by name.
    """

    training: Training
    figures: Mapping[str, float]
    seconds: float
    batch: int
    machine: str
    version: str
    scalars: Mapping[str, float] = field(default_factory=dict)


def count_diverged(outcomes: Sequence[Outcome]) -> int:
    return sum("diverged" in one.figures for one in outcomes)


@dataclass(frozen=True)
class Choice(Record):
    """The settings that a cell of a table reports, and the trainings whose mean it shows.

    Attributes:
        table: the name of the specification, such as "table1" or, on random splits, "table1-random".
        rule: "validation", "attacked validation" (on validation nodes attacked like the test nodes) or "none".
        search: what was searched: a grid ("paper", "wide" or "small"), candidates of asgnn.training.tune ("tune",
            "tune-N", "portfolio", or "small" for a tuned row) or "none".
        tried: the number of settings tried.
        trainings: the keys of the reported trials, in the order of their seeds.
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
        """The key of the question, without the chosen settings."""
        asked = {"table": self.table, "row": self.row, "rule": self.rule, "search": self.search}
        return key_of({**asked, **self.case.as_dict(), "trials": len(self.trainings)})


ENSEMBLE = "ensemble"


@dataclass(frozen=True)
class Series:
    """Measurements of trained models beside their outcomes: layer by layer, which a figure shows, or together.

    Attributes:
        training: the key of the training; "" for a record of :mod:`asgnn.experiments.records`, which has none.
        kind: "objective" (content: "trained", the number of layers in training, and "terms", a list with the value of
            each term by name at the start and after each layer) or "weights" (content: "clean" and, if edges were
            added, "added", each a list with the quantiles "q05", "q25", "q50", "q75", "q95" and the "mean" of the edge
            weights at the start and after each layer); or :data:`ENSEMBLE` (of the first of the trainings of a
            :class:`Choice`; content: "trials", their number, and "figures", those of their mean probability by name);
            or the name of a record (content: "rows").
    """

    training: str
    kind: str
    content: Mapping[str, Any]


# --- names on the command line, in specs/*.toml and in scripts ------------------------------------------------------


def parse_attack(name: str, amount: float = 0.0) -> Attack:
    """An attack by its name in :data:`NAMES`, or a file of flips, which ends in .npz."""
    if name.endswith(".npz"):
        if amount:
            raise ConfigError(f"{name} is a file with a fixed number of flips; leave out the rate.")
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
        amount: flips as a share of the edges, or per target.
        split: "published", "random" or "stratified", or one of these, such as "random:I", see :class:`SplitName`.
            Default: the split that the attack was made against, else the published ones, else "random".
    """
    name = find_dataset(dataset).name
    named = None if split is None else SplitName.parse(split)
    if named is not None and named.kind == "published":
        check_published(name, named.of_trial(name, 0).trial)
    usual = SplitName.usual(name)
    if attack is None:
        if amount:
            raise ConfigError(f"A rate of {amount:g} needs an attack: choose one of {', '.join(NAMES)}.")
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
    """The split whose training labels the attacker knew, if it is known."""
    if attack.source == "file":
        split = Perturbation.load(regular_file(Path(attack.path))).meta.get("split")
        return None if split is None else SplitName.parse(split)
    if attack.source == "made":
        return None
    return SplitName("published") if attack.source == "published" else SplitName.parse(own_split(dataset, attack.kind))


def parse_settings(owner: str, known: Mapping[str, Setting], words: Sequence[str]) -> Settings:
    """Settings given as ``name=value``."""
    found: dict[str, Value] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise ConfigError(f"A setting is given as name=value; {word!r} is not.")
        if name not in known:
            raise ConfigError(f"{owner} has no setting {name!r}; its settings are {', '.join(known)}.")
        found[name] = known[name].parse(text)
        # float32 ends at 3e38, and computations on a setting produce larger numbers than the setting itself
        if type(found[name]) in (int, float):
            check_number(f"The setting {name} of {owner}", found[name], -MAX_SETTING, MAX_SETTING)
    return as_settings(found)


def regular_file(path: Path) -> Path:
    """The path; refuses a folder, a device or a pipe before it is opened."""
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path} is {'a folder' if path.is_dir() else 'a device or a pipe'}, not a file.")
    return path
