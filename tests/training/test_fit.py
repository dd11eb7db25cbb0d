"""fit keeps the best weights on validation, trains foreign modules, and raises on invalid input."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.nn import APPNP, GCNConv

from asgnn.errors import AsgnnError, DivergedWarning, GraphError
from asgnn.graphs import Split, apply_split
from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.features import Features
from asgnn.models import GCN, MLP, stack
from asgnn.training import Fit, TrainConfig, Trial, accuracy, fit, fit_many, predict
from asgnn.training.fit import _Nodes
from tests.training.problem import CLASSES, MODELS, NODES, WORDS, four, graph, split_of, trial

F64 = torch.float64
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
SPLIT = split_of(0)


class Foreign(nn.Module):
    """Two convolutions of PyG with torch's dropout and, optionally, batch normalisation."""

    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        self.first, self.second = GCNConv(WORDS, 8), GCNConv(8, CLASSES)
        self.norm = nn.BatchNorm1d(8) if norm else nn.Identity()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.norm(self.first(x, edge_index)).relu()
        return self.second(F.dropout(h, 0.5, self.training), edge_index)


def foreign(seed: int = 0, norm: bool = False) -> Foreign:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Foreign(norm)


def best_by_hand(result: Fit) -> int:
    """The first epoch, counted from 1, with the lowest loss among those with the highest accuracy."""
    history = zip(result.history.val_score.tolist(), result.history.val_loss.tolist(), strict=True)
    ranked = [(-acc, loss, epoch) for epoch, (acc, loss) in enumerate(history, 1)]
    return min(ranked)[2]


def validate_by_hand(result: Fit, data: Data) -> float:
    with torch.no_grad():
        scores = result.model(data.x, data.edge_index)[result.split.val]
    return F.cross_entropy(scores, data.y[result.split.val]).item()


# --- best weights --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_best_weights_on_validation_are_kept(name: str) -> None:
    data = graph()
    for result in fit_many(four(name), data):
        assert not result.model.training
        assert result.best_epoch == best_by_hand(result)
        at = result.best_epoch - 1
        assert result.val_score == float(result.history.val_score.max()) == float(result.history.val_score[at])
        assert accuracy(result.model, data, result.split.val) == pytest.approx(result.val_score, abs=1e-6)
        assert validate_by_hand(result, data) == pytest.approx(float(result.history.val_loss[at]), rel=1e-9)


def test_losses_are_torchs_cross_entropy() -> None:
    """Without dropout the first training loss is that of the initial weights on the trial's training nodes."""
    data = graph()
    trials = [Trial(GCN(WORDS, 8, CLASSES, dropout=0).to(F64), TrainConfig(epochs=1), split_of(i)) for i in range(4)]
    assert len({t.split.train.numel() for t in trials}) > 1  # so that padding occurs
    with torch.no_grad():
        expected = [
            F.cross_entropy(t.model(data.x, data.edge_index)[t.split.train], data.y[t.split.train]).item()
            for t in trials
        ]
    fits = fit_many(trials, data)
    assert [float(result.history.train_loss[0]) for result in fits] == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("name", [name for name in MODELS if "prognn" not in name])  # see test_prognn.py
def test_training_equals_torch_adam(name: str) -> None:
    """Without dropout, training equals torch's Adam on the weights and, without decay, on the scalars."""
    data, split = graph(), split_of(1)
    ours = MODELS[name](1).to(F64)  # its dropout is 0
    peer = copy.deepcopy(ours)
    result = fit(ours, data, TrainConfig(12, lr=0.03, weight_decay=0.05, scalar_lr=0.2), split=split)
    scalars = [p for key, p in peer.named_parameters() if "raw_" in key]
    weights = [p for key, p in peer.named_parameters() if "raw_" not in key]
    optimizer = torch.optim.Adam(weights, lr=0.03, weight_decay=0.05)
    for_scalars = torch.optim.Adam(scalars, lr=0.2) if scalars else None
    for loss_of_ours in result.history.train_loss.tolist():
        peer.zero_grad()
        loss = F.cross_entropy(peer(data.x, data.edge_index)[split.train], data.y[split.train])
        loss.backward()
        optimizer.step()
        if for_scalars is not None:
            for_scalars.step()
        assert loss.item() == pytest.approx(loss_of_ours, rel=1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, F64], ids=["float32", "float64"])
