"""The unrolled training of a victim: its logits after training, as a differentiable function of the edges.

:class:`Unrolled` turns a model with its training into a :data:`~asgnn.attacks.surrogate.Victim`, so an attack on a
trained model becomes one on its training.
"""

from __future__ import annotations

import copy
import math
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from asgnn.errors import ConfigError
from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.dense import DenseAdjacency, Tape
from asgnn.graphs.features import Features
from asgnn.graphs.relaxed import Relaxation, relaxed
from asgnn.settings import check_choice, check_count, check_number

Optimizer = Literal["sgd", "adam"]
Derivative = Literal["exact", "difference"]
Retrain = Callable[[Tensor], Tensor]
"""edge_index (2, E), both directions → the logits (N, C), or (T, N, C), of victims trained on these edges."""

_Logits = Callable[[list[Tensor], Tensor], Tensor]
"""(weights, edge weights) → logits, or a loss"""

BETA1, BETA2 = 0.9, 0.999
# The step of a difference, relative to the weights. For smooth losses 1e-5 would be best, but a ReLU or a clip that
# changes its side within the step adds an error of about 1 / step, so it must hardly ever happen.
NEAR = 1e-9


@dataclass(frozen=True)
class UnrolledTraining:
    """Settings of the training that an attack differentiates through.

    Args:
        steps: full-graph training steps.
        optimizer: "adam", as in the recipes, or "sgd", gradient descent with momentum.
        lr: learning rate. With Adam and 0.01, 50 steps train every model almost as well as its recipe; gradient descent
            needs 0.2 or more.
        momentum: momentum of "sgd".
        eps: added to the root of Adam's second moment. The derivative of a step of Adam grows as 1/eps where the
            gradient is small, so this is larger than in training.
        weight_decay: L2 penalty on the weights; learned scalars have none.
        scalar_lr: learning rate of the learned scalars, ``model.scalars()``, if the model has any.
        dropout: whether to train with dropout. The masks of a step are the same in every training.
        redraw: whether gradients are taken from other initial weights and dropout masks for each graph, drawn by
            ``model.reset_parameters()`` from a seed that depends on the edges, and after a number of steps from
            ``least`` to ``steps``, drawn likewise. So the attack does not fit one initialisation or one epoch. Values
            without gradient always use the weights of ``model`` and all steps.
        least: the least number of drawn steps. A victim keeps the weights of its best validation epoch, which under
            attack is an early one.
        derivative: "exact" differentiates the gradient of each step a second time; "difference" takes the central
            difference of two gradients instead, in double precision, for models that can be differentiated only once.
            It is equal up to some 1e-6, and faster for models with kernels of their own, such as ASGNN.
        relaxation: how the derivatives in the edge weights pass through clips and thresholds. By default they are
            exact. Those in the model's weights always are: with others, the reverse pass would follow another training
            and grow without bound. Needs a second pass for each step.
    """

    steps: int = 50
    optimizer: Optimizer = "adam"
    lr: float = 0.01
    momentum: float = 0.9
    eps: float = 1e-4
    weight_decay: float = 5e-4
    scalar_lr: float = 0.01
    dropout: bool = True
    redraw: bool = True
    least: int = 10
    derivative: Derivative = "exact"
    relaxation: Relaxation | None = None

    def __post_init__(self) -> None:
        check_count("steps", self.steps, 0)
        check_count("least", self.least, 0)
        check_choice("optimizer", self.optimizer, ("sgd", "adam"))
        check_choice("derivative", self.derivative, ("exact", "difference"))
        check_number("momentum", self.momentum, 0, 1, "[)")
        check_number("eps", self.eps, 0, math.inf, "()")
        for name in ("lr", "weight_decay", "scalar_lr"):
            check_number(name, getattr(self, name), 0, math.inf, "[)")


