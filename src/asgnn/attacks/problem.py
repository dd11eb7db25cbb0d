"""What the gradient attacks have in common: the loss they raise, on which nodes, and what the attacker may know."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data

from asgnn.attacks.checkpoint import State
from asgnn.attacks.rules import check_labelled, check_nodes, check_task
from asgnn.attacks.surrogate import Surrogate, Victim, fit_surrogate
from asgnn.errors import ConfigError, GraphError
from asgnn.graphs import labels_of
from asgnn.graphs.features import Features
from asgnn.graphs.keys import from_keys, single_keys, to_keys

Loss = Literal["tanh_margin", "cw", "ce"]


def _margin(logits: Tensor, labels: Tensor) -> Tensor:
    """The best wrong class's lead over the label; positive where the node is misclassified."""
    at_label = logits.gather(1, labels.unsqueeze(1))
    others = logits.scatter(1, labels.unsqueeze(1), -torch.inf)
    return others.amax(1) - at_label.squeeze(1)


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    # Geisler et al. 2021: bounded, so that no budget goes to nodes that are lost already
    "tanh_margin": lambda logits, labels: _margin(logits, labels).tanh(),
    # the loss of Carlini and Wagner as in Xu et al. 2019, with κ = 0 and the sign turned: raised, not lowered
    "cw": lambda logits, labels: _margin(logits, labels).clamp(max=0),
    "ce": lambda logits, labels: F.cross_entropy(logits, labels, reduction="none"),
}
"""(logits (M, C), labels (M,)) → what an attack raises, (M,)."""


@dataclass(frozen=True, eq=False)
class Problem:
    """One attack's task, on the device where it is computed.

    Attributes:
        edges: (2, E) of the clean graph, u < v, in order, on the CPU.
        num_nodes: N.
        inputs: the first argument of the victim.
        victim: the model that is attacked.
        nodes: (M,) the attacked nodes.
        labels: (N,) the attacker's: true ones where they are known, the victim's own predictions elsewhere.
        train: (L,) the nodes whose labels are known.
        loss: a name of ``LOSSES``.
    """

    edges: Tensor
    num_nodes: int
    inputs: Tensor | Features
    victim: Victim
    nodes: Tensor
    labels: Tensor
    train: Tensor
    loss: Loss

    @property
    def device(self) -> torch.device:
        return self.nodes.device

    @property
    def pairs(self) -> int:
        """How many pairs there are to flip."""
        return self.num_nodes * (self.num_nodes - 1) // 2

    def value(self, logits: Tensor) -> Tensor:
        """The loss that the attack raises: the mean over the attacked nodes."""
        return LOSSES[self.loss](logits[self.nodes], self.labels[self.nodes]).mean()

    def gradient(self, logits: Tensor, by: Tensor) -> Tensor:
        """Of the loss, by a tensor that the logits were computed from; 0 where they do not depend on it."""
        value = self.value(logits)
        if not value.requires_grad:
            return torch.zeros_like(by)
        (found,) = torch.autograd.grad(value, [by], allow_unused=True)
        if found is None:
            return torch.zeros_like(by)
        if not bool(torch.isfinite(found).all()):
            unit_of(math.nan)
        return found

    @torch.no_grad()
    def value_after(self, flips: Tensor) -> float:
        """The same on the graph with ``flips`` (2, ·), u < v, made. Time of one forward pass."""
        return float(self.value(predict(self.victim, self.inputs, self.flipped(flips))))

    def flipped(self, flips: Tensor) -> Tensor:
        """The edges (2, ·), u < v and in order, with ``flips`` made; on the device."""
        keys = torch.cat([to_keys(self.edges, self.num_nodes), to_keys(flips.cpu(), self.num_nodes)])
        return from_keys(single_keys(keys), self.num_nodes).to(self.device)

    def against(self, victim: Victim) -> Problem:
        """The same task with another victim; the labels stay."""
        return replace(self, victim=victim)

    def state(self) -> State:
        """What is drawn and trained once, at the start."""
        state = {"labels": self.labels}
        if isinstance(self.victim, Surrogate):
            state |= self.victim.weights
        return state


