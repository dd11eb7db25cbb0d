"""The ASMP module equals the function, keeps its scalars within their constraints and works in PyG models."""

from __future__ import annotations

import functools
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.nn import GCNConv, Sequential

from asgnn.asmp import SCALARS, ASMPParams, Scheme, asmp
from asgnn.errors import ConfigError
from asgnn.models import ASMP
from tests.awkward import AWKWARD

F64 = torch.float64
CONSTRAINTS = ("descent", "positive", "free")
STARTS = {
    "defaults": ASMPParams(),
    "default step sizes": ASMPParams(lam=0.7, gamma=1.3, mu1=0.02, mu2=0.3, eta2=None),
    "near the bounds": ASMPParams(lam=1.0, gamma=0.5, mu1=1e-4, mu2=0.5, eta1=0.3333, eta2=0.999),
    "tiny": ASMPParams(lam=1e-3, gamma=1e-3, mu1=1e-6, mu2=1e-6, eta1=1e-4, eta2=1e-3),
    "large": ASMPParams(lam=50.0, gamma=90.0, mu1=3.0, mu2=7.0, eta1=0.005, eta2=0.01),
}


@torch.no_grad()
def values(module: ASMP) -> dict[str, float]:
    return {name: float(getattr(module.params(), name)) for name in SCALARS}


def resolved(params: ASMPParams) -> dict[str, float]:
    return dict(zip(SCALARS, map(float, params.resolved()), strict=True))


def problem(graph: str = "random 33", batch: tuple[int, ...] = ()) -> tuple[Tensor, Tensor]:
    n, edge_index = AWKWARD[graph]
    return torch.randn(*batch, n, 4, generator=torch.Generator().manual_seed(0)), edge_index


@pytest.mark.parametrize("constraint", CONSTRAINTS)
@pytest.mark.parametrize("start", STARTS)
def test_initial_values_and_reset(start: str, constraint: str) -> None:
    module = ASMP(params=STARTS[start], constraint=constraint)
    assert values(module) == pytest.approx(resolved(STARTS[start]), rel=1e-6)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(1.0)
    assert values(module) != pytest.approx(resolved(STARTS[start]), rel=1e-2)
    module.reset_parameters()
    assert values(module) == pytest.approx(resolved(STARTS[start]), rel=1e-6)


@functools.cache
def trained(constraint: str, seed: int, dtype: torch.dtype) -> ASMP:
    """A module after 200 large Adam steps towards random targets over six orders of magnitude."""
    module = ASMP(constraint=constraint).to(dtype)
    optimizer = torch.optim.Adam(module.parameters(), lr=1.0)
    rng = torch.Generator().manual_seed(seed)
    for step in range(200):
        if step % 40 == 0:
            targets = (torch.rand(6, generator=rng) * 6 - 3).mul(math.log(10)).exp().to(dtype)
        now = torch.stack([getattr(module.params(), name) for name in SCALARS])
        optimizer.zero_grad()
        (now - targets).abs().sum().backward()
        optimizer.step()
    return module


@pytest.mark.parametrize("dtype", [torch.float32, F64], ids=["float32", "float64"])
@pytest.mark.parametrize("constraint", ["descent", "positive"])
def test_constraints_hold_after_large_steps(constraint: str, dtype: torch.dtype) -> None:
    for seed in range(4):
        value = values(trained(constraint, seed, dtype))
        assert all(0 < number < math.inf for number in value.values()), value
        if constraint == "descent":
            assert value["eta1"] < 1 / (1 + 2 * value["lam"])
            assert value["eta2"] < 1 / (value["gamma"] + value["mu2"])


@pytest.mark.parametrize("graph", ["random 33", "star", "isolated node"])
def test_objective_never_increases_with_learned_values(graph: str) -> None:
    x, edge_index = problem(graph)
    for seed in range(3):
        module = trained("descent", seed, F64)
        for scale in (0.1, 1.0, 10.0):
            out = asmp(scale * x.double(), edge_index, module.params(), layers=12, trace=True)
            totals = torch.stack([terms.total for terms in out.objective]).detach()
            assert len(totals) == 25
            assert (totals.diff() <= 1e-9 * totals[:-1].abs()).all()


