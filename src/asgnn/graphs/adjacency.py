"""The one adjacency form used inside: sorted rows, both directions, self-loops of weight 1."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from asgnn.errors import GraphError
from asgnn.graphs.checks import check_edges, check_weights
from asgnn.graphs.csr import csr_matmul, segment_sum
from asgnn.graphs.keys import to_keys


@dataclass(frozen=True, eq=False)
class Adjacency:
    r"""The given matrix :math:`A` with self-loops, in row order, and the permutation that transposes it.

    Made once, by :meth:`of`, where a graph enters; everything below works on it. Its pattern is symmetric
    (its weights need not be), so the transpose of a matrix on this pattern is a permutation of its values.

    Memory O(E).
    """

    num_nodes: int
    row: Tensor
    """(E,) int64, ascending."""
    col: Tensor
    """(E,) int64, ascending within a row."""
    crow: Tensor
    """(N + 1,) int64: row i holds entries crow[i] … crow[i+1] − 1."""
    reverse: Tensor
    """(E,) int64: entry e is (i, j) and entry reverse[e] is (j, i)."""
    loops: Tensor
    """(E,) bool: the entries (i, i)."""
    weight: Tensor
    """(E,) the given weights, 1 on the self-loops; default dtype when none were given."""
    symmetric: bool
    """Whether the weights, too, are symmetric."""
    _blocks: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, edge_index: Tensor | Adjacency, num_nodes: int, edge_weight: Tensor | None = None) -> Adjacency:
        """Convert PyG's pair of rows; given self-loops are replaced by loops of weight 1.

        Time O(E log E).
        """
        if isinstance(edge_index, Adjacency):
            if edge_weight is not None:
                raise GraphError("An Adjacency carries its own weights; pass edge_weight to Adjacency.of instead.")
            if edge_index.num_nodes != num_nodes:
                raise GraphError(
                    f"The adjacency was made for {edge_index.num_nodes} nodes and the features have {num_nodes} rows."
                )
            return edge_index
        check_edges(edge_index, num_nodes, allow_loops=True)
        check_weights(edge_weight, edge_index.size(1))
        weight = torch.ones(edge_index.size(1), device=edge_index.device) if edge_weight is None else edge_weight
        apart = edge_index[0] != edge_index[1]
        nodes = torch.arange(num_nodes, device=edge_index.device)
        row = torch.cat([edge_index[0, apart], nodes])
        col = torch.cat([edge_index[1, apart], nodes])
        weight = torch.cat([weight[apart], weight.new_ones(num_nodes)])
        key, order = torch.sort(to_keys(torch.stack([row, col]), num_nodes))
        row, col, weight = row[order], col[order], weight[order]
        reverse = torch.searchsorted(key, to_keys(torch.stack([col, row]), num_nodes))
        crow = torch.zeros(num_nodes + 1, dtype=torch.int64, device=row.device)
        crow[1:] = torch.bincount(row, minlength=num_nodes).cumsum(0)
        symmetric = edge_weight is None or torch.equal(weight, weight[reverse])
        return cls(num_nodes, row, col, crow, reverse, row == col, weight, symmetric)

    @property
    def edge_index(self) -> Tensor:
        """(2, E) the entries in PyG's form, self-loops included."""
        return torch.stack([self.row, self.col])

    def to(self, device: torch.device | str) -> Adjacency:
        return Adjacency(
            self.num_nodes,
            self.row.to(device),
            self.col.to(device),
            self.crow.to(device),
            self.reverse.to(device),
            self.loops.to(device),
            self.weight.to(device),
            self.symmetric,
        )

    def blocks(self, count: int) -> tuple[Tensor, Tensor]:
        """(crow, col) of the block-diagonal matrix that holds this pattern ``count`` times; the last one is kept."""
        found = self._blocks.get(count)
        if found is None:
            shift = torch.arange(count, device=self.row.device).unsqueeze(1)
            first = (self.crow[:-1] + shift * self.row.numel()).view(-1)
            end = self.crow.new_full((1,), count * self.row.numel())
            found = torch.cat([first, end]), (self.col + shift * self.num_nodes).view(-1)
            if count * self.row.numel() < 2**31:
                # what the CPU's sparse product takes: given int64, it would convert them on every call
                found = found[0].int(), found[1].int()
            self._blocks.clear()
            self._blocks[count] = found
        return found

    def row_sum(self, values: Tensor) -> Tensor:
        """Σ over the entries of each row: (E, …) → (N, …), differentiable to any order, deterministic.

        Time and memory O(size of values).
        """
        total: Tensor = _RowSum.apply(values, self)
        return total

    def at_row(self, values: Tensor) -> Tensor:
        """The value of node i at every entry (i, j): (N, …) → (E, …); its derivative is :meth:`row_sum`."""
        out: Tensor = _AtRow.apply(values, self)
        return out

    def at_col(self, values: Tensor) -> Tensor:
        """The value of node j at every entry (i, j)."""
        return self.transpose(self.at_row(values))

    def transpose(self, values: Tensor) -> Tensor:
        """The values of the transposed matrix: (E, …) → (E, …)."""
        out: Tensor = _Transpose.apply(values, self)
        return out

    def matmul(self, weight: Tensor, h: Tensor) -> Tensor:
        """One sparse matrix with the values ``weight`` (E,), times ``h`` (…, N, C); differentiable in h.

        For a fixed matrix shared by all leading dimensions: one product with all their columns side by side.
        Time O(E · columns).
        """
        lead, channels = h.shape[:-2], h.size(-1)
        flat = h.reshape(-1, self.num_nodes, channels).permute(1, 0, 2).reshape(self.num_nodes, -1)
        out: Tensor = _FixedMatmul.apply(weight, flat, self)
        return out.view(self.num_nodes, -1, channels).permute(1, 0, 2).reshape(*lead, self.num_nodes, channels)

    def sym_weight(self, dtype: torch.dtype) -> Tensor:
        """(E,) the values of D^(−1/2) A D^(−1/2)."""
        weight = self.weight.to(dtype)
        root = self.row_sum(weight).rsqrt()
        return weight * root[self.row] * root[self.col]


class _RowSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, adj: Adjacency) -> Tensor:
        ctx.adj = adj
        out = segment_sum(values.reshape(values.size(0), -1).contiguous(), adj.crow)
        return out.view(adj.num_nodes, *values.shape[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.adj.at_row(grad), None


class _AtRow(torch.autograd.Function):
    """Written out because the derivative that torch has for a gather adds with atomics on a GPU, in any order."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, adj: Adjacency) -> Tensor:
        ctx.adj = adj
        return values.index_select(0, adj.row)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.adj.row_sum(grad), None


class _Transpose(torch.autograd.Function):
    """A permutation that is its own inverse, so it is its own derivative."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, adj: Adjacency) -> Tensor:
        ctx.adj = adj
        return values.index_select(0, adj.reverse)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.adj.transpose(grad), None


class _FixedMatmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, flat: Tensor, adj: Adjacency) -> Tensor:
        ctx.adj = adj
        ctx.save_for_backward(weight)
        return csr_matmul(adj.crow, adj.col, weight, (adj.num_nodes, adj.num_nodes), flat)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, None]:
        (weight,) = ctx.saved_tensors
        return None, _FixedMatmul.apply(weight[ctx.adj.reverse], grad.contiguous(), ctx.adj), None
