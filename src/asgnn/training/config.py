"""How a trial is trained, and what a trial is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real

from torch import nn

from asgnn.errors import ConfigError
from asgnn.graphs import Split
from asgnn.settings import PerTrial, check_count

MAX_EPOCHS = 10_000_000
MAX_SEED = 2**62 - 1  # seeds are shifted and mixed as int64


@dataclass(frozen=True)
class TrainConfig:
    """How one trial is trained. The defaults are for a model without a recipe; see :data:`~asgnn.training.RECIPES`.

    Args:
        epochs: full-graph steps; the validation accuracy is taken after each.
        lr: Adam's learning rate for the weights.
        weight_decay: L2 on the weights, not on learned scalars.
        scalar_lr: the learning rate of a model's learned scalars (ASGNN's six).
        seed: of this trial's dropout; a model's start is drawn where the model is made.
    """

    epochs: int = 200
    lr: PerTrial = 0.01
    weight_decay: PerTrial = 5e-4
    scalar_lr: PerTrial = 0.01
    seed: int = 0

    def __post_init__(self) -> None:
        check_count("epochs", self.epochs, 1, MAX_EPOCHS)
        for name in ("lr", "weight_decay", "scalar_lr"):
            value = getattr(self, name)
            if not isinstance(value, Real) or not 0 <= float(value) < math.inf:
                raise ConfigError(f"{name} must be 0 or more, and finite; it is {value!r}.")
        check_count("seed", self.seed, 0, MAX_SEED)


@dataclass(frozen=True)
class Trial:
    """One training: a model at its start, how to train it, and which nodes are for what."""

    model: nn.Module
    config: TrainConfig
    split: Split
