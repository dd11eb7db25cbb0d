"""Properties of the two objectives, and counterexamples to statements of the paper."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from asgnn.asmp import ASMPParams, Scheme, asmp, lipschitz_h, lipschitz_joint, lipschitz_s, max_eta, propagate
from asgnn.asmp.params import PenaltyName, Structure
from asgnn.asmp.penalties import mcp_divergence, mcp_weight, strength_and_trust
from asgnn.graphs.adjacency import Adjacency
from tests.awkward import AWKWARD, star

F64 = torch.float64


def random_walk_laplacian(n: int, edge_index: Tensor) -> Tensor:
    a = torch.eye(n, dtype=F64)
    a[edge_index[0], edge_index[1]] = 1
    return torch.eye(n, dtype=F64) - a / a.sum(1, keepdim=True)


# --- objective="paper" ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "norm", "eigenvalue"), [(30, 2.91, -0.72), (300, 8.72, -3.61)])
def test_star_is_a_counterexample_to_the_lemma_and_the_lower_bound(n: int, norm: float, eigenvalue: float) -> None:
    """On a star with self-loops ‖L_rw‖₂ > 2 and Tr(HᵀL_rwH) is unbounded below."""
    l_rw = random_walk_laplacian(n, star(n))
    assert torch.linalg.matrix_norm(l_rw, 2).item() == pytest.approx(norm, abs=0.01)
    smallest, direction = torch.linalg.eigh((l_rw + l_rw.t()) / 2)
    assert smallest[0].item() == pytest.approx(eigenvalue, abs=0.01)
    # along that direction, with X = 0, p is (1 + λ·eigenvalue) t², unbounded below for large λ
    lam = 2 / -float(smallest[0])
    values = []
    for t in (1.0, 10.0, 100.0):
        h = t * direction[:, :1]
        values.append(float(h.square().sum() + lam * (h * (l_rw @ h)).sum()))
    assert values[2] < values[1] < values[0] < 0


def test_feature_step_of_the_paper_is_not_the_gradient_of_p() -> None:
    n, edge_index = AWKWARD["star"]
    l_rw = random_walk_laplacian(n, edge_index)
    h = torch.randn(n, 2, generator=torch.Generator().manual_seed(0), dtype=F64, requires_grad=True)
    (gradient,) = torch.autograd.grad((h * (l_rw @ h)).sum(), h)
    torch.testing.assert_close(gradient, (l_rw + l_rw.t()) @ h.detach())
    assert not torch.allclose(gradient, 2 * l_rw @ h.detach(), atol=0.1)


def test_paper_objective_increases_on_the_star_within_the_theorems_step_sizes() -> None:
    """A counterexample: p increases with a frozen structure and η₁ below the theorem's bound."""
    n, lam = 30, 1.0
    rises = 0
    for seed in range(10):
        x = torch.randn(n, 4, generator=torch.Generator().manual_seed(seed), dtype=F64)
        eta1 = 0.9 * max_eta(lipschitz_h(lam, "paper"))
        out = asmp(
            x,
            star(n),
            ASMPParams(lam, 0.0, 0.0, 0.0, eta1, 0.0),
            layers=20,
            objective="paper",
            structure="frozen",
            trace=True,
        )
        totals = torch.stack([terms.total for terms in out.objective])
        rises += int((totals.diff() > 1e-9 * totals[:-1].abs()).sum())
    assert rises > 0


@pytest.mark.parametrize("graph", ["star", "random 33", "isolated node"])
def test_iteration_of_the_paper_converges(graph: str) -> None:
    """For fixed S the recursion converges to (I + λL_rw)⁻¹X, even if p increases on the way."""
    n, edge_index = AWKWARD[graph]
    lam = 2.0
    x = torch.randn(n, 3, generator=torch.Generator().manual_seed(1), dtype=F64)
    out = asmp(x, edge_index, ASMPParams(lam=lam), layers=400, structure="frozen")
    exact = torch.linalg.solve(torch.eye(n, dtype=F64) + lam * random_walk_laplacian(n, edge_index), x)
    torch.testing.assert_close(out.h, exact, rtol=1e-9, atol=1e-9)


