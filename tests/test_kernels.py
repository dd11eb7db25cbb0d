"""The GPU's kernels against torch. Without a GPU Triton's interpreter runs them: TRITON_INTERPRET=1."""

from __future__ import annotations

import os

import pytest
import torch

pytest.importorskip("triton", reason="Triton comes with torch's builds for CUDA")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not (torch.cuda.is_available() or INTERPRETED):
    pytest.skip("needs a GPU, or TRITON_INTERPRET=1", allow_module_level=True)

from asgnn.asmp import BACKENDS, edge_ops  # noqa: E402
from asgnn.asmp.gpu import GpuSteps  # noqa: E402
from asgnn.graphs import undirected  # noqa: E402
from asgnn.graphs.adjacency import Adjacency  # noqa: E402
from asgnn.kernels import adam, dropout  # noqa: E402
from asgnn.kernels import edge_ops as edge_kernels  # noqa: E402
from asgnn.kernels.csr import sum_rows, sum_segments  # noqa: E402
from asgnn.models import elastic, layers  # noqa: E402
from asgnn.models.base import stack  # noqa: E402
from asgnn.training import optimizer  # noqa: E402
from tests.asmp.test_backends import SCHEMES, run, same  # noqa: E402
from tests.awkward import AWKWARD  # noqa: E402

DEVICE = "cpu" if INTERPRETED else "cuda"
CLOSE = {torch.float32: {"rtol": 1e-4, "atol": 1e-4}, torch.float64: {"rtol": 1e-10, "atol": 1e-10}}


