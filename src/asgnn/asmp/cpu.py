"""The CPU backend: all layers as one operation, with the compiled loops of :mod:`asgnn.kernels.cpu.asmp`.

The trials are computed one after the other, or on several threads; a large graph with one trial is divided into ranges
of nodes. Threads wait without using the processor. The ranges do not depend on the number of threads, so neither do the
results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asgnn.asmp.edges import EdgeSteps
from asgnn.asmp.params import ASMPParams, HalfStep, Scheme
from asgnn.asmp.penalties import MIN_STRENGTH
from asgnn.errors import ConfigError
from asgnn.graphs.adjacency import Adjacency
from asgnn.kernels import on_cpu

Array = NDArray[Any]


def supports(scheme: Scheme) -> bool:
    """Whether there are kernels for the variant."""
    of_q = scheme.objective == "degree" and scheme.update == "alternating" and not scheme.unit_norm
    return scheme.structure == "frozen" or (of_q and scheme.penalty in ("quadratic", "mcp"))


class CpuSteps(EdgeSteps):
    """:class:`~asgnn.asmp.edges.EdgeSteps` with all half-steps in one operation."""

    def __init__(self, x: Tensor, adj: Adjacency, params: ASMPParams, scheme: Scheme) -> None:
        if on_cpu("asmp") is None:
            raise ConfigError('backend="cpu" needs Numba; run pip install "asgnn[fast]" or use backend="edges".')
        super().__init__(x, adj, params, scheme)

    def place(self, x: Tensor) -> Tensor:
        return x

    def prepare(self) -> None:
        trials = self.x.size(2)
        scalars = self.lam, self.gamma, self.mu1, self.mu2, self.eta1, self.eta2
        self.scalars = torch.stack([scalar.expand(trials) for scalar in scalars])

    def half_steps(self, plan: tuple[HalfStep, ...], record: bool) -> Iterator[tuple[HalfStep, Tensor, Tensor]]:
        """Yield H and S after each half-step of ``plan`` that ends; after the last only, unless ``record``."""
        matrix = self.fixed if self.scheme.structure == "frozen" else self.a[:, 0]
        ends = [step for step in plan if step.ends] if record else list(plan[-1:])
        x = self.x.permute(2, 0, 1)
        found: tuple[Tensor, ...] = _Run.apply(x, matrix, self.scalars, self.adj, self.scheme, plan, record)
        h, s = self.h, self.s
        for step, value in zip(ends, found, strict=True):
            if step.kind == "H":
                h = value.permute(1, 2, 0)
            else:
                s = value.t()
            yield step, h, s


@dataclass(frozen=True)
class _Pass:
    """A structure step, a feature step, or the former and then the latter.

    Attributes:
        structure, features: which steps it does.
        given: whether it reads S = A.
        s_out, h_out: whether S and H after it are results.
    """

    structure: bool
    features: bool
    given: bool
    s_out: bool = False
    h_out: bool = False


@lru_cache
def _passes(plan: tuple[HalfStep, ...], record: bool) -> list[_Pass]:
    passes: list[_Pass] = []
    for position, step in enumerate(plan):
        out = step.ends if record else position == len(plan) - 1
        if step.kind == "S":
            passes.append(_Pass(True, False, False, s_out=out))
        elif passes and passes[-1].structure and not passes[-1].features:
            passes[-1] = replace(passes[-1], features=True, h_out=out)
        else:
            passes.append(_Pass(False, True, not any(one.structure for one in passes), h_out=out))
    return passes


class _Work:
    """What the passes of all trials share: kernels, graph, sizes, and the threads."""

    def __init__(self, x: Tensor, matrix: Tensor, adj: Adjacency, scheme: Scheme) -> None:
        self.trials, self.nodes, self.channels = x.shape
        kernels, tasks = on_cpu("asmp"), on_cpu("tasks")
        assert kernels is not None
        assert tasks is not None
        self.kernels, self.crew = kernels, tasks.Crew
        self.step, self.step_back = kernels.steps_of(scheme.penalty == "mcp", self.channels <= kernels.WIDTH)
        self.width = np.uintp(-(-self.channels // kernels.WIDTH) * kernels.WIDTH)
        self.row_size = self.nodes * int(self.width)
        self.crow, self.col = adj.crow.numpy().view(np.uint64), adj.blocks(1)[1].numpy()
        self.matrix = matrix.contiguous().numpy()
        self.frozen, self.mcp = scheme.structure == "frozen", scheme.penalty == "mcp"
        self.variant = scheme.structure == "exact", self.mcp, MIN_STRENGTH
        self.dtype = x.dtype
        self.ranges = tasks.ranges(self.crow)

    def new(self, *shape: int) -> Array:
        found: Array = torch.empty(self.trials, *shape, dtype=self.dtype).numpy()
        return found

    def features(self) -> Array:
        return self.new(self.row_size)

    def padded(self, x: Tensor) -> Array:
        """(T, N, C) → (T, N · width)."""
        if self.width == self.channels:
            return x.contiguous().view(self.trials, -1).numpy()
        out = torch.zeros(self.trials, self.nodes, int(self.width), dtype=self.dtype)
        out[..., : self.channels] = x
        return out.view(self.trials, -1).numpy()

    def cut(self, h: Array) -> Tensor:
        """(T, N · width) → (T, N, C)."""
        return torch.from_numpy(h).view(self.trials, self.nodes, int(self.width))[..., : self.channels].contiguous()

    def each_trial(self, run: Callable[[int, Callable[..., None]], None]) -> None:
        """Call ``run(trial, over)`` for each trial, where ``over(kernel)`` calls a kernel for all ranges of nodes.

        ``kernel(range, first, last)`` and, if there are several trials, ``run`` may be called on several threads.
        """
        parts = [(number, *part) for number, part in enumerate(self.ranges)]
        values = self.trials * self.col.size * int(self.width)
        with self.crew(max(self.trials, len(parts)), values) as crew:
            if self.trials == 1 and len(parts) > 1:
                run(0, lambda kernel: crew.map(kernel, parts))
                return

            def one_by_one(kernel: Callable[[int, int, int], None]) -> None:
                for part in parts:
                    kernel(*part)

            crew.map(run, [(trial, one_by_one) for trial in range(self.trials)])


@dataclass(frozen=True)
class _State:
    """H and S after a pass, all trials: features (T, N · width), z (T, E), D⁻¹SH, D and e = ‖h − x‖² (T, N)."""

    h: Array
    e: Array | list[Array]
    z: Array | list[Array]
    mean: Array
    degree: Array


class _Run(torch.autograd.Function):
    """All half-steps of a plan; returns H and S after those that are results, (T, N, C) and (T, E).

    The derivative of a derivative is computed by :class:`~asgnn.asmp.edges.EdgeSteps`.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        matrix: Tensor,
        scalars: Tensor,
        adj: Adjacency,
        scheme: Scheme,
        plan: tuple[HalfStep, ...],
        record: bool,
    ) -> tuple[Tensor, ...]:
        ctx.save_for_backward(x, matrix, scalars)
        ctx.adj, ctx.scheme, ctx.plan, ctx.record = adj, scheme, plan, record
        work, passes = _Work(x, matrix, adj, scheme), _passes(plan, record)
        of_all = work.new(8)
        work.kernels.coefficients(scalars.numpy(), *work.variant, of_all)
        of_h, of_s = of_all[:, :3], of_all[:, 3:]
        kept = record or any(ctx.needs_input_grad)
        start = work.padded(x)
        states = _states(work, passes, start, kept)
        kernels = work.kernels

        def run(trial: int, over: Callable[..., None]) -> None:
            x_t, a, c = start[trial], of_h[trial], of_s[trial]
            for one, old, new in zip(passes, states[:-1], states[1:], strict=True):
                h, e, z, z_new, h_new = old.h[trial], old.e[trial], old.z[trial], new.z[trial], new.h[trial]
                mean, degree, e_new = new.mean[trial], new.degree[trial], new.e[trial]
                if work.frozen:
                    over(
                        lambda part, first, last: kernels.frozen_step(
                            first, last, work.crow, work.col, work.matrix, h, x_t, a, work.width, h_new, mean
                        )
                    )
                    continue
                over(
                    lambda part, first, last: work.step(
                        first, last, work.crow, work.col, work.matrix, h, x_t, e, z, c, a, work.width, one.structure, one.features, one.given, z_new, h_new, mean, degree, e_new,
                    )
                )  # fmt: skip

        work.each_trial(run)
        ctx.work, ctx.passes, ctx.states, ctx.of = work, passes, states if kept else None, (of_h, of_s)
        results = []
        for one, state in zip(passes, states[1:], strict=True):
            if one.s_out:
                results.append(_structure(work, state.z, of_s))
            if one.h_out:
                results.append(work.cut(state.h))
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # a derivative of this derivative is wanted
            return (*_by_edges(ctx, grads), None, None, None, None)
        work, passes, states, adj = ctx.work, ctx.passes, ctx.states, ctx.adj
        of_h, of_s = ctx.of
        kernels, entries = work.kernels, work.col.size
        to_x, grad = (torch.zeros(work.trials, work.row_size, dtype=work.dtype).numpy() for _ in range(2))
        parts = np.zeros((work.trials, len(work.ranges), 8))
        nothing = np.empty((work.trials, 0), grad.dtype)
        to_matrix = np.zeros((work.trials, entries), grad.dtype) if ctx.needs_input_grad[1] else nothing
        adaptive = any(one.structure for one in passes)
        to_s = np.zeros((work.trials, entries), grad.dtype) if adaptive or to_matrix.size else nothing
        to_z = np.zeros((work.trials, entries), grad.dtype) if work.mcp and adaptive else to_s
        by_degree, along_mean = work.features(), work.new(work.nodes)
        # where the gradient of each result comes in
        incoming = dict(zip([key for i, one in enumerate(passes) for key in _outs(i, one)], grads, strict=True))
        transposed = work.matrix[adj.reverse.numpy()] if work.frozen else work.matrix
        added = {key: _added(work, key, value, adj) for key, value in incoming.items()}

        def run(trial: int, over: Callable[..., None]) -> None:
            x_t, g, a, c = states[0].h[trial], grad[trial], of_h[trial], of_s[trial]
            spare = by_degree[trial]
            for i in reversed(range(len(passes))):
                one, old, new = passes[i], states[i], states[i + 1]
                if one.h_out:
                    g += added[i, "H"][trial]
                if one.s_out:
                    to_s[trial] += added[i, "S"][trial]
                h, e, z, z_new = old.h[trial], old.e[trial], old.z[trial], new.z[trial]
                mean, degree, to_x_t, parts_t = new.mean[trial], new.degree[trial], to_x[trial], parts[trial]
                if work.frozen:
                    over(
                        lambda part, first, last: kernels.frozen_step_back(
                            first, last, work.crow, work.col, transposed, h, x_t, mean, a, work.width, g, spare, to_x_t,
                            to_matrix[trial], parts_t[part],
                        )
                    )  # fmt: skip
                    g, spare = spare, g
                    continue
                if one.features:
                    over(
                        lambda part, first, last: kernels.spread(
                            first, last, h, x_t, mean, degree, a, work.width, g, spare, along_mean[trial], to_x_t,
                            parts_t[part],
                        )
                    )  # fmt: skip
                needs_s = one.structure or not one.given or to_matrix.size
                over(
                    lambda part, first, last: work.step_back(
                        first, last, work.crow, work.col, work.matrix, h, x_t, e, z, z_new, c, work.width, one.structure, one.features, one.given, spare, along_mean[trial], g,
                        (to_s if needs_s else nothing)[trial], to_z[trial], to_x_t, to_matrix[trial], parts_t[part],
                    )
                )  # fmt: skip
            to_x[trial] += g  # H starts as X

        work.each_trial(run)
        to_scalars = None
        if ctx.needs_input_grad[2]:
            sums = parts.sum(1)
            sums[:, 3:] /= 2
            to_scalars = torch.empty_like(ctx.saved_tensors[2])
            kernels.coefficients_back(ctx.saved_tensors[2].numpy(), *work.variant, sums, to_scalars.numpy())
        by_matrix = None
        if to_matrix.size or (ctx.needs_input_grad[1] and not entries):
            total = to_matrix if work.frozen else (to_matrix + to_s) / 2
            by_matrix = torch.from_numpy(total.sum(0))
        return work.cut(to_x), by_matrix, to_scalars, None, None, None, None


