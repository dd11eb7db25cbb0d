"""What the store keeps: trainings and what came of them, choices between settings, series for figures."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

Value = bool | int | float | str
Settings = tuple[tuple[str, Value], ...]


def settings_of(values: Mapping[str, Value]) -> Settings:
    """In one order, so that equal settings are equal values."""
    return tuple(sorted(values.items()))


def key_of(spec: Mapping[str, Any]) -> str:
    """The sha256 of a specification as canonical JSON: equal specifications have equal keys, on every machine."""
    text = json.dumps(spec, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Case:
    """A graph and the split it is used with.

    Args:
        dataset: a name of ``asgnn.graphs.DATASETS``.
        poisoned: an attack of ``asgnn.experiments.run.ATTACKS``, one that ``asgnn.experiments.reproduce`` makes for the
            split, or ``None`` for the clean graph.
        rate: flips as a share of the edges; for a targeted attack, flips for each target, where 0 is the clean graph
            with the targets known.
        split: "published", "random:I" for trial I's, or "random" for each trial's own, which no training has.
    """

    dataset: str
    poisoned: str | None
    rate: float
    split: str

    def of_trial(self, trial: int) -> Case:
        """The same with the split that one trial has."""
        return replace(self, split=f"random:{trial}") if self.split == "random" else self


@dataclass(frozen=True)
class Training:
    """One training; equal trainings are equal measurements.

    Args:
        case: the graph and the split.
        model: a name of ``asgnn.training.RECIPES``.
        settings: what differs from the recipe, by name; see ``Recipe.with_settings``.
        seed: of start and dropout.
    """

    case: Case
    model: str
    settings: Settings = ()
    seed: int = 0

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self.case), "model": self.model, "settings": dict(self.settings), "seed": self.seed}

    @classmethod
    def of_dict(cls, found: Mapping[str, Any]) -> Training:
        case = Case(found["dataset"], found["poisoned"], found["rate"], found["split"])
        return cls(case, found["model"], settings_of(found["settings"]), found["seed"])

    @cached_property
    def key(self) -> str:
        return key_of(self.as_dict())


@dataclass(frozen=True)
class Outcome:
    """What came of a training.

    Attributes:
        figures: accuracies in percent at the epoch that was kept: "val" and "test", and on an attacked graph
            "clean_test", of the same weights on the clean graph; "target" on the nodes of a targeted attack; losses:
            "val_loss", "test_loss" and "clean_test_loss"; and "best_epoch".
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


@dataclass(frozen=True)
class Choice:
    """The settings that a cell of a table reports, and the trainings that stand in it.

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
        """Of what was asked for; what was chosen is the answer."""
        return key_of(
            {
                "table": self.table,
                **asdict(self.case),
                "row": self.row,
                "rule": self.rule,
                "search": self.search,
                "trials": len(self.trainings),
            }
        )


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
