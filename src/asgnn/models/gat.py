"""GAT."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.edge_ops import spmm
from asgnn.graphs.features import Features
from asgnn.models.base import NodeClassifier
from asgnn.models.layers import Dropout, Rng, check_channels
from asgnn.settings import PerTrial, check_count

SLOPE = 0.2


class GAT(NodeClassifier):
    r"""Two-layer graph attention network (Veličković et al., ICLR 2018).

    .. math:: h'_i = \sum_j \alpha_{ij} W h_j + b, \qquad
              \alpha_{ij} \propto A_{ij} \exp(\mathrm{LeakyReLU}(a_1 \cdot W h_i + a_2 \cdot W h_j))

    The heads of the first layer are concatenated and followed by an ELU; the second layer has one head. Dropout acts on
    the input of both layers and on α. The factor A, which is 1 in the paper, makes an edge of weight 0 no edge.
    Equal to two layers of PyG's ``GATConv`` (tests); trials and heads share one dimension of the sparse products.

    Time O(nnz(Z) H + E (H + C)), memory O(E (heads + H) + N H), with H = heads · hidden_channels.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        *,
        heads: int = 8,
        dropout: PerTrial = 0.6,
    ) -> None:
        super().__init__()
        self.first = Attention(in_channels, hidden_channels, heads)
        self.second = Attention(hidden_channels * heads, out_channels, 1)
        self.dropout = Dropout(dropout)

    def logits(self, features: Features, adj: Adjacency, rng: Rng) -> Tensor:
        keep, scale = self.dropout.keep(features.size_of_mask, rng, self.first.weight)
        h = self.first(features.linear(self.first.weights, keep, scale), adj, self.dropout, rng)
        h = self.dropout(F.elu(h), rng) @ self.second.weights
        out: Tensor = self.second(h, adj, self.dropout, rng)
        return out


class Attention(nn.Module):
    """One layer after the product with its weights: (T, N, heads · C) → (T, N, heads · C); Glorot initialisation."""

    def __init__(self, in_channels: int, out_channels: int, heads: int) -> None:
        super().__init__()
        check_count("heads", heads)
        check_channels(in_channels, heads * out_channels)
        self.in_channels, self.out_channels, self.heads = in_channels, out_channels, heads
        self.weight = nn.Parameter(torch.empty(in_channels, heads * out_channels))
        self.of_row = nn.Parameter(torch.empty(heads, out_channels))
        self.of_col = nn.Parameter(torch.empty(heads, out_channels))
        self.bias = nn.Parameter(torch.empty(heads * out_channels))
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        with torch.no_grad():
            for part in (self.weight, self.of_row, self.of_col):
                bound = math.sqrt(6 / sum(part.shape[-2:]))
                part.uniform_(-bound, bound, generator=generator)
            self.bias.zero_()

    @property
    def weights(self) -> Tensor:
        """(T, in, heads · C)."""
        return self.weight.view(-1, self.in_channels, self.heads * self.out_channels)

    def forward(self, h: Tensor, adj: Adjacency, dropout: Dropout, rng: Rng) -> Tensor:
        trials, n, _ = h.shape
        by_head = h.view(trials, n, self.heads, self.out_channels)
        at_row, at_col = (
            # (T, N, heads) → (N, T · heads)
            (by_head * part.view(-1, 1, self.heads, self.out_channels)).sum(-1).transpose(0, 1).reshape(n, -1)
            for part in (self.of_row, self.of_col)
        )
        alpha = row_softmax(F.leaky_relu(adj.at_row(at_row) + adj.at_col(at_col), SLOPE), adj)
        alpha = dropout(alpha.view(-1, trials, self.heads).transpose(0, 1), rng).transpose(0, 1)
        values = by_head.permute(1, 3, 0, 2).reshape(n, self.out_channels, -1)
        out = spmm(alpha.reshape(-1, trials * self.heads), values, adj).view(n, self.out_channels, trials, self.heads)
        return out.permute(2, 0, 3, 1).reshape(trials, n, -1) + self.bias.view(-1, 1, self.heads * self.out_channels)


def row_softmax(scores: Tensor, adj: Adjacency) -> Tensor:
    """(E, M) → (E, M): A exp(scores), normalised to row sums of 1; self-loops make every row non-empty."""
    with torch.no_grad():  # subtracting the row maximum only prevents overflow
        highest = torch.segment_reduce(scores, "max", offsets=adj.crow, axis=0)
    share = (scores - adj.at_row(highest)).exp() * adj.weight.to(scores.dtype).unsqueeze(1)
    return share / adj.at_row(adj.row_sum(share))
