"""Small edge-case graphs; edge_index is undirected and without self-loops."""

from __future__ import annotations

import torch
from torch import Tensor

from asgnn.graphs import undirected


def _random(n: int, p: float, seed: int) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    upper = torch.rand(n, n, generator=rng).triu(1)
    return undirected((upper > 1 - p).nonzero().t(), n)


def _pairs(*pairs: tuple[int, int]) -> Tensor:
    return torch.tensor(pairs, dtype=torch.int64).t().reshape(2, -1)


def star(n: int) -> Tensor:
    return undirected(torch.stack([torch.zeros(n - 1, dtype=torch.int64), torch.arange(1, n)]), n)


AWKWARD: dict[str, tuple[int, Tensor]] = {
    "one node": (1, torch.empty(2, 0, dtype=torch.int64)),
    "no edges": (4, torch.empty(2, 0, dtype=torch.int64)),
    "one edge": (2, undirected(_pairs((0, 1)), 2)),
    "isolated node": (5, undirected(_pairs((0, 1), (1, 2), (3, 1)), 5)),
    "two components": (6, undirected(_pairs((0, 1), (1, 2), (3, 4), (4, 5)), 6)),
    "star": (30, star(30)),
    "complete": (7, undirected((torch.ones(7, 7).triu(1)).nonzero().t(), 7)),
    "random 33": (33, _random(33, 0.12, 0)),
}
