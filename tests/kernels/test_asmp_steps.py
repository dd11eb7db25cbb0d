"""The half-steps of ASMP equal the dense reference: values, objective and every gradient."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from asgnn.asmp import BACKENDS
from asgnn.asmp.gpu import GpuSteps
from asgnn.kernels import asmp_layers
from tests.asmp.test_backends import SCHEMES, run, same
from tests.awkward import AWKWARD, star
from tests.kernels.machine import DEVICE, cases

# The interpreter skips variants that only change the order of the same kernels.
OTHER = [
    "paper joint",
    "paper 2 H 3 S",
    "degree dense support",
    "degree joint",
    "degree 3 H 2 S",
    "frozen degree",
    "mcp dense support",
    "mcp 2 H 2 S",
]
SMALL = [
    ("one node", ((), torch.float64, False, 3)),
    ("isolated node", ((2, 9), torch.float32, True, 3)),  # more trials than a program handles
    ("small star", ((3,), torch.float64, True, 3)),  # more entries in a row than a program loads at once
    ("one edge", ((2,), torch.float64, True, 1030)),  # more channels than TILE
]
BATCHES = [((), torch.float64, False, 3), ((3,), torch.float64, True, 3), ((2, 9), torch.float32, True, 3)]


@pytest.mark.parametrize("scheme", cases(["paper", "degree", "degree exact", "frozen rw", "mcp", "mcp exact"], OTHER))
@pytest.mark.parametrize(("graph", "settings"), cases(SMALL, list(itertools.product(AWKWARD, BATCHES))))
def test_steps_equal_the_dense_reference(
    graph: str, settings: tuple[tuple[int, ...], torch.dtype, bool, int], scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BACKENDS, "gpu", GpuSteps)  # the interpreter also runs it on a CPU
    monkeypatch.setitem(AWKWARD, "small star", (10, star(10)))
    batch, dtype, weighted, channels = settings
    parts = graph, SCHEMES[scheme], dtype, batch, weighted, DEVICE, channels
    same(SCHEMES[scheme], *run("gpu", *parts), *run("dense", *parts))


@pytest.mark.parametrize("graph", cases(["isolated node"], list(AWKWARD)))
@pytest.mark.parametrize("scheme", ["degree joint", "degree 3 H 2 S", "mcp 2 H 2 S"])
def test_other_orders_of_the_steps(graph: str, scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Updates of both at once take the half-steps one by one; several steps per layer are passes with one of them."""
    monkeypatch.setitem(BACKENDS, "gpu", GpuSteps)
    parts = graph, SCHEMES[scheme], torch.float64, (2,), True, DEVICE, 3
    same(SCHEMES[scheme], *run("gpu", *parts), *run("dense", *parts))


@pytest.mark.parametrize("scheme", ["degree", "mcp"])
@pytest.mark.parametrize(
    ("graph", "batch", "nodes"),
    [
        ("isolated node", (), 2),  # 5 nodes: the last program has one
        ("small star", (), 4),  # the first of 10 rows is longer than what a program loads at once
        ("isolated node", (2,), 4),  # several trials: a program keeps to one node
    ],
)
def test_several_nodes_per_program(
    graph: str, batch: tuple[int, ...], nodes: int, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BACKENDS, "gpu", GpuSteps)
    monkeypatch.setitem(AWKWARD, "small star", (10, star(10)))
    monkeypatch.setattr(asmp_layers, "MANY", 1)
    monkeypatch.setattr(asmp_layers, "NODES", nodes)
    parts = graph, SCHEMES[scheme], torch.float64, batch, True, DEVICE, 3
    same(SCHEMES[scheme], *run("gpu", *parts), *run("dense", *parts))


def one_pass(mcp: bool) -> list[Tensor]:
    """All that a pass and its derivative write, on a graph with empty rows and rows of 9 and 17 entries."""
    rng = torch.Generator(DEVICE).manual_seed(0)
    lengths = torch.tensor([0, 3, 0, 0, 17, 1, 9, 0, 8, 16, 0], device=DEVICE)
    nodes, entries = lengths.numel(), int(lengths.sum())
    crow = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]).int()
    col = torch.randint(nodes, (entries,), generator=rng, device=DEVICE).int()
    adj = SimpleNamespace(crow=crow, col=col)

    def some(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=rng, device=DEVICE)

    x, weight, c = some(nodes, 3, 1), some(entries), some(8, 1)
    state = {"h": some(nodes, 3, 1), "e": some(nodes, 1), "z": some(entries, 1)}
    done = asmp_layers.forward(x, weight, c, adj, mcp, structure=True, features=True, **state)  # type: ignore[arg-type]
    written = [done.z_new, done.h_new, done.e_new, done.mean, done.degree]
    of_passes = [tensor.clone() for tensor in written if tensor is not None]
    assert done.mean is not None
    assert done.degree is not None
    done.mean.nan_to_num_(0)  # of empty rows
    done.degree.clamp_(min=0.1)
    shapes = (nodes, 3, 1), (nodes, 3, 1), (entries, 1), (entries, 1), (entries, 1), (8, nodes, 1)
    grads = [some(*shape) for shape in shapes]
    asmp_layers.backward(done, x, weight, c, adj, mcp, asmp_layers.Gradients(*grads))  # type: ignore[arg-type]
    return of_passes + grads


@pytest.mark.filterwarnings("ignore:.* in divide:RuntimeWarning")  # empty rows
@pytest.mark.parametrize("mcp", [False, True])
def test_the_number_of_nodes_per_program_changes_no_bit(mcp: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asmp_layers, "MANY", 1)
    monkeypatch.setattr(asmp_layers, "NODES", 1)
    expected = one_pass(mcp)
    assert len(expected) == 11
    assert all(bool(tensor.isfinite().all()) for tensor in expected[5:])
    for nodes in (2, 4, 8):
        monkeypatch.setattr(asmp_layers, "NODES", nodes)
        for ours, reference in zip(one_pass(mcp), expected, strict=True):
            torch.testing.assert_close(ours, reference, rtol=0, atol=0, equal_nan=True)
