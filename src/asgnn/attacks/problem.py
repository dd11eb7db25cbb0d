"""The problem that every gradient attack solves: the loss to maximise, the attacked nodes, the known labels."""

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
from asgnn.attacks.rules import check_labelled, check_rng, check_task
from asgnn.attacks.surrogate import SurrogateGCN, Victim, fit_surrogate
from asgnn.errors import ConfigError, GraphError
from asgnn.graphs import labels_of
from asgnn.graphs.checks import node_numbers
from asgnn.graphs.features import Features
from asgnn.graphs.keys import from_keys, single_keys, to_keys
from asgnn.settings import check_choice

Loss = Literal["tanh_margin", "cw", "ce", "masked_ce", "elu_margin", "margin", "probability"]


def margin(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the highest logit of a wrong class minus that of the label; positive where misclassified."""
    at_label = logits.gather(1, labels.unsqueeze(1))
    others = logits.scatter(1, labels.unsqueeze(1), -torch.inf)
    return others.amax(1) - at_label.squeeze(1)


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    # Geisler et al. 2021: bounded, so that no budget is spent on nodes that are already misclassified
    "tanh_margin": lambda logits, labels: margin(logits, labels).tanh(),
    # the Carlini–Wagner loss of Xu et al. 2019 with κ = 0 and the opposite sign, because it is maximised here
    "cw": lambda logits, labels: margin(logits, labels).clamp(max=0),
    "ce": lambda logits, labels: F.cross_entropy(logits, labels, reduction="none"),
    # only of nodes that are still classified correctly, where it is at most log C
    "masked_ce": lambda logits, labels: torch.where(
        margin(logits, labels) > 0,
        math.log(logits.size(1)),
        F.cross_entropy(logits, labels, reduction="none"),
    ),
    # linear where classified correctly, bounded where not
    "elu_margin": lambda logits, labels: -F.elu(-margin(logits, labels)),
    "margin": margin,
    # smooth where a trained model is unsure, and bounded
    "probability": lambda logits, labels: 1 - logits.softmax(1).gather(1, labels.unsqueeze(1)).squeeze(1),
}
"""(logits (M, C), labels (M,)) → the loss of each node, (M,), which an attack maximises."""


@dataclass(frozen=True, eq=False)
class Problem:
    """The input of a gradient attack, on the device of the computation.

    Attributes:
        edges: (2, E) edges of the clean graph, u < v, sorted, on the CPU.
        num_nodes: N.
        inputs: the first argument of the victim.
        victim: the attacked model, which decides how good a set of flips is.
        surrogate: the model whose gradient proposes flips; usually the victim itself.
        nodes: (M,) the attacked nodes.
        labels: (N,) labels that the attacker uses: the true ones of ``train``, the victim's predictions elsewhere.
        train: (L,) the nodes whose labels are known.
        loss: a key of ``LOSSES``.
    """

    edges: Tensor
    num_nodes: int
    inputs: Tensor | Features
    victim: Victim
    surrogate: Victim
    nodes: Tensor
    labels: Tensor
    train: Tensor
    loss: Loss

    @property
    def device(self) -> torch.device:
        return self.nodes.device

    @property
    def pairs(self) -> int:
        """Number of node pairs that can be flipped."""
        return self.num_nodes * (self.num_nodes - 1) // 2

    def value(self, logits: Tensor) -> Tensor:
        """Return the loss that the attack maximises: the mean over the attacked nodes."""
        return LOSSES[self.loss](logits[self.nodes], self.labels[self.nodes]).mean()

    def gradient(self, logits: Tensor, by: Tensor) -> Tensor:
        """Return the gradient of the loss with respect to ``by``; 0 if the logits do not depend on it."""
        value = self.value(logits)
        if not value.requires_grad:
            return torch.zeros_like(by)
        (found,) = torch.autograd.grad(value, [by], allow_unused=True)
        if found is None:
            return torch.zeros_like(by)
        if not bool(torch.isfinite(found).all()):
            check_unit(math.nan)
        return found

    @torch.no_grad()
    def value_after(self, flips: Tensor) -> float:
        """Return the loss on the graph after ``flips`` (2, ·), u < v. Time of one forward pass."""
        return float(self.value(predict(self.victim, self.inputs, self.flipped(flips))))

    @torch.no_grad()
    def outcome(self, flips: Tensor) -> tuple[float, float]:
        """Return the victim's share of errors among the attacked nodes after ``flips``, and the loss, to break ties.

        The first is what an attack is for; both are to be high. Time of one forward pass.
        """
        return self.outcome_of(predict(self.victim, self.inputs, self.flipped(flips)))

    def outcome_of(self, logits: Tensor) -> tuple[float, float]:
        """Return the outcome for the victim's scores (N, C)."""
        wrong = logits[self.nodes].argmax(1) != self.labels[self.nodes]
        return float(wrong.double().mean()), float(self.value(logits))

    def flipped(self, flips: Tensor) -> Tensor:
        """Return the edges (2, ·), u < v and sorted, of the graph after ``flips``, on the device."""
        keys = torch.cat([to_keys(self.edges, self.num_nodes), to_keys(flips.cpu(), self.num_nodes)])
        return from_keys(single_keys(keys), self.num_nodes).to(self.device)

    def with_victim(self, victim: Victim) -> Problem:
        """Return the same problem with another model as victim and surrogate, and unchanged labels."""
        return replace(self, victim=victim, surrogate=victim)

    def state(self) -> State:
        """Return the part of a checkpoint that does not change between steps: labels and surrogate."""
        state = {"labels": self.labels}
        if isinstance(self.surrogate, SurrogateGCN):
            state |= self.surrogate.weights
        return state


def check_unit(largest: float) -> float:
    """Return ``largest``, the largest absolute entry of the first gradient, which is the unit of the step size.

    Raises :class:`~asgnn.errors.ConfigError` if it is 0 or not finite, because no flip can be chosen then.
    """
    if largest > 0 and math.isfinite(largest):
        return largest
    what = "0 for every pair of nodes" if largest == 0 else "not finite"
    raise ConfigError(
        f"The gradient of the attacked model's loss is {what}, so the attack cannot choose flips: the model may ignore "
        "edge_weight (as an MLP does), or its loss may be saturated on all attacked nodes; use another surrogate."
    )


def as_victim(model: Victim, device: torch.device) -> Victim:
    """Return a model in the form in which attacks call it: a module in evaluation mode, the own GCN on ``device``."""
    if isinstance(model, SurrogateGCN):
        return model.to(device)
    if not callable(model):
        raise ConfigError(f"surrogate and victim must be modules or functions; one is a {type(model).__name__}.")
    return eval_mode(model) if isinstance(model, nn.Module) else model


def eval_mode(model: nn.Module) -> Victim:
    """Wrap a model so that every call runs in evaluation mode and restores the mode of each module afterwards."""

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
    """Return the logits on an unweighted graph; ``edges`` (2, E) lists each edge once."""
    both = torch.cat([edges, edges.flip(0)], dim=1)
    return victim(inputs, both, torch.ones(both.size(1), dtype=inputs.dtype, device=both.device))


def make_problem(
    data: Data,
    budget: int,
    train: Tensor,
    rng: torch.Generator,
    *,
    nodes: Tensor | None,
    surrogate: Victim | None = None,
    victim: Victim | None = None,
    loss: Loss,
    device: torch.device | str | None,
    state: State | None,
) -> Problem:
    """Check the arguments of an attack, fit a surrogate if no model is given, and return the problem.

    Of ``surrogate`` and ``victim``, one that is not given is the other one. ``state`` is the checkpoint of an
    interrupted run; its surrogate and labels are reused.
    """
    edges = check_task(data, budget)
    train = check_labelled(train, data)
    n = int(data.num_nodes or 0)
    check_choice("loss", loss, tuple(LOSSES))
    check_rng(rng)
    if budget > n * (n - 1) // 2:
        raise GraphError(f"The budget is {budget} flips, but the graph has only {n * (n - 1) // 2} pairs of nodes.")
    if nodes is None:
        nodes = torch.ones(n, dtype=torch.bool)
        nodes[train] = False
        if not bool(nodes.any()):
            raise ConfigError("Every node is labelled, so none is left to attack; pass the nodes to attack as nodes=.")
    nodes = node_numbers(nodes, n, "attacked")
    place = torch.device(device or data.x.device)
    surrogate = victim if surrogate is None else surrogate
    if surrogate is None:
        if state is None:
            surrogate = fit_surrogate(data, train, rng, device=place)
        else:
            surrogate = SurrogateGCN(*(state[name].to(place) for name in ("w1", "b1", "w2", "b2")))
    victim = surrogate if victim is None else victim
    inputs: Tensor | Features = data.x.to(place)
    if isinstance(surrogate, SurrogateGCN) and isinstance(victim, SurrogateGCN):
        inputs = Features.of(inputs)
    surrogate, victim = as_victim(surrogate, place), as_victim(victim, place)
    edges = from_keys(to_keys(edges, n).sort().values, n)
    if state is None:
        with torch.no_grad():
            labels = predict(victim, inputs, edges.to(place)).argmax(1)
        labels[train.to(place)] = labels_of(data).to(place)[train.to(place)]
    else:
        labels = state["labels"].to(place)
    return Problem(edges, n, inputs, victim, surrogate, nodes.to(place), labels, train.to(place), loss)
