"""Pro-GNN equals a dense reference of Alg. 1; the learned graph is used and stays within bounds."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.data import Data

from asgnn.errors import ConfigError, GraphError
from asgnn.graphs import Split, undirected
from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.features import Features
from asgnn.models import GCN, ProGNN
from asgnn.training import TrainConfig, Trial, fit, fit_many, predict
from tests.training.problem import CLASSES, NODES, WORDS, graph, split_of

F64 = torch.float64
SPLIT = split_of(0)
VARIANTS: dict[str, dict[str, object]] = {
    "default": {},
    "authors' default": {"symmetric": False},
    "without smoothness": {"lam": 0.0},
    "as in the paper": {"squared": True},
    "by products": {"method": "products"},
    "one inner step": {"inner_steps": 1},
    "strong": {"alpha": 1.0, "beta": 10.0, "gamma": 7.0, "lam": 0.3, "structure_lr": 0.03},
    "strong, directed": {"alpha": 1.0, "beta": 10.0, "gamma": 7.0, "lam": 0.3, "symmetric": False},
}


def model(seed: int = 0, dropout: float = 0.0, **options: object) -> ProGNN:
    out = ProGNN(WORDS, 8, CLASSES, dropout=dropout, **options).to(F64)  # type: ignore[arg-type]
    out.reset_parameters(torch.Generator().manual_seed(seed))
    return out


def weighted() -> Data:
    data = graph()
    data.edge_weight = torch.rand(data.num_edges, generator=torch.Generator().manual_seed(2), dtype=F64)
    matrix = dense(data)
    data.edge_weight = ((matrix + matrix.t()) / 2)[data.edge_index[0], data.edge_index[1]]
    return data


def dense(data: Data) -> Tensor:
    out = torch.zeros(NODES, NODES, dtype=F64)
    weight = data.get("edge_weight")
    out[data.edge_index[0], data.edge_index[1]] = 1.0 if weight is None else weight
    return out


class Reference:
    """Alg. 1 with autograd, torch's optimisers and dense products."""

    def __init__(self, peer: ProGNN, data: Data, config: TrainConfig) -> None:
        self.peer, self.data, self.a = peer, data, dense(data)
        self.s = self.a.clone().requires_grad_()
        self.weights = [p for p in peer.parameters() if p.requires_grad]
        self.adam = torch.optim.Adam(self.weights, lr=config.lr, weight_decay=config.weight_decay)
        self.sgd = torch.optim.SGD([self.s], lr=peer.structure_lr, momentum=0.9)

    def loss(self) -> Tensor:
        looped = self.s + torch.eye(NODES, dtype=F64)
        root = looped.sum(1).rsqrt().diag()
        first, second = self.peer.first, self.peer.last
        average = root @ looped @ root
        h = (average @ self.data.x @ first.weight + first.bias).relu()
        out = average @ h @ second.weight + second.bias
        return F.cross_entropy(out[SPLIT.train], self.data.y[SPLIT.train])

    def step_weights(self) -> float:
        self.adam.zero_grad()
        loss = self.loss()
        loss.backward()
        self.adam.step()
        return loss.item()

    def step_structure(self) -> None:
        p, s = self.peer, self.s
        self.sgd.zero_grad()
        both = (s + s.t()) / 2
        degree = both.sum(1)
        root = (degree + 1e-3).rsqrt().diag()
        smooth = (self.data.x.t() @ root @ (degree.diag() - both) @ root @ self.data.x).trace()
        distance = (s - self.a).square().sum() if p.squared else torch.linalg.norm(s - self.a)
        (distance + p.gamma * self.loss() + p.lam * smooth).backward()
        if p.symmetric:
            s.grad = (s.grad + s.grad.t()) / 2
        self.sgd.step()
        with torch.no_grad():
            u, values, vt = torch.linalg.svd(s)
            low = u @ (values - p.structure_lr * p.beta).clamp(min=0).diag() @ vt
            s.copy_((low.sign() * (low.abs() - p.structure_lr * p.alpha).clamp(min=0)).clamp(0, 1))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("plain", [True, False], ids=["plain", "weighted"])
def test_training_equals_the_reference(variant: str, plain: bool) -> None:
    data, config = graph() if plain else weighted(), TrainConfig(8, lr=0.03, weight_decay=0.01)
    ours = model(**VARIANTS[variant])
    reference = Reference(copy.deepcopy(ours), data, config)
    result = fit(ours, data, config, split=SPLIT)
    by_products = VARIANTS[variant].get("method") == "products"  # error of at most 1 % of the threshold
    tolerance = 0.01 * ours.structure_lr * ours.beta if by_products else 1e-7
    for epoch, loss_of_ours in enumerate(result.history.train_loss.tolist(), 1):
        assert reference.step_weights() == pytest.approx(loss_of_ours, rel=tolerance)
        if epoch % ours.inner_steps == 0:
            reference.step_structure()
        if epoch == result.best_epoch:
            torch.testing.assert_close(ours.structure.detach(), reference.s.detach(), rtol=0, atol=4 * tolerance)


def last_structure(prognn: ProGNN, steps: int) -> Tensor:
    """The structure after ``steps`` structure steps, without validation."""
    data = graph()
    features, adj = Features.of(data.x), Adjacency.of(data.edge_index, NODES)
    prognn.begin(features, adj)
    for _ in range(steps):
        prognn.step_structure(lambda: F.cross_entropy(prognn(features, adj)[SPLIT.train], data.y[SPLIT.train]).view(1))
    return prognn.structure.detach()


