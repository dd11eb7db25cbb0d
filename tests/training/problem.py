"""A small graph for all tests of training: three communities, bag-of-words features, an isolated node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch_geometric.data import Data

from asgnn import models
from asgnn.asmp import ASMPParams, Scheme
from asgnn.graphs import Split, random_split, undirected
from asgnn.training import TrainConfig, Trial

NODES, WORDS, CLASSES = 48, 90, 3


def graph(dtype: torch.dtype = torch.float64) -> Data:
    rng = torch.Generator().manual_seed(0)
    y = torch.arange(NODES) % CLASSES
    chance = torch.where(y.unsqueeze(0) == y.unsqueeze(1), 0.25, 0.03)
    chance[-1] = chance[:, -1] = 0
    edge_index = undirected((torch.rand(NODES, NODES, generator=rng) < chance).triu(1).nonzero().t(), NODES)
    topic = torch.arange(WORDS) % CLASSES
    share = torch.where(y.unsqueeze(1) == topic.unsqueeze(0), 0.12, 0.03)
    x = (torch.rand(NODES, WORDS, generator=rng) < share).to(dtype)
    return Data(x=x, edge_index=edge_index, y=y)


# Everything that may differ between the trials of a batch differs here.
DROPOUT = (0.5, 0.0, 0.8, 0.25)
PARAMS = (ASMPParams(), ASMPParams(0.5, 1.0, 0.05, 0.2, eta2=0.1), ASMPParams(lam=6.0), ASMPParams(gamma=0.3, eta2=0.9))
CONFIGS = (
    TrainConfig(15, lr=0.02, weight_decay=1e-3, scalar_lr=0.01, seed=3),
    TrainConfig(15, lr=0.1, weight_decay=0.0, scalar_lr=0.1, seed=1),
    TrainConfig(15, lr=0.005, weight_decay=0.05, scalar_lr=0.0, seed=4),
    TrainConfig(15, lr=0.05, weight_decay=5e-4, scalar_lr=0.03, seed=1),
)
SHARES = ((0.2, 0.2), (0.1, 0.3), (0.4, 0.1), (0.2, 0.25))

MODELS: dict[str, Callable[[int], models.NodeClassifier]] = {
    "asgnn": lambda i: models.ASGNN(WORDS, 8, CLASSES, num_layers=4, dropout=DROPOUT[i], params=PARAMS[i]),
    "asgnn paper": lambda i: models.ASGNN(
        WORDS, 8, CLASSES, num_layers=4, dropout=DROPOUT[i], params=PARAMS[i], scheme=Scheme("paper")
    ),
    "asgnn frozen": lambda i: models.ASGNN(
        WORDS, 8, CLASSES, num_layers=4, dropout=DROPOUT[i], params=PARAMS[i], scheme=Scheme(structure="frozen")
    ),
    "gcn": lambda i: models.GCN(WORDS, 8, CLASSES, dropout=DROPOUT[i]),
    "gcn-jaccard": lambda i: models.GCNJaccard(WORDS, 8, CLASSES, dropout=DROPOUT[i], threshold=0.05),
    "gcn-svd": lambda i: models.GCNSVD(WORDS, 8, CLASSES, dropout=DROPOUT[i], rank=6),
    "sgc": lambda i: models.SGC(WORDS, CLASSES),
    "gat": lambda i: models.GAT(WORDS, 4, CLASSES, heads=3, dropout=DROPOUT[i]),
    "appnp": lambda i: models.APPNP(WORDS, 8, CLASSES, num_layers=5, dropout=DROPOUT[i]),
    "mlp": lambda i: models.MLP(WORDS, 8, CLASSES, dropout=DROPOUT[i]),
    "elastic": lambda i: models.ElasticGNN(WORDS, 8, CLASSES, num_layers=5, lambda1=0.5, dropout=DROPOUT[i]),
    "airgnn": lambda i: models.AirGNN(WORDS, 8, CLASSES, num_layers=5, lam=0.2, dropout=DROPOUT[i]),
    "softmedian": lambda i: models.SoftMedianGCN(WORDS, 8, CLASSES, dropout=DROPOUT[i]),
    "gnnguard": lambda i: models.GNNGuard(WORDS, 8, CLASSES, dropout=DROPOUT[i]),
    "rung": lambda i: models.RUNG(WORDS, 8, CLASSES, num_layers=5, gamma=2.0, dropout=DROPOUT[i]),
    "prognn": lambda i: models.ProGNN(WORDS, 8, CLASSES, dropout=DROPOUT[i], method="exact"),
    "prognn by products": lambda i: models.ProGNN(WORDS, 8, CLASSES, dropout=DROPOUT[i], method="products"),
}


def split_of(i: int) -> Split:
    train, val = SHARES[i]
    return random_split(graph(), trial=i, train=train, val=val)


def trial(name: str, i: int, dtype: torch.dtype = torch.float64, **changed: Any) -> Trial:
    model = MODELS[name](i)
    model.reset_parameters(torch.Generator().manual_seed(10 + i))
    config = TrainConfig(**{**vars(CONFIGS[i]), **changed})
    return Trial(model.to(dtype), config, split_of(i))


def four(name: str, dtype: torch.dtype = torch.float64, **changed: Any) -> list[Trial]:
    return [trial(name, i, dtype, **changed) for i in range(4)]
