"""The witness: models that never see the given edges say which of them are plausible."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from asgnn.errors import ConfigError
from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.edge_ops import sddmm
from asgnn.graphs.features import Features
from asgnn.graphs.per_graph import once_per_graph
from asgnn.graphs.relaxed import clip, relaxed
from asgnn.settings import check_count, check_number

# Keeps the derivative of the square root finite where two nodes have no class in common.
LEAST = 1e-12


@dataclass(frozen=True)
class Witness:
    r"""Weights every edge by how likely a witness takes both of its ends to be of one class.

    .. math:: \bar A_{ij} = A_{ij} \Big(\varepsilon + (1 - \varepsilon) \sqrt{p_i \cdot p_j}\Big)

    The witness is the mean of a few ASGNN on the k-nearest-neighbour graph of the features. It never sees the given
    edges, so no change of them can change what it says. Training trains it first, on the same training and validation
    nodes, and calibrates its probabilities p on the validation nodes with a temperature. Trials that are trained
    together on one split share one witness.

    The witness can also speak for itself, in evaluation mode, and what the edges say against a class can be bounded:

    .. math:: \max(\log \mathrm{softmax}(H), -c) + \alpha \log p

    With a bound the edges cannot lower a class by more than c against another one. So a node of whose class the witness
    is sure enough is safe from any number of flips, before and after training; see :meth:`safe`.

    If the features cannot judge pairs of nodes, the witness stands aside with a
    :class:`~asgnn.errors.FeaturesWarning`.

    Args:
        floor: ε, the least factor of an edge; 1 means no witness.
        neighbors: k of the graph of the features.
        models: the number of models, of each view.
        views: the number of views of the features (1 to 3), each with a graph of its own: the features as they are,
            their latent directions, and weighted by how rare they are; see :func:`~asgnn.graphs.similarity.view`. Dense
            features have no third view, and few dense features only the first.
        seed: of their initial weights and dropout.
        voice: α, the weight of the witness's log-probabilities beside the model's.
        bound: c, the most that the edges can say against a class; 0 means that they are not bounded. Needs a voice.

    Its training takes about as long as that of 2 · ``views`` · ``models`` further models on a graph of N k edges.
    """

    floor: float = 0.1
    neighbors: int = 15
    models: int = 3
    views: int = 1
    seed: int = 0
    voice: float = 0.0
    bound: float = 0.0

    def __post_init__(self) -> None:
        check_number("floor", self.floor, 0, 1)
        check_count("neighbors", self.neighbors)
        check_count("models", self.models, 1, 1000)
        check_count("views", self.views, 1, 3)
        check_count("seed", self.seed, 0, 2**31 - 1)
        check_number("voice", self.voice, 0, math.inf, "[)")
        check_number("bound", self.bound, 0, math.inf, "[)")
        if self.bound and not self.voice:
            raise ConfigError("A bound on what the edges say needs a witness that speaks; set its voice above 0.")

    @property
    def active(self) -> bool:
        return self.floor < 1 or self.speaks

    @property
    def speaks(self) -> bool:
        """Whether it takes part in the answer, and not only in the weights of the edges."""
        return self.voice > 0

    def silent(self) -> Witness:
        """The same witness, which only weighs the edges."""
        return replace(self, voice=0.0, bound=0.0)

    def joined(self, out: Tensor, p: Tensor) -> Tensor:
        """Return the scores ``out`` (…, N, C) of a model together with the witness's; ``p`` (N, C) is what it says."""
        by_edges = out.log_softmax(-1)
        if self.bound:
            by_edges = clip(by_edges, low=-self.bound)
        return by_edges + self.voice * p.clamp(min=LEAST).log()

    def safe(self, p: Tensor) -> Tensor:
        """(N,) bool: the nodes whose answer is the witness's, whatever edges are flipped, before or after training.

        For the witness's class a and any other b the edges add at least −c to the lead of α (log p_a − log p_b). None
        without a bound.
        """
        first, second = p.clamp(min=LEAST).log().topk(2, dim=-1).values.unbind(-1)
        return (self.voice * (first - second) > self.bound) & (self.bound > 0)


class Testimony:
    """The trained models of a witness, shared by all models that were trained with it. Compared by identity.

    Args:
        model: maps features and any adjacency, which it ignores, to the logarithm of probabilities; ``None`` if the
            features cannot judge pairs of nodes.
    """

    def __init__(self, model: nn.Module | None) -> None:
        self.model = model
        self._known: WeakKeyDictionary[Features, Tensor] = WeakKeyDictionary()

    def __deepcopy__(self, memo: Any) -> Testimony:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return Testimony, (self.model,)  # what is known of some features does not travel to another process

    def double(self) -> Testimony:
        """A copy in double precision."""
        return Testimony(None if self.model is None else copy.deepcopy(self.model).double())

    def probabilities(self, features: Features, adj: Adjacency) -> Tensor | None:
        """(N, C), differentiable in the features if they require a gradient; else computed once for them."""
        if self.model is None:
            return None
        if features.requires_grad and torch.is_grad_enabled():
            found: Tensor = self.model(features, adj).exp()
            return found
        if features.repeats is not None:
            one, count = features.repeats
            none = torch.empty(2, 0, dtype=torch.int64, device=adj.row.device)
            said = self.probabilities(one, Adjacency.of(none, one.num_nodes))
            return None if said is None else said.repeat(count, 1)
        if features not in self._known:
            with torch.no_grad(), relaxed(None):
                self._known[features] = self.model.to(adj.row.device)(features, adj).exp()
        return self._known[features]


@once_per_graph
def weighted(features: Features, adj: Adjacency, floor: float, testimony: Testimony) -> Adjacency:
    """Return the adjacency with every edge weighted by the testimony; self-loops keep weight 1."""
    p = testimony.probabilities(features, adj)
    if p is None or floor == 1:
        return adj
    pairs = p.unsqueeze(2)
    alike = sddmm(pairs, pairs, adj).squeeze(1).clamp(LEAST, 1).sqrt().to(adj.weight.dtype)
    factor = torch.where(adj.loops, alike.new_ones(()), floor + (1 - floor) * alike)
    factor = factor.view(-1, *(1,) * (adj.weight.dim() - 1))  # the weights may have a column for each trial
    trust = factor if adj.trust is None else adj.trust * factor
    return replace(adj, weight=adj.weight * factor, trust=trust)
