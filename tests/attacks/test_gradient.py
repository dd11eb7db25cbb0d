"""The gradient attacks: projection, gradients, rounding, and strength compared with random flips and PyG."""

from __future__ import annotations

import sys
import warnings

import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor, nn
from torch_geometric.data import Data

from asgnn.attacks import SurrogateGCN, fit_surrogate, grbcd, minmax, pgd, prbcd, random_flips
from asgnn.attacks.blocks import block_gradient, draw_block
from asgnn.attacks.pgd import DenseFlips
from asgnn.attacks.problem import LOSSES, Problem, make_problem, predict
from asgnn.attacks.relaxation import best_rounding, multiplier, project
from asgnn.graphs import undirected
from asgnn.graphs.features import Features
from asgnn.graphs.keys import from_keys, to_keys
from tests.attacks.test_contract import generator

BUDGET = 12


def blocks(n: int = 90) -> tuple[Data, Tensor]:
    """Return a stochastic block model of three classes with weak features, and its labelled nodes."""
    rng = generator(11)
    y = torch.arange(n) % 3
    p = torch.where(y.unsqueeze(0) == y.unsqueeze(1), 0.12, 0.015)
    edges = undirected((torch.rand(n, n, generator=rng).triu(1) > 1 - p).nonzero().t(), n)
    x = torch.randn(n, 8, generator=rng) + 1.2 * nn.functional.one_hot(y, 8)
    return Data(x=x, edge_index=edges, y=y), torch.arange(18)


def block_problem(dtype: torch.dtype = torch.float32, loss: str = "tanh_margin") -> Problem:
    data, train = blocks()
    data.x = data.x.to(dtype)
    surrogate = fit_surrogate(data, train, generator(), epochs=60)
    return make_problem(
        data,
        BUDGET,
        train,
        generator(),
        nodes=None,
        surrogate=surrogate,
        loss=loss,  # type: ignore[arg-type]
        device=None,
        state=None,
    )


# --- projection ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [0.5, 3, 7, 40])
@pytest.mark.parametrize("scale", [0.05, 1.0, 30.0])
def test_projection_satisfies_the_kkt_conditions(budget: float, scale: float) -> None:
    a = scale * torch.randn(200, generator=generator(), dtype=torch.float64)
    s, mu = project(a, budget), multiplier(a, budget)
    assert float(s.sum()) <= budget + 1e-9
    assert mu == 0 or float(s.sum()) == pytest.approx(budget, abs=1e-6)  # complementary slackness
    # the gradient of the Lagrangian, s − a + μ, is 0 inside, not negative at s = 0 and not positive at s = 1
    slope = s - a + mu
    assert bool((slope[(s > 0) & (s < 1)].abs() < 1e-12).all())
    assert bool((slope[s == 0] >= 0).all())
    assert bool((slope[s == 1] <= 0).all())
    assert multiplier(a, budget, mu / 2) == pytest.approx(mu, rel=1e-6)
    assert multiplier(a, budget, 2 * mu) == pytest.approx(mu, rel=1e-6)  # the guess is too high


def test_projection_is_the_nearest_point() -> None:
    a = torch.tensor([1.7, 0.9, 0.8, 0.3, -0.4, 0.05], dtype=torch.float64)
    found = minimize(
        lambda s: ((s - a.numpy()) ** 2).sum(),
        torch.full((6,), 0.2).numpy(),
        bounds=[(0, 1)] * 6,
        constraints={"type": "ineq", "fun": lambda s: 2 - s.sum()},
        tol=1e-12,
    )
    torch.testing.assert_close(project(a, 2), torch.from_numpy(found.x), rtol=0, atol=1e-5)


# --- gradients -----------------------------------------------------------------------------------------------------


def dense_logits(model: SurrogateGCN, x: Tensor, a: Tensor) -> Tensor:
    a = a + torch.eye(a.size(0), dtype=a.dtype)
    root = a.sum(1).rsqrt()
    a = root.unsqueeze(1) * a * root
    return a @ ((a @ (x @ model.w1) + model.b1).relu() @ model.w2) + model.b2


def by_autograd(problem: Problem, s: Tensor) -> Tensor:
    """Return the gradient in s (N, N), above the diagonal, through the dense matrix A + C ∘ (S + Sᵀ)."""
    assert isinstance(problem.victim, SurrogateGCN)
    assert isinstance(problem.inputs, Features)
    assert problem.inputs.dense is not None
    a = torch.zeros_like(s)
    a[problem.edges[0], problem.edges[1]] = 1
    a = a + a.t()
    s = s.clone().requires_grad_()
    upper = s.triu(1)
    logits = dense_logits(problem.victim, problem.inputs.dense, a + (1 - 2 * a) * (upper + upper.t()))
    (gradient,) = torch.autograd.grad(problem.value(logits), [s])
    return gradient


@pytest.mark.parametrize("loss", LOSSES)
def test_gradients_equal_dense_autograd(loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[DenseFlips.__module__], "ENTRIES", 1000)  # several blocks of rows
    problem = block_problem(torch.float64, loss)
    n = problem.num_nodes
    flips = DenseFlips(problem)
    draw = torch.rand(n, n, generator=generator(2), dtype=torch.float64).triu(1)
    flips.s = draw * (draw > 0.9)
    flips.s[problem.edges[0, ::3], problem.edges[1, ::3]] = 0.25
    truth = by_autograd(problem, flips.s)
    by_factors = torch.cat([rows for _, _, rows in flips._rows(flips.gradient())])
    torch.testing.assert_close(by_factors, truth)
    keys = draw_block(problem, 500, generator())
    u, v = from_keys(keys, n)
    s = torch.zeros_like(flips.s)
    s[u, v] = flips.s[u, v]
    torch.testing.assert_close(block_gradient(problem, keys, s[u, v]), by_autograd(problem, s)[u, v])
    # a surrogate that is only a callable
    victim = problem.victim
    flips.problem = problem.with_victim(lambda *inputs: victim(*inputs))
    torch.testing.assert_close(torch.cat([rows for _, _, rows in flips._rows(flips.gradient())]), truth)


