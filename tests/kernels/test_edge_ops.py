"""The three edge operations equal those of the CPU."""

from __future__ import annotations

import pytest
import torch

from asgnn.graphs import edge_ops
from asgnn.graphs.adjacency import Adjacency
from asgnn.kernels import edge_ops as kernels
from tests.awkward import AWKWARD
from tests.kernels.machine import CLOSE, DEVICE, cases

GRAPHS = ["no edges", "one edge", "two components", "star", "random 33"]


@pytest.mark.parametrize("dtype", CLOSE, ids=["float32", "float64"])
@pytest.mark.parametrize(
    ("channels", "trials"), cases([(7, 1), (3, 17), (70, 2), (1030, 2)], [(3, 5), (1, 70), (16, 65)])
)
@pytest.mark.parametrize("name", cases(["one node", "isolated node", "complete"], GRAPHS))
def test_edge_operations_equal_the_cpu(name: str, channels: int, trials: int, dtype: torch.dtype) -> None:
    n, edge_index = AWKWARD[name]
    adj = Adjacency.of(edge_index, n)
    on_gpu = adj.to(DEVICE)
    rng = torch.Generator().manual_seed(channels)
    u, v = (torch.randn(n, channels, trials, generator=rng, dtype=dtype) for _ in range(2))
    weight = torch.rand(adj.row.numel(), trials, generator=rng, dtype=dtype)
    a, b, w = (part.to(DEVICE) for part in (u, v, weight))
    for expected, out in (
        (edge_ops.spmm(weight, v, adj), kernels.spmm(w, b, on_gpu)),
        (edge_ops.sddmm(u, v, adj), kernels.sddmm(a, b, on_gpu)),
        (edge_ops.sqdist(v, adj), kernels.sqdist(b, on_gpu)),
    ):
        torch.testing.assert_close(out.cpu(), expected, **CLOSE[dtype])
