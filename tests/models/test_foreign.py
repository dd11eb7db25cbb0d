"""Modules of other packages train like the models of this library: in batches, by recipe, with edge weights."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric import nn as pyg

from asgnn.errors import ConfigError, GraphError
from asgnn.models import GCN
from asgnn.models.foreign import Foreign, as_model
from asgnn.training import TrainConfig, Trial, accuracy, fit, fit_many, predict, recipe
from tests.training.problem import CLASSES, NODES, WORDS, graph, split_of, trial

SPLIT = split_of(0)
CONFIG = TrainConfig(epochs=20, lr=0.05)


class Tied(nn.Module):
    """Two layers that share one weight matrix, and a batch norm with running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WORDS, WORDS), nn.Linear(WORDS, WORDS)
        self.second.weight = self.first.weight
        self.norm, self.last = nn.BatchNorm1d(WORDS), nn.Linear(WORDS, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.last(self.norm(self.second(F.dropout(self.first(x).relu(), 0.3, self.training))))


class Wrong(nn.Module):
    def __init__(self, out: object) -> None:
        super().__init__()
        self.weight, self.out = nn.Parameter(torch.zeros(1)), out

    def forward(self, x: Tensor, edge_index: Tensor) -> object:
        return self.out


MODULES = {
    "pyg gcn": lambda: pyg.GCN(WORDS, 8, 2, CLASSES, dropout=0.5),
    "pyg gat": lambda: pyg.GAT(WORDS, 8, 2, CLASSES, dropout=0.2),
    "pyg sage": lambda: pyg.GraphSAGE(WORDS, 8, 2, CLASSES),
    "lazy": lambda: pyg.GCN(-1, 8, 2, CLASSES),
    "tied": Tied,
}


def build(name: str, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return MODULES[name]()


@pytest.mark.parametrize("name", ["pyg sage", "lazy"])
def test_training_equals_torch_adam(name: str) -> None:
    """Without dropout, training equals torch's Adam on torch's cross-entropy."""
    data = graph(torch.float32)
    ours, peer = build(name), build(name)
    with torch.random.fork_rng():
        torch.manual_seed(1)  # lazy modules draw their weights at the first call
        result = fit(ours, data, CONFIG, split=SPLIT)
        torch.manual_seed(1)
        peer(data.x, data.edge_index)
    optimizer = torch.optim.Adam(peer.parameters(), lr=CONFIG.lr, weight_decay=CONFIG.weight_decay)
    for expected in result.history.train_loss.tolist():
        optimizer.zero_grad()
        loss = F.cross_entropy(peer(data.x, data.edge_index)[SPLIT.train], data.y[SPLIT.train])
        loss.backward()
        optimizer.step()
        assert loss.item() == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize("name", MODULES)
def test_best_epoch_is_kept_with_its_buffers(name: str) -> None:
    data = graph(torch.float32)
    module = build(name)
    result = fit(module, data, CONFIG, split=SPLIT)
    assert result.model is module
    assert accuracy(module, data, SPLIT.val) == pytest.approx(result.val_score, abs=1e-6)
    torch.testing.assert_close(result.logits[0], module(data.x, data.edge_index).detach(), rtol=1e-4, atol=1e-5)
    if isinstance(module, Tied):
        assert module.second.weight is module.first.weight
        assert int(module.norm.num_batches_tracked) == result.best_epoch


def test_foreign_trials_among_other_trials() -> None:
    """Each module gets the same result as alone; models of the library still share a batch."""
    data = graph(torch.float32)
    names = ["pyg gcn", "pyg sage", "pyg gcn"]
    foreign = [Trial(build(name, i), TrainConfig(15, lr=0.05, seed=i), SPLIT) for i, name in enumerate(names)]
    ours = [trial("gcn", i, torch.float32) for i in range(2)]
    fits = fit_many([foreign[0], ours[0], foreign[1], ours[1], foreign[2]], data)
    assert [result.batch for result in fits] == [1, 2, 1, 2, 1]
    for i, result in enumerate(fits[::2]):
        alone = fit(build(names[i], i), data, TrainConfig(15, lr=0.05, seed=i), split=SPLIT)
        assert torch.equal(result.history.val_loss, alone.history.val_loss)


def test_edge_weights_are_passed_to_a_module_that_takes_them() -> None:
    """Weights of 0 equal a graph without edges."""
    weighted, empty, plain = (graph(torch.float32) for _ in range(3))
    weighted.edge_weight = torch.zeros(weighted.num_edges)
    empty.edge_index = torch.empty(2, 0, dtype=torch.int64)
    ours, none = (fit(build("pyg gcn"), data, CONFIG, split=SPLIT) for data in (weighted, empty))
    torch.testing.assert_close(ours.history.val_loss, none.history.val_loss, rtol=1e-4, atol=1e-5)
    assert torch.equal(predict(ours.model, weighted), predict(ours.model, empty))
    assert not torch.equal(predict(ours.model, weighted), predict(ours.model, plain))


def test_edge_weights_raise_for_a_module_that_takes_none() -> None:
    data = graph(torch.float32)
    module = build("pyg sage")
    data.edge_weight = torch.ones(data.num_edges)
    fit(module, data, CONFIG, split=SPLIT)
    data.edge_weight[0] = 0.5
    for call in (lambda: fit(module, data, CONFIG, split=SPLIT), lambda: predict(module, data)):
        with pytest.raises(
            GraphError, match=r"GraphSAGE\.forward takes no edge_weight, but the graph has edge weights"
        ):
            call()


def test_threads_do_not_change_results() -> None:
    data = graph(torch.float32)

    def trials() -> list[Trial]:
        """Built in one thread, because foreign modules draw their weights from torch's global generator."""
        ours = [trial("asgnn", i, torch.float32) for i in range(4)]
        return ours + [Trial(build("pyg gcn", i), TrainConfig(12, seed=i), SPLIT) for i in range(4)]

    def run(spec: Trial) -> Tensor:
        return fit(spec.model, data, spec.config, split=spec.split).history.train_loss

    threads = torch.get_num_threads()
    one_by_one = [run(spec) for spec in trials()]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(run, trials()))
    assert all(torch.equal(a, b) for a, b in zip(one_by_one, together, strict=True))
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("settings", [{"hidden_channels": 8, "num_layers": 2}, {"hidden_channels": 4, "num_layers": 3}])
def test_recipe_from_a_class_name(settings: dict[str, int]) -> None:
    data = graph(torch.float32)
    state = torch.get_rng_state()
    trials = [
        recipe("torch_geometric.nn:GCN", **settings, lr=0.1, epochs=4).trial(data, SPLIT, seed) for seed in (3, 3, 4)
    ]
    assert torch.equal(torch.get_rng_state(), state)
    assert {type(spec.model) for spec in trials} == {pyg.GCN}
    assert trials[0].config == TrainConfig(4, lr=0.1, seed=3)
    first, again, other = ([p.detach() for p in spec.model.parameters()] for spec in trials)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[-1], other[-1])
    assert all(result.batch == 1 for result in fit_many(trials, data))


