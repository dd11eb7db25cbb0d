"""Attacks through the unrolled training: the meta-gradient, its memory-saving reverse pass, and the flips found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.func import functional_call
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GCN as PyGGCN

from asgnn.asmp import ASMPParams, Scheme
from asgnn.attacks.inner import InnerTraining
from asgnn.attacks.meta_gradient import MetaGradient
from asgnn.attacks.poison import meta_greedy, meta_pgd
from asgnn.attacks.unrolled import Derivative, Unrolled, UnrolledTraining
from asgnn.errors import ConfigError
from asgnn.graphs import undirected
from asgnn.graphs.features import Features
from asgnn.graphs.relaxed import Relaxation
from asgnn.models import APPNP, ASGNN, GAT, GCN, RUNG, SGC, ElasticGNN, GCNJaccard, GNNGuard, SoftMedianGCN
from asgnn.models import witness as witnesses
from asgnn.models.base import stack
from tests.attacks.test_contract import generator

CLASSES = 3
DERIVATIVES: tuple[Derivative, ...] = ("exact", "difference")


def tiny(n: int = 12, dtype: torch.dtype = torch.float64) -> tuple[Data, Tensor]:
    """Return a random graph of three classes and its training nodes."""
    rng = generator(3)
    y = torch.arange(n) % CLASSES
    edges = undirected((torch.rand(n, n, generator=rng).triu(1) > 0.75).nonzero().t(), n)
    x = torch.randn(n, 4, generator=rng, dtype=dtype).abs() + F.one_hot(y, 4)
    return Data(x=x, edge_index=edges, y=y), torch.arange(n // 2)


def fresh(make: Callable[[], nn.Module], seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make().to(dtype)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "gcn": lambda: GCN(4, 5, CLASSES),
    "gcn, stack of 2": lambda: stack([GCN(4, 5, CLASSES), GCN(4, 5, CLASSES)]),
    "gcn of PyG": lambda: PyGGCN(4, 5, 2, CLASSES, dropout=0.5),
    "sgc": lambda: SGC(4, CLASSES),
    "gat": lambda: GAT(4, 5, CLASSES),
    "appnp": lambda: APPNP(4, 5, CLASSES, num_layers=3),
    "gcn-jaccard": lambda: GCNJaccard(4, 5, CLASSES),
    "gnnguard": lambda: GNNGuard(4, 5, CLASSES),
    "softmedian": lambda: SoftMedianGCN(4, 5, CLASSES),
    "elastic": lambda: ElasticGNN(4, 5, CLASSES, lambda1=0.05, num_layers=3),
    "rung": lambda: RUNG(4, 5, CLASSES, num_layers=3),
    "asgnn": lambda: ASGNN(4, 5, CLASSES, num_layers=3, dropout=0.3),
    "asgnn, exact": lambda: ASGNN(4, 5, CLASSES, num_layers=3, scheme=Scheme(structure="exact")),
    "asgnn, frozen": lambda: ASGNN(
        4, 5, CLASSES, num_layers=3, params=ASMPParams(lam=2.0), scheme=Scheme(structure="frozen")
    ),
}
TRAININGS = {
    "sgd": UnrolledTraining(optimizer="sgd", steps=4, lr=0.3, redraw=False),
    "adam": UnrolledTraining(steps=4, optimizer="adam", lr=0.05, redraw=False),
    "no dropout": UnrolledTraining(steps=4, dropout=False, redraw=False),
}


def meta_gradient(victim: Unrolled, data: Data, weight: Tensor) -> Tensor:
    weight = weight.clone().requires_grad_()
    value = F.cross_entropy(victim(data.x, data.edge_index, weight)[6:], data.y[6:])
    return torch.autograd.grad(value, weight)[0]


def symmetric(data: Data, seed: int) -> Tensor:
    """Return random numbers in [0, 1), equal for both directions of an edge."""
    n = int(data.num_nodes)
    upper = torch.rand(n, n, generator=generator(seed), dtype=torch.float64).triu(1)
    return (upper + upper.t())[data.edge_index[0], data.edge_index[1]]


def summed(gradient: Tensor, data: Data) -> Tensor:
    """Return (N, N), for each pair of nodes the sum of both directions."""
    n = int(data.num_nodes)
    one = gradient.new_zeros(n, n).index_put((data.edge_index[0], data.edge_index[1]), gradient)
    return one + one.t()


def relaxed(data: Data) -> Tensor:
    return 0.2 + 0.6 * symmetric(data, 5)


@pytest.mark.parametrize("training", TRAININGS)
@pytest.mark.parametrize("name", MODELS)
def test_meta_gradient_equals_finite_differences(name: str, training: str) -> None:
    data, train = tiny()
    victim = Unrolled(fresh(MODELS[name]), train, data.y, TRAININGS[training])
    weight, step = relaxed(data), 1e-5
    gradient = meta_gradient(victim, data, weight)
    for seed in (6, 7):
        direction = symmetric(data, seed) - 0.5
        with torch.no_grad():
            up, down = (
                F.cross_entropy(victim(data.x, data.edge_index, weight + sign * step * direction)[6:], data.y[6:])
                for sign in (1, -1)
            )
        size = float(gradient.norm() * direction.norm())
        assert size > 0
        assert float((up - down) / (2 * step)) == pytest.approx(float(gradient @ direction), abs=1e-6 * size)


def test_reverse_pass_equals_autograd_through_all_steps() -> None:
    data, train = tiny()
    model, training = (
        fresh(MODELS["asgnn"]).eval(),
        UnrolledTraining(optimizer="sgd", steps=6, lr=0.2, dropout=False, redraw=False),
    )
    victim = Unrolled(model, train, data.y, training)
    weight = relaxed(data).requires_grad_()
    start = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    rates = dict(zip(start, victim.parts(victim.rates), strict=True))
    decays = dict(zip(start, victim.parts(victim.decays), strict=True))
    assert sorted(set(victim.rates.tolist())) == [training.scalar_lr, training.lr]
    values, velocity = start, {name: torch.zeros_like(p) for name, p in start.items()}
    for _ in range(training.steps):
        logits = functional_call(model, values, (data.x, data.edge_index, weight))
        loss = F.cross_entropy(logits[train], data.y[train])
        gradient = torch.autograd.grad(loss, list(values.values()), create_graph=True)
        for (name, p), g in zip(values.items(), gradient, strict=True):
            velocity[name] = training.momentum * velocity[name] + g + decays[name] * p
        values = {name: p - rates[name] * velocity[name] for name, p in values.items()}
    logits = functional_call(model, values, (data.x, data.edge_index, weight))
    (truth,) = torch.autograd.grad(F.cross_entropy(logits[6:], data.y[6:]), weight)
    torch.testing.assert_close(meta_gradient(victim, data, weight.detach()), truth, rtol=1e-12, atol=1e-12)


class Linear(nn.Module):
    """Metattack's surrogate Â²XW₁W₂."""

    def __init__(self, w1: Tensor, w2: Tensor) -> None:
        super().__init__()
        self.w1, self.w2 = nn.Parameter(w1), nn.Parameter(w2)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        a = torch.eye(x.size(0), dtype=x.dtype).index_put((edge_index[0], edge_index[1]), edge_weight, accumulate=True)
        root = a.sum(1).rsqrt()
        a = root.unsqueeze(1) * a * root
        return a @ a @ x @ self.w1 @ self.w2