def test_equal_counts_are_equal_accuracies(dtype: torch.dtype) -> None:
    """The accuracy depends only on the number of hits, not on their position or on padding."""
    y, longest = torch.zeros(300, dtype=torch.int64), torch.arange(300)
    nodes = _Nodes([torch.arange(247), longest], y, dtype)
    rng = torch.Generator().manual_seed(0)
    seen = set()
    for _ in range(50):
        logits = torch.zeros(2, 300, 2, dtype=dtype)
        logits[0, torch.randperm(247, generator=rng)[:60], 1] = 1
        seen.add(float(nodes.accuracy(logits)[0]))
    assert seen == {float(torch.tensor(187, dtype=dtype) / 247)}


def test_ties_are_broken_by_the_loss() -> None:
    """With one validation node the accuracy soon stays at 1 while the loss keeps falling."""
    data = graph()
    split = Split(torch.arange(0, 30), torch.tensor([33]), torch.arange(40, 48))
    model = MLP(WORDS, 8, CLASSES, dropout=0.0).to(F64)
    model.reset_parameters(torch.Generator().manual_seed(0))
    result = fit(model, data, TrainConfig(epochs=30, lr=0.02, weight_decay=0), split=split)
    hits = result.history.val_score == 1
    assert hits.sum() > 1
    assert result.best_epoch == best_by_hand(result)
    assert result.best_epoch > int(hits.nonzero()[0]) + 1
    assert result.history.val_loss[result.best_epoch - 1] == result.history.val_loss[hits].min()


def test_initial_weights_are_kept_if_no_loss_is_finite() -> None:
    spec = trial("gcn", 0, lr=1e308)
    start = [p.detach().clone() for p in spec.model.parameters()]
    with pytest.warns(DivergedWarning):
        result = fit(spec.model, graph(), spec.config, split=spec.split)
    assert result.best_epoch == 0
    assert result.diverged
    assert repr(result).startswith("Fit(GCN, diverged, epoch 0 of 15, ")
    assert result.val_score == -1
    assert all(torch.equal(p, q) for p, q in zip(result.model.parameters(), start, strict=True))


DIVERGING = {"large features": (1e20, 0.01), "a large learning rate": (1.0, 100.0), "both": (1e15, 1.0)}


@pytest.mark.parametrize("name", ["asgnn", "gcn", "appnp", "mlp"])
@pytest.mark.parametrize("case", DIVERGING)
def test_diverged_trials_are_reported(case: str, name: str) -> None:
    scale, lr = DIVERGING[case]
    data = graph()
    calm, wild = trial(name, 0, epochs=40), trial(name, 0, epochs=40, lr=lr)
    assert not fit(calm.model, data, calm.config, split=calm.split).diverged
    data.x = data.x * scale
    with pytest.warns(DivergedWarning, match="1 of 1 trials diverged"):
        assert fit(wild.model, data, wild.config, split=wild.split).diverged


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["asgnn", "gcn"])
def test_masks_equal_a_split_and_data_may_be_on_another_device(name: str, device: str) -> None:
    data = graph(torch.float32)
    spec, other = (trial(name, 0, torch.float32, epochs=5) for _ in range(2))
    by_masks = fit(spec.model, apply_split(data, spec.split), spec.config, device=device)
    by_split = fit(other.model, data, other.config, split=other.split, device=device)
    assert torch.equal(by_masks.history.val_loss, by_split.history.val_loss)
    assert accuracy(by_split.model, data, spec.split.val) == pytest.approx(by_split.val_score, abs=1e-6)
    assert predict(by_split.model, data).device == data.y.device


@pytest.mark.parametrize("name", ["asgnn", "gcn", "appnp"])
def test_edge_weights_are_used_in_training_and_prediction(name: str) -> None:
    plain, weighted, empty = graph(), graph(), graph()
    weighted.edge_weight = torch.zeros(plain.num_edges, dtype=F64)
    empty.edge_index = torch.empty(2, 0, dtype=torch.int64)
    ours, none, other = (fit_many([trial(name, 0, epochs=60)], data)[0] for data in (weighted, empty, plain))
    torch.testing.assert_close(ours.history.val_loss, none.history.val_loss, rtol=1e-9, atol=1e-9)
    assert not torch.allclose(ours.history.val_loss, other.history.val_loss)
    assert torch.equal(predict(ours.model, weighted), predict(ours.model, empty))
    assert not torch.equal(predict(ours.model, weighted), predict(ours.model, plain))
    assert accuracy(ours.model, weighted, ours.split.val) == pytest.approx(ours.val_score, abs=1e-6)


