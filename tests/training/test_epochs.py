"""on_epoch sees the values of the history as they arise, and its errors end a training."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from asgnn.models import GCN, MLP
from asgnn.training import Epoch, TrainConfig, Trial, fit, fit_many
from tests.training.problem import CLASSES, WORDS, graph, split_of

GRAPH, SPLIT = graph(torch.float32), split_of(0)


def gcn(seed: int = 0) -> GCN:
    torch.manual_seed(seed)
    return GCN(WORDS, 8, CLASSES)


@pytest.mark.parametrize("patience", [None, 3])
def test_epochs_are_those_of_the_history(patience: int | None) -> None:
    seen: list[Epoch] = []
    result = fit(gcn(), GRAPH, TrainConfig(epochs=40, patience=patience), split=SPLIT, on_epoch=seen.append)
    assert [epoch.number for epoch in seen] == list(range(1, len(result.history.val_loss) + 1))
    assert {epoch.trials for epoch in seen} == {(0,)}
    for name in ("train_loss", "val_loss", "val_score"):
        values = torch.cat([getattr(epoch, name) for epoch in seen]).cpu()
        assert torch.equal(values, getattr(result.history, name))
    assert max(float(epoch.val_score) for epoch in seen) == result.val_score


def test_trials_of_a_batch_are_told_apart() -> None:
    config = TrainConfig(epochs=5)
    models = [gcn(0), MLP(WORDS, 8, CLASSES), gcn(1)]
    seen: list[Epoch] = []
    results = fit_many(
        [Trial(model, replace(config, seed=i), SPLIT) for i, model in enumerate(models)], GRAPH, on_epoch=seen.append
    )
    assert {epoch.trials for epoch in seen} == {(0, 2), (1,)}
    for i, result in enumerate(results):
        scores = [float(e.val_score[e.trials.index(i)]) for e in seen if i in e.trials]
        assert scores == result.history.val_score.tolist()


def test_watching_changes_nothing() -> None:
    config = TrainConfig(epochs=10)
    watched, alone = (
        fit(gcn(), GRAPH, config, split=SPLIT, on_epoch=seen) for seen in (lambda epoch: float(epoch.val_loss), None)
    )
    assert torch.equal(watched.logits[0], alone.logits[0])


def test_an_error_ends_the_training_and_leaves_the_model() -> None:
    class Enough(Exception):
        pass

    def stop(epoch: Epoch) -> None:
        if epoch.number == 4:
            raise Enough

    model, calls, threads = gcn(), [], torch.get_num_threads()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(Enough):
        fit(
            model,
            GRAPH,
            TrainConfig(epochs=10),
            split=SPLIT,
            on_epoch=stop,
            progress=lambda done, of: calls.append((done, of)),
        )
    assert calls == [(1, 10), (2, 10), (3, 10)]
    assert torch.get_num_threads() == threads
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