class Unrolled:
    """A victim that is trained on the edges it is called with; differentiable in their weights through the training.

    The result depends on the edges alone: a call trains from the initial weights of ``model`` with the same dropout
    masks, or from those that belong to these edges (``UnrolledTraining.redraw``). Apart from its dropout layers, the
    model is in evaluation mode, where RUNG and GNNGuard differentiate fully. What a model learned before the training,
    such as a witness, is fixed; a witness that speaks does so after the training only. The reverse pass recomputes one
    step at a time, so memory is O(steps · weights) and the activations of one step.

    Args:
        model: the untrained model, of this library or any module that maps ``(x, edge_index, edge_weight)`` to (N, C).
            It is not changed. A stack of several (``asgnn.models.stack``) trains all of them; the result is the mean
            of their logits.
        train: the nodes on which the model is trained, as numbers.
        labels: (N,) the labels; those of ``train`` are used.
        training: the settings of the training.

    Time of a call: ``steps`` training steps; its derivative takes about five times as long.
    """

    def __init__(
        self,
        model: nn.Module,
        train: Tensor,
        labels: Tensor,
        training: UnrolledTraining | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise ConfigError(f"model must be an untrained torch.nn.Module; it is a {type(model).__name__}.")
        self.training = training or UnrolledTraining()
        self.model = copy.deepcopy(model).to(train.device).eval()
        # Models of this library take the graph in its prepared form, so that it is not checked at every step.
        self.prepares = hasattr(model, "informed")
        if self.training.derivative == "difference":
            self.model = self.model.in_double() if self.prepares else self.model.double()  # type: ignore[operator]
        self.learner: nn.Module = self.model.silenced() if self.prepares else self.model  # type: ignore[operator]
        self.train, self.y = train, labels[train].to(train.device)
        self.last_class = int(self.y.max())
        self.start = {name: p.detach().clone() for name, p in self.model.named_parameters() if p.requires_grad}
        if not self.start:
            raise ConfigError(f"{type(model).__name__} has no trainable parameters.")
        if self.training.redraw and not callable(getattr(model, "reset_parameters", None)):
            raise ConfigError(
                f"{type(model).__name__} has no method reset_parameters, so no initial weights can be drawn; "
                "use UnrolledTraining(redraw=False)."
            )
        scalars: Iterable[Tensor] = getattr(self.model, "scalars", tuple)()
        ids = {id(scalar) for scalar in scalars}
        is_scalar = [id(p) in ids for p in self.model.parameters() if p.requires_grad]
        given = self.training
        # All weights are one vector in the optimiser: small operations cost more than what they compute.
        self.shapes = [value.shape for value in self.start.values()]
        self.rates = self._of_weights([given.scalar_lr if scalar else given.lr for scalar in is_scalar])
        self.decays = self._of_weights([0.0 if scalar else given.weight_decay for scalar in is_scalar])
        self.dropouts = [module for module in self.learner.modules() if "Dropout" in type(module).__name__]
        self._converted: tuple[Tensor | Features, Tensor] | None = None

    def __call__(self, x: Tensor | Features, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        """Return the logits (N, C) after training on the graph."""
        if self.training.derivative == "difference":
            return self._trained(self._double(x), edge_index, edge_weight.double()).to(edge_weight)
        return self._trained(x, edge_index, edge_weight)

    def _double(self, x: Tensor | Features) -> Tensor:
        """The features in double precision; the same tensor for the same ``x``, so that what belongs to it is kept."""
        if self._converted is None or self._converted[0] is not x:
            self._converted = x, (x.to_dense() if isinstance(x, Features) else x).double()
        return self._converted[1]

    def _trained(self, x: Tensor | Features, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        run = self._given()
        if self.training.redraw and edge_weight.requires_grad:
            run = self._of_edges(edge_index, edge_weight.detach())
        if self.prepares:
            features = Features.of(x)
            adj = Adjacency.of(edge_index, features.num_nodes, edge_weight)
            weight = adj.weight

            def inputs(weight: Tensor) -> tuple[Any, ...]:
                return features, replace(adj, weight=weight)
        else:
            dense, weight = x.to_dense() if isinstance(x, Features) else x, edge_weight

            def inputs(weight: Tensor) -> tuple[Any, ...]:
                return dense, edge_index, weight

        def logits(values: list[Tensor], weight: Tensor, model: nn.Module) -> Tensor:
            named = dict(zip(self.start, values, strict=True))
            found: Tensor = functional_call(model, named, inputs(weight), strict=False)
            return found

        weights = _Train.apply(weight, run, partial(logits, model=self.learner))
        with relaxed(self.training.relaxation if weight.requires_grad else None):
            return mean_logits(logits(self.parts(weights), weight, self.model))

    def parts(self, weights: Tensor) -> list[Tensor]:
        """The weights of the model as views of one vector."""
        sizes = [shape.numel() for shape in self.shapes]
        return [part.view(shape) for part, shape in zip(weights.split(sizes), self.shapes, strict=True)]

    def _of_weights(self, values: list[float]) -> Tensor:
        """A vector with a value for each weight, from one for each of the model's tensors."""
        like = next(iter(self.start.values()))
        return _joined(like.new_full(shape, value) for shape, value in zip(self.shapes, values, strict=True))

    def _given(self) -> _Run:
        """The training from the weights of the model, with all steps."""
        return _Run(self, _joined(self.start.values()), 0, self.training.steps)

    def _of_edges(self, edge_index: Tensor, edge_weight: Tensor) -> _Run:
        """A drawn training that depends on the edges alone."""
        number = float(edge_weight.double() @ (edge_index + 1).double().prod(0))
        return self._drawn(*struct.unpack("q", struct.pack("d", number)))

    def _drawn(self, seed: int) -> _Run:
        """A training from other initial weights and of another length."""
        with _seeded(seed, self.train.device):
            self.model.reset_parameters()  # type: ignore[operator]
        start = _joined(p.detach() for p in self.model.parameters() if p.requires_grad)
        most = self.training.steps
        least = min(self.training.least, most)
        return _Run(self, start, seed, least + seed % (most - least + 1))

    def losses(self, logits: _Logits, seed: int) -> _Logits:
        """Return (weights, edge weights) → training loss, with the dropout masks that belong to ``seed``."""

        def loss(values: list[Tensor], weight: Tensor) -> Tensor:
            if not (self.training.dropout and self.dropouts):
                return self.loss(logits(values, weight))
            with _seeded(seed, weight.device):
                for module in self.dropouts:
                    module.train()
                try:
                    return self.loss(logits(values, weight))
                finally:
                    for module in self.dropouts:
                        module.eval()

        return loss

    def loss(self, logits: Tensor) -> Tensor:
        """Return the cross-entropy of the training nodes, summed over the models of a stack."""
        logits = logits.unsqueeze(0) if logits.dim() == 2 else logits
        if self.last_class >= logits.size(-1):
            raise ConfigError(
                f"The model has {logits.size(-1)} classes, but a training node has label {self.last_class}."
            )
        at = logits[:, self.train].transpose(1, 2)
        return F.cross_entropy(at, self.y.expand(at.size(0), -1)) * at.size(0)

    def updated(self, state: tuple[Tensor, ...], gradient: Tensor, step: int) -> tuple[Tensor, ...]:
        """Return the state (weights, then the moments) after one step, counted from 1; differentiable, elementwise."""
        weights, given = state[0], self.training
        gradient = gradient + self.decays * weights
        if given.optimizer == "sgd":
            first = given.momentum * state[1] + gradient
            return weights - self.rates * first, first
        first = BETA1 * state[1] + (1 - BETA1) * gradient
        second = BETA2 * state[2] + (1 - BETA2) * gradient * gradient
        # the root has no derivative at 0
        root = (second / (1 - BETA2**step)).clamp(min=torch.finfo(second.dtype).tiny).sqrt()
        return weights - self.rates * (first / (1 - BETA1**step)) / (root + given.eps), first, second

    @property
    def moments(self) -> int:
        return 1 if self.training.optimizer == "sgd" else 2


class UnrolledMatrices(Unrolled):
    """The unrolled trainings of T victims, each on a graph of its own that is given as a dense matrix.

    Args:
        model: untrained; it maps features and a :class:`~asgnn.graphs.dense.DenseAdjacency` to logits (T, N, C). Its
            weights have a leading dimension T, too.
        train, labels, training: as for :class:`Unrolled`; derivatives are exact.

    Time O(steps · T N² (H + C)), memory O(T N² + steps · weights).
    """

    def after(self, features: Features, graphs: DenseAdjacency, seed: int | None = None) -> Tensor:
        """Return the logits (T, N, C) after training, differentiable once in the matrices of the graphs.

        With a seed, all trainings start from weights and have a length that are drawn with it.
        """
        tape = Tape()
        run = replace(self._given() if seed is None else self._drawn(seed), tape=tape)
        recorded = graphs.recorded(tape)

        def logits(values: list[Tensor], seen: DenseAdjacency) -> Tensor:
            named = dict(zip(self.start, values, strict=True))
            found: Tensor = functional_call(self.model, named, (features, seen), strict=False)
            return found

        weights = _Train.apply(graphs.weight, run, lambda values, _: logits(values, recorded))
        return logits(self.parts(weights), graphs)


def _joined(tensors: Iterable[Tensor]) -> Tensor:
    """A new vector of all entries."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's global generator, from which models draw; restore it afterwards."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


@dataclass(frozen=True, eq=False)
class _Run:
    """A training: the initial weights, the seed of the dropout masks, and the number of steps."""

    victim: Unrolled
    start: Tensor
    seed: int
    steps: int
    tape: Tape | None = None

    def losses(self, logits: _Logits, step: int) -> _Logits:
        return self.victim.losses(logits, (self.seed + step) % 2**62)


class _Train(torch.autograd.Function):
    """(edge weights, training, logits) → the weights after training, differentiable once in the edge weights."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, run: _Run, logits: _Logits) -> Tensor:
        victim, keep = run.victim, ctx.needs_input_grad[0]
        state = (run.start, *(torch.zeros_like(run.start) for _ in range(victim.moments)))
        states, gradients = [], []
        for step in range(1, run.steps + 1):
            gradient = _joined(_gradient(run.losses(logits, step), victim.parts(state[0]), weight))
            if keep:
                states.append(state)
                gradients.append(gradient)
            with torch.no_grad():
                state = victim.updated(state, gradient, step)
        ctx.run, ctx.logits, ctx.states, ctx.gradients = run, logits, states, gradients
        ctx.save_for_backward(weight)
        return state[0].clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, adjoint: Tensor) -> tuple[Tensor, None, None]:
        run, (weight,) = ctx.run, ctx.saved_tensors
        victim, total = run.victim, torch.zeros_like(weight[:0] if run.tape is not None else weight)
        bar = (adjoint, *(torch.zeros_like(adjoint) for _ in range(victim.moments)))
        for step in range(len(ctx.states), 0, -1):
            state, gradient = ctx.states[step - 1], ctx.gradients[step - 1]
            with torch.enable_grad():
                inputs = [value.detach().requires_grad_() for value in (*state, gradient)]
                new = victim.updated(tuple(inputs[:-1]), inputs[-1], step)
            of_start, *of_moments, of_gradient = torch.autograd.grad(new, inputs, bar)
            loss = run.losses(ctx.logits, step)
            parts = victim.parts(state[0]), weight, victim.parts(of_gradient)
            check, of_weight = step == len(ctx.states), None
            if victim.training.derivative == "difference":
                of_weights, of_weight = _difference(loss, state[0], weight, of_gradient, victim.parts)
            else:
                of_weights, of_weight = _second_derivative(loss, *parts, check, run.tape)
            if victim.training.relaxation is not None:
                with relaxed(victim.training.relaxation):
                    _, of_weight = _second_derivative(loss, *parts, check)
            bar = (of_start + _joined(of_weights), *of_moments)
            if of_weight is not None:
                total += of_weight
        return (total if run.tape is None else run.tape.total()), None, None


def _gradient(loss: _Logits, weights: list[Tensor], weight: Tensor) -> list[Tensor]:
    with torch.enable_grad():
        leaves = [value.detach().requires_grad_() for value in weights]
        value = loss(leaves, weight.detach())
    return _grad(value, leaves)


def _second_derivative(
    loss: _Logits, weights: list[Tensor], weight: Tensor, along: list[Tensor], check: bool, tape: Tape | None = None
) -> tuple[list[Tensor], Tensor | None]:
    """Return the derivatives of ⟨∂loss/∂weights, along⟩ in the weights and in the edge weights, or these on a tape."""
    with torch.enable_grad():
        leaves = [value.detach().requires_grad_() for value in weights]
        edges = weight.detach() if tape is not None else weight.detach().requires_grad_()
        gradient = _grad(loss(leaves, edges), leaves, create_graph=True)
    if check:
        _check_twice(gradient)
    needed = [(g, a) for g, a in zip(gradient, along, strict=True) if g.requires_grad]
    outputs, along_outputs = [g for g, _ in needed], [a for _, a in needed]
    by = leaves if tape is not None else [*leaves, edges]
    with tape.recording() if tape is not None else nullcontext():
        found = list(torch.autograd.grad(outputs, by, along_outputs, allow_unused=True, materialize_grads=True))
    return found[: len(leaves)], None if tape is not None else found[-1]


def _check_twice(gradient: list[Tensor]) -> None:
    """Raise if a function that is differentiable only once was used: torch would leave out its second derivative."""
    waiting, seen = [g.grad_fn for g in gradient if g.grad_fn is not None], set()
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.name().endswith("::Error"):
            raise ConfigError(
                "The model can be differentiated only once on this device, but its unrolled training needs second "
                'derivatives; use a model with backend="edges", or UnrolledTraining(derivative="difference").'
            )
        waiting += [following for following, _ in node.next_functions if following is not None]


def _difference(
    loss: _Logits, weights: Tensor, weight: Tensor, along: Tensor, parts: Callable[[Tensor], list[Tensor]]
) -> tuple[list[Tensor], Tensor]:
    """The same as a central difference along ``along``, from first derivatives alone; see :data:`NEAR`."""
    length = float(along.norm())
    if length == 0:
        return parts(torch.zeros_like(weights)), torch.zeros_like(weight)
    step = NEAR * max(float(weights.norm()), 1.0) / length
    both = []
    for sign in (1, -1):
        with torch.enable_grad():
            leaves = [part.requires_grad_() for part in parts((weights + sign * step * along).detach())]
            leaves.append(weight.detach().requires_grad_())
            value = loss(leaves[:-1], leaves[-1])
        both.append(_grad(value, leaves))
    found = [(up - down) / (2 * step) for up, down in zip(*both, strict=True)]
    return found[:-1], found[-1]


def _grad(loss: Tensor, by: list[Tensor], create_graph: bool = False) -> list[Tensor]:
    """Return the gradient, 0 where the loss does not depend on a tensor."""
    return list(torch.autograd.grad(loss, by, create_graph=create_graph, allow_unused=True, materialize_grads=True))


def mean_logits(logits: Tensor) -> Tensor:
    """The mean over the models of a stack."""
    return logits.mean(0) if logits.dim() == 3 else logits
