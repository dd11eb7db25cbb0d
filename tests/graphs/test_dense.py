"""Graphs as dense matrices: the same numbers as the edge list, and derivatives on a tape."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from asgnn.errors import ConfigError
from asgnn.graphs.adjacency import Adjacency, Normalization
from asgnn.graphs.dense import DenseAdjacency, Tape
from tests.awkward import AWKWARD

KINDS: tuple[Normalization, ...] = ("sym", "rw")


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def weighted(name: str, trials: int = 2) -> tuple[list[Adjacency], Tensor]:
    """Return some weightings of a graph in both forms, the dense one as (T, N, N) without self-loops."""
    n, edge_index = AWKWARD[name]
    dense = torch.zeros(trials, n, n, dtype=torch.float64)
    forms = []
    for trial in range(trials):
        upper = torch.rand(n, n, generator=generator(trial), dtype=torch.float64).triu(1)
        weight = (upper + upper.t())[edge_index[0], edge_index[1]]
        dense[trial, edge_index[0], edge_index[1]] = weight
        forms.append(Adjacency.of(edge_index, n, weight))
    return forms, dense


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", AWKWARD)
def test_products_are_those_of_the_edge_list(name: str, kind: Normalization) -> None:
    forms, dense = weighted(name)
    graphs = DenseAdjacency.of(dense, kind)
    h = torch.randn(2, graphs.num_nodes, 3, generator=generator(9), dtype=torch.float64)
    for seen in (graphs, graphs.recorded(Tape())):  # the second one uses the entries that are not 0
        out = seen.matmul(seen.normalized(kind, torch.float64), h)
        for adj, one, given in zip(forms, out, h, strict=True):
            torch.testing.assert_close(one, adj.matmul(adj.normalized(kind, torch.float64), given))


@pytest.mark.parametrize("kind", KINDS)
def test_second_derivatives_on_the_tape_are_those_of_autograd(kind: Normalization) -> None:
    _, dense = weighted("random 33")
    h = torch.randn(2, 33, 3, generator=generator(9), dtype=torch.float64)
    along = torch.randn(3, 2, generator=generator(8), dtype=torch.float64)

    weights = torch.randn(3, 2, generator=generator(7), dtype=torch.float64).requires_grad_()

    def gradient(graphs: DenseAdjacency) -> Tensor:
        out = h @ weights
        for _ in range(3):
            out = graphs.matmul(graphs.weight, out.tanh())
        return torch.autograd.grad(out.square().sum(), weights, create_graph=True)[0]

    plain = DenseAdjacency(DenseAdjacency.of(dense, kind).weight.requires_grad_(), kind)
    of_weights, of_matrices = torch.autograd.grad(gradient(plain), [weights, plain.weight], along)
    tape = Tape()
    first = gradient(plain.recorded(tape))
    assert not tape.left  # the first derivative is no part of it
    with tape.recording():
        (again,) = torch.autograd.grad(first, weights, along)
    torch.testing.assert_close(again, of_weights)
    torch.testing.assert_close(tape.total(), of_matrices)


def test_another_normalization_is_refused() -> None:
    graphs = DenseAdjacency.of(torch.zeros(1, 3, 3), "rw")
    with pytest.raises(ConfigError, match='normalised by "rw", and the model needs "sym"'):
        graphs.normalized("sym", torch.float32)
