"""Training with mini-batches: what a step sees, against training by hand and on the whole graph."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import GCN as PyGGCN

from asgnn.errors import AsgnnError, ConfigError
from asgnn.graphs import FeaturePrior, partition_nodes, prepare
from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.features import Features
from asgnn.models import ASGNN, GCN, Witness
from asgnn.training import Epoch, TrainConfig, Trial, fit, fit_many, recipe
from asgnn.training.clusters import Clusters
from asgnn.training.fit import _home
from tests.training.problem import CLASSES, MODELS, NODES, WORDS, four, graph, split_of, trial
from tests.training.test_batches import assert_close, assert_equal
from tests.training.test_stopping import stop_by_hand

ORDER = {"parts": 5, "parts_per_step": 2, "partition": "order"}
IN_PARTS = [name for name in MODELS if not MODELS[name](0).whole_graph]


def draws(parts: int, parts_per_step: int, epochs: int) -> list[list[Tensor]]:
    """The nodes of every step of the first epochs on the test graph, by order."""
    clusters = Clusters(*prepare(graph()), parts, parts_per_step, "order")
    rng = torch.Generator().manual_seed(0)
    return [list(clusters.draw(rng)) for _ in range(epochs)]


# --- what a step sees ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("parts", "parts_per_step"), [(1, 1), (4, 1), (5, 2), (7, 3), (NODES, 5), (6, 6)])
def test_every_node_is_in_one_step_of_an_epoch(parts: int, parts_per_step: int) -> None:
    part = partition_nodes(graph().edge_index, NODES, parts, "order")
    for steps in draws(parts, parts_per_step, 3):
        assert len(steps) == TrainConfig(parts=parts, parts_per_step=parts_per_step).steps
        assert torch.cat(steps).sort().values.tolist() == list(range(NODES))
        for nodes in steps:
            assert torch.equal(nodes, nodes.sort().values)
            together = part[nodes].unique()
            assert together.numel() <= parts_per_step
            assert nodes.numel() == int(torch.isin(part, together).sum())  # whole parts


def test_other_parts_come_together_in_every_epoch() -> None:
    first, second = ([nodes.tolist() for nodes in steps] for steps in draws(12, 3, 2))
    assert not any(nodes in second for nodes in first)


def test_a_step_sees_the_edges_inside_and_between_its_parts() -> None:
    data = graph()
    clusters = Clusters(*prepare(data), 6, 3, "order")
    matrix = torch.zeros(NODES, NODES)
    matrix[data.edge_index[0], data.edge_index[1]] = 1
    matrix.fill_diagonal_(1)
    for nodes in clusters.draw(torch.Generator().manual_seed(0)):
        features, adj = clusters.cut(nodes, torch.device("cpu"))
        seen = torch.zeros(nodes.numel(), nodes.numel()).index_put((adj.row, adj.col), adj.weight)
        assert torch.equal(seen, matrix[nodes][:, nodes])
        assert torch.equal(features.to_dense(), data.x[nodes])


@pytest.mark.parametrize("kind", ["prior", "witness"])
def test_prior_and_witness_see_the_whole_graph(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data, seen = graph(), []
    more = {"prior": FeaturePrior(neighbors=3)} if kind == "prior" else {"witness": Witness(neighbors=3, models=1)}
    model = ASGNN(WORDS, 8, CLASSES, num_layers=2, **more).double()
    config = TrainConfig(2, parts=4, parts_per_step=2, partition="order")
    logits = ASGNN.logits

    def spy(self: ASGNN, features: Features, adj: Adjacency, *rest: Any) -> Tensor:
        if self.training and self.witness == model.witness:
            seen.append((features.to_dense(), adj))
        return logits(self, features, adj, *rest)

    monkeypatch.setattr(ASGNN, "logits", spy)
    fit(model, data, config, split=split_of(0))
    features, adj = prepare(data)
    informed = model.informed(features, adj)
    assert not torch.equal(informed.weight, adj.weight)
    whole = torch.zeros(NODES, NODES).index_put((informed.row, informed.col), informed.weight)
    clusters = Clusters(features, informed, 4, 2, "order")
    rng = torch.Generator().manual_seed(0)
    expected = [nodes for _ in range(2) for nodes in clusters.draw(rng)]
    assert len(seen) == len(expected)
    for (x, cut), nodes in zip(seen, expected, strict=True):
        assert torch.equal(x, data.x[nodes])
        weight = torch.zeros(nodes.numel(), nodes.numel()).index_put((cut.row, cut.col), cut.weight)
        assert torch.equal(weight, whole[nodes][:, nodes])


# --- training --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", IN_PARTS)
def test_all_parts_in_one_step_are_training_on_the_whole_graph(name: str) -> None:
    data = graph()
    whole, in_parts = (
        fit_many([trial(name, 0, epochs=6, **way)], data)[0] for way in ({}, {**ORDER, "parts": 6, "parts_per_step": 6})
    )
    assert_equal(in_parts, whole)
    assert torch.equal(in_parts.logits[0], whole.logits[0])


def test_all_parts_in_one_step_with_a_foreign_module() -> None:
    data, fits = graph(), []
    for parts in (1, 6):
        torch.manual_seed(0)
        module = PyGGCN(WORDS, 8, num_layers=2, out_channels=CLASSES, dropout=0.5).double()
        config = TrainConfig(10, parts=parts, parts_per_step=parts, partition="order")
        fits.append(fit(module, data, config, split=split_of(0)))
    assert_equal(*fits)


def dense_asgnn() -> nn.Module:
    return ASGNN(WORDS, 8, CLASSES, num_layers=3, dropout=0.0, backend="dense").double()


def foreign_gcn() -> nn.Module:
    return PyGGCN(WORDS, 8, num_layers=2, out_channels=CLASSES).double()


@pytest.mark.parametrize("build", [dense_asgnn, foreign_gcn])
def test_training_equals_training_by_hand_on_the_induced_subgraphs(build: Callable[[], nn.Module]) -> None:
    """Every step is the gradient of the dense reference on the subgraph, for the loss of its training nodes."""
    data, split = graph(), split_of(0)
    torch.manual_seed(3)
    model = build()
    config = TrainConfig(2, lr=0.02, scalar_lr=0.03, weight_decay=1e-3, **ORDER)
    steps = [nodes for nodes in draws(5, 2, 2) for nodes in nodes]
    by_hand = build()
    by_hand.load_state_dict(model.state_dict())
    if isinstance(model, ASGNN):
        model.asmp.backend = "edges"  # and by_hand stays dense
    result = fit(model, data, config, split=split)

    scalars = list(by_hand.scalars()) if isinstance(by_hand, ASGNN) else []
    weights = [p for p in by_hand.parameters() if not any(p is scalar for scalar in scalars)]
    groups = [{"params": weights, "lr": 0.02, "weight_decay": 1e-3}, {"params": scalars, "lr": 0.03}]
    adam = torch.optim.Adam([group for group in groups if group["params"]])
    matrix = torch.zeros(NODES, NODES, dtype=torch.bool)
    matrix[data.edge_index[0], data.edge_index[1]] = True
    train = torch.zeros(NODES, dtype=torch.bool)
    train[split.train] = True
    losses, states = [], []
    for nodes in steps:
        edges = matrix[nodes][:, nodes].nonzero().t().contiguous()
        here = train[nodes]
        out = by_hand(data.x[nodes], edges)[here]
        loss = 3 / split.train.numel() * F.cross_entropy(out, data.y[nodes][here], reduction="sum")
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(float(loss.detach()))
        states.append([p.detach().clone() for p in by_hand.parameters()])
    expected = torch.tensor([losses[:3], losses[3:]], dtype=torch.float64).mean(1)
    torch.testing.assert_close(result.history.train_loss, expected, rtol=1e-9, atol=1e-9)
    best = states[3 * result.best_epoch - 1]
    torch.testing.assert_close([p.detach() for p in result.model.parameters()], best, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", ["asgnn", "gcn", "gat"])
def test_a_trial_gets_the_same_result_in_a_batch_as_alone(name: str) -> None:
    data, short = graph(), {"epochs": 4, **ORDER}
    for i, of_many in enumerate(fit_many(four(name, **short), data)):
        (alone,) = fit_many([trial(name, i, **short)], data)
        assert (of_many.batch, alone.batch) == (4, 1)
        assert_close(of_many, alone, 1e-8)


def test_equal_seeds_give_bitwise_equal_results() -> None:
    first, again = (fit_many([trial("asgnn", 0, **ORDER)], graph())[0] for _ in range(2))
    assert_equal(first, again)


def test_trials_with_edge_weights_of_their_own() -> None:
    """A weight of 0 is the same as no edge, also in mini-batches."""
    data = graph()
    keep = torch.rand(data.edge_index.size(1), generator=torch.Generator().manual_seed(0)) < 0.7
    keep &= keep[_reverse(data.edge_index)]
    own = trial("gcn", 0, **ORDER)
    (weighted,) = fit_many([Trial(own.model, own.config, own.split, keep.double())], data)
    fewer = graph()
    fewer.edge_index = data.edge_index[:, keep]
    (without,) = fit_many([trial("gcn", 0, **ORDER)], fewer)
    assert_close(weighted, without, 1e-8)


def _reverse(edge_index: Tensor) -> Tensor:
    keys, back = edge_index[0] * NODES + edge_index[1], edge_index[1] * NODES + edge_index[0]
    order = keys.argsort()
    return order[torch.searchsorted(keys[order], back)]


def test_trials_with_different_parts_are_different_batches() -> None:
    ways: list[dict[str, Any]] = [{}, {"parts": 4}, {"parts": 4, "parts_per_step": 2}, {"parts": 4}]
    fits = fit_many([trial("gcn", 0, partition="order", **way) for way in ways], graph())
    assert [one.batch for one in fits] == [1, 2, 1, 2]
    assert_equal(fits[1], fits[3])
    assert len({tuple(one.history.train_loss.tolist()) for one in fits}) == 3


def test_validation_is_that_of_the_whole_graph() -> None:
    data = graph()
    result = fit_many([trial("asgnn", 1, **ORDER)], data)[0]
    features, adj = prepare(data)
    with torch.no_grad():
        logits = result.model(features, adj)
    torch.testing.assert_close(result.logits[0], logits)
    val = result.split.val
    at_best = F.cross_entropy(logits[val], data.y[val])
    torch.testing.assert_close(result.history.val_loss[result.best_epoch - 1], at_best)


def test_patience_progress_and_epochs_are_as_on_the_whole_graph() -> None:
    data = graph()
    full = fit_many([trial("gcn", 0, epochs=25, **ORDER)], data)[0]
    reported: list[Epoch] = []
    done: list[tuple[int, int]] = []
    (stopped,) = fit_many(
        [trial("gcn", 0, epochs=25, patience=3, **ORDER)],
        data,
        progress=lambda *now: done.append(now),
        on_epoch=reported.append,
    )
    end = stop_by_hand(full, 3)
    assert 3 < end < 25
    assert torch.equal(stopped.history.train_loss, full.history.train_loss[:end])
    assert [one.number for one in reported] == list(range(1, end + 1))
    assert [float(one.train_loss[0]) for one in reported] == stopped.history.train_loss.tolist()
    assert done == [*((epoch, 25) for epoch in range(1, end + 1)), (25, 25)]


def test_features_may_be_memory_mapped(tmp_path: Path) -> None:
    data, split = graph(), split_of(0)
    data.x = torch.randn(NODES, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    data.x.numpy().tofile(tmp_path / "x")
    mapped = data.__copy__()
    mapped.x = torch.from_numpy(np.memmap(tmp_path / "x", dtype=np.float64, mode="r+", shape=(NODES, 6)))
    fits = []
    for one in (data, mapped):
        model = GCN(6, 8, CLASSES).double()
        model.reset_parameters(torch.Generator().manual_seed(0))
        fits.append(fit(model, one, TrainConfig(3, **ORDER), split=split))
    assert_equal(*fits)


# --- settings and bad input ------------------------------------------------------------------------------------------


def test_parts_are_settings_of_a_recipe() -> None:
    assert recipe("gcn", parts=8, parts_per_step=3).config.steps == 3
    assert recipe("gcn").config.steps == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"parts": 0}, "parts must be a whole number from 1 to 2147483647; it is 0."),
        ({"parts": 4, "parts_per_step": 5}, "parts_per_step must be a whole number from 1 to 4; it is 5."),
        ({"parts": 4, "parts_per_step": 0}, "parts_per_step must be a whole number from 1 to 4; it is 0."),
        ({"partition": "best"}, "partition must be one of auto, metis, order; it is 'best'."),
    ],
)
def test_bad_settings_are_one_sentence(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        TrainConfig(**settings)
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("name", "parts", "message"),
    [
        ("gcn", NODES + 1, f"parts must be a whole number from 1 to {NODES}; it is {NODES + 1}."),
        ("gcn-svd", 2, "GCNSVD needs the whole graph in every step; train it with parts=1."),
        ("prognn", 2, "ProGNN needs the whole graph in every step; train it with parts=1."),
    ],
)
def test_trainings_that_cannot_be_are_refused(name: str, parts: int, message: str) -> None:
    with pytest.raises(AsgnnError) as raised:
        fit_many([trial(name, 0, parts=parts)], graph())
    assert str(raised.value) == message


def test_the_graph_stays_on_its_device() -> None:
    """On a GPU the whole graph may not fit."""
    data, gpu, split = graph(), torch.device("cuda:0"), split_of(0)
    whole, in_parts = (Trial(GCN(WORDS, 8, CLASSES), TrainConfig(parts=parts), split) for parts in (1, 4))
    assert _home([in_parts], data, gpu) == torch.device("cpu")
    assert _home([whole], data, gpu) == gpu
    assert _home([whole, in_parts], data, torch.device("cpu")) == torch.device("cpu")
    with pytest.raises(ConfigError, match="only on the device of the graph"):
        _home([whole, in_parts], data, gpu)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", IN_PARTS)
def test_steps_on_a_gpu_equal_those_on_the_cpu(name: str) -> None:
    data, without_dropout = graph(), 1
    on_cpu, on_gpu = (fit_many([trial(name, without_dropout, **ORDER)], data, device=d)[0] for d in ("cpu", "cuda"))
    on_gpu.model.cpu()
    assert data.x.device.type == "cpu"
    assert_close(on_gpu, on_cpu, 1e-6)
