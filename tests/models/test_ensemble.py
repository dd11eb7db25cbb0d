"""An ensemble is the mean of its members' probabilities, whatever its members are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import GCN as PyGGCN

from asgnn.attacks import pgd
from asgnn.errors import ConfigError
from asgnn.models import GCN, MLP, Ensemble, stack
from asgnn.training import TrainConfig, accuracy, fit, fit_many, predict
from tests.training.problem import CLASSES, MODELS, WORDS, four, graph, split_of, trial

F64 = torch.float64
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
DATA = graph()


def trained(*names: str, epochs: int = 8) -> list[nn.Module]:
    return [result.model for name in names for result in fit_many(four(name, epochs=epochs), DATA)]


def foreign() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return PyGGCN(WORDS, 4, 2, out_channels=CLASSES).to(F64).eval()


def by_hand(models: list[nn.Module], temperature: float = 1.0) -> Tensor:
    each = [(model(DATA.x, DATA.edge_index) / temperature).softmax(-1) for model in models]
    return torch.stack(each).mean(0).log().detach()


MEMBERS: dict[str, Callable[[], list[nn.Module]]] = {
    **{f"four of {name}": lambda name=name: trained(name) for name in MODELS},  # type: ignore[misc]
    "of three classes": lambda: trained("asgnn", "gcn", "mlp"),
    "with a foreign module twice": lambda: [*trained("gcn"), *[foreign()] * 2],
    "an ensemble of ensembles": lambda: [Ensemble(trained("gcn")), Ensemble(trained("mlp"))],
}


@pytest.mark.parametrize("temperature", [1.0, 2.5])
@pytest.mark.parametrize("case", MEMBERS)
def test_output_is_the_mean_probability(case: str, temperature: float) -> None:
    models = MEMBERS[case]()
    ensemble = Ensemble(models, temperature)
    out = ensemble(DATA.x, DATA.edge_index).detach()
    torch.testing.assert_close(out, by_hand(models, temperature), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(out.exp().sum(-1), torch.ones(len(DATA.y), dtype=F64))
    assert torch.equal(predict(ensemble, DATA), out.argmax(-1))
    nodes = split_of(0).test
    hits = (out.argmax(-1) == DATA.y)[nodes].double().mean()
    assert accuracy(ensemble, DATA, nodes) == pytest.approx(float(hits), abs=1e-6)


@pytest.mark.parametrize("name", ["asgnn", "gat", "mlp"])
def test_one_member_gives_its_own_log_probabilities(name: str) -> None:
    model = trained(name)[0]
    own = model(DATA.x, DATA.edge_index).log_softmax(-1)
    torch.testing.assert_close(Ensemble([model])(DATA.x, DATA.edge_index), own, rtol=1e-9, atol=1e-9)


def test_members_of_one_batch_key_are_one_module() -> None:
    assert [member.stacked for member in Ensemble(trained("gcn", "mlp")).members] == [4, 4]


def test_it_keeps_the_weights_it_was_given() -> None:
    models = trained("gcn")
    ensemble = Ensemble(models)
    before = ensemble(DATA.x, DATA.edge_index)
    spec = trial("gcn", 0)
    fit(models[0], DATA, spec.config, split=spec.split)
    assert torch.equal(before, ensemble(DATA.x, DATA.edge_index))
    assert not torch.allclose(before, by_hand(models))


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_are_those_of_the_mean(device: str) -> None:
    models = [model.to(device) for model in trained("asgnn", "gcn")]
    data = DATA.clone().to(device)
    coefficients = torch.linspace(-1, 1, CLASSES, dtype=F64, device=device)

    def gradients(call: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        x, weight = data.x.clone().requires_grad_(), torch.full_like(data.edge_index[0], 1, dtype=F64).requires_grad_()
        return torch.autograd.grad((call(x, data.edge_index, weight) * coefficients).sum(), (x, weight))

    def mean(*inputs: Tensor) -> Tensor:
        return torch.stack([model(*inputs).softmax(-1) for model in models]).mean(0).log()

    ours, theirs = gradients(Ensemble(models)), gradients(mean)
    assert all(float(grad.abs().max()) > 1e-4 for grad in theirs)
    torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)


def test_it_is_the_victim_of_an_attack() -> None:
    ensemble, train = Ensemble(trained("asgnn", "gcn", epochs=30)), split_of(0).train
    rng = torch.Generator().manual_seed(0)
    flips = pgd(DATA, 6, train, rng, surrogate=ensemble, steps=20)
    assert len(flips) == 6


def test_a_temperature_far_above_one_is_the_mean_of_the_scores() -> None:
    """To first order in 1/τ the order of the classes is that of the mean logits."""
    models = trained("gcn")
    mean = torch.stack([model(DATA.x, DATA.edge_index) for model in models]).mean(0)
    assert torch.equal(predict(Ensemble(models, 1e5), DATA), mean.argmax(-1))


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("confidence", [0.01, 0.4, 0.75, 0.999])
def test_one_confidence_for_all_nodes(confidence: float, dtype: torch.dtype) -> None:
    """Compared node by node: the predicted class keeps its place, the others their proportions."""
    rng = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(3, 50, 4, generator=rng, dtype=F64)
    logits[:, 0] = torch.tensor([2.0, 2.0 - 1e-9, 0.0, 0.0])  # almost equal
    ensemble = Ensemble([GCN(2, 2, 4)], 2.0)
    p = ensemble.combined(logits.to(dtype)).exp()
    ensemble.confidence = confidence
    found = ensemble.combined(logits.to(dtype)).exp()
    torch.testing.assert_close(found.sum(-1), torch.ones(50, dtype=dtype))
    assert torch.equal(found.argmax(-1), p.argmax(-1))
    for before, after in zip(p, found, strict=True):
        order = before.argsort(descending=True)
        rest = before[order[1:]] / before[order[1:]].sum()
        torch.testing.assert_close(after[order[1:]] / after[order[1:]].sum(), rest)
        level = float(rest[0] / (1 + rest[0]))  # where the first two are equal
        assert float(after[order[0]]) == pytest.approx(max(confidence, level), abs=1e-4)


def test_it_is_differentiable_with_one_confidence() -> None:
    ensemble = Ensemble(trained("gcn"), 2.0, 0.6)
    x = DATA.x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(ensemble(x, DATA.edge_index)[:, 0].sum(), x)
    assert bool(gradient.isfinite().all())
    assert bool((gradient != 0).any())


def fitted(*arguments: Any) -> Any:
    return fit(Ensemble(trained("gcn")), DATA, TrainConfig(2), split=split_of(0))


BAD: dict[str, tuple[str, Callable[[], object]]] = {
    "empty": ("at least one model", lambda: Ensemble([])),
    "other classes": (
        "same number of classes; these have 3 and 4",
        lambda: Ensemble([GCN(WORDS, 4, 3), MLP(WORDS, 4, 4)]),
    ),
    "other classes of a foreign module": (
        "same number of classes; these have 2 and 3",
        lambda: Ensemble([GCN(WORDS, 4, 2).double(), foreign()])(DATA.x, DATA.edge_index),
    ),
    "a stack": ("not stacks", lambda: Ensemble([stack([GCN(WORDS, 4, 3)])])),
    "no module": ("must be a torch.nn.Module", lambda: Ensemble(["gcn"])),  # type: ignore[list-item]
    "temperature": ("temperature must be a number in", lambda: Ensemble([GCN(WORDS, 4, 3)], 0.0)),
    "confidence": ("confidence must be a number in", lambda: Ensemble([GCN(WORDS, 4, 3)], 1.0, 1.0)),
    "two devices": ("on cpu and meta", lambda: Ensemble([GCN(WORDS, 4, 3), GCN(WORDS, 4, 3).to("meta")])),
    "training": ("cannot be trained", fitted),
}


@pytest.mark.parametrize("case", BAD)
def test_invalid_ensembles_raise(case: str) -> None:
    message, call = BAD[case]
    with pytest.raises(ConfigError, match=message) as caught:
        call()
    assert str(caught.value).endswith(".")
