"""A cache for what a model computes from the graph alone, once and not in every epoch."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import wraps
from typing import TypeVar
from weakref import WeakKeyDictionary

from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.features import Features
from asgnn.graphs.relaxed import relaxation

T = TypeVar("T")


def once_per_graph(make: Callable[..., T]) -> Callable[..., T]:
    """Cache ``make(features, adj, *settings)`` for as long as both ``features`` and ``adj`` are alive.

    Both are compared by identity. Training prepares its graph once, so all epochs, batches and trials share one result;
    calls with plain tensors share it if :meth:`Adjacency.of` and :meth:`Features.of` have cached their preparation.
    Nothing is cached if the edge weights or the features require a gradient, because the result would keep the whole
    autograd graph alive, or if thresholds are relaxed.
    """
    cache: WeakKeyDictionary[Adjacency, WeakKeyDictionary[Features, dict[Hashable, T]]] = WeakKeyDictionary()

    @wraps(make)
    def cached(features: Features, adj: Adjacency, *settings: Hashable) -> T:
        if adj.weight.requires_grad or features.requires_grad or relaxation() is not None:
            return make(features, adj, *settings)
        results = cache.setdefault(adj, WeakKeyDictionary()).setdefault(features, {})
        if settings not in results:
            results[settings] = make(features, adj, *settings)
        return results[settings]

    return cached
