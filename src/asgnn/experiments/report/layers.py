"""What trained models do layer by layer: the objective, and the weights of clean and added edges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from asgnn.experiments.report.source import Source
from asgnn.experiments.values import Outcome, Series


@dataclass(frozen=True)
class Layers:
    """A series, the mean over the trials of one setting: ``lines[part][name]`` has the start and each layer."""

    kind: str
    label: str
    dataset: str
    graph: str
    trials: int
    trained: int | None
    lines: Mapping[str, Mapping[str, tuple[float, ...]]]


def collect_layers(source: Source, names: Mapping[str, str]) -> Iterator[Layers]:
    """Series of trainings that differ in the seed alone become one, their mean; ``names`` has labels by training."""
    for kind in ("objective", "weights"):
        series = source.series(kind)
        outcomes = source.get(sorted({one.training for one in series}))
        groups: dict[Any, list[tuple[Outcome, Any, int | None]]] = {}
        for one in series:
            if one.training in outcomes and (lines := _lines(one)):
                outcome = outcomes[one.training]
                training, trained = outcome.training, one.content.get("trained")
                depth = tuple((part, name, len(line)) for part in lines for name, line in lines[part].items())
                group = (training.case, training.model, training.settings, trained, depth)
                groups.setdefault(group, []).append((outcome, lines, trained))
        for members in groups.values():
            outcome, lines, trained = members[0]
            training = outcome.training
            yield Layers(
                kind=kind,
                label=_label(outcome, names),
                dataset=training.case.dataset,
                graph=training.case.label,
                trials=len(members),
                trained=trained,
                lines={part: {name: _mean(part, name, members) for name in named} for part, named in lines.items()},
            )


def _mean(part: str, name: str, members: list[tuple[Outcome, Any, int | None]]) -> tuple[float, ...]:
    with np.errstate(invalid="ignore"):  # an objective that diverged has values that are no numbers
        return tuple(np.mean([lines[part][name] for _, lines, _ in members], axis=0).tolist())


def _lines(series: Series) -> dict[str, dict[str, list[float]]]:
    """Part → name → values by layer: the parts of the weights are "clean" and "added", the objective is one."""
    parts = {"terms": series.content["terms"]} if series.kind == "objective" else series.content
    lines = {
        part: {
            name: [float(layer[name]) for layer in layers]
            for name in layers[0]
            if isinstance(layers[0][name], int | float) and name != "layer"
        }
        for part, layers in parts.items()
        if isinstance(layers, list) and layers
    }
    terms = lines.get("terms", {})
    if terms and "total" not in terms:
        terms["total"] = [sum(of_layer) for of_layer in zip(*terms.values(), strict=True)]
    return lines


def _label(outcome: Outcome, names: Mapping[str, str]) -> str:
    training = outcome.training
    own = ", ".join([training.model, *(f"{name} = {value}" for name, value in training.settings)])
    return names.get(training.key, own)
