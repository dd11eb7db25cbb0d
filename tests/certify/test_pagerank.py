"""The certificate of PageRank models against all graphs within the budgets, one by one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from asgnn.asmp import ASMPParams, Scheme
from asgnn.certify import certify_pagerank, damping_of
from asgnn.errors import ConfigError, GraphError
from asgnn.graphs import undirected
from asgnn.graphs.features import Features
from asgnn.models import ASGNN

EDGES = undirected(torch.tensor([[0, 0, 1, 2, 3], [1, 2, 2, 3, 4]]), 5)


def scores(logits: Tensor, a: np.ndarray, alpha: float) -> np.ndarray:
    p = a / a.sum(1, keepdims=True)
    return (1 - alpha) * np.linalg.solve(np.eye(len(a)) - alpha * p, logits.double().numpy())


def graphs(a: np.ndarray, fragile: Tensor, local: list[int], total: int) -> list[np.ndarray]:
    """All graphs that the budgets allow."""
    found = []
    pairs = fragile.t().tolist()
    for count in range(min(total, len(pairs)) + 1):
        for chosen in itertools.combinations(pairs, count):
            if all(sum(i == row for i, _ in chosen) <= budget for row, budget in enumerate(local)):
                other = a.copy()
                for i, j in chosen:
                    other[i, j] = 1 - other[i, j]
                found.append(other)
    return found


def worst(logits: Tensor, many: list[np.ndarray], alpha: float) -> np.ndarray:
    """The smallest margin of the class that is predicted on the first graph."""
    predicted = scores(logits, many[0], alpha).argmax(1)
    margins = []
    for a in many:
        s = scores(logits, a, alpha)
        own = np.take_along_axis(s, predicted[:, None], 1)[:, 0]
        np.put_along_axis(s, predicted[:, None], -np.inf, 1)
        margins.append(own - s.max(1))
    return np.min(margins, axis=0)


REMOVED = EDGES[:, [0, 2, 3, 5, 7, 9]]
BOTH = torch.cat([REMOVED, torch.tensor([[0, 4, 1, 3], [3, 0, 4, 0]])], dim=1)


@pytest.mark.parametrize("self_loops", [True, False])
@pytest.mark.parametrize("fragile", [REMOVED, BOTH], ids=["removed", "removed and added"])
@pytest.mark.parametrize("alpha", [0.5, 0.85])
def test_equals_the_worst_of_all_graphs(alpha: float, fragile: Tensor, self_loops: bool) -> None:
    a = np.zeros((5, 5))
    a[EDGES[0], EDGES[1]] = 1
    a += self_loops * np.eye(5)
    local = [1, 2, 1, 1, 1] if self_loops else [1, 1, 1, 1, 0]
    many = graphs(a, fragile, local, 99)
    assert len(many) > 20
    for seed in range(4):
        logits = torch.randn(5, 3, generator=torch.Generator().manual_seed(seed))
        found = certify_pagerank(logits, EDGES, fragile, torch.tensor(local), damping=alpha, self_loops=self_loops)
        np.testing.assert_array_equal(found.prediction, scores(logits, a, alpha).argmax(1))
        np.testing.assert_allclose(found.margin, worst(logits, [a], alpha), atol=1e-9)
        np.testing.assert_allclose(found.worst_margin, worst(logits, many, alpha), atol=1e-8)
        np.testing.assert_array_equal(found.certified, worst(logits, many, alpha) > 0)


@pytest.mark.parametrize("total", [0, 1, 2])
def test_global_budget_is_a_bound_that_is_tight_without_flips(total: int) -> None:
    a = np.zeros((5, 5))
    a[EDGES[0], EDGES[1]] = 1
    a += np.eye(5)
    many = graphs(a, BOTH, [2] * 5, total)
    better = 0
    for seed in range(6):
        logits = torch.randn(5, 3, generator=torch.Generator().manual_seed(seed))
        local = certify_pagerank(logits, EDGES, BOTH, 2, damping=0.4)
        found = certify_pagerank(logits, EDGES, BOTH, 2, global_budget=total, damping=0.4)
        assert (found.worst_margin.numpy() <= worst(logits, many, 0.4) + 1e-8).all()
        assert (found.worst_margin >= local.worst_margin - 1e-8).all()
        better += int((found.worst_margin > local.worst_margin + 1e-3).sum())
        if total == 0:
            np.testing.assert_allclose(found.worst_margin, found.margin, atol=1e-8)
    assert better > 0  # it says more than the local budgets alone


def test_frozen_asgnn_at_convergence_is_a_pagerank_model() -> None:
    lam = 3.0
    model = (
        ASGNN(4, 8, 3, num_layers=200, params=ASMPParams(lam=lam), scheme=Scheme(structure="frozen")).double().eval()
    )
    x = torch.randn(5, 4, dtype=torch.float64)
    with torch.no_grad():
        logits = model.mlp(Features.of(x))[0]
        expected = model(x, EDGES)
    found = certify_pagerank(logits, EDGES, torch.empty(2, 0, dtype=torch.int64), 0, damping=damping_of(lam))
    top = expected.topk(2, dim=1).values
    torch.testing.assert_close(found.margin, top[:, 0] - top[:, 1], rtol=1e-7, atol=1e-9)
    assert torch.equal(found.worst_margin > 0, torch.ones(5, dtype=torch.bool))


def test_invalid_input_is_an_error_of_one_sentence() -> None:
    logits, none = torch.randn(5, 3), torch.empty(2, 0, dtype=torch.int64)
    with pytest.raises(GraphError, match="may lose all its edges"):
        certify_pagerank(logits, EDGES, EDGES, 5, self_loops=False)
    with pytest.raises(GraphError, match="no entry twice"):
        certify_pagerank(logits, EDGES, torch.tensor([[0, 0], [1, 1]]), 1)
    with pytest.raises(ConfigError, match="local_budget"):
        certify_pagerank(logits, EDGES, none, torch.tensor([1, 2]))
    with pytest.raises(ConfigError, match="damping"):
        certify_pagerank(logits, EDGES, none, 1, damping=1.0)
    with pytest.raises(ConfigError, match="two classes"):
        certify_pagerank(logits[:, :1], EDGES, none, 1)
    with pytest.raises(ConfigError, match="lam"):
        damping_of(-1.0)
