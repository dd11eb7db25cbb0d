"""Layers that are computed again in the backward pass give the gradients of kept layers, bit by bit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from asgnn.asmp import BACKENDS, SCALARS, ASMPParams, Scheme, propagate
from asgnn.asmp.gpu import GpuSteps
from asgnn.asmp.passes import segments
from asgnn.graphs.adjacency import Adjacency
from tests.asmp.test_backends import SCHEMES, START
from tests.awkward import AWKWARD
from tests.kernels.machine import DEVICE


def results(backend: str, scheme: Scheme, layers: int, trials: int, recompute: bool, graph: str) -> list[Tensor]:
    device = DEVICE if backend == "gpu" else "cpu"
    (n, edge_index), rng = AWKWARD[graph], torch.Generator().manual_seed(1)
    x = torch.randn(trials, n, 3, generator=rng).to(device).requires_grad_()
    weight = torch.full((edge_index.size(1),), 0.75, device=device, requires_grad=True)
    leaves = {name: torch.full((trials,), START[name], device=device, requires_grad=True) for name in SCALARS}
    adj = Adjacency.of(edge_index.to(device), n, weight)
    out = propagate(
        x, adj, ASMPParams(**leaves), scheme, layers=layers, backend=backend, weights=False, recompute=recompute
    )  # type: ignore[arg-type]
    grads = torch.autograd.grad(out.h.pow(3).sum(), [x, weight, *leaves.values()], allow_unused=True)
    return [out.h.detach(), *(grad for grad in grads if grad is not None)]


CASES = [
    *(
        ("cpu", name, layers, 2, "random 33")
        for name in ("degree", "mcp", "degree 3 H 2 S")
        for layers in (1, 2, 8, 11)
    ),
    ("cpu", "degree exact", 8, 1, "isolated node"),
    ("cpu", "frozen rw", 5, 1, "isolated node"),  # keeps all layers
    ("gpu", "degree", 5, 1, "isolated node"),
    ("gpu", "mcp 2 H 2 S", 4, 2, "one edge"),
]


@pytest.mark.parametrize(("backend", "scheme", "layers", "trials", "graph"), CASES)
def test_recomputed_gradients_equal_kept_ones(
    backend: str, scheme: str, layers: int, trials: int, graph: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BACKENDS, "gpu", GpuSteps)  # the interpreter also runs it on a CPU
    kept, again = (results(backend, SCHEMES[scheme], layers, trials, save, graph) for save in (False, True))
    assert len(kept) > 2
    assert all(torch.equal(a, b) for a, b in zip(kept, again, strict=True))


@pytest.mark.parametrize("passes", [0, 1, 2, 3, 8, 9, 10, 100])
def test_parts_cover_the_passes_and_are_about_the_root(passes: int) -> None:
    assert segments(passes, False) == ([range(passes)] if passes else [])
    parts = segments(passes, True)
    assert [number for part in parts for number in part] == [*range(passes)]
    assert len(parts) + max(map(len, parts), default=0) <= 2 * passes**0.5 + 1
