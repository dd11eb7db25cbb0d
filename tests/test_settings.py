"""Settings are read from constructors; per_trial marks those that may differ between the trials of a batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from asgnn import recipe
from asgnn.errors import ConfigError
from asgnn.graphs.prior import FeaturePrior
from asgnn.models import NodeClassifier, stack
from asgnn.models.layers import Linear, Rng, Streams
from asgnn.settings import REQUIRED, PerTrial, Setting, arguments_for, check_count, check_number, settings_of
from asgnn.training import RECIPES
from tests.training.problem import graph, split_of

# For every setting of every model a value other than the recipe's.
OTHER: dict[str, Any] = {
    "hidden_channels": 5, "num_layers": 3, "mlp_layers": 3, "dropout": 0.3, "heads": 2, "alpha": 0.3, "threshold": 0.2,
    "rank": 3, "temperature": 0.7, "gamma": 1.7, "lam_hat": 0.6, "lam": 0.4, "lambda1": 0.05, "lambda2": 0.7,
    "norm": "l1", "mu1": 2.0, "mu2": 0.2, "eta1": 0.05, "eta2": 0.01, "objective": "paper", "support": "dense",
    "structure": "exact", "update": "joint", "normalization": "rw", "h_steps": 2, "s_steps": 2, "unit_norm": True,
    "constraint": "positive", "backend": "edges", "beta": 0.5, "structure_lr": 0.02, "inner_steps": 1,
    "symmetric": False, "squared": True, "method": "exact", "learn": ("lam",), "hops": 1, "penalty": "mcp",
    "prior_threshold": 0.4, "prior_neighbors": 2, "prior_weight": 0.7, "prior_metric": "cosine", "prior_edges": 0.5,
    "witness_floor": 0.5, "witness_neighbors": 3, "witness_models": 2, "witness_views": 2, "witness_seed": 1,
    "witness_voice": 0.5, "witness_bound": 1.5,
}  # fmt: skip
OTHER_OF = {("asgnn-paper", "objective"): "degree", ("asgnn-paper", "structure"): "frozen"}
NEEDS = {name: {"constraint": "positive"} for name in ("unit_norm", "update")} | {
    "penalty": {"objective": "degree"},
    "witness_bound": {"witness_voice": 0.5},
}
# learn can only be set from Python (see tests/models/test_stack.py); the other normalization needs a frozen structure.
# asgnn-robust and asgnn-safe have a witness, which only training makes.
CASES = [
    (name, setting)
    for name in sorted(RECIPES.keys() - {"asgnn-robust", "asgnn-safe"})
    for setting in settings_of(RECIPES[name].kind)
    if setting not in ("in_channels", "out_channels", "learn", "normalization")
]


@pytest.mark.parametrize(("name", "setting"), CASES)
def test_per_trial_marks_what_may_differ_in_a_batch(name: str, setting: str) -> None:
    """Models that differ in a per-trial setting give the same in a batch as alone; any other difference raises."""
    data, split = graph(), split_of(0)
    changed = {setting: OTHER_OF.get((name, setting), OTHER[setting])}

    def build(seed: int, **settings: Any) -> NodeClassifier:
        model = recipe(name, **NEEDS.get(setting, {}), **settings).trial(data, split, seed).model.double()
        assert isinstance(model, NodeClassifier)
        return model

    models = [build(0), build(1, **changed)]
    if not recipe(name).settings[setting].per_trial:
        with pytest.raises(ConfigError, match="share a batch"):
            stack(models)
        return
    many = stack(models)
    for training in (False, True):
        out = many.train(training)(data.x, data.edge_index, rng=Streams([1, 2]))
        for i, model in enumerate(models):
            alone = model.train(training)(data.x, data.edge_index, rng=Streams([1 + i]))
            torch.testing.assert_close(out[i], alone, rtol=1e-9, atol=1e-9)
    # the setting has an effect, so that the comparison above can fail
    without, with_it = (model(data.x, data.edge_index, rng=Streams([1])) for model in (build(0), build(0, **changed)))
    assert not torch.allclose(without, with_it, rtol=1e-6)


class Example(NodeClassifier):
    """A user's model, as in the how-to: its settings are declared by its constructor alone."""

    def __init__(self, in_channels: int, out_channels: int, *, power: int = 2, rate: PerTrial = 0.5) -> None:
        super().__init__()
        self.power, self.linear = power, Linear(in_channels, out_channels)
        self.register_buffer("rate", torch.tensor(rate))

    def logits(self, features: Any, adj: Any, rng: Rng) -> torch.Tensor:
        return self.linear.add_bias(features.linear(self.linear.weights, None, None))


