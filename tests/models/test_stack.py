"""A stacked model computes for each trial what the single model computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from asgnn import models
from asgnn.asmp import ASMPParams, Scheme
from asgnn.errors import ConfigError
from asgnn.models.layers import Streams
from tests.awkward import AWKWARD

F64 = torch.float64
DROPOUT = (0.0, 0.3, 0.8)
PARAMS = (ASMPParams(), ASMPParams(0.5, 1.0, 0.1, 0.2, eta2=0.1), ASMPParams(7.0, 0.3, 1e-3, 0.02, eta2=None))


def asgnn(i: int, **settings: Any) -> models.ASGNN:
    return models.ASGNN(50, 6, 3, num_layers=4, dropout=DROPOUT[i], params=PARAMS[i], **settings)


MODELS: dict[str, Callable[[int], models.NodeClassifier]] = {
    "gcn": lambda i: models.GCN(50, 6, 3, dropout=DROPOUT[i]),
    "gcn-jaccard": lambda i: models.GCNJaccard(50, 6, 3, dropout=DROPOUT[i], threshold=0.0),
    "gcn-svd": lambda i: models.GCNSVD(50, 6, 3, dropout=DROPOUT[i], rank=4),
    "sgc": lambda i: models.SGC(50, 3),
    "gat": lambda i: models.GAT(50, 3, 3, heads=2, dropout=DROPOUT[i]),
    "appnp": lambda i: models.APPNP(50, 6, 3, num_layers=4, dropout=DROPOUT[i]),
    "mlp": lambda i: models.MLP(50, 6, 3, num_layers=3, dropout=DROPOUT[i]),
    "prognn": lambda i: models.ProGNN(50, 6, 3, dropout=DROPOUT[i]),
    "asgnn": asgnn,
    "asgnn one scalar": lambda i: asgnn(i, learn=("lam",)),
    "asgnn exact": lambda i: asgnn(i, scheme=Scheme(structure="exact")),
    "asgnn frozen": lambda i: asgnn(i, scheme=Scheme(structure="frozen")),
    "asgnn paper": lambda i: asgnn(i, scheme=Scheme("paper")),
    "asgnn dense": lambda i: asgnn(i, scheme=Scheme("paper", support="dense"), constraint="free"),
    "elastic": lambda i: models.ElasticGNN(50, 6, 3, num_layers=4, lambda1=0.3, dropout=DROPOUT[i]),
    "elastic l1": lambda i: models.ElasticGNN(50, 6, 3, num_layers=4, lambda1=0.2, dropout=DROPOUT[i], norm="l1"),
    "airgnn": lambda i: models.AirGNN(50, 6, 3, num_layers=4, lam=0.3, dropout=DROPOUT[i]),
    "softmedian": lambda i: models.SoftMedianGCN(50, 6, 3, dropout=DROPOUT[i]),
    "gnnguard": lambda i: models.GNNGuard(50, 6, 3, dropout=DROPOUT[i]),
    "rung": lambda i: models.RUNG(50, 6, 3, num_layers=4, gamma=1.0, dropout=DROPOUT[i]),
}


def trials(name: str) -> list[models.NodeClassifier]:
    models = [MODELS[name](i).to(F64) for i in range(3)]
    for i, model in enumerate(models):
        model.reset_parameters(torch.Generator().manual_seed(i))
    return models


def problem(graph: str, dense: bool) -> tuple[Tensor, Tensor]:
    n, edge_index = AWKWARD[graph]
    rng = torch.Generator().manual_seed(1)
    x = torch.randn(n, 50, generator=rng, dtype=F64)
    return (x if dense else x * (torch.rand(n, 50, generator=rng) < 0.05)), edge_index


SEEDS = (5, 3, 5)


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("graph", ["one node", "isolated node", "random 33"])
@pytest.mark.parametrize("name", MODELS)
def test_stacked_equals_single(name: str, graph: str, dense: bool) -> None:
    x, edge_index = problem(graph, dense)
    singles = trials(name)
    many = models.stack(singles)
    assert many.stacked == 3
    for training in (False, True):
        out = many.train(training)(x, edge_index, rng=Streams(SEEDS))
        for i, single in enumerate(singles):
            alone = single.train(training)(x, edge_index, rng=Streams(SEEDS[i : i + 1]))
            torch.testing.assert_close(out[i], alone, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", MODELS)
def test_stacked_gradients_equal_single_gradients(name: str) -> None:
    x, edge_index = problem("random 33", False)
    singles = trials(name)
    many = models.stack(singles)
    many(x, edge_index, rng=Streams(SEEDS)).square().sum().backward()
    for i, single in enumerate(singles):
        single(x, edge_index, rng=Streams(SEEDS[i : i + 1])).square().sum().backward()
        for (key, single_parameter), stacked in zip(single.named_parameters(), many.parameters(), strict=True):
            if single_parameter.grad is None:
                assert stacked.grad is None
            else:
                torch.testing.assert_close(
                    stacked.grad[i], single_parameter.grad, rtol=1e-9, atol=1e-9, msg=f"{key} of {i}"
                )


@pytest.mark.parametrize("name", MODELS)
def test_unstack_inverts_stack(name: str) -> None:
    singles, others = trials(name), trials(name)
    starts = [{key: value.clone() for key, value in model.state_dict().items()} for model in singles]
    many = models.stack(singles)
    with torch.no_grad():
        for parameter in many.parameters():
            parameter.add_(1.0)
    for model, start in zip(singles, starts, strict=True):  # the stack is a copy
        assert all(torch.equal(value, start[key]) for key, value in model.state_dict().items())
    models.unstack(many, others)
    for i, model in enumerate(others):
        for single, stacked in zip(model.parameters(), many.parameters(), strict=True):
            assert torch.equal(single, stacked[i])
            assert single.numel() == 0 or single.data_ptr() != stacked[i].data_ptr()
    models.unstack(models.stack(singles), others)
    for model, start in zip(others, starts, strict=True):
        assert all(torch.equal(value, start[key]) for key, value in model.state_dict().items())


def test_a_stack_of_one() -> None:
    x, edge_index = problem("random 33", False)
    (model, *_) = trials("asgnn")
    assert torch.equal(models.stack([model]).eval()(x, edge_index), model.eval()(x, edge_index).unsqueeze(0))


def test_structure_of_a_stack() -> None:
    x, edge_index = problem("random 33", False)
    singles = trials("asgnn")
    many = models.stack(singles)
    assert isinstance(many, models.ASGNN)
    together = many.structure(x, edge_index)
    for i, single in enumerate(singles):
        assert isinstance(single, models.ASGNN)
        alone = single.structure(x, edge_index)
        for of_many, of_alone in zip(together.weights, alone.weights, strict=True):
            torch.testing.assert_close(of_many[i], of_alone, rtol=1e-10, atol=1e-10)


DIFFERENT = {
    "other class": lambda: [models.GCN(5, 4, 3), models.MLP(5, 4, 3)],
    "other width": lambda: [models.GCN(5, 4, 3), models.GCN(5, 6, 3)],
    "other depth": lambda: [models.ASGNN(5, 4, 3, num_layers=4), models.ASGNN(5, 4, 3, num_layers=5)],
    "other variant": lambda: [models.ASGNN(5, 4, 3), models.ASGNN(5, 4, 3, scheme=Scheme(h_steps=2))],
    "other scalars learned": lambda: [models.ASGNN(5, 4, 3), models.ASGNN(5, 4, 3, learn=("lam",))],
    "other constraint": lambda: [models.ASGNN(5, 4, 3), models.ASGNN(5, 4, 3, constraint="free")],
    "other threshold": lambda: [models.GCNJaccard(5, 4, 3), models.GCNJaccard(5, 4, 3, threshold=0.1)],
    "other rank": lambda: [models.GCNSVD(5, 4, 3), models.GCNSVD(5, 4, 3, rank=5)],
    "other heads": lambda: [models.GAT(5, 4, 3, heads=1), models.GAT(5, 4, 3, heads=2)],
    "other weight": lambda: [models.ProGNN(5, 4, 3), models.ProGNN(5, 4, 3, lam=0.0)],
    "other teleport": lambda: [models.APPNP(5, 4, 3), models.APPNP(5, 4, 3, alpha=0.2)],
    "other penalty": lambda: [models.ElasticGNN(5, 4, 3), models.ElasticGNN(5, 4, 3, norm="l1")],
    "other residual": lambda: [models.AirGNN(5, 4, 3), models.AirGNN(5, 4, 3, lam=0.4)],
    "other temperature": lambda: [models.SoftMedianGCN(5, 4, 3), models.SoftMedianGCN(5, 4, 3, temperature=0.5)],
    "other threshold of cosines": lambda: [models.GNNGuard(5, 4, 3), models.GNNGuard(5, 4, 3, threshold=0.2)],
    "other concavity": lambda: [models.RUNG(5, 4, 3), models.RUNG(5, 4, 3, gamma=1.0)],
    "with and without a dual": lambda: [models.ElasticGNN(5, 4, 3), models.ElasticGNN(5, 4, 3, lambda1=0.0)],
    "a stack": lambda: [models.stack([models.GCN(5, 4, 3)]), models.stack([models.GCN(5, 4, 3)])],
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_different_models_cannot_be_stacked(case: str) -> None:
    with pytest.raises(ConfigError, match="can share a batch only if they are single models of one class"):
        models.stack(DIFFERENT[case]())