@pytest.mark.parametrize("name", ["asgnn", "gcn", "gcn-svd"])
def test_logits_are_those_of_the_best_epoch_on_every_graph(name: str) -> None:
    data, other = graph(), graph()
    other.edge_index = torch.empty(2, 0, dtype=torch.int64)
    for result in fit_many(four(name), data, also_on=[other, data]):
        expected = [result.model(g.x, g.edge_index).detach() for g in (data, other, data)]
        torch.testing.assert_close(list(result.logits), expected, rtol=1e-9, atol=1e-9)
        assert not torch.allclose(result.logits[0], result.logits[1])


def test_accuracy_is_the_share_of_hits() -> None:
    data = graph()
    model = MODELS["gcn"](0).to(F64)
    hits = (model.eval()(data.x, data.edge_index).argmax(1) == data.y).tolist()
    nodes = torch.tensor([0, 5, 7, 40])
    assert accuracy(model.train(), data, nodes) == sum(hits[i] for i in nodes.tolist()) / 4
    assert not model.training
    with pytest.raises(GraphError, match="At least one of the nodes must be given"):
        accuracy(model, data, nodes[:0])


# --- foreign modules -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", [False, True], ids=["plain", "batch norm"])
def test_a_foreign_module_is_trained(norm: bool) -> None:
    data = graph(torch.float32)
    model = foreign(norm=norm)
    state = torch.get_rng_state()
    result = fit(model, data, TrainConfig(epochs=150, lr=0.05), split=SPLIT)
    assert torch.equal(torch.get_rng_state(), state)
    assert result.model is model
    assert not model.training
    assert result.history.train_loss[-5:].mean() < result.history.train_loss[:5].mean()
    assert result.best_epoch == best_by_hand(result)
    assert accuracy(model, data, SPLIT.val) == pytest.approx(result.val_score, abs=1e-6)
    assert result.best_epoch < 150
    # the state of the best epoch, batch statistics included
    best_loss = float(result.history.val_loss[result.best_epoch - 1])
    assert validate_by_hand(result, data) == pytest.approx(best_loss, rel=1e-5)


def test_training_a_foreign_module_depends_on_the_seed_alone() -> None:
    data = graph(torch.float32)

    def losses(seed: int, global_seed: int) -> Tensor:
        with torch.random.fork_rng():
            torch.manual_seed(global_seed)
            return fit(foreign(), data, TrainConfig(epochs=6, seed=seed), split=SPLIT).history.train_loss

    assert torch.equal(losses(0, global_seed=1), losses(0, global_seed=2))
    assert not torch.equal(losses(0, global_seed=1), losses(1, global_seed=1))


