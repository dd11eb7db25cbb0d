"""Nettack: exact logits after every flip, greedy choice against brute force, constraints, checkpoints."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor
from torch_geometric.data import Data

from asgnn.attacks import nettack, nettack_targets
from asgnn.attacks.checkpoint import FileCheckpoint, State
from asgnn.attacks.degrees import DegreeTest
from asgnn.attacks.linear import fit_linear, linear_logits
from asgnn.attacks.nettack import EPOCHS, LinearSurrogate, TargetLogits, cooccurring
from asgnn.errors import AsgnnError, ConfigError, GraphError
from asgnn.graphs import (
    POISONED,
    PUBLISHED_SPLITS,
    Perturbation,
    load_dataset,
    load_poisoned,
    published_split,
    undirected,
)
from asgnn.graphs.flips import NETTACK_TARGETS
from tests.awkward import AWKWARD

MIRROR = os.environ.get("ASGNN_MIRROR")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def graph(name: str, features: int = 6, classes: int = 3, seed: int = 0) -> Data:
    n, edge_index = AWKWARD[name]
    rng = generator(seed)
    x = (torch.rand(n, features, generator=rng) < 0.4).float()
    return Data(x=x, edge_index=edge_index, y=torch.arange(n) % classes)


def edges_once(data: Data) -> Tensor:
    return data.edge_index[:, data.edge_index[0] < data.edge_index[1]]


def dense_logits(data: Data, weight: Tensor) -> Tensor:
    """Return Â²XW with dense matrices."""
    n = int(data.num_nodes or 0)
    adj = torch.eye(n, dtype=torch.float64)
    adj[data.edge_index[0], data.edge_index[1]] = 1
    root = torch.diag(adj.sum(1) ** -0.5)
    adj = root @ adj @ root
    return adj @ (adj @ (data.x.double() @ weight.double()))


def flipped(data: Data, edges: list[tuple[int, int]], entries: list[tuple[int, int]] | None = None) -> Data:
    pairs = torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).t()
    at = torch.tensor(entries or [], dtype=torch.int64).reshape(-1, 2).t()
    return Perturbation(pairs, int(data.num_nodes or 0), feature_flips=at).apply(data)


def random_weight(data: Data, classes: int = 3) -> Tensor:
    return torch.randn(data.x.size(1), classes, generator=generator(7), dtype=torch.float64)


# --- the surrogate ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", AWKWARD)
def test_logits_equal_the_dense_ones(name: str) -> None:
    data = graph(name)
    weight = random_weight(data)
    expected = dense_logits(data, weight)
    torch.testing.assert_close(linear_logits(data, weight), expected)
    surrogate = LinearSurrogate(data, edges_once(data), weight)
    for node in range(int(data.num_nodes or 0)):
        np.testing.assert_allclose(TargetLogits(surrogate, node).current(), expected[node].numpy(), atol=1e-12)


def test_fit_uses_only_the_known_labels_and_depends_on_the_seed() -> None:
    cora = load_dataset("cora")
    train = torch.arange(0, 2485, 10)
    weight = fit_linear(cora, train, generator())
    assert weight.shape == (1433, 7)
    right = linear_logits(cora, weight).argmax(1) == cora.y
    rest = torch.ones(2485, dtype=torch.bool)
    rest[train] = False
    assert float(right[train].double().mean()) > 0.95
    assert float(right[rest].double().mean()) > 0.8
    # unknown labels do not matter
    few = train[::8]
    weight = fit_linear(cora, few, generator())
    blind = cora.clone()
    blind.y = torch.where(rest, 6 - cora.y, cora.y)
    assert torch.equal(fit_linear(blind, few, generator()), weight)
    assert not torch.equal(fit_linear(cora, few, generator(1)), weight)


@pytest.mark.parametrize("name", [name for name in AWKWARD if name != "one node"])
def test_logits_after_edge_flips_equal_recomputation(name: str) -> None:
    """For every target and every pair: at the target, at its neighbours or elsewhere, additions and removals."""
    data = graph(name)
    n = int(data.num_nodes or 0)
    weight = random_weight(data)
    surrogate = LinearSurrogate(data, edges_once(data), weight)
    after = {(u, v): dense_logits(flipped(data, [(u, v)]), weight) for u, v in itertools.combinations(range(n), 2)}
    for target in range(0, n, 1 + n // 12):
        logits = TargetLogits(surrogate, target)
        for u in range(n):
            found = logits.after_edge(u)
            expected = np.stack([after[min(u, v), max(u, v)][target].numpy() for v in range(n) if v != u])
            np.testing.assert_allclose(np.delete(found, u, axis=0), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", AWKWARD)
def test_logits_after_feature_flips_equal_recomputation(name: str) -> None:
    data = graph(name)
    n, width = data.x.shape
    weight = random_weight(data)
    surrogate = LinearSurrogate(data, edges_once(data), weight)
    for node in range(0, n, 1 + n // 8):
        expected = torch.stack([dense_logits(flipped(data, [], [(node, f)]), weight) for f in range(width)])
        for target in range(n):
            found = TargetLogits(surrogate, target).after_feature(node, 1 - 2 * data.x[node].double().numpy())
            np.testing.assert_allclose(found, expected[:, target].numpy(), rtol=1e-10, atol=1e-10)


def test_logits_stay_exact_after_many_flips() -> None:
    data = graph("random 33")
    weight = random_weight(data)
    surrogate = LinearSurrogate(data, edges_once(data), weight)
    rng = generator(3)
    pairs: set[tuple[int, int]] = set()
    entries: set[tuple[int, int]] = set()
    for _ in range(60):
        u, v = torch.randperm(33, generator=rng)[:2].sort().values.tolist()
        pairs ^= {(u, v)}
        surrogate.flip_edge(u, v)
        node, feature = int(torch.randint(33, (), generator=rng)), int(torch.randint(6, (), generator=rng))
        step = 1 - 2 * ((data.x[node, feature] == 1) ^ ((node, feature) in entries)).int()
        entries ^= {(node, feature)}
        surrogate.flip_feature(node, feature, int(step))
    now = flipped(data, sorted(pairs), sorted(entries))
    assert np.array_equal(surrogate.degree, torch.bincount(now.edge_index[0], minlength=33).numpy())
    expected = dense_logits(now, weight).numpy()
    for target in range(33):
        np.testing.assert_allclose(TargetLogits(surrogate, target).current(), expected[target], rtol=1e-10, atol=1e-10)
    u = 5
    again = dense_logits(flipped(now, [(u, 11)]), weight)[2].numpy()
    np.testing.assert_allclose(TargetLogits(surrogate, 2).after_edge(u)[11], again, rtol=1e-10, atol=1e-10)


# --- greedy choice ---------------------------------------------------------------------------------------------------


def margin(logits: Tensor, label: int) -> float:
    others = logits.clone()
    others[label] = -torch.inf
    return float(logits[label] - others.max())


Move = tuple[str, int, int]


def moves(data: Data, places: list[int], target: int, *, structure: bool, features: bool) -> Iterator[Move]:
    """Yield every single flip at the nodes ``places``, allowed or not; each pair once."""
    if structure:
        pairs = {(min(i, v), max(i, v)) for i in places for v in range(int(data.num_nodes or 0)) if i != v}
        yield from (("edge", u, v) for u, v in sorted(pairs) if places == [target] or target not in (u, v))
    if features:
        yield from (("feature", i, f) for i in places for f in range(data.x.size(1)))


def make(data: Data, move: Move) -> Data:
    return flipped(data, [move[1:]]) if move[0] == "edge" else flipped(data, [], [move[1:]])


def degree_of(data: Data) -> Tensor:
    return torch.bincount(data.edge_index[0], minlength=int(data.num_nodes or 0))


def may_add(x: Tensor, node: int, feature: int) -> bool:
    """Return whether the feature may be added, computed as in Sec. 4.2 of the paper."""
    own = x[node].nonzero().squeeze(1).tolist()
    width = x.size(1)
    joined = {(i, j): i != j and bool(((x[:, i] == 1) & (x[:, j] == 1)).any()) for i in range(width) for j in own}
    degree = {j: sum(joined[i, j] for i in range(width)) for j in own}
    if not own:
        return False
    reached = sum(joined[feature, j] / degree[j] for j in own if degree[j]) / len(own)
    return reached > 0.5 * sum(1 / degree[j] for j in own if degree[j]) / len(own) + 1e-12


def larger(features: int) -> Data:
    """Return a graph of 100 nodes with hubs; the degree test allows only some flips of the targets 9 and 4."""
    rng = generator(5)
    weight = torch.linspace(1, 0.1, 100)
    upper = (torch.rand(100, 100, generator=rng) < 0.3 * weight * weight.unsqueeze(1)).triu(1)
    x = (torch.rand(100, features, generator=rng) < 0.4).float()
    return Data(x=x, edge_index=undirected(upper.nonzero().t(), 100), y=torch.arange(100) % 3)


# kind, direct, threshold of the degree test
CHOICES = [
    *itertools.product(("structure", "features", "both"), (True, False), (None,)),
    ("structure", True, 0.004),
    ("both", True, 0.004),
]


@pytest.mark.parametrize(("kind", "direct", "threshold"), CHOICES)
def test_each_flip_is_the_best_single_flip(kind: str, direct: bool, threshold: float | None) -> None:
    # in a small graph the degree test allows no flip
    data = graph("random 33", features=9) if threshold is None else larger(features=9)
    train, targets, per_target = torch.arange(0, 33, 2), [9, 4], 2
    options = {"structure": kind != "features", "features": kind != "structure"}
    found = nettack(
        data, per_target, train, torch.tensor(targets), generator(),
        direct=direct, influencers=2, degree_test=threshold is not None, **options,
    )  # fmt: skip
    left: list[Move] = [("edge", u, v) for u, v in found.flips.t().tolist()]
    left += [] if found.feature_flips is None else [("feature", i, f) for i, f in found.feature_flips.t().tolist()]
    assert len(left) == 4
    weight = fit_linear(data, train, generator(), epochs=EPOCHS)

    def table(now: Data, before: Data, places: list[int], target: int, done: list[Move]) -> dict[Move, float]:
        scores = {}
        for move in moves(now, places, target, **options):
            after = make(now, move)
            if move[0] == "edge":
                degree = degree_of(after)
                allowed = not bool(((degree_of(now) > 0) & (degree == 0)).any())
                if threshold is not None:
                    allowed &= DegreeTest(degree_of(before)).statistic(degree) < threshold
            else:
                allowed = bool(now.x[move[1:]] == 1) or may_add(data.x, *move[1:])
            if allowed and move not in done:
                scores[move] = margin(dense_logits(after, weight)[target], int(data.y[target]))
        return scores

    now, done = data, list[Move]()
    for target in targets:
        before = now
        places = [target]
        if not direct:
            near = sorted(now.edge_index[1, now.edge_index[0] == target].tolist())
            best = {i: min(table(now, before, [i], target, done).values(), default=np.inf) for i in near}
            places = sorted(near, key=lambda i: (best[i], i))[:2]
        for _ in range(per_target):
            scores = table(now, before, places, target, done)
            lowest = min(scores.values())
            # the result lists edges and features separately, so the flip made here may be in either list
            made = [move for move in left if move in scores and scores[move] - lowest < 1e-9]
            assert made, (target, lowest, left)
            left.remove(made[0])
            done.append(made[0])
            now = make(now, made[0])


@pytest.mark.parametrize("seed", range(4))
def test_cooccurrence_equals_the_rule_of_the_paper(seed: int) -> None:
    x = (torch.rand(12, 15, generator=generator(seed)) < 0.2).float()
    x[3] = 0  # a node with no features
    x[:, 2] = 0
    x[5] = 0
    x[5, 2] = 1  # a feature that co-occurs with no other
    matrix = sp.csr_array(x.double().numpy())
    for node in range(12):
        found = cooccurring(matrix, matrix.tocsc(), x[node].nonzero().squeeze(1).numpy())
        for feature in (x[node] == 0).nonzero().squeeze(1).tolist():
            assert bool(found[feature]) == may_add(x, node, feature), (node, feature)


# --- on Cora ---------------------------------------------------------------------------------------------------------

TRAIN, TARGETS = torch.arange(0, 2485, 60), torch.tensor([1501, 7, 33, 2001, 1986])


@pytest.fixture(scope="module")
def cora() -> Data:
    """Return Cora with 200 of its features, for which the surrogate trains fast."""
    data = load_dataset("cora")
    data.x = data.x[:, :200].clone()
    return data


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("features", [True, False])
def test_flips_follow_the_rules_and_lower_the_margins(cora: Data, direct: bool, features: bool) -> None:
    before = cora.clone()
    found = nettack(cora, 3, TRAIN, TARGETS, generator(), features=features, direct=direct, degree_test=False)
    assert torch.equal(cora.edge_index, before.edge_index)
    assert torch.equal(cora.x, before.x)
    assert len(found) == 15
    assert found.targets is not None
    assert found.targets.tolist() == TARGETS.sort().values.tolist()
    assert found.meta["attack"] == "nettack"
    assert found.meta["per_target"] == "3"
    touched = torch.isin(found.flips, TARGETS).any(0)
    if direct:
        assert bool(touched.all())
        if found.feature_flips is not None:
            assert bool(torch.isin(found.feature_flips[0], TARGETS).all())
    after = found.apply(cora)
    degree = torch.bincount(after.edge_index[0], minlength=2485)
    assert int(degree.min()) >= 1
    weight = fit_linear(cora, TRAIN, generator(), epochs=EPOCHS)
    old, new = linear_logits(cora, weight), linear_logits(after, weight)
    for target in TARGETS.tolist():
        label = int(cora.y[target])
        assert margin(new[target], label) < margin(old[target], label)


def test_same_seed_gives_same_flips(cora: Data) -> None:
    first, again, other = (nettack(cora, 2, TRAIN, TARGETS, generator(s)).flips for s in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    mask = torch.zeros(2485, dtype=torch.bool)
    mask[TRAIN] = True
    assert torch.equal(nettack(cora, 2, mask, TARGETS, generator()).flips, first)
    targets = torch.zeros(2485, dtype=torch.bool)
    targets[TARGETS] = True
    in_order = nettack(cora, 2, TRAIN, TARGETS.sort().values, generator()).flips
    assert torch.equal(nettack(cora, 2, TRAIN, targets, generator()).flips, in_order)


def test_first_flips_equal_the_attack_on_fewer_targets(cora: Data) -> None:
    found = nettack(cora, 4, TRAIN, TARGETS, generator()).flips
    assert torch.equal(nettack(cora, 4, TRAIN, TARGETS[:2], generator()).flips, found[:, :8])
    assert torch.equal(nettack(cora, 2, TRAIN, TARGETS[:1], generator()).flips, found[:, :2])


def test_every_target_passes_the_degree_test(cora: Data) -> None:
    found = nettack(cora, 5, TRAIN, TARGETS, generator())
    now = cora
    for start in range(0, 25, 5):
        test = DegreeTest(torch.bincount(now.edge_index[0], minlength=2485))
        now = Perturbation(found.flips[:, start : start + 5], 2485).apply(now)
        assert test.statistic(torch.bincount(now.edge_index[0], minlength=2485)) < 0.004


def test_isolates_no_node_unless_allowed() -> None:
    def attack(target: int, per_target: int, *, allow_isolated: bool) -> Perturbation:
        return nettack(
            data, per_target, torch.arange(30), torch.tensor([target]), generator(),
            degree_test=False, allow_isolated=allow_isolated,
        )  # fmt: skip

    data = graph("star")
    # the centre has an edge to every node, and each removal isolates a leaf
    with pytest.raises(GraphError, match=r"no allowed flip for target 0 after 0 of 2 flips; lower"):
        attack(0, 2, allow_isolated=False)
    assert attack(0, 2, allow_isolated=True).removed(data).size(1) == 2
    # a leaf may lose its edge to the centre once it has another edge
    assert attack(3, 28, allow_isolated=False).added(data).size(1) >= 27


class InMemory:
    """A checkpoint in memory that interrupts the attack after ``stop_after`` saves."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.state: State | None = None
        self.left = stop_after

    def load(self) -> State | None:
        return self.state

    def save(self, state: State) -> None:
        self.state = {name: value.clone() for name, value in state.items()}
        if self.left is not None:
            self.left -= 1
            if self.left == 0:
                self.left = None
                raise KeyboardInterrupt


