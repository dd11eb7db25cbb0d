"""How each model is built and trained when nothing is said: one recipe a name, each with where it comes from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch_geometric.data import Data

from asgnn.asmp import ASMPParams, Scheme
from asgnn.asmp.params import Objective
from asgnn.errors import ConfigError
from asgnn.graphs import Split
from asgnn.models import APPNP, ASGNN, GCN, MLP, NodeClassifier, ProGNN
from asgnn.training.fit import TrainConfig, Trial


@dataclass(frozen=True)
class Recipe:
    """A model with its settings, and how it is trained.

    Attributes:
        build: (number of features, number of classes) → model; its start is drawn afterwards from the trial's seed.
        config: the training, but for the seed.
    """

    build: Callable[[int, int], NodeClassifier]
    config: TrainConfig

    def trial(self, data: Data, split: Split, seed: int) -> Trial:
        """One trial on a graph: start and dropout drawn from ``seed`` alone."""
        model = self.build(data.num_features, int(data.y.max()) + 1)
        model.reset_parameters(torch.Generator().manual_seed(seed))
        return Trial(model, replace(self.config, seed=seed), split)


ASGNN_RECIPES: dict[Objective, Recipe] = {
    # Chosen on validation by scripts/choose_defaults.py; the record is docs/records/defaults.json.
    "degree": Recipe(lambda f, c: ASGNN(f, 64, c), TrainConfig()),
    "paper": Recipe(
        lambda f, c: ASGNN(
            f,
            64,
            c,
            num_layers=4,
            dropout=0.65,
            params=ASMPParams(lam=1.1, gamma=12.0, mu1=0.023, mu2=0.01, eta2=0.023),
            scheme=Scheme(objective="paper"),
        ),
        TrainConfig(weight_decay=4e-3),
    ),
}

RECIPES: dict[str, Recipe] = {
    "asgnn": ASGNN_RECIPES["degree"],
    # DeepRobust's settings, with which the published figures on the attacked graphs were made.
    "gcn": Recipe(lambda f, c: GCN(f, 16, c, dropout=0.5), TrainConfig(lr=0.01, weight_decay=5e-4)),
    # The authors' settings: ten steps, teleport 0.1, hidden 64, dropout 0.5.
    "appnp": Recipe(lambda f, c: APPNP(f, 64, c), TrainConfig(lr=0.01, weight_decay=5e-4)),
    "mlp": Recipe(lambda f, c: MLP(f, 64, c), TrainConfig(lr=0.01, weight_decay=5e-4)),
    # The authors' scripts for Metattack: alpha, beta and gamma are the same for all graphs and are the model's
    # defaults; lam is 1e-3 for Cora, taken here for all, and 1e-4 for Citeseer; lr and epochs are Citeseer's 5e-4 and
    # 1000, each of two steps of the weights (for Cora: 1e-3 and 400). Symmetric, which in their code is an option.
    "prognn": Recipe(lambda f, c: ProGNN(f, 16, c), TrainConfig(epochs=2000, lr=5e-4, weight_decay=5e-4)),
    # Without the features' smoothness; the rest as above.
    "prognn-fs": Recipe(lambda f, c: ProGNN(f, 16, c, lam=0.0), TrainConfig(epochs=2000, lr=5e-4, weight_decay=5e-4)),
}


def recipe(model: str, objective: Objective | None = None) -> Recipe:
    """The recipe of a model by name; ``objective`` chooses between ASGNN's two."""
    if model not in RECIPES:
        raise ConfigError(f"There is no model {model!r}; the models are {', '.join(RECIPES)}.")
    if objective is None:
        return RECIPES[model]
    if model != "asgnn":
        raise ConfigError(f"An objective can be chosen for asgnn only, not for {model}.")
    if objective not in ASGNN_RECIPES:
        raise ConfigError(f"objective must be one of {', '.join(ASGNN_RECIPES)}; it is {objective!r}.")
    return ASGNN_RECIPES[objective]
