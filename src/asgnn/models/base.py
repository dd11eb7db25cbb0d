"""What every model here is: a module for one trial that can be stacked with others and trained as one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from asgnn.errors import ConfigError
from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.features import Features
from asgnn.models.layers import Rng
from asgnn.settings import settings_given, settings_of


class _Recorded(type):
    """Keeps with every model the settings it was made with, so that no model has to list them a second time."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        model = super().__call__(*args, **kwargs)
        model.settings = settings_given(cls, args, kwargs)
        return model


class NodeClassifier(nn.Module, metaclass=_Recorded):
    """Features and graph in, one score for each node and class out.

    A subclass writes its constructor, which is where its settings are stated, and :meth:`logits`, which always sees a
    leading dimension T of trials. A setting in which the trials of a batch may differ has the type
    :data:`~asgnn.settings.PerTrial` and is kept in a parameter or a buffer.
    """

    settings: dict[str, Any]
    """Every setting of the constructor by name, defaults included."""
    stacked: int | None = None
    """How many trials this module holds, or ``None`` for a plain model."""
    dense_matrices: int = 0
    """How many N × N matrices one trial takes up in training, for the size of a batch."""
    repeatable: bool = False
    """Whether every epoch launches the same kernels and never waits for a value, so that a CUDA graph can repeat it."""

    def forward(
        self,
        x: Tensor | Features,
        edge_index: Tensor | Adjacency,
        edge_weight: Tensor | None = None,
        *,
        rng: Rng = None,
    ) -> Tensor:
        """(N, out_channels), or (T, N, out_channels) when stacked.

        Args:
            x: (N, F) dense or sparse, or prepared :class:`~asgnn.graphs.features.Features`.
            edge_index: (2, E) undirected, or a prepared :class:`~asgnn.graphs.adjacency.Adjacency`.
            edge_weight: (E,) in [0, 1]; ones by default.
            rng: the streams of the trials' dropout; started by torch's global generator by default.
        """
        features = Features.of(x)
        return self.unstacked(self.logits(features, Adjacency.of(edge_index, features.num_nodes, edge_weight), rng))

    @property
    def batch_key(self) -> tuple[Hashable, ...]:
        """Equal for models that can share a batch: the class, and all settings in which trials may not differ."""
        known = settings_of(type(self))
        fixed = (_hashable(value) for name, value in self.settings.items() if not known[name].per_trial)
        return type(self), self.variant(), *fixed

    def variant(self) -> Hashable:
        """What else must be equal in a batch; for a model whose computation depends on a setting of each trial."""
        return None

    def logits(self, features: Features, adj: Adjacency, rng: Rng) -> Tensor:
        """(T, N, out_channels)."""
        raise TypeError(f"{type(self).__name__} does not say how it computes its logits.")

    def unstacked(self, out: Tensor) -> Tensor:
        return out if self.stacked is not None else out.squeeze(0)

    def size_up(self, features: Features, adj: Adjacency) -> None:
        """Called by ``fit`` on the single model before anything else: for parameters whose sizes the graph decides."""

    def begin(self, features: Features, adj: Adjacency) -> None:
        """Called by ``fit`` on the single model before its training: for what starts from the graph itself."""

    def after_step(self, losses: Callable[[], Tensor]) -> None:
        """Called by ``fit`` after each step of the optimiser: projections, and inner loops of a method's own.

        Args:
            losses: the training losses (T,) of the parameters as they are now, dropout drawn anew.
        """

    def trained(self) -> list[Tensor]:
        """What training changes, and what is kept of its best epoch."""
        return list(self.parameters())

    def scalars(self) -> Iterable[Tensor]:
        """Parameters that learn with a rate of their own and without weight decay."""
        return ()

    def scalar_values(self) -> dict[str, float]:
        """What the learned scalars of a single model have become, by name, for a record."""
        return {}

    def stacked_with(self, models: Sequence[NodeClassifier]) -> NodeClassifier:
        """A copy that holds the parameters and buffers of all ``models``, of which this is the first."""
        out = copy.deepcopy(self)
        out.stacked = len(models)
        for place, *modules in zip(out.modules(), *(model.modules() for model in models), strict=True):
            for name, parameter in list(place._parameters.items()):
                if parameter is not None:
                    values = [module.get_parameter(name).detach() for module in modules]
                    setattr(place, name, nn.Parameter(torch.stack(values), parameter.requires_grad))
            for name, buffer in list(place._buffers.items()):
                if buffer is not None:
                    setattr(place, name, torch.stack([module.get_buffer(name) for module in modules]))
        return out

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Start anew, with the given generator or torch's global one."""
        for module in self.children():
            _reset(module, generator)


def _reset(module: nn.Module, generator: torch.Generator | None) -> None:
    if callable(reset := getattr(module, "reset_parameters", None)):
        reset(generator)
    else:
        for child in module.children():
            _reset(child, generator)


def _hashable(value: Any) -> Hashable:
    if isinstance(value, Tensor):
        return tuple(value.flatten().tolist())
    return tuple(value) if isinstance(value, list | set | frozenset | dict) else value


def stack(models: Sequence[NodeClassifier]) -> NodeClassifier:
    """Models that can share a batch as one module, whose parameters and buffers have a leading dimension T."""
    first = models[0]
    if any(model.stacked is not None or model.batch_key != first.batch_key for model in models):
        raise ConfigError("Only single models of one class can share a batch, and only where their settings agree.")
    return first.stacked_with(models)


def unstack(stacked: NodeClassifier, models: Sequence[NodeClassifier]) -> None:
    """Copy each trial's values out of a stack into the single models it was made of."""
    for trial, model in enumerate(models):
        with torch.no_grad():
            for own, many in zip(model.trained(), stacked.trained(), strict=True):
                own.copy_(many[trial])
