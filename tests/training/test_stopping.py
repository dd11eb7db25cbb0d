"""Training stops when validation does not improve, for each trial of a batch as if it were alone; the ROC-AUC."""

from __future__ import annotations

import importlib

import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch_geometric.data import Data

from asgnn.errors import AsgnnError
from asgnn.graphs import Split, random_split
from asgnn.models import GCN, MLP
from asgnn.training import Fit, TrainConfig, Trial, accuracy, fit, fit_many, roc_auc
from asgnn.training.fit import _Nodes
from tests.training.problem import MODELS, NODES, WORDS, four, graph, trial
from tests.training.test_batches import assert_close, assert_equal

EPOCHS = 60
PATIENCE = (2, None, 7, 4)


def stop_by_hand(result: Fit, patience: int | None) -> int:
    """The epoch after which a training of all epochs would have stopped."""
    best, at = (-1.0, 0.0), 0
    pairs = zip(result.history.val_score.tolist(), result.history.val_loss.tolist(), strict=True)
    for epoch, (score, loss) in enumerate(pairs, 1):
        if (score, -loss) > best:
            best, at = (score, -loss), epoch
        if patience is not None and epoch - at >= patience:
            return epoch
    return len(result.history.val_loss)


def patient(name: str, i: int) -> Trial:
    return trial(name, i, epochs=EPOCHS, patience=PATIENCE[i])


@pytest.mark.parametrize("name", MODELS)
def test_a_stopped_trial_is_the_beginning_of_the_full_one(name: str) -> None:
    data = graph()
    full = fit_many(four(name, epochs=EPOCHS), data)
    stopped = fit_many([patient(name, i) for i in range(4)], data)
    ends = [stop_by_hand(one, patience) for one, patience in zip(full, PATIENCE, strict=True)]
    assert min(ends) < EPOCHS  # so that the comparison can fail
    for ours, whole, end in zip(stopped, full, ends, strict=True):
        assert len(ours.history.val_loss) == len(ours.history.train_loss) == len(ours.history.val_score) == end
        assert torch.equal(ours.history.val_loss, whole.history.val_loss[:end])
        assert ours.best_epoch <= end
        assert ours.val_score == float(whole.history.val_score[:end].max())
        assert accuracy(ours.model, data, ours.split.val) == pytest.approx(ours.val_score, abs=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_trials_of_different_patience_share_a_batch(name: str) -> None:
    data = graph()
    for i, ours in enumerate(fit_many([patient(name, i) for i in range(4)], data)):
        (alone,) = fit_many([patient(name, i)], data)
        assert (ours.batch, alone.batch) == (4, 1)
        assert_close(ours, alone, 1e-8)


@pytest.mark.parametrize("every", [1, 7, 10, 1000])
def test_the_result_does_not_depend_on_when_stopping_is_checked(every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU the batch is asked every ten epochs only."""
    data, seen = graph(), []
    expected = fit_many(four("gcn", epochs=EPOCHS, patience=3), data)
    monkeypatch.setattr(importlib.import_module("asgnn.training.fit"), "CHECK_EVERY", {"cpu": every})
    found = fit_many(
        four("gcn", epochs=EPOCHS, patience=3), data, progress=lambda done, total: seen.append((done, total))
    )
    for ours, theirs in zip(found, expected, strict=True):
        assert_equal(ours, theirs)
    assert seen[-1] == (EPOCHS, EPOCHS)
    last = max(len(one.history.val_loss) for one in found)
    checked = -(-last // every) * every
    assert len(seen) == (checked + 1 if checked < EPOCHS else EPOCHS)


# --- ROC-AUC -------------------------------------------------------------------------------------------------------


def two_classes(dtype: torch.dtype = torch.float64) -> tuple[Data, Split]:
    data = graph(dtype)
    data.y = (data.y == 0).long()
    return data, random_split(data, 0, train=0.3, val=0.4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("levels", [2, 5, 10**9])
def test_roc_auc_of_a_batch_equals_scikit_learn(levels: int, dtype: torch.dtype) -> None:
    """Trials with sets of different sizes, with few levels and so with many ties."""
    rng = torch.Generator().manual_seed(levels)
    y = (torch.rand(80, generator=rng) < 0.3).long()
    sets = [torch.randperm(80, generator=rng)[:size] for size in (80, 12, 41)]
    logits = torch.randint(levels, (3, 80, 2), generator=rng).to(dtype) / levels
    nodes = _Nodes(sets, y, dtype)
    nodes.check_two_classes()
    found = nodes.roc_auc(nodes.of(logits))
    assert found.dtype == dtype
    for i, each in enumerate(sets):
        score = (logits[i, each, 1] - logits[i, each, 0]).numpy()
        assert float(found[i]) == pytest.approx(roc_auc_score(y[each].numpy(), score), abs=1e-6)


def test_roc_auc_chooses_the_best_epoch() -> None:
    data, split = two_classes()
    model = GCN(WORDS, 8, 2, dropout=0.5).double()
    model.reset_parameters(torch.Generator().manual_seed(0))
    result = fit(model, data, TrainConfig(40, lr=0.05, metric="roc_auc"), split=split)
    score, loss = result.history.val_score, result.history.val_loss
    assert (
        result.best_epoch
        == min((-float(s), float(v), i) for i, (s, v) in enumerate(zip(score, loss, strict=True), 1))[2]
    )
    assert result.val_score == float(score.max())
    assert roc_auc(model, data, split.val) == pytest.approx(result.val_score, abs=1e-9)
    logits = model(data.x, data.edge_index).detach()
    for nodes in (split.val, split.test):
        peer = roc_auc_score(data.y[nodes].numpy(), (logits[:, 1] - logits[:, 0])[nodes].numpy())
        assert roc_auc(model, data, nodes) == pytest.approx(peer, abs=1e-9)
    assert repr(result).startswith(f"Fit(GCN, ROC-AUC {result.val_score:.3f} on validation, ")


def test_trials_of_different_metrics_do_not_share_a_batch() -> None:
    data, split = two_classes()
    trials = [
        Trial(MLP(WORDS, 4, 2).double(), TrainConfig(3, metric=metric), split) for metric in ("accuracy", "roc_auc")
    ]
    assert [result.batch for result in fit_many(trials, data)] == [1, 1]


def one_label(data: Data, split: Split) -> Split:
    return Split(split.train, split.val[data.y[split.val] == 1], split.test)


BAD = {
    "one class in validation": (
        "none has label 0",
        lambda data, split: fit(
            GCN(WORDS, 4, 2).double(), data, TrainConfig(2, metric="roc_auc"), split=one_label(data, split)
        ),
    ),
    "three outputs": (
        "needs two classes; the model has 3",
        lambda data, split: fit(GCN(WORDS, 4, 3).double(), data, TrainConfig(2, metric="roc_auc"), split=split),
    ),
    "three outputs in the figure": (
        "two classes",
        lambda data, split: roc_auc(GCN(WORDS, 4, 3).double(), data, split.val),
    ),
    "one class in the figure": (
        "nodes of both classes",
        lambda data, split: roc_auc(GCN(WORDS, 4, 2).double(), data, one_label(data, split).val),
    ),
    "no nodes": (
        "At least one of the nodes",
        lambda data, split: roc_auc(GCN(WORDS, 4, 2).double(), data, torch.zeros(NODES, dtype=torch.bool)),
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_roc_auc_raises(case: str) -> None:
    message, call = BAD[case]
    with pytest.raises(AsgnnError, match=message) as caught:
        call(*two_classes())
    assert str(caught.value).endswith(".")
