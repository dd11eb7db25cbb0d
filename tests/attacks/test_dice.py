"""DICE: exact budget, and only removals within classes and additions between them."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.data import Data

from asgnn.attacks import dice
from asgnn.errors import ConfigError, GraphError
from asgnn.graphs import load_dataset, undirected


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def cora() -> Data:
    return load_dataset("cora")


@pytest.mark.parametrize("rate", [0.0, 0.01, 0.25, 1.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_removes_within_classes_and_adds_between(cora: Data, rate: float, seed: int) -> None:
    budget = int(rate * (cora.num_edges // 2))
    flips = dice(cora, budget, generator(seed))
    assert len(flips) == budget
    flips.check(cora, budget)
    added, removed = flips.added(cora), flips.removed(cora)
    assert bool((cora.y[added[0]] != cora.y[added[1]]).all())
    assert bool((cora.y[removed[0]] == cora.y[removed[1]]).all())
    # half of each kind, within four standard deviations
    if rate < 1:
        assert abs(removed.size(1) - budget / 2) <= 4 * (budget / 4) ** 0.5
    degree = torch.bincount(flips.apply(cora).edge_index[0], minlength=int(cora.num_nodes or 0))
    assert int(degree.min()) >= 1


def test_same_seed_gives_same_flips(cora: Data) -> None:
    first, again, other = (dice(cora, 100, generator(s)).flips for s in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def small(y: list[int], pairs: list[tuple[int, int]]) -> Data:
    edge_index = undirected(torch.tensor(pairs).t().reshape(2, -1), len(y))
    return Data(x=torch.eye(len(y)), edge_index=edge_index, y=torch.tensor(y))


def test_isolates_no_node_unless_allowed() -> None:
    path = small([0, 0, 0, 1], [(0, 1), (1, 2), (2, 3)])
    for seed in range(20):
        # 0–1 and 1–2 are within a class; removing 0–1 would isolate node 0, removing 1–2 isolates no node
        removed = dice(path, 2, generator(seed)).removed(path)
        assert removed.t().tolist() in ([], [[1, 2]])
    allowed = [dice(path, 2, generator(seed), allow_isolated=True).removed(path).size(1) for seed in range(20)]
    assert max(allowed) == 2


def test_bad_budget() -> None:
    pair = small([0, 1, 1], [(0, 1), (1, 2)])  # only 0–2 can be added; nothing can be removed
    assert dice(pair, 1, generator()).flips.tolist() == [[0], [2]]
    with pytest.raises(GraphError, match=r"needs 2 new edges between classes, but only 1 can be added"):
        dice(pair, 2, generator())
    with pytest.raises(ConfigError, match="budget must be a whole number from 0"):
        dice(pair, -1, generator())