@pytest.mark.parametrize("direct", [True, False])
def test_resumed_attack_gives_the_same_flips(cora: Data, direct: bool) -> None:
    seen: list[tuple[int, int]] = []

    def run(checkpoint: InMemory | None) -> Perturbation:
        seen.clear()
        return nettack(
            cora, 2, TRAIN, TARGETS, generator(), features=True, direct=direct, influencers=2, checkpoint=checkpoint,
            progress=lambda done, total: seen.append((done, total)),
        )  # fmt: skip

    whole = run(None)
    assert whole.feature_flips is not None
    assert seen == [(2, 10), (4, 10), (6, 10), (8, 10), (10, 10)]
    for stop_after in (3, 5):
        checkpoint = InMemory(stop_after)
        with pytest.raises(KeyboardInterrupt):
            run(checkpoint)
        resumed = run(checkpoint)
        assert len(seen) == 5 - stop_after
        assert torch.equal(resumed.flips, whole.flips)
        assert resumed.feature_flips is not None
        assert torch.equal(resumed.feature_flips, whole.feature_flips)


def test_resumes_from_a_file(cora: Data, tmp_path: Path) -> None:
    path = tmp_path / "state.npz"
    with FileCheckpoint(path, {"attack": "nettack"}, every=0) as checkpoint:
        whole = nettack(cora, 2, TRAIN, TARGETS[:2], generator(), checkpoint=checkpoint)
    # the attack is complete, so the flips come from the file and do not depend on the generator
    with FileCheckpoint(path, {"attack": "nettack"}) as checkpoint:
        again = nettack(cora, 2, TRAIN, TARGETS[:2], generator(5), checkpoint=checkpoint)
    assert torch.equal(whole.flips, again.flips)