@pytest.mark.parametrize("dtype", CLOSE, ids=["float32", "float64"])
@pytest.mark.parametrize(
    ("rows", "cols", "width", "trials"), [(5, 7, 3, 2), (33, 50, 64, 3), (4, 3, 300, 1), (1, 1, 1, 1), (40, 9, 7, 5)]
)
def test_row_sums_are_products(rows: int, cols: int, width: int, trials: int, dtype: torch.dtype) -> None:
    rng = torch.Generator().manual_seed(rows)
    matrix = torch.randn(rows, cols, generator=rng, dtype=dtype) * (torch.rand(rows, cols, generator=rng) < 0.6)
    matrix[0], matrix[rows // 2] = 1, 0  # a full row and an empty one
    sparse = matrix.to_sparse_csr()
    parts = [part.to(DEVICE) for part in (sparse.crow_indices(), sparse.col_indices(), sparse.values())]
    dense = torch.randn(trials, cols, width, generator=rng, dtype=dtype)
    for layout in (dense, dense.permute(1, 2, 0).contiguous().permute(2, 0, 1)):
        torch.testing.assert_close(sum_rows(*parts, layout.to(DEVICE)).cpu(), matrix @ dense, **CLOSE[dtype])
    nnz = sparse.values().numel()
    keep, scale = torch.rand(trials, nnz, generator=rng) < 0.5, torch.rand(trials, generator=rng, dtype=dtype)
    masked = torch.zeros(trials, rows, cols, dtype=dtype)
    row, col = matrix.nonzero(as_tuple=True)
    masked[:, row, col] = keep * matrix[row, col] * scale.view(-1, 1)
    out = sum_rows(*parts, dense.to(DEVICE), keep.to(DEVICE), scale.to(DEVICE))
    torch.testing.assert_close(out.cpu(), masked @ dense, **CLOSE[dtype])
    order = torch.randperm(nnz, generator=rng)
    elsewhere = torch.empty_like(keep)
    elsewhere[:, order] = keep
    again = sum_rows(*parts, dense.to(DEVICE), elsewhere.to(DEVICE), scale.to(DEVICE), order.to(DEVICE))
    assert torch.equal(again, out)


@pytest.mark.parametrize("dtype", CLOSE, ids=["float32", "float64"])
@pytest.mark.parametrize("sizes", [[3, 0, 40, 1], [1], [0, 0, 2]])
@pytest.mark.parametrize("width", [1, 7, 300])
def test_segments(sizes: list[int], width: int, dtype: torch.dtype) -> None:
    values = torch.randn(sum(sizes), width, generator=torch.Generator().manual_seed(width), dtype=dtype)
    crow = torch.tensor([0, *sizes]).cumsum(0)
    expected = torch.stack([part.sum(0) for part in values.split(sizes)])
    torch.testing.assert_close(sum_segments(values.to(DEVICE), crow.to(DEVICE)).cpu(), expected, **CLOSE[dtype])


@pytest.mark.parametrize("dtype", CLOSE, ids=["float32", "float64"])
@pytest.mark.parametrize(("channels", "trials"), [(7, 1), (3, 5), (1, 70), (16, 65), (70, 2)])
@pytest.mark.parametrize("name", AWKWARD)
def test_operations_on_edges(name: str, channels: int, trials: int, dtype: torch.dtype) -> None:
    n, edge_index = AWKWARD[name]
    adj = Adjacency.of(edge_index, n)
    there = adj.to(DEVICE)
    rng = torch.Generator().manual_seed(channels)
    u, v = (torch.randn(n, channels, trials, generator=rng, dtype=dtype) for _ in range(2))
    weight = torch.rand(adj.row.numel(), trials, generator=rng, dtype=dtype)
    a, b, w = (part.to(DEVICE) for part in (u, v, weight))
    for expected, found in (
        (edge_ops.spmm(weight, v, adj), edge_kernels.spmm(w, b, there)),
        (edge_ops.sddmm(u, v, adj), edge_kernels.sddmm(a, b, there)),
        (edge_ops.sqdist(v, adj), edge_kernels.sqdist(b, there)),
    ):
        torch.testing.assert_close(found.cpu(), expected, **CLOSE[dtype])


@pytest.mark.parametrize("count", [0, 1, 5, 1024, 3001])
def test_dropout_is_that_of_the_cpu(count: int) -> None:
    seeds, below = [0, 5, 2**62], torch.tensor([-(2**15), 0, 30_000], dtype=torch.int16)
    here, there = layers.Streams(seeds), layers.Streams(seeds, DEVICE)
    h, scale = torch.randn(3, count, generator=torch.Generator().manual_seed(count)), torch.tensor([1.0, 2.0, 20.0])
    on_gpu = [part.to(DEVICE) for part in (below, h, scale)]
    for _ in range(3):
        expected = here.at_least(below, count)
        there.draws += 1
        found = dropout.masks(there.seeds, there.draws, on_gpu[0], count, layers.CONSTANTS)
        assert torch.equal(found.cpu(), expected)
        out, mask = dropout.drop(there.seeds, there.draws, *on_gpu, layers.CONSTANTS)
        assert torch.equal(mask.cpu(), expected)
        assert torch.equal(out.cpu(), h * expected * scale.unsqueeze(1))


@pytest.mark.parametrize("dtype", CLOSE, ids=["float32", "float64"])
@pytest.mark.parametrize("shape", [(1, 1), (3, 5, 7), (2, 40, 33), (4,)])
def test_adam_is_that_of_the_cpu(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    rng = torch.Generator().manual_seed(len(shape))
    p, *grads = (torch.randn(shape, generator=rng, dtype=dtype) for _ in range(5))
    lr, decay = torch.rand(shape[0], generator=rng, dtype=dtype), torch.rand(shape[0], generator=rng, dtype=dtype)
    here = optimizer.TrialAdam([p.clone()], lr, decay)
    there = optimizer.TrialAdam([p.to(DEVICE).clone()], lr.to(DEVICE), decay.to(DEVICE))
    for grad in grads:
        here.step([grad])
        for power, beta in zip(there.powers, (optimizer.BETA1, optimizer.BETA2), strict=True):
            power *= beta
        parts = there.parameters[0], grad.to(DEVICE), (there.first[0], there.second[0])
        adam.step(*parts, there.lr, there.weight_decay, there.powers, (optimizer.BETA1, optimizer.BETA2), optimizer.EPS)
        for ours, expected in zip(
            (there.parameters, there.first, there.second), (here.parameters, here.first, here.second), strict=True
        ):
            torch.testing.assert_close(ours[0].cpu(), expected[0], **CLOSE[dtype])


@pytest.mark.parametrize("dtype", CLOSE, ids=["float32", "float64"])
@pytest.mark.parametrize("layers", [1, 2, 4])
@pytest.mark.parametrize(
    ("nodes", "edges", "channels", "trials"),
    [(6, 5, 7, 1), (20, 90, 3, 70), (2, 1, 1, 1), (4, 0, 3, 2), (33, 90, 9, 5), (20, 17, 1, 65), (20, 33, 8, 33)],
)
def test_elastic_layers_are_those_of_the_cpu(
    nodes: int, edges: int, channels: int, trials: int, layers: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = torch.Generator().manual_seed(edges)
    pairs = torch.combinations(torch.arange(nodes))
    edge_index = undirected(pairs[torch.randperm(len(pairs), generator=rng)[:edges]].t(), nodes)
    i, j = edge_index
    weight = torch.rand(nodes, nodes, generator=rng)
    adj = Adjacency.of(edge_index, nodes, (weight + weight.t())[i, j] / 2)
    x, grad = (3 * torch.randn(trials, nodes, channels, generator=rng, dtype=dtype) for _ in range(2))
    # so wide that some vectors leave their balls and some do not
    models = [
        elastic.ElasticGNN(2, 2, channels, layers, lambda1=0.2 + 3 * i / trials, lambda2=i % 3) for i in range(trials)
    ]
    results = []
    for device in ("cpu", DEVICE):
        monkeypatch.setattr(elastic, "on_gpu", lambda f, fused=bool(results): fused)
        leaf = x.to(device, copy=True).requires_grad_()
        out = stack(models).to(device).propagate(leaf, adj.to(device))
        out.backward(grad.to(device))
        assert leaf.grad is not None
        results.append((out.detach().cpu(), leaf.grad.cpu()))
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, **CLOSE[dtype])


WITH_KERNELS = [name for name, scheme in SCHEMES.items() if scheme.normalization == "rw" and not scheme.unit_norm]
BATCHES: list[tuple[tuple[int, ...], torch.dtype, bool]] = [
    ((), torch.float64, False),
    ((3,), torch.float64, True),
    ((2, 9), torch.float32, True),
]


@pytest.mark.parametrize("scheme", WITH_KERNELS)
@pytest.mark.parametrize("graph", AWKWARD)
def test_steps_are_those_of_the_dense_reference(graph: str, scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKENDS, "gpu", GpuSteps)  # which the interpreter runs on a CPU, too
    for batch, dtype, weighted in BATCHES:
        settings = graph, SCHEMES[scheme], dtype, batch, weighted, DEVICE
        same(SCHEMES[scheme], *run("gpu", *settings), *run("dense", *settings))
