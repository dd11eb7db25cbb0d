"""Specifications of the tables, read from specs/*.toml: cells, rows, grids, the paper's figures and assumptions."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from typing import Any, Literal

from asgnn.errors import ConfigError
from asgnn.experiments.values import PER_TARGET, Attack, Case, Settings, SplitName, Value, as_settings, parse_attack

TABLES = ("table1", "table2", "table3")
ABLATION = "ablation"  # not in the paper: each part of the model switched off in turn
GENERALITY = "generality"  # not in the paper: graphs on which no default was chosen, one column
SMALL = "small"  # not in the paper: a table for a quick try, which needs no download
SPECS = (*TABLES, ABLATION, GENERALITY, SMALL)
RANDOM = "-random"  # suffix of a table's name: the same table with a random split for each trial
# From the smallest search to the largest. "tune" and "portfolio" take the candidates of asgnn.training.tune, the others
# are grids; "tune-N" is "tune" with N candidates instead of BUDGET.
SEARCHES = ("none", "small", "portfolio", "tune", "wide", "paper")
BUDGET = 64
SMALL_BUDGET = 8
SEED = 0  # of the candidates


Budget = int | Literal["portfolio"]


def budget_of(search: str) -> Budget | None:
    """The candidates of :mod:`asgnn.training.tune` that a search tries: their number, or the fixed list.

    ``None`` for "none" and for a grid.
    """
    name, dash, count = search.partition("-")
    if name != "tune" or not dash:
        budgets: dict[str, Budget] = {"tune": BUDGET, "small": SMALL_BUDGET, "portfolio": "portfolio"}
        return budgets.get(search)
    if not (count.isascii() and count.isdecimal() and 1 < int(count[:9]) <= 100_000):
        raise ConfigError(f"The search {search!r} needs a number of candidates from 2 to 100000, such as tune-16.")
    return int(count)


def search_rank(search: str) -> tuple[int, int]:
    """Larger for a more thorough search; (−1, 0) for an unknown name."""
    name = "tune" if search.startswith("tune-") else search
    budget = budget_of(search) if name in SEARCHES else None
    return SEARCHES.index(name) if name in SEARCHES else -1, budget if isinstance(budget, int) else 0


@cache
def tuned(model: str, budget: Budget) -> tuple[Settings, ...]:
    """The settings that :func:`asgnn.training.tune.candidates` gives for a budget, in its order.

    Only the search "portfolio" has the portfolio: tuned rows try as many settings, and none has a head start.
    """
    from asgnn.training.tune import candidates  # here, because most commands do not need it

    found = candidates(model, budget=budget, seed=SEED, portfolio=budget == "portfolio")
    return tuple(as_settings(one) for one in found)


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
        search: where candidates come from: "grid" (``grids``), "tune" or "portfolio" (:func:`tuned`), or "none".
        without: of the tuned candidates, settings whose names start with one of these are taken away.
        needs: tuned candidates that do not give all of these settings a value above 0 are passed over.
        variants: settings that the tuned candidates get in turn.
        against: the names of rows that this one is compared with, seed by seed, besides its twin.
        group: the part of a long table in which a report shows the row; "" in a table without parts.
    """

    name: str
    label: str
    model: str
    settings: Settings
    grids: Mapping[str, Mapping[str, tuple[Value, ...]]]
    paper: str | None
    twin: str | None
    on: Mapping[str, Settings] = field(default_factory=dict)
    search: str = "grid"
    without: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    variants: tuple[Settings, ...] = ()
    against: tuple[str, ...] = ()
    group: str = ""

    def search_for(self, asked: str) -> str | None:
        """The search of this row where ``asked`` is requested; ``None`` if the row has no such search.

        A tuned row tries a budget of candidates where others try a large grid.
        """
        if self.search == "grid":
            return asked if asked in ("none", "small", "wide", "paper") else None
        if self.search == "none" or asked == "none":
            return "none"
        if self.search == "portfolio":
            return "portfolio"
        return "tune" if asked in ("wide", "paper") else asked

    def candidates(self, search: str, dataset: str) -> list[Settings]:
        """All settings of a search, each with the row's own; without a search only the row's own."""
        own = dict(self.settings) | dict(self.on.get(dataset, ()))
        if self.search != "grid":
            budget = budget_of(search)
            return [as_settings(own)] if budget is None else self._tuned(budget, own)
        grid = self.grids.get(search, {})
        return [as_settings(own | dict(zip(grid, values, strict=True))) for values in itertools.product(*grid.values())]

    def _tuned(self, budget: Budget, own: Mapping[str, Value]) -> list[Settings]:
        """As many distinct candidates as the budget says, so that a row with fewer settings has no smaller search.

        A row that takes settings away has to ask for more: candidates that differ in these alone become equal.
        """
        if budget == "portfolio":
            return self._restricted(tuned(self.model, budget), own)
        for times in (1, 2, 4, 8, 16, 32):
            found = self._restricted(tuned(self.model, times * budget), own)
            if len(found) >= budget:
                break
        return found[:budget]

    def _restricted(self, given: Sequence[Settings], own: Mapping[str, Value]) -> list[Settings]:
        """The distinct candidates that this row may use, each with the row's own settings."""
        turns = itertools.cycle(self.variants or [()])
        every = [dict(one) | dict(variant) for one, variant in zip(given, turns, strict=False)]
        usable = [one for one in every if all(_positive(one.get(name)) for name in self.needs)]
        kept = ({name: value for name, value in one.items() if not name.startswith(self.without)} for one in usable)
        return list(dict.fromkeys(as_settings(one | dict(own)) for one in kept)) or [as_settings(own)]


