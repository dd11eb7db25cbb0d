"""The gradient of every model in ``edge_weight`` and ``x`` equals central differences."""

from __future__ import annotations

import gc
import json
import weakref
from pathlib import Path

import pytest
import torch
from scripts.gradient_table import BOUND, CASES, Case, built, gradient_error, same_subspace, small_graph
from torch import Tensor
from torch_geometric.data import Data

from asgnn.attacks import fit_surrogate, grbcd, pgd, prbcd
from asgnn.attacks.blocks import block_gradient, draw_block
from asgnn.attacks.problem import make_problem
from asgnn.errors import ConfigError
from asgnn.graphs import undirected
from asgnn.models import ASMP, GCN, MLP, ProGNN
from asgnn.training import TrainConfig, fit
from tests.attacks.test_gradient import blocks

F64 = torch.float64
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
ATTACKED = [name for name, case in CASES.items() if case.by_edges]


@pytest.mark.parametrize("by", ["edge_weight", "x"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("device", DEVICES)
def test_gradient_equals_central_differences(device: str, name: str, by: str) -> None:
    assert gradient_error(name, by, device) < BOUND
    x, edge_index, weight = small_graph(device)
    leaf = weight.requires_grad_() if by == "edge_weight" else x.requires_grad_()
    (grad,) = torch.autograd.grad(built(name, device)(x, edge_index, weight).square().sum(), leaf, allow_unused=True)
    if by == "x" or CASES[name].by_edges:
        assert float(grad.abs().max()) > 1e-4  # otherwise an error of 0 would prove nothing
    else:
        assert grad is None


@pytest.mark.parametrize("name", CASES)
def test_requires_grad_does_not_change_the_output(name: str) -> None:
    x, edge_index, weight = small_graph()
    with torch.no_grad():
        plain = built(name)(x, edge_index, weight)
    for leaf in (weight, x):
        leaf.requires_grad_()
        torch.testing.assert_close(built(name)(x, edge_index, weight), plain, rtol=1e-10, atol=1e-10)
        leaf.requires_grad_(False)


# the paper's objective may give weight to any pair in edge_index
@pytest.mark.parametrize("name", [name for name in CASES if name != "asgnn, paper"])
def test_an_edge_of_weight_zero_is_no_edge(name: str) -> None:
    x, edge_index, weight = small_graph()
    gone = (edge_index.sum(0) % 3 == 0) & (edge_index.prod(0) % 2 == 0)
    assert bool(gone.any())
    torch.testing.assert_close(
        built(name)(x, edge_index, weight.masked_fill(gone, 0)), built(name)(x, edge_index[:, ~gone], weight[~gone])
    )


@pytest.mark.parametrize("name", ATTACKED)
def test_gradient_at_weight_zero_is_finite(name: str) -> None:
    """Relaxed attacks start there: new edges have weight 0."""
    x, edge_index, weight = small_graph()
    weight = weight.masked_fill(edge_index.sum(0) % 3 == 0, 0).requires_grad_()
    (grad,) = torch.autograd.grad(built(name)(x, edge_index, weight).square().sum(), weight)
    assert bool(grad.isfinite().all())
    assert float(grad[weight == 0].abs().max()) > 0


@pytest.mark.parametrize("layout", ["strided", "coo", "csr"])
@pytest.mark.parametrize("name", ["gcn", "gat", "appnp", "gnnguard", "asgnn"])
def test_gradient_in_sparse_features(name: str, layout: str) -> None:
    """Mostly zero x is stored sparse unless it requires a gradient; a sparse tensor gets one at its stored entries."""
    _, edge_index, weight = small_graph()
    words = torch.zeros(14, 7, dtype=F64)
    words[torch.arange(14), torch.arange(14) % 7] = 1 + torch.arange(14, dtype=F64) / 14
    words[::2] = 0
    to_layout = {"strided": Tensor.clone, "coo": Tensor.to_sparse_coo, "csr": Tensor.to_sparse_csr}[layout]
    model, x = built(name), to_layout(words).requires_grad_()
    model(x, edge_index, weight).square().sum().backward()
    assert x.grad is not None
    grad = x.grad if layout == "strided" else x.grad.to_dense()
    step = 1e-6
    for i, j in words.nonzero().tolist():
        ends = []
        for sign in (1, -1):
            moved = words.clone()
            moved[i, j] += sign * step
            ends.append(float(model(moved, edge_index, weight).detach().square().sum()))
        assert float(grad[i, j]) == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-4, abs=1e-6)
    if layout == "strided":
        assert float(grad[words == 0].abs().max()) > 0


@pytest.mark.parametrize("name", ["elastic", "gcn-svd", "gcn-jaccard", "gnnguard"])
def test_caches_do_not_keep_the_autograd_graph(name: str) -> None:
    x, edge_index, weight = small_graph()
    model, weight = built(name), weight.requires_grad_()
    first = model(x, edge_index, weight)
    second = model(x, edge_index, weight.detach().square())
    assert not torch.allclose(first, second)
    alive = weakref.ref(weight)
    del first, weight
    gc.collect()
    assert alive() is None


def test_trained_prognn_ignores_edge_weights() -> None:
    data, _ = blocks(30)
    data.train_mask, data.val_mask, data.test_mask = (torch.arange(30) % 3 == part for part in range(3))
    model = ProGNN(8, 4, 3)
    fit(model, data, TrainConfig(epochs=4))
    weight = torch.ones(data.edge_index.size(1), requires_grad=True)
    out = model.eval()(data.x, data.edge_index, weight).sum()
    assert torch.autograd.grad(out, weight, allow_unused=True) == (None,)


# --- attacks through the models ------------------------------------------------------------------------------------


def victim_of(case: Case, data: Data) -> torch.nn.Module:
    """The model of a case with random weights, large enough that its margins differ."""
    torch.manual_seed(3)
    model = case.make().to(F64)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(2)
    return model


@pytest.mark.parametrize("name", ATTACKED)
def test_attack_gradient_equals_central_differences(name: str) -> None:
    data, train = blocks(24)
    data.x = data.x[:, :7].double()
    model = victim_of(CASES[name], data).train()
    rng = torch.Generator().manual_seed(0)
    problem = make_problem(
        data, 3, train[:6], rng, nodes=None, surrogate=model, loss="tanh_margin", device=None, state=None
    )
    keys = draw_block(problem, 10**6, rng)
    s = 0.1 + 0.3 * torch.rand(keys.numel(), generator=rng, dtype=F64)

    def loss(values: Tensor) -> float:
        seen: list[Tensor] = []
        victim = problem.victim

        def watched(*inputs: Tensor) -> Tensor:
            seen.append(victim(*inputs))
            return seen[-1]

        block_gradient(problem.with_victim(watched), keys, values)
        return problem.value(seen[0]).item()

    with same_subspace():
        gradient = block_gradient(problem, keys, s)
        assert float(gradient.abs().max()) > 0
        for at in gradient.abs().argsort(descending=True)[:12:2].tolist():
            step = torch.zeros_like(s)
            step[at] = 1e-6
            difference = (loss(s + step) - loss(s - step)) / 2e-6
            assert float(gradient[at]) == pytest.approx(difference, rel=1e-4, abs=1e-8)
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("attack", [pgd, prbcd, grbcd], ids=lambda attack: attack.__name__)
@pytest.mark.parametrize("name", ["gcn", "gat", "elastic", "gcn-svd", "gnnguard", "rung", "asgnn", "softmedian"])
def test_models_as_surrogates(name: str, attack: object) -> None:
    """The flips increase the loss of the model they were computed with."""
    data, train = blocks(24)
    data.x = data.x[:, :7].double()
    model = victim_of(CASES[name], data)
    model.eval()
    rng = torch.Generator().manual_seed(0)
    result = attack(data, 6, train[:6], rng, surrogate=model, steps=6)  # type: ignore[operator]
    problem = make_problem(
        data, 6, train[:6], rng, nodes=None, surrogate=model, loss="tanh_margin", device=None, state=None
    )
    assert problem.value_after(result.flips) > problem.value_after(result.flips[:, :0])


@pytest.mark.parametrize("attack", [pgd, prbcd, grbcd], ids=lambda attack: attack.__name__)
def test_attack_raises_without_a_usable_gradient(attack: object) -> None:
    data, train = blocks(24)
    for constant in (MLP(8, 4, 3), lambda x, edge_index, edge_weight: x[:, :3]):
        with pytest.raises(ConfigError, match="is 0 for every pair of nodes") as caught:
            attack(data, 3, train, torch.Generator().manual_seed(0), surrogate=constant, steps=3)  # type: ignore[operator]
        assert str(caught.value).endswith(".")
    torch.manual_seed(0)
    model = GCN(8, 4, 3)
    with pytest.raises(ConfigError, match="is not finite"):
        attack(  # type: ignore[operator]
            data,
            3,
            train,
            torch.Generator().manual_seed(0),
            surrogate=lambda x, edge_index, weight: model(x, edge_index, weight) + (weight - weight).sqrt().sum(),
            steps=3,
        )


def test_attack_on_a_gcn_equals_attack_on_a_surrogate_with_the_same_weights() -> None:
    """The flips for GCN are those for a SurrogateGCN with the same weights, so the gradient of GCN is not 0."""
    data, train = blocks()
    surrogate = fit_surrogate(data, train, torch.Generator().manual_seed(0), epochs=60)
    model = GCN(8, surrogate.w1.size(1), 3).eval()
    with torch.no_grad():
        model.first.weight.copy_(surrogate.w1)
        model.first.bias.copy_(surrogate.b1)
        model.last.weight.copy_(surrogate.w2)
        model.last.bias.copy_(surrogate.b2)
    ours, theirs = (
        grbcd(data, 12, train, torch.Generator().manual_seed(0), surrogate=victim, steps=4)
        for victim in (model, surrogate)
    )
    assert torch.equal(ours.flips, theirs.flips)


# --- graphs are prepared once --------------------------------------------------------------------------------------


class SortCounter:
    """Counts the sorts of edges and features."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        for name in ("sort", "argsort"):
            monkeypatch.setattr(torch, name, self.counted(getattr(torch, name)))

    def counted(self, function: object) -> object:
        def sort(*args: object, **options: object) -> object:
            self.count += 1
            return function(*args, **options)  # type: ignore[operator]

        return sort


@pytest.mark.parametrize("through", ["torch", "numpy"])
def test_a_graph_is_sorted_once_and_again_after_a_change(through: str, monkeypatch: pytest.MonkeyPatch) -> None:
    n = 40
    edge_index = undirected(torch.tensor([[0, 1, 2, 5], [1, 2, 3, 9]]), n)
    x = torch.eye(n)[:, :20].clone()
    model = GCN(20, 4, 3).eval()
    sorts = SortCounter(monkeypatch)
    first = model(x, edge_index)
    sorted_before = sorts.count
    assert sorted_before == 3  # the edges, those of the transpose, and the columns of x
    assert torch.equal(model(x, edge_index, None), first)
    assert sorts.count == sorted_before
    change(edge_index, through)
    changed = model(x, edge_index)
    assert sorts.count == sorted_before + 2  # the entries, and those of the transpose
    assert not torch.equal(changed, first)
    assert torch.equal(changed, model(x.clone(), edge_index.clone()))
    sorted_before = sorts.count
    if through == "torch":
        x[3, 3], x[3, 4] = 0, 1
    else:
        x.numpy()[3, 3], x.numpy()[3, 4] = 0, 1
    moved = model(x, edge_index)
    assert sorts.count == sorted_before + 1  # the columns of x only
    assert torch.equal(moved, model(x.clone(), edge_index))


def change(edge_index: Tensor, through: str) -> None:
    """0–1 becomes 0–7, in both directions."""
    edges = edge_index if through == "torch" else edge_index.numpy()
    edges[1, int(((edge_index[0] == 0) & (edge_index[1] == 1)).nonzero())] = 7
    edges[0, int(((edge_index[0] == 1) & (edge_index[1] == 0)).nonzero())] = 7


def test_asmp_module_sorts_a_graph_once(monkeypatch: pytest.MonkeyPatch) -> None:
    x, edge_index, weight = small_graph()
    module, sorts = ASMP(2).to(F64), SortCounter(monkeypatch)
    first = module(x, edge_index, weight)
    for factor in (1.0, 0.5):
        module(x, edge_index, factor * weight)
    assert torch.equal(module(x, edge_index, weight), first)
    assert sorts.count == 2  # the entries, and those of the transpose


def test_cache_distinguishes_weights_and_sizes() -> None:
    edge_index = undirected(torch.tensor([[0, 1], [1, 2]]), 4)
    model = GCN(3, 4, 2).eval()
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    plain, half = model(x, edge_index), model(x, edge_index, torch.full((4,), 0.5))
    assert not torch.allclose(plain, half)
    assert torch.equal(model(x, edge_index), plain)
    assert model(x[:3], edge_index).shape == (3, 2)
    with pytest.raises(Exception, match="the nodes are numbered 0 to 1"):
        model(x[:2], edge_index)


def test_record_covers_all_models_and_attacks_beat_random_flips() -> None:
    record = json.loads((Path(__file__).parents[2] / "docs" / "records" / "gradients.json").read_text())
    assert [row["model"] for row in record["errors"]] == list(CASES)
    assert all(row[by] < BOUND for row in record["errors"] for by in ("edge_weight", "x"))
    assert {row["model"] for row in record["left"]} == {name.partition(",")[0] for name in CASES}
    for row in record["left"]:
        if "refused" not in row:
            assert row["through the model"] < row["random"]
