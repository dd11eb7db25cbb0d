"""The witness: its weights by definition, what it may not see, what trials share, and where it stands aside."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch.nn import functional as F
from torch_geometric.data import Data

from asgnn.errors import ConfigError, FeaturesWarning
from asgnn.graphs import undirected
from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.features import Features
from asgnn.models import ASGNN, GCN
from asgnn.models.witness import Witness
from asgnn.training import TrainConfig, Trial, fit, fit_many, predict, recipe
from asgnn.training import witness as module
from tests.training.problem import CLASSES, NODES, WORDS, graph, split_of

SHORT = TrainConfig(epochs=5)


@pytest.fixture(autouse=True)
def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RECIPES", {"asgnn": recipe("asgnn", epochs=20, hidden_channels=8)})
    module._KEPT.clear()


def asgnn(floor: float = 0.2, **more: int) -> ASGNN:
    return ASGNN(WORDS, 8, CLASSES, witness=Witness(floor, neighbors=5, models=2, **more)).double()


def other_edges(data: Data) -> Data:
    out = copy.copy(data)
    row = torch.arange(NODES)
    out.edge_index = undirected(torch.stack([row[:-5], row[5:]]), NODES)
    return out


@pytest.mark.parametrize("floor", [0.0, 0.3])
def test_weights_are_their_definition(floor: float) -> None:
    data = graph()
    model = fit(asgnn(floor), data, SHORT, split=split_of(0)).model
    features, adj = Features.of(data.x), Adjacency.of(data.edge_index, NODES)
    p = model.testimony.probabilities(features, adj)
    torch.testing.assert_close(p.sum(1), torch.ones(NODES, dtype=torch.float64))
    assert float(p.std(0).mean()) > 0.01  # it has learned something, so that the weights differ
    expected = floor + (1 - floor) * (p[adj.row] * p[adj.col]).sum(1).sqrt()
    expected[adj.loops] = 1
    found = model.informed(features, adj)
    torch.testing.assert_close(found.weight.double(), expected, rtol=1e-6, atol=1e-6)
    assert found.symmetric
    assert torch.equal(found.weight, found.weight[found.reverse])
    torch.testing.assert_close(model(data.x, data.edge_index), model.logits(features, found, None)[0])


def test_no_edge_changes_what_it_says() -> None:
    data = graph()
    said = []
    for given in (data, other_edges(data)):
        module._KEPT.clear()
        model = fit(asgnn(), given, SHORT, split=split_of(0)).model
        said.append(model.testimony.probabilities(Features.of(given.x), Adjacency.of(given.edge_index, NODES)).clone())
    assert torch.equal(*said)


def test_trials_share_a_witness_only_where_it_is_the_same() -> None:
    data = graph()
    models = [asgnn(), asgnn(0.5), asgnn(seed=1), asgnn(), GCN(WORDS, 8, CLASSES, witness=Witness(0.2, 5, 2)).double()]
    splits = [split_of(0), split_of(0), split_of(0), split_of(1), split_of(0)]
    fit_many([Trial(m, SHORT, s) for m, s in zip(models, splits, strict=True)], data)
    said = [model.testimony for model in models]
    assert said[0] is said[1] is said[4]
    assert len({id(one) for one in said}) == 3
    # kept for the next call, on other edges too
    again = asgnn()
    fit(again, other_edges(data), SHORT, split=split_of(0))
    assert again.testimony is said[0]
    changed = copy.copy(data)
    changed.x = data.x.clone()
    changed.x[0, 0] = 1 - changed.x[0, 0]
    fit(again, changed, SHORT, split=split_of(0))
    assert again.testimony is not said[0]


def test_every_view_of_the_features_has_models_of_its_own() -> None:
    data = graph()
    said = {}
    for views in (1, 2, 3):
        model = fit(asgnn(views=views), data, SHORT, split=split_of(0)).model
        members = model.testimony.model.members
        metrics = ["auto", "latent", "idf"][:views]
        assert [(one.prior.metric, one.stacked) for one in members] == [(metric, 2) for metric in metrics]
        said[views] = model.testimony.probabilities(Features.of(data.x), Adjacency.of(data.edge_index, NODES))
    assert not torch.allclose(said[1], said[2])
    assert not torch.allclose(said[2], said[3])
    dense = copy.copy(data)
    dense.x = torch.randn(NODES, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    few = Witness(0.2, neighbors=5, models=2, views=3)
    model = fit(ASGNN(4, 8, CLASSES, witness=few).double(), dense, SHORT, split=split_of(0)).model
    assert [one.prior.metric for one in model.testimony.model.members] == ["auto"]


def test_a_batch_gives_each_trial_its_own_result() -> None:
    data = graph()

    def trials() -> list[Trial]:
        return [
            recipe("asgnn", witness_floor=0.2, witness_neighbors=5, epochs=5, lr=lr).trial(data, split_of(0), seed)
            for seed, lr in enumerate((0.01, 0.05))
        ]

    for one in (together := trials()) + (alone := trials()):
        one.model.double()
    fits = fit_many(together, data)
    assert fits[0].batch == 2
    for one, many in zip(alone, fits, strict=True):
        torch.testing.assert_close(fit_many([one], data)[0].logits[0], many.logits[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["edge_weight", "x"])
def test_derivative(name: str) -> None:
    """An attacker sees through the witness: the derivative in weights and features is that of finite differences."""
    data = graph()
    model = fit(asgnn(), data, SHORT, split=split_of(0)).model
    x = data.x + 0.3 * torch.rand(data.x.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    inputs = {"x": x, "edge_weight": torch.full((data.edge_index.size(1),), 0.7, dtype=torch.float64)}

    def total(value: torch.Tensor) -> torch.Tensor:
        given = {**inputs, name: value}
        out = model(given["x"], data.edge_index, given["edge_weight"])
        return (out * torch.arange(out.numel()).view_as(out).cos()).sum()

    value = inputs[name].requires_grad_()
    (grad,) = torch.autograd.grad(total(value), value)
    at = torch.rand(value.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64) - 0.5
    if name == "edge_weight":
        row, col = data.edge_index
        at = at[(torch.minimum(row, col) * 31 + torch.maximum(row, col)) % at.numel()]
    step = 1e-6
    with torch.no_grad():
        numeric = (total(value + step * at) - total(value - step * at)) / (2 * step)
    torch.testing.assert_close(numeric, (grad * at).sum(), rtol=1e-5, atol=1e-7)
    assert float(numeric.abs()) > 1e-3


def test_stands_aside_without_features() -> None:
    data = graph()
    data.x = torch.eye(NODES, dtype=torch.float64)
    with_it, without = (
        recipe("asgnn", witness_floor=floor, epochs=3).trial(data, split_of(0), 0) for floor in (0.1, 1.0)
    )
    for trial in (with_it, without):
        trial.model.double()
    with pytest.warns(FeaturesWarning, match="The witness stands aside"):
        first = fit_many([with_it], data)[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        second = fit_many([without], data)[0]
    assert torch.equal(first.logits[0], second.logits[0])


def test_a_model_that_was_not_trained_says_so() -> None:
    with pytest.raises(ConfigError, match="train the model with fit"):
        predict(asgnn(), graph())


WRONG = [{"floor": 1.5}, {"neighbors": 0}, {"models": 0}, {"views": 4}, {"seed": -1}, {"voice": -1.0}, {"bound": -0.1}]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_wrong_settings(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Witness(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="witness must be a Witness"):
        ASGNN(3, 4, 2, witness=0.2)


def speaking(**settings: float) -> ASGNN:
    data = graph()
    model = ASGNN(WORDS, 8, CLASSES, witness=Witness(0.2, neighbors=5, models=2, **settings)).double()
    fit(model, data, SHORT, split=split_of(0))
    return model


def test_what_it_says_is_added_in_evaluation_mode() -> None:
    data = graph()
    model = speaking(voice=0.5)
    features, adj = Features.of(data.x), Adjacency.of(data.edge_index, NODES)
    p = model.testimony.probabilities(features, adj)
    alone = model.logits(features, model.informed(features, adj), None)[0]
    torch.testing.assert_close(model(data.x, data.edge_index), alone.log_softmax(1) + 0.5 * p.log())
    model.train()
    torch.testing.assert_close(model.joined(alone, features, adj), alone)


def test_safe_nodes_keep_the_answer_of_the_witness() -> None:
    """Whatever the model says of them, on whatever graph; the others can be changed, so the bound is exact."""
    data = graph()
    features, adj = Features.of(data.x), Adjacency.of(data.edge_index, NODES)
    p = speaking(voice=1.0).testimony.probabilities(features, adj)
    lead = (p.log().topk(2).values @ torch.tensor([1.0, -1.0], dtype=p.dtype)).sort().values
    model = speaking(voice=1.0, bound=float(lead[NODES // 2 - 1 : NODES // 2 + 1].mean()))
    witness = model.witness
    safe, wants = witness.safe(p), p.argmax(1)
    assert 0 < int(safe.sum()) < NODES
    worst = 50 * F.one_hot(p.topk(2).indices[:, 1], CLASSES).double()  # all for the second best class
    changed = model.joined(worst, features, adj).argmax(1) != wants
    assert torch.equal(changed, ~safe)
    for seed in range(5):
        wild = 20 * torch.randn(NODES, CLASSES, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        assert torch.equal(witness.joined(wild, p).argmax(1)[safe], wants[safe])
    assert not Witness(voice=1.0).safe(p).any()


def test_a_bound_needs_a_voice() -> None:
    with pytest.raises(ConfigError, match="needs a witness that speaks; set its voice above 0"):
        Witness(bound=1.0)
