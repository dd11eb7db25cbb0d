"""The CPU backend: all layers as one operation, with the compiled loops of :mod:`asgnn.kernels.cpu.asmp`.

The trials are computed one after the other, or on several threads; a large graph with one trial is divided into ranges
of nodes. Threads wait without using the processor. The ranges do not depend on the number of threads, so neither do the
results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asgnn.asmp.edges import EdgeSteps
from asgnn.asmp.params import ASMPParams, HalfStep, Scheme
from asgnn.asmp.passes import Plan, of_q, plan_of, segments
from asgnn.asmp.penalties import MIN_STRENGTH
from asgnn.errors import ConfigError
from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.piece import Piece
from asgnn.kernels import on_cpu

Array = NDArray[Any]


def supports(scheme: Scheme) -> bool:
    """Whether there are kernels for the variant."""
    return scheme.structure == "frozen" or of_q(scheme)


class CpuSteps(EdgeSteps):
    """:class:`~asgnn.asmp.edges.EdgeSteps` with all half-steps in one operation."""

    def __init__(self, x: Tensor, adj: Adjacency, params: ASMPParams, scheme: Scheme) -> None:
        if on_cpu("asmp") is None:
            raise ConfigError('backend="cpu" needs Numba; run pip install "asgnn[fast]" or use backend="edges".')
        self.batch_shape, self.adj, self.scheme = x.shape[:-2], adj, scheme
        self.mcp = scheme.penalty == "mcp"
        self.by_trial = x.reshape(-1, *x.shape[-2:])
        self.x = self.h = self.by_trial.permute(1, 2, 0)
        trials = self.by_trial.size(0)
        values = params.tensors(x, self.batch_shape)
        # without views that change nothing, which a backward pass of so few numbers would notice
        self.scalars = torch.stack(
            [value if value.shape == (trials,) else value.reshape(-1).expand(trials) for value in values]
        )
        self.a = adj.weight.to(x.dtype).unsqueeze(1)
        self.s = self.a.expand(-1, trials)
        self.matrix = self.a[:, 0]
        if scheme.structure == "frozen":
            self.matrix, self.fixed = adj.normalized(scheme.normalization, x.dtype), self._frozen()

    def half_steps(
        self, plan: tuple[HalfStep, ...], record: bool, recompute: bool
    ) -> Iterator[tuple[HalfStep, Tensor, Tensor]]:
        """Yield H and S after each half-step of ``plan`` that ends; after the last only, unless ``record``."""
        ends = [step for step in plan if step.ends] if record else plan[-1:]
        found: tuple[Tensor, ...] = _Run.apply(
            self.by_trial, self.matrix, self.scalars, self.adj, self.scheme, plan, record, recompute
        )
        h, s = self.h, self.s
        for step, value in zip(ends, found, strict=True):
            if step.kind == "H":
                h = value.permute(1, 2, 0)
            else:
                s = value.t()
            yield step, h, s

    def terms(self, h: Tensor, s: Tensor) -> tuple[Tensor, ...]:
        self.lam, self.gamma, self.mu1, self.mu2, self.eta1, self.eta2 = self.scalars
        return super().terms(h, s)


class _Work:
    """What the forward and the backward pass share: kernels, graph, coefficients, H and S after each step.

    Features are (T, steps, N · width) and entries (T, steps, E). Of a :class:`~asgnn.graphs.piece.Piece` only the rows
    of its own nodes are computed. Those of borrowed nodes are exchanged between two stages: H and e forward, and
    backward what :func:`~asgnn.kernels.cpu.asmp.spread` makes, because both passes read the rows of neighbours and
    write their own.
    """

    def __init__(
        self, x: Tensor, matrix: Tensor, scalars: Tensor, adj: Adjacency, scheme: Scheme, plan: Plan, kept: bool
    ) -> None:
        kernels, tasks = on_cpu("asmp"), on_cpu("tasks")
        assert kernels is not None
        assert tasks is not None
        self.kernels, self.crew, self.plan, self.dtype = kernels, tasks.Crew, plan, x.dtype
        self.trials, self.rows, self.channels = x.shape
        self.nodes, self.halo = adj.num_nodes, adj.halo if isinstance(adj, Piece) else None
        self.width = np.uintp(-(-self.channels // kernels.WIDTH) * kernels.WIDTH)
        self.row = self.nodes * int(self.width)
        self.crow, self.col = adj.crow[: self.rows + 1].numpy().view(np.uint64), adj.blocks(1)[1].numpy()
        self.matrix, self.entries = matrix.contiguous().numpy(), int(self.crow[-1])
        self.ranges = tasks.ranges(self.crow)
        self.frozen, self.mcp = scheme.structure == "frozen", scheme.penalty == "mcp"
        self.variant = scheme.structure == "exact", self.mcp, MIN_STRENGTH
        self.c = self.new(8)
        kernels.coefficients(scalars.numpy(), *self.variant, self.c)
        self.x = self.padded(x)
        for features in self.x:
            self.borrow(features)
        # S starts as A, ū of the MCP penalty as 0, and e = ‖h − x‖² as 0 because H starts as X
        self.no_z = np.zeros_like(self.matrix) if self.mcp else self.matrix
        self.no_e = np.zeros(self.nodes, self.matrix.dtype)
        passes = plan.passes.copy()
        if not kept:  # every second step shares its memory
            passes[:, 3:] = np.where(passes[:, 3:] < 0, -1, passes[:, 3:] % 2)
        self.make_room(passes)

    def make_room(self, passes: Array) -> None:
        """Take memory for the results of ``passes``, whose last four columns are positions in it."""
        self.passes = passes
        steps_h, steps_s = (int(passes[:, last].max(initial=-1)) + 1 for last in (4, 6))
        self.h, self.mean = self.new(steps_h, self.row), self.new(steps_h, self.row)
        self.e, self.degree = self.new(steps_h, self.nodes), self.new(steps_h, self.nodes)
        self.z = self.new(steps_s, self.entries)

    def free(self) -> None:
        """Give back the memory of all results."""
        self.h = self.mean = self.e = self.degree = self.z = self.new(0, 0)

    def after(self, number: int) -> _Start:
        """Copies of H, e and z after the pass ``number``, each ``None`` if it is still that of the start."""
        h, z = (int(self.passes[number, at]) for at in (4, 6))
        return (
            None if h < 0 else self.h[:, h].copy(),
            None if h < 0 else self.e[:, h].copy(),
            None if z < 0 else self.z[:, z].copy(),
        )

    def compute_again(self, part: range, start: _Start) -> None:
        """Do the passes of ``part`` again from ``start``, and keep their results."""
        self.free()
        passes = self.plan.passes[part.start : part.stop].copy()
        for columns, first in (((3, 4), passes[0, 3]), ((5, 6), passes[0, 5])):
            if first >= 0:  # what it starts from has the first place
                passes[:, columns] -= first
        self.make_room(passes)
        for room, begin in zip((self.h, self.e, self.z), start, strict=True):
            if begin is not None:
                room[:, 0] = begin
        self.forward(range(len(passes)))

    def new(self, *shape: int) -> Array:
        found: Array = torch.empty(self.trials, *shape, dtype=self.dtype).numpy()
        return found

    def zeros(self, *shape: int) -> Array:
        found: Array = torch.zeros(self.trials, *shape, dtype=self.dtype).numpy()
        return found

    def padded(self, x: Tensor) -> Array:
        """(T, rows, C) → (T, N · width), with 0 in the rows of borrowed nodes."""
        if self.width == self.channels and self.rows == self.nodes:
            return x.contiguous().view(self.trials, -1).numpy()
        out = torch.zeros(self.trials, self.nodes, int(self.width), dtype=self.dtype)
        out[:, : self.rows, : self.channels] = x
        return out.view(self.trials, -1).numpy()

    def cut(self, h: Array) -> Tensor:
        """(T, N · width) → (T, rows, C)."""
        whole = torch.from_numpy(h).view(self.trials, self.nodes, int(self.width))
        return whole[:, : self.rows, : self.channels].contiguous()

    def borrow(self, features: Array, *values: Array) -> None:
        """Fill the rows of borrowed nodes of ``features`` (N · width) and ``values`` (N,), each of one trial."""
        if self.halo is not None:
            whole = torch.from_numpy(features).view(self.nodes, int(self.width))
            whole[self.rows :, self.channels :] = 0  # the padding
            self.halo.fill(whole[:, : self.channels], *(torch.from_numpy(value).unsqueeze(1) for value in values))

    def state(self, trial: int) -> tuple[Any, ...]:
        """The arguments of the kernels of an adaptive structure."""
        return (
            self.passes, self.crow, self.col, self.matrix, self.x[trial], self.no_z, self.no_e, self.h[trial],
            self.e[trial], self.z[trial], self.mean[trial], self.degree[trial], self.c[trial], self.width,
        )  # fmt: skip

    def run(
        self,
        stages: range,
        kernel: Callable[[int, int, int, int, int, int], None],
        before: Callable[[int, int], None] | None = None,
    ) -> None:
        """Call ``kernel(trial, part, begin, end, first, last)`` for all trials, stages and ranges of nodes.

        A stage ends on all ranges before the next begins. Trials or, of a single one, ranges are computed on several
        threads. ``before(trial, stage)`` is called before each stage.
        """
        parts = list(enumerate(self.ranges))
        with self.crew(max(self.trials, len(parts)), self.trials * self.entries * int(self.width)) as crew:

            def run(trial: int) -> None:
                if before is None and len(parts) == 1:
                    kernel(trial, 0, stages.start, stages.stop, *parts[0][1])
                    return
                for stage in stages:
                    if before is not None:
                        before(trial, stage)
                    calls = [(trial, part, stage, stage + 1, *nodes) for part, nodes in parts]
                    if self.trials == 1:
                        crew.map(kernel, calls)
                    else:
                        for call in calls:
                            kernel(*call)

            crew.map(run, [(trial,) for trial in range(self.trials)])

    def forward(self, passes: range) -> None:
        kernels = self.kernels
        if self.frozen:

            def kernel(trial: int, part: int, *stage: int) -> None:
                kernels.frozen_forward(
                    *stage, self.crow, self.col, self.matrix, self.x[trial], self.h[trial], self.mean[trial],
                    self.c[trial], self.width,
                )  # fmt: skip

        else:
            forward, _ = kernels.passes_of(self.mcp, self.channels <= kernels.WIDTH)

            def kernel(trial: int, part: int, *stage: int) -> None:
                forward(*stage, *self.state(trial))

        def before(trial: int, stage: int) -> None:
            if stage > 0 and self.passes[stage - 1, 1]:
                step = self.passes[stage - 1, 4]
                self.borrow(self.h[trial, step], *(() if self.frozen else (self.e[trial, step],)))

        self.run(passes, kernel, None if self.halo is None else before)

    def structure(self, number: int) -> Tensor:
        """S after the pass ``number``, (T, E)."""
        out = self.new(self.entries)
        for trial in range(self.trials):
            z = self.z[trial, self.passes[number, 6]]
            self.kernels.weights(
                0, self.rows, self.crow, self.col, self.matrix, z, self.c[trial, 3:], self.mcp, out[trial]
            )
        return torch.from_numpy(out)


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
        half_steps: tuple[HalfStep, ...],
        record: bool,
        recompute: bool,
    ) -> tuple[Tensor, ...]:
        plan, needed = plan_of(half_steps, record), any(ctx.needs_input_grad)
        # recorded steps are wanted anyway, and the loop over the steps of a frozen structure counts on all of them
        parts = segments(len(plan.passes), recompute and not record and scheme.structure != "frozen")
        kept = record or scheme.structure == "frozen" or (needed and len(parts) == 1)
        work = _Work(x, matrix, scalars, adj, scheme, plan, kept)
        starts: list[_Start] = [(None, None, None)]
        for part in parts:
            work.forward(part)
            if needed and part.stop < len(plan.passes):
                starts.append(work.after(part.stop - 1))
        results = tuple(
            work.cut(work.h[:, work.passes[number, 4]]) if kind == "H" else work.structure(number)
            for number, kind in plan.results
        )
        if needed:
            if not kept:
                work.free()
            ctx.save_for_backward(x, matrix, scalars)
            ctx.work, ctx.adj, ctx.scheme, ctx.half_steps, ctx.record = work, adj, scheme, half_steps, record
            ctx.parts, ctx.starts = parts, starts
        return results

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # a derivative of this derivative is wanted
            return (*_by_edges(ctx, grads), None, None, None, None, None)
        work, scalars = ctx.work, ctx.saved_tensors[2]
        results = work.plan.results
        parts = np.zeros((work.trials, len(work.ranges), 8))
        to_x = work.zeros(work.row)
        to_matrix = work.zeros(work.entries if ctx.needs_input_grad[1] else 0)
        added = {
            key: work.padded(grad) if key[1] == "H" else (grad + grad[:, ctx.adj.reverse]).numpy()
            for key, grad in zip(results, grads, strict=True)
        }
        if work.frozen:
            _frozen_back(work, ctx.adj, added, to_x, to_matrix, parts)
        else:
            _adaptive_back(work, list(zip(ctx.parts, ctx.starts, strict=True)), added, to_x, to_matrix, parts)
        to_scalars = None
        if ctx.needs_input_grad[2]:
            sums = parts.sum(1)
            sums[:, 3:] /= 2
            to_scalars = torch.empty_like(scalars)
            work.kernels.coefficients_back(scalars.numpy(), *work.variant, sums, to_scalars.numpy())
        by_matrix = torch.from_numpy(to_matrix).sum(0) if ctx.needs_input_grad[1] else None
        return work.cut(to_x), by_matrix, to_scalars, None, None, None, None, None


_Start = tuple[Array | None, Array | None, Array | None]
Added = dict[tuple[int, str], Array]
"""The gradients of the results; those of S_ij and S_ji are added up."""


def _adaptive_back(
    work: _Work, again: list[tuple[range, _Start]], added: Added, to_x: Array, to_matrix: Array, parts: Array
) -> None:
    """Write the gradients in X and A and the sums for those in the coefficients; the kernels count entries twice."""
    entries = work.entries
    _, backward = work.kernels.passes_of(work.mcp, work.channels <= work.kernels.WIDTH)
    last = len(work.plan.passes) - 1, "H"
    # without recorded steps the gradient of the last H is the only one
    only_last = added.keys() == {last}
    grad = added[last] if only_last else work.zeros(work.row)
    to_s = work.zeros(entries)
    to_z = work.zeros(entries) if work.mcp else to_s
    by_degree, along_mean = work.new(work.row), work.new(work.nodes)

    def kernel(trial: int, part: int, *stage: int) -> None:
        backward(
            *stage, *work.state(trial), by_degree[trial], along_mean[trial], grad[trial], to_s[trial], to_z[trial],
            to_x[trial], to_matrix[trial], parts[trial, part],
        )  # fmt: skip

    def before(trial: int, stage: int) -> None:
        number = len(work.passes) - 1 - stage // 2
        if stage % 2 == 1:
            if work.passes[number, 1]:
                work.borrow(by_degree[trial], along_mean[trial])
        elif not only_last:
            for key, total in (((number, "H"), grad), ((number, "S"), to_s)):
                if key in added:
                    total[trial] += added[key][trial]

    for part, start in reversed(again):
        if len(again) > 1:
            work.compute_again(part, start)
        work.run(range(2 * len(part)), kernel, None if only_last and work.halo is None else before)
    to_x += grad  # H starts as X
    if to_matrix.size:
        to_matrix += to_s
        to_matrix /= 2


def _frozen_back(work: _Work, adj: Adjacency, added: Added, to_x: Array, to_matrix: Array, parts: Array) -> None:
    stages = len(work.passes)
    transposed = work.matrix[adj.reverse.numpy()]
    grads = work.zeros(2, work.row)

    def kernel(trial: int, part: int, *stage: int) -> None:
        work.kernels.frozen_backward(
            *stage, work.crow, work.col, transposed, work.x[trial], work.h[trial], work.mean[trial], work.c[trial],
            work.width, grads[trial], to_x[trial], to_matrix[trial], parts[trial, part],
        )  # fmt: skip

    def before(trial: int, stage: int) -> None:
        key = stages - 1 - stage, "H"
        if key in added and len(added) > 1:
            grads[trial, stage % 2] += added[key][trial]
        work.borrow(grads[trial, stage % 2])

    if len(added) == 1:
        grads[:, 0] = added[stages - 1, "H"]
    work.run(range(stages), kernel, before if len(added) > 1 or work.halo is not None else None)
    to_x += grads[:, stages % 2]


def _by_edges(ctx: Any, grads: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    """The derivative in the three tensors as a function that can be differentiated again."""
    # views, because one of the tensors may have been computed from another
    x, matrix, scalars = inputs = [tensor.view_as(tensor) for tensor in ctx.saved_tensors]
    frozen = ctx.scheme.structure == "frozen"
    adj = ctx.adj if frozen else replace(ctx.adj, weight=matrix)
    steps = EdgeSteps(x, adj, ASMPParams(*scalars), ctx.scheme)
    if frozen:
        steps.fixed = lambda h: adj.matmul(matrix, h.flatten(1)).view_as(h)
    h, s, results = steps.h, steps.s, []
    for position, step in enumerate(ctx.half_steps):
        if step.kind == "H":
            h = steps.h_step(h, s)
        else:
            s = steps.s_step(h, s)
        if step.ends if ctx.record else position == len(ctx.half_steps) - 1:
            results.append(h.permute(2, 0, 1) if step.kind == "H" else s.t())
    needed = [tensor for tensor, needs in zip(inputs, ctx.needs_input_grad, strict=False) if needs]
    found = iter(torch.autograd.grad(results, needed, grads, create_graph=True, allow_unused=True))
    return tuple(next(found) if needs else None for needs in ctx.needs_input_grad[:3])