def test_structure_step_of_the_paper_is_the_gradient_of_p_in_s() -> None:
    """T equals the gradient in S of the smooth part of p, by autograd on the dense formula."""
    n = 6
    rng = torch.Generator().manual_seed(2)
    a, s = torch.rand(2, n, n, generator=rng, dtype=F64)
    s.requires_grad_()
    h = torch.randn(n, 3, generator=rng, dtype=F64)
    lam, gamma, mu2 = 1.7, 0.4, 0.2
    smooth = lam * (h * (h - s @ h / s.sum(1, keepdim=True))).sum() + gamma * (s - a).square().sum()
    (gradient,) = torch.autograd.grad(smooth + mu2 * s.square().sum(), s)
    d, g = s.detach().sum(1, keepdim=True), h @ h.t()
    average = (s.detach() * g).sum(1, keepdim=True) / d
    t = (2 * gamma + 2 * mu2) * s.detach() - 2 * gamma * a - lam / d * (g - average)
    torch.testing.assert_close(t, gradient)


# --- objective="degree" --------------------------------------------------------------------------------------------


def settings(count: int) -> list[tuple[str, int, ASMPParams, Scheme]]:
    """Random scalars, step sizes below the bounds, and four variants on five graphs."""
    rng = torch.Generator().manual_seed(11)

    def between(low: float, high: float) -> float:
        share = float(torch.rand((), generator=rng))
        return math.exp(math.log(low) + share * (math.log(high) - math.log(low)))

    out = []
    graphs = ["star", "random 33", "isolated node", "complete", "two components"]
    for i in range(count):
        lam, gamma, mu1, mu2 = between(0.1, 10), between(0.01, 10), between(1e-4, 1), between(1e-4, 1)
        eta1 = between(0.05, 0.999) * max_eta(lipschitz_h(lam))
        eta2 = between(0.05, 0.999) * max_eta(lipschitz_s(lam, gamma, mu2))
        scheme = (
            Scheme("degree"),
            Scheme("degree", structure="exact"),
            Scheme("degree", h_steps=2, s_steps=2),
            Scheme("degree", support="dense"),
        )[i % 4]
        out.append((graphs[i % len(graphs)], i, ASMPParams(lam, gamma, mu1, mu2, eta1, eta2), scheme))
    return out


@pytest.mark.parametrize(("penalty", "count"), [("quadratic", 200), ("mcp", 40)])
def test_degree_objective_never_increases(penalty: PenaltyName, count: int) -> None:
    """No half-step increases q, and S stays on the edges and in [0, 1]: random settings × 100 layers."""
    for graph, seed, params, scheme in settings(count):
        n, edge_index = AWKWARD[graph]
        scheme = replace(scheme, penalty=penalty)
        x = 2 * torch.randn(n, 3, generator=torch.Generator().manual_seed(seed), dtype=F64)
        backend = "dense" if scheme.support == "dense" else "edges"
        out = propagate(x, Adjacency.of(edge_index, n), params, scheme, layers=100, backend=backend, trace=True)  # type: ignore[arg-type]
        totals = torch.stack([terms.total for terms in out.objective])
        assert len(totals) == 201
        assert bool((totals >= 0).all())
        worst = (totals.diff() / totals[:-1]).max().item()
        assert worst <= 1e-12, f"{graph}, {params}, {scheme}: q increased by a factor of 1 + {worst:.1e}"
        s = torch.stack(out.weights)
        assert 0 <= float(s.min()) <= float(s.max()) <= 1
        if scheme.support == "dense":
            outside = torch.ones(n, n, dtype=torch.bool)
            outside[out.edge_index[0], out.edge_index[1]] = False
            assert float(s[:, outside].abs().sum()) == 0


def test_joint_update_decreases_the_degree_objective_within_its_bound() -> None:
    for graph in ("star", "random 33", "complete"):
        n, edge_index = AWKWARD[graph]
        adj = Adjacency.of(edge_index, n)
        x = torch.randn(n, 3, generator=torch.Generator().manual_seed(5), dtype=F64)
        for lam, gamma, mu2 in ((0.3, 0.5, 0.1), (2.0, 5.0, 0.0), (8.0, 0.1, 1.0)):
            bound = lipschitz_joint(
                lam,
                gamma,
                mu2,
                max_degree=float(adj.crow.diff().max()),
                feature_bound=float(x.norm(dim=1).max()),
            )
            step = 0.99 * max_eta(bound)
            out = propagate(
                x,
                adj,
                ASMPParams(lam, gamma, 0.05, mu2, step, step),
                Scheme(update="joint"),
                layers=100,
                trace=True,
            )
            totals = torch.stack([terms.total for terms in out.objective])
            assert bool((totals.diff() <= 1e-12 * totals[:-1]).all())
            assert totals[-1] < totals[0]


