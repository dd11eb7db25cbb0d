"""A planted graph whose false edges are known, and trained models, for all tests of the audit."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch_geometric.data import Data

from asgnn.audit import single_edges
from asgnn.graphs import Gaussian, Words, planted_graph, random_split
from asgnn.models import Ensemble
from asgnn.training import fit_many, recipe

FEATURES = {"dense": Gaussian(12, 2.0), "words": Words(120, 10, 0.5), "none": None}


@cache
def planted(features: str = "dense") -> Data:
    return planted_graph(240, 3, 8, 0.2, features=FEATURES[features], seed=5)


@cache
def false_edges(features: str = "dense") -> NDArray[np.bool_]:
    """Which of the single edges join different classes."""
    data = planted(features)
    row, col = single_edges(data)
    y = data.y.numpy()
    false: NDArray[np.bool_] = y[row] != y[col]
    return false


@cache
def trained(features: str = "dense", witness: bool = True) -> Ensemble:
    data = planted(features)
    settings = {"epochs": 40, "hidden_channels": 8, "num_layers": 3}
    settings |= {"witness_floor": 0.1, "witness_models": 1} if witness and features != "none" else {}
    one = recipe("asgnn", **settings)
    split = random_split(data, 0, train=0.2, val=0.2)
    return Ensemble([fit.model for fit in fit_many([one.trial(data, split, seed) for seed in range(2)], data)])


def permuted(data: Data, order: torch.Tensor) -> Data:
    """The graph whose node order[i] is node i of ``data``."""
    x = torch.empty_like(data.x)
    x[order] = data.x
    return Data(x=x, edge_index=order[data.edge_index])


def untrained(data: Data) -> nn.Module:
    return recipe("gcn", hidden_channels=4).trial(data, random_split(data, 0), 0).model