@pytest.mark.parametrize("name", ["eta1", "eta2"])
@pytest.mark.parametrize("raw", [-1e3, -40.0, 17.5, 40.0, 1e3])
def test_step_sizes_stay_within_strict_bounds(name: str, raw: float) -> None:
    """A sigmoid rounds to 0 and 1, but a step size of 0 learns nothing, and descent needs one below the bound."""
    module = ASMP()
    with torch.no_grad():
        getattr(module, f"raw_{name}").fill_(raw)
    value = values(module)
    bound = {"eta1": 1 / (1 + 2 * value["lam"]), "eta2": 1 / (value["gamma"] + value["mu2"])}
    assert 0 < value[name] < bound[name]


def test_free_learns_a_negative_lambda() -> None:
    module = ASMP(params=ASMPParams(lam=-0.3), constraint="free")
    assert values(module)["lam"] == pytest.approx(-0.3)
    module = ASMP(constraint="free")
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    module.params().lam.mul(3.0).backward()  # type: ignore[union-attr]
    optimizer.step()
    assert values(module)["lam"] == pytest.approx(2.6 - 3)
    x, edge_index = problem()
    assert module(x, edge_index).isfinite().all()


VARIANTS = [(Scheme(), "descent"), (Scheme(h_steps=2), "positive"), (Scheme("paper"), "positive"), (Scheme(), "free")]


@pytest.mark.parametrize(("scheme", "constraint"), VARIANTS, ids=str)
def test_module_equals_the_function(scheme: Scheme, constraint: str) -> None:
    options = vars(scheme)
    for graph, batch in (("random 33", ()), ("isolated node", (2,)), ("one node", (2, 3))):
        x, edge_index = problem(graph, batch)
        module = ASMP(5, scheme=scheme, constraint=constraint, params=ASMPParams(0.9, 0.8, 0.01, 0.1, 0.1, 0.4))
        expected = asmp(x, edge_index, module.params(), layers=5, **options)
        torch.testing.assert_close(module(x, edge_index), expected.h)
        weight = torch.full((edge_index.size(1),), 0.5)
        expected = asmp(x, edge_index, module.params(), layers=3, edge_weight=weight, **options)
        torch.testing.assert_close(module(x, edge_index, weight, num_layers=3), expected.h)


def test_default_constraint_depends_on_the_objective() -> None:
    assert ASMP().constraint == "descent"
    assert ASMP(scheme=Scheme("paper")).constraint == "positive"


@pytest.mark.parametrize("names", ["", "lam", "eta2 mu1", "gamma", "lam eta1", " ".join(SCALARS)])
@pytest.mark.parametrize("container", [tuple, list, set])
def test_only_named_scalars_are_learned(container: type, names: str) -> None:
    learn = container(names.split())
    x, edge_index = problem()
    module = ASMP(4, learn=learn)
    assert {name for name, _ in module.named_parameters()} == {f"raw_{name}" for name in learn}
    assert set(module.state_dict()) == {f"raw_{name}" for name in SCALARS}
    before = values(module)
    out = module(x, edge_index)
    assert out.requires_grad == bool(learn)
    if not learn:
        return
    out.square().sum().backward()
    optimizer = torch.optim.Adam(module.parameters(), lr=0.1)
    optimizer.step()
    after = values(module)
    # under "descent" a step size changes with the scalars in its bound
    follows = {"eta1": {"lam", "eta1"}, "eta2": {"gamma", "mu2", "eta2"}}
    for name in SCALARS:
        changes = bool(set(learn) & follows.get(name, {name}))
        assert (after[name] != before[name]) == changes, name


def test_fixed_module_passes_the_gradient_to_x() -> None:
    x, edge_index = problem()
    x.requires_grad_()
    ASMP(learn=())(x, edge_index).sum().backward()
    assert x.grad is not None
    assert x.grad.abs().sum() > 0


@pytest.mark.parametrize("constraint", ["positive", "descent"])
def test_a_fixed_zero_stays_zero(constraint: str) -> None:
    module = ASMP(params=ASMPParams(mu1=0.0), learn=("lam",), constraint=constraint)
    assert values(module)["mu1"] == 0


