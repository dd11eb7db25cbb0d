"""A small planted graph, a trained model on it, and attacks of a few steps."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

from asgnn.attacks import dice, evolve, grbcd, join_unlike, metattack, prbcd, random_flips, straight_through
from asgnn.attacks.inner import InnerTraining
from asgnn.challenge import Way
from asgnn.challenge.controls import frozen_twin
from asgnn.graphs import Gaussian, Split, planted_graph, random_split
from asgnn.training import fit_many, recipe

FEW = {"steps": 8, "fine_tune": 2, "samples": 4, "repair": 1}
WAYS = {
    "prbcd": Way(prbcd, "gradient", FEW, seeds=2),
    "grbcd": Way(grbcd, "gradient", {"steps": 4}),
    "prbcd-relaxed": Way(prbcd, "relaxed", FEW, surrogate=straight_through),
    "prbcd-twin": Way(prbcd, "twin", FEW, surrogate=frozen_twin),
    "join-unlike": Way(join_unlike, "answers", {"steps": 6}),
    "evolve": Way(evolve, "answers", {"steps": 2, "population": 6, "elite": 2}, continues="strongest"),
    "metattack": Way(metattack, "nothing", {"inner": InnerTraining(steps=5)}, ordered=True),
    "dice": Way(dice, "nothing"),
    "random": Way(random_flips, "nothing"),
}
BUDGETS = (0.05, 0.2)


@cache
def graph() -> tuple[Data, Split]:
    data = planted_graph(60, classes=2, degree=6, false_edges=0.05, features=Gaussian(8, signal=1.0))
    return data, random_split(data, 0, train=0.2, val=0.2)


@cache
def trained(model: str = "gcn", **settings: object) -> nn.Module:
    data, split = graph()
    trial = recipe(model, **{"epochs": 40, **settings}).trial(data, split, 0)
    return fit_many([trial], data)[0].model


class OwnModel(nn.Module):
    """A model of a user, which takes edge weights."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv = GCNConv(in_channels, out_channels)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        out: Tensor = self.conv(x, edge_index, edge_weight)
        return out


class WithoutWeights(OwnModel):
    """The same, but its forward takes no edge weights."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x, edge_index)


class Rounded(OwnModel):
    """Hides its gradient: the scores are rounded, which has no derivative, beside a faint copy that points astray."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        exact = super().forward(x, edge_index, edge_weight)
        return (4 * exact).round().detach() / 4 - 1e-4 * (exact - exact.detach())


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
