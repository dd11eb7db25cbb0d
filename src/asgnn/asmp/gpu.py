"""The GPU backend, with kernels for each half-step, or for a structure step and the feature step after it.

For q with alternating updates, all half-steps are one operation with the kernels of :mod:`asgnn.kernels.asmp_layers`;
otherwise each is one of :mod:`asgnn.kernels.asmp_steps`. First derivatives only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from asgnn.asmp.edges import EdgeSteps
from asgnn.asmp.objective import MIN_DEGREE
from asgnn.asmp.params import HalfStep
from asgnn.asmp.passes import of_q, plan_of, segments
from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.piece import Piece
from asgnn.kernels import load


class GpuSteps(EdgeSteps):
    """:class:`~asgnn.asmp.edges.EdgeSteps` with the half-steps as kernels."""

    def prepare(self) -> None:
        self.steps, trials = load("asmp_steps"), self.x.size(2)

        def rows(*values: Tensor) -> Tensor:
            return torch.stack([value.expand(trials) for value in values])

        # the rows of a piece are exchanged between two half-steps
        self.all_at_once = of_q(self.scheme) and not isinstance(self.adj, Piece)
        of_h = 1 - 2 * self.eta1 - 2 * self.eta1 * self.lam, 2 * self.eta1 * self.lam, 2 * self.eta1
        if self.scheme.structure == "frozen":
            self.h_coefficients, self.s = rows(*of_h), self.s.contiguous()
            return
        self.weight = self.a[:, 0].contiguous()
        if self.mcp:
            size, theta, trust = self.averaging()
            size = theta * size
            of_s = 1 - theta, trust, size * self.mu1, size / 2, size * self.lam / 2
        else:
            exact = self.scheme.structure == "exact"
            size = 1 / (2 * (self.gamma + self.mu2)) if exact else self.eta2
            s_factor = torch.zeros_like(size) if exact else 1 - 2 * size * (self.gamma + self.mu2)
            of_s = s_factor, 2 * size * self.gamma, size * self.mu1, size / 2, size * self.lam / 2
        if self.all_at_once:
            self.coefficients = rows(*of_h, *of_s)
            return
        self.h_coefficients, self.s = rows(*of_h), self.s.contiguous()
        self.s_coefficients = rows(*of_s[:3], size * self.lam) if self.scheme.objective == "paper" else rows(*of_s)
        if self.mcp:
            self.u = torch.zeros_like(self.s)

    def h_step(self, h: Tensor, s: Tensor) -> Tensor:
        out: Tensor = self.steps.HStep.apply(h, self.x, s, self.h_coefficients, self.adj, MIN_DEGREE)
        return out

    def s_step(self, h: Tensor, s: Tensor) -> Tensor:
        if self.scheme.objective == "paper":
            out: Tensor = self.steps.PaperSStep.apply(h, s, self.s_coefficients, self.weight, self.adj, MIN_DEGREE)
            return out
        parts = self.s_coefficients, self.weight, self.adj, self.mcp
        if self.mcp:
            out, self.u = self.steps.DegreeSStep.apply(h, self.x, self.u, *parts)
        else:
            out, _ = self.steps.DegreeSStep.apply(h, self.x, s, *parts)
        return out

    def half_steps(
        self, plan: tuple[HalfStep, ...], record: bool, recompute: bool
    ) -> Iterator[tuple[HalfStep, Tensor, Tensor]]:
        """Yield H and S after each half-step of ``plan`` that ends; after the last only, unless ``record``."""
        ends = [step for step in plan if step.ends] if record else plan[-1:]
        found: tuple[Tensor, ...] = _Layers.apply(
            self.x, self.weight, self.coefficients, self.adj, self.mcp, plan, record, recompute
        )
        h, s = self.h, self.s
        for step, value in zip(ends, found, strict=True):
            if step.kind == "H":
                h = value
            else:
                s = value
            yield step, h, s


class _Layers(torch.autograd.Function):
    """All half-steps of a plan; returns H and S after those that are results, (N, C, T) and (E, T)."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        c: Tensor,
        adj: Adjacency,
        mcp: bool,
        half_steps: tuple[HalfStep, ...],
        record: bool,
        recompute: bool,
    ) -> tuple[Tensor, ...]:
        x, c = x.contiguous(), c.contiguous()
        kernels, plan = load("asmp_layers"), plan_of(half_steps, record)
        parts = segments(len(plan.passes), recompute)
        needed = any(ctx.needs_input_grad)
        results: list[Tensor] = []
        starts: list[_State] = []
        kept: list[Any] = []
        state: _State = x, None, None
        for part in parts:
            starts.append(state)
            for number in part:
                done = _do(plan.passes[number], state, x, weight, c, adj, mcp)
                state = _after(done, state)
                if needed and len(parts) == 1:
                    # without the results, which would keep themselves alive through what they were computed from
                    kept.append(replace(done, h_new=None, e_new=None))
                for kind in (kind for wanted, kind in plan.results if wanted == number):
                    results.append(state[0] if kind == "H" else kernels.structure_of(state[2], weight, c, adj, mcp))
        if needed:
            ctx.save_for_backward(x, weight, c)
            ctx.adj, ctx.mcp, ctx.plan, ctx.parts, ctx.starts, ctx.kept = adj, mcp, plan, parts, starts, kept
        # a recorded H is also what the next pass read, and the backward pass reads it again
        return tuple(value.clone() if record else value for value in results)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, c = ctx.saved_tensors
        adj, mcp, passes, kernels = ctx.adj, ctx.mcp, ctx.plan.passes, load("asmp_layers")
        added = _added(ctx.plan.results, grads, adj)
        carried = kernels.Gradients(
            torch.zeros_like(x),
            torch.zeros_like(x),
            x.new_zeros(adj.col.numel(), x.size(2)),
            x.new_zeros(adj.col.numel(), x.size(2)) if mcp else None,
            x.new_zeros(adj.col.numel(), x.size(2)) if ctx.needs_input_grad[1] else None,
            x.new_zeros(8, x.size(0), x.size(2)),
        )
        for part, state in zip(reversed(ctx.parts), reversed(ctx.starts), strict=True):
            kept = list(ctx.kept)
            if not kept:
                for number in part:
                    kept.append(_do(passes[number], state, x, weight, c, adj, mcp))
                    state = _after(kept[-1], state)
            for number in reversed(part):
                for kind, total in (("H", carried.h), ("S", carried.s)):
                    if (number, kind) in added:
                        total += added.pop((number, kind))
                kernels.backward(kept.pop(), x, weight, c, adj, mcp, carried)
        carried.x.add_(carried.h)  # H starts as X
        to_c = carried.parts.sum(1)
        to_c[3:] /= 2
        to_weight = None if carried.weight is None else carried.weight.add_(carried.s).sum(1) / 2
        return carried.x, to_weight, to_c, None, None, None, None, None


_State = tuple[Tensor, Tensor | None, Tensor | None]
"""H, e and z; e and z are ``None`` at the start."""


def _do(step: Sequence[int], state: _State, x: Tensor, weight: Tensor, c: Tensor, adj: Adjacency, mcp: bool) -> Any:
    h, e, z = state
    structure, features = bool(step[0]), bool(step[1])
    if structure and e is None:  # H is X
        e = x.new_zeros(x.size(0), x.size(2))
    return load("asmp_layers").forward(x, weight, c, adj, mcp, structure=structure, features=features, h=h, e=e, z=z)


def _after(done: Any, state: _State) -> _State:
    return (done.h_new, done.e_new, done.z_new) if done.features else (state[0], state[1], done.z_new)


def _added(
    results: tuple[tuple[int, str], ...], grads: Sequence[Tensor], adj: Adjacency
) -> dict[tuple[int, str], Tensor]:
    """The gradients of the results; those of S_ij and S_ji are added up."""
    return {
        key: grad if key[1] == "H" else grad + grad.index_select(0, adj.reverse)
        for key, grad in zip(results, grads, strict=True)
    }
