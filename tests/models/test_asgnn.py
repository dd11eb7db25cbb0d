"""ASGNN is an MLP followed by ASMP: outputs, number of layers, structure and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from asgnn.asmp import Scheme, asmp
from asgnn.models import ASGNN
from asgnn.models.layers import Linear, Streams
from tests.awkward import AWKWARD

F64 = torch.float64
SCHEMES = {"degree": Scheme(), "paper": Scheme("paper")}


def problem(graph: str) -> tuple[Tensor, Tensor]:
    n, edge_index = AWKWARD[graph]
    rng = torch.Generator().manual_seed(1)
    x = torch.randn(n, 60, generator=rng, dtype=F64) * (torch.rand(n, 60, generator=rng) < 0.05)
    return x, edge_index


def model_of(scheme: str, num_layers: int = 5) -> ASGNN:
    model = ASGNN(60, 8, 3, num_layers=num_layers, scheme=SCHEMES[scheme]).to(F64)
    model.reset_parameters(torch.Generator().manual_seed(0))
    return model


def perceptron(model: ASGNN, x: Tensor) -> Tensor:
    first, second = model.mlp.layers
    assert isinstance(first, Linear)
    assert isinstance(second, Linear)
    return (x @ first.weight + first.bias).relu() @ second.weight + second.bias


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("graph", AWKWARD)
def test_asgnn_is_asmp_after_an_mlp(graph: str, scheme: str) -> None:
    x, edge_index = problem(graph)
    model = model_of(scheme).eval()
    for layers in (5, 20, 0):
        expected = asmp(perceptron(model, x), edge_index, model.asmp.params(), layers=layers, objective=scheme).h
        torch.testing.assert_close(model(x, edge_index, num_layers=layers), expected, rtol=1e-10, atol=1e-10)
    assert torch.equal(model(x, edge_index, num_layers=5), model(x, edge_index))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_num_layers_equals_a_deeper_model_with_the_same_weights(scheme: str) -> None:
    x, edge_index = problem("random 33")
    model, deep = model_of(scheme, 5).eval(), model_of(scheme, 20).eval()
    deep.load_state_dict(model.state_dict())
    assert torch.equal(model(x, edge_index, num_layers=20), deep(x, edge_index))
    assert not torch.allclose(model(x, edge_index), deep(x, edge_index))


def test_num_layers_applies_in_training() -> None:
    x, edge_index = problem("random 33")
    model = model_of("degree")

    def run(layers: int | None) -> Tensor:
        return model(x, edge_index, num_layers=layers, rng=Streams([3]))

    assert torch.equal(run(None), run(5))
    assert not torch.equal(run(None), run(6))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("graph", AWKWARD)
def test_structure(graph: str, scheme: str, training: bool) -> None:
    x, edge_index = problem(graph)
    model = model_of(scheme).train(training)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 7.0)
    state = torch.get_rng_state()
    result = model.structure(x, edge_index)

    assert [module.training for module in model.modules()] == [training] * len(list(model.modules()))
    assert all(bool((p.grad == 7).all()) and p.requires_grad for p in model.parameters() if p.grad is not None)
    assert torch.equal(torch.get_rng_state(), state)
    assert not result.h.requires_grad

    entries = edge_index.size(1) + x.size(0)
    assert result.edge_index.shape == (2, entries)
    assert [tuple(weight.shape) for weight in result.weights] == [(entries,)] * 6
    assert torch.equal(result.weights[0], torch.ones(entries, dtype=F64))
    for weight in result.weights:
        assert bool(((weight >= 0) & (weight <= 1)).all())
        if scheme == "degree":  # the paper's objective does not fix the self-loops
            assert bool((weight[result.edge_index[0] == result.edge_index[1]] == 1).all())
    if edge_index.numel():
        assert not torch.equal(result.weights[-1], result.weights[0])
    assert len(result.objective) == 1 + 2 * 5
    torch.testing.assert_close(result.h, model.eval()(x, edge_index))
    assert len(model.structure(x, edge_index, num_layers=9).weights) == 10


def test_structure_restores_the_mode_after_an_error() -> None:
    x, edge_index = problem("random 33")
    model = model_of("degree").train()
    with pytest.raises(ValueError, match="layers must be a whole number from 0"):
        model.structure(x, edge_index, num_layers=-1)
    assert model.training


def test_isolated_nodes_keep_their_own_features() -> None:
    x, edge_index = problem("no edges")
    model = model_of("degree").eval()
    torch.testing.assert_close(model(x, edge_index), perceptron(model, x), rtol=1e-10, atol=1e-10)
    x, edge_index = problem("isolated node")
    torch.testing.assert_close(model(x, edge_index)[4], perceptron(model, x)[4], rtol=1e-10, atol=1e-10)


def test_edge_weights_of_zero_mean_no_edge() -> None:
    x, edge_index = problem("random 33")
    model = model_of("degree").eval()
    none = torch.zeros(edge_index.size(1), dtype=F64)
    torch.testing.assert_close(model(x, edge_index, none), perceptron(model, x), rtol=1e-10, atol=1e-10)
    assert torch.equal(model(x, edge_index, none + 1), model(x, edge_index))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_parameter_gets_a_gradient(scheme: str) -> None:
    x, edge_index = problem("random 33")
    model = model_of(scheme)
    model(x, edge_index, rng=Streams([0])).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
    scalars = {id(p) for p in model.scalars()}
    assert {name for name, p in model.named_parameters() if id(p) in scalars} == {
        f"asmp.raw_{name}" for name in ("lam", "gamma", "mu1", "mu2", "eta1", "eta2")
    }