def test_exact_structure_is_a_gradient_step_and_the_minimiser() -> None:
    n, edge_index = AWKWARD["random 33"]
    adj = Adjacency.of(edge_index, n)
    x = torch.randn(n, 3, generator=torch.Generator().manual_seed(4), dtype=F64)
    params = ASMPParams(2.0, 3.0, 0.1, 0.2, 0.1, None)
    exact = propagate(x, adj, params, Scheme(structure="exact"), layers=3, trace=True)
    step = propagate(x, adj, params, Scheme(), layers=3)  # eta2=None is 1/(2(γ+μ₂))
    for ours, other in zip(exact.weights, step.weights, strict=True):
        torch.testing.assert_close(ours, other, rtol=1e-12, atol=1e-12)
    # any other symmetric structure has a higher q at the same H
    from asgnn.asmp.edges import EdgeSteps

    steps = EdgeSteps(x, adj, params, Scheme(structure="exact"))
    h = exact.h.unsqueeze(-1)
    best = exact.weights[-1].unsqueeze(-1)
    lowest = sum(steps.terms(h, best)).item()
    rng = torch.Generator().manual_seed(0)
    for _ in range(20):
        noise = 0.1 * torch.randn(best.shape, generator=rng, dtype=F64)
        other = (best + (noise + noise[adj.reverse]) / 2).clamp(0, 1)
        other[adj.loops] = 1
        assert sum(steps.terms(h, other)).item() > lowest


def test_bounds_equal_their_closed_forms() -> None:
    n, b, c, lam, gamma, mu2 = 50, 2.0, 0.5, 1.5, 0.3, 0.2
    assert max_eta(lipschitz_h(lam)) == pytest.approx(1 / (1 + 2 * lam))
    theorem = 1 / (gamma + mu2 + (1 + n * math.sqrt(n) / c) * lam / c**2 * n**2 * b**2)
    paper = lipschitz_s(lam, gamma, mu2, "paper", num_nodes=n, feature_bound=b, min_degree=c)
    assert max_eta(paper) == pytest.approx(theorem)
    assert max_eta(lipschitz_s(lam, gamma, mu2)) == pytest.approx(1 / (gamma + mu2))
    joint = lipschitz_joint(lam, gamma, mu2, "paper", num_nodes=n, feature_bound=b, min_degree=c)
    assert joint > max(paper, lipschitz_h(lam, "paper"))


def test_eigenvalues_of_the_hessian_of_q_in_h() -> None:
    """In the metric of D they lie in [2, 2+4λ]."""
    n, edge_index = AWKWARD["random 33"]
    lam = 3.0
    s = torch.eye(n, dtype=F64)
    s[edge_index[0], edge_index[1]] = 0.7
    d = s.sum(1)
    hessian = 2 * torch.diag(d) + 2 * lam * (torch.diag(d) - s)
    values = torch.linalg.eigvalsh(d.rsqrt()[:, None] * hessian * d.rsqrt()[None])
    assert values.min() >= 2 - 1e-9
    assert values.max() <= lipschitz_h(lam) + 1e-9


# --- penalties -----------------------------------------------------------------------------------------------------


def test_mcp_weight_is_the_minimiser_and_the_slope_of_the_penalty_of_the_cost() -> None:
    """For r ≥ 0 the weight w(u) minimises ru + f(r), and is the slope of the minimum as a function of u."""
    u = torch.linspace(0.003, 3, 61, dtype=F64, requires_grad=True)
    w = mcp_weight(u)

    def value(r: float, at: float) -> float:
        return r * at + float(mcp_divergence(torch.tensor(r, dtype=F64)))

    for at, best in zip(u.tolist(), w.tolist(), strict=True):
        found = minimize_scalar(value, args=(at,), bounds=(0, 2), method="bounded", options={"xatol": 1e-10})
        assert value(best, at) <= found.fun + 1e-12
        assert best == pytest.approx(found.x, abs=1e-5)
    lowest = w * u + mcp_divergence(w)
    (slope,) = torch.autograd.grad(lowest.sum(), u)
    torch.testing.assert_close(slope, w)