def test_settings_of_a_user_model() -> None:
    found = Example(3, 2, rate=0.25, prior=FeaturePrior(neighbors=4)).settings
    assert {name: found.pop(name) for name in list(found) if name.startswith(("prior_", "witness_"))} == {
        "prior_threshold": 0.0, "prior_neighbors": 4, "prior_weight": 0.3, "prior_metric": "auto", "prior_edges": 1.0,
        "witness_floor": 1.0, "witness_neighbors": 15, "witness_models": 3, "witness_views": 1, "witness_seed": 0,
        "witness_voice": 0.0, "witness_bound": 0.0,
    }  # fmt: skip
    assert found == {"in_channels": 3, "out_channels": 2, "power": 2, "rate": 0.25}
    assert arguments_for(Example, {"prior_neighbors": 4, "power": 3}) == {
        "prior": FeaturePrior(neighbors=4),
        "power": 3,
    }
    assert settings_of(Example)["prior_neighbors"] == Setting(
        "prior_neighbors", 0, int, False, "prior", field="neighbors"
    )
    assert settings_of(Example)["power"] == Setting("power", 2, int, False, "power")
    assert settings_of(Example)["rate"] == Setting("rate", 0.5, float, True, "rate")
    assert settings_of(Example)["in_channels"].default is REQUIRED
    assert stack([Example(3, 2, rate=0.25), Example(3, 2)]).stacked == 2
    with pytest.raises(ConfigError):
        stack([Example(3, 2), Example(3, 2, power=3)])


@pytest.mark.parametrize("name", RECIPES)
def test_a_model_can_be_rebuilt_from_its_settings(name: str) -> None:
    model = recipe(name).trial(graph(torch.float32), split_of(0), 0).model
    assert isinstance(model, NodeClassifier)
    rebuilt = type(model)(**arguments_for(type(model), model.settings))
    assert rebuilt.settings == model.settings
    assert rebuilt.batch_key == model.batch_key


PARSED = [
    ("hidden_channels", "7", 7), ("dropout", "0.25", 0.25), ("unit_norm", "True", True), ("unit_norm", "false", False),
    ("eta2", "none", None), ("structure", "frozen", "frozen"), ("lr", "1e-3", 1e-3),
]  # fmt: skip


@pytest.mark.parametrize(("setting", "text", "value"), PARSED)
def test_parse(setting: str, text: str, value: object) -> None:
    assert recipe("asgnn").settings[setting].parse(text) == value


@pytest.mark.parametrize(
    ("setting", "text"),
    [("hidden_channels", "7.5"), ("dropout", "much"), ("unit_norm", "1"), ("learn", "lam"), ("epochs", "")],
)
def test_parse_raises_on_invalid_text(setting: str, text: str) -> None:
    with pytest.raises(ConfigError, match=f"The setting {setting} must be .*; it is '{text}'"):
        recipe("asgnn").settings[setting].parse(text)


def test_a_number_with_400_digits_is_refused() -> None:
    with pytest.raises(ConfigError, match="lr must be a number"):
        recipe("gcn", lr=10**400)


@pytest.mark.parametrize("value", [-0.1, 1.0, 10**400, -(10**400), True, None, "0.5", float("nan"), float("inf"), 1j])
def test_numbers_must_be_in_range(value: object) -> None:
    with pytest.raises(ConfigError, match=r"share must be a number in \[0, 1\); it is .*\."):
        check_number("share", value, 0, 1, "[)")


@pytest.mark.parametrize("value", [0, -1, 11, 2.0, True, None, "3", float("nan"), 2**70])
def test_check_count(value: object) -> None:
    with pytest.raises(ConfigError, match=r"parts must be a whole number from 1 to 10; it is .*\."):
        check_count("parts", value, 1, 10)