def unit_of(largest: float) -> float:
    """The modulus of the largest entry of an attack's first gradient, by which its steps are measured.

    Raises :class:`~asgnn.errors.ConfigError` where it is 0 or no number: flips chosen by it would be no attack.
    """
    if largest > 0 and math.isfinite(largest):
        return largest
    what = "0 for every pair of nodes" if largest == 0 else "not finite"
    raise ConfigError(
        f"The gradient of the attacked model's loss is {what}, so it says nothing about which edges to flip: the model "
        "may not look at edge_weight, as an MLP does not, or all attacked nodes may be misclassified beyond doubt; "
        "attack through another surrogate."
    )


def in_evaluation(model: nn.Module) -> Victim:
    """The model in evaluation mode at every call; afterwards each of its modules is in the mode that it was in."""

    def call(x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        before = [(module, module.training) for module in model.modules()]
        model.eval()
        try:
            logits: Tensor = model(x, edge_index, edge_weight)
        finally:
            for module, training in before:
                module.training = training
        return logits

    return call


def predict(victim: Victim, inputs: Tensor | Features, edges: Tensor) -> Tensor:
    """The logits on an unweighted graph whose edges (2, E) are given once each."""
    both = torch.cat([edges, edges.flip(0)], dim=1)
    dtype = inputs.dtype
    return victim(inputs, both, torch.ones(both.size(1), dtype=dtype, device=both.device))


def pose(
    data: Data,
    budget: int,
    train: Tensor,
    rng: torch.Generator,
    *,
    nodes: Tensor | None,
    surrogate: Victim | None,
    loss: Loss,
    device: torch.device | str | None,
    state: State | None,
) -> Problem:
    """Check what was given, fit the surrogate where none was, and label the nodes with what the attacker knows.

    ``state`` is that of a stopped run: its surrogate and labels are used again.
    """
    edges = check_task(data, budget)
    train = check_labelled(train, data)
    n = int(data.num_nodes or 0)
    if loss not in LOSSES:
        raise ConfigError(f"loss must be one of {', '.join(LOSSES)}; it is {loss!r}.")
    if not isinstance(rng, torch.Generator) or rng.device.type != "cpu":
        raise ConfigError("rng must be a torch.Generator on the CPU, whatever the device of the attack.")
    if budget > n * (n - 1) // 2:
        raise GraphError(f"The budget asks for {budget} flips, and the graph has {n * (n - 1) // 2} pairs of nodes.")
    if nodes is None:
        outside = torch.ones(n, dtype=torch.bool)
        outside[train] = False
        if not bool(outside.any()):
            raise ConfigError("Every node is labelled, so none is left to attack; say with nodes which to attack.")
        nodes = outside
    nodes = check_nodes(nodes, data, "attacked")
    place = torch.device(device or data.x.device)
    if surrogate is None:
        if state is None:
            surrogate = fit_surrogate(data, train, rng, device=place)
        else:
            surrogate = Surrogate(*(state[name].to(place) for name in ("w1", "b1", "w2", "b2")))
    x = data.x.to(place)
    inputs = Features.of(x) if isinstance(surrogate, Surrogate) else x
    if isinstance(surrogate, Surrogate):
        surrogate = surrogate.to(place)
    elif isinstance(surrogate, nn.Module):
        surrogate = in_evaluation(surrogate)
    edges = from_keys(to_keys(edges, n).sort().values, n)
    if state is None:
        with torch.no_grad():
            labels = predict(surrogate, inputs, edges.to(place)).argmax(1)
        labels[train.to(place)] = labels_of(data).to(place)[train.to(place)]
    else:
        labels = state["labels"].to(place)
    return Problem(edges, n, inputs, surrogate, nodes.to(place), labels, train.to(place), loss)
