"""A trial gets the same result in a batch as alone, whatever the other trials are."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data

from asgnn.errors import ConfigError, DivergedWarning, GraphError
from asgnn.graphs import FeaturePrior, Split
from asgnn.training import Fit, Trial, fit, fit_many
from tests.training.problem import MODELS, four, graph, trial

FIELDS = ("train_loss", "val_loss", "val_score")


def weights(result: Fit) -> list[Tensor]:
    return [p.detach() for p in result.model.parameters()]


def assert_close(ours: Fit, theirs: Fit, tolerance: float) -> None:
    for field in FIELDS:
        torch.testing.assert_close(
            getattr(ours.history, field), getattr(theirs.history, field), rtol=tolerance, atol=tolerance, msg=field
        )
    assert ours.best_epoch == theirs.best_epoch
    assert ours.val_score == pytest.approx(theirs.val_score, abs=tolerance)
    torch.testing.assert_close(weights(ours), weights(theirs), rtol=tolerance, atol=tolerance)


def assert_equal(ours: Fit, theirs: Fit) -> None:
    for field in FIELDS:
        assert torch.equal(getattr(ours.history, field), getattr(theirs.history, field)), field
    assert (ours.best_epoch, ours.val_score) == (theirs.best_epoch, theirs.val_score)
    assert all(torch.equal(p, q) for p, q in zip(weights(ours), weights(theirs), strict=True))


@pytest.mark.parametrize("name", MODELS)
def test_batch_equals_one_by_one(name: str) -> None:
    data = graph()
    together = fit_many(four(name), data)
    for i, of_many in enumerate(together):
        spec = trial(name, i)
        alone = fit(spec.model, data, spec.config, split=spec.split)
        assert (of_many.batch, alone.batch) == (4, 1)
        assert_close(of_many, alone, 1e-8)
    # the trials differ, so that the comparison above can fail
    losses = [tuple(of_many.history.train_loss.tolist()) for of_many in together]
    assert len(set(losses)) == 4


@pytest.mark.parametrize("name", MODELS)
def test_batch_equals_one_by_one_in_single_precision(name: str) -> None:
    data = graph(torch.float32)
    together = fit_many(four(name, torch.float32, epochs=4), data)
    for i, of_many in enumerate(together):
        (alone,) = fit_many([trial(name, i, torch.float32, epochs=4)], data)
        for field in ("train_loss", "val_loss"):
            torch.testing.assert_close(
                getattr(of_many.history, field), getattr(alone.history, field), rtol=1e-3, atol=1e-3
            )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", MODELS)
def test_equal_seeds_give_bitwise_equal_results(name: str, dtype: torch.dtype) -> None:
    data = graph(dtype)
    for ours, again in zip(fit_many(four(name, dtype), data), fit_many(four(name, dtype), data), strict=True):
        assert_equal(ours, again)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", MODELS)
def test_gpu_training_equals_cpu_training(name: str) -> None:
    data, without_dropout = graph(), 1
    on_cpu, on_gpu = (fit_many([trial(name, without_dropout)], data, device=d)[0] for d in ("cpu", "cuda"))
    on_gpu.model.cpu()
    assert_close(on_cpu, on_gpu, 1e-6)
    for ours, again in zip(*(fit_many(four(name), data, device="cuda") for _ in range(2)), strict=True):
        assert_equal(ours, again)


def test_the_seed_changes_dropout() -> None:
    data = graph()
    seeds = [fit_many([trial("gcn", 0, seed=seed)], data)[0].history.train_loss for seed in (0, 1)]
    assert not torch.equal(*seeds)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 100])
@pytest.mark.parametrize("name", ["asgnn", "gcn"])
def test_batch_size_does_not_change_results(name: str, size: int) -> None:
    data = graph()
    cut = fit_many(four(name), data, batch_size=size)
    assert [result.batch for result in cut] == {1: [1] * 4, 2: [2] * 4, 3: [3, 3, 3, 1]}.get(size, [4] * 4)
    for ours, theirs in zip(cut, fit_many(four(name), data), strict=True):
        assert_close(ours, theirs, 1e-8)


def test_results_have_the_order_of_the_trials() -> None:
    """With models and numbers of epochs interleaved, every result belongs to its trial."""
    data = graph()
    order = [
        ("gcn", 0, 5),
        ("mlp", 1, 5),
        ("gcn", 2, 7),
        ("asgnn", 3, 5),
        ("mlp", 0, 5),
        ("gcn", 1, 5),
        ("asgnn", 0, 5),
    ]
    trials = [trial(name, i, epochs=epochs) for name, i, epochs in order]
    fits = fit_many(trials, data)
    assert [result.batch for result in fits] == [2, 2, 1, 2, 2, 2, 2]
    for result, spec, (name, i, epochs) in zip(fits, trials, order, strict=True):
        assert result.model is spec.model
        assert result.config is spec.config
        assert result.split is spec.split
        assert result.history.train_loss.shape == result.history.val_loss.shape == (epochs,)
        (alone,) = fit_many([trial(name, i, epochs=epochs)], data)
        assert_close(result, alone, 1e-8)


def test_progress_counts_to_the_total() -> None:
    seen: list[tuple[int, int]] = []
    trials = [trial("gcn", 0, epochs=3), trial("mlp", 0, epochs=4), trial("gcn", 1, epochs=3)]
    fit_many(trials, graph(), batch_size=1, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(i, 10) for i in range(1, 11)]
    seen.clear()
    spec = trial("gcn", 0, epochs=3)
    fit(spec.model, graph(), spec.config, split=spec.split, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_a_diverging_trial_does_not_affect_the_others(name: str, dtype: torch.dtype) -> None:
    data = graph(dtype)
    calm = [trial(name, i, dtype) for i in range(2)]
    wild = trial(name, 2, dtype, lr=1e38 if dtype == torch.float32 else 1e308)
    with pytest.warns(DivergedWarning, match="1 of 3 trials diverged"):
        first, lost, second = fit_many([calm[0], wild, calm[1]], data)
    assert [result.diverged for result in (first, lost, second)] == [False, True, False]
    assert not lost.history.val_loss[-1].isfinite()
    assert all(p.isfinite().all() for p in weights(lost))  # its last finite weights, or the initial ones
    for i, result in enumerate((first, second)):
        (alone,) = fit_many([trial(name, i, dtype)], data)
        assert all(getattr(result.history, field).isfinite().all() for field in FIELDS)
        if dtype == torch.float64:
            assert_close(result, alone, 1e-8)
        else:
            torch.testing.assert_close(
                result.history.train_loss[:3], alone.history.train_loss[:3], rtol=1e-3, atol=1e-3
            )


@pytest.mark.parametrize("name", MODELS)
def test_labels_of_the_test_nodes_are_never_read(name: str) -> None:
    """Changing every label outside training and validation changes no bit of any result."""
    nodes = torch.arange(48)
    split = Split(nodes[:10], nodes[10:22], nodes[22:])
    clean, corrupt = graph(), graph()
    rng = torch.Generator().manual_seed(9)
    shift = torch.randint(1, 3, (26,), generator=rng)
    corrupt.y[22:] = (corrupt.y[22:] + shift) % 3
    assert not (clean.y[22:] == corrupt.y[22:]).any()
    results = [fit_many([Trial(t.model, t.config, split) for t in four(name)], data) for data in (clean, corrupt)]
    for ours, theirs in zip(*results, strict=True):
        assert_equal(ours, theirs)


def test_no_trials() -> None:
    assert fit_many([], graph()) == []


def test_global_generator_is_unchanged() -> None:
    trials = four("asgnn", epochs=2)
    state = torch.get_rng_state()
    fit_many(trials, graph())
    assert torch.equal(torch.get_rng_state(), state)


OWN_WEIGHTS = ("asgnn", "asgnn frozen", "gcn", "gcn-jaccard", "sgc", "appnp", "mlp")


@pytest.mark.parametrize("prior", [None, FeaturePrior(neighbors=3, weight=0.4, threshold=0.01)], ids=["", "prior"])
@pytest.mark.parametrize("name", OWN_WEIGHTS)
def test_trials_with_their_own_edges_equal_trainings_on_these_edges(name: str, prior: FeaturePrior | None) -> None:
    """A weight of 0 is the same as no edge, and other weights are those of the trial."""
    data = graph()
    row, col = data.edge_index
    part = (row.minimum(col) * 7 + row.maximum(col)) % 4
    specs = []
    for i, spec in enumerate(four(name, epochs=5)):
        spec.model.prior = prior  # type: ignore[assignment]
        weight = torch.where(part == i, 1.0 if i else 0.7, 0.0).double()
        specs.append(replace(spec, edge_weight=weight))
    together = fit_many(specs, data)
    for i, of_many in enumerate(together):
        alone, mine = trial(name, i, epochs=5), part == i
        alone.model.prior = prior  # type: ignore[assignment]
        sub = Data(x=data.x, y=data.y, edge_index=data.edge_index[:, mine])
        sub.edge_weight = torch.full((int(mine.sum()),), 1.0 if i else 0.7, dtype=torch.float64)
        (expected,) = fit_many([alone], sub)
        assert of_many.batch == 4
        assert_close(of_many, expected, 1e-8)
        torch.testing.assert_close(of_many.logits[0], expected.logits[0], rtol=1e-7, atol=1e-7)


def test_models_without_own_weights_say_so() -> None:
    data = graph()
    weight = torch.ones(data.num_edges, dtype=torch.float64)
    for name in MODELS.keys() - set(OWN_WEIGHTS):
        with pytest.raises(ConfigError, match="cannot have edge weights of its own"):
            fit_many([replace(trial(name, 0), edge_weight=weight)], data)
    with pytest.raises(GraphError, match="one weight per column"):
        fit_many([replace(trial("gcn", 0), edge_weight=weight[1:])], data)
    with pytest.raises(ConfigError, match="for 2 trials, but 1 models"):
        trial("gcn", 0).model(data.x, data.edge_index, torch.stack([weight, weight], 1))
