"""The ElasticGNN layer equals the CPU implementation, forward and backward."""

from __future__ import annotations

import pytest
import torch

from asgnn.graphs import undirected
from asgnn.graphs.adjacency import Adjacency
from asgnn.models import elastic
from asgnn.models.base import stack
from tests.kernels.machine import CLOSE, DEVICE, cases


@pytest.mark.parametrize("dtype", CLOSE, ids=["float32", "float64"])
@pytest.mark.parametrize("layers", cases([1, 3], [2, 4]))
@pytest.mark.parametrize(
    ("nodes", "edges", "channels", "trials"),
    cases(
        [(6, 5, 7, 1), (4, 5, 1, 65), (4, 0, 3, 2), (3, 3, 1030, 2), (9, 30, 3, 2)],
        [(20, 90, 3, 70), (2, 1, 1, 1), (33, 90, 9, 5), (20, 17, 1, 65), (20, 33, 8, 33)],
    ),
)
def test_elastic_layers_equal_the_cpu(
    nodes: int, edges: int, channels: int, trials: int, layers: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = torch.Generator().manual_seed(edges)
    pairs = torch.combinations(torch.arange(nodes))
    edge_index = undirected(pairs[torch.randperm(len(pairs), generator=rng)[:edges]].t(), nodes)
    i, j = edge_index
    weight = torch.rand(nodes, nodes, generator=rng)
    adj = Adjacency.of(edge_index, nodes, (weight + weight.t())[i, j] / 2)
    x, grad = (3 * torch.randn(trials, nodes, channels, generator=rng, dtype=dtype) for _ in range(2))
    # the radii are such that some vectors leave their balls and some do not
    models = [
        elastic.ElasticGNN(2, 2, channels, num_layers=layers, lambda1=0.2 + 3 * i / trials, lambda2=i % 3)
        for i in range(trials)
    ]
    results = []
    for device in ("cpu", DEVICE):
        monkeypatch.setattr(elastic, "on_gpu", lambda f, fused=bool(results): fused)
        leaf = x.to(device, copy=True).requires_grad_()
        out = stack(models).to(device).propagate(leaf, adj.to(device))
        out.backward(grad.to(device))
        assert leaf.grad is not None
        results.append((out.detach().cpu(), leaf.grad.cpu()))
    for expected, result in zip(*results, strict=True):
        torch.testing.assert_close(result, expected, **CLOSE[dtype])
