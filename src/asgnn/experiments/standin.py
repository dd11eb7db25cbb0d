"""Stand-in for asgnn.settings and the new recipes, until they are there."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from asgnn.asmp import SCALARS
from asgnn.errors import ConfigError
from asgnn.training import recipes as old
from asgnn.training.fit import Fit, TrainConfig

PER_TRIAL = {"lr", "weight_decay", "scalar_lr", "dropout", "lambda1", "lambda2", *SCALARS}
RECIPES = {**old.RECIPES, "asgnn-paper": old.ASGNN_RECIPES["paper"]}
Fit.diverged = False  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Setting:
    name: str
    default: Any
    kind: type | None
    per_trial: bool

    def parse(self, text: str) -> Any:
        try:
            if self.kind is bool:
                return {"true": True, "false": False}[text.lower()]
            return (self.kind or str)(text)
        except (KeyError, ValueError):
            words = "true or false" if self.kind is bool else "a number"
            raise ConfigError(f"The setting {self.name} must be {words}, and {text!r} is not.") from None


def settings_of(kind: Callable[..., Any]) -> Mapping[str, Setting]:
    found = inspect.signature(kind).parameters.values()
    return {p.name: Setting(p.name, p.default, type(p.default), p.name in PER_TRIAL) for p in found}


def _settings(self: old.Recipe) -> dict[str, Setting]:
    of_model = {n: s for n, s in settings_of(self.kind).items() if n not in ("in_channels", "out_channels")}
    training = {
        f.name: Setting(f.name, f.default, type(f.default), f.name in PER_TRIAL)
        for f in fields(TrainConfig)
        if f.name != "seed"
    }
    return of_model | training


old.Recipe.settings = property(_settings)  # type: ignore[attr-defined]


def recipe(model: str, **settings: Any) -> Any:
    if model == "asgnn-paper":
        return old.recipe("asgnn", objective="paper", **settings)
    if model not in RECIPES:
        raise ConfigError(f"There is no model {model!r}; the models are {', '.join(RECIPES)}.")
    return old.recipe(model, **settings)