def test_block_is_uniform_over_the_pairs() -> None:
    problem = block_problem()
    counts = torch.zeros(90, 90)
    for seed in range(60):
        u, v = from_keys(draw_block(problem, 500, generator(seed)), 90)
        assert bool((u < v).all())
        counts[u, v] += 1
    inside = counts[torch.triu_indices(90, 90, 1).unbind()]
    expected = 60 * (1 - (1 - 1 / problem.pairs) ** 500)
    assert float(inside.mean()) == pytest.approx(expected, rel=0.01)
    assert float(inside.var()) == pytest.approx(expected * (1 - expected / 60), rel=0.1)
    assert draw_block(problem, problem.pairs, generator()).numel() == problem.pairs


# --- rounding ------------------------------------------------------------------------------------------------------


def test_rounding_returns_the_best_sample_and_meets_the_budget() -> None:
    problem = block_problem()
    pairs = from_keys(draw_block(problem, 200, generator()), 90)
    values = torch.linspace(0.3, 0, pairs.size(1))
    few, _ = best_rounding(problem, pairs, values, BUDGET, 1, generator(), allow_isolated=False)
    many, _ = best_rounding(problem, pairs, values, BUDGET, 30, generator(), allow_isolated=False)
    assert few.size(1) == many.size(1) == BUDGET
    assert problem.value_after(many) > problem.value_after(few)
    certain, _ = best_rounding(problem, pairs, (values > 0.25).float(), BUDGET, 5, generator(), allow_isolated=True)
    assert torch.equal(certain, pairs[:, :BUDGET])


# --- strength ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSSES)
def test_stronger_than_random_flips(loss: str) -> None:
    data, train = blocks()
    problem = block_problem(loss=loss)
    random = max(
        problem.value_after(random_flips(data, BUDGET, generator(seed), kind="flip").flips) for seed in range(20)
    )
    for attack, options in ((pgd, {"steps": 30}), (prbcd, {"steps": 30, "fine_tune": 10}), (grbcd, {})):
        flips = attack(data, BUDGET, train, generator(), surrogate=problem.victim, loss=loss, **options)  # type: ignore[operator]
        assert problem.value_after(flips.flips) > random


def test_first_flip_of_grbcd_has_the_highest_gradient() -> None:
    data, train = blocks()
    problem = block_problem()
    flip = grbcd(data, 1, train, generator(), surrogate=problem.victim).flips
    gradient = by_autograd(problem, torch.zeros(90, 90)).triu(1)
    assert int(to_keys(flip, 90)) == int(gradient.argmax())


def test_callable_surrogate_gives_the_same_flips() -> None:
    data, train = blocks()
    victim = block_problem().victim
    for attack, options in ((pgd, {"steps": 4}), (prbcd, {"steps": 4, "fine_tune": 2}), (grbcd, {"steps": 4})):
        ours, theirs = (
            attack(data, BUDGET, train, generator(), surrogate=model, **options).flips  # type: ignore[operator]
            for model in (victim, lambda *inputs: victim(*inputs))
        )
        assert set(to_keys(ours, 90).tolist()) == set(to_keys(theirs, 90).tolist())


def test_minmax_poisons() -> None:
    """A model trained on the flipped graph makes more errors outside ``train`` than one trained on random flips."""
    data, train = blocks()
    problem = block_problem()

    def errors_after(flips: Tensor) -> float:
        errors = 0.0
        for seed in range(2):
            model = fit_surrogate(
                Data(data.x, undirected(problem.flipped(flips), 90), y=data.y), train, generator(seed)
            )
            wrong = predict(model, problem.inputs, problem.flipped(flips)).argmax(1) != data.y
            errors += float(wrong[18:].float().mean())
        return errors

    flips = minmax(data, 20, train, generator(), steps=25).flips
    assert errors_after(flips) > errors_after(random_flips(data, 20, generator()).flips)


class Module(nn.Module):
    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self.problem = problem

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        return self.problem.victim(x, edge_index, edge_weight)


def test_as_strong_as_pyg() -> None:
    """PyG's PR-BCD and GR-BCD reach no higher loss with the same surrogate, labels, nodes and loss."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyG warns that contrib is experimental
        from torch_geometric.contrib.nn import GRBCDAttack, PRBCDAttack
    data, train = blocks()
    problem = block_problem()
    values = torch.randn(300, generator=generator()) * 0.3
    torch.testing.assert_close(PRBCDAttack._project(9, values), project(values, 9), rtol=0, atol=2e-5)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for peer, ours, options in (
            (PRBCDAttack, prbcd, {"steps": 40, "fine_tune": 10}),
            (GRBCDAttack, grbcd, {"steps": 12}),
        ):
            attack = peer(Module(problem), 2000, epochs=options["steps"], loss="tanh_margin", log=False)
            if peer is PRBCDAttack:
                attack.epochs_resampling = 30
                attack.metric = PRBCDAttack._tanh_margin_loss
            _, theirs = attack.attack(data.x, data.edge_index, problem.labels, BUDGET, problem.nodes)
            flips = ours(
                data,
                BUDGET,
                train,
                generator(),
                surrogate=problem.victim,
                block_size=2000,
                allow_isolated=True,
                **options,
            )
            loss_of_pyg = problem.value_after(torch.stack([theirs.min(0).values, theirs.max(0).values]))
            # the tolerance covers the randomness of the blocks
            assert problem.value_after(flips.flips) > loss_of_pyg - 0.05
