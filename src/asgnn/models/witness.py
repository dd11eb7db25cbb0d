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
from asgnn.graphs.relaxed import clip, gate, relaxed
from asgnn.settings import check_count, check_number

# Keeps the derivative of the square root finite where two nodes have no class in common.
LEAST = 1e-12
# θ is 0.9975 on the training graph, 1/2 at the tolerance and 0.0025 at twice the tolerance.
SHARPNESS = 6.0


@dataclass(frozen=True)
class Witness:
    r"""Weights every edge by how likely a witness takes both of its ends to be of one class.

    .. math:: \bar A_{ij} = A_{ij} \Big(\varepsilon + (1 - \varepsilon) \sqrt{p_i \cdot p_j}\Big)

    The witness is the mean of a few ASGNN on the k-nearest-neighbour graph of the features. It never sees the given
    edges, so no change of them can change what it says. Training trains it first, on the same training and validation
    nodes, and calibrates its probabilities p on the validation nodes with a temperature. Trials that are trained
    together on one split share one witness.

    The witness can also speak for itself, in evaluation mode, and the model can lose its trust in the edges as a whole:

    .. math:: \theta \, (\log \mathrm{softmax}(H) + \alpha \log p) + (1 - \theta) (1 + \alpha) \log p, \qquad
              \theta = \sigma\big(6\, (1 - \mathrm{growth} / \mathrm{tolerance})\big)

    Here growth is that of the disagreement, relative to the training graph: of the sum over all edges of
    :math:`A_{ij} (1 - \sqrt{p_i \cdot p_j})`. Edges that an attacker adds make it grow, and only the removal of other
    implausible edges makes it fall again. It is a sum over the whole graph, so it does not see an attack on a few
    nodes; and false edges in the training graph are part of what is expected.

    What the edges say can be bounded, too: with a bound c, :math:`\max(\log \mathrm{softmax}(H), -c)` takes the place
    of :math:`\log \mathrm{softmax}(H)`. So the edges cannot lower a class by more than c against another one, and a
    node of whose class the witness is sure enough is safe from any number of flips; see :meth:`safe`.

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
        tolerance: the growth of the disagreement at which the edges have lost half of their trust; 0 means that they
            never lose it.
        bound: c, the most that the edges can say against a class; 0 means that they are not bounded. Needs a voice.

    Its training takes about as long as that of 2 · ``views`` · ``models`` further models on a graph of N k edges.
    """

    floor: float = 0.1
    neighbors: int = 15
    models: int = 3
    views: int = 1
    seed: int = 0
    voice: float = 0.0
    tolerance: float = 0.0
    bound: float = 0.0

    def __post_init__(self) -> None:
        check_number("floor", self.floor, 0, 1)
        check_count("neighbors", self.neighbors)
        check_count("models", self.models, 1, 1000)
        check_count("views", self.views, 1, 3)
        check_count("seed", self.seed, 0, 2**31 - 1)
        check_number("voice", self.voice, 0, math.inf, "[)")
        check_number("tolerance", self.tolerance, 0, math.inf, "[)")
        check_number("bound", self.bound, 0, math.inf, "[)")
        if self.bound and not self.voice:
            raise ConfigError("A bound on what the edges say needs a witness that speaks; set its voice above 0.")

    @property
    def active(self) -> bool:
        return self.floor < 1 or self.speaks

    @property
    def speaks(self) -> bool:
        """Whether it takes part in the answer, and not only in the weights of the edges."""
        return self.voice > 0 or self.tolerance > 0

    def silent(self) -> Witness:
        """The same witness, which only weighs the edges."""
        return replace(self, voice=0.0, tolerance=0.0, bound=0.0)

    def joined(self, out: Tensor, p: Tensor, growth: Tensor | None) -> Tensor:
        """Return the scores ``out`` (…, N, C) together with the witness's.

        Args:
            out: the scores of a model.
            p: (N, C) the witness's probabilities.
            growth: of the :func:`disagreement`, relative to the training graph; ``None`` leaves the trust as it is.
        """
        said = p.clamp(min=LEAST).log()
        by_edges = out.log_softmax(-1)
        if self.bound:
            by_edges = clip(by_edges, low=-self.bound)
        together = by_edges + self.voice * said
        if growth is None:
            return together
        theta = gate(1 - growth / self.tolerance, SHARPNESS)
        return theta * together + (1 - theta) * (1 + self.voice) * said

    def safe(self, p: Tensor) -> Tensor:
        """(N,) bool: the nodes whose answer is the witness's, whatever edges are flipped, before or after training.

        For the witness's class a and any other b the edges add at least −c to the lead of α (log p_a − log p_b), and
        lost trust in the edges only makes it larger. None without a bound.
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
    alike = _alike(p, adj)
    factor = torch.where(adj.loops, alike.new_ones(()), floor + (1 - floor) * alike)
    factor = factor.view(-1, *(1,) * (adj.weight.dim() - 1))  # the weights may have a column for each trial
    trust = factor if adj.trust is None else adj.trust * factor
    return replace(adj, weight=adj.weight * factor, trust=trust)


def _alike(p: Tensor, adj: Adjacency) -> Tensor:
    """(E,) the square root of p_i · p_j for every entry, self-loops included."""
    p = p.unsqueeze(2)
    return sddmm(p, p, adj).squeeze(1).clamp(LEAST, 1).sqrt().to(adj.weight.dtype)


@once_per_graph
def disagreement(features: Features, adj: Adjacency, testimony: Testimony) -> Tensor:
    """The sum over all edges of their weight times how little the witness believes in them; 0 if it cannot judge."""
    p = testimony.probabilities(features, adj)
    if p is None:
        return adj.weight.new_zeros(())
    return (adj.weight * (1 - _alike(p, adj)) * ~adj.loops).sum()
