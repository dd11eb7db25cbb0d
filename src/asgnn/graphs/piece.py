"""The rows of some nodes of a graph, for a process that trains on them together with others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Protocol

import torch
from torch import Tensor

from asgnn.graphs.adjacency import Adjacency, Normalization


@dataclass(frozen=True, eq=False)
class Borders:
    """Which rows a part sends to the others and borrows from them.

    Attributes:
        nodes: (own,) the nodes of the part, ascending.
        borrowed: (halo,) their neighbours in other parts, by part and then ascending.
        counts: the number of rows that are borrowed from each part.
        lent: for each part, the positions in ``nodes`` of the rows that it borrows, in its order.
    """

    nodes: Tensor
    borrowed: Tensor
    counts: tuple[int, ...]
    lent: tuple[Tensor, ...]


class Halo(Protocol):
    """Exchanges rows with the other parts; every part must call it as often and in the same order."""

    def extend(self, h: Tensor) -> Tensor:
        """(own, …) → (own + halo, …): ``h`` and below it the borrowed rows; differentiable once."""
        ...

    def fill(self, *rows: Tensor) -> None:
        """Write the borrowed rows into tensors (own + halo, columns), in place and without a derivative."""
        ...


@dataclass(frozen=True, eq=False, kw_only=True)
class Piece(Adjacency):
    """The adjacency of the nodes of one part and of their neighbours in other parts.

    The first ``own`` nodes are those of the part, and their rows are whole. The others are borrowed: of their rows only
    the entries to own nodes are here. Products map rows of own nodes to rows of own nodes; they borrow the rest.
    """

    own: int
    degree: Tensor
    """(own + halo,) the degrees in the whole graph, float64."""
    halo: Halo | None
    """``None`` for the pattern alone, whose products read and write the rows of borrowed nodes as well."""

    def to(self, device: torch.device | str) -> Piece:
        if self.row.device == torch.device(device):
            return self
        names = ("row", "col", "crow", "reverse", "loops", "weight", "degree")
        moved = {name: getattr(self, name).to(device) for name in names}
        return Piece(num_nodes=self.num_nodes, symmetric=self.symmetric, own=self.own, halo=self.halo, **moved)

    @property
    def pattern(self) -> Piece:
        """This piece without the exchange."""
        made = Piece(**{one.name: getattr(self, one.name) for one in fields(self) if one.init} | {"halo": None})
        object.__setattr__(made, "_normalized", self._normalized)  # computed once for both
        return made

    def matmul(self, weight: Tensor, h: Tensor) -> Tensor:
        """Returns the rows of own nodes of the product: (…, own, C) → (…, own, C)."""
        if self.halo is None:
            return super().matmul(weight, h)
        rows = self.halo.extend(h.movedim(-2, 0)).movedim(0, -2)
        return super().matmul(weight, rows)[..., : self.own, :]

    def _normalize(self, kind: Normalization, weight: Tensor) -> Tensor:
        degree = self.degree.to(weight.dtype)
        if kind == "rw":
            return weight / degree[self.row]
        root = degree.rsqrt()
        return weight * root[self.row] * root[self.col]


def cut(adj: Adjacency, part: Tensor, number: int, connect: Callable[[Borders], Halo]) -> tuple[Piece, Borders]:
    """Returns the piece of part ``number`` of a graph, and which rows it exchanges with the others.

    Args:
        adj: the whole graph, with weights (E,).
        part: (N,) the part of every node; no part is empty.
        number: the part.
        connect: makes the exchange of rows.

    Time O(E log E), memory O(E).
    """
    row, col, parts = adj.row, adj.col, int(part.max()) + 1
    nodes = (part == number).nonzero().view(-1)
    mine = part[row] == number
    between = mine & (part[col] != number)
    # by part and then by node, so that both sides have the same order
    borrowed, lent = ((part[col[between]] * adj.num_nodes + of[between]).unique() for of in (col, row))
    place = torch.full_like(part, -1)
    place[nodes] = torch.arange(nodes.numel(), device=place.device)
    counts = torch.bincount(borrowed // adj.num_nodes, minlength=parts)
    sent = torch.bincount(lent // adj.num_nodes, minlength=parts)
    borrowed = borrowed % adj.num_nodes
    borders = Borders(nodes, borrowed, tuple(counts.tolist()), place[lent % adj.num_nodes].split(sent.tolist()))
    place[borrowed] = nodes.numel() + torch.arange(borrowed.numel(), device=place.device)
    # their own rows and, to keep the pattern symmetric, the entries opposite to those that lead out
    edge = mine & ~adj.loops
    rows, cols = torch.cat([row[edge], col[between]]), torch.cat([col[edge], row[between]])
    weight = torch.cat([adj.weight[edge], adj.weight[adj.reverse[between]]])
    here = torch.cat([nodes, borrowed])
    made = Adjacency.of(torch.stack([place[rows], place[cols]]), here.numel(), weight)
    degree = adj.row_sum(adj.weight.double())[here]
    values = {one.name: getattr(made, one.name) for one in fields(made) if one.init and one.name != "_blocks"}
    piece = Piece(**values | {"symmetric": adj.symmetric}, own=nodes.numel(), degree=degree, halo=connect(borders))
    return piece, borders
