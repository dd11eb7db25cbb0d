"""The settings that a search tries: a short list of variants of each model, and ranges of its numbers."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal

from torch.quasirandom import SobolEngine

from asgnn.errors import ConfigError
from asgnn.models import NodeClassifier
from asgnn.settings import arguments_for, check_count
from asgnn.training.config import MAX_SEED
from asgnn.training.recipes import RECIPES, Recipe, recipe

Values = Mapping[str, Any]
Budget = int | Literal["portfolio"] | Sequence[Values]
PORTFOLIO_SIZE = 16
MAX_BUDGET = 100_000
ATTEMPTS = 200  # draws in a row that fixed settings rule out, or that are not new, before the search for more ends


@dataclass(frozen=True)
class Range:
    """Where a number is drawn from: uniformly, or uniformly in its logarithm; rounded to two digits."""

    low: float
    high: float
    log: bool = True

    def at(self, share: float) -> float:
        """The value at ``share`` in [0, 1] of the range."""
        if self.log:
            return _two_digits(self.low * (self.high / self.low) ** share)
        return round(self.low + share * (self.high - self.low), 2)


def _two_digits(value: float) -> float:
    return float(f"{value:.2g}")


@dataclass(frozen=True)
class Space:
    """What is tried of one model.

    Attributes:
        variants: settings that trials of one batch must share, and ranges of their own for some numbers. A variant with
            a setting that the model does not have is left out.
        ranges: the numbers that are drawn for every candidate; those that the model does not have are left out.
    """

    variants: Sequence[Values] = ({},)
    ranges: Mapping[str, Range] = ()  # type: ignore[assignment]


TRAINING = {"lr": Range(0.003, 0.05), "weight_decay": Range(1e-5, 1e-2), "dropout": Range(0.0, 0.8, log=False)}
# η₂ is drawn as a share of 1/(γ + μ₂), its bound for descent.
SHARE = Range(0.03, 0.6)
OF_ASGNN = {
    "lr": Range(0.005, 0.03),
    "weight_decay": Range(3e-4, 6e-3),
    "dropout": Range(0.4, 0.9, log=False),
    "lam": Range(0.8, 15),
    "gamma": Range(1.5, 20),
    "mu1": Range(0.002, 0.05),
    "eta2": SHARE,
    "scalar_lr": Range(0.002, 0.03),
}
# Much dropout suits bags of words; dense features need most of their entries, and less weight decay.
DENSE = {"dropout": Range(0.0, 0.5, log=False), "weight_decay": Range(1e-5, 3e-3)}
# Neighbours of other classes: λ starts on either side of 0.
UNLIKE = {"constraint": "free", "lam": Range(-0.5, 0.4, log=False), "num_layers": 2, **DENSE}
SPACES: dict[str, Space] = {
    "asgnn": Space(
        (
            {},
            {"witness_floor": 0.1},
            {"witness_floor": 0.1, "prior_neighbors": 5, "prior_weight": 0.2},
            {"prior_edges": 0.0, "prior_neighbors": 20, "prior_weight": 1.0},  # the given edges are not used
            {"num_layers": 2, **DENSE, "lam": Range(2, 50)},
            {**UNLIKE, "hops": 1},
            {"witness_floor": 0.3},
            {"witness_floor": 0.1, "structure": "frozen"},
            {**DENSE},
            {"structure": "frozen"},
            UNLIKE,
            {"penalty": "mcp"},
            {"prior_threshold": 0.02, "prior_neighbors": 5, "prior_weight": 0.3},
            {"num_layers": 2, "hops": 2, **DENSE, "lam": Range(0.05, 2)},
            {"structure": "frozen", "num_layers": 4, **DENSE, "lam": Range(1, 30)},
            {"prior_edges": 0.0, "prior_neighbors": 10, "prior_weight": 1.0, "structure": "frozen", **DENSE},
        ),
        OF_ASGNN,
    ),
    "asgnn-robust": Space(
        ({}, {"witness_voice": 0.5}, {"witness_voice": 2.0}, {"witness_floor": 1.0}, {"gamma": 3.0}, {"gamma": 1.0}),
        TRAINING,
    ),
    "asgnn-safe": Space(({}, {"witness_bound": 0.25}, {"witness_bound": 0.05}, {**DENSE}), OF_ASGNN),
    "asgnn-paper": Space(
        ({}, {"num_layers": 8}, {"num_layers": 2}, {"unit_norm": True}, {"structure": "frozen"}),
        OF_ASGNN | {"lam": Range(0.2, 8), "gamma": Range(0.1, 15), "mu1": Range(0.001, 0.1), "eta2": Range(0.01, 0.5)},
    ),
    "gcn": Space(({}, {"hidden_channels": 64}, {"hidden_channels": 64, "num_layers": 3}), TRAINING),
    "gcn-jaccard": Space(
        tuple({"threshold": t, "hidden_channels": h} for h in (16, 64) for t in (0.01, 0.02, 0.05, 0.1)), TRAINING
    ),
    "gcn-svd": Space(
        tuple({"rank": rank, "hidden_channels": h} for h in (16, 64) for rank in (50, 10, 100, 200)), TRAINING
    ),
    "sgc": Space(
        ({}, {"num_layers": 1}, {"num_layers": 3}, {"num_layers": 4}),
        {"lr": Range(0.01, 0.5), "weight_decay": Range(1e-6, 1e-3)},
    ),
    "gat": Space(({}, {"hidden_channels": 16}, {"heads": 4, "hidden_channels": 16}, {"heads": 1}), TRAINING),
    "appnp": Space(
        ({}, {"alpha": 0.2}, {"alpha": 0.05}, {"alpha": 0.5, "num_layers": 5}, {"alpha": 0.1, "num_layers": 5}),
        TRAINING,
    ),
    "mlp": Space(({}, {"hidden_channels": 256}, {"num_layers": 3}, {"hidden_channels": 16}), TRAINING),
    "logistic": Space(({},), TRAINING | {"lr": Range(0.005, 0.2), "weight_decay": Range(1e-5, 2e-2)}),
    "elastic": Space(
        ({}, {"num_layers": 5}, {"norm": "l1"}),
        TRAINING | {"lambda1": Range(0.3, 9), "lambda2": Range(0.01, 9)},
    ),
    "airgnn": Space(({}, {"lam": 0.2}, {"lam": 0.8}, {"lam": 0.5, "num_layers": 5}), TRAINING),
    "softmedian": Space(({}, {"temperature": 0.5}, {"temperature": 1.0}, {"hidden_channels": 16}), TRAINING),
    "gnnguard": Space(
        ({}, {"hidden_channels": 64}, {"threshold": 0.05}, {"threshold": 0.2, "hidden_channels": 64}), TRAINING
    ),
    "rung": Space(
        ({}, {"gamma": 3.0}, {"gamma": 1.0}, {"gamma": 3.0, "lam_hat": 0.7}, {"gamma": 6.0, "num_layers": 5}), TRAINING
    ),
    "prognn": Space(
        ({}, {"alpha": 5e-3}, {"lam": 1e-2}, {"beta": 0.5}),
        TRAINING | {"lr": Range(3e-4, 0.01)},
    ),
    "prognn-fs": Space(({}, {"alpha": 5e-3}, {"beta": 0.5}), TRAINING | {"lr": Range(3e-4, 0.01)}),
}


def candidates(
    model: str | Recipe,
    budget: Budget = "portfolio",
    seed: int = 0,
    *,
    fixed: Values | None = None,
    portfolio: bool = True,
) -> list[dict[str, Any]]:
    """Return the settings that a budget tries, each as what differs from the recipe; the first is the recipe itself.

    The settings of a smaller budget are the first of a larger one. No two are equal.

    Args:
        model: a name of :data:`~asgnn.training.RECIPES`, ``package.module:Class``, or a recipe.
        budget: their number, or a list of them. "portfolio" is 16: the stored list for ASGNN, and those with seed 0
            for any other model.
        seed: of the quasi-random numbers (a scrambled Sobol sequence).
        fixed: settings that every candidate has.
        portfolio: whether the candidates of ASGNN start with the portfolio. Without it, no model of a comparison starts
            with settings that were chosen on other graphs.
    """
    base = recipe(model) if isinstance(model, str) else model
    fixed = dict(fixed or {})
    base = base.with_settings(fixed)
    check_count("seed", seed, 0, MAX_SEED)
    if isinstance(budget, Sequence) and not isinstance(budget, str):
        found = list(_distinct(base, iter(budget), fixed))
        if not found:
            raise ConfigError("The list of settings is empty, or the fixed settings exclude all of them.")
        return found
    if budget == "portfolio":
        seed, count = 0, PORTFOLIO_SIZE
    else:
        check_count("budget", budget, 1, MAX_BUDGET)
        count = int(budget)
    drawn: Iterator[Values] = _drawn(base, _space(model), seed, fixed)
    if portfolio and _name(model) == "asgnn":
        drawn = itertools.chain(PORTFOLIO, drawn)
    found = list(itertools.islice(_distinct(base, drawn, fixed), count))
    if not found:
        _build(base)  # says what is wrong with the fixed settings
    return found


def _name(model: str | Recipe) -> str | None:
    """The name of a recipe, or of the first recipe of its class and objective."""
    if isinstance(model, str):
        return model
    if model in RECIPES.values():
        return next(name for name, one in RECIPES.items() if one == model)
    objective = model.arguments.get("objective")
    same = (n for n, one in RECIPES.items() if one.kind is model.kind and one.arguments.get("objective") == objective)
    return next(same, None)


def _space(model: str | Recipe) -> Space:
    return SPACES.get(_name(model) or "", Space(({},), TRAINING))


def _distinct(base: Recipe, drawn: Iterator[Values], fixed: Values) -> Iterator[dict[str, Any]]:
    """The settings that are valid and different, each with the fixed ones."""
    seen: set[str] = set()
    missed = 0
    for values in drawn:
        found = {**values, **fixed}
        key = json.dumps(found, sort_keys=True, default=str)
        if key in seen or (fixed and not _valid(base.with_settings(found))):
            missed += 1
            if missed == ATTEMPTS:
                return
            continue
        seen.add(key)
        missed = 0
        yield found


def _valid(of: Recipe) -> bool:
    """Whether the model can be built; fixed settings may exclude others."""
    try:
        _build(of)
    except ConfigError:
        return False
    return True


def _build(of: Recipe) -> None:
    if issubclass(of.kind, NodeClassifier):
        of.kind(**arguments_for(of.kind, {"in_channels": 1, "out_channels": 2, **of.arguments}))


def _drawn(base: Recipe, space: Space, seed: int, fixed: Values) -> Iterator[dict[str, Any]]:
    """The recipe itself, then the variants in turn: first with the recipe's numbers, then with drawn ones."""
    known = base.settings
    variants = [variant for variant in space.variants if variant.keys() <= known.keys()]
    ranges = {name: of for name, of in dict(space.ranges).items() if name in known}
    yield {}
    # one sequence per variant: of one sequence for all, each variant would get points of one region only
    shares = [
        SobolEngine(len(ranges), scramble=True, seed=(seed * len(variants) + i) % MAX_SEED)
        for i in range(len(variants))
    ]
    for attempt in itertools.count():
        at = attempt % len(variants)
        variant = variants[at]
        found = {name: value for name, value in variant.items() if not isinstance(value, Range)}
        if attempt < len(variants):
            # at first with the recipe's own numbers, or the middle of the variant's ranges
            found |= {name: value.at(0.5) for name, value in variant.items() if isinstance(value, Range)}
        else:
            row = shares[at].draw(1)[0].double().tolist()
            for (name, usual), share in zip(ranges.items(), row, strict=True):
                of = variant.get(name, usual)
                found[name] = of.at(share) if isinstance(of, Range) else of
        found |= fixed
        if ranges.get("eta2") is SHARE and "eta2" in found and "eta2" not in fixed:
            values = {name: setting.default for name, setting in known.items()} | dict(base.arguments) | found
            curvature = values["gamma"] + values["mu2"]
            found["eta2"] = _two_digits(found["eta2"] / curvature) if curvature > 0 else None
        yield found


def load_portfolio() -> dict[str, Any]:
    """The stored portfolio of ASGNN with its provenance; ``settings`` is the list."""
    file = resources.files("asgnn.training").joinpath("portfolio.json")
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


PORTFOLIO: tuple[dict[str, Any], ...] = tuple(load_portfolio()["settings"])
"""ASGNN's settings for very different graphs, chosen by ``scripts/choose_portfolio.py``; the first is the recipe."""
