"""What trained models do layer by layer: the objective, and the weights of clean and added edges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from asgnn.experiments.report.tables import ReportTable, TableCell
from asgnn.experiments.store import Store
from asgnn.experiments.values import Series

Lines = Mapping[str, Mapping[str, Sequence[float]]]


@dataclass(frozen=True)
class LayerCurves:
    """The mean over the trials of a cell: ``lines[part][name]`` has the value at the start and after each layer.

    ``rate`` is the number of flips of ``graph``, 0 for a clean one.
    """

    kind: str
    label: str
    dataset: str
    graph: str
    rate: float
    trials: int
    trained: int | None
    lines: Lines


def layer_curves(store: Store, tables: Sequence[ReportTable]) -> Iterator[LayerCurves]:
    """One for each choice of settings that a table reports and that the store has series of."""
    place = {
        key: (table, cell) for table in tables for cell in table.cells if cell.choice for key in cell.choice.trainings
    }
    for kind in ("objective", "weights"):
        groups: dict[Any, tuple[ReportTable, TableCell, list[Lines]]] = {}
        for series in store.series(kind):
            lines = _lines(series)
            if series.training in place and lines:
                table, cell = place[series.training]
                shape = tuple((part, name, len(line)) for part in lines for name, line in lines[part].items())
                group = (cell.choice, series.content.get("trained"), shape)
                groups.setdefault(group, (table, cell, []))[-1].append(lines)
        in_order = sorted(groups.items(), key=lambda group: (group[1][1].rate, group[1][1].row))
        for (_, trained, _), (table, cell, trials) in in_order:
            yield LayerCurves(
                kind=kind,
                label=table.labels[cell.row],
                dataset=cell.dataset,
                graph=f"{table.spec.column(cell.rate)} {table.spec.unit}",
                rate=cell.rate,
                trials=len(trials),
                trained=trained,
                lines={part: {name: _mean(trials, part, name) for name in names} for part, names in trials[0].items()},
            )


def _mean(trials: Sequence[Lines], part: str, name: str) -> list[float]:
    with np.errstate(invalid="ignore"):  # an objective that diverged has values that are not finite
        return [float(value) for value in np.mean([lines[part][name] for lines in trials], axis=0)]


def _lines(series: Series) -> Lines:
    """Part → name → values by layer. The parts of weights are "clean" and "added", that of an objective is "terms"."""
    parts = {"terms": series.content["terms"]} if series.kind == "objective" else series.content
    lines = {
        part: {name: [float(layer[name]) for layer in layers] for name in layers[0]}
        for part, layers in parts.items()
        if layers
    }
    if "terms" in lines:
        lines["terms"]["total"] = [sum(terms) for terms in zip(*lines["terms"].values(), strict=True)]
    return lines
