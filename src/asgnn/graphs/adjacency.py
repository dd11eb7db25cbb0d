"""The internal form of the adjacency matrix: CSR, symmetric pattern, self-loops of weight 1."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from asgnn.errors import GraphError
from asgnn.graphs.checks import check_edges, check_weights, checked_copy, mark_checked
from asgnn.graphs.csr import segment_sum
from asgnn.graphs.edge_ops import spmm
from asgnn.graphs.keys import index_dtype, to_keys

Normalization = Literal["rw", "sym"]


@dataclass(frozen=True, eq=False)
class Adjacency:
    r"""The adjacency matrix :math:`A` with self-loops in CSR form, and the permutation that transposes it.

    :meth:`of` builds it once per graph; all models use it. Its pattern is symmetric (its weights need not be), so the
    transpose of a matrix with this pattern is a permutation of its values.

    Memory O(E).
    """

    num_nodes: int
    row: Tensor
    """(E,) ascending; int32, as ``col`` and ``reverse``, because half the bytes are moved; int64 if it must be."""
    col: Tensor
    """(E,) ascending within a row."""
    crow: Tensor
    """(N + 1,) int64: row i holds entries crow[i] … crow[i+1] − 1."""
    reverse: Tensor
    """(E,): entry e is (i, j) and entry reverse[e] is (j, i)."""
    loops: Tensor
    """(E,) bool: the entries (i, i)."""
    weight: Tensor
    """(E,) the edge weights, 1 on the self-loops; torch's default dtype if there were none. (E, T) if each trial of a
    batch has weights of its own."""
    symmetric: bool
    """Whether the weights are symmetric."""
    trust: Tensor | None = None
    """(E,) the weights that the edges would have if all were present; ``None`` for 1. Used by relaxed models only."""
    _blocks: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict, repr=False)
    _normalized: dict[tuple[Normalization, torch.dtype], Tensor] = field(default_factory=dict, repr=False, init=False)

    @classmethod
    def of(cls, edge_index: Tensor | Adjacency, num_nodes: int, edge_weight: Tensor | None = None) -> Adjacency:
        """Converts PyG's ``edge_index``; self-loops in it are replaced by self-loops of weight 1.

        ``edge_weight`` is (E,), or (E, T) with one column for each trial of a batch. It may require a gradient; the
        result is differentiable in it. The same ``edge_index`` is checked and sorted only once, see
        :func:`pattern_of`. Time O(E log E) the first time, then O(E).
        """
        if isinstance(edge_index, Adjacency):
            if edge_weight is not None:
                raise GraphError("An Adjacency already has weights; pass edge_weight to Adjacency.of instead.")
            if edge_index.num_nodes != num_nodes:
                raise GraphError(f"The adjacency has {edge_index.num_nodes} nodes, but x has {num_nodes} rows.")
            return edge_index
        pattern, place = pattern_of(edge_index, num_nodes)
        if edge_weight is None:
            return pattern
        check_weights(edge_weight, edge_index.size(1), per_trial=True)
        if edge_weight.device != edge_index.device:
            raise GraphError(
                f"edge_index is on {edge_index.device} and edge_weight on {edge_weight.device}; move one of them."
            )
        weight = torch.cat([edge_weight, edge_weight.new_ones(1, *edge_weight.shape[1:])]).index_select(0, place)
        return replace(pattern, weight=weight, symmetric=torch.equal(weight, weight[pattern.reverse]))

    @property
    def edge_index(self) -> Tensor:
        """(2, E) int64 in PyG's form, self-loops included; a copy."""
        return torch.stack([self.row.long(), self.col.long()])

    @property
    def presence(self) -> Tensor:
        """(E,) how far each edge is present: its weight divided by its trust."""
        return self.weight if self.trust is None else self.weight / self.trust

    @property
    def needs_gradient(self) -> bool:
        """Whether the weights require a gradient and gradients are enabled."""
        return self.weight.requires_grad and torch.is_grad_enabled()

    def to(self, device: torch.device | str) -> Adjacency:
        if self.row.device == torch.device(device):
            return self
        names = ("row", "col", "crow", "reverse", "loops", "weight", *(["trust"] if self.trust is not None else []))
        return replace(self, _blocks={}, **{name: getattr(self, name).to(device) for name in names})

    def blocks(self, count: int) -> tuple[Tensor, Tensor]:
        """Returns (crow, col) of the block-diagonal matrix of ``count`` copies of this pattern; caches the last one."""
        found = self._blocks.get(count)
        if found is None and count == 1:
            found = self._blocks[count] = self.crow.to(self.col.dtype), self.col
        if found is None:
            shift = torch.arange(count, device=self.row.device).unsqueeze(1)
            first = (self.crow[:-1] + shift * self.row.numel()).view(-1)
            end = self.crow.new_full((1,), count * self.row.numel())
            found = torch.cat([first, end]), (self.col + shift * self.num_nodes).view(-1)
            if count * self.row.numel() < 2**31:
                # The CPU's sparse product would convert int64 indices on every call.
                found = found[0].int(), found[1].int()
            self._blocks.clear()
            self._blocks[count] = found
        return found

    def row_sum(self, values: Tensor) -> Tensor:
        """Returns the sum over each row: (E, …) → (N, …), differentiable to any order, deterministic.

        Time and memory O(size of values).
        """
        total: Tensor = _RowSum.apply(values, self)
        return total

    def at_row(self, values: Tensor) -> Tensor:
        """Returns the value of node i for every entry (i, j): (N, …) → (E, …); its derivative is :meth:`row_sum`."""
        out: Tensor = _At.apply(values, self, False)
        return out

    def at_col(self, values: Tensor) -> Tensor:
        """Returns the value of node j for every entry (i, j): (N, …) → (E, …)."""
        out: Tensor = _At.apply(values, self, True)
        return out

    def transpose(self, values: Tensor) -> Tensor:
        """Returns the values of the transposed matrix: (E, …) → (E, …)."""
        out: Tensor = _Transpose.apply(values, self)
        return out

    def matmul(self, weight: Tensor, h: Tensor) -> Tensor:
        """Returns the sparse matrix with values ``weight`` (E,) times ``h`` (…, N, C), differentiable to any order.

        All leading dimensions share the matrix, so this is one product with all their columns. With ``weight`` (E, T)
        and ``h`` (T, N, C), each trial has its own matrix. Time O(E · columns).
        """
        if weight.dim() == 2:
            return spmm(weight, h.permute(1, 2, 0), self).permute(2, 0, 1)
        lead, channels = h.shape[:-2], h.size(-1)
        flat = h.reshape(-1, self.num_nodes, channels).permute(1, 0, 2).reshape(self.num_nodes, -1)
        out = spmm(weight.unsqueeze(1), flat.unsqueeze(2), self)
        return out.view(self.num_nodes, -1, channels).permute(1, 0, 2).reshape(*lead, self.num_nodes, channels)

    def inverse_root_degree(self, dtype: torch.dtype, weight: Tensor | None = None) -> Tensor:
        """Returns D^(−1/2): (N,), or (N, T) for weights (E, T)."""
        return self.row_sum(self.weight.to(dtype) if weight is None else weight).rsqrt()

    def normalized(self, kind: Normalization, dtype: torch.dtype, weight: Tensor | None = None) -> Tensor:
        """Returns the values of D^(−1/2) A D^(−1/2) ("sym") or D^(−1) A ("rw"), differentiable to any order.

        Args:
            kind: "sym" or "rw".
            dtype: The dtype of the result.
            weight: (E,) or (E, T), used instead of the edge weights; every row sum must be positive.

        The values for the edge weights themselves are computed once, unless the weights require a gradient.
        """
        if weight is not None or self.weight.requires_grad or torch.is_inference_mode_enabled():
            return self._normalize(kind, self.weight.to(dtype) if weight is None else weight)
        if (kind, dtype) not in self._normalized:
            self._normalized[kind, dtype] = self._normalize(kind, self.weight.to(dtype))
        return self._normalized[kind, dtype]

    def _normalize(self, kind: Normalization, weight: Tensor) -> Tensor:
        if kind == "rw":
            return weight / self.at_row(self.row_sum(weight))
        root = self.inverse_root_degree(weight.dtype, weight)
        return weight * self.at_row(root) * self.at_col(root)