def test_training_a_foreign_module_equals_torch_adam() -> None:
    """Without dropout, training equals torch's Adam on torch's cross-entropy."""
    data = graph()
    ours, peer = (nn.Sequential(nn.Linear(WORDS, CLASSES)).to(F64) for _ in range(2))
    peer.load_state_dict(ours.state_dict())

    class OnFeatures(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.inner(x)

    result = fit(OnFeatures(ours), data, TrainConfig(epochs=12, lr=0.1, weight_decay=0.01), split=SPLIT)
    optimizer = torch.optim.Adam(peer.parameters(), lr=0.1, weight_decay=0.01)
    for loss_of_ours in result.history.train_loss.tolist():
        optimizer.zero_grad()
        loss = F.cross_entropy(peer(data.x)[SPLIT.train], data.y[SPLIT.train])
        loss.backward()
        optimizer.step()
        assert loss.item() == pytest.approx(loss_of_ours, rel=1e-10)


def test_labels_of_the_test_nodes_are_never_read_by_a_foreign_module() -> None:
    clean, corrupt = graph(torch.float32), graph(torch.float32)
    corrupt.y[SPLIT.test] = (corrupt.y[SPLIT.test] + 1) % CLASSES
    config = TrainConfig(epochs=6)
    first, second = (fit(foreign(), data, config, split=SPLIT) for data in (clean, corrupt))
    assert torch.equal(first.history.val_loss, second.history.val_loss)
    for p, q in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(p, q)


# --- invalid input -----------------------------------------------------------------------------------------------


def changed(**fields: object) -> Data:
    data = apply_split(graph(torch.float32), SPLIT)
    for name, value in fields.items():
        data[name] = value
    return data


def masks(*columns: int) -> dict[str, Tensor]:
    named = zip(("train_mask", "val_mask", "test_mask"), SPLIT.masks(NODES), strict=True)
    return {name: mask.unsqueeze(1).expand(-1, *columns) for name, mask in named}


NODE = torch.arange(NODES)
NAN_X = graph(torch.float32).x.clone()
NAN_X[3, 5] = torch.nan
BAD_DATA = {
    "not a graph": ("must be a torch_geometric", lambda: None),
    "no masks": ("train_mask is missing", lambda: graph(torch.float32)),
    "one mask missing": ("val_mask is missing", lambda: changed(val_mask=None)),
    "several splits": ("hold 3 splits", lambda: changed(**masks(3))),
    "empty split": ("val_mask selects no node", lambda: changed(val_mask=torch.zeros(NODES, dtype=torch.bool))),
    "overlapping masks": ("Node 0 is in both", lambda: changed(val_mask=NODE < 4, train_mask=NODE < 2)),
    "masks of numbers": ("a mask must be bool", lambda: changed(val_mask=torch.ones(NODES))),
    "one class": ("at least two classes", lambda: changed(y=torch.ones(NODES, dtype=torch.int64))),
    "no labels": ("y is missing", lambda: changed(y=None)),
    "NaN": (r"x\[3, 5\] is nan", lambda: changed(x=NAN_X)),
    "integer features": ("must be float32 or float64", lambda: changed(x=torch.ones(NODES, WORDS, dtype=torch.int64))),
    "directed": ("without its reverse", lambda: changed(edge_index=torch.tensor([[0, 1], [1, 2]]))),
    "weights": (
        r"edge_weight must have shape",
        lambda: changed(edge_weight=torch.ones(3)),
    ),
    "other features": ("built for 90 features, but x has 7", lambda: changed(x=torch.ones(NODES, 7))),
    "other dtype": ("x is float64 and the model float32", lambda: changed(x=torch.ones(NODES, WORDS, dtype=F64))),
    "more classes": (
        "model has 3 classes, but a training or validation node has label 5",
        lambda: changed(y=torch.arange(NODES) % 6),
    ),
    "more classes in validation": (
        "model has 3 classes, but a training or validation node has label 7",
        lambda: changed(y=(torch.arange(NODES) % 3).index_fill(0, SPLIT.val[:1], 7)),
    ),
}


@pytest.mark.parametrize("name", ["asgnn", "gcn", "appnp", "mlp"])
@pytest.mark.parametrize("case", BAD_DATA)
def test_invalid_data_raises_and_leaves_the_model_unchanged(case: str, name: str) -> None:
    message, build = BAD_DATA[case]
    spec = trial(name, 0, torch.float32)
    start = [p.detach().clone() for p in spec.model.parameters()]
    with pytest.raises(AsgnnError, match=message) as caught:
        fit(spec.model, build(), spec.config)
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)
    assert all(torch.equal(p, q) and p.grad is None for p, q in zip(spec.model.parameters(), start, strict=True))
    assert spec.model.training


@pytest.mark.parametrize("case", [case for case in BAD_DATA if not case.startswith("other")])
def test_invalid_data_leaves_a_foreign_module_unchanged(case: str) -> None:
    message, build = BAD_DATA[case]
    model = foreign()
    with pytest.raises(AsgnnError, match=message):
        fit(model, build())
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), foreign().parameters(), strict=True))


def split_with(part: str, value: Tensor) -> Split:
    return Split(**{**{name: getattr(SPLIT, name) for name in ("train", "val", "test")}, part: value})


BAD_SPLITS = {
    "empty": (r"split\.val is empty", split_with("val", torch.empty(0, dtype=torch.int64))),
    "outside": ("nodes are numbered 0 to 47", split_with("train", torch.tensor([0, 48]))),
    "twice": ("more than once", split_with("train", SPLIT.train[[0, 0]])),
    "overlap": (r"in both split\.train and split\.val", split_with("val", SPLIT.train)),
    "masks": ("one-dimensional int64", split_with("val", torch.ones(NODES, dtype=torch.bool))),
}


@pytest.mark.parametrize("case", BAD_SPLITS)
def test_an_invalid_split_of_one_trial_raises_before_any_training(case: str) -> None:
    message, split = BAD_SPLITS[case]
    good, bad = trial("gcn", 0), trial("mlp", 1)
    start = [p.detach().clone() for p in good.model.parameters()]
    with pytest.raises(AsgnnError, match=message) as caught:
        fit_many([good, Trial(bad.model, bad.config, split)], graph())
    assert str(caught.value).endswith(".")
    assert all(torch.equal(p, q) for p, q in zip(good.model.parameters(), start, strict=True))


