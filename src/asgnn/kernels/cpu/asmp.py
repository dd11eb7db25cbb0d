"""The half-steps of ASMP on a CPU, for one trial and a range of nodes, and their derivatives.

Layouts: features are (N · width), flat, with the C columns of a node padded by zeros to ``width``, a multiple of WIDTH.
Values of entries are (E,) in the order of the adjacency. Indices are unsigned in the inner loops, because Numba lets
signed ones count from the end of an array: ``crow`` is uint64 and ``width`` is uintp. A structure step and the feature
step that follows it read the same features, so one pass over the entries does both.

Of the structure a pass keeps z: S before it is clipped to [0, 1], or ū of :mod:`asgnn.asmp.penalties` for the penalty
"mcp". S follows from z. It is symmetric, and so is what the backward pass needs: the gradient in S_ij plus that in
S_ji, which it computes for both entries from the rows of i and j. So nothing is transposed or scattered.

The coefficients: H⁺ = c₀H + c₁D⁻¹SH + c₂X, and with v = c₂ + c₃(e_i + e_j) + c₄‖h_i − h_j‖² and e_i = ‖h_i − x_i‖²,
z⁺ = c₀S + c₁A − v, or z⁺ = c₀z + v and S⁺ = c₁A·w(z⁺). Self-loops stay 1, hence D ≥ 1.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from asgnn.kernels.cpu.compiled import compiled, inlined
from asgnn.kernels.cpu.vectors import WIDTH, add, fill, load, mul, prefetch, store, sub, total

NONE, ONE, STEP = np.uintp(0), np.uintp(1), np.uintp(WIDTH)
AHEAD = np.uintp(64)  # entries whose rows are asked for in advance, because a large graph's are not in the cache
CACHED = 2**18  # numbers that are in the cache anyway
LINE = np.uintp(16)  # numbers from one request for a row to the next: a line of the cache has 16 floats


@compiled
def _sizes(gamma, mu2, eta2, exact, mcp, least):
    """γ′ and a′/a of :mod:`asgnn.asmp.penalties`, θ, and the step size of the structure step."""
    strength = gamma + mu2
    if not mcp:
        return strength, 1.0, 1.0, 1 / (2 * strength) if exact else eta2
    strength = max(strength, least)
    theta = 1.0 if exact else min(max(2 * eta2 * strength, 0.0), 1.0)
    return strength, min(max(gamma / strength, 0.0), 1.0), theta, theta / (2 * strength)


@compiled
def coefficients(scalars, exact, mcp, least, out):
    """Write the coefficients of the feature step (3) and of the structure step (5) of all trials into ``out`` (T, 8).

    Args:
        scalars: (6, T) λ, γ, μ₁, μ₂, η₁ and η₂.
        exact: whether a structure step minimises over S.
        mcp: whether the penalty is "mcp".
        least: the lower bound on γ′.
    """
    for t in range(scalars.shape[1]):
        lam, gamma, mu1, mu2, eta1, eta2 = [float(scalars[i, t]) for i in range(6)]
        strength, trust, theta, size = _sizes(gamma, mu2, eta2, exact, mcp, least)
        out[t, 0], out[t, 1], out[t, 2] = 1 - 2 * eta1 * (1 + lam), 2 * eta1 * lam, 2 * eta1
        if mcp:
            out[t, 3], out[t, 4] = 1 - theta, trust
        else:
            out[t, 3], out[t, 4] = 0.0 if exact else 1 - 2 * eta2 * strength, 2 * size * gamma
        out[t, 5], out[t, 6], out[t, 7] = size * mu1, size / 2, size * lam / 2


@compiled
def coefficients_back(scalars, exact, mcp, least, grad, to_scalars):
    """The derivative of :func:`coefficients`, from ``grad`` (T, 8) to ``to_scalars`` (6, T)."""
    for t in range(scalars.shape[1]):
        lam, gamma, mu1, mu2, eta1, eta2 = [float(scalars[i, t]) for i in range(6)]
        g = grad[t]
        strength, _, theta, size = _sizes(gamma, mu2, eta2, exact, mcp, least)
        by_size = g[5] * mu1 + g[6] / 2 + g[7] * lam / 2
        by_gamma, by_eta2, by_strength = 0.0, 0.0, 0.0
        if mcp:
            by_theta = by_size / (2 * strength) - g[3]
            by_strength -= by_size * theta / (2 * strength * strength)
            if 0 <= gamma / strength <= 1:
                by_gamma += g[4] / strength
                by_strength -= g[4] * gamma / (strength * strength)
            if not exact and 0 <= 2 * eta2 * strength <= 1:
                by_eta2 += 2 * strength * by_theta
                by_strength += 2 * eta2 * by_theta
            if gamma + mu2 < least:
                by_strength = 0.0
        else:
            by_size += 2 * gamma * g[4]
            by_gamma += 2 * size * g[4]
            if exact:
                by_strength -= 2 * size * size * by_size
            else:
                by_eta2 += by_size - 2 * strength * g[3]
                by_strength -= 2 * eta2 * g[3]
        to_scalars[0, t] = 2 * eta1 * (g[1] - g[0]) + size * g[7] / 2
        to_scalars[1, t] = by_gamma + by_strength
        to_scalars[2, t] = size * g[5]
        to_scalars[3, t] = by_strength
        to_scalars[4, t] = 2 * (g[2] + lam * g[1] - (1 + lam) * g[0])
        to_scalars[5, t] = by_eta2


@compiled
def _longest(crow, first, last):
    longest = NONE
    for node in range(first, last):
        i = np.uintp(node)
        longest = max(longest, crow[i + ONE] - crow[i])
    return longest


@compiled
def weight_of(z, scaled, mcp):
    """S of an entry that is no self-loop; ``scaled`` is c₁A."""
    one = type(z)(1)
    if mcp:
        return scaled * (one / np.sqrt(min(max(z, type(z)(0.25)), one)) - one)
    return min(max(z, type(z)(0)), one)


@compiled
def weights(first, last, crow, col, weight, z, c, mcp, out):
    """S of all entries of the nodes ``first`` … ``last`` − 1."""
    for node in range(first, last):
        i = np.uintp(node)
        for k in range(crow[i], crow[i + ONE]):
            out[k] = weight_of(z[k], c[1] * weight[k], mcp) if col[k] != i else type(z[k])(1)


@compiled
def spread(first, last, h, x, mean, degree, a, width, grad, by_degree, along_mean, to_x, parts):
    """The part of the derivative of a feature step that needs no neighbours.

    Args:
        first, last, h, x, mean, degree, a, width: as in :func:`step`.
        grad: the gradient g in H⁺; becomes c₀g.
        by_degree: becomes c₁g/D.
        along_mean: becomes (c₁g/D) · D⁻¹SH of each node.
        to_x: the gradient in X; c₂g is added.
        parts: (8,) the gradients in the coefficients; those of ``a`` are added to the first three.
    """
    zero = h.dtype.type(0)
    for node in range(first, last):
        i = np.uintp(node)
        on_h, on_mean, on_x = fill(zero), fill(zero), fill(zero)
        scale = a[1] / degree[i]
        for at in range(i * width, (i + ONE) * width, STEP):
            g = load(grad, at)
            on_h = add(on_h, mul(g, load(h, at)))
            on_mean = add(on_mean, mul(g, load(mean, at)))
            on_x = add(on_x, mul(g, load(x, at)))
            store(by_degree, at, mul(g, fill(scale)))
            store(to_x, at, add(load(to_x, at), mul(fill(a[2]), g)))
            store(grad, at, mul(fill(a[0]), g))
        product = total(on_mean)
        along_mean[i] = scale * product
        parts[0] += total(on_h)
        parts[1] += product
        parts[2] += total(on_x)


@inlined
def step(
    mcp, one_block, first, last, crow, col, weight, h, x, e, z, c, a, width, structure, features, given, z_new, h_new,
    mean, degree,
    e_new,
):  # fmt: skip
    """A structure step, a feature step, or the former and then the latter.

    Args:
        mcp: whether the penalty is "mcp".
        one_block: whether the width is WIDTH.
        first, last: the nodes.
        crow, col, weight: the adjacency and A.
        h, x, e: H, X and e.
        z: of S before the structure step.
        c, a: the coefficients of the structure step (5,) and of the feature step (3,).
        structure, features: which steps to do.
        given: without a structure step, whether S is A.
        z_new, h_new, mean, degree, e_new: the results: z⁺, H⁺, D⁻¹SH, D and e of H⁺.
    """
    zero, one, width = h.dtype.type(0), h.dtype.type(1), STEP if one_block else width
    row, final = np.empty(NONE if one_block else _longest(crow, first, last), h.dtype), np.uintp(col.size - 1)
    c0, c1, c2, c3, c4 = c[0], c[1], c[2], c[3], c[4]
    a0, a1, a2 = fill(a[0]), fill(a[1]), fill(a[2])
    for node in range(first, last):
        i = np.uintp(node)
        begin, end, mine = crow[i], crow[i + ONE], i * width
        own, e_i, sums, sum_s = load(h, mine), e[i], fill(zero), zero
        for k in range(begin, end):
            j = np.uintp(col[k])
            ahead = np.uintp(col[min(k + AHEAD, final)])
            prefetch(e, ahead)
            prefetch(h, ahead * width)
            for b in range(LINE, width, LINE):
                prefetch(h, ahead * width + b)
            other, scaled = load(h, j * width), c1 * weight[k]
            if structure:
                difference = sub(own, other)
                square = mul(difference, difference)
                for b in range(STEP, width, STEP):
                    difference = sub(load(h, mine + b), load(h, j * width + b))
                    square = add(square, mul(difference, difference))
                v = c2 + c3 * (e_i + e[j]) + c4 * total(square)
                value = c0 * z[k] + v if mcp else c0 * min(max(z[k], zero), one) + scaled - v
                z_new[k] = value
                s = weight_of(value, scaled, mcp)
            elif given:
                s = weight[k]
            else:
                s = weight_of(z[k], scaled, mcp)
            if j == i:
                s = one
            sum_s += s
            if one_block:
                sums = add(sums, mul(fill(s), other))
            else:
                row[k - begin] = s
        if not features:
            continue
        inverse, square = fill(one / sum_s), fill(zero)
        for b in range(NONE, width, STEP):
            if not one_block:
                sums = fill(zero)
                for k in range(begin, end):
                    sums = add(sums, mul(fill(row[k - begin]), load(h, np.uintp(col[k]) * width + b)))
            average, x_i = mul(sums, inverse), load(x, mine + b)
            new = add(mul(a0, load(h, mine + b)), add(mul(a1, average), mul(a2, x_i)))
            store(h_new, mine + b, new)
            store(mean, mine + b, average)
            difference = sub(new, x_i)
            square = add(square, mul(difference, difference))
        degree[i] = sum_s
        e_new[i] = total(square)


@inlined
def step_back(
    mcp, one_block, first, last, crow, col, weight, h, x, e, z, z_new, c, width, structure, features, given, by_degree,
    along_mean,
    grad, to_s, to_z, to_x, to_weight, parts,
):  # fmt: skip
    """The derivative of :func:`step`, after :func:`spread` if there was a feature step.

    With M_ij the gradient in S⁺_ij plus that in S⁺_ji, where S⁺ was not clipped, ∂/∂h_i contains
    −2 Σ_j M_ij (c₄(h_i − h_j) + c₃(h_i − x_i)) and ∂/∂x_i its second term with the other sign. A feature step adds
    Σ_j S_ij c₁g_j/D_j to ∂/∂h_i and p_ij + p_ji to M_ij with p_ij = (c₁/D_i) g_i · (h_j − mean_i).

    Args:
        mcp, …, given: as in :func:`step`; z_new is its result.
        by_degree, along_mean: the results of :func:`spread`.
        grad: c₀g from :func:`spread`, or without a feature step the gradient in H; becomes the gradient in H.
        to_s: the gradient in S⁺_ij plus that in S⁺_ji; becomes the same for S, without a structure step for S⁺.
        to_z: the same for z, for the penalty "mcp" only.
        to_x: the gradient in X; added to.
        to_weight: twice the gradient in A; added to. Empty if it is not needed.
        parts: (8,) twice the gradients in ``c`` are added to the last five.
    """
    zero, one, two, half = h.dtype.type(0), h.dtype.type(1), h.dtype.type(2), h.dtype.type(0.5)
    width, final = STEP if one_block else width, np.uintp(col.size - 1)
    longest = NONE if one_block else _longest(crow, first, last)
    row_s, row_m = np.empty(longest, h.dtype), np.empty(longest, h.dtype)
    part0, part1, part2, part3, part4 = 0.0, 0.0, 0.0, 0.0, 0.0
    c0, c1, c3, c4 = c[0], c[1], c[3], c[4]
    for node in range(first, last):
        i = np.uintp(node)
        begin, end, mine = crow[i], crow[i + ONE], i * width
        own, own_by_degree, own_along = load(h, mine), load(by_degree, mine), along_mean[i]
        from_h, from_s, moved = fill(zero), fill(zero), fill(zero)
        sum_m, sum0, sum1 = zero, zero, zero
        for k in range(begin, end):
            j = np.uintp(col[k])
            ahead = np.uintp(col[min(k + AHEAD, final)])
            prefetch(along_mean, ahead)
            prefetch(h, ahead * width)
            prefetch(by_degree, ahead * width)
            for b in range(LINE, width, LINE):
                prefetch(h, ahead * width + b)
                prefetch(by_degree, ahead * width + b)
            other, other_by_degree = load(h, j * width), load(by_degree, j * width)
            by_s = to_s[k] if to_s.size else zero
            if features and to_s.size:
                both = add(mul(own_by_degree, other), mul(other_by_degree, own))
                for b in range(STEP, width, STEP):
                    both = add(both, mul(load(by_degree, mine + b), load(h, j * width + b)))
                    both = add(both, mul(load(by_degree, j * width + b), load(h, mine + b)))
                by_s += total(both) - (own_along + along_mean[j])
            scaled = c1 * weight[k]
            s = weight[k] if given else weight_of(z_new[k], scaled, mcp)
            if j == i:
                s = one
            if one_block:
                from_h = add(from_h, mul(fill(s), other_by_degree))
            else:
                row_s[k - begin] = s
            if not structure:
                if to_s.size:
                    to_s[k] = by_s
                continue
            m, by_a = zero, zero
            if mcp:
                if j != i:
                    u = z_new[k]
                    inside = min(max(u, h.dtype.type(0.25)), one)
                    root = one / np.sqrt(inside)
                    by_a = by_s * (root - one)
                    m = -to_z[k]
                    if u == inside:
                        m += half * scaled * root * root * root * by_s
                    to_z[k] = -c0 * m
                    sum0 -= m * z[k]
                to_s[k] = zero
            else:
                if j != i and z_new[k] >= zero and z_new[k] <= one:
                    m = by_s
                by_a = m
                to_s[k] = c0 * m
                sum0 += m * min(max(z[k], zero), one)
            sum1 += by_a * weight[k]
            if to_weight.size:
                to_weight[k] += c1 * by_a
            sum_m += m
            if one_block:
                difference = sub(own, other)
                pulled = mul(fill(m), difference)
                from_s = add(from_s, pulled)
                moved = add(moved, mul(pulled, difference))
            else:
                row_m[k - begin] = m
        if not structure and not features:
            continue
        for b in range(NONE, width, STEP):
            h_i, x_i = load(h, mine + b), load(x, mine + b)
            if not one_block:
                from_s, from_h = fill(zero), fill(zero)
                for k in range(begin, end):
                    place = np.uintp(col[k]) * width + b
                    if features:
                        from_h = add(from_h, mul(fill(row_s[k - begin]), load(by_degree, place)))
                    if structure:
                        difference = sub(h_i, load(h, place))
                        pulled = mul(fill(row_m[k - begin]), difference)
                        from_s = add(from_s, pulled)
                        moved = add(moved, mul(pulled, difference))
            out = load(grad, mine + b)
            if features:
                out = add(out, from_h)
            if structure:
                by_x = mul(fill(two * c3 * sum_m), sub(h_i, x_i))
                out = sub(sub(out, mul(fill(two * c4), from_s)), by_x)
                store(to_x, mine + b, add(load(to_x, mine + b), by_x))
            store(grad, mine + b, out)
        if structure:
            part0 += sum0
            part1 += sum1
            part2 -= sum_m
            part3 -= 2 * sum_m * e[i]
            part4 -= total(moved)
    parts[3] += part0
    parts[4] += part1
    parts[5] += part2
    parts[6] += part3
    parts[7] += part4


@lru_cache
def passes_of(mcp, one_block):
    """The functions ``forward`` and ``backward``, compiled for a penalty and for one block of columns or any number.

    Args:
        mcp: whether the penalty is "mcp".
        one_block: whether the width is WIDTH.
    """

    @compiled
    def forward(
        begin, end, first, last, plan, crow, col, weight, x, no_z, no_e, h, e, z, mean, degree, c, width,
    ):  # fmt: skip
        """The passes ``begin`` … ``end`` − 1 for the nodes ``first`` … ``last`` − 1.

        Args:
            plan: (passes, 7) for each pass: whether it does a structure step and a feature step, whether it reads S =
                A, and the positions of H before and after it, and of z before and after it; −1 is the start.
            crow, col, weight, x, width: as in :func:`step`.
            no_z, no_e: z and e at the start.
            h, e, mean, degree: (feature steps, …) the results.
            z: (structure steps, E) the results.
            c: (8,) the coefficients of both steps.
        """
        for p in range(begin, end):
            h_in, h_out, z_in, z_out = plan[p, 3], plan[p, 4], plan[p, 5], plan[p, 6]
            step(
                mcp, one_block, first, last, crow, col, weight, x if h_in < 0 else h[h_in], x,
                no_e if h_in < 0 else e[h_in], no_z if z_in < 0 else z[z_in], c[3:], c[:3], width, plan[p, 0] > 0,
                plan[p, 1] > 0, plan[p, 2] > 0,
                no_z if z_out < 0 else z[z_out], x if h_out < 0 else h[h_out], x if h_out < 0 else mean[h_out],
                no_e if h_out < 0 else degree[h_out], no_e if h_out < 0 else e[h_out],
            )  # fmt: skip

    @compiled
    def backward(
        begin, end, first, last, plan, crow, col, weight, x, no_z, no_e, h, e, z, mean, degree, c, width, by_degree,
        along_mean, grad, to_s, to_z, to_x, to_weight, parts,
    ):  # fmt: skip
        """The derivative of the passes, in stages ``begin`` … ``end`` − 1.

        Stage 2q is :func:`spread` of the q-th pass from the end, and stage 2q + 1 its :func:`step_back`.
        """
        for stage in range(begin, end):
            p = plan.shape[0] - 1 - stage // 2
            h_in, h_out, z_in, z_out = plan[p, 3], plan[p, 4], plan[p, 5], plan[p, 6]
            h_old, given = x if h_in < 0 else h[h_in], plan[p, 2] > 0
            if stage % 2 == 0:
                if plan[p, 1] > 0:
                    spread(
                        first, last, h_old, x, mean[h_out], degree[h_out], c[:3], width, grad, by_degree, along_mean,
                        to_x, parts,
                    )  # fmt: skip
                continue
            step_back(
                mcp, one_block, first, last, crow, col, weight, h_old, x, no_e if h_in < 0 else e[h_in],
                no_z if z_in < 0 else z[z_in], no_z if z_out < 0 else z[z_out], c[3:], width, plan[p, 0] > 0,
                plan[p, 1] > 0, given, by_degree, along_mean, grad, to_s if not given or to_weight.size else to_s[:0],
                to_z, to_x, to_weight, parts,
            )  # fmt: skip

    return forward, backward


@compiled
def frozen_forward(begin, end, first, last, crow, col, value, x, h, mean, c, width):
    """The steps ``begin`` … ``end`` − 1 of H⁺ = c₀H + c₁PH + c₂X for a fixed matrix P with the values ``value``.

    ``h`` and ``mean`` (steps, …) become H and PH of each step.
    """
    zero, final, distant = x.dtype.type(0), np.uintp(col.size - 1), x.size > CACHED
    for p in range(begin, end):
        old, new, average = x if p == 0 else h[p - 1], h[p], mean[p]
        for node in range(first, last):
            i = np.uintp(node)
            mine = i * width
            for b in range(NONE, width, STEP):
                sums = fill(zero)
                for k in range(crow[i], crow[i + ONE]):
                    if distant:
                        prefetch(old, np.uintp(col[min(k + AHEAD, final)]) * width + b)
                    sums = add(sums, mul(fill(value[k]), load(old, np.uintp(col[k]) * width + b)))
                out = add(mul(fill(c[0]), load(old, mine + b)), mul(fill(c[1]), sums))
                store(new, mine + b, add(out, mul(fill(c[2]), load(x, mine + b))))
                store(average, mine + b, sums)


@compiled
def frozen_backward(begin, end, first, last, crow, col, transposed, x, h, mean, c, width, grads, to_x, to_value, parts):
    """The derivative of :func:`frozen_forward`, in stages ``begin`` … ``end`` − 1 from the last step to the first.

    Args:
        transposed: the values of Pᵀ.
        grads: (2, …) the gradient in H⁺ of stage q is in grads[q % 2]; the other one becomes the gradient in H.
        to_x, to_value: the gradients in X and P; added to. ``to_value`` is empty if it is not needed.
        parts: (8,) the gradients in the coefficients are added to the first three.
    """
    zero, final, distant = x.dtype.type(0), np.uintp(col.size - 1), x.size > CACHED
    for stage in range(begin, end):
        p = h.shape[0] - 1 - stage
        old, average = x if p == 0 else h[p - 1], mean[p]
        grad, to_h = grads[stage % 2], grads[1 - stage % 2]
        for node in range(first, last):
            i = np.uintp(node)
            mine = i * width
            on_h, on_mean, on_x = fill(zero), fill(zero), fill(zero)
            for b in range(NONE, width, STEP):
                sums = fill(zero)
                for k in range(crow[i], crow[i + ONE]):
                    if distant:
                        prefetch(grad, np.uintp(col[min(k + AHEAD, final)]) * width + b)
                    sums = add(sums, mul(fill(transposed[k]), load(grad, np.uintp(col[k]) * width + b)))
                g = load(grad, mine + b)
                store(to_h, mine + b, add(mul(fill(c[0]), g), mul(fill(c[1]), sums)))
                store(to_x, mine + b, add(load(to_x, mine + b), mul(fill(c[2]), g)))
                on_h = add(on_h, mul(g, load(old, mine + b)))
                on_mean = add(on_mean, mul(g, load(average, mine + b)))
                on_x = add(on_x, mul(g, load(x, mine + b)))
            parts[0] += total(on_h)
            parts[1] += total(on_mean)
            parts[2] += total(on_x)
            if to_value.size:
                for k in range(crow[i], crow[i + ONE]):
                    both = fill(zero)
                    for b in range(NONE, width, STEP):
                        both = add(both, mul(load(grad, mine + b), load(old, np.uintp(col[k]) * width + b)))
                    to_value[k] += c[1] * total(both)
