"""What a model makes of a graph before it looks at its weights: made once, not at every epoch."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import wraps
from typing import TypeVar
from weakref import WeakKeyDictionary

from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.features import Features

T = TypeVar("T")


def once_per_graph(make: Callable[..., T]) -> Callable[..., T]:
    """``make(features, adj, *settings)``, kept for as long as both prepared halves of the graph live.

    They are known by identity. Training prepares its graph once, so all epochs, batches and trials share one result;
    what is called with plain tensors has it again where their preparation is kept (:meth:`Adjacency.of`,
    :meth:`Features.of`). Where the weights or the features require a gradient nothing is kept: a result would hold the
    whole graph of its derivatives.
    """
    kept: WeakKeyDictionary[Adjacency, WeakKeyDictionary[Features, dict[Hashable, T]]] = WeakKeyDictionary()

    @wraps(make)
    def found(features: Features, adj: Adjacency, *settings: Hashable) -> T:
        if adj.weight.requires_grad or features.requires_grad:
            return make(features, adj, *settings)
        of_graph = kept.setdefault(adj, WeakKeyDictionary()).setdefault(features, {})
        if settings not in of_graph:
            of_graph[settings] = make(features, adj, *settings)
        return of_graph[settings]

    return found
