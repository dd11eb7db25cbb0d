"""The base class of all models: a module for one trial that can be stacked with others and trained as one batch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from asgnn.errors import ConfigError
from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.features import Features
from asgnn.graphs.prior import FeaturePrior
from asgnn.models.layers import Rng
from asgnn.models.memory import Needed, Saving, Sizes
from asgnn.models.witness import Testimony, Witness, weighted
from asgnn.settings import bound_settings, settings_of


class _Recorded(type):
    """Gives every model the arguments ``prior`` and ``witness``, and records its constructor settings.

    So no model has to take these arguments or to list its settings again.
    """

    def __call__(
        cls, *args: Any, prior: FeaturePrior | None = None, witness: Witness | None = None, **kwargs: Any
    ) -> Any:
        model = super().__call__(*args, **kwargs)
        for name, value, kind in (("prior", prior, FeaturePrior), ("witness", witness, Witness)):
            if not isinstance(value, kind | None):
                raise ConfigError(f"{name} must be a {kind.__name__} or None; it is {value!r}.")
        model.prior, model.witness = prior, witness
        model.settings = bound_settings(cls, args, {**kwargs, "prior": prior, "witness": witness})
        return model


class NodeClassifier(nn.Module, metaclass=_Recorded):
    """The base class of models that map features and a graph to one score per node and class.

    A subclass defines its constructor, which declares its settings, and :meth:`logits`, whose tensors always have a
    leading dimension T of trials. A setting that may differ between the trials of a batch has the type
    :data:`~asgnn.settings.PerTrial` and is stored as a parameter or buffer.

    Every model also takes ``prior`` and ``witness``, which inform the structure that it sees with the features.

    Args:
        prior: drops and adds edges by the similarity of features; see :class:`~asgnn.graphs.prior.FeaturePrior`.
        witness: weights edges by the predictions of models that never see the given edges; see
            :class:`~asgnn.models.witness.Witness`.
    """

    shared_arguments: ClassVar = {"prior": FeaturePrior(), "witness": Witness(floor=1.0)}
    settings: dict[str, Any]
    """All constructor settings by name, defaults included."""
    prior: FeaturePrior | None
    witness: Witness | None
    testimony: Testimony | None = None
    """The trained models behind ``witness``; set by training."""
    stacked: int | None = None
    """The number of trials of a stacked model, ``None`` for a single model."""
    dense_matrices: int = 0
    """The number of N × N matrices one trial needs in training; used to choose the batch size."""
    whole_graph: bool = False
    """Whether a step of training needs all nodes, so that the model cannot be trained with mini-batches."""
    saving: Saving = Saving()
    """How the model saves memory; set by training."""
    own_weights: bool = False
    """Whether each trial of a batch may have edge weights of its own, where a weight of 0 is the same as no edge."""
    repeatable: bool = False
    """Whether every epoch launches the same kernels without synchronising, so that a CUDA graph can replay it."""

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
            edge_weight: (E,) in [0, 1]; ones by default. (E, T) for models with ``own_weights``.
            rng: the random streams of the trials' dropout; seeded by torch's global generator by default.
        """
        features = Features.of(x)
        adj = Adjacency.of(edge_index, features.num_nodes, edge_weight)
        return self.joined(self.unstacked(self.logits(features, self.informed(features, adj), rng)), features, adj)

    def joined(self, out: Tensor, features: Features, adj: Adjacency) -> Tensor:
        """Return the scores ``out`` (…, N, C), in evaluation mode together with the witness's if it speaks."""
        if self.training or self.witness is None or not self.witness.speaks or self.testimony is None:
            return out
        p = self.testimony.probabilities(features, adj)
        return out if p is None else self.witness.joined(out, p)

    def silenced(self) -> NodeClassifier:
        """The model as it is trained: its witness weighs the edges, but does not speak. A copy, if one does."""
        if self.witness is None or not self.witness.speaks:
            return self
        silent = copy.deepcopy(self)
        silent.witness = self.witness.silent()
        return silent

    def in_double(self) -> NodeClassifier:
        """A copy in double precision, with its witness."""
        found = copy.deepcopy(self).double()
        if self.testimony is not None:
            found.testimony = self.testimony.double()
        return found

    def informed(self, features: Features, adj: Adjacency) -> Adjacency:
        """Return the structure that the model sees: the given edges, informed by ``prior`` and ``witness``."""
        if adj.weight.dim() == 2:
            self._check_own_weights(adj.weight.size(1))
        adj = adj if self.prior is None else self.prior.structure(features, adj)
        if self.witness is None or not self.witness.active:
            return adj
        if self.testimony is None:
            raise ConfigError("This model has a witness, which training trains first; train the model with fit.")
        return weighted(features, adj, self.witness.floor, self.testimony)

    def _check_own_weights(self, columns: int) -> None:
        if not self.own_weights:
            raise ConfigError(
                f"This {type(self).__name__} cannot have edge weights for each trial; give it one weight per edge."
            )
        if columns != (self.stacked or 1):
            raise ConfigError(f"There are edge weights for {columns} trials, but {self.stacked or 1} models.")

    @property
    def batch_key(self) -> tuple[Hashable, ...]:
        """Equal for models that can share a batch: the class, all settings that are not per trial, the witness."""
        known = settings_of(type(self))
        fixed = (_hashable(value) for name, value in self.settings.items() if not known[name].per_trial)
        return type(self), self.variant(), self.testimony, *fixed

    def variant(self) -> Hashable:
        """What else must be equal in a batch, for a model whose computation branches on a per-trial setting."""
        return None

    def savings(self) -> tuple[Saving, ...]:
        """How the model can save memory, from the fastest to the smallest."""
        return (Saving(),)

    def activations(self, sizes: Sizes, saving: Saving) -> Needed | None:
        """The memory that one trial needs in training apart from its weights; ``None`` if it is unknown."""
        del sizes, saving
        return None

    def logits(self, features: Features, adj: Adjacency, rng: Rng) -> Tensor:
        """(T, N, out_channels)."""
        raise TypeError(f"{type(self).__name__} must define the method logits.")

    def unstacked(self, out: Tensor) -> Tensor:
        return out if self.stacked is not None else out.squeeze(0)

    def init_lazy(self, features: Features, adj: Adjacency) -> None:
        """Called by ``fit`` on the single model first; creates parameters whose sizes depend on the graph."""

    def begin(self, features: Features, adj: Adjacency) -> None:
        """Called by ``fit`` on the single model before training; initialises what depends on the graph."""

    def after_step(self, losses: Callable[[], Tensor]) -> None:
        """Called by ``fit`` after each optimiser step, for projections and inner loops.

        Args:
            losses: computes the training losses (T,) at the current parameters, with new dropout.
        """

    def trained_tensors(self) -> list[Tensor]:
        """The tensors that training changes and that are saved at the best epoch."""
        return list(self.parameters())

    def scalars(self) -> Iterable[Tensor]:
        """Parameters trained with ``scalar_lr`` and without weight decay."""
        return ()

    def scalar_values(self) -> dict[str, float]:
        """The values of the learned scalars of a single model, by name, for records."""
        return {}

    def stacked_with(self, models: Sequence[NodeClassifier]) -> NodeClassifier:
        """A copy with the stacked parameters and buffers of ``models``; this model is the first of them."""
        out = copy.deepcopy(self)
        out.stacked = len(models)
        for target, *modules in zip(out.modules(), *(model.modules() for model in models), strict=True):
            for name, parameter in list(target._parameters.items()):
                if parameter is not None:
                    values = [module.get_parameter(name).detach() for module in modules]
                    setattr(target, name, nn.Parameter(torch.stack(values), parameter.requires_grad))
            for name, buffer in list(target._buffers.items()):
                if buffer is not None:
                    setattr(target, name, torch.stack([module.get_buffer(name) for module in modules]))
        return out

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Reinitialise all parameters from the generator, or from torch's global one."""
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
    """Stack models into one module whose parameters and buffers have a leading dimension T."""
    first = models[0]
    if any(model.stacked is not None or model.batch_key != first.batch_key for model in models):
        raise ConfigError("Models can share a batch only if they are single models of one class with equal settings.")
    return first.stacked_with(models)


def unstack(stacked: NodeClassifier, models: Sequence[NodeClassifier]) -> None:
    """Copy the values of each trial from a stack back into the single models."""
    for trial, model in enumerate(models):
        with torch.no_grad():
            for single, many in zip(model.trained_tensors(), stacked.trained_tensors(), strict=True):
                single.copy_(many[trial])
