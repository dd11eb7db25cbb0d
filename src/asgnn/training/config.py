"""Training settings and trials."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from asgnn.graphs import Split
from asgnn.graphs.partition import METHODS, Method
from asgnn.settings import PerTrial, check_choice, check_count, check_number

MAX_EPOCHS = 10_000_000
MAX_SEED = 2**62 - 1  # seeds are shifted and mixed in int64
Metric = Literal["accuracy", "roc_auc"]
METRICS = ("accuracy", "roc_auc")


@dataclass(frozen=True)
class TrainConfig:
    """The training settings of one trial; the defaults apply to models without one of the :data:`RECIPES`.

    Args:
        epochs: passes over the graph; the model is validated after each. An epoch is one optimisation step, or one for
            each mini-batch.
        lr: Adam's learning rate of the weights.
        weight_decay: L2 penalty on the weights; learned scalars have none.
        scalar_lr: learning rate of the learned scalars (the six of ASGNN).
        seed: seeds the dropout; the initial weights are drawn when the model is built.
        patience: stop when no epoch of this many was better on validation than all before; ``None``: never.
        metric: the validation score by which the best epoch is chosen: "accuracy", or "roc_auc" for two classes. Of
            equal scores the lower validation loss is better.
        parts: for mini-batches, the number of parts into which the nodes are divided. 1 trains on the whole graph.
        parts_per_step: the number of parts, drawn anew in every epoch, that one optimisation step sees together.
        partition: how the parts are made; see :func:`~asgnn.graphs.partition_nodes`. METIS needs the extra
            ``partition``. Parts by order can cost much accuracy, because few edges are inside of them.
    """

    epochs: int = 200
    lr: PerTrial = 0.01
    weight_decay: PerTrial = 5e-4
    scalar_lr: PerTrial = 0.01
    seed: int = 0
    patience: int | None = None
    metric: Metric = "accuracy"
    parts: int = 1
    parts_per_step: int = 1
    partition: Method = "metis"

    def __post_init__(self) -> None:
        check_count("epochs", self.epochs, 1, MAX_EPOCHS)
        for name in ("lr", "weight_decay", "scalar_lr"):
            check_number(name, getattr(self, name), 0, math.inf, "[)")
        check_count("seed", self.seed, 0, MAX_SEED)
        if self.patience is not None:
            check_count("patience", self.patience, 1, MAX_EPOCHS)
        check_choice("metric", self.metric, METRICS)
        check_count("parts", self.parts)
        check_count("parts_per_step", self.parts_per_step, 1, self.parts)
        check_choice("partition", self.partition, METHODS)

    @property
    def steps(self) -> int:
        """The number of optimisation steps of an epoch."""
        return -(-self.parts // self.parts_per_step)


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