BAD = {
    "missing setting": ("GCN cannot be built with these settings: .*hidden_channels", {}),
    "wrong type": ("setting hidden_channels must be a whole number", {"hidden_channels": "many", "num_layers": 2}),
    "set by the graph": ("GCN has no setting in_channels", {"hidden_channels": 3, "num_layers": 2, "in_channels": 3}),
}


@pytest.mark.parametrize("case", BAD)
def test_invalid_settings_of_a_class_raise(case: str) -> None:
    message, settings = BAD[case]
    with pytest.raises(ConfigError, match=message):
        recipe("torch_geometric.nn:GCN", **settings).trial(graph(torch.float32), SPLIT, 0)


@pytest.mark.parametrize("out", [None, torch.zeros(NODES), torch.zeros(3, CLASSES), (torch.zeros(NODES, CLASSES),)])
def test_invalid_output_raises(out: object) -> None:
    with pytest.raises(ConfigError, match=f"Wrong must return one row of scores for each of the {NODES} nodes"):
        fit(Wrong(out), graph(torch.float32), CONFIG, split=SPLIT)


def test_as_model_wraps_foreign_modules_only() -> None:
    model = GCN(3, 3, 3)
    assert as_model(model) is model
    assert isinstance(as_model(Tied()), Foreign)
    with pytest.raises(ConfigError, match=r"Linear\.forward cannot be called with x and edge_index alone"):
        as_model(nn.Linear(3, 3))
    with pytest.raises(ConfigError, match=r"must be a torch\.nn\.Module; this is a function"):
        as_model(lambda x: x)  # type: ignore[arg-type]