def _positive(value: Value) -> bool:
    return isinstance(value, int | float) and value > 0


@dataclass(frozen=True)
class Published:
    """The best accuracy that others have reported for a graph, in percent, and who."""

    mean: float
    by: str


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
        cases: name → a graph and its split, for a table of one column whose graphs have nothing in common.
        aucs: the names of the ``cases`` that are judged by the ROC-AUC instead of the accuracy.
        elsewhere: dataset → rate → who → the accuracy that others report for the same graph.
        intro: what the table is about, where the paper has no such table.
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
    cases: Mapping[str, Case] = field(default_factory=dict)
    aucs: frozenset[str] = frozenset()
    elsewhere: Mapping[str, Mapping[float, Mapping[str, float]]] = field(default_factory=dict)
    intro: str = ""

    @property
    def datasets(self) -> tuple[str, ...]:
        """The datasets, or the names of the cases."""
        return (*self.attacks, *self.cases)

    def case(self, dataset: str, rate: float) -> Case:
        """The case of a cell. At rate 0 a global attack is the clean graph, and a targeted attack keeps its targets."""
        if dataset in self.cases:
            return self.cases[dataset]
        attack, split = self.attacks[dataset]
        clean = rate == 0 and attack.unit != PER_TARGET
        return Case(dataset, () if clean else (replace(attack, amount=rate),), split)

    def figure_of(self, dataset: str) -> str:
        """The figure that the cells of a dataset show."""
        return f"{self.figure}_auc" if dataset in self.aucs else self.figure

    def column(self, rate: float) -> str:
        """The heading of a column: a percentage of the edges, or flips per target."""
        targeted = any(attack.unit == PER_TARGET for attack, _ in self.attacks.values())
        return f"{rate:g}" if targeted else f"{rate:.0%}"

    def row(self, name: str) -> Row:
        for row in self.rows:
            if row.name == name:
                return row
        raise ConfigError(f"{self.name} has no row {name!r}; its rows are {', '.join(row.name for row in self.rows)}.")

    def best_published(self, dataset: str, rate: float) -> Published | None:
        """The highest accuracy for a cell, in the paper or elsewhere; ``None`` where none is known."""
        paper = {f"{name}, the paper": mean for name, (mean, _) in self.paper.get(dataset, {}).get(rate, {}).items()}
        every = paper | dict(self.elsewhere.get(dataset, {}).get(rate, {}))
        return max((Published(mean, by) for by, mean in every.items()), key=lambda one: one.mean, default=None)


