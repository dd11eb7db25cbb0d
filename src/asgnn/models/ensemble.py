"""Several trained models as one: the mean of their probabilities."""

from __future__ import annotations

import copy
import math
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from asgnn.errors import ConfigError
from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.features import Features
from asgnn.models.base import NodeClassifier, stack
from asgnn.models.foreign import Foreign, as_model
from asgnn.models.layers import Rng
from asgnn.settings import check_number

MARGIN = 1e-4  # of log-odds, by which the predicted class stays above the second


class Ensemble(NodeClassifier):
    r"""The mean of the probabilities of trained models, as a model of its own.

    .. math:: \log \frac{1}{M} \sum_m \mathrm{softmax}(H_m / \tau)

    Works wherever a trained model does: in :func:`~asgnn.training.predict`, in :func:`~asgnn.training.accuracy`, and as
    the victim of an attack, because it is differentiable in ``x`` and ``edge_weight`` where its members are. It copies
    the weights and is in evaluation mode. Members that can share a batch are run as one. It cannot be trained.

    Args:
        models: trained models of any classes, of this library or not, for the same features and classes.
        temperature: τ; above 1 the probabilities of each model become more equal before they are averaged.
        confidence: if given, every node's predicted class gets this probability, or just enough to stay the most
            probable one; the other classes share the rest in the proportions that they had.

    Time and memory are the sum of the members'.
    """

    def __init__(self, models: Sequence[nn.Module], temperature: float = 1.0, confidence: float | None = None) -> None:
        super().__init__()
        check_number("temperature", temperature, 0, math.inf, "()")
        if confidence is not None:
            check_number("confidence", confidence, 0, 1, "()")
        members = [as_model(model) for model in models]
        if not members:
            raise ConfigError("An Ensemble needs at least one model.")
        if any(model.stacked is not None for model in members):
            raise ConfigError("The models of an Ensemble must be single models, not stacks.")
        places = {p.device for model in members for p in model.parameters()}
        if len(places) > 1:
            on = " and ".join(sorted(map(str, places)))
            raise ConfigError(f"The models of an Ensemble must be on one device; these are on {on}.")
        _check_classes({model.settings["out_channels"] for model in members if "out_channels" in model.settings})
        self.temperature, self.confidence = temperature, confidence
        groups: dict[tuple[Hashable, ...], list[NodeClassifier]] = {}
        for i, model in enumerate(members):
            alone = isinstance(model, Foreign | Ensemble)
            groups.setdefault((i,) if alone else model.batch_key, []).append(model)
        self.members = nn.ModuleList(_together(group) for group in groups.values())
        self.dense_matrices = sum(model.dense_matrices for model in members)
        self.eval()

    def logits(self, features: Features, adj: Adjacency, rng: Rng) -> Tensor:
        """(1, N, C) the logarithm of the mean probability; ``rng`` is not used."""
        return self.combined(self.member_logits(features, adj)).unsqueeze(0)

    def member_logits(self, features: Features, adj: Adjacency) -> Tensor:
        """(M, N, C) the scores of each model, before the temperature."""
        outs = [member(features, adj) for member in self.members]
        _check_classes({out.size(-1) for out in outs})
        return torch.cat([out.view(-1, *out.shape[-2:]) for out in outs])

    def combined(self, member_logits: Tensor) -> Tensor:
        """(N, C) the logarithm of the probabilities, from the scores (M, N, C) of each model."""
        log_p = torch.logsumexp((member_logits / self.temperature).log_softmax(-1), 0) - math.log(len(member_logits))
        return log_p if self.confidence is None else _with_confidence(log_p, self.confidence)

    def stacked_with(self, models: Sequence[NodeClassifier]) -> NodeClassifier:
        raise ConfigError("An Ensemble cannot be trained; train its models and build it from them.")


def _together(group: list[NodeClassifier]) -> NodeClassifier:
    """Models of one batch key as one module."""
    return copy.deepcopy(group[0]) if isinstance(group[0], Ensemble) else stack(group)


def _with_confidence(log_p: Tensor, confidence: float) -> Tensor:
    """Log-probabilities (N, C) whose largest one is that of ``confidence``, or a little above the second largest."""
    top = log_p.argmax(-1, keepdim=True)
    others = log_p.scatter(-1, top, -math.inf)
    others = others - others.logsumexp(-1, keepdim=True)  # among themselves
    # the odds of the top class against all others; at the largest of these it would be level with the second
    odds = torch.clamp(others.amax(-1, keepdim=True) + MARGIN, min=math.log(confidence / (1 - confidence)))
    return (others + F.logsigmoid(-odds)).scatter(-1, top, F.logsigmoid(odds))


def _check_classes(classes: set[int]) -> None:
    if len(classes) > 1:
        numbers = " and ".join(map(str, sorted(classes)))
        raise ConfigError(f"The models of an Ensemble must have the same number of classes; these have {numbers}.")
