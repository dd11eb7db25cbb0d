"""The surrogate GCN: its values against PyG's GCNConv, its gradient against finite differences."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

from asgnn.attacks import SurrogateGCN, fit_surrogate
from asgnn.errors import ConfigError
from asgnn.graphs.features import Features
from tests.attacks.test_contract import generator
from tests.awkward import AWKWARD


def weighted(name: str) -> tuple[SurrogateGCN, Tensor, Tensor, Tensor]:
    n, edge_index = AWKWARD[name]
    rng = generator(1)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    # unsorted edges and asymmetric weights, because the surrogate must not rely on either
    edge_index = edge_index[:, torch.randperm(edge_index.size(1), generator=rng)]
    weight = torch.rand(edge_index.size(1), generator=rng, dtype=torch.float64)
    return SurrogateGCN(normal(4, 3), normal(3), normal(3, 2), normal(2)), normal(n, 4), edge_index, weight


@pytest.mark.parametrize("name", AWKWARD)
def test_equals_two_gcnconv_layers_of_pyg(name: str) -> None:
    model, x, edge_index, weight = weighted(name)
    first, second = GCNConv(4, 3).double(), GCNConv(3, 2).double()
    with torch.no_grad():
        for layer, w, b in ((first, model.w1, model.b1), (second, model.w2, model.b2)):
            layer.lin.weight.copy_(w.t())
            layer.bias.copy_(b)
    # PyG sums over incoming edges, so the transpose is compared
    transposed = edge_index.flip(0)
    truth = second(first(x, transposed, weight).relu(), transposed, weight)
    torch.testing.assert_close(model(x, edge_index, weight), truth)
    torch.testing.assert_close(model(Features.of(x), edge_index, weight), truth)


@pytest.mark.parametrize("name", ["isolated node", "two components", "complete"])
def test_gradient_in_the_edge_weights(name: str) -> None:
    model, x, edge_index, weight = weighted(name)
    assert torch.autograd.gradcheck(lambda w: model(x, edge_index, w), weight.requires_grad_())


def test_fit_uses_only_the_known_labels() -> None:
    n, edge_index = AWKWARD["random 33"]
    y = torch.arange(n) % 3
    x = torch.nn.functional.one_hot(y, 5) + 0.3 * torch.randn(n, 5, generator=generator())
    data, train = Data(x=x, edge_index=edge_index, y=y), torch.arange(12)
    model = fit_surrogate(data, train, generator())
    ones = torch.ones(edge_index.size(1))
    right = (model(x, edge_index, ones).argmax(1) == y)[train]
    assert float(right.float().mean()) >= 0.75  # chance is 1/3, and the edges do not depend on the classes
    other = Data(x=x, edge_index=edge_index, y=torch.cat([y[:12], y[12:].flip(0)]))
    again = fit_surrogate(other, train, generator())
    assert all(torch.equal(a, b) for a, b in zip(model.weights.values(), again.weights.values(), strict=True))
    assert not any(value.requires_grad for value in model.weights.values())
    with pytest.raises(ConfigError, match="hidden must be a whole number from 1"):
        fit_surrogate(data, train, generator(), hidden=0)
