"""A recipe's name gives a model and its training settings; a seed gives the initial weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from asgnn import models
from asgnn.errors import ConfigError
from asgnn.training import RECIPES, TrainConfig, Trial, recipe, training_of
from tests.training.problem import CLASSES, WORDS, graph, split_of

KINDS = {
    "asgnn": models.ASGNN,
    "asgnn-paper": models.ASGNN,
    "asgnn-robust": models.RUNG,
    "asgnn-safe": models.ASGNN,
    "gcn": models.GCN,
    "gcn-jaccard": models.GCNJaccard,
    "gcn-svd": models.GCNSVD,
    "sgc": models.SGC,
    "gat": models.GAT,
    "appnp": models.APPNP,
    "mlp": models.MLP,
    "logistic": models.MLP,
    "elastic": models.ElasticGNN,
    "airgnn": models.AirGNN,
    "softmedian": models.SoftMedianGCN,
    "gnnguard": models.GNNGuard,
    "rung": models.RUNG,
    "prognn": models.ProGNN,
    "prognn-fs": models.ProGNN,
}
SPLIT = split_of(0)


def initial_state(trial: Trial) -> dict[str, Tensor]:
    return dict(trial.model.state_dict())


def test_every_recipe_has_a_class() -> None:
    assert RECIPES.keys() == KINDS.keys()


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_builds_a_trial(name: str) -> None:
    data = graph(torch.float32)
    spec = recipe(name).trial(data, SPLIT, seed=3)
    assert type(spec.model) is KINDS[name]
    assert spec.split is SPLIT
    assert spec.config.seed == 3
    assert {**vars(spec.config), "seed": 0} == vars(recipe(name).config)
    if name in ("asgnn-robust", "asgnn-safe"):
        with pytest.raises(ConfigError, match="a witness, which training trains first"):
            spec.model(data.x, data.edge_index)
    else:
        assert spec.model(data.x, data.edge_index).shape == (data.num_nodes, CLASSES)
    assert spec.model.settings["in_channels"] == WORDS


@pytest.mark.parametrize("name", RECIPES)
def test_initial_weights_depend_on_the_seed_alone(name: str) -> None:
    data = graph(torch.float32)
    first = recipe(name).trial(data, SPLIT, seed=3)
    torch.rand(7)  # changes the global generator
    again, other = recipe(name).trial(data, SPLIT, seed=3), recipe(name).trial(data, SPLIT, seed=4)
    assert first.model is not again.model
    assert all(torch.equal(value, initial_state(again)[key]) for key, value in initial_state(first).items())
    # not random: GAT's bias starts at zero, and Pro-GNN's structure is set when training begins
    random = [key for key, value in initial_state(first).items() if "raw_" not in key and bool(value.any())]
    assert random
    assert not any(torch.equal(initial_state(first)[key], initial_state(other)[key]) for key in random)


@pytest.mark.parametrize(("name", "objective"), [("asgnn", "degree"), ("asgnn-paper", "paper")])
def test_objective_of_asgnn(name: str, objective: str) -> None:
    model = recipe(name).trial(graph(torch.float32), SPLIT, 0).model
    assert isinstance(model, models.ASGNN)
    constraint = {"degree": "descent", "paper": "positive"}[objective]
    assert (model.asmp.scheme.objective, model.asmp.constraint) == (objective, constraint)


@pytest.mark.parametrize("name", RECIPES)
def test_training_of_returns_the_recipes_training(name: str) -> None:
    """Even if other settings differ from the recipe, such as the width."""
    trial = recipe(name, **({} if name == "sgc" else {"hidden_channels": 3})).trial(graph(torch.float32), SPLIT, 0)
    assert training_of(trial.model) == RECIPES[name].config
    assert training_of(torch.nn.Linear(1, 1)) == TrainConfig()


def test_settings_of_model_and_training() -> None:
    spec = recipe("gcn", lr=0.3, epochs=7, num_layers=4, dropout=0.2).trial(graph(torch.float32), SPLIT, 5)
    assert (spec.config.lr, spec.config.epochs, spec.config.weight_decay, spec.config.seed) == (0.3, 7, 5e-4, 5)
    assert isinstance(spec.model, models.GCN)
    assert (len(spec.model.between), float(spec.model.dropout.rate), spec.model.first.out_channels) == (2, 0.2, 16)
    other = recipe("asgnn-paper", structure="frozen", lam=3).trial(graph(torch.float32), SPLIT, 5)
    assert isinstance(other.model, models.ASGNN)
    assert (other.model.asmp.scheme.structure, other.model.asmp.start.lam) == ("frozen", 3.0)
    assert (other.model.asmp.start.gamma, other.model.asmp.num_layers) == (12.0, 4)
    assert recipe("gcn").config.lr == 0.01  # RECIPES itself is unchanged


BAD: dict[str, tuple[str, dict[str, Any]]] = {
    "unknown": (
        "no model 'nope'; the models are asgnn, asgnn-paper, asgnn-robust, asgnn-safe, gcn, .*, rung",
        {"model": "nope"},
    ),
    "other case": ("There is no model 'GCN'", {"model": "GCN"}),
    "objective of another": (
        "GCN has no setting objective; its settings are dropout",
        {"model": "gcn", "objective": "degree"},
    ),
    "string for a number": ("setting lr must be a number; it is 'high'", {"model": "gcn", "lr": "high"}),
    "fractional depth": ("setting num_layers must be a whole number", {"model": "gcn", "num_layers": 2.5}),
    "bool for a number": ("setting dropout must be a number", {"model": "gcn", "dropout": True}),
    "number for a string": ("setting structure must be a string", {"model": "asgnn", "structure": 3}),
    "no such package": ("'nopackage.mine' cannot be imported: No module named", {"model": "nopackage.mine:GCN"}),
    "no such class": ("torch_geometric.nn has no class 'Nope'", {"model": "torch_geometric.nn:Nope"}),
    "no module": ("torch has no class 'tensor' that is a torch.nn.Module", {"model": "torch:tensor"}),
    "unknown setting": (
        "GCN has no setting depth, x; its settings are dropout, epochs, hidden_channels, lr, metric, num_layers",
        {"model": "gcn", "x": 1, "depth": 3},
    ),
    "the seed": ("GCN has no setting seed", {"model": "gcn", "seed": 1}),
}


@pytest.mark.parametrize("case", BAD)
def test_invalid_names_raise(case: str) -> None:
    message, arguments = BAD[case]
    with pytest.raises(ConfigError, match=message):
        recipe(**arguments)
