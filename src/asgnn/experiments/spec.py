"""Specifications of the paper's tables, read from specs/*.toml: cells, grids, the paper's figures and assumptions."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any

from asgnn.errors import ConfigError
from asgnn.experiments.values import PER_TARGET, Attack, Case, Settings, SplitName, Value, as_settings, parse_attack

TABLES = ("table1", "table2", "table3")
SMALL = "small"  # not in the paper: a table for a quick try, which needs no download
SEARCHES = ("none", "small", "wide", "paper")  # from the smallest grid to the largest
RANDOM = "-random"  # suffix of a table's name: the same table with a random split for each trial


@dataclass(frozen=True)
class Row:
    """One model of a table.

    Attributes:
        model: a name of ``RECIPES``.
        settings: what differs from the recipe in every cell.
        grids: search → name of a setting → the values to try; an unknown search tries nothing.
        paper: the name in the paper, or ``None`` if the paper has no such row.
        twin: the name of the row with the same model and a frozen structure, or ``None``.
        on: dataset → further settings that differ from the recipe there.
    """

    name: str
    label: str
    model: str
    settings: Settings
    grids: Mapping[str, Mapping[str, tuple[Value, ...]]]
    paper: str | None
    twin: str | None
    on: Mapping[str, Settings] = field(default_factory=dict)

    def candidates(self, search: str, dataset: str) -> list[Settings]:
        """All settings of a grid, each with the row's own; without a grid only the row's own."""
        grid = self.grids.get(search, {})
        own = dict(self.settings) | dict(self.on.get(dataset, ()))
        return [as_settings(own | dict(zip(grid, values, strict=True))) for values in itertools.product(*grid.values())]


@dataclass(frozen=True)
class Spec:
    """One table.

    Attributes:
        name: "table1", or "table1-random" with a random split for each trial.
        figure: the figure of the outcomes that it shows: "test", "target" or "clean_test_loss".
        unit: of the rate, for example "% of the edges flipped".
        attacks: dataset → the attack, without its amount, and the split.
        rates: the columns.
        rules: how settings are chosen, see :class:`~asgnn.experiments.values.Choice`.
        paper: dataset → rate → the paper's name of the row → (mean, standard deviation or None).
        assumed: a sentence for each detail that the paper leaves out.
    """

    name: str
    title: str
    figure: str
    unit: str
    attacks: Mapping[str, tuple[Attack, SplitName]]
    rates: tuple[float, ...]
    rules: tuple[str, ...]
    rows: tuple[Row, ...]
    paper: Mapping[str, Mapping[float, Mapping[str, tuple[float, float | None]]]]
    assumed: tuple[str, ...]

    def case(self, dataset: str, rate: float) -> Case:
        """The case of a cell. At rate 0 a global attack is the clean graph, and a targeted attack keeps its targets."""
        attack, split = self.attacks[dataset]
        clean = rate == 0 and attack.unit != PER_TARGET
        return Case(dataset, () if clean else (replace(attack, amount=rate),), split)

    def column(self, rate: float) -> str:
        """The heading of a column: a percentage of the edges, or flips per target."""
        targeted = any(attack.unit == PER_TARGET for attack, _ in self.attacks.values())
        return f"{rate:g}" if targeted else f"{rate:.0%}"

    def row(self, name: str) -> Row:
        for row in self.rows:
            if row.name == name:
                return row
        raise ConfigError(f"{self.name} has no row {name!r}; its rows are {', '.join(row.name for row in self.rows)}.")


def load_spec(name: str) -> Spec:
    table, random = name.removesuffix(RANDOM), name.endswith(RANDOM)
    if table not in (*TABLES, SMALL):
        raise ConfigError(f"There is no table {name!r}; the tables are {', '.join((*TABLES, SMALL))}.")
    found, models = read_toml(table), read_toml("models")
    rates = tuple(map(float, found["rates"]))
    attacks = {}
    for dataset, cell in found["cells"].items():
        attack, split = parse_attack(cell["attack"]), SplitName.parse(cell["split"])
        attacks[dataset] = (replace(attack, source="made"), SplitName("random")) if random else (attack, split)
    return Spec(
        name=name,
        title=found["title"] + (", a random split for each trial" if random else ""),
        figure=found["figure"],
        unit=found["unit"],
        attacks=attacks,
        rates=rates,
        rules=tuple(found["rules"]),
        rows=tuple(_row(row, models["rows"][row], models["grid"], found.get("settings", {})) for row in found["rows"]),
        paper={
            dataset: {rate: _figures(named, i) for i, rate in enumerate(rates)}
            for dataset, named in found.get("paper", {}).items()
        },
        assumed=(*found["assumed"], *found["splits"]["random" if random else "given"]),
    )


def read_toml(name: str) -> dict[str, Any]:
    file = resources.files("asgnn.experiments").joinpath("specs", f"{name}.toml")
    return tomllib.loads(file.read_text(encoding="utf-8"))


def _row(name: str, row: Mapping[str, Any], grids: Mapping[str, Any], of_table: Mapping[str, Value]) -> Row:
    of_row: dict[str, dict[str, tuple[Value, ...]]] = {}
    for search, grid in grids.items() if row.get("searched", True) else ():
        every = {**grid["all"], **grid.get(name, {})}
        of_row[search] = {setting: tuple(values) for setting, values in every.items() if values}
    return Row(
        name=name,
        label=row["label"],
        model=row["model"],
        settings=as_settings({**row.get("settings", {}), **of_table}),
        grids=of_row,
        paper=row.get("paper"),
        twin=row.get("twin"),
        on={dataset: as_settings(settings) for dataset, settings in row.get("on", {}).items()},
    )


def _figures(named: Mapping[str, list[list[float]]], column: int) -> dict[str, tuple[float, float | None]]:
    """The paper's figures of one column; the file has [mean, standard deviation], or [mean] if the paper gives none."""
    return {name: (values[column][0], (values[column] + [None])[1]) for name, values in named.items()}
