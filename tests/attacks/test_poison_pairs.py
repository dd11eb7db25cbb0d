"""Poisoning on dense matrices: the meta-gradient of the edge list, and the rules of every attack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data

from asgnn.attacks import Start, Unrolled, UnrolledTraining, dice, meta_pgd_pairs
from asgnn.attacks.blocks import block_gradient
from asgnn.attacks.poison_pairs import STARTS, MatrixVictim, _Pairs
from asgnn.attacks.problem import LOSSES, make_problem
from asgnn.attacks.relaxation import project
from asgnn.attacks.unrolled import UnrolledMatrices
from asgnn.challenge.controls import frozen_twin, matrix_twin, on_matrices
from asgnn.challenge.suite import trained_on
from asgnn.errors import ConfigError
from asgnn.graphs import Gaussian, Split, planted_graph, prepare, random_split
from asgnn.graphs.dense import DenseAdjacency
from asgnn.graphs.keys import to_keys
from asgnn.models import ASGNN, GCN, NodeClassifier
from asgnn.models.spectral import shrink_spectrum
from asgnn.training import fit, fit_many, recipe
from tests.attacks.test_contract import check_rules, generator

N = 40
SHORT = UnrolledTraining(steps=6, dropout=False, redraw=False)
# the models whose training on matrices is attacked, with the settings that weigh pairs by their features
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gcn": ("gcn", {"hidden_channels": 5}),
    "gcn-jaccard": ("gcn-jaccard", {"hidden_channels": 5, "threshold": 0.2}),
    "sgc": ("sgc", {}),
    "appnp": ("appnp", {"hidden_channels": 5, "num_layers": 3}),
    "asgnn": ("asgnn", {"hidden_channels": 5, "num_layers": 3}),
    "asgnn, prior": ("asgnn", {"hidden_channels": 5, "num_layers": 3, "prior_neighbors": 3, "prior_weight": 0.2}),
    "asgnn-safe": ("asgnn-safe", {"hidden_channels": 5, "num_layers": 3}),
}


def graph(dtype: torch.dtype = torch.float64) -> tuple[Data, Split]:
    data = planted_graph(N, classes=3, degree=5, false_edges=0.1, features=Gaussian(6, signal=1.0))
    data.x = data.x.to(dtype)
    return data, random_split(data, 0, train=0.3, val=0.2)


def untrained(name: str, data: Data, split: Split) -> NodeClassifier:
    """A model in double precision, with the witness that its training would give it."""
    kind, settings = MODELS[name]
    of = recipe(kind, epochs=20, **settings)
    model = of.trial(data, split, 0).model
    assert isinstance(model, NodeClassifier)
    single = data.clone()
    single.x = data.x.float()
    model.testimony = fit(of.trial(single, split, 0).model, single, of.config, split=split).model.testimony
    return model.in_double()


@pytest.mark.parametrize("name", MODELS)
def test_the_meta_gradient_is_that_of_the_edge_list(name: str) -> None:
    data, split = graph()
    model = untrained(name, data, split)
    plain = Unrolled(frozen_twin(model) or model, split.train, data.y, SHORT)
    problem = make_problem(
        data, 1, torch.arange(N), generator(), nodes=split.test, surrogate=plain, loss="margin", device=None, state=None
    )
    u, v = torch.triu_indices(N, N, 1)
    of_pairs = torch.rand(u.numel(), generator=generator(1), dtype=torch.float64) * 0.1
    expected = block_gradient(problem, to_keys(torch.stack([u, v]), N), of_pairs)
    seen = on_matrices(model, data)
    assert seen is not None
    s = torch.zeros(2, N, N, dtype=torch.float64)
    s[:, u, v] = s[:, v, u] = of_pairs
    s.requires_grad_()
    pairs = _Pairs(problem.edges, seen, [(3, Start()), (9, Start())], 0, torch.device("cpu"))
    features, _ = prepare(data)
    trained = UnrolledMatrices(seen.stacked(2), split.train, data.y, SHORT).after(features, pairs.graphs(s, 0))
    value = sum(LOSSES["margin"](one[split.test], data.y[split.test]).mean() for one in seen.joined(trained))
    assert isinstance(value, Tensor)
    (gradient,) = torch.autograd.grad(value, s)
    for one in gradient + gradient.mT:
        torch.testing.assert_close(one[u, v], expected)


def test_the_projection_is_that_of_one_run() -> None:
    data, split = graph()
    seen = on_matrices(recipe("gcn").trial(data, split, 0).model.double(), data)
    assert seen is not None
    budgets = (3, 40, 700)
    pairs = _Pairs(torch.empty(2, 0, dtype=torch.int64), seen, [(b, Start()) for b in budgets], 0, torch.device("cpu"))
    upper = torch.randn(3, N, N, generator=generator(2), dtype=torch.float64).triu(1)
    found = pairs.projected(upper + upper.mT)
    u, v = torch.triu_indices(N, N, 1)
    for one, values, budget in zip(found, upper, budgets, strict=True):
        torch.testing.assert_close(one[u, v], project(values[u, v], budget), atol=1e-8, rtol=0)
        assert torch.equal(one, one.t())


def trainings(data: Data, split: Split, epochs: int = 20, calls: list[int] | None = None) -> Any:
    def train(graphs: Sequence[Tensor]) -> list[Tensor]:
        if calls is not None:
            calls.append(len(graphs))
        return trained_on(recipe("gcn", epochs=epochs), data, split, graphs)

    return train


def attacked(data: Data, split: Split, budgets: Sequence[int], **options: Any) -> list[list[Any]]:
    model = on_matrices(recipe("gcn").trial(data, split, 0).model, data)
    given = {"model": model, "trainings": trainings(data, split), "nodes": split.test, "steps": 8, "samples": 3}
    given |= {"known": torch.arange(N), "training": UnrolledTraining(steps=20)}
    return meta_pgd_pairs(data, budgets, split.train, generator(), **{**given, **options})


def test_flips_follow_the_rules_and_repeat() -> None:
    data, split = graph(torch.float32)
    calls: list[int] = []
    found = attacked(data, split, [4, 12], trainings=trainings(data, split, calls=calls), checks=2)
    assert calls == [2 * len(STARTS) * 3] * 2
    for budget, runs in zip((4, 12), found, strict=True):
        assert len(runs) == len(STARTS)
        for one, start in zip(runs, STARTS, strict=True):
            check_rules(data, one, budget)
            assert one.meta["loss"] == start.loss
    again = attacked(data, split, [4, 12], checks=2)
    assert all(
        torch.equal(a.flips, b.flips) for x, y in zip(found, again, strict=True) for a, b in zip(x, y, strict=True)
    )
    assert not torch.equal(found[1][0].flips, found[1][1].flips)


def test_flips_do_more_harm_than_others() -> None:
    data, split = graph(torch.float32)
    train = trainings(data, split, epochs=150)
    found = attacked(data, split, [12], steps=20, trainings=train, training=UnrolledTraining())[0]
    others = [dice(data, 12, generator(seed)) for seed in range(4)]
    right = [
        min(
            float((logits.argmax(1) == data.y)[split.test].float().mean())
            for logits in train([one.apply(data).edge_index for one in each])
        )
        for each in (found, others)
    ]
    assert right[0] < right[1] - 0.1


def test_more_flips_than_pairs_with_a_gradient() -> None:
    data, split = graph(torch.float32)
    (found,) = attacked(data, split, [300], steps=1, starts=[Start(share=0.01)])
    check_rules(data, found[0], 300)


@pytest.mark.parametrize("kind", ["gcn", "asgnn", "rung"])
def test_trainings_are_those_of_each_graph_alone(kind: str) -> None:
    """GCN as one batch with edge weights of their own, ASGNN and RUNG one after the other."""
    data, split = graph(torch.float32)
    graphs = [dice(data, 10, generator(seed)).apply(data).edge_index for seed in range(2)]
    of = recipe(kind, epochs=10)
    for edge_index, logits in zip(graphs, trained_on(of, data, split, graphs), strict=True):
        flipped = data.clone()
        flipped.edge_index = edge_index
        alone = fit_many([of.trial(flipped, split, 0)], flipped)[0].logits[0]
        torch.testing.assert_close(logits, alone, atol=1e-3, rtol=1e-3)


def test_twins() -> None:
    data, split = graph(torch.float32)
    for kind, twin in {"gnnguard": GCN, "softmedian": GCN, "rung": ASGNN}.items():
        model = recipe(kind).trial(data, split, 0).model
        found = matrix_twin(model)
        assert type(found) is twin
        assert frozen_twin(found) is None
        seen = on_matrices(model, data)
        assert seen is not None
        assert seen.shrinkages == (0.0,)
        assert [p.shape for p in found.parameters() if p.dim()] == [p.shape for p in model.parameters() if p.dim()]
        of = recipe(kind, witness_floor=0.2, witness_voice=0.5, epochs=2)
        informed = fit(of.trial(data, split, 0).model, data, split=split).model
        found = matrix_twin(informed)
        assert isinstance(found, twin)
        assert found.witness == informed.witness
        assert found.testimony is informed.testimony is not None
        seen = on_matrices(informed, data)
        assert seen is not None
        assert seen.present.max() < 1
    guarded = on_matrices(recipe("gnnguard", threshold=0.5).trial(data, split, 0).model, data)
    assert isinstance(guarded, MatrixVictim)
    unit = torch.nn.functional.normalize(data.x, dim=1)
    near = (unit @ unit.t() >= 0.5).float().fill_diagonal_(0)
    assert torch.equal(guarded.present, near)
    assert not guarded.absent.any()
    for kind in ("mlp", "gat", "elastic"):
        assert on_matrices(recipe(kind).trial(data, split, 0).model, data) is None


def test_steps_against_prognn_see_shrunk_matrices() -> None:
    """One shrinkage after the other, and the true model decides."""
    data, split = graph(torch.float32)
    of = recipe("prognn", epochs=4)
    seen = on_matrices(of.trial(data, split, 0).model, data)
    assert seen is not None
    edges = data.edge_index[:, data.edge_index[0] < data.edge_index[1]]
    pairs = _Pairs(edges, seen, [(3, Start())], 0, torch.device("cpu"))
    s = torch.rand(1, N, N, generator=generator()).triu(1) * 0.1
    s = s + s.mT
    for step, shrinkage in enumerate([*seen.shrinkages, *seen.shrinkages]):
        given = torch.zeros(N, N)
        given[edges[0], edges[1]] = given[edges[1], edges[0]] = 1
        flipped = given + s * (1 - 2 * given)
        left = shrink_spectrum(flipped, shrinkage, symmetric=True).clamp(min=0)
        torch.testing.assert_close(pairs.graphs(s, step).weight, DenseAdjacency.of(left, "sym").weight)
    calls: list[int] = []

    def train(graphs: Sequence[Tensor]) -> list[Tensor]:
        calls.append(len(graphs))
        return trained_on(of, data, split, graphs)

    found = attacked(data, split, [4, 8], model=seen, trainings=train, samples=1, checks=1, starts=STARTS[:1])
    assert calls == [2]
    for budget, (one,) in zip((4, 8), found, strict=True):
        check_rules(data, one, budget)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"budgets": []}, "at least one budget"),
        ({"starts": ()}, "one start"),
        ({"budgets": [0]}, "budget must be a whole number from 1"),
        ({"steps": 0}, "steps must be a whole number from 1"),
        ({"samples": 0}, "samples must be a whole number"),
        ({"checks": 0}, "checks must be a whole number"),
        ({"model": None}, "model must be a MatrixVictim"),
        ({"known": None}, "No attacked node has a label that the attacker knows"),
    ],
)
def test_bad_input_is_a_sentence(options: dict[str, Any], words: str) -> None:
    data, split = graph(torch.float32)
    budgets = options.pop("budgets", [3])
    with pytest.raises(ConfigError, match=words):
        attacked(data, split, budgets, **options)


def test_a_start_is_checked() -> None:
    with pytest.raises(ConfigError, match="share must be a number"):
        Start(share=0.0)
    with pytest.raises(ConfigError, match="loss must be one of"):
        Start(loss="none")  # type: ignore[arg-type]