def test_equals_metattack_for_its_linear_surrogate() -> None:
    data, train = tiny()
    inner = InnerTraining(steps=7, lr=0.2, hidden=3, starts=1)
    theirs = MetaGradient(data, train, data.y, 0.0, inner, dtype=torch.float64)
    w1, w2 = theirs.start(generator())
    truth = theirs.gradient(w1, w2)
    training = UnrolledTraining(optimizer="sgd", steps=7, lr=0.2, weight_decay=0.0, redraw=False)
    victim = Unrolled(Linear(w1[0].clone(), w2[0].clone()), train, data.y, training)
    n = data.num_nodes
    pairs = torch.triu_indices(n, n, 1)
    present = torch.zeros(n, n, dtype=torch.float64)
    present[data.edge_index[0], data.edge_index[1]] = 1
    both = torch.cat([pairs, pairs.flip(0)], dim=1)
    weight = present[both[0], both[1]].requires_grad_()
    (found,) = torch.autograd.grad(F.cross_entropy(victim(data.x, both, weight)[6:], data.y[6:]), weight)
    torch.testing.assert_close(found.view(2, -1).sum(0), truth[pairs[0], pairs[1]])


@pytest.mark.parametrize("name", ["gcn", "asgnn", "rung", "gnnguard"])
def test_difference_approximates_the_exact_derivative(name: str) -> None:
    data, train = tiny()
    training = UnrolledTraining(steps=4)
    exact, difference = (
        meta_gradient(
            Unrolled(fresh(MODELS[name]), train, data.y, replace(training, derivative=derivative)), data, relaxed(data)
        )
        for derivative in DERIVATIVES
    )
    # Only the sum of both directions is defined for symmetric weights; backends divide it differently.
    exact, difference = (summed(gradient, data) for gradient in (exact, difference))
    torch.testing.assert_close(difference, exact, rtol=0, atol=1e-5 * float(exact.abs().max()))