def test_mcp_weight_is_that_of_the_minimax_concave_penalty() -> None:
    """Between the cap and the cut-off, the minimum over the weight is y − y²/2 of y = √u, up to scale and constant."""
    u = torch.linspace(0.25, 1, 20, dtype=F64)
    w = mcp_weight(u)
    lowest = w * u + mcp_divergence(w)
    y = u.sqrt()
    torch.testing.assert_close(lowest - lowest[-1], 2 * (y - y.square() / 2 - 0.5))
    assert w[0] == 1
    assert w[-1] == 0


def test_ridge_strengthens_the_quadratic_penalty_and_scales_its_target() -> None:
    """γ(s − a)² + μ₂s² = γ′(s − a′)² + constant, which is the role of μ₂ in both penalties."""
    s, a = torch.linspace(0, 1, 11, dtype=F64), 0.8
    gamma, mu2 = torch.tensor([0.7, 0.2], dtype=F64)
    strength, trust = strength_and_trust(gamma, mu2)
    ours = strength * (s - trust * a).square()
    torch.testing.assert_close(ours.diff(), (gamma * (s - a).square() + mu2 * s.square()).diff())


@pytest.mark.parametrize("structure", ["adaptive", "exact"])
def test_mcp_has_finite_values_and_derivatives_everywhere(structure: Structure) -> None:
    """Equal rows (z = 0), far rows (w = 0), edges of weight 0, γ = 0 and λ < 0."""
    n, edge_index = AWKWARD["complete"]
    weight = torch.ones(n, n)
    weight[0, 1] = weight[1, 0] = 0
    weight[0, 2] = weight[2, 0] = 1e-20
    for scale, gamma, lam, dtype in itertools.product((0, 1, 1e4), (0, 1), (2.0, -0.3), (torch.float32, F64)):
        x = (scale * torch.randn(n, 2, generator=torch.Generator().manual_seed(0))).to(dtype).requires_grad_()
        a = weight[edge_index[0], edge_index[1]].to(dtype).requires_grad_()
        scalars = [torch.tensor(v, dtype=dtype, requires_grad=True) for v in (lam, gamma, 0.0, 0.0, 0.1, 0.4)]
        scheme = Scheme(penalty="mcp", structure=structure)
        for backend in ("dense", "edges"):
            adj = Adjacency.of(edge_index, n, a)
            out = propagate(x, adj, ASMPParams(*scalars), scheme, layers=3, backend=backend, trace=True)  # type: ignore[arg-type]
            value = out.h.sum() + sum(t.total for t in out.objective) + sum(w.sum() for w in out.weights)
            grads = torch.autograd.grad(value, [x, a, *scalars], materialize_grads=True)
            assert all(bool(part.isfinite().all()) for part in (value, *grads))
            s = torch.stack(out.weights)
            assert bool((s >= 0).all())
            assert bool((s <= out.weights[0]).all())  # an edge only loses weight, also for λ < 0
            assert torch.equal(s[:, adj.reverse], s)
            assert bool((s[:, adj.loops] == 1).all())


def test_mcp_gradient_in_an_edge_of_weight_0_is_the_limit_of_small_weights() -> None:
    """Attacks ask for it, to judge edges that are not there."""
    n, edge_index = AWKWARD["complete"]
    x = torch.randn(n, 2, generator=torch.Generator().manual_seed(0), dtype=F64)
    found = []
    for weight in (0, 1e-9):
        a = torch.where((edge_index < 2).all(0), weight, torch.ones(edge_index.size(1), dtype=F64)).requires_grad_()
        out = propagate(x, Adjacency.of(edge_index, n, a), ASMPParams(0.3, 2.0), Scheme(penalty="mcp"), layers=3)
        found.append(torch.autograd.grad(out.h.square().sum(), a)[0])
    torch.testing.assert_close(found[0], found[1], rtol=1e-6, atol=1e-6)
    assert float(found[0][(edge_index < 2).all(0)].abs().min()) > 1e-3