def _states(work: _Work, passes: Sequence[_Pass], start: Array, kept: bool) -> list[_State]:
    """The state before the first pass and after each; unless they are ``kept``, every second one shares its memory."""
    steps_h, steps_s = sum(one.features for one in passes), sum(one.structure for one in passes)
    count_h, count_s = (steps if kept else min(steps, 2) for steps in (steps_h, steps_s))

    def memory(count: int, size: int) -> Array:
        found: Array = torch.empty(count, work.trials, size, dtype=work.dtype).numpy()
        return found

    of_z, of_h, of_mean = (
        memory(count, size)
        for count, size in ((count_s, work.col.size), (count_h, work.row_size), (count_h, work.row_size))
    )
    of_e, of_degree = memory(count_h, work.nodes), memory(count_h, work.nodes)
    # S starts as A, ū of another penalty as 0, and e as 0 because H starts as X
    z: Array | list[Array] = [np.zeros_like(work.matrix) if work.mcp else work.matrix] * work.trials
    e: Array | list[Array] = [np.zeros(work.nodes, work.matrix.dtype)] * work.trials
    none = memory(1, 0)[0]
    h, mean, degree = start, none, none
    states, done_h, done_s = [_State(h, e, z, mean, degree)], 0, 0
    for one in passes:
        if one.structure:
            z = of_z[done_s % count_s]
            done_s += 1
        if one.features:
            at = done_h % count_h
            h, mean, e, degree = of_h[at], of_mean[at], of_e[at], of_degree[at]
            done_h += 1
        states.append(_State(h, e, z, mean, degree))
    return states


