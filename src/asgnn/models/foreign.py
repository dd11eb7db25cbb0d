"""Modules of other packages, such as PyG, as models of this library."""

from __future__ import annotations

import copy
import importlib
import inspect
import threading
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parameter import is_lazy

from asgnn.errors import ConfigError, GraphError
from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.features import Features
from asgnn.graphs.per_graph import once_per_graph
from asgnn.models.base import NodeClassifier
from asgnn.models.layers import Rng, Streams

# Foreign modules use torch's global generator, which all threads share.
_GLOBAL_GENERATOR = threading.Lock()


class Foreign(NodeClassifier):
    """Wraps a module that maps ``(x, edge_index)``, and ``edge_weight`` if it takes it, to (N, C) scores.

    It never shares a batch. Lazy parameters (``in_channels=-1``) get their sizes from the first graph.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        try:
            names = inspect.signature(module.forward).parameters
            inspect.signature(module.forward).bind(None, None)
        except (TypeError, ValueError):
            raise ConfigError(
                f"{type(module).__name__}.forward cannot be called with x and edge_index alone; wrap the module in one "
                "that can."
            ) from None
        # all basic models of PyG have the argument, but some ignore it
        self.takes_weight = "edge_weight" in names and getattr(module, "supports_edge_weight", True)

    @property
    def batch_key(self) -> tuple[Hashable, ...]:
        return (id(self.module),)

    def logits(self, features: Features, adj: Adjacency, rng: Rng) -> Tensor:
        inputs = _inputs(features, adj)
        if len(inputs) == 3 and not self.takes_weight:
            raise GraphError(
                f"{type(self.module).__name__}.forward takes no edge_weight, but the graph has edge weights; remove "
                "them or use a module that takes edge_weight."
            )
        out = self.call(*inputs) if rng is None else self._seeded(rng, *inputs)
        if not isinstance(out, Tensor) or out.dim() != 2 or out.size(0) != features.num_nodes:
            returned = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise ConfigError(
                f"{type(self.module).__name__} must return one row of scores for each of the {features.num_nodes} "
                f"nodes; it returned {returned}."
            )
        return out.unsqueeze(0)

    def _seeded(self, rng: Streams, *inputs: Tensor) -> Tensor:
        """Call the module with the global generator seeded from the trial's stream, then restore the generator."""
        seed, device = int(rng.bits(1)), inputs[0].device
        with _GLOBAL_GENERATOR, torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            return self.call(*inputs)

    def call(self, *inputs: Tensor) -> Tensor:
        out: Tensor = self.module(*inputs[:2], **({"edge_weight": inputs[2]} if inputs[2:] else {}))
        return out

    def init_lazy(self, features: Features, adj: Adjacency) -> None:
        if any(is_lazy(value) for value in (*self.module.parameters(), *self.module.buffers())):
            with torch.no_grad():
                self.logits(features, adj, None)

    def trained_tensors(self) -> list[Tensor]:
        """Parameters and buffers, because a module may have running statistics."""
        return [*self.parameters(), *self.buffers()]

    def stacked_with(self, models: Sequence[NodeClassifier]) -> NodeClassifier:
        return _Stacked(self.module)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Call ``reset_parameters`` of all submodules, seeded from the generator if there is one."""
        with _GLOBAL_GENERATOR, torch.random.fork_rng(enabled=generator is not None):
            if generator is not None:
                torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
            for module in self.module.modules():
                if callable(reset := getattr(module, "reset_parameters", None)):
                    reset()


class _Stacked(Foreign):
    """The same with a leading dimension of 1 on every parameter and buffer, called with ``functional_call``."""

    stacked = 1

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        del self.module
        # not registered as a submodule, because its parameters are not the trained ones
        self.__dict__["module"] = copy.deepcopy(module)
        self._names: dict[str, str] = {}
        for i, (name, value) in enumerate(module.named_parameters()):
            self._names[name] = f"parameter{i}"
            self.register_parameter(f"parameter{i}", nn.Parameter(value.detach().clone()[None], value.requires_grad))
        for i, (name, buffer) in enumerate(module.named_buffers()):
            self._names[name] = f"buffer{i}"
            self.register_buffer(f"buffer{i}", buffer.detach().clone()[None])

    def call(self, *inputs: Tensor) -> Tensor:
        values = {name: getattr(self, stacked)[0] for name, stacked in self._names.items()}
        out: Tensor = functional_call(self.module, values, inputs[:2], {"edge_weight": inputs[2]} if inputs[2:] else {})
        return out

    def train(self, mode: bool = True) -> Any:
        self.__dict__["module"].train(mode)
        return super().train(mode)


@once_per_graph
def _inputs(features: Features, adj: Adjacency) -> tuple[Tensor, ...]:
    """x, edge_index without self-loops and, unless all weights are 1, edge_weight."""
    no_loop = ~adj.loops
    edges, weight = adj.edge_index[:, no_loop], adj.weight[no_loop]
    return (features.to_dense(), edges) if bool((weight == 1).all()) else (features.to_dense(), edges, weight)


def as_model(module: nn.Module) -> NodeClassifier:
    """Return a model of this library as it is, and any other module wrapped in :class:`Foreign`."""
    if not isinstance(module, nn.Module):
        raise ConfigError(f"A model must be a torch.nn.Module; this is a {type(module).__name__}.")
    return module if isinstance(module, NodeClassifier) else Foreign(module)


def build_foreign(kind: type[nn.Module], settings: Mapping[str, Any], rng: torch.Generator) -> nn.Module:
    """Build a module with initial weights drawn from ``rng``; torch's global generator is unchanged."""
    with _GLOBAL_GENERATOR, torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**62, (), generator=rng)))
        try:
            return kind(**settings)
        except (TypeError, ValueError) as cause:
            raise ConfigError(f"{kind.__name__} cannot be built with these settings: {_line(cause)}.") from cause


def find_module(name: str) -> type[nn.Module]:
    """Import the class named ``package.module:Class``."""
    path, _, attribute = name.partition(":")
    try:
        kind = getattr(importlib.import_module(path), attribute, None)
    except Exception as cause:  # importing a foreign module may raise anything
        raise ConfigError(f"{path!r} cannot be imported: {_line(cause)}.") from cause
    if not isinstance(kind, type) or not issubclass(kind, nn.Module):
        raise ConfigError(f"{path} has no class {attribute!r} that is a torch.nn.Module.")
    return kind


def _line(cause: Exception) -> str:
    return " ".join(str(cause).split()).rstrip(".") or type(cause).__name__
