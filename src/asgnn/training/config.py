"""Training settings and trials."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from asgnn.graphs import Split
from asgnn.settings import PerTrial, check_choice, check_count, check_number

MAX_EPOCHS = 10_000_000
MAX_SEED = 2**62 - 1  # seeds are shifted and mixed in int64
Metric = Literal["accuracy", "roc_auc"]
METRICS = ("accuracy", "roc_auc")


@dataclass(frozen=True)
class TrainConfig:
    """The training settings of one trial; the defaults apply to models without one of the :data:`RECIPES`.

    Args:
        epochs: full-graph optimisation steps; the model is validated after each.
        lr: Adam's learning rate of the weights.
        weight_decay: L2 penalty on the weights; learned scalars have none.
        scalar_lr: learning rate of the learned scalars (the six of ASGNN).
        seed: seeds the dropout; the initial weights are drawn when the model is built.
        patience: stop when no epoch of this many was better on validation than all before; ``None``: never.
        metric: the validation score by which the best epoch is chosen: "accuracy", or "roc_auc" for two classes. Of
            equal scores the lower validation loss is better.
    """

    epochs: int = 200
    lr: PerTrial = 0.01
    weight_decay: PerTrial = 5e-4
    scalar_lr: PerTrial = 0.01
    seed: int = 0
    patience: int | None = None
    metric: Metric = "accuracy"

    def __post_init__(self) -> None:
        check_count("epochs", self.epochs, 1, MAX_EPOCHS)
        for name in ("lr", "weight_decay", "scalar_lr"):
            check_number(name, getattr(self, name), 0, math.inf, "[)")
        check_count("seed", self.seed, 0, MAX_SEED)
        if self.patience is not None:
            check_count("patience", self.patience, 1, MAX_EPOCHS)
        check_choice("metric", self.metric, METRICS)


@dataclass(frozen=True)
class Trial:
    """One training run: an untrained model, its training settings and its split.

    Attributes:
        model: the model to train.
        config: its training settings.
        split: the nodes to train, validate and test on.
        edge_weight: (E,) weights of this trial's own, in place of those of the graph; 0 means that the trial does not
            have the edge. For models with :attr:`~asgnn.models.NodeClassifier.own_weights`.
    """

    model: nn.Module
    config: TrainConfig
    split: Split
    edge_weight: Tensor | None = None
