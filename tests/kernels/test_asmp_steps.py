"""The half-steps of ASMP equal the dense reference: values, objective and every gradient."""

from __future__ import annotations

import itertools

import pytest
import torch

from asgnn.asmp import BACKENDS
from asgnn.asmp.gpu import GpuSteps
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