def test_difference_is_taken_in_double_precision() -> None:
    data, train = tiny()
    data.x, weight = data.x.float(), relaxed(data).float()
    model, training = fresh(MODELS["asgnn"], dtype=torch.float32), UnrolledTraining(steps=4, derivative="difference")
    single = meta_gradient(Unrolled(model, train, data.y, training), data, weight)
    data.x = data.x.double()
    double = meta_gradient(Unrolled(model, train, data.y, training), data, weight.double())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), double, rtol=1e-6, atol=1e-6 * float(double.abs().max()))


class Says(nn.Module):
    """A witness whose log-probabilities come from the first features."""

    def forward(self, features: Features, adj: object) -> Tensor:
        return features.to_dense()[:, :CLASSES].log_softmax(1)


@pytest.mark.parametrize("derivative", DERIVATIVES)
def test_a_witness_speaks_after_the_training_only(derivative: Derivative) -> None:
    data, train = tiny()
    witness = witnesses.Witness(floor=0.2, voice=0.7)
    logits = []
    for one in (witness, witness.silent()):
        model = ASGNN(4, 5, CLASSES, num_layers=3, witness=one).double()
        model.reset_parameters(generator())
        model.testimony = witnesses.Testimony(Says())
        victim = Unrolled(model, train, data.y, UnrolledTraining(steps=3, derivative=derivative))
        logits.append(victim(data.x, data.edge_index, relaxed(data)))
    heard, trained = logits
    p = data.x[:, :CLASSES].softmax(1)
    torch.testing.assert_close(heard, witness.joined(trained, p))


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return 2 * grad


class TwiceTheGCN(GCN):
    """A GCN whose logits can be differentiated only once, as with a kernel of the GPU."""

    def logits(self, *inputs: Any) -> Tensor:
        out: Tensor = Once.apply(super().logits(*inputs))
        return out


def test_a_model_without_second_derivatives() -> None:
    data, train = tiny()
    model = fresh(lambda: TwiceTheGCN(4, 5, CLASSES))
    with pytest.raises(ConfigError, match='second derivatives; use a model with backend="edges", or'):
        meta_gradient(Unrolled(model, train, data.y, UnrolledTraining(steps=2)), data, relaxed(data))
    victim = Unrolled(model, train, data.y, UnrolledTraining(steps=2, derivative="difference"))
    assert float(meta_gradient(victim, data, relaxed(data)).abs().max()) > 0


@pytest.mark.parametrize("name", ["gcn", "sgc", "asgnn"])
def test_single_flip_is_the_best_of_all(name: str) -> None:
    data, train = tiny(8)
    model, training = fresh(MODELS[name], 1), UnrolledTraining(optimizer="sgd", steps=5, lr=0.5, redraw=False)
    victim = Unrolled(model, train, data.y, training)
    attacked, y = torch.arange(4, 8), data.y[4:]
    present = torch.zeros(8, 8)
    present[data.edge_index[0], data.edge_index[1]] = 1
    values = {}
    for u, v in torch.triu_indices(8, 8, 1).t().tolist():
        a = present.clone()
        a[u, v] = a[v, u] = 1 - a[u, v]
        edges = a.nonzero().t()
        with torch.no_grad():
            logits = victim(data.x, edges, torch.ones(edges.size(1), dtype=torch.float64))[attacked]
        margin = logits.scatter(1, y.unsqueeze(1), -torch.inf).amax(1) - logits.gather(1, y.unsqueeze(1)).squeeze(1)
        values[u, v] = float((margin > 0).double().mean()), float(margin.tanh().mean())
    options = {
        "known": attacked,
        "training": training,
        "steps": 2,
        "base_lr": 1.0,
        "samples": 100,
        "loss": "tanh_margin",
    }
    found = meta_pgd(data, 1, train, generator(), model=model, allow_isolated=True, **options)
    u, v = found.flips[:, 0].tolist()
    assert values[u, v] == max(values.values())


def test_retrain_decides() -> None:
    """A victim that is fooled only without a pair that the attack would otherwise flip: the attack leaves it out."""
    data, train = tiny(dtype=torch.float32)
    options = {
        "model": fresh(MODELS["gcn"], dtype=torch.float32),
        "training": UnrolledTraining(steps=3),
        "steps": 4,
        "base_lr": 0.1,
        "samples": 30,
    }
    pair = meta_pgd(data, 8, train, generator(), **options).flips[:, -1].tolist()

    def holds(edge_index: Tensor) -> bool:
        return pair in edge_index.t().tolist()

    def retrain(edge_index: Tensor) -> Tensor:
        assert torch.is_grad_enabled()
        fooled = holds(edge_index) == holds(data.edge_index)
        return F.one_hot((data.y + fooled) % CLASSES, CLASSES).expand(2, -1, -1)  # as of two victims

    found = meta_pgd(data, 8, train, generator(), known=torch.arange(12), retrain=retrain, **options)
    assert pair not in found.flips.t().tolist()


