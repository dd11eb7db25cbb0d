"""Models that every challenge is compared with, and models as an attacker of the test graph meets them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from asgnn.graphs import prepare
from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.features import Features
from asgnn.models import ASGNN, GCN, NodeClassifier, ProGNN
from asgnn.models.layers import Rng
from asgnn.models.prognn import dense_propagation


class Memoriser(GCN):
    """A GCN that answers from the graph it was trained with, whatever edges it is given.

    Evasion cannot touch it, and it defends nothing: as a GCN, it falls to poisoning. It shows that evasion of test
    nodes that were present in training proves nothing by itself (Gosch et al., NeurIPS 2023). For a graph with other
    nodes it is a GCN.
    """

    _remembered: Adjacency | None = None

    def begin(self, features: Features, adj: Adjacency) -> None:
        self._remembered = adj

    def logits(self, features: Features, adj: Adjacency, rng: Rng) -> Tensor:
        known = self._remembered
        return super().logits(features, known if known is not None and known.num_nodes == adj.num_nodes else adj, rng)


class OnLearnedGraph(GCN):
    r"""A trained Pro-GNN whose learned graph S takes part in the flips.

    .. math:: S' = S + |A' - A| \circ (1 - 2 S)

    with A the clean graph and A' the given one. A trained Pro-GNN itself ignores the edges that it is given, so evasion
    could not touch it; Mujkanovic et al. (NeurIPS 2022) judge it in this way. Memory O(N²).
    """

    def __init__(self, model: ProGNN, clean: Adjacency) -> None:
        super(GCN, self).__init__()
        self.first, self.between, self.last, self.dropout = model.first, model.between, model.last, model.dropout
        self.learned, self.clean = model.structure, clean

    def operator(self, features: Features, adj: Adjacency) -> Callable[[Tensor], Tensor]:
        given, clean = _dense(adj, self.learned), _dense(self.clean, self.learned)
        change = clean + given * (1 - 2 * clean)  # |given − clean|, linear because the clean graph is binary
        return dense_propagation((self.learned + change * (1 - 2 * self.learned)).unsqueeze(0))


def _dense(adj: Adjacency, like: Tensor) -> Tensor:
    """The weights without self-loops, (N, N), differentiable."""
    no_loop = ~adj.loops
    place = (adj.row[no_loop], adj.col[no_loop])
    return torch.zeros_like(like).index_put(place, adj.weight[no_loop].to(like.dtype))


def as_attacked(model: nn.Module, data: Data) -> nn.Module:
    """The model that an attacker of the test graph meets: the model itself, or for Pro-GNN its learned graph."""
    if not isinstance(model, ProGNN):
        return model
    return OnLearnedGraph(model, prepare(data, model.first.weight.device)[1]).eval()


def frozen_twin(model: nn.Module) -> ASGNN | None:
    """A copy of an ASGNN that keeps the given structure, with the same weights; ``None`` for other models.

    Its gradient has no clip to hide behind, so flips found through it may be stronger. It never loses its trust in the
    edges, either.
    """
    if not isinstance(model, ASGNN) or model.asmp.scheme.structure == "frozen":
        return None
    twin = cast(ASGNN, trusting_twin(model) or copy.deepcopy(model))
    twin.asmp.scheme = replace(model.asmp.scheme, structure="frozen", support="edges")
    return twin


def trusting_twin(model: nn.Module) -> NodeClassifier | None:
    """A copy of a model that never loses its trust in the edges, or ``None`` for a model that trusts them anyway."""
    if not isinstance(model, NodeClassifier) or not model.expected:
        return None
    twin = copy.deepcopy(model)
    twin.expected = 0.0
    return twin
