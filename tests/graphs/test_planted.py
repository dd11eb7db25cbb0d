"""Planted graphs: counts are exact, features have the stated signal, the same arguments give the same graph."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import contains_self_loops, is_undirected

from asgnn.errors import ConfigError
from asgnn.graphs import JUDGING, PLANTED, TUNING, Gaussian, Words, load_dataset, planted_graph, random_split, validate
from asgnn.graphs.planted import Planted, _between, _within

SMALL = Gaussian(2, 1.0)
# nodes, classes, degree, false edges → sizes of the classes
GRAPHS: dict[str, tuple[tuple[int, Any, float, float], list[int]]] = {
    "balanced": ((200, 4, 6, 0.25), [50, 50, 50, 50]),
    "not divisible": ((33, 4, 5, 0.3), [9, 8, 8, 8]),
    "shares": ((1000, (0.7, 0.2, 0.1), 9, 0.2), [700, 200, 100]),
    "no false edges": ((60, 3, 4, 0.0), [20, 20, 20]),
    "false edges only": ((60, 3, 4, 1.0), [20, 20, 20]),
    "every pair": ((12, 2, 11, 36 / 66), [6, 6]),
    "every pair of a class": ((12, 2, 5, 0.0), [6, 6]),
    "no edges": ((10, 2, 0, 0.5), [5, 5]),
    "one class": ((20, 1, 3, 0.0), [20]),
    "a class of one node": ((20, (0.95, 0.05), 0.5, 0.2), [19, 1]),
    "100,000 nodes": ((100_000, 10, 10, 0.2), [10_000] * 10),
}


def counts(data: Data) -> tuple[int, int, list[int]]:
    """Edges, false edges and sizes of the classes."""
    row, col = data.edge_index
    between = data.y[row] != data.y[col]
    return data.num_edges // 2, int(between.sum()) // 2, torch.bincount(data.y).tolist()


@pytest.mark.parametrize(("arguments", "sizes"), GRAPHS.values(), ids=GRAPHS)
def test_counts_are_exact(arguments: tuple[int, Any, float, float], sizes: list[int]) -> None:
    nodes, _, degree, false_edges = arguments
    data = planted_graph(*arguments, features=SMALL)
    edges = round(nodes * degree / 2)
    assert counts(data) == (edges, round(false_edges * edges), sizes)
    validate(data, need_labels=len(sizes) > 1)
    assert is_undirected(data.edge_index, num_nodes=nodes)
    assert not contains_self_loops(data.edge_index)
    assert (data.edge_index[0] * nodes + data.edge_index[1]).unique().numel() == 2 * edges


@pytest.mark.parametrize("name", PLANTED)
def test_named_graphs(name: str) -> None:
    one, data = PLANTED[name], load_dataset(name)
    assert data.name == name
    edges, between, sizes = counts(data)
    assert data.num_nodes == one.nodes
    assert edges == one.nodes * one.degree / 2
    assert between == round(one.false_edges * edges)
    shares = one.classes if isinstance(one.classes, tuple) else [1 / one.classes] * one.classes
    assert all(abs(size - one.nodes * share) < 1 for size, share in zip(sizes, shares, strict=True))
    assert 1500 <= one.nodes <= 3000
    validate(data)
    if one.features is None:
        assert torch.equal(data.x, torch.eye(one.nodes))
    elif isinstance(one.features, Words):
        assert data.x.shape == (one.nodes, one.features.words)
        assert set(data.x.unique().tolist()) == {0, 1}
        assert 1 <= data.x.sum(1).min() <= data.x.sum(1).max() <= one.features.per_node
    else:
        assert data.x.shape == (one.nodes, one.features.dimension)
    split = random_split(data, 0, train=one.rule.train, val=one.rule.val, train_per_class=one.rule.train_per_class)
    assert data.y[split.train].unique().numel() == one.num_classes


def test_the_families_are_kept_apart() -> None:
    assert all(name.startswith("planted-") for name in JUDGING)
    assert all(name.startswith("tuning-") for name in TUNING)

    def parameters(one: Planted) -> tuple[Any, ...]:
        return one.nodes, one.classes, one.degree, one.false_edges, one.features, one.rule

    assert len({one.seed for one in PLANTED.values()}) == len(PLANTED)
    assert len({parameters(one) for one in PLANTED.values()}) == len(PLANTED)
    # not even the features or the noise are those that models are judged on
    for of in (lambda one: one.features, lambda one: (one.degree, one.false_edges)):
        judged, tuned = ({of(one) for one in family.values()} - {None} for family in (JUDGING, TUNING))
        assert not judged & tuned


def test_the_seed_decides_everything() -> None:
    for features in (SMALL, Words(40, 5, 0.5), None):
        torch.manual_seed(1)
        state = torch.get_rng_state()
        first = planted_graph(100, 3, 4, 0.2, features=features, seed=7)
        assert torch.equal(torch.get_rng_state(), state)
        torch.set_default_dtype(torch.float64)
        try:
            again = planted_graph(100, 3, 4, 0.2, features=features, seed=7)
        finally:
            torch.set_default_dtype(torch.float32)
        other = planted_graph(100, 3, 4, 0.2, features=features, seed=8)
        for name in ("x", "y", "edge_index"):
            assert torch.equal(first[name], again[name])
            assert features is None or not torch.equal(first[name], other[name])
        assert first.x.dtype == torch.float32


def test_graphs_are_the_same_on_every_machine() -> None:
    data = load_dataset("planted-false-5")
    assert data.edge_index[:, :4].tolist() == [[0, 0, 0, 1], [616, 666, 1258, 374]]
    assert data.y[:10].tolist() == [2, 3, 0, 2, 2, 3, 4, 2, 4, 1]


def test_the_order_of_the_nodes_says_nothing() -> None:
    data = planted_graph(2000, 2, 4, 0.2, features=SMALL, seed=3)
    ones = int(data.y[:1000].sum())  # hypergeometric: mean 500, standard deviation 11.2
    assert abs(ones - 500) < 56


@pytest.mark.parametrize(("draw", "pairs"), [(_within, 4), (_between, 11)])
def test_pairs_are_uniform(draw: Any, pairs: int) -> None:
    sizes, rng = torch.tensor([3, 2, 1]), torch.Generator().manual_seed(0)
    found: dict[tuple[int, int], int] = {}
    for _ in range(2000):
        for u, v in draw(sizes, 2, rng).t().tolist():
            assert u < v
            found[u, v] = found.get((u, v), 0) + 1
    assert len(found) == pairs
    if draw is _between:
        assert chisquare(list(found.values())).pvalue > 1e-4
    else:  # one edge in each of the two large classes: the second has one pair only
        assert found.pop((3, 4)) == 2000
        assert chisquare(list(found.values())).pvalue > 1e-4


def class_means(data: Data) -> Tensor:
    return torch.stack([data.x[data.y == label].mean(0) for label in range(int(data.y.max()) + 1)])


@pytest.mark.parametrize("signal", [0.0, 0.5, 3.0])
def test_gaussian_features_have_the_signal(signal: float) -> None:
    data = planted_graph(20_000, 2, 0, features=Gaussian(10, signal), seed=1)
    means = class_means(data)
    # The squared length of the error of a mean is chi-squared with 10 degrees of freedom, divided by 10,000.
    bound = math.sqrt(45 / 10_000)
    assert ((means.norm(dim=1) - signal).abs() < bound).all()
    noise = data.x - means[data.y]
    assert abs(float(noise.var()) - 1) < 0.02


@pytest.mark.parametrize("signal", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("words", [9, 10, 60])
def test_words_have_the_signal(words: int, signal: float) -> None:
    data = planted_graph(30_000, 3, 0, features=Words(words, 1, signal), seed=2)
    assert (data.x.sum(1) == 1).all()
    word = data.x.argmax(1)
    ends = [words * end // 3 for end in range(4)]
    for label, (start, end) in enumerate(itertools.pairwise(ends)):
        inside = (word[data.y == label] >= start) & (word[data.y == label] < end)
        expected = signal + (1 - signal) * (end - start) / words
        assert abs(float(inside.float().mean()) - expected) <= 5 * math.sqrt(expected * (1 - expected) / 10_000)
    assert data.x.sum(0).min() > 0


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "one node": ({"nodes": 1}, "nodes must be a whole number from 2"),
    "half a node": ({"nodes": 10.5}, "it is 10.5"),
    "no class": ({"classes": 0}, "classes must be a whole number from 1 to 50; it is 0"),
    "more classes than nodes": ({"classes": 51}, "it is 51"),
    "text": ({"classes": "five"}, "a number of classes or a list of their shares; it is 'five'"),
    "no shares": ({"classes": []}, "a list of their shares"),
    "shares above 1": ({"classes": [0.5, 0.6]}, "must sum to 1; they sum to 1.1"),
    "negative share": ({"classes": [1.0, -0.0]}, r"classes\[1\] must be a number in \(0, 1\]"),
    "an empty class": ({"classes": [0.999, 0.001]}, "Class 1 would have no node; 50 nodes are too few"),
    "degree": ({"degree": 50}, r"degree must be a number in \[0, 49\]; it is 50"),
    "NaN": ({"false_edges": float("nan")}, r"false_edges must be a number in \[0, 1\]"),
    "too dense within": ({"degree": 20, "false_edges": 0.0}, "Class 0 has 10 nodes, too few for 100 different true"),
    "too dense between": ({"degree": 49, "false_edges": 0.9}, "There are 1000 pairs of nodes of different classes"),
    "false edges of one class": ({"classes": 1}, "There are 0 pairs of nodes of different classes"),
    "seed": ({"seed": -1}, "seed must be a whole number from 0"),
    "features": ({"features": "gaussian"}, r"must be Gaussian\(…\), Words\(…\) or None; it is 'gaussian'"),
    "too few words": ({"features": Words(4)}, "5 classes need at least as many words; there are 4"),
}


@pytest.mark.parametrize(("arguments", "words"), BAD.values(), ids=BAD)
def test_refuses(arguments: dict[str, Any], words: str) -> None:
    usual: dict[str, Any] = {"nodes": 50, "classes": 5, "degree": 4, "false_edges": 0.2, "features": SMALL}
    planted_graph(**usual)
    with pytest.raises(ConfigError, match=words):
        planted_graph(**{**usual, **arguments})


@pytest.mark.parametrize(
    ("kind", "arguments", "words"),
    [
        (Gaussian, (0,), "dimension must be a whole number from 1"),
        (Gaussian, (3, -1.0), "signal must be a number in"),
        (Gaussian, (3, float("inf")), "signal must be a number in"),
        (Words, (0,), "words must be a whole number from 1"),
        (Words, (10, 0), "per_node must be a whole number from 1"),
        (Words, (10, 2, 1.1), r"signal must be a number in \[0, 1\]; it is 1.1"),
    ],
)
def test_features_refuse(kind: type, arguments: tuple[Any, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        kind(*arguments)
