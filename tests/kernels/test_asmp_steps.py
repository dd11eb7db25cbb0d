"""The half-steps of ASMP equal the dense reference: values, objective and every gradient."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from asgnn.asmp import BACKENDS
from asgnn.asmp.gpu import GpuSteps
from asgnn.kernels import asmp_layers, tiles
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
    ("small star", ((), torch.float64, True, 3)),  # more entries in a row than a program loads at once
    ("isolated node", ((2, 9), torch.float32, True, 3)),  # more trials than a program handles
    ("small star", ((3,), torch.float64, True, 3)),
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


def one_pass(lengths: list[int], trials: int, mcp: bool) -> tuple[list[Tensor], list[Tensor]]:
    """The values of nodes and those of entries that a pass and its derivative write, for rows of these lengths.

    The other rows get the same values with and without empty ones between them.
    """
    rng = torch.Generator(DEVICE).manual_seed(0)
    length = torch.tensor(lengths, device=DEVICE)
    (full,) = length.nonzero(as_tuple=True)
    nodes, entries = len(lengths), int(length.sum())

    def some(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=rng, device=DEVICE)

    def of_nodes(*shape: int) -> Tensor:
        return torch.ones(nodes, *shape, device=DEVICE).index_copy(0, full, some(full.numel(), *shape))

    col = full[torch.randint(full.numel(), (entries,), generator=rng, device=DEVICE)].int()
    crow = torch.cat([length.new_zeros(1), length.cumsum(0)])
    col[crow[full]] = full.int()  # self-loops, so that no other degree is 0
    adj = SimpleNamespace(crow=crow, col=col)
    x, weight, c = of_nodes(3, trials), some(entries), some(8, trials)
    state = {"h": of_nodes(3, trials), "e": of_nodes(trials), "z": some(entries, trials)}
    done = asmp_layers.forward(x, weight, c, adj, mcp, structure=True, features=True, **state)  # type: ignore[arg-type]
    to_h, to_x, parts = of_nodes(3, trials), of_nodes(3, trials), of_nodes(8, trials).transpose(0, 1).contiguous()
    by_entry = [some(entries, trials) for _ in range(3)]
    grads = asmp_layers.Gradients(to_h, to_x, *by_entry, parts)
    asmp_layers.backward(done, x, weight, c, adj, mcp, grads)  # type: ignore[arg-type]
    assert done.z_new is not None
    written = [tensor for tensor in (done.h_new, done.e_new, done.mean, done.degree) if tensor is not None]
    assert len(written) == 4
    return [*written, to_h, to_x, parts.transpose(0, 1)], [done.z_new, *by_entry]


@pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")  # the mean of an empty row
@pytest.mark.parametrize("trials", [1, 2])
@pytest.mark.parametrize("mcp", [False, True])
def test_empty_rows_change_no_bit_of_other_rows(mcp: bool, trials: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "LONG_ROW", 8)  # the number of entries that are loaded at once, for any mean
    lengths = [0, 3, 0, 0, 17, 1, 9, 0, 8, 16, 0]
    full = [i for i, length in enumerate(lengths) if length]
    nodes, entries = one_pass(lengths, trials, mcp)
    expected_nodes, expected_entries = one_pass([lengths[i] for i in full], trials, mcp)
    ours = [*(values[full] for values in nodes), *entries]
    for found, expected in zip(ours, [*expected_nodes, *expected_entries], strict=True):
        assert bool(expected.isfinite().all())
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    to_parts = nodes[-1][[i for i, length in enumerate(lengths) if not length], 3:]
    torch.testing.assert_close(to_parts, torch.ones_like(to_parts), rtol=0, atol=0)  # as before