def _outs(number: int, one: _Pass) -> list[tuple[int, str]]:
    """The results of a pass."""
    return [(number, name) for name, out in (("S", one.s_out), ("H", one.h_out)) if out]


def _added(work: _Work, key: tuple[int, str], grad: Tensor, adj: Adjacency) -> Array:
    """The gradient of a result as the passes count it: in S, that of (i, j) plus that of (j, i)."""
    if key[1] == "H":
        return work.padded(grad)
    found: Array = (grad + grad[:, adj.reverse]).numpy()
    return found


def _structure(work: _Work, z: Sequence[Array], of_s: Array) -> Tensor:
    """S (T, E)."""
    out = work.new(work.col.size)
    for trial in range(work.trials):
        work.kernels.weights(
            0, work.nodes, work.crow, work.col, work.matrix, z[trial], of_s[trial], work.mcp, out[trial]
        )
    return torch.from_numpy(out)


def _by_edges(ctx: Any, grads: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    """The derivative in the three tensors as a function that can be differentiated again."""
    # views, because one of the tensors may have been computed from another
    x, matrix, scalars = inputs = [tensor.view_as(tensor) for tensor in ctx.saved_tensors]
    frozen = ctx.scheme.structure == "frozen"
    adj = ctx.adj if frozen else replace(ctx.adj, weight=matrix)
    steps = EdgeSteps(x, adj, ASMPParams(*scalars), ctx.scheme)
    if frozen:
        steps.fixed = matrix
    h, s, results = steps.h, steps.s, []
    for position, step in enumerate(ctx.plan):
        if step.kind == "H":
            h = steps.h_step(h, s)
        else:
            s = steps.s_step(h, s)
        if step.ends if ctx.record else position == len(ctx.plan) - 1:
            results.append(h.permute(2, 0, 1) if step.kind == "H" else s.t())
    return torch.autograd.grad(results, inputs, grads, create_graph=True, allow_unused=True)
