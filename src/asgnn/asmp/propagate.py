"""The loop over the layers, shared by all backends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol, cast

from torch import Tensor

from asgnn.asmp.cpu import CpuSteps, supports
from asgnn.asmp.dense import DenseSteps, MatrixSteps
from asgnn.asmp.edges import EdgeSteps
from asgnn.asmp.gpu import GpuSteps
from asgnn.asmp.objective import Terms
from asgnn.asmp.params import ASMPParams, HalfStep, Scheme, half_steps
from asgnn.asmp.pieces import PieceSteps
from asgnn.errors import ConfigError, GraphError
from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.checks import check_floats
from asgnn.graphs.dense import DenseAdjacency
from asgnn.graphs.piece import Piece
from asgnn.graphs.relaxed import relaxation
from asgnn.kernels import on_cpu
from asgnn.settings import MAX_LAYERS, check_choice, check_count

Backend = Literal["auto", "dense", "edges", "cpu", "gpu"]


class Moves(Protocol):
    """Initial h and s, the two steps, and the conversion of h to the public layout."""

    h: Tensor
    s: Tensor

    def h_step(self, h: Tensor, s: Tensor) -> Tensor: ...
    def s_step(self, h: Tensor, s: Tensor) -> Tensor: ...
    def features(self, h: Tensor) -> Tensor: ...


class Steps(Moves, Protocol):
    """The interface of a backend: :class:`Moves`, the objective, and the conversion of s to the public layout."""

    def __init__(self, x: Tensor, adj: Adjacency, params: ASMPParams, scheme: Scheme) -> None: ...
    def terms(self, h: Tensor, s: Tensor) -> tuple[Tensor, ...]: ...
    def structure(self, s: Tensor) -> Tensor: ...


def _on_gpu(x: Tensor, adj: Adjacency, params: ASMPParams, scheme: Scheme) -> Steps:
    if not x.is_cuda:
        raise ConfigError('backend="gpu" needs x on a CUDA device; use backend="edges".')
    if not _has_kernels(scheme):
        raise ConfigError(
            'backend="gpu" has no kernels for unit_norm=True or normalization="sym"; use backend="edges".'
        )
    return GpuSteps(x, adj, params, scheme)


def _has_kernels(scheme: Scheme) -> bool:
    return scheme.normalization == "rw" and not scheme.unit_norm


def _on_cpu(x: Tensor, adj: Adjacency, params: ASMPParams, scheme: Scheme) -> Steps:
    if x.device.type != "cpu":
        raise ConfigError(f'backend="cpu" needs x on the CPU, and it is on {x.device}; use backend="edges".')
    if not supports(scheme):
        raise ConfigError(
            'backend="cpu" has kernels for a frozen structure, and for objective="degree" with alternating updates and '
            'without unit_norm; use backend="edges".'
        )
    return CpuSteps(x, adj, params, scheme)


BACKENDS: dict[str, Callable[[Tensor, Adjacency, ASMPParams, Scheme], Steps]] = {
    "dense": DenseSteps,
    "edges": EdgeSteps,
    "cpu": _on_cpu,
    "gpu": _on_gpu,
}


def _fastest(x: Tensor, adj: Adjacency, scheme: Scheme) -> Backend:
    """The fastest backend on the edge list."""
    if relaxation() is not None:
        return "edges"
    if x.is_cuda:
        return "gpu" if _has_kernels(scheme) and _takes_weights("gpu", adj, scheme) else "edges"
    has_loops = supports(scheme) and on_cpu("asmp") is not None
    return "cpu" if has_loops and _takes_weights("cpu", adj, scheme) else "edges"


def _takes_weights(backend: Backend, adj: Adjacency, scheme: Scheme) -> bool:
    """Whether a backend can use these weights: not all can if each trial has weights of its own."""
    if adj.weight.dim() == 1 or backend == "edges":
        return True
    return backend == "gpu" and scheme.structure == "frozen"


@dataclass(frozen=True)
class Propagation:
    """The result of ASMP.

    Attributes:
        h: (…, N, C) the features after the last layer.
        adj: the adjacency, whose entries are those of A with self-loops, in row order.
        weights: S before the first layer and after each layer, K + 1 tensors, each (…, E) in the order of
            ``edge_index``, or (…, N, N) for dense support; empty unless requested.
        objective: the terms of the objective at the start and after each half-step; empty unless requested.
        backend: the backend used.
    """

    h: Tensor
    adj: Adjacency
    weights: tuple[Tensor, ...]
    objective: tuple[Terms, ...]
    backend: str

    @property
    def edge_index(self) -> Tensor:
        """(2, E) the entries of A with self-loops, in row order; a copy."""
        return self.adj.edge_index


def propagate(
    x: Tensor,
    adj: Adjacency | DenseAdjacency,
    params: ASMPParams,
    scheme: Scheme,
    *,
    layers: int,
    backend: Backend = "auto",
    weights: bool = True,
    trace: bool = False,
    recompute: bool = False,
) -> Propagation:
    """Run :func:`asgnn.asmp.asmp` on a prepared adjacency and a scheme.

    Without ``weights`` and ``trace`` the last structure step is skipped, because it does not change the features. With
    ``recompute`` the backends "cpu" and "gpu" keep about 2√K layers for the backward pass of q with alternating
    updates and not K, and compute the others a second time; the gradients are the same, bit by bit.
    """
    check_floats(x, "(…, N, C)", batched=True)
    check_count("layers", layers, 0, MAX_LAYERS)
    check_choice("backend", backend, ("auto", *BACKENDS))
    if isinstance(adj, DenseAdjacency):
        return _on_matrices(x, adj, params, scheme, layers)
    if scheme.objective == "degree" and not adj.symmetric:
        raise GraphError('objective="degree" needs symmetric weights, but edge_weight differs between i → j and j → i.')
    leaves_edges = scheme.leaves_edges(params.lam)
    if (backend != "auto" and not _takes_weights(backend, adj, scheme)) or (leaves_edges and adj.weight.dim() == 2):
        raise ConfigError('Edge weights for each trial need an edge list; use backend="edges" and support="edges".')
    if backend == "auto":
        backend = "dense" if leaves_edges else _fastest(x, adj, scheme)
    elif backend != "dense" and leaves_edges:
        raise ConfigError(
            'support="dense" lets S grow outside the edges, which an edge list cannot represent; use backend="dense", '
            'or objective="degree" with λ ≥ 0, whose S stays on the edges.'
        )
    if relaxation() is not None and backend != "edges":
        raise ConfigError(f'Clips can be relaxed with backend="edges" only; this model uses backend={backend!r}.')
    if isinstance(adj, Piece):
        if weights or trace or x[..., 0, 0].numel() > 1:
            raise ConfigError("On a part of a graph, ASMP computes the features of one trial only.")
        return _on_piece(x, adj, params, scheme, layers, backend)
    steps = BACKENDS[backend](x, adj, params, scheme)
    h, s = steps.h, steps.s
    structures = [s]
    values = [Terms("start", 0, *steps.terms(h, s))] if trace else []
    plan = half_steps(scheme, layers, last_structure=weights or trace)
    for step, h, s in _half_steps(steps, plan, weights or trace, recompute):
        if trace:
            values.append(Terms(step.kind, step.layer, *steps.terms(h, s)))
        if step.kind != "H" or scheme.structure == "frozen":
            structures.append(s)
    all_weights = tuple(steps.structure(s) for s in structures) if weights else ()
    return Propagation(steps.features(h), adj, all_weights, tuple(values), backend)


def _on_matrices(x: Tensor, adj: DenseAdjacency, params: ASMPParams, scheme: Scheme, layers: int) -> Propagation:
    """H after all layers on matrices, without a record."""
    if scheme.structure != "frozen":
        raise ConfigError('On matrices of several graphs the structure cannot change; use structure="frozen".')
    steps = MatrixSteps(x, adj, params, scheme)
    h = steps.h
    for _ in range(layers):
        h = steps.h_step(h, steps.s)
    return Propagation(h, cast(Adjacency, adj), (), (), "dense")


def _on_piece(
    x: Tensor, piece: Piece, params: ASMPParams, scheme: Scheme, layers: int, backend: Backend
) -> Propagation:
    """H after all layers for the own nodes of a piece."""
    if backend == "dense":
        raise ConfigError('backend="dense" needs the whole graph; use support="edges" and backend="auto" on a part.')
    make = BACKENDS[backend]
    steps: Moves = make(x, piece, params, scheme) if backend == "cpu" else PieceSteps(make, x, piece, params, scheme)
    plan = half_steps(scheme, layers, last_structure=False)
    *_, h = steps.h, *(h for _, h, _ in _half_steps(steps, plan, record=False, recompute=False))
    return Propagation(steps.features(h), piece, (), (), backend)


def _half_steps(
    steps: Moves, plan: tuple[HalfStep, ...], record: bool, recompute: bool
) -> Iterator[tuple[HalfStep, Tensor, Tensor]]:
    """Yield H and S after the half-steps that end; after the last only, unless ``record``, if the backend allows."""
    if isinstance(steps, CpuSteps) or (isinstance(steps, GpuSteps) and steps.all_at_once and plan):
        yield from steps.half_steps(plan, record, recompute)
        return
    h, s = steps.h, steps.s
    for step in plan:
        if step.kind == "joint":
            h, s = steps.h_step(h, s), steps.s_step(h, s)
        elif step.kind == "H":
            h = steps.h_step(h, s)
        else:
            s = steps.s_step(h, s)
        if step.ends:
            yield step, h, s