# edge_index → its checked copy, the unweighted adjacency, and the column of edge_index of each entry
_PATTERNS = WeakTensorKeyDictionary()


def pattern_of(edge_index: Tensor | None, num_nodes: int) -> tuple[Adjacency, Tensor]:
    """Returns the unweighted adjacency of ``edge_index``, cached as long as the tensor lives.

    The cache is keyed by the tensor's identity and compares the contents, so a tensor that was changed in place,
    through torch or through a NumPy array that shares its memory, is checked and sorted again.
    Raises :class:`~asgnn.errors.GraphError` as :func:`~asgnn.graphs.checks.check_edges` does; self-loops are allowed.

    Returns:
        The adjacency with all weights 1, and (entries,): the column of ``edge_index`` of each entry, or E for
        the self-loops, whose weight is never read from ``edge_weight``.

    Time O(E log E) the first time, then O(E); memory O(E).
    """
    known = _PATTERNS.get(edge_index) if isinstance(edge_index, Tensor) else None
    copy = None if edge_index is None or known is None else checked_copy(edge_index, num_nodes)
    if known is not None and known[0] is copy and known[1].weight.dtype == torch.get_default_dtype():
        pattern: Adjacency
        _, pattern, place = known
        return pattern, place
    made = _sorted(edge_index, num_nodes)
    if edge_index is None or made is None:
        check_edges(edge_index, num_nodes, allow_loops=True)  # raises with the reason
        raise AssertionError("check_edges accepts what cannot be sorted into a symmetric pattern")
    _PATTERNS[edge_index] = (copy if copy is not None else mark_checked(edge_index, num_nodes), *made)
    return made


