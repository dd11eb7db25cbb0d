"""The walk through the layers: the one loop that every backend shares."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

from asgnn.asmp.dense import DenseSteps
from asgnn.asmp.edges import EdgeSteps
from asgnn.asmp.gpu import GpuSteps
from asgnn.asmp.objective import Terms
from asgnn.asmp.params import ASMPParams, Scheme, one_of
from asgnn.errors import ConfigError, GraphError
from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.features import check_features

Backend = Literal["auto", "dense", "edges", "gpu"]


class Steps(Protocol):
    """What a backend is: a start, two steps, the terms, and the way out of its own layout."""

    h: Tensor
    s: Tensor

    def __init__(self, x: Tensor, adj: Adjacency, params: ASMPParams, scheme: Scheme) -> None: ...
    def h_step(self, h: Tensor, s: Tensor) -> Tensor: ...
    def s_step(self, h: Tensor, s: Tensor) -> Tensor: ...
    def terms(self, h: Tensor, s: Tensor) -> tuple[Tensor, ...]: ...
    def features(self, h: Tensor) -> Tensor: ...
    def structure(self, s: Tensor) -> Tensor: ...


def _on_gpu(x: Tensor, adj: Adjacency, params: ASMPParams, scheme: Scheme) -> Steps:
    if not x.is_cuda:
        raise ConfigError('backend="gpu" needs CUDA and triton; use backend="edges" here.')
    if not _has_kernels(scheme):
        raise ConfigError('backend="gpu" has no kernels for unit_norm=True or normalization="sym"; use "edges".')
    return GpuSteps(x, adj, params, scheme)


def _has_kernels(scheme: Scheme) -> bool:
    return scheme.normalization == "rw" and not scheme.unit_norm


BACKENDS: dict[str, Callable[[Tensor, Adjacency, ASMPParams, Scheme], Steps]] = {
    "dense": DenseSteps,
    "edges": EdgeSteps,
    "gpu": _on_gpu,
}


@dataclass(frozen=True)
class Propagation:
    """What ASMP returns.

    Attributes:
        h: (…, N, C) the features after the last layer.
        edge_index: (2, E) the entries of A with self-loops, in row order.
        weights: S before the first layer and after each layer, K + 1 of them, each (…, E) in the order of
            ``edge_index``, or (…, N, N) for dense support; empty when not asked for.
        objective: the objective at the start and after each half-step, term by term; empty when not asked for.
        backend: the backend that did the work.
    """

    h: Tensor
    edge_index: Tensor
    weights: tuple[Tensor, ...]
    objective: tuple[Terms, ...]
    backend: str


def propagate(
    x: Tensor,
    adj: Adjacency,
    params: ASMPParams,
    scheme: Scheme,
    *,
    layers: int,
    backend: Backend = "auto",
    weights: bool = True,
    trace: bool = False,
) -> Propagation:
    """:func:`asgnn.asmp.asmp` on a prepared adjacency and a scheme.

    Without ``weights`` and ``trace`` the last structure step, which no feature sees, is left out.
    """
    check_features(x, "(…, N, C)", x.dim() > 1)
    if layers < 0:
        raise ConfigError(f"The number of layers must be 0 or more; it is {layers}.")
    one_of("backend", backend, ("auto", *BACKENDS))
    if scheme.objective == "degree" and not adj.symmetric:
        raise GraphError('objective="degree" needs symmetric weights, and edge_weight differs between i → j and j → i.')
    leaves_edges = scheme.leaves_edges(params.lam)
    if backend == "auto":
        on_edges: Backend = "gpu" if x.is_cuda and _has_kernels(scheme) else "edges"
        backend = "dense" if leaves_edges else on_edges
    elif backend != "dense" and leaves_edges:
        raise ConfigError(
            'support="dense" lets S grow where the graph has no edge, which an edge list cannot hold; '
            'use backend="dense", or objective="degree" with λ ≥ 0, whose S stays on the edges.'
        )
    steps = BACKENDS[backend](x, adj, params, scheme)
    h, s = steps.h, steps.s
    structures = [s]
    values = [Terms("start", 0, *steps.terms(h, s))] if trace else []
    for layer, after, h, s in _walk(steps, scheme, layers, last_structure=weights or trace):
        if trace:
            values.append(Terms(after, layer, *steps.terms(h, s)))
        if after != "H" or scheme.structure == "frozen":
            structures.append(s)
    given_out = tuple(steps.structure(s) for s in structures) if weights else ()
    return Propagation(steps.features(h), adj.edge_index, given_out, tuple(values), backend)


def _walk(
    steps: Steps, scheme: Scheme, layers: int, last_structure: bool
) -> Iterator[tuple[int, Literal["H", "S", "joint"], Tensor, Tensor]]:
    """The order of the half-steps; yields the pair after each kind of step of each layer."""
    h, s = steps.h, steps.s
    adaptive = scheme.structure != "frozen"
    for layer in range(1, layers + 1):
        move_s = adaptive and (layer < layers or last_structure)
        if move_s and scheme.update == "joint":
            h, s = steps.h_step(h, s), steps.s_step(h, s)
            yield layer, "joint", h, s
            continue
        for _ in range(scheme.h_steps):
            h = steps.h_step(h, s)
        yield layer, "H", h, s
        if move_s:
            for _ in range(scheme.s_steps):
                s = steps.s_step(h, s)
            yield layer, "S", h, s