@pytest.mark.parametrize("constraint", CONSTRAINTS)
def test_save_and_load(constraint: str, tmp_path: Path) -> None:
    learned = trained(constraint, 1, torch.float32) if constraint != "free" else ASMP(constraint="free")
    torch.save(learned.state_dict(), tmp_path / "asmp.pt")
    fresh = ASMP(params=ASMPParams(0.1, 0.1, 0.1, 0.1, 0.1, 0.1), constraint=constraint)
    fresh.load_state_dict(torch.load(tmp_path / "asmp.pt", weights_only=True))
    assert values(fresh) == values(learned)
    x, edge_index = problem()
    assert torch.equal(fresh(x, edge_index), learned(x, edge_index))


@pytest.mark.parametrize("constraint", CONSTRAINTS)
def test_conversion_to_double_and_back(constraint: str) -> None:
    x, edge_index = problem()
    module = ASMP(constraint=constraint)
    out, before = module(x, edge_index), values(module)
    wide = module.double()(x.double(), edge_index)
    assert wide.dtype == F64
    torch.testing.assert_close(wide.float(), out, rtol=1e-5, atol=1e-5)
    assert values(module.float()) == before
    assert torch.equal(module(x, edge_index), out)
    module.double().reset_parameters()
    assert values(module) == pytest.approx(before, rel=1e-6)


def test_works_in_a_pyg_model() -> None:
    x, edge_index = problem()
    y = torch.arange(x.size(0)) % 3
    model = Sequential(
        "x, edge_index",
        [
            (GCNConv(4, 8), "x, edge_index -> x"),
            torch.nn.ReLU(),
            torch.nn.Linear(8, 3),
            (ASMP(4), "x, edge_index -> x"),
        ],
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x, edge_index), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    unchanged = {name for name, parameter in model.named_parameters() if torch.equal(parameter, before[name])}
    assert not unchanged


NAN, INF = torch.tensor(torch.nan), torch.tensor(torch.inf)
BAD = {
    "unknown scalar": (
        "unknown names: mu3; the scalars are lam, gamma, mu1, mu2, eta1, eta2",
        {"learn": ("lam", "mu3")},
    ),
    "a string for names": ("unknown names: a, l, m;", {"learn": "lam"}),
    "unknown constraint": ("constraint must be one of descent, positive, free", {"constraint": "none"}),
    "unknown backend": ("backend must be one of", {"backend": "tpu"}),
    "negative depth": ("num_layers must be a whole number from 0 to .*; it is -1", {"num_layers": -1}),
    "descent of the paper": ('needs objective="degree"', {"constraint": "descent", "scheme": Scheme("paper")}),
    "negative λ": ("lam starts at -0.5", {"params": ASMPParams(lam=-0.5)}),
    "negative λ, positive": ("lam starts at -0.5", {"params": ASMPParams(lam=-0.5), "constraint": "positive"}),
    "μ₁ = 0 learned": ("mu1 starts at 0,", {"params": ASMPParams(mu1=0.0)}),
    "η₁ at its bound": (
        r"eta1 starts at 0\.5, but descent needs it above 0 and below 0\.3333",
        {"params": ASMPParams(lam=1.0, eta1=0.5)},
    ),
    "η₂ over its bound": ("eta2 starts at 5, but descent", {"params": ASMPParams(eta2=5.0)}),
    "λ = −1 without η₁": ("lam is -1", {"params": ASMPParams(lam=-1.0), "constraint": "free"}),
    "γ + μ₂ = 0 without η₂": (
        r"gamma \+ mu2 is 0",
        {"params": ASMPParams(gamma=0.0, mu2=0.0, eta2=None), "constraint": "free"},
    ),
    "γ + μ₂ = 0": (
        r"gamma and mu2 are both 0",
        {"params": ASMPParams(gamma=0.0, mu2=0.0), "learn": ()},
    ),
    "NaN, free": ("lam starts at nan", {"params": ASMPParams(lam=NAN, eta1=0.1), "constraint": "free"}),
    "NaN, positive": ("mu1 starts at nan", {"params": ASMPParams(mu1=NAN), "constraint": "positive"}),
    "infinite": ("mu1 starts at inf", {"params": ASMPParams(mu1=INF), "constraint": "positive"}),
    "several values": (
        "lam has 2 values, but a module needs a single number",
        {"params": ASMPParams(lam=torch.ones(2))},
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_invalid_settings_raise(case: str) -> None:
    message, settings = BAD[case]
    with pytest.raises(ConfigError, match=message) as caught:
        ASMP(**settings)  # type: ignore[arg-type]
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)