def _sorted(edge_index: Tensor | None, num_nodes: int) -> tuple[Adjacency, Tensor] | None:
    """Sorts and checks the edges; returns ``None`` if they are not undirected edges.

    Keys of 8 bytes are sorted once, and the columns once more for the transposed order. Each large tensor is freed
    when it is not needed any more: the peak is some 60 bytes per entry, the result 17.
    """
    if not isinstance(edge_index, Tensor) or edge_index.layout != torch.strided or edge_index.dtype != torch.int64:
        return None
    if edge_index.dim() != 2 or edge_index.size(0) != 2:
        return None
    if edge_index.numel():
        least, largest = torch.aminmax(edge_index)
        if int(least) < 0 or int(largest) >= num_nodes:
            return None
    nodes, given = torch.arange(num_nodes, device=edge_index.device), edge_index.size(1)
    apart = edge_index[0] != edge_index[1]
    columns = None if bool(apart.all()) else apart.nonzero().view(-1)
    if columns is not None:  # self-loops are left out, and each node may have one
        loops = edge_index[0, ~apart]
        if int(torch.bincount(loops, minlength=num_nodes).max()) > 1:
            return None
        edge_index = edge_index[:, columns]
    del apart
    key, place = torch.sort(torch.cat([to_keys(edge_index, num_nodes), nodes * (num_nodes + 1)]))
    if bool((key[1:] == key[:-1]).any()):
        return None
    if columns is None:
        place = place.clamp_(max=given)
    else:
        place = torch.cat([columns, nodes.new_full((num_nodes,), given)])[place]
    short = index_dtype(max(num_nodes, key.numel()))
    place = place.to(index_dtype(given))
    row = torch.div(key, num_nodes, rounding_mode="floor")
    col = key.sub_(row * num_nodes).to(short)
    row = row.to(short)
    del key
    crow = torch.searchsorted(row, torch.arange(num_nodes + 1, dtype=short, device=row.device))
    # Sorted by column and then by row, the entries are those of the transpose in its own order.
    reverse = torch.sort(col, stable=True).indices.to(short)
    if not (torch.equal(row.index_select(0, reverse), col) and torch.equal(col.index_select(0, reverse), row)):
        return None
    ones = torch.ones(row.numel(), device=row.device)
    return Adjacency(num_nodes, row, col, crow, reverse, row == col, ones, True), place


class _RowSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, adj: Adjacency) -> Tensor:
        ctx.adj = adj
        out = segment_sum(values.reshape(values.size(0), -1).contiguous(), adj.crow)
        return out.view(adj.num_nodes, *values.shape[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.adj.at_row(grad), None


class _At(torch.autograd.Function):
    """A gather with a deterministic derivative: torch's own uses atomic additions on a GPU."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, adj: Adjacency, col: bool) -> Tensor:
        ctx.adj, ctx.col = adj, col
        return values.index_select(0, adj.col if col else adj.row)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return ctx.adj.row_sum(ctx.adj.transpose(grad) if ctx.col else grad), None, None


class _Transpose(torch.autograd.Function):
    """A permutation that is its own inverse and therefore its own derivative."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, adj: Adjacency) -> Tensor:
        ctx.adj = adj
        return values.index_select(0, adj.reverse)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.adj.transpose(grad), None