BAD_SETTINGS = {
    "no epochs": ("whole number from 1 to .*; it is 0", lambda: TrainConfig(epochs=0)),
    "fractional epochs": ("whole number.*1.5", lambda: TrainConfig(epochs=1.5)),  # type: ignore[arg-type]
    "negative rate": (r"lr must be a number in \[0, inf\); it is -0.1", lambda: TrainConfig(lr=-0.1)),
    "rate of NaN": (r"lr must be a number in \[0, inf\); it is nan", lambda: TrainConfig(lr=math.nan)),
    "infinite rate": (r"lr must be a number in \[0, inf\); it is inf", lambda: TrainConfig(lr=math.inf)),
    "rate that is not a number": ("it is 'high'", lambda: TrainConfig(lr="high")),  # type: ignore[arg-type]
    "a seed too large": ("seed must be a whole number", lambda: TrainConfig(seed=2**62)),
    "negative decay": (r"weight_decay must be a number in \[0, inf\)", lambda: TrainConfig(weight_decay=-1)),
    "negative rate of scalars": (r"scalar_lr must be a number in \[0, inf\)", lambda: TrainConfig(scalar_lr=-1)),
    "no patience": ("patience must be a whole number from 1", lambda: TrainConfig(patience=0)),
    "fractional patience": ("patience must be a whole number", lambda: TrainConfig(patience=2.5)),  # type: ignore[arg-type]
    "unknown metric": ("metric must be one of accuracy, roc_auc", lambda: TrainConfig(metric="f1")),  # type: ignore[arg-type]
    "ROC-AUC of three classes": (
        "needs two classes; a validation node has another label",
        lambda: fit_many([trial("gcn", 0, metric="roc_auc")], graph()),
    ),
    "empty batches": (
        r"batch_size must be a whole number from 1 to \d+; it is 0",
        lambda: fit_many(four("gcn"), graph(), batch_size=0),
    ),
    "negative batches": (
        r"batch_size must be a whole number from 1 to \d+; it is -1",
        lambda: fit_many(four("gcn"), graph(), batch_size=-1),
    ),
    "one model twice": ("share one model", lambda: fit_many([trial("gcn", 0)] * 2, graph())),
    "a stack": ("can share a batch", lambda: fit(stack([trial("gcn", 0).model]), graph(), split=SPLIT)),
    "nothing to learn": ("has no trainable parameters", lambda: fit(APPNP(K=2, alpha=0.1), graph(), split=SPLIT)),
}


@pytest.mark.parametrize("case", BAD_SETTINGS)
def test_invalid_settings_raise(case: str) -> None:
    message, call = BAD_SETTINGS[case]
    with pytest.raises(AsgnnError, match=message) as caught:
        call()
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)


def test_frozen_parameters_do_not_change() -> None:
    spec = trial("gcn", 0)
    assert isinstance(spec.model, GCN)
    spec.model.first.weight.requires_grad_(False)
    frozen, free = spec.model.first.weight.clone(), spec.model.last.weight.detach().clone()
    fit(spec.model, graph(), spec.config, split=spec.split)
    assert torch.equal(spec.model.first.weight, frozen)
    assert not torch.equal(spec.model.last.weight, free)


class Hooked(GCN):
    """A GCN with a counter that ``after_step`` increments."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.edges = nn.Parameter(torch.zeros(()), requires_grad=False)
        self.counter = nn.Parameter(torch.zeros(()), requires_grad=False)

    def begin(self, features: Features, adj: Adjacency) -> None:
        self.edges.fill_(adj.row.numel() - features.num_nodes)

    def after_step(self, losses: Callable[[], Tensor]) -> None:
        assert losses().shape == self.counter.view(-1).shape
        assert bool((losses() > 0).all())
        self.counter += 1


def test_hooks_of_a_model() -> None:
    data, config = graph(), TrainConfig(epochs=30, lr=0.1)
    models = [Hooked(WORDS, 4, CLASSES).double() for _ in range(2)]
    fits = fit_many([Trial(model, config, SPLIT) for model in models], data)
    for model, result in zip(models, fits, strict=True):
        assert result.batch == 2
        assert int(model.edges) == data.num_edges  # from begin
        # saved with the best weights although the optimiser does not update it
        assert int(model.counter) == result.best_epoch
