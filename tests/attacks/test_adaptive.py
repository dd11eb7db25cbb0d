"""Attacks through any model: brute force on tiny graphs, relaxed models, single nodes, features, no gradient."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from scripts.gradient_table import CASES, built, small_graph
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data

from asgnn.asmp import Scheme
from asgnn.attacks import (
    SurrogateGCN,
    evolve,
    feature_flips,
    fit_surrogate,
    grbcd,
    join_unlike,
    local_evasion,
    pgd,
    prbcd,
    random_flips,
    smoothed,
    straight_through,
    weakest_first,
)
from asgnn.attacks.blocks import block_gradient
from asgnn.attacks.copies import Copies
from asgnn.attacks.problem import Problem, make_problem, predict
from asgnn.attacks.relaxation import starting_point
from asgnn.attacks.weakest_first import _Search
from asgnn.errors import AsgnnError, ConfigError
from asgnn.graphs import FeaturePrior, Perturbation, Split, load_dataset, random_split, undirected
from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.features import Features
from asgnn.graphs.keys import to_keys
from asgnn.graphs.relaxed import Relaxation, clip, present, relaxation, relaxed, step
from asgnn.models import ASGNN, GCN, GCNJaccard, GNNGuard, SoftMedianGCN, witness
from asgnn.models.base import NodeClassifier
from asgnn.training import TrainConfig, fit, fit_many, recipe
from tests.attacks.test_contract import InterruptedCheckpoint, generator
from tests.attacks.test_gradient import blocks

F64 = torch.float64
EVERY = torch.arange(90)
Attack = Callable[..., Perturbation]


def tiny(n: int = 8) -> tuple[Data, Tensor]:
    """Two classes with weak features on two joined cycles, and all nodes as known ones."""
    y = (torch.arange(n) >= n // 2).long()
    pairs = [(i, j) for i, j in itertools.combinations(range(n), 2) if y[i] == y[j] and j - i in (1, 3)] + [(0, n - 1)]
    x = torch.randn(n, 4, generator=generator(1)) + F.one_hot(y, 4)
    return Data(x=x, edge_index=undirected(torch.tensor(pairs).t(), n), y=y), torch.arange(n)


def problem_of(
    data: Data, train: Tensor, model: Any, nodes: Tensor | None = None, loss: str = "tanh_margin"
) -> Problem:
    return make_problem(
        data,
        0,
        train,
        generator(),
        nodes=train if nodes is None else nodes,
        victim=model,
        loss=loss,  # type: ignore[arg-type]
        device=None,
        state=None,
    )


@cache
def gcn_of(words: bool = False) -> SurrogateGCN:
    """The GCN that most tests attack."""
    data, train = with_words() if words else blocks()
    return fit_surrogate(data, train, generator(), epochs=60)


def with_words() -> tuple[Data, Tensor]:
    """The stochastic block model with binary features."""
    data, train = blocks()
    data.x = (data.x > 0.6).float()
    return data, train


# --- brute force ----------------------------------------------------------------------------------------------------

SEARCHES: dict[str, Attack] = {
    "prbcd": lambda *a, **k: prbcd(*a, steps=30, fine_tune=10, restarts=2, start="random", **k),
    "prbcd, masked_ce": lambda *a, **k: prbcd(*a, steps=30, fine_tune=10, loss="masked_ce", **k),
    "grbcd": lambda *a, **k: grbcd(*a, steps=5, repair=30, **k),
    "pgd": lambda *a, **k: pgd(*a, steps=30, repair=20, **k),
    "evolve": lambda *a, **k: evolve(*a, steps=15, population=12, elite=3, **k),
    "join_unlike": lambda *a, **k: join_unlike(*a, steps=60, **k),
    "weakest_first": lambda *a, **k: weakest_first(*a, steps=1, **k),
    "weakest_first, answers": lambda *a, **k: weakest_first(*a, steps=1, guide="answers", **k),
}


# how many of the four errors that are possible an attack may miss: one heuristic proposes few kinds of flips, the other
# looks at one node after the other
MISSES = {"prbcd": 1, "prbcd, masked_ce": 1, "join_unlike": 2, "weakest_first": 2, "weakest_first, answers": 2}


def brute_force(data: Data, problem: Problem, budget: int) -> float:
    """The largest share of errors over all allowed sets of flips."""
    n = problem.num_nodes
    before = torch.bincount(data.edge_index[0], minlength=n)
    best = 0.0
    for chosen in itertools.combinations(itertools.combinations(range(n), 2), budget):
        flips = torch.tensor(chosen).t()
        after = torch.bincount(problem.flipped(flips).flatten(), minlength=n)
        if not bool(((before > 0) & (after == 0)).any()):
            best = max(best, problem.outcome(flips)[0])
    return best


@pytest.fixture(scope="module")
def tiny_case() -> tuple[Data, Tensor, Problem, float]:
    data, train = tiny()
    problem = problem_of(data, train, fit_surrogate(data, train, generator(), epochs=60))
    return data, train, problem, brute_force(data, problem, 2)


@pytest.mark.parametrize("name", SEARCHES)
def test_reaches_the_optimum_or_nearly_so_of_brute_force(
    name: str, tiny_case: tuple[Data, Tensor, Problem, float]
) -> None:
    data, train, problem, optimum = tiny_case
    clean = problem.outcome(torch.empty(2, 0, dtype=torch.int64))[0]
    assert optimum > clean + 0.2  # otherwise any attack would pass
    found = SEARCHES[name](data, 2, train, generator(1), nodes=train, victim=problem.victim)
    assert problem.outcome(found.flips)[0] >= optimum - MISSES.get(name, 0) / 8 - 1e-9


def test_restarts_keep_the_best_result() -> None:
    data, _ = blocks()
    model = gcn_of()
    problem = problem_of(data, EVERY, model)
    options: dict[str, Any] = {"nodes": EVERY, "victim": model, "steps": 4, "fine_tune": 1, "samples": 2}
    options |= {"block_size": 100, "repair": 0}
    rng = generator(3)
    single = [prbcd(data, 8, EVERY, rng, **options).flips for _ in range(4)]
    best = prbcd(data, 8, EVERY, generator(3), restarts=4, **options).flips
    outcomes = [problem.outcome(flips) for flips in single]
    assert len(set(outcomes)) > 1
    assert problem.outcome(best) == max(outcomes)
    assert any(torch.equal(best, flips) for flips in single)


@pytest.mark.parametrize("attack", [prbcd, grbcd, pgd])
def test_repair_makes_a_short_attack_stronger(attack: Attack) -> None:
    data, _ = blocks()
    model = gcn_of()
    problem = problem_of(data, EVERY, model)
    options: dict[str, Any] = {"nodes": EVERY, "victim": model, "steps": 1}
    plain, repaired = (
        problem.outcome(attack(data, 10, EVERY, generator(), repair=rounds, **options).flips) for rounds in (0, 15)
    )
    assert repaired > plain


@pytest.mark.parametrize("start", ["zero", "uniform", "random"])
def test_starting_points_meet_the_budget(start: str) -> None:
    s = starting_point(start, 100, 7, generator())  # type: ignore[arg-type]
    assert float(s.sum()) == pytest.approx(0 if start == "zero" else 7, abs=1e-6)
    assert 0 <= float(s.min()) <= float(s.max()) <= 1


# --- victim and surrogate -------------------------------------------------------------------------------------------


def trained(make: Callable[[], NodeClassifier], data: Data, train: Tensor) -> NodeClassifier:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = make()
    model.reset_parameters(generator())
    split = Split(train, torch.arange(18, 30), torch.arange(30, 90))
    fit(model, data, TrainConfig(epochs=50, lr=0.05), split=split)
    return model.eval()


MODELS: dict[str, Callable[[], NodeClassifier]] = {
    "softmedian": lambda: SoftMedianGCN(8, 16, 3),
    "asgnn": lambda: ASGNN(8, 16, 3, num_layers=4, dropout=0.5),
}


@pytest.mark.parametrize("name", MODELS)
def test_white_box_is_stronger_than_transfer(name: str) -> None:
    """The victim decides in both cases; its own relaxed gradient is the better guide than that of another model."""
    data, train = blocks()
    model = trained(MODELS[name], data, train)
    other = fit_surrogate(data, train, generator(5), epochs=60)
    nodes = torch.arange(30, 90)
    problem = problem_of(data, EVERY, model, nodes)
    options: dict[str, Any] = {"nodes": nodes, "steps": 12, "fine_tune": 4}
    white, transfer = (
        problem.outcome(prbcd(data, 10, EVERY, generator(), **models, **options).flips)
        for models in (
            {"victim": model, "surrogate": straight_through(model), "repair": 25},
            {"surrogate": other, "repair": 0},
        )
    )
    random = problem.outcome(random_flips(data, 10, generator()).flips)
    assert white[0] >= transfer[0] >= random[0]
    assert white[0] > random[0] + 0.05


def test_the_victim_decides() -> None:
    """With a surrogate whose gradient is noise, the victim's predictions still choose."""
    data, _ = blocks()
    model = gcn_of()
    problem = problem_of(data, EVERY, model)

    def noise(x: Any, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        probe = torch.randn(edge_weight.numel(), generator=generator(1))
        return 1e-3 * (edge_weight * probe).sum() * torch.ones(90, 3) * torch.tensor([1.0, 0.0, -1.0])

    few, many = (
        problem.outcome(
            prbcd(
                data, 10, EVERY, generator(), nodes=EVERY, surrogate=noise, victim=model,
                steps=5, samples=1, repair=rounds,
            ).flips
        )
        for rounds in (0, 30)
    )  # fmt: skip
    assert many[0] > few[0] + 0.05


def by_answers(*args: Any, **options: Any) -> Perturbation:
    return weakest_first(*args, guide="answers", **options)


@pytest.mark.parametrize("attack", [evolve, join_unlike, by_answers])
def test_needs_only_predicted_classes(attack: Attack) -> None:
    """A victim that returns one-hot rows, and raises if a gradient is asked for."""
    data, train = blocks()
    model = fit_surrogate(data, train, generator(), epochs=60)
    calls = []

    def classes(x: Any, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        assert not torch.is_grad_enabled()
        calls.append(1)
        return F.one_hot(model(x, edge_index, edge_weight).argmax(1), 3).float()

    problem = problem_of(data, EVERY, model)
    options: dict[str, Any] = {"population": 10, "elite": 3} if attack is evolve else {}
    found = attack(data, 10, EVERY, generator(), nodes=EVERY, victim=classes, steps=12, **options)
    random = max(problem.outcome(random_flips(data, 10, generator(seed), kind="flip").flips)[0] for seed in range(20))
    assert problem.outcome(found.flips)[0] > random
    assert calls


@pytest.fixture(scope="module")
def cora_case() -> tuple[Data, Problem, float]:
    """Cora with all labels known, a GCN trained on it, and the share of errors from 10 % of flips by PR-BCD."""
    data = load_dataset("cora")
    model = fit_surrogate(data, random_split(data, 0).train, generator(), epochs=60)
    problem = problem_of(data, torch.arange(2485), model)
    options: dict[str, Any] = {"steps": 60, "fine_tune": 15, "repair": 20, "block_size": 60_000}
    found = prbcd(data, 506, problem.train, generator(), nodes=problem.nodes, victim=model, **options)
    return data, problem, problem.outcome(found.flips)[0]


@pytest.mark.parametrize("guide", ["gradient", "answers"])
def test_node_by_node_is_stronger_than_the_whole_graph_at_once(
    guide: str, cora_case: tuple[Data, Problem, float]
) -> None:
    data, problem, others = cora_case
    found = weakest_first(
        data,
        506,
        problem.train,
        generator(),
        nodes=problem.nodes,
        victim=problem.victim,
        guide=guide,  # type: ignore[arg-type]
        steps=8,
    )
    assert problem.outcome(found.flips)[0] > others + 0.01


def test_flips_that_no_fallen_node_needs_are_taken_back(cora_case: tuple[Data, Problem, float]) -> None:
    data, problem, _ = cora_case
    search = _Search(problem, "answers", 5, 300, 12, 4, 250_000, generator())
    useful = search.extended(torch.empty(0, dtype=torch.int64), 40)
    idle = to_keys(random_flips(data, 100, generator(), kind="flip").flips, 2485)
    idle = idle[~torch.isin(idle, useful)]
    keys = torch.cat([useful, idle])
    left = search.needed(keys)
    assert set(left.tolist()) < set(keys.tolist())
    assert left.numel() < useful.numel() + idle.numel() / 2
    fallen, still = (search.down(search.margins(search.scores(each))) for each in (keys, left))
    assert still >= fallen
    upright = replace(problem, nodes=torch.tensor(sorted(set(range(2485)) - fallen)))
    assert not replace(search, problem=upright).needed(keys).numel()


def test_start_is_improved_or_kept() -> None:
    data, train = blocks()
    model = fit_surrogate(data, train, generator(), epochs=60)
    problem = problem_of(data, EVERY, model)
    first = grbcd(data, 10, EVERY, generator(), nodes=EVERY, victim=model, steps=4)
    value = problem.outcome(first.flips)
    same = join_unlike(data, 10, EVERY, generator(), nodes=EVERY, victim=model, steps=0, start=first)
    assert set(to_keys(same.flips, 90).tolist()) == set(to_keys(first.flips, 90).tolist())
    for found in (
        join_unlike(data, 10, EVERY, generator(), nodes=EVERY, victim=model, steps=20, start=first),
        evolve(data, 10, EVERY, generator(), nodes=EVERY, victim=model, steps=4, population=6, elite=2, start=[first]),
    ):
        assert problem.outcome(found.flips) > value
    more = weakest_first(data, 12, EVERY, generator(), nodes=EVERY, victim=model, steps=4, start=first)
    assert problem.outcome(more.flips)[0] > value[0]
    assert more.meta["start"] == "grbcd"
    with pytest.raises(ConfigError, match="start needs edge flips of this graph with the same budget of 9 flips"):
        join_unlike(data, 9, EVERY, generator(), nodes=EVERY, victim=model, start=first)
    with pytest.raises(ConfigError, match="start needs at most 9 edge flips of this graph, and nothing else"):
        weakest_first(data, 9, EVERY, generator(), nodes=EVERY, victim=model, start=first)


def test_batch_is_refused_where_copies_interact() -> None:
    data, train = blocks()

    def mixing(x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        return (x - x.mean(0) * x.size(0))[:, :3]

    with pytest.raises(ConfigError, match="batch above 1 needs a victim"):
        evolve(data, 3, train, generator(), nodes=EVERY, victim=mixing, batch=2)


@pytest.mark.parametrize("words", [False, True])
def test_copies_of_a_model_that_joins_nodes_by_features(words: bool) -> None:
    """What prior and witness find in the features holds for each copy; a copy is not its twin's neighbour."""
    data, _ = with_words() if words else blocks()
    if words:  # few of them, so that they are stored sparse
        data.x[:, 5:] *= torch.rand(data.x[:, 5:].shape, generator=generator(2)) < 0.05
    informed = {"prior_neighbors": 3, "prior_weight": 0.4, "witness_floor": 0.3, "witness_voice": 0.5}
    chosen = recipe("asgnn", **informed, witness_models=1, witness_views=2, epochs=3, hidden_channels=8, num_layers=3)
    model = fit_many([chosen.trial(data, random_split(data, 0, train=0.3, val=0.2), 0)], data)[0].model
    problem = problem_of(data, EVERY, model)
    flips = [torch.tensor([[0, 1], [40, 50]]), torch.tensor([[2], [3]]), torch.tensor([[10, 11, 12], [80, 81, 82]])]
    together = Copies.of(problem, 3, data.x).logits(flips)
    for one, scores in zip(flips, together, strict=True):
        alone = predict(model, problem.inputs, problem.flipped(one))
        torch.testing.assert_close(scores, alone, rtol=1e-4, atol=1e-5)


# --- relaxed clips and thresholds -----------------------------------------------------------------------------------


def test_outside_of_relaxed_the_functions_are_exact() -> None:
    x = torch.linspace(-2, 2, 41, dtype=F64).requires_grad_()
    for value, truth in ((clip(x, 0, 1), x.clamp(0, 1)), (clip(x, low=-1), x.clamp(min=-1))):
        assert torch.equal(value, truth)
        assert torch.equal(*(torch.autograd.grad(one.sum(), x)[0] for one in (value, truth)))
    assert torch.equal(step(x, 0.5), (x >= 0.5).double())
    assert torch.equal(present(x), (x > 0).double())
    assert relaxation() is None


def test_straight_through_values_are_exact_and_slopes_fall_to_zero() -> None:
    x = torch.tensor([-3.0, -1.0, -0.25, 0.5, 1.25, 4.0], dtype=F64).requires_grad_()
    with relaxed(Relaxation(reach=2.0)):
        value, gate = clip(x, 0, 1), step(x, 0.5)
    assert torch.equal(value, x.clamp(0, 1))
    assert torch.equal(gate, (x >= 0.5).double())
    assert torch.autograd.grad(value.sum(), x)[0].tolist() == [0, 0.5, 0.875, 1, 0.875, 0]
    assert torch.autograd.grad(gate.sum(), x)[0].tolist() == [0, 0.125, 0.3125, 0.5, 0.3125, 0]
    with relaxed(Relaxation(reach=float("inf"))):
        assert torch.autograd.grad(clip(x, 0, 1).sum(), x)[0].tolist() == [1] * 6


@pytest.mark.parametrize("unit", [1.0, 0.25])
def test_smooth_functions_pass_gradcheck_and_converge(unit: float) -> None:
    x = torch.linspace(-1.3, 2.2, 30, dtype=F64).requires_grad_()
    with relaxed(Relaxation(0.2)):
        assert torch.autograd.gradcheck(lambda z: clip(z, 0, 1, unit), (x,))
        assert torch.autograd.gradcheck(lambda z: clip(z, low=0, unit=unit), (x,))
        assert torch.autograd.gradcheck(lambda z: step(z, 0.4, unit), (x,))
    with relaxed(Relaxation(1e-6)):
        torch.testing.assert_close(clip(x, 0, 1, unit), x.clamp(0, 1), rtol=0, atol=1e-6)
        torch.testing.assert_close(step(x, 0.4, unit), (x >= 0.4).double())
    for bad in ({"temperature": -1.0}, {"reach": 0.0}):
        with pytest.raises(ConfigError, match="must be a number in"):
            Relaxation(**bad)


def with_absent_pairs() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x, the edges of a graph, and the same edges with all other pairs, of weight 0."""
    x, edge_index, _ = small_graph()
    n = x.size(0)
    dense = torch.zeros(n, n, dtype=F64)
    dense[edge_index[0], edge_index[1]] = 1
    every = (~torch.eye(n, dtype=torch.bool)).nonzero().t()
    return x, edge_index, every, dense[every[0], every[1]]


RELAXED = [name for name in CASES if "dense" not in name and name not in ("gcn-svd", "mlp")]


@pytest.mark.parametrize("name", RELAXED)
def test_straight_through_equals_the_model_on_unweighted_graphs(name: str) -> None:
    """Also with all absent pairs as edges of weight 0; and the relaxation leaves nothing behind."""
    model = built(name)
    x, edge_index, every, weight = with_absent_pairs()
    ones = torch.ones(edge_index.size(1), dtype=F64)
    with torch.no_grad():
        exact = model(x, edge_index, ones)
        smooth = smoothed(model, 0.5)(x, edge_index, ones)
        torch.testing.assert_close(straight_through(model)(x, edge_index, ones), exact)
        torch.testing.assert_close(straight_through(model)(x, every, weight), exact)
        assert torch.equal(model(x, edge_index, ones), exact)
        assert relaxation() is None
        torch.testing.assert_close(smoothed(model, 1e-7)(x, edge_index, ones), exact, rtol=1e-4, atol=1e-4)
    # equal up to rounding: relaxed models use the edge list, others may use compiled loops
    assert torch.allclose(smooth, exact, rtol=1e-10, atol=1e-12) == (name not in SMOOTH)


class Opinion(nn.Module):
    """Stands for the trained models of a witness."""

    def forward(self, features: Features, adj: Adjacency) -> Tensor:
        return features.to_dense()[:, :3].log_softmax(1)


@pytest.mark.parametrize("kind", [ASGNN, GNNGuard])
def test_straight_through_equals_a_model_with_prior_and_witness(kind: type[NodeClassifier]) -> None:
    """Edges that the prior adds are always present; the witness changes weights, not presence."""
    x, edge_index, every, weight = with_absent_pairs()
    prior = FeaturePrior(0.1, neighbors=2, metric="cosine", edges=0.6)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = kind(7, 6, 3, prior=prior, witness=witness.Witness()).double().eval()
    model.testimony = witness.Testimony(Opinion())
    with torch.no_grad():
        exact = model(x, edge_index, torch.ones(edge_index.size(1), dtype=F64))
        torch.testing.assert_close(straight_through(model)(x, every, weight), exact)


# the models that contain a clip or a threshold
SMOOTH = ("gnnguard", "rung", "asgnn", "asgnn, exact", "asgnn, paper", "asgnn, joint", "asgnn, unit rows")


@pytest.mark.parametrize("name", SMOOTH)
def test_smoothed_gradient_equals_central_differences(name: str) -> None:
    """Also at weights 0 and 1, where the exact models have a kink."""
    x, _, every, weight = with_absent_pairs()
    low = every[0] < every[1]
    pairs, weight = every[:, low], weight[low]
    both = torch.cat([pairs, pairs.flip(0)], dim=1)
    victim = smoothed(built(name), 0.3)
    probe = torch.randn(14, 3, generator=generator(), dtype=F64)

    def value(w: Tensor) -> Tensor:
        return (victim(x, both, torch.cat([w, w])) * probe).sum()

    weight = (0.05 + 0.9 * weight).requires_grad_()
    (gradient,) = torch.autograd.grad(value(weight), weight)
    shown = torch.randperm(weight.numel(), generator=generator())[:12]
    for at in shown.tolist():
        change = torch.zeros_like(weight)
        change[at] = 1e-6
        with torch.no_grad():
            difference = (value(weight + change) - value(weight - change)) / 2e-6
        assert float(gradient[at]) == pytest.approx(float(difference), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(
    ("name", "prior"),
    [("gnnguard", None), ("asgnn, exact", FeaturePrior(0.1, neighbors=2, metric="cosine"))],
)
def test_relaxed_gradient_foretells_what_a_new_edge_does(name: str, prior: FeaturePrior | None) -> None:
    """It correlates better with the change of the loss by each new edge than the exact gradient does."""
    data, train = blocks()
    make: dict[str, Callable[[], NodeClassifier]] = {
        "gnnguard": lambda: GNNGuard(8, 16, 3, prior=prior),
        "asgnn, exact": lambda: ASGNN(8, 16, 3, num_layers=4, scheme=Scheme(structure="exact"), prior=prior),
    }
    model = trained(make[name], data, train)
    pairs = torch.triu_indices(90, 90, 1)
    keys = to_keys(pairs, 90)
    low = data.edge_index[:, data.edge_index[0] < data.edge_index[1]]
    keys = keys[~torch.isin(keys, to_keys(low, 90))][::61].contiguous()
    scores = []
    for surrogate in (None, straight_through(model)):
        problem = make_problem(
            data, 0, EVERY, generator(), nodes=EVERY, victim=model, surrogate=surrogate,
            loss="tanh_margin", device=None, state=None,
        )  # fmt: skip
        gradient = block_gradient(problem, keys, torch.zeros(keys.numel()))
        clean = problem.value_after(torch.empty(2, 0, dtype=torch.int64))
        change = torch.tensor([problem.value_after(torch.stack([key // 90, key % 90]).view(2, 1)) for key in keys])
        scores.append(float(torch.corrcoef(torch.stack([gradient.double(), change.double() - clean]))[0, 1]))
    assert scores[1] > 0.6
    assert scores[1] > scores[0]


@pytest.mark.parametrize(
    "make",
    [
        lambda: GCNJaccard(8, 4, 3, threshold=0.3),
        lambda: GNNGuard(8, 4, 3, threshold=0.3),
        lambda: GCN(8, 4, 3, prior=FeaturePrior(0.3, neighbors=2)),
    ],
    ids=["gcn-jaccard", "gnnguard", "prior"],
)
def test_thresholds_of_similarity_pass_a_gradient_in_the_features(make: Callable[[], NodeClassifier]) -> None:
    """The values are exact; the gradient is that of the exact model and what the threshold adds to it."""
    data, _ = with_words()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = make().eval()
    weight = torch.ones(data.num_edges)
    found = []
    for victim in (model, straight_through(model)):
        x = data.x.clone().requires_grad_()
        logits = victim(x, data.edge_index, weight)
        found.append((logits.detach(), torch.autograd.grad(logits.square().sum(), x)[0]))
    (value, exact), (same, through) = found
    torch.testing.assert_close(same, value)
    assert float((through - exact).abs().max()) > 0.05 * float(exact.abs().max())


def test_relaxed_asmp_needs_the_edge_list() -> None:
    x, edge_index, weight = small_graph()
    with pytest.raises(ConfigError, match='Clips can be relaxed with backend="edges" only'):
        straight_through(built("asgnn, dense"))(x, edge_index, weight)


# --- single nodes ---------------------------------------------------------------------------------------------------


def test_local_evasion_against_brute_force() -> None:
    data, train = tiny()
    model = fit_surrogate(data, train, generator(), epochs=60)
    problem = problem_of(data, train, model)
    degree = torch.bincount(data.edge_index[0], minlength=8)
    shares = [0.5, 1.0]
    found = local_evasion(
        data, shares, train, generator(), targets=train, victim=model, candidates=8, pgd_steps=8, batch=3
    )
    assert torch.equal(found.targets, train)
    margin = predict(model, problem.inputs, problem.edges)
    before = margin.argmax(1) == data.y
    fell = total = 0
    for target, (number, share) in itertools.product(range(8), enumerate(shares)):
        budget = int(found.budgets[target, number])
        assert budget == -(-int(degree[target]) * share // 1)
        flips = found.flips[target][number]
        assert flips.size(1) <= budget
        assert bool((flips == target).any(0).all())
        wrong = int(predict(model, problem.inputs, problem.flipped(flips))[target].argmax()) != int(data.y[target])
        assert bool(found.fallen[target, number]) == (wrong or not bool(before[target]))
        possible = not bool(before[target])
        others = [(min(target, v), max(target, v)) for v in range(8) if v != target]
        for size in range(1, budget + 1):
            for chosen in itertools.combinations(others, size):
                pairs = torch.tensor(chosen).t()
                after = torch.bincount(problem.flipped(pairs).flatten(), minlength=8)
                if not bool(((degree > 0) & (after == 0)).any()):
                    scores = predict(model, problem.inputs, problem.flipped(pairs))[target]
                    possible |= int(scores.argmax()) != int(data.y[target])
        fell, total = fell + bool(found.fallen[target, number]), total + possible
        assert possible or not bool(found.fallen[target, number])
    assert fell >= total - 1
    assert total > 4
    assert found.accuracy == [float(1 - found.fallen[:, at].double().mean()) for at in range(2)]


def test_local_evasion_without_a_gradient_and_in_batches() -> None:
    data, train = blocks()
    model = fit_surrogate(data, train, generator(), epochs=60)
    targets = torch.arange(40, 52)
    alone, together = (
        local_evasion(data, [1.0], EVERY, generator(), targets=targets, victim=model, draws=0, batch=batch)
        for batch in (1, 5)
    )
    assert torch.equal(alone.fallen, together.fallen)
    torch.testing.assert_close(alone.margins, together.margins, rtol=1e-4, atol=1e-4)

    def classes(x: Any, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        with torch.no_grad():
            return F.one_hot(model(x, edge_index, edge_weight).argmax(1), 3).float()

    blind = local_evasion(
        data, [2.0], EVERY, generator(), targets=targets, victim=classes, candidates=0, draws=10, batch=4
    )
    assert 0 < blind.accuracy[0] < 1 - float((blind.clean < 0).double().mean())
    assert blind.perturbation(0, 0).targets is not None


def test_local_evasion_checks_its_settings() -> None:
    data, train = tiny()
    for options, sentence in (
        ({"shares": []}, "At least one share"),
        ({"shares": [0.0]}, "A share of the degree must be a number in"),
        ({"candidates": 0, "draws": 0}, "candidates and draws are both 0"),
        ({"samples": 0}, "samples must be a whole number from 1"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            local_evasion(data, **({"shares": [1.0]} | options), train=train, rng=generator(), targets=train)  # type: ignore[arg-type]


# --- features -------------------------------------------------------------------------------------------------------


def test_feature_flips_keep_the_budget_and_harm() -> None:
    data, _ = with_words()
    model = gcn_of(words=True)
    rng = generator()
    found = feature_flips(data, 30, EVERY, rng, nodes=EVERY, victim=model)
    assert len(found) == 30
    assert found.flips.size(1) == 0
    poisoned = found.apply(data)
    assert int((poisoned.x != data.x).sum()) == 30
    edges = problem_of(data, EVERY, model).edges

    def errors(x: Tensor) -> float:
        return float((predict(model, x, edges).argmax(1) != data.y).double().mean())

    drawn = torch.randperm(data.x.numel(), generator=generator())[:30]
    random = data.x.clone()
    random.view(-1)[drawn] = 1 - random.view(-1)[drawn]
    assert errors(poisoned.x) > max(errors(random), errors(data.x)) + 0.2
    few = feature_flips(data, 8, EVERY, generator(), nodes=EVERY, victim=model, changed=torch.tensor([3, 4]))
    assert few.feature_flips is not None
    assert set(few.feature_flips[0].tolist()) <= {3, 4}


def test_first_feature_flip_is_the_best_of_brute_force() -> None:
    data, _ = with_words()
    model = gcn_of(words=True)
    problem = problem_of(data, EVERY, model, torch.tensor([7]))
    (flip,) = feature_flips(data, 1, EVERY, generator(), nodes=torch.tensor([7]), victim=model).feature_flips.t()  # type: ignore[union-attr]
    values = {}
    for entry in itertools.product(range(90), range(8)):
        x = data.x.clone()
        x[entry] = 1 - x[entry]
        values[entry] = float(problem.value(predict(model, x, problem.edges)))
    ranked = sorted(values, key=lambda entry: -values[entry])
    assert tuple(flip.tolist()) in ranked[:5]


def test_feature_flips_refuse_what_they_cannot_do() -> None:
    data, train = with_words()
    for change, options, sentence in (
        (lambda d: d.x.mul_(0.5), {}, "Only binary features can be flipped"),
        (lambda d: d, {"budget": 721}, "only 720 features can be flipped"),
        (lambda d: d, {"budget": -1}, "budget must be a whole number from 0"),
        (lambda d: d, {"steps": 0}, "steps must be a whole number from 1"),
    ):
        fresh = data.clone()
        change(fresh)
        with pytest.raises(AsgnnError, match=sentence):
            feature_flips(fresh, **({"budget": 3} | options), train=train, rng=generator(), victim=gcn_of(words=True))  # type: ignore[arg-type]


def test_feature_flips_resume() -> None:
    data, train = with_words()
    model = gcn_of(words=True)
    whole = feature_flips(data, 9, train, generator(5), steps=6, victim=model)
    checkpoint = InterruptedCheckpoint(3)
    with pytest.raises(KeyboardInterrupt):
        feature_flips(data, 9, train, generator(5), steps=6, victim=model, checkpoint=checkpoint)
    resumed = feature_flips(data, 9, train, generator(9), steps=6, victim=model, checkpoint=checkpoint)
    assert whole.feature_flips is not None
    assert resumed.feature_flips is not None
    assert torch.equal(whole.feature_flips, resumed.feature_flips)