@pytest.mark.parametrize("variant", VARIANTS)
def test_structure_stays_in_bounds(variant: str) -> None:
    start, after = last_structure(model(**VARIANTS[variant]), 0), last_structure(model(**VARIANTS[variant]), 6)
    assert not torch.equal(start, after)
    assert float(after.min()) >= 0
    assert float(after.max()) <= 1
    if VARIANTS[variant].get("symmetric", True):
        assert torch.equal(after, after.t())


@pytest.mark.parametrize("symmetric", [True, False])
def test_a_fixed_structure_is_a_gcn(symmetric: bool) -> None:
    data, config = weighted(), TrainConfig(12, lr=0.05, seed=3)
    ours = model(dropout=0.5, alpha=0.0, beta=0.0, lam=0.0, structure_lr=0.0, symmetric=symmetric)
    peer = GCN(WORDS, 8, CLASSES).to(F64)
    peer.load_state_dict({key: value for key, value in ours.state_dict().items() if key != "structure"})
    first, second = (fit(module, data, config, split=SPLIT) for module in (ours, peer))
    torch.testing.assert_close(first.history.val_loss, second.history.val_loss, rtol=1e-10, atol=1e-10)
    assert torch.equal(predict(ours, data), predict(peer, data))


@pytest.mark.parametrize("variant", ["default", "authors' default", "by products"])
def test_batch_equals_one_by_one(variant: str) -> None:
    data = graph()

    def trials() -> list[Trial]:
        settings = ((0.5, 0.01), (0.0, 0.1), (0.3, 0.03))
        return [
            Trial(model(i, dropout, **VARIANTS[variant]), TrainConfig(10, lr=lr, seed=i), split_of(i))
            for i, (dropout, lr) in enumerate(settings)
        ]

    many, alone = fit_many(trials(), data), [fit_many([spec], data)[0] for spec in trials()]
    assert {result.batch for result in many} == {3}
    for result, single in zip(many, alone, strict=True):
        torch.testing.assert_close(result.history.val_loss, single.history.val_loss, rtol=1e-7, atol=1e-7)
        for p, q in zip(result.model.parameters(), single.model.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=0, atol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_false_edges_lose_weight(seed: int) -> None:
    """With two dense groups (low rank) and a few edges between them, those edges end with lower weights."""
    rng, n, words = torch.Generator().manual_seed(seed), 60, 40
    y = torch.arange(n) % 2
    same = y.unsqueeze(0) == y.unsqueeze(1)
    true = ((torch.rand(n, n, generator=rng) < 0.5) & same).triu(1)
    false = ((torch.rand(n, n, generator=rng) < 0.08) & ~same).triu(1)
    share = torch.where(y.unsqueeze(1) == torch.arange(words) % 2, 0.3, 0.05)
    x = (torch.rand(n, words, generator=rng) < share).to(F64)
    data = Data(x=x, edge_index=undirected((true | false).nonzero().t(), n), y=y)
    ours = ProGNN(words, 8, 2, dropout=0.0, structure_lr=0.03).to(F64)
    ours.reset_parameters(torch.Generator().manual_seed(seed))
    nodes = torch.arange(n)
    fit(ours, data, TrainConfig(100, lr=0.01), split=Split(nodes[:12], nodes[12:30], nodes[30:]))
    lighter = ours.structure[false].unsqueeze(1) < ours.structure[true].unsqueeze(0)
    assert float(lighter.double().mean()) > 0.7  # 0.5 is chance


def test_prediction_uses_the_learned_graph() -> None:
    data = graph()
    ours = model()
    fit(ours, data, TrainConfig(4), split=SPLIT)
    out = ours(data.x, data.edge_index)
    assert torch.equal(ours(data.x, torch.empty(2, 0, dtype=torch.int64)), out)
    with pytest.raises(GraphError, match=r"learned a graph of 48 nodes, but x has 5 rows; .* trained on\."):
        ours(data.x[:5], torch.empty(2, 0, dtype=torch.int64))
    other = model(seed=1)
    other.load_state_dict(ours.state_dict())
    assert torch.equal(other.eval()(data.x, data.edge_index), out)


def test_reset_parameters_forgets_the_structure() -> None:
    data = graph()
    ours = model()
    before = ours.eval()(data.x, data.edge_index)
    fit(ours, data, TrainConfig(4), split=SPLIT)
    ours.reset_parameters(torch.Generator().manual_seed(0))
    assert torch.equal(ours.eval()(data.x, data.edge_index), before)


BAD = {
    "alpha": (r"alpha must be a number in \[0, inf\); it is -1", {"alpha": -1.0}),
    "beta": (r"beta must be a number in \[0, inf\); it is nan", {"beta": float("nan")}),
    "rate": (r"structure_lr must be a number in \[0, inf\); it is inf", {"structure_lr": float("inf")}),
    "steps": ("inner_steps must be a whole number from 1", {"inner_steps": 0}),
    "method": ("method must be one of exact, products; it is 'svd'", {"method": "svd"}),
}


@pytest.mark.parametrize("case", BAD)
def test_invalid_settings_raise(case: str) -> None:
    message, options = BAD[case]
    with pytest.raises(ConfigError, match=message) as caught:
        model(**options)
    assert str(caught.value).endswith(".")