def load_spec(name: str) -> Spec:
    table, random = name.removesuffix(RANDOM), name.endswith(RANDOM)
    if table not in SPECS or (random and table in (ABLATION, GENERALITY)):
        raise ConfigError(f"There is no table {name!r}; the tables are {', '.join(SPECS)}.")
    found, models = read_toml(table), read_toml("models")
    rates = tuple(map(float, found["rates"]))
    attacks = {}
    for dataset, cell in found.get("cells", {}).items():
        attack, split = parse_attack(cell["attack"]), SplitName.parse(cell["split"])
        attacks[dataset] = (replace(attack, source="made"), SplitName("random")) if random else (attack, split)
    cases = found.get("cases", {})
    aucs = frozenset(graph for graph, of in cases.items() if of.get("metric") == "roc_auc")
    on = {of.get("dataset", graph): {"metric": "roc_auc"} for graph, of in cases.items() if graph in aucs}
    published = {} if random else read_toml("published").get(table, {})
    return Spec(
        name=name,
        title=found["title"] + (", a random split for each trial" if random else ""),
        figure=found["figure"],
        unit=found["unit"],
        attacks=attacks,
        rates=rates,
        rules=tuple(found["rules"]),
        rows=tuple(_row(row, models["rows"][row], models, found.get("settings", {}), on) for row in found["rows"]),
        paper={
            dataset: {rate: _figures(named, i) for i, rate in enumerate(rates)}
            for dataset, named in found.get("paper", {}).items()
        },
        assumed=(*found["assumed"], *found["splits"]["random" if random else "given"]),
        cases={graph: _case(graph, of) for graph, of in cases.items()},
        aucs=aucs,
        elsewhere={
            dataset: {rate: _elsewhere(named, i) for i, rate in enumerate(rates)}
            for dataset, named in published.items()
        },
        intro=found.get("intro", ""),
    )


def read_toml(name: str) -> dict[str, Any]:
    file = resources.files("asgnn.experiments").joinpath("specs", f"{name}.toml")
    return tomllib.loads(file.read_text(encoding="utf-8"))


def _row(
    name: str,
    row: Mapping[str, Any],
    models: Mapping[str, Any],
    of_table: Mapping[str, Value],
    on: Mapping[str, Mapping[str, Value]],
) -> Row:
    of_row: dict[str, dict[str, tuple[Value, ...]]] = {}
    search = row.get("search", "grid")
    for grid_name, grid in models["grid"].items() if search == "grid" and row.get("searched", True) else ():
        every = {**grid["all"], **grid.get(name, {})}
        of_row[grid_name] = {setting: tuple(values) for setting, values in every.items() if values}
    own = row.get("on", {})
    return Row(
        name=name,
        label=row["label"],
        model=row["model"],
        settings=as_settings({**row.get("settings", {}), **of_table}),
        grids=of_row,
        paper=row.get("paper"),
        twin=row.get("twin"),
        on={dataset: as_settings({**own.get(dataset, {}), **on.get(dataset, {})}) for dataset in {**own, **on}},
        search=search,
        without=tuple(row.get("without", ())),
        needs=tuple(row.get("needs", ())),
        variants=tuple(map(as_settings, models["variants"][row["variants"]] if "variants" in row else ())),
        against=tuple(row.get("against", ())),
        group=row.get("group", ""),
    )


def _case(name: str, found: Mapping[str, Any]) -> Case:
    attacks = (parse_attack(found["attack"], found["rate"]),) if "attack" in found else ()
    return Case(found.get("dataset", name), attacks, SplitName.parse(found["split"]))


def _figures(named: Mapping[str, list[list[float]]], column: int) -> dict[str, tuple[float, float | None]]:
    """The paper's figures of one column; the file has [mean, standard deviation], or [mean] if the paper gives none."""
    return {name: (values[column][0], (values[column] + [None])[1]) for name, values in named.items()}


def _elsewhere(named: Mapping[str, Sequence[float]], column: int) -> dict[str, float]:
    """The figures of one column; a 0 in the file means that there is none."""
    return {name: values[column] for name, values in named.items() if values[column]}
