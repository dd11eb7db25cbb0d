"""ASMP and products on the parts of a graph equal those on the whole: values and gradients."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from asgnn.asmp import BACKENDS, ASMPParams, Scheme
from asgnn.asmp.gpu import GpuSteps
from asgnn.asmp.propagate import Backend, propagate
from asgnn.distributed.group import Group, HaloExchange
from asgnn.errors import ConfigError
from asgnn.graphs.adjacency import Adjacency, Normalization
from asgnn.graphs.piece import Borders, Piece, cut
from tests.awkward import AWKWARD
from tests.processes import HANG

SCALARS = (1.3, 2.1, 0.01, 0.02, 0.11, 0.07)
SCHEMES = {
    "degree": Scheme(),
    "exact mcp": Scheme(structure="exact", penalty="mcp"),
    "frozen": Scheme(structure="frozen"),
    "paper": Scheme("paper"),
    "sym": Scheme("paper", structure="frozen", normalization="sym"),
}
GRAPHS = ("isolated node", "two components", "star", "complete", "random 33")


class Threads:
    """Threads in place of processes: each takes from the others the rows that they send to it.

    They take turns, because Triton's interpreter allows one thread at a time.
    """

    def __init__(self, size: int) -> None:
        self.size, self.barrier, self.sent = size, threading.Barrier(size), [[torch.empty(0)]] * size
        self.turn = threading.Lock()

    def wait(self) -> None:
        self.turn.release()
        try:
            self.barrier.wait(HANG)
        finally:
            self.turn.acquire()

    def group(self, rank: int) -> Group:
        threads = self

        class OneOf(Group):
            def exchange(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
                threads.sent[rank] = list(rows.split(list(sent)))
                threads.wait()
                found = torch.cat([parts[rank] for parts in threads.sent])
                threads.wait()
                return found

        return OneOf(rank, self.size, torch.device("cpu"))

    def run(self, task: Callable[[int], Any]) -> list[Any]:
        """Call ``task(rank)`` in every thread."""
        results: list[Any] = [None] * self.size

        def one(rank: int) -> None:
            with self.turn:
                try:
                    results[rank] = task(rank)
                except BaseException as error:
                    results[rank] = error
                    self.barrier.abort()

        each = [threading.Thread(target=one, args=(rank,)) for rank in range(self.size)]
        for thread in each:
            thread.start()
        for thread in each:
            thread.join()
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return results


def weighted(graph: str) -> Adjacency:
    nodes, edge_index = AWKWARD[graph]
    weight = torch.rand(nodes, nodes, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return Adjacency.of(edge_index, nodes, ((weight + weight.t()) / 2)[edge_index[0], edge_index[1]])


def pieces(adj: Adjacency, size: int, rank: int, threads: Threads) -> tuple[Piece, Borders]:
    part = torch.arange(adj.num_nodes) % (size + 1) % size  # of unequal sizes
    return cut(adj, part, rank, lambda borders: HaloExchange(threads.group(rank), borders, torch.device("cpu")))


def with_gradients(
    x: Tensor, adj: Adjacency, scheme: Scheme, backend: Backend, aim: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """H, and the gradients of its product with ``aim`` in X and in the scalars."""
    x, scalars = x.clone().requires_grad_(), torch.tensor(SCALARS, dtype=x.dtype, requires_grad=True)
    h = propagate(x, adj, ASMPParams(*scalars.unbind()), scheme, layers=3, backend=backend, weights=False).h
    to_x, to_scalars = torch.autograd.grad((h * aim).sum(), [x, scalars])
    return h.detach(), to_x, to_scalars


# the GPU's kernels are interpreted, which takes seconds
CASES = [("edges", one) for one in SCHEMES] + [("cpu", one) for one in SCHEMES if one != "paper"] + [("gpu", "degree")]


@pytest.mark.parametrize(("backend", "scheme"), CASES)
def test_parts_equal_the_whole(backend: Backend, scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if backend == "gpu" and torch.cuda.is_available():
        pytest.skip("kernels are interpreted where there is no GPU")
    monkeypatch.setitem(BACKENDS, "gpu", GpuSteps)  # Triton's interpreter also runs it on a CPU
    size = 2 if backend == "gpu" else 3
    for graph in GRAPHS[:1] if backend == "gpu" else GRAPHS:
        adj = weighted(graph)
        rng = torch.Generator().manual_seed(0)
        x, aim = torch.randn(2, adj.num_nodes, 3, generator=rng, dtype=torch.float64)
        h, to_x, to_scalars = with_gradients(x, adj, SCHEMES[scheme], "dense", aim)
        threads = Threads(size)

        def task(
            rank: int, adj: Adjacency = adj, x: Tensor = x, aim: Tensor = aim, threads: Threads = threads
        ) -> tuple[Tensor, ...]:
            piece, borders = pieces(adj, size, rank, threads)
            found = with_gradients(x[borders.nodes], piece, SCHEMES[scheme], backend, aim[borders.nodes])
            return borders.nodes, *found

        parts = threads.run(task)
        for nodes, ours, ours_to_x, _ in parts:
            torch.testing.assert_close(ours, h[nodes], rtol=0, atol=1e-12)
            torch.testing.assert_close(ours_to_x, to_x[nodes], rtol=0, atol=1e-11)
        torch.testing.assert_close(sum(part[3] for part in parts), to_scalars, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("kind", ["sym", "rw"])
@pytest.mark.parametrize("graph", GRAPHS)
def test_products_borrow_the_rows_of_neighbours(graph: str, kind: Normalization) -> None:
    adj = weighted(graph)
    h = torch.randn(2, adj.num_nodes, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    threads = Threads(2)
    whole = adj.matmul(adj.normalized(kind, h.dtype), h)

    def task(rank: int) -> tuple[Tensor, Tensor]:
        piece, borders = pieces(adj, 2, rank, threads)
        assert borders.borrowed.numel() == sum(borders.counts) == piece.num_nodes - piece.own
        return borders.nodes, piece.matmul(piece.normalized(kind, h.dtype), h[:, borders.nodes])

    for nodes, ours in threads.run(task):
        torch.testing.assert_close(ours, whole[:, nodes], rtol=0, atol=1e-13)


def test_what_a_part_cannot_tell_raises() -> None:
    adj, threads = weighted("star"), Threads(1)
    piece, borders = cut(
        adj, torch.zeros(30, dtype=torch.int64), 0, lambda one: HaloExchange(threads.group(0), one, torch.device("cpu"))
    )
    x = torch.ones(30, 2, dtype=torch.float64)
    assert borders.counts == (0,)
    with pytest.raises(ConfigError, match="the features of one trial only"):
        propagate(x, piece, ASMPParams(), Scheme(), layers=2)
    with pytest.raises(ConfigError, match='backend="dense" needs the whole graph'):
        propagate(x, piece, ASMPParams(), Scheme(), layers=2, backend="dense", weights=False)