@pytest.mark.parametrize(("name", "clips"), [("gcn", False), ("gnnguard", True), ("asgnn", True)])
def test_relaxed_derivatives_of_an_exact_training(name: str, clips: bool) -> None:
    data, train = tiny()
    plain, soft = (
        Unrolled(fresh(MODELS[name]), train, data.y, UnrolledTraining(steps=3, relaxation=relaxation))
        for relaxation in (None, Relaxation())
    )
    weight = relaxed(data)
    assert torch.equal(*(victim(data.x, data.edge_index, weight) for victim in (plain, soft)))
    exact, passed = (summed(meta_gradient(victim, data, weight), data) for victim in (plain, soft))
    assert torch.allclose(exact, passed) != clips


@pytest.mark.parametrize("name", ["gcn", "gcn, stack of 2", "gcn of PyG", "asgnn"])
def test_redrawn_weights_depend_on_the_edges_alone(name: str) -> None:
    data, train = tiny()
    victim = Unrolled(fresh(MODELS[name]), train, data.y, UnrolledTraining(steps=3))
    fixed = Unrolled(fresh(MODELS[name]), train, data.y, UnrolledTraining(steps=3, redraw=False))
    first, second = (0.2 + 0.6 * symmetric(data, seed) for seed in (1, 2))
    before = torch.get_rng_state()
    once, _, again = (meta_gradient(victim, data, weight) for weight in (first, second, first))
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(once, again)
    assert not torch.allclose(once, meta_gradient(fixed, data, first))
    runs = [victim._of_edges(data.edge_index, weight) for weight in (first, second)]
    short = Unrolled(fresh(MODELS[name]), train, data.y, UnrolledTraining(steps=5, least=2))
    lengths = {short._of_edges(data.edge_index, symmetric(data, seed)).steps for seed in range(40)}
    assert lengths == {2, 3, 4, 5}
    assert not torch.equal(*(run.start for run in runs))
    with torch.no_grad():  # without gradient, the initial weights are those of the model
        assert torch.equal(*(one(data.x, data.edge_index, first) for one in (victim, fixed)))


def test_meta_data_and_model_are_kept() -> None:
    data, train = tiny(dtype=torch.float32)
    model = fresh(MODELS["gcn"], dtype=torch.float32)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = meta_greedy(data, 2, train, generator(), model=model, training=UnrolledTraining(steps=3), steps=2)
    assert found.meta["attack"] == "meta_greedy"
    assert found.meta["training_steps"] == "3"
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu_equals_cpu_and_says_what_it_cannot() -> None:
    data, train = tiny()
    training = UnrolledTraining(steps=4, lr=0.05, dropout=False, redraw=False)
    on_gpu = data.clone().to("cuda")
    for backend in ("edges", "auto"):
        model = fresh(lambda backend=backend: ASGNN(4, 5, CLASSES, num_layers=3, backend=backend))
        truth = meta_gradient(Unrolled(model, train, data.y, training), data, relaxed(data))
        victim = Unrolled(model, train.cuda(), on_gpu.y, training)
        if backend == "edges":
            found = meta_gradient(victim, on_gpu, relaxed(data).cuda())
            torch.testing.assert_close(found.cpu(), truth, rtol=0, atol=1e-8 * float(truth.abs().max()))
        else:
            with pytest.raises(ConfigError, match='use a model with backend="edges"'):
                meta_gradient(victim, on_gpu, relaxed(data).cuda())


def test_bad_settings() -> None:
    data, train = tiny(dtype=torch.float32)
    for options, sentence in (
        ({"steps": -1}, "steps must be a whole number from 0"),
        ({"optimizer": "lbfgs"}, "optimizer must be one of sgd, adam"),
        ({"derivative": "third"}, "derivative must be one of exact, difference"),
        ({"eps": 0.0}, r"eps must be a number in \(0, inf\)"),
        ({"lr": float("nan")}, "lr must be a number"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            UnrolledTraining(**options)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="Linear has no method reset_parameters"):
        meta_pgd(data, 1, train, generator(), model=Linear(torch.ones(4, 2), torch.ones(2, 3)))
    with pytest.raises(ConfigError, match="no trainable parameters"):
        meta_pgd(data, 1, train, generator(), model=nn.Identity())
    with pytest.raises(ConfigError, match=r"must be an untrained torch\.nn\.Module; it is a function"):
        meta_pgd(data, 1, train, generator(), model=lambda x: x)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="has 2 classes, but a training node has label 2"):
        meta_pgd(data, 1, train, generator(), model=fresh(lambda: GCN(4, 5, 2), dtype=torch.float32))
