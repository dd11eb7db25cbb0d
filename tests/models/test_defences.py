"""The robust models equal dense references, and special cases equal other models."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.nn import APPNP as PyGAPPNP

from asgnn.errors import ConfigError, GraphError
from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.features import Features
from asgnn.models import GCN, RUNG, AirGNN, ElasticGNN, GNNGuard, SoftMedianGCN
from asgnn.models.gnnguard import cosines
from asgnn.models.rung import SMOOTHING
from asgnn.models.softmedian import lower_median, take
from tests.awkward import AWKWARD

F64 = torch.float64
CLOSE = {"rtol": 1e-9, "atol": 1e-9}
SPREAD = 3.0


def problem(graph: str, weighted: bool = False) -> tuple[Tensor, Adjacency, Tensor]:
    """Features (T, N, C), the adjacency, and its dense matrix with self-loops."""
    n, edge_index = AWKWARD[graph]
    rng = torch.Generator().manual_seed(2)
    x = SPREAD * torch.randn(2, n, 4, generator=rng, dtype=F64)
    weight = torch.ones(edge_index.size(1), dtype=F64)
    if weighted:
        matrix = 0.1 + 0.9 * torch.rand(n, n, generator=rng, dtype=F64)
        weight = ((matrix + matrix.t()) / 2)[edge_index[0], edge_index[1]]
    adj = Adjacency.of(edge_index, n, weight)
    dense = torch.zeros(n, n, dtype=F64)
    dense[adj.row, adj.col] = adj.weight
    return x, adj, dense


def sym(a: Tensor) -> Tensor:
    root = a.sum(1).rsqrt()
    return root.unsqueeze(1) * a * root


def incidence(a: Tensor) -> Tensor:
    n, root = a.size(0), a.sum(1).rsqrt()
    rows = []
    for i in range(n):
        for j in range(i + 1, n):
            if a[i, j] > 0:
                row = torch.zeros(n, dtype=F64)
                row[i], row[j] = root[i], -root[j]
                rows.append(a[i, j].sqrt() * row)
    return torch.stack(rows) if rows else torch.zeros(0, n, dtype=F64)


def elastic(model: ElasticGNN, x: Tensor, a: Tensor) -> Tensor:
    delta, average = incidence(a), sym(a)
    gamma = 1 / (1 + model.lambda2)
    f, z = x, torch.zeros(delta.size(0), x.size(1), dtype=F64)
    for _ in range(model.num_layers):
        y = gamma * x + (1 - gamma) * average @ f
        z = z + delta @ (y - gamma * delta.t() @ z) / (2 * gamma)
        if model.norm == "l1":
            z = z.clamp(-model.lambda1, model.lambda1)
        else:
            z = (
                torch.stack([row * min(1.0, model.lambda1 / max(float(row.norm()), 1e-300)) for row in z])
                if len(z)
                else z
            )
        f = y - gamma * delta.t() @ z
    return f


def air(model: AirGNN, x: Tensor, a: Tensor) -> Tensor:
    laplacian = torch.eye(len(a), dtype=F64) - sym(a)
    gamma = 1 / (2 * (1 - model.lam))
    h = x
    for _ in range(model.num_layers):
        y = h - 2 * gamma * (1 - model.lam) * laplacian @ h
        far = (y - x).norm(dim=1, keepdim=True)
        h = x + torch.where(far > gamma * model.lam, 1 - gamma * model.lam / far, 0.0) * (y - x)
    return h


def rung(model: RUNG, x: Tensor, a: Tensor) -> Tensor:
    degree = a.sum(1, keepdim=True)
    f = x
    for _ in range(model.num_layers):
        u = f / degree.sqrt()
        y = ((u.unsqueeze(0) - u.unsqueeze(1)).square().sum(-1) + SMOOTHING).sqrt()
        w = (1 / (2 * y) - 1 / (2 * model.gamma)).clamp(min=0)
        w.fill_diagonal_(0)
        q = (w * a).sum(1, keepdim=True) / degree
        f = ((w * sym(a)) @ f + model.lam * x) / (q + model.lam)
    return f


def soft_median(model: SoftMedianGCN, x: Tensor, a: Tensor) -> Tensor:
    average, out = sym(a), torch.zeros_like(x)
    for i in range(len(a)):
        members = a[i].nonzero().view(-1)
        middle = x[members].sort(0).values[(len(members) - 1) // 2]
        far = (x[members] - middle).norm(dim=1) / math.sqrt(x.size(1))
        weight = torch.softmax(-far / model.temperature, 0) * average[i, members]
        out[i] = average[i].sum() * (weight / weight.sum()) @ x[members]
    return out


REFERENCES: dict[str, tuple[Callable[[], torch.nn.Module], Callable[..., Tensor]]] = {
    "elastic l21": (lambda: ElasticGNN(5, 4, 4, num_layers=6, lambda1=0.8, lambda2=2.0), elastic),
    "elastic l1": (lambda: ElasticGNN(5, 4, 4, num_layers=6, lambda1=0.5, lambda2=1.0, norm="l1"), elastic),
    "elastic without l2": (lambda: ElasticGNN(5, 4, 4, num_layers=6, lambda1=0.5, lambda2=0.0), elastic),
    "elastic, a wide ball": (lambda: ElasticGNN(5, 4, 4, num_layers=6, lambda1=1e3), elastic),
    "airgnn": (lambda: AirGNN(5, 4, 4, num_layers=6, lam=0.6), air),
    "airgnn without residual": (lambda: AirGNN(5, 4, 4, num_layers=6, lam=0.0), air),
    "rung": (lambda: RUNG(5, 4, 4, num_layers=6, gamma=2.0), rung),
    "rung l1": (lambda: RUNG(5, 4, 4, num_layers=6, gamma=math.inf, lam_hat=0.7), rung),
    "softmedian": (lambda: SoftMedianGCN(5, 4, 4), soft_median),
    "softmedian, cold": (lambda: SoftMedianGCN(5, 4, 4, temperature=1e-3), soft_median),
}


def step_of(model: torch.nn.Module, x: Tensor, adj: Adjacency) -> Tensor:
    return model.average(x, adj) if isinstance(model, SoftMedianGCN) else model.propagate(x, adj)  # type: ignore[operator]


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("graph", AWKWARD)
@pytest.mark.parametrize("name", REFERENCES)
def test_equals_the_dense_reference(name: str, graph: str, weighted: bool) -> None:
    build, reference = REFERENCES[name]
    model = build()
    x, adj, dense = problem(graph, weighted)
    out = step_of(model, x, adj)
    for t in range(2):
        torch.testing.assert_close(out[t], reference(model, x[t], dense), **CLOSE)


@pytest.mark.parametrize("name", ["elastic l21", "elastic l1", "airgnn", "softmedian"])
@pytest.mark.parametrize("graph", ["isolated node", "two components"])
def test_gradients(name: str, graph: str) -> None:
    model = REFERENCES[name][0]()
    x, adj, _ = problem(graph)
    assert torch.autograd.gradcheck(lambda h: step_of(model, h, adj), x.requires_grad_())


@pytest.mark.parametrize("name", REFERENCES)
def test_gradients_with_equal_features(name: str) -> None:
    """Norms and distances are 0, and the square root of 0 must not make the gradient NaN."""
    x, adj, _ = problem("random 33")
    same = torch.zeros_like(x).requires_grad_()
    step_of(REFERENCES[name][0](), same, adj).sum().backward()
    assert same.grad is not None
    assert same.grad.isfinite().all()


def test_training_gradient_of_rung_treats_weights_as_constant() -> None:
    """The derivative of one layer is that of the linear map with constant W."""
    x, adj, dense = problem("random 33")
    model = RUNG(5, 4, 4, num_layers=1, gamma=2.0)
    x = x[:1].requires_grad_()
    (ours,) = torch.autograd.grad(model.propagate(x, adj).square().sum(), x)
    degree, start = dense.sum(1, keepdim=True), x[0].detach()
    u = start / degree.sqrt()
    y = ((u.unsqueeze(0) - u.unsqueeze(1)).square().sum(-1) + SMOOTHING).sqrt()
    w = (1 / (2 * y) - 1 / (2 * model.gamma)).clamp(min=0).fill_diagonal_(0)
    q = (w * dense).sum(1, keepdim=True) / degree
    matrix = (w * sym(dense) + model.lam * torch.eye(len(dense), dtype=F64)) / (q + model.lam)
    torch.testing.assert_close(ours[0], 2 * matrix.t() @ matrix @ start, **CLOSE)


class TestObjectives:
    def test_elastic_decreases(self) -> None:
        x, adj, dense = problem("random 33")
        delta, laplacian = incidence(dense), torch.eye(33, dtype=F64) - sym(dense)
        torch.testing.assert_close(delta.t() @ delta, laplacian, **CLOSE)
        for norm in ("l21", "l1"):

            def value(layers: int, norm: str = norm) -> float:
                f = ElasticGNN(5, 4, 4, num_layers=layers, lambda1=0.7, lambda2=2.0, norm=norm).propagate(x, adj)[0]  # type: ignore[arg-type]
                rows = (delta @ f).norm(dim=1).sum() if norm == "l21" else (delta @ f).abs().sum()
                return float(0.7 * rows + torch.trace(f.t() @ laplacian @ f) + (f - x[0]).square().sum() / 2)

            values = [value(layers) for layers in (0, 1, 2, 5, 10, 100)]
            assert values == sorted(values, reverse=True)
            assert value(100) == pytest.approx(value(400), rel=1e-6)  # converged

    def test_air_decreases(self) -> None:
        x, adj, dense = problem("random 33")
        laplacian = torch.eye(33, dtype=F64) - sym(dense)

        def value(layers: int) -> float:
            f = AirGNN(5, 4, 4, num_layers=layers, lam=0.6).propagate(x, adj)[0]
            return float(0.6 * (f - x[0]).norm(dim=1).sum() + 0.4 * torch.trace(f.t() @ laplacian @ f))

        values = [value(layers) for layers in range(12)]
        assert values == sorted(values, reverse=True)

    @pytest.mark.parametrize("gamma", [1.5, math.inf])
    def test_rung_decreases(self, gamma: float) -> None:
        x, adj, dense = problem("random 33")
        root = dense.sum(1, keepdim=True).sqrt()
        i, j = dense.triu(1).nonzero().t()

        def value(layers: int) -> float:
            model = RUNG(5, 4, 4, num_layers=layers, gamma=gamma)
            f = model.propagate(x, adj)[0]
            y = ((f / root)[i] - (f / root)[j]).square().sum(1).add(SMOOTHING).sqrt().clamp(max=gamma)
            return float((y - y.square() / (2 * gamma)).sum() + model.lam * (f - x[0]).square().sum())

        values = [value(layers) for layers in range(12)]
        assert values == sorted(values, reverse=True)


class TestIdentities:
    def test_elastic_without_l1_is_appnp(self) -> None:
        _, edge_index = AWKWARD["random 33"]
        x, adj, _ = problem("random 33")
        out = ElasticGNN(5, 4, 4, num_layers=7, lambda1=0.0, lambda2=3.0).propagate(x, adj)
        torch.testing.assert_close(out[0], PyGAPPNP(K=7, alpha=0.25)(x[0], edge_index), rtol=1e-6, atol=1e-6)

    def test_air_without_residual_is_a_power_of_the_average(self) -> None:
        x, adj, dense = problem("random 33")
        out = AirGNN(5, 4, 4, num_layers=5, lam=0.0).propagate(x, adj)
        torch.testing.assert_close(out, torch.linalg.matrix_power(sym(dense), 5) @ x, **CLOSE)

    def test_air_with_nearly_all_residual_is_the_mlp(self) -> None:
        x, adj, _ = problem("random 33")
        assert torch.equal(AirGNN(5, 4, 4, num_layers=5, lam=0.999).propagate(x, adj), x)

    def test_rung_with_nearly_equal_features_is_appnp(self) -> None:
        """W is then a constant c on all edges, and the fixed point is that of APPNP with λ/c in place of λ."""
        x, adj, _ = problem("random 33")
        x = 1e-7 * x
        model = RUNG(5, 4, 4, num_layers=400, gamma=2.0)
        lam = model.lam / (0.5 / math.sqrt(SMOOTHING) - 0.5 / model.gamma)
        weight = adj.normalized("sym", F64)
        h = x
        for _ in range(4000):
            h = (adj.matmul(weight, h) + lam * x) / (1 + lam)
        torch.testing.assert_close(model.propagate(x, adj), h, rtol=1e-4, atol=1e-12)

    def test_rung_cuts_edges_longer_than_gamma(self) -> None:
        x, adj, _ = problem("random 33")
        torch.testing.assert_close(RUNG(5, 4, 4, num_layers=5, gamma=0.11).propagate(1e3 * x, adj), 1e3 * x, **CLOSE)

    def test_soft_median_at_high_temperature_is_gcn(self) -> None:
        n, edge_index = AWKWARD["random 33"]
        z = torch.randn(n, 9, generator=torch.Generator().manual_seed(0), dtype=F64)
        hot, gcn = SoftMedianGCN(9, 6, 3, temperature=1e12).to(F64).eval(), GCN(9, 6, 3).to(F64).eval()
        gcn.load_state_dict(hot.state_dict())
        torch.testing.assert_close(hot(z, edge_index), gcn(z, edge_index), **CLOSE)

    def test_median_ignores_one_outlier(self) -> None:
        x, adj, _ = problem("complete")
        h = x.permute(1, 2, 0)
        before = take(h, lower_median(h, adj), adj)[:6]
        high = h.clone()
        high.scatter_(0, h.argmax(0, keepdim=True), 1e9)
        assert torch.equal(take(high, lower_median(high, adj), adj)[:6], before)

    def test_gpu_and_cpu_formulas_of_take_agree(self) -> None:
        x, adj, _ = problem("random 33")
        h = x.permute(1, 2, 0).contiguous()
        node = lower_median(h, adj)
        chosen = node.index_select(0, adj.row) == adj.col.view(-1, 1, 1)
        assert (adj.row_sum(chosen.to(F64)) == 1).all()
        assert torch.equal(adj.row_sum(adj.at_col(h) * chosen), take(h, node, adj))


class TestGuard:
    @pytest.mark.parametrize("dense", [True, False])
    @pytest.mark.parametrize("graph", AWKWARD)
    def test_equals_the_dense_reference(self, graph: str, dense: bool) -> None:
        n, edge_index = AWKWARD[graph]
        rng = torch.Generator().manual_seed(3)
        z = torch.rand(n, 60, generator=rng, dtype=F64) * (torch.rand(n, 60, generator=rng) < (0.5 if dense else 0.08))
        model = GNNGuard(60, 5, 3).to(F64).eval()
        with torch.no_grad():
            model.raw_memory.fill_(0.4)
        a = torch.zeros(n, n, dtype=F64)
        a[edge_index[0], edge_index[1]] = 1

        def omega(features: Tensor, allowed: Tensor) -> Tensor:
            unit = F.normalize(features, dim=1)
            near = unit @ unit.t() * allowed
            near = torch.where(near < model.threshold, 0.0, near)
            total = near.sum(1, keepdim=True)
            return near / torch.where(total > 0, total, 1.0) + torch.diag(1 / ((near > 0).sum(1) + 1))

        def layer(h: Tensor, w: Tensor, kept: Tensor) -> Tensor:
            return sym(w.exp() * kept) @ h

        first = omega(z, a)
        h = (layer(z @ model.first.weight, first, first > 0) + model.first.bias).relu()
        second = omega(h, (first > 0) & (a > 0))
        beta = 1 / (1 + math.exp(-0.4))
        mixed = beta * first + (1 - beta) * second
        expected = layer(h @ model.second.weight, mixed, second > 0) + model.second.bias
        torch.testing.assert_close(model(z, edge_index), expected, **CLOSE)

    def test_edges_between_dissimilar_nodes_are_dropped(self) -> None:
        """With two cliques of disjoint words and one edge between them, neither side sees the other."""
        edge_index = torch.tensor([[0, 1, 0, 2, 1, 2, 3, 4, 2, 3], [1, 0, 2, 0, 2, 1, 4, 3, 3, 2]])
        z = torch.zeros(5, 8, dtype=F64)
        z[:3, :4] = torch.rand(3, 4, dtype=F64) + 0.5
        z[3:, 4:] = torch.rand(2, 4, dtype=F64) + 0.5
        model = GNNGuard(8, 5, 3).to(F64).eval()
        before = model(z, edge_index)
        z[4, 4:] *= torch.tensor([1.0, 2.0, 0.5, 3.0], dtype=F64)
        after = model(z, edge_index)
        assert torch.equal(before[:3], after[:3])
        assert not torch.allclose(before[3:], after[3:])

    def test_memory_gets_a_gradient(self) -> None:
        n, edge_index = AWKWARD["random 33"]
        z = torch.rand(n, 9, generator=torch.Generator().manual_seed(0), dtype=F64)
        model = GNNGuard(9, 5, 3).to(F64)
        model(z, edge_index).square().sum().backward()
        assert list(model.scalars()) == [model.raw_memory]
        assert float(model.raw_memory.grad.abs()) > 0

    def test_cosines_are_cached(self) -> None:
        _, adj, _ = problem("random 33")
        features = Features.of(torch.rand(33, 7, dtype=F64))
        assert cosines(features, adj) is cosines(features, adj)
        assert (cosines(Features.of(torch.zeros(33, 7, dtype=F64)), adj) == 0).all()


def test_elastic_needs_symmetric_weights() -> None:
    edge_index, weight = torch.tensor([[0, 1], [1, 0]]), torch.tensor([0.5, 1.0])
    with pytest.raises(GraphError, match="ElasticGNN needs symmetric edge weights"):
        ElasticGNN(3, 4, 2)(torch.rand(2, 3), edge_index, weight)


BAD = {
    "lambda1": (r"lambda1 must be a number in \[0, inf\); it is -1", lambda: ElasticGNN(3, 3, 3, lambda1=-1)),
    "lambda2": (r"lambda2 must be a number in \[0, inf\); it is nan", lambda: ElasticGNN(3, 3, 3, lambda2=math.nan)),
    "norm": ("norm must be one of l21, l1; it is 'l2'", lambda: ElasticGNN(3, 3, 3, norm="l2")),  # type: ignore[arg-type]
    "depth of Elastic": ("num_layers must be .* from 0 to .*; it is -1", lambda: ElasticGNN(3, 3, 3, num_layers=-1)),
    "depth of Air": ("num_layers must be .* from 0 to .*; it is -1", lambda: AirGNN(3, 3, 3, num_layers=-1)),
    "depth of RUNG": ("num_layers must be .* from 0 to .*; it is -1", lambda: RUNG(3, 3, 3, num_layers=-1)),
    "lam": (r"lam must be a number in \[0, 1\); it is 1", lambda: AirGNN(3, 3, 3, lam=1.0)),
    "gamma": (r"gamma must be a number in \(0, inf\]; it is 0", lambda: RUNG(3, 3, 3, gamma=0)),
    "lam_hat": (r"lam_hat must be a number in \(0, 1\); it is 1", lambda: RUNG(3, 3, 3, lam_hat=1)),
    "temperature": (
        r"temperature must be a number in \(0, inf\]; it is nan",
        lambda: SoftMedianGCN(3, 3, 3, temperature=math.nan),
    ),
    "threshold": (r"threshold must be a number in \[0, 1\]; it is 2", lambda: GNNGuard(3, 3, 3, threshold=2)),
}


@pytest.mark.parametrize("case", BAD)
def test_invalid_settings_raise(case: str) -> None:
    message, build = BAD[case]
    with pytest.raises(ConfigError, match=message) as caught:
        build()
    assert str(caught.value).endswith(".")
