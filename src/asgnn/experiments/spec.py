"""Specifications of the paper's tables: one file each, with its cells, grids, figures and what was assumed."""

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
SMALL = "small"  # not of the paper: a table to try the machinery on, which needs no file of other people
RANDOM = "-random"  # after the name of a table: the same with a random split for each trial


@dataclass(frozen=True)
class Row:
    """One model of a table.

    Attributes:
        name: of the row, in the store and on the command line.
        label: for people.
        model: a name of ``RECIPES``.
        settings: what differs from the recipe in every cell.
        grids: search → name of a setting → the values tried; a search that is not named tries nothing.
        paper: what the paper calls it, or ``None`` where the paper has no such row.
        twin: the name of the row that is the same with a frozen structure, or ``None``.
        on: dataset → what differs from the recipe there besides.
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
        """Every setting of a grid, with the row's own; one, the recipe's, where there is no grid."""
        grid = self.grids.get(search, {})
        own = dict(self.settings) | dict(self.on.get(dataset, ()))
        return [as_settings(own | dict(zip(grid, values, strict=True))) for values in itertools.product(*grid.values())]


@dataclass(frozen=True)
class Spec:
    """One table.

    Attributes:
        name, title: "table1", or "table1-random" with a random split for each trial, and what it is called.
        figure: which of an outcome's figures it shows: "test", "target" or "clean_test_loss".
        unit: of the rate, for people: "% of the edges flipped".
        attacks: dataset → the attack, of whatever amount, and the split.
        rates: the columns.
        rules: how settings are chosen, see :class:`~asgnn.experiments.values.Choice`.
        rows: the models.
        paper: dataset → rate → the paper's name of the row → (mean, standard deviation or None).
        assumed: what the paper leaves out, a sentence each.
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
        """The cell's graph. Without flips a global attack leaves no trace; a targeted one leaves its targets."""
        attack, split = self.attacks[dataset]
        clean = rate == 0 and attack.unit != PER_TARGET
        return Case(dataset, () if clean else (replace(attack, amount=rate),), split)

    def column(self, rate: float) -> str:
        """A rate for people: a share of the edges, or flips for each target."""
        targeted = any(attack.unit == PER_TARGET for attack, _ in self.attacks.values())
        return f"{rate:g}" if targeted else f"{rate:.0%}"

    def row(self, name: str) -> Row:
        for row in self.rows:
            if row.name == name:
                return row
        raise ConfigError(f"{self.name} has no row {name!r}; its rows are {', '.join(row.name for row in self.rows)}.")


def load_spec(name: str) -> Spec:
    """The specification of a table by its name."""
    table, random = name.removesuffix(RANDOM), name.endswith(RANDOM)
    if table not in (*TABLES, SMALL):
        raise ConfigError(f"There is no table {name!r}; the tables are {', '.join((*TABLES, SMALL))}.")
    found, models = _read(table), _read("models")
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
        rates=tuple(map(float, found["rates"])),
        rules=tuple(found["rules"]),
        rows=tuple(_row(row, models["rows"][row], models["grid"], found.get("settings", {})) for row in found["rows"]),
        paper={
            dataset: {rate: _figures(named, i) for i, rate in enumerate(map(float, found["rates"]))}
            for dataset, named in found.get("paper", {}).items()
        },
        assumed=(*found["assumed"], *found["splits"]["random" if random else "given"]),
    )


def _read(name: str) -> dict[str, Any]:
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
    """The paper's figures of one column; each is written [mean, standard deviation], or [mean] where it gives none."""
    return {name: (values[column][0], (values[column] + [None])[1]) for name, values in named.items()}
