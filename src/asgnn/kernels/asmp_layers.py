"""The layers of ASMP for q on a GPU: a structure step and the feature step after it are one kernel.

S is symmetric, and the backward pass needs only the gradient in S_ij plus that in S_ji. It computes this sum for both
entries from the rows of i and j, as :mod:`asgnn.kernels.cpu.asmp` does, whose notation this module shares: nothing is
read or written through the transposed order, whose scattered accesses would move eight times the bytes. Of each pass H,
D⁻¹SH and z are kept; S follows from z.

Layouts: x and h are (N, C, T), z is (E, T), values of nodes are (N, T); the coefficients are (8, T). A program handles
one node and a block of trials. All sums have a fixed order. What is read once is marked as such, so that the values of
neighbours stay in the cache instead: of these, a few bytes are wanted of each 32 that move.

Most of the time is spent waiting for memory, so a program asks early. The place of a row, its columns and the values of
its neighbours depend on each other; in a long row, columns are loaded while the entries before them are computed. All
else is loaded together with the rows of the neighbours, and before anything is stored: the compiler keeps the order of
loads and stores, and a store waits for its value. With several trials, registers are scarce, so what is only used after
the last entry is loaded there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from asgnn.kernels.tiles import TILE, block, columns_of, places_of, row_of, rows_of, tile

if TYPE_CHECKING:
    from asgnn.graphs.adjacency import Adjacency

WARPS = 1  # per program


@dataclass(frozen=True, eq=False)
class Pass:
    """What a pass reads and writes; see :class:`asgnn.asmp.passes.Plan`.

    Attributes:
        structure, features: which steps it does, the structure step first.
        h, e: H and e = ‖h − x‖² of each node before the pass; e is ``None`` if the pass does no structure step.
        z: of S before the pass; ``None`` at the start, where S is A.
        z_new: z after the pass.
        h_new, e_new, mean, degree: H, e, D⁻¹SH and D after a feature step.
    """

    structure: bool
    features: bool
    h: Tensor
    e: Tensor | None
    z: Tensor | None
    z_new: Tensor | None
    h_new: Tensor | None
    e_new: Tensor | None
    mean: Tensor | None
    degree: Tensor | None


def forward(
    x: Tensor, weight: Tensor, c: Tensor, adj: Adjacency, mcp: bool, *, structure: bool, features: bool,
    h: Tensor, e: Tensor | None, z: Tensor | None,
) -> Pass:  # fmt: skip
    """Do a pass: ``x`` (N, C, T), ``weight`` (E,) and ``c`` (8, T) are the same for all passes."""
    entries, (nodes, channels, trials) = adj.col.numel(), x.shape
    z_new = x.new_empty(entries, trials) if structure else z
    h_new, mean = (torch.empty_like(x) if features else None for _ in range(2))
    e_new, degree = (x.new_empty(nodes, trials) if features else None for _ in range(2))
    shape, blocks = tile(x, warps=WARPS, per_row=entries / nodes)
    _step[nodes, blocks](
        adj.crow, adj.col, weight, h, x, e, z, c, z_new, h_new, mean, degree, e_new, channels, trials,
        MCP=mcp, STRUCTURE=structure, FEATURES=features, START=z is None, ONE_TRIAL=trials == 1, **shape,
    )  # fmt: skip
    return Pass(structure, features, h, e, z, z_new, h_new, e_new, mean, degree)


@dataclass(frozen=True, eq=False)
class Gradients:
    """What the backward pass carries from pass to pass, all changed in place.

    Attributes:
        h: (N, C, T) the gradient in H.
        x: (N, C, T) the gradient in X.
        s: (E, T) the gradient in S_ij plus that in S_ji.
        z: (E, T) the same in z, for the penalty "mcp" only.
        weight: (E, T) twice the gradient in A; ``None`` if it is not needed.
        parts: (8, N, T) the gradients in the coefficients of each node; the last five twice.
    """

    h: Tensor
    x: Tensor
    s: Tensor
    z: Tensor | None
    weight: Tensor | None
    parts: Tensor


def backward(done: Pass, x: Tensor, weight: Tensor, c: Tensor, adj: Adjacency, mcp: bool, grads: Gradients) -> None:
    """The derivative of a pass."""
    nodes, channels, trials = x.shape
    by_degree = along_mean = None
    part = grads.parts.stride(0)
    if done.features:
        by_degree, along_mean = torch.empty_like(x), x.new_empty(nodes, trials)
        shape, blocks = tile(x)
        together = max(1, TILE // (shape["CHANNELS"] * shape["TRIALS"]))
        _spread[triton.cdiv(nodes, together), blocks](
            done.h, x, done.mean, done.degree, c, grads.h, by_degree, along_mean, grads.x, grads.parts, part,
            nodes, channels, trials,
            NODES=together, CHANNELS=shape["CHANNELS"], TRIALS=shape["TRIALS"], ONE_TRIAL=trials == 1, num_warps=4,
        )  # fmt: skip
    given = not done.structure and done.z is None
    to_s = None if given and grads.weight is None else grads.s
    shape, blocks = tile(x, warps=WARPS, per_row=adj.col.numel() / nodes)
    _step_back[nodes, blocks](
        adj.crow, adj.col, weight, done.h, x, done.e, done.z, done.z_new, c, by_degree, along_mean, grads.h, to_s,
        grads.z, grads.x, grads.weight, grads.parts, part, channels, trials,
        MCP=mcp, STRUCTURE=done.structure, FEATURES=done.features, GIVEN=given, START=done.z is None,
        TO_S=to_s is not None, TO_WEIGHT=grads.weight is not None, ONE_TRIAL=trials == 1, **shape,
    )  # fmt: skip


def structure_of(z: Tensor, weight: Tensor, c: Tensor, adj: Adjacency, mcp: bool) -> Tensor:
    """S (E, T), from z."""
    s = c[4] * weight.unsqueeze(1) * (z.clamp(0.25, 1).rsqrt() - 1) if mcp else z.clamp(0, 1)
    return torch.where(adj.loops.unsqueeze(1), s.new_ones(()), s)


@triton.jit
def _coefficient(c, i: tl.constexpr, t, trials):
    """(1, T) coefficient i of each trial."""
    return tl.load(c + i * trials + t, mask=t < trials, other=0.0)[None, :]


@triton.jit
def _weight_of(z, scaled, MCP: tl.constexpr):
    """S of an entry that is no self-loop; ``scaled`` is c₁A."""
    s = tl.minimum(tl.maximum(z, 0.25 if MCP else 0.0), 1.0)
    if MCP:
        s = scaled * (1 / tl.sqrt(s) - 1)
    return s


@triton.jit
def _step(
    crow, col, weight, h, x, e, z, c, z_new, h_new, mean, degree, e_new, channels, trials,
    MCP: tl.constexpr, STRUCTURE: tl.constexpr, FEATURES: tl.constexpr, START: tl.constexpr,
    ENTRIES: tl.constexpr, CHANNELS: tl.constexpr, TRIALS: tl.constexpr, ONE_TRIAL: tl.constexpr,
):  # fmt: skip
    node, first, length, columns = row_of(crow, col, ENTRIES)
    t, t_mask, inside, offset = block(channels, trials, CHANNELS, TRIALS, ONE_TRIAL)
    c1 = _coefficient(c, 4, t, trials)
    if STRUCTURE:
        c0 = _coefficient(c, 3, t, trials)
        c2 = _coefficient(c, 5, t, trials)
        c3 = _coefficient(c, 6, t, trials)
        c4 = _coefficient(c, 7, t, trials)
    if FEATURES:
        keep = _coefficient(c, 0, t, trials)
        spread = _coefficient(c, 1, t, trials)
        pull = _coefficient(c, 2, t, trials)
    row_offset = node * channels * trials + offset
    at_node = node * trials + t
    h_i = tl.load(h + row_offset, mask=inside, other=0.0)
    if STRUCTURE:
        e_i = tl.load(e + at_node, mask=t_mask, other=0.0)[None, :]
    if FEATURES and ONE_TRIAL:
        x_i = tl.load(x + row_offset, mask=inside, other=0.0)
    total = tl.zeros((CHANNELS, TRIALS), dtype=h.dtype.element_ty)
    sum_s = tl.zeros((TRIALS,), dtype=h.dtype.element_ty)
    for begin in range(0, length, ENTRIES):
        k, valid, mask, at = places_of(first, begin, length, t, t_mask, trials, ENTRIES)
        j = columns.to(tl.int64)
        columns = columns_of(col + first, begin + ENTRIES, length, ENTRIES)
        h_j = rows_of(h, j, valid, inside, offset, channels, trials)
        a = tl.load(weight + k, mask=valid, other=0.0, eviction_policy="evict_first")[:, None]
        old = a
        if not START:
            old = tl.load(z + at, mask=mask, other=0.0)
        if STRUCTURE:
            at_j = j[:, None] * trials + t[None, :]
            e_j = tl.load(e + at_j, mask=mask, other=0.0, eviction_policy="evict_last")
        scaled = c1 * a
        if STRUCTURE:
            difference = h_i[None, :, :] - h_j
            square = tl.sum(difference * difference, axis=1)
            v = c2 + c3 * (e_i + e_j) + c4 * square
            if MCP:
                value = v
                if not START:
                    value += c0 * old
            else:
                value = c0 * tl.minimum(tl.maximum(old, 0.0), 1.0) + scaled - v
            tl.store(z_new + at, value, mask=mask)
            s = _weight_of(value, scaled, MCP)
        elif START:
            s = a + tl.zeros((ENTRIES, TRIALS), dtype=h.dtype.element_ty)
        else:
            s = _weight_of(old, scaled, MCP)
        if FEATURES:
            s = tl.where(mask, tl.where((j == node)[:, None], 1.0, s), 0.0)
            sum_s += tl.sum(s, axis=0)
            total += tl.sum(s[:, None, :] * h_j, axis=0)
    if FEATURES:
        if not ONE_TRIAL:
            x_i = tl.load(x + row_offset, mask=inside, other=0.0)
        average = total / tl.where(t_mask, sum_s, 1.0)[None, :]
        new = keep * h_i
        new += spread * average + pull * x_i
        far = tl.where(inside, new - x_i, 0.0)
        tl.store(h_new + row_offset, new, mask=inside)
        tl.store(mean + row_offset, average, mask=inside)
        tl.store(degree + at_node, sum_s, mask=t_mask)
        tl.store(e_new + at_node, tl.sum(far * far, axis=0), mask=t_mask)


@triton.jit
def _spread(
    h, x, mean, degree, c, grad, by_degree, along_mean, to_x, parts, part, nodes, channels, trials,
    NODES: tl.constexpr, CHANNELS: tl.constexpr, TRIALS: tl.constexpr, ONE_TRIAL: tl.constexpr,
):  # fmt: skip
    """The part of the derivative of a feature step that needs no neighbours: see :mod:`asgnn.kernels.cpu.asmp`."""
    i = tl.program_id(0).to(tl.int64) * NODES + tl.arange(0, NODES)
    t, t_mask, inside, offset = block(channels, trials, CHANNELS, TRIALS, ONE_TRIAL)
    valid = i < nodes
    mask = valid[:, None, None] & inside[None, :, :]
    at = i[:, None, None] * channels * trials + offset[None, :, :]
    node_mask = valid[:, None] & t_mask[None, :]
    at_node = i[:, None] * trials + t[None, :]
    g = tl.load(grad + at, mask=mask, other=0.0)
    scale = _coefficient(c, 1, t, trials) / tl.load(degree + at_node, mask=node_mask, other=1.0)
    product = tl.sum(g * tl.load(mean + at, mask=mask, other=0.0), axis=1)
    tl.store(by_degree + at, g * scale[:, None, :], mask=mask)
    tl.store(along_mean + at_node, scale * product, mask=node_mask)
    c0 = _coefficient(c, 0, t, trials)[:, None, :]
    c2 = _coefficient(c, 2, t, trials)[:, None, :]
    tl.store(to_x + at, tl.load(to_x + at, mask=mask, other=0.0) + c2 * g, mask=mask)
    tl.store(grad + at, c0 * g, mask=mask)
    out = parts + at_node
    on_h = tl.sum(g * tl.load(h + at, mask=mask, other=0.0), axis=1)
    tl.store(out, tl.load(out, mask=node_mask, other=0.0) + on_h, mask=node_mask)
    out += part
    tl.store(out, tl.load(out, mask=node_mask, other=0.0) + product, mask=node_mask)
    out += part
    on_x = tl.sum(g * tl.load(x + at, mask=mask, other=0.0), axis=1)
    tl.store(out, tl.load(out, mask=node_mask, other=0.0) + on_x, mask=node_mask)


@triton.jit
def _before(x, to_x, e, parts, part, row_offset, at_node, inside, t_mask):
    """Of a node: x, its gradient so far, e, and the gradients so far in the five coefficients of a structure step.

    They are loaded at once, before any of them is stored: a load after a store would wait for the loads before it.
    """
    x_i = tl.load(x + row_offset, mask=inside, other=0.0)
    to_x_i = tl.load(to_x + row_offset, mask=inside, other=0.0)
    e_i = tl.load(e + at_node, mask=t_mask, other=0.0)
    at = parts + at_node + part + part + part
    to_c0 = tl.load(at, mask=t_mask, other=0.0)
    at += part
    to_c1 = tl.load(at, mask=t_mask, other=0.0)
    at += part
    to_c2 = tl.load(at, mask=t_mask, other=0.0)
    at += part
    to_c3 = tl.load(at, mask=t_mask, other=0.0)
    at += part
    return x_i, to_x_i, e_i, to_c0, to_c1, to_c2, to_c3, tl.load(at, mask=t_mask, other=0.0)


@triton.jit
def _step_back(
    crow, col, weight, h, x, e, z, z_new, c, by_degree, along_mean, grad, to_s, to_z, to_x, to_weight, parts, part,
    channels, trials,
    MCP: tl.constexpr, STRUCTURE: tl.constexpr, FEATURES: tl.constexpr, GIVEN: tl.constexpr, START: tl.constexpr,
    TO_S: tl.constexpr, TO_WEIGHT: tl.constexpr,
    ENTRIES: tl.constexpr, CHANNELS: tl.constexpr, TRIALS: tl.constexpr, ONE_TRIAL: tl.constexpr,
):  # fmt: skip
    """The derivative of :func:`_step`, after :func:`_spread` if there was a feature step."""
    node, first, length, columns = row_of(crow, col, ENTRIES)
    t, t_mask, inside, offset = block(channels, trials, CHANNELS, TRIALS, ONE_TRIAL)
    c1 = _coefficient(c, 4, t, trials)
    if STRUCTURE:
        c0 = _coefficient(c, 3, t, trials)
        c3 = _coefficient(c, 6, t, trials)
        c4 = _coefficient(c, 7, t, trials)
    zero = tl.zeros((TRIALS,), dtype=h.dtype.element_ty)
    nothing = tl.zeros((ENTRIES, TRIALS), dtype=h.dtype.element_ty)
    row_offset = node * channels * trials + offset
    at_node = node * trials + t
    h_i = tl.load(h + row_offset, mask=inside, other=0.0)
    if FEATURES:
        by_degree_i = tl.load(by_degree + row_offset, mask=inside, other=0.0)
        along_i = tl.load(along_mean + at_node, mask=t_mask, other=0.0)[None, :]
    if STRUCTURE and ONE_TRIAL:
        x_i, to_x_i, e_i, to_c0, to_c1, to_c2, to_c3, to_c4 = _before(
            x, to_x, e, parts, part, row_offset, at_node, inside, t_mask
        )
    if (STRUCTURE or FEATURES) and ONE_TRIAL:
        grad_i = tl.load(grad + row_offset, mask=inside, other=0.0)
    from_s = tl.zeros((CHANNELS, TRIALS), dtype=h.dtype.element_ty)
    from_h = from_s
    sum_m, part0, part1, moved = zero, zero, zero, zero
    for begin in range(0, length, ENTRIES):
        k, valid, mask, at = places_of(first, begin, length, t, t_mask, trials, ENTRIES)
        j = columns.to(tl.int64)
        columns = columns_of(col + first, begin + ENTRIES, length, ENTRIES)
        h_j = rows_of(h, j, valid, inside, offset, channels, trials)
        if FEATURES:
            by_degree_j = rows_of(by_degree, j, valid, inside, offset, channels, trials)
        a = tl.load(weight + k, mask=valid, other=0.0, eviction_policy="evict_first")[:, None]
        by_s = nothing
        if TO_S:
            by_s = tl.load(to_s + at, mask=mask, other=0.0)
            if FEATURES:
                at_j = j[:, None] * trials + t[None, :]
                along_j = tl.load(along_mean + at_j, mask=mask, other=0.0, eviction_policy="evict_last")
        if STRUCTURE or (FEATURES and not GIVEN):
            new = tl.load(z_new + at, mask=mask, other=0.0)
        old = a
        if STRUCTURE:
            if not START:
                old = tl.load(z + at, mask=mask, other=0.0)
            if MCP:
                by_z = tl.load(to_z + at, mask=mask, other=0.0)
            if TO_WEIGHT:
                by_weight = tl.load(to_weight + at, mask=mask, other=0.0)
        edge = mask & (j != node)[:, None]
        scaled = c1 * a
        if FEATURES:
            if TO_S:
                both = by_degree_i[None, :, :] * h_j + by_degree_j * h_i[None, :, :]
                by_s += tl.sum(both, axis=1) - (along_i + along_j)
            s = a + nothing
            if not GIVEN:
                s = _weight_of(new, scaled, MCP)
            s = tl.where(mask, tl.where((j == node)[:, None], 1.0, s), 0.0)
            from_h += tl.sum(s[:, None, :] * by_degree_j, axis=0)
        if STRUCTURE:
            if MCP:
                clipped = tl.minimum(tl.maximum(new, 0.25), 1.0)
                root = 1 / tl.sqrt(clipped)
                by_a = tl.where(edge, by_s * (root - 1), 0.0)
                slope = tl.where(new == clipped, 0.5 * scaled * root * root * root * by_s, 0.0)
                m = tl.where(edge, slope - by_z, 0.0)
                tl.store(to_z + at, tl.where(edge, -c0 * m, by_z), mask=mask)
                tl.store(to_s + at, nothing, mask=mask)
                if not START:
                    part0 -= tl.sum(m * old, axis=0)
            else:
                m = tl.where(edge & (new >= 0) & (new <= 1), by_s, 0.0)
                by_a = m
                tl.store(to_s + at, c0 * m, mask=mask)
                part0 += tl.sum(m * tl.minimum(tl.maximum(old, 0.0), 1.0), axis=0)
            part1 += tl.sum(by_a * a, axis=0)
            if TO_WEIGHT:
                tl.store(to_weight + at, by_weight + c1 * by_a, mask=mask)
            difference = h_i[None, :, :] - h_j
            pulled = m[:, None, :] * difference
            from_s += tl.sum(pulled, axis=0)
            moved += tl.sum(tl.sum(pulled * difference, axis=1), axis=0)
            sum_m += tl.sum(m, axis=0)
        elif TO_S:
            tl.store(to_s + at, by_s, mask=mask)
    if STRUCTURE and not ONE_TRIAL:
        x_i, to_x_i, e_i, to_c0, to_c1, to_c2, to_c3, to_c4 = _before(
            x, to_x, e, parts, part, row_offset, at_node, inside, t_mask
        )
    if STRUCTURE or FEATURES:
        if not ONE_TRIAL:
            grad_i = tl.load(grad + row_offset, mask=inside, other=0.0)
        result = grad_i + from_h
        if STRUCTURE:
            by_x = 2 * c3 * sum_m[None, :] * (h_i - x_i)
            result -= 2 * c4 * from_s + by_x
            tl.store(to_x + row_offset, to_x_i + by_x, mask=inside)
            out = parts + at_node + part + part + part
            tl.store(out, to_c0 + part0, mask=t_mask)
            out += part
            tl.store(out, to_c1 + part1, mask=t_mask)
            out += part
            tl.store(out, to_c2 - sum_m, mask=t_mask)
            out += part
            tl.store(out, to_c3 - 2 * sum_m * e_i, mask=t_mask)
            out += part
            tl.store(out, to_c4 - moved, mask=t_mask)
        tl.store(grad + row_offset, result, mask=inside)
