"""The CPU kernels equal the dense reference and torch: values, objective, every gradient, masks bit for bit."""

from __future__ import annotations

from pathlib import Path

import numba
import pytest
import torch
from torch import Tensor

import asgnn.kernels
from asgnn.asmp import ASMPParams, Scheme, propagate
from asgnn.errors import ConfigError
from asgnn.graphs import Gaussian, Split, planted_graph, random_split
from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.features import Features
from asgnn.kernels.cpu import compiled, tasks
from asgnn.models import APPNP, ASGNN, GCN, layers
from asgnn.training import TrainConfig, fit
from asgnn.training.optimizer import TrialAdam
from tests.asmp.test_backends import SCHEMES, START, close, run, same
from tests.awkward import AWKWARD

SUPPORTED = [
    *("degree", "degree dense support", "degree exact", "degree 3 H 2 S"),
    *("frozen rw", "frozen sym", "frozen degree", "mcp", "mcp exact", "mcp dense support", "mcp 2 H 2 S"),
]
REFUSED = [name for name in SCHEMES if name not in SUPPORTED]
SETTINGS = [((), torch.float64, False), ((2, 2), torch.float64, True), ((3,), torch.float32, True)]


@pytest.fixture
def without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgnn.kernels, "USE_NUMBA", False)


# --- ASMP -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SUPPORTED)
@pytest.mark.parametrize("graph", AWKWARD)
def test_backend_equals_the_dense_reference(graph: str, name: str) -> None:
    for batch, dtype, weighted in SETTINGS:
        parts = graph, SCHEMES[name], dtype, batch, weighted, "cpu"
        same(SCHEMES[name], *run("cpu", *parts), *run("dense", *parts))


@pytest.mark.parametrize("name", ["degree", "frozen sym"])
@pytest.mark.parametrize("channels", [8, 9, 24])
def test_any_number_of_columns(channels: int, name: str) -> None:
    parts = "random 33", SCHEMES[name], torch.float64, (2,), True, "cpu", channels
    same(SCHEMES[name], *run("cpu", *parts), *run("dense", *parts))


