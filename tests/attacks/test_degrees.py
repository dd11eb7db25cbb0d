"""The degree test against a direct computation of its statistic on the flipped graph."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from asgnn.attacks.degrees import DegreeTest
from asgnn.errors import ConfigError, GraphError
from asgnn.graphs import load_dataset
from tests.awkward import AWKWARD


def score(degrees: list[int], d_min: int) -> float:
    kept = [d for d in degrees if d >= d_min]
    if not kept:
        return 0.0
    alpha = 1 + len(kept) / sum(math.log(d / (d_min - 0.5)) for d in kept)
    logs = sum(math.log(d) for d in kept)
    return len(kept) * math.log(alpha) + len(kept) * alpha * math.log(d_min) + (alpha + 1) * logs


def statistic(clean: list[int], flipped: list[int], d_min: int) -> float:
    return -2 * score(clean + flipped, d_min) + 2 * (score(clean, d_min) + score(flipped, d_min))


def degree_of(name: str) -> Tensor:
    n, edge_index = AWKWARD[name]
    return torch.bincount(edge_index[0], minlength=n)


@pytest.mark.parametrize("d_min", [2, 4])
@pytest.mark.parametrize("name", AWKWARD)
def test_statistic_equals_its_definition(name: str, d_min: int) -> None:
    clean = degree_of(name)
    test = DegreeTest(clean, d_min=d_min)
    assert test.statistic(clean) == pytest.approx(0, abs=1e-9)
    for seed in range(5):
        rng = torch.Generator().manual_seed(seed)
        other = (clean + torch.randint(-2, 3, clean.shape, generator=rng)).clamp(min=0)
        expected = statistic(clean.tolist(), other.tolist(), d_min)
        assert test.statistic(other) == pytest.approx(expected, abs=1e-9)
        assert expected > -1e-9


@pytest.mark.parametrize("name", [name for name in AWKWARD if name != "one node"])
@pytest.mark.parametrize("threshold", [0.004, 0.1])
def test_allowed_equals_the_statistic_after_the_flip(name: str, threshold: float) -> None:
    n, edge_index = AWKWARD[name]
    clean = degree_of(name)
    present = torch.zeros(n, n, dtype=torch.bool)
    present[edge_index[0], edge_index[1]] = True
    # the current graph differs from the clean one by one additional edge
    now = clean.clone()
    if not present[0, n - 1]:
        now[[0, n - 1]] += 1
        present[0, n - 1] = present[n - 1, 0] = True
    step = torch.where(present, -1, 1)
    allowed = DegreeTest(clean, threshold=threshold).allowed(now, now.unsqueeze(1), now, step)
    assert allowed.shape == (n, n)
    for u in range(n):
        for v in range(n):
            if u == v:
                continue
            flipped = now.clone()
            flipped[[u, v]] += step[u, v]
            expected = statistic(clean.tolist(), flipped.tolist(), 2)
            assert abs(expected - threshold) > 1e-9  # otherwise rounding would decide
            assert bool(allowed[u, v]) == (expected < threshold), (u, v)


def test_shapes_broadcast() -> None:
    degree = degree_of("random 33")
    test = DegreeTest(degree)
    full = test.allowed(degree, degree.unsqueeze(1), degree, 1)
    assert torch.equal(test.allowed(degree, degree[3], degree, 1), full[3])
    assert torch.equal(full, full.t())
    assert test.allowed(degree, degree[:0], degree[:0], 1).shape == (0,)


def test_cora_allows_single_flips_and_rejects_many_changed_degrees() -> None:
    cora = load_dataset("cora")
    degree = torch.bincount(cora.edge_index[0], minlength=int(cora.num_nodes or 0))
    test = DegreeTest(degree)
    assert bool(test.allowed(degree, degree, degree.flip(0), 1).all())
    changed = degree.clone()
    changed[:200] += 1
    assert test.statistic(changed) > 0.004
    assert not bool(test.allowed(changed, changed[:1], changed[1:2], 1))
    assert bool(test.allowed(degree, degree[:1], degree[1:2], 1))


def test_bad_settings() -> None:
    degree = torch.tensor([1, 2, 3])
    with pytest.raises(ConfigError, match=r"d_min must be a whole number from 2 to .*; it is 1\."):
        DegreeTest(degree, d_min=1)
    with pytest.raises(ConfigError, match=r"threshold must be a number in \(0, inf\]; it is 0\."):
        DegreeTest(degree, threshold=0)
    with pytest.raises(GraphError, match="whole numbers"):
        DegreeTest(degree.float())