# --- bad input -------------------------------------------------------------------------------------------------------

BAD: dict[str, tuple[dict[str, object], type[AsgnnError], str]] = {
    "target out of range": ({"targets": torch.tensor([2, 33])}, GraphError, "target nodes name node 33, but the nodes"),
    "negative target": ({"targets": torch.tensor([-1])}, GraphError, "name node -1, but the nodes are numbered 0 to"),
    "no target": (
        {"targets": torch.tensor([], dtype=torch.int64)},
        GraphError,
        "the target nodes must be given",
    ),
    "repeated target": ({"targets": torch.tensor([4, 4])}, GraphError, "Node 4 is more than once among the targets"),
    "targets as a list": ({"targets": [4]}, GraphError, "target nodes must be an int64 tensor"),
    "no flips": ({"per_target": 0}, ConfigError, r"per_target must be a whole number from 1 to .*; it is 0\."),
    "half a flip": ({"per_target": 1.5}, ConfigError, r"per_target must be a whole number from 1 to .*; it is 1\.5\."),
    "no influencers": ({"influencers": 0}, ConfigError, "influencers must be a whole number from 1"),
    "nothing to flip": ({"structure": False}, ConfigError, "structure and features are both False"),
    "no labels": (
        {"train": torch.tensor([], dtype=torch.int64)},
        GraphError,
        "the labelled nodes must be given",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case: str) -> None:
    change, error, sentence = BAD[case]
    arguments = {"per_target": 1, "train": torch.arange(10), "targets": torch.tensor([1])} | change
    with pytest.raises(error, match=sentence):
        nettack(graph("random 33"), rng=generator(), **arguments)


def test_only_binary_features_are_flipped() -> None:
    data = graph("random 33")
    data.x = data.x / 2
    arguments = (data, 1, torch.arange(10), torch.tensor([1]))
    assert len(nettack(*arguments, generator(), degree_test=False)) == 1
    with pytest.raises(GraphError, match="flips only binary features, but x has values other than 0 and 1"):
        nettack(*arguments, generator(), features=True)


def test_isolated_target_has_no_influencers() -> None:
    data = graph("isolated node")
    with pytest.raises(GraphError, match="no allowed flip for target 4"):
        nettack(data, 1, torch.arange(5), torch.tensor([4]), generator(), direct=False, degree_test=False)


# --- the published targets -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "count"), [("cora", 83), ("citeseer", 63)])
def test_targets_equal_those_of_the_published_graphs(name: str, count: int) -> None:
    needed = (PUBLISHED_SPLITS[name], NETTACK_TARGETS[name], POISONED["nettack"][name][1.0])
    if MIRROR is None or not all(source.within(Path(MIRROR)).is_file() for source in needed):
        pytest.skip("ASGNN_MIRROR is not set or lacks the published targets")
    found = nettack_targets(load_dataset(name), published_split(name).test)
    assert found.numel() == count
    published = load_poisoned(name, "nettack", 1.0).targets
    assert published is not None
    assert torch.equal(found, published)


def test_targets_have_more_than_min_degree_neighbours() -> None:
    data = graph("star")
    assert nettack_targets(data, torch.arange(30)).tolist() == [0]
    assert nettack_targets(data, torch.tensor([5, 0, 3]), min_degree=0).tolist() == [0, 3, 5]
