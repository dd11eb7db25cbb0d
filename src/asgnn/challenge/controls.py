"""Models that every challenge is compared with, and models as an attacker of the test graph meets them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from asgnn.attacks.poison_pairs import MatrixVictim
from asgnn.graphs import FeaturePrior, prepare
from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.dense import DenseAdjacency
from asgnn.graphs.features import Features
from asgnn.models import (
    APPNP,
    ASGNN,
    GCN,
    RUNG,
    SGC,
    GCNJaccard,
    GNNGuard,
    NodeClassifier,
    ProGNN,
    SoftMedianGCN,
    stack,
)
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

    Its gradient has no clip to hide behind, so flips found through it may be stronger.
    """
    if not isinstance(model, ASGNN) or model.asmp.scheme.structure == "frozen":
        return None
    twin = copy.deepcopy(model)
    twin.asmp.scheme = replace(model.asmp.scheme, structure="frozen", support="edges")
    return twin


class OnMatrices(nn.Module):
    """Some models of one kind as a function of features and the matrices of as many graphs."""

    def __init__(self, model: NodeClassifier, count: int) -> None:
        super().__init__()
        self.model = stack([copy.deepcopy(model) for _ in range(count)])

    def forward(self, features: Features, graphs: DenseAdjacency) -> Tensor:
        return self.model.logits(features, cast(Adjacency, graphs), None)

    def reset_parameters(self) -> None:
        self.model.reset_parameters()

    def scalars(self) -> Iterable[Tensor]:
        return self.model.scalars()


ON_MATRICES = (GCN, GCNJaccard, SGC, APPNP, ASGNN)
# Pro-GNN shrinks the singular values of its graph further with each step. Of the sets that scripts/shrunk_table.py
# compares, this one makes the strongest flips.
SHRINKAGES = (0.0, 1.0, 2.0, 4.0)


def matrix_twin(model: nn.Module) -> NodeClassifier | None:
    """A model that sees the graph as a normalised matrix only and stands for another one; ``None`` if none does.

    An ASGNN keeps the structure, GNNGuard keeps the edges that its first layer keeps, without their weights, the robust
    average of Soft-Median becomes a plain one, Pro-GNN keeps its graph, and RUNG becomes an ASGNN that keeps the
    structure. (An APPNP with RUNG's depth is nearer to it, but flips that are made through it are weaker.) Prior and
    witness stay.
    """
    if not isinstance(model, GNNGuard | SoftMedianGCN | RUNG | ProGNN):
        return frozen_twin(model)
    given = model.settings
    kept = FeaturePrior(threshold=model.threshold, metric="cosine") if isinstance(model, GNNGuard) else model.prior
    shared = ("in_channels", "hidden_channels", "out_channels")
    same: dict[str, Any] = {name: given[name] for name in shared} | {"prior": kept, "witness": model.witness}
    twin = frozen_twin(ASGNN(**same)) if isinstance(model, RUNG) else GCN(**same, dropout=given["dropout"])
    assert twin is not None
    twin.testimony = model.testimony
    return twin


def matrix_model(model: nn.Module) -> NodeClassifier | None:
    """The model itself or its twin, whichever sees the graph as a normalised matrix only; ``None`` if neither does."""
    found = matrix_twin(model) or model
    if type(found) not in ON_MATRICES or (isinstance(found, ASGNN) and found.hops):
        return None
    return cast(NodeClassifier, found)


def on_matrices(model: nn.Module, data: Data, device: torch.device | str | None = None) -> MatrixVictim | None:
    """A model, or its twin, as an attack on all pairs of nodes sees it; ``None`` if it cannot be seen in this way.

    Prior and witness weigh each pair by the features alone, and so does GCN-Jaccard: this is computed once, in time
    and memory O(N²).
    """
    found = matrix_model(model)
    if found is None:
        return None
    features, adj = prepare(data, device)
    seen = copy.deepcopy(found).to(features.device).eval()
    bare = copy.deepcopy(seen)
    bare.prior = bare.witness = bare.testimony = None
    absent, present = (_weights_of_pairs(seen, features, weight) for weight in (0.0, 1.0))
    return MatrixVictim(
        lambda count: OnMatrices(bare, count),
        bare.asmp.scheme.normalization if isinstance(bare, ASGNN) else "sym",
        absent,
        present,
        lambda out: seen.joined(out, features, adj),
        SHRINKAGES if isinstance(model, ProGNN) else (0.0,),
    )


def _weights_of_pairs(model: NodeClassifier, features: Features, weight: float) -> Tensor:
    """(N, N) the weights that a model gives to the edges of the complete graph if all have this weight."""
    n = features.num_nodes
    if not isinstance(model, GCNJaccard) and model.prior is None and model.witness is None:
        return torch.full((n, n), weight, device=features.device).fill_diagonal_(0)
    pairs = torch.triu_indices(n, n, 1, device=features.device)
    pairs = torch.cat([pairs, pairs.flip(0)], dim=1)
    adj = Adjacency.of(pairs, n, torch.full((pairs.size(1),), weight, device=pairs.device))
    adj = model.informed(features, adj)
    found = torch.zeros(n, n, device=pairs.device)
    found[adj.row.long(), adj.col.long()] = adj.weight
    return found.fill_diagonal_(0)