@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("name", ["degree", "mcp", "frozen rw"])
def test_threads_and_ranges_of_nodes(name: str, batch: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Several ranges give the same gradients; the number of threads does not change a bit."""
    parts = "random 33", SCHEMES[name], torch.float64, batch, True, "cpu"
    whole = run("dense", *parts)
    monkeypatch.setattr(tasks, "ENTRIES", 16)
    monkeypatch.setattr(tasks, "ONE_THREAD_BELOW", 0)
    results = []
    for threads in (1, 2, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        results.append(run("cpu", *parts))
        same(SCHEMES[name], *results[-1], *whole)
    for out, grads in results[1:]:
        assert torch.equal(out.h, results[0][0].h)
        assert all(torch.equal(grads[key], value) for key, value in results[0][1].items())


def test_without_recorded_steps() -> None:
    """As in training and in validation: only the last H, with gradients and without."""
    n, edge_index = AWKWARD["random 33"]
    adj = Adjacency.of(edge_index, n)
    x = torch.randn(2, n, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for name in SUPPORTED:
        found = []
        for backend in ("cpu", "edges"):
            leaf = x.clone().requires_grad_()
            scalars = [torch.full((2,), value, dtype=torch.float64, requires_grad=True) for value in START.values()]
            parts = adj, ASMPParams(*scalars), SCHEMES[name]
            h = propagate(leaf, *parts, layers=5, backend=backend, weights=False).h  # type: ignore[arg-type]
            grads = torch.autograd.grad(h.square().sum(), [leaf, *scalars], allow_unused=True)
            found.append((h, *(g for g in grads if g is not None and bool(g.any()))))
            with torch.no_grad():
                again = propagate(x, *parts, layers=5, backend=backend, weights=False).h  # type: ignore[arg-type]
            assert torch.equal(again, h)
        for ours, theirs in zip(*found, strict=True):
            close(ours, theirs)


@pytest.mark.parametrize("name", ["degree", "mcp", "degree exact", "frozen sym"])
def test_second_derivatives_by_the_edge_list(name: str) -> None:
    n, edge_index = AWKWARD["one edge"]
    weight = torch.tensor([0.7, 0.7], dtype=torch.float64)
    x = torch.tensor([[[0.3, -0.2], [0.1, 0.4]]], dtype=torch.float64, requires_grad=True)
    scalars = [torch.tensor([value], dtype=torch.float64, requires_grad=True) for value in START.values()]

    def function(x: Tensor, weight: Tensor, *scalars: Tensor) -> tuple[Tensor, ...]:
        adj = Adjacency.of(edge_index, n, weight.mean().expand(2))
        out = propagate(x, adj, ASMPParams(*scalars), SCHEMES[name], layers=2, backend="cpu")
        return out.h, out.weights[-1]

    inputs = (x, weight.requires_grad_(), *scalars)
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


@pytest.mark.parametrize("name", REFUSED)
def test_other_variants_are_refused(name: str) -> None:
    n, edge_index = AWKWARD["one edge"]
    x, adj = torch.ones(n, 2), Adjacency.of(edge_index, n)
    with pytest.raises(ConfigError, match='use backend="edges"'):
        propagate(x, adj, ASMPParams(), SCHEMES[name], layers=1, backend="cpu")
    assert propagate(x, adj, ASMPParams(), SCHEMES[name], layers=1).backend == "edges"


def test_auto_takes_the_kernels_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    n, edge_index = AWKWARD["one edge"]
    parts = torch.ones(n, 2), Adjacency.of(edge_index, n), ASMPParams(), Scheme()
    assert propagate(*parts, layers=1).backend == "cpu"
    monkeypatch.setattr(asgnn.kernels, "USE_NUMBA", False)
    assert propagate(*parts, layers=1).backend == "edges"
    with pytest.raises(ConfigError, match=r"asgnn\[fast\]"):
        propagate(*parts, layers=1, backend="cpu")


# --- the other loops --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 5, 1031])
def test_masks_equal_those_of_torch(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds, below = [0, 5, 2**62, 7], torch.tensor([-(2**15), 0, 30_000, 0], dtype=torch.int16)
    ours, theirs = layers.Streams(seeds), layers.Streams(seeds)
    below[3] = layers.Streams([7]).bits(1).view(torch.int16)[0, 0]  # equal to the drawn value, which is kept
    for _ in range(3):
        fast = ours.at_least(below, count)
        with monkeypatch.context() as patch:
            patch.setattr(asgnn.kernels, "USE_NUMBA", False)
            assert torch.equal(fast, theirs.at_least(below, count))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dropout_of_relu_equals_torch(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = torch.Generator().manual_seed(0)
    dropout = layers.Dropout(0.5)
    dropout.rate = torch.tensor([0.0, 0.3, 0.9], dtype=torch.float64)
    h, grad = (torch.randn(3, 7, 5, generator=rng, dtype=dtype) for _ in range(2))
    h[0, 0] = torch.tensor([0.0, -0.0, torch.nan, torch.inf, -torch.inf])
    results = []
    for fast in (True, False):
        monkeypatch.setattr(asgnn.kernels, "USE_NUMBA", fast)
        leaf = h.clone().requires_grad_()
        out = dropout.of_relu(leaf, layers.Streams([1, 2, 3]))
        results.append((out, *torch.autograd.grad(out, leaf, grad)))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, equal_nan=True)


@pytest.mark.parametrize("width", [1, 7, 8, 40, 67])
@pytest.mark.parametrize("trials", [1, 3])
def test_sparse_products_equal_those_of_torch(trials: int, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = torch.Generator().manual_seed(width)
    x = torch.randn(11, 60, generator=rng) * (torch.rand(11, 60, generator=rng) < 0.08)
    x[3] = 0  # an empty row
    features = Features.of(x)
    assert features.by_row is not None
    weight = torch.randn(trials, 60, width, generator=rng)
    keep, scale = torch.rand(trials, features.size_of_mask[0], generator=rng) < 0.4, 1 + torch.rand(trials)
    for kept in ((None, None), (keep, scale)):
        results = []
        for fast in (True, False):
            monkeypatch.setattr(asgnn.kernels, "USE_NUMBA", fast)
            leaf = weight.clone().requires_grad_()
            out = features.linear(leaf, *kept)
            results.append((out, *torch.autograd.grad(out.sin().sum(), leaf)))
        for ours, theirs in zip(*results, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 5, 3, 1), (2, 3, 6, 7), (2, 3, 4, 8), (1, 4, 5, 12), (1, 2, 3, 40)])
def test_narrow_products(shape: tuple[int, int, int, int]) -> None:
    trials, rows, inner, columns = shape
    rng = torch.Generator().manual_seed(0)
    h = torch.randn(trials, rows, inner, generator=rng, dtype=torch.float64, requires_grad=True)
    w = torch.randn(trials, inner, columns, generator=rng, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(layers.product(h, w), h @ w)
    torch.testing.assert_close(layers.product(h.float(), w.float()), (h @ w).float())
    assert torch.autograd.gradcheck(layers.product, (h, w))
    assert torch.autograd.gradgradcheck(layers.product, (h, w))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_adam_equals_torch(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = torch.Generator().manual_seed(0)
    shapes = [(3, 5, 7), (3,), (3, 1)]
    start = [torch.randn(shape, generator=rng, dtype=dtype) for shape in shapes]
    lr, decay = (torch.rand(3, generator=rng, dtype=dtype) for _ in range(2))
    grads = [[torch.randn(shape, generator=rng, dtype=dtype) for shape in shapes] for _ in range(4)]
    results = []
    for fast in (True, False):
        monkeypatch.setattr(asgnn.kernels, "USE_NUMBA", fast)
        adam = TrialAdam([p.clone() for p in start], lr, decay)
        for step in grads:
            adam.step([step[0].mT.contiguous().mT, *step[1:]])
        results.append([*adam.parameters, *adam.first, *adam.second])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


# --- training ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [ASGNN, APPNP, GCN])
def test_training_equals_that_of_torch(model: type[ASGNN], monkeypatch: pytest.MonkeyPatch) -> None:
    data = planted_graph(60, classes=3, degree=4, features=Gaussian(8))
    data.x = torch.where(data.x > data.x.quantile(0.93), data.x, 0.0)  # sparse, as bags of words are
    assert Features.of(data.x).by_row is not None
    split = random_split(data, 0)
    losses = []
    for fast in (True, False):
        monkeypatch.setattr(asgnn.kernels, "USE_NUMBA", fast)
        net = model(data.num_features, 16, 3, dropout=0.5)
        net.reset_parameters(torch.Generator().manual_seed(0))
        history = fit(net, data, TrainConfig(epochs=10), split=split).history
        losses.append(torch.stack([history.train_loss, history.val_loss]))
    torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-4)


def resident() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


def test_memory_stays_flat_over_trainings() -> None:
    data = planted_graph(200, classes=3, degree=6, features=Gaussian(30))
    split: Split = random_split(data, 0)

    def train(times: int) -> int:
        for _ in range(times):
            fit(ASGNN(data.num_features, 64, 3), data, TrainConfig(epochs=2), split=split)
        return resident()

    before = train(20)
    assert train(60) < 1.05 * before


# --- compilation ------------------------------------------------------------------------------------------------------


def test_kernels_run_without_a_folder_for_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", "/dev/null/cache")

    @compiled.compiled
    def twice(x):  # type: ignore[no-untyped-def]
        return 2 * x

    assert twice(21) == 42


def test_a_damaged_cache_is_compiled_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))

    def twice(x):  # type: ignore[no-untyped-def]
        return 2 * x

    assert compiled.compiled(twice)(21) == 42
    files = [path for path in tmp_path.rglob("*.nb?") if path.is_file()]
    assert {path.suffix for path in files} == {".nbi", ".nbc"}
    for path in files:
        path.write_bytes(b"damaged")
    assert compiled.compiled(twice)(21) == 42
