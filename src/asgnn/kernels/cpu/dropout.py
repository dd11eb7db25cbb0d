"""Dropout and its masks on a CPU: one loop instead of a dozen passes over the random bits."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from asgnn.kernels.cpu.compiled import compiled

GOLDEN, FIRST, SECOND = (np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
S30, S27, S31, S16 = (np.uint64(n) for n in (30, 27, 31, 16))


@compiled
def _mix(x):
    """SplitMix64's finaliser."""
    x = (x ^ (x >> S30)) * FIRST
    x = (x ^ (x >> S27)) * SECOND
    return x ^ (x >> S31)


@compiled
def _masks(seeds, draw, below, first, out):
    trials, count = out.shape
    for trial in range(trials):
        start, least, row = _mix(np.uint64(seeds[trial] + draw)), below[trial], out[trial]
        for word in range(count // 4):
            bits = _mix(start + np.uint64(first + word + 1) * GOLDEN)
            for quarter in range(4):
                row[4 * word + quarter] = np.int16(bits >> (S16 * np.uint64(quarter))) >= least
        bits = _mix(start + np.uint64(first + count // 4 + 1) * GOLDEN)
        for i in range(count // 4 * 4, count):
            row[i] = np.int16(bits) >= least
            bits >>= S16


@compiled
def _masks_at(seeds, draw, below, first, end, out):
    for trial in range(out.shape[0]):
        start, least, row = _mix(np.uint64(seeds[trial] + draw)), below[trial], out[trial]
        begin = 0
        for r in range(first.size):
            shift, bits = first[r] - begin, np.uint64(0)
            for i in range(begin, end[r]):
                place = i + shift
                if i == begin or place % 4 == 0:
                    bits = _mix(start + np.uint64(place // 4 + 1) * GOLDEN) >> (S16 * np.uint64(place % 4))
                row[i] = np.int16(bits) >= least
                bits >>= S16
            begin = end[r]


@compiled
def _relu_drop(seeds, draw, below, scale, first, h, out):
    trials, count = out.shape
    zero = h.dtype.type(0)
    for trial in range(trials):
        start, least, factor = _mix(np.uint64(seeds[trial] + draw)), below[trial], scale[trial]
        old, new = h[trial], out[trial]
        for word in range(count // 4):
            bits = _mix(start + np.uint64(first + word + 1) * GOLDEN)
            for quarter in range(4):
                value = old[4 * word + quarter]
                kept = np.int16(bits >> (S16 * np.uint64(quarter))) >= least
                # NaN stays NaN, as in torch
                new[4 * word + quarter] = zero if value <= zero or not kept else value * factor
        bits = _mix(start + np.uint64(first + count // 4 + 1) * GOLDEN)
        for i in range(count // 4 * 4, count):
            new[i] = zero if old[i] <= zero or np.int16(bits) < least else old[i] * factor
            bits >>= S16


@compiled
def _relu_drop_back(grad, scale, out, to_h):
    trials, count = out.shape
    for trial in range(trials):
        factor, zero = scale[trial], grad.dtype.type(0)
        for i in range(count):
            to_h[trial, i] = zero if out[trial, i] <= zero else grad[trial, i] * factor


def masks(seeds: Tensor, draw: Tensor, below: Tensor, count: int, first: int = 0) -> Tensor:
    """(T, count) bool: whether each 16-bit quarter of the words of a SplitMix64 draw is at least ``below``.

    Args:
        seeds: (T,) int64, already mixed.
        draw: () int64, the index of the draw.
        below: (T,) int16.
        count: elements per trial.
        first: the word of the draw with which they begin.
    """
    out = torch.empty(seeds.numel(), count, dtype=torch.bool)
    _masks(seeds.numpy(), int(draw), below.numpy(), first, out.numpy())
    return out


def masks_at(seeds: Tensor, draw: Tensor, below: Tensor, first: Tensor, end: Tensor, count: int) -> Tensor:
    """(T, count) bool: ranges of the elements of :func:`masks`, one after the other.

    Args:
        seeds, draw, below: as in :func:`masks`.
        first: (ranges,) int64, the first element of each range.
        end: (ranges,) int64, where each range ends in the result.
        count: elements per trial in the result.
    """
    out = torch.empty(seeds.numel(), count, dtype=torch.bool)
    _masks_at(seeds.numpy(), int(draw), below.numpy(), first.numpy(), end.numpy(), out.numpy())
    return out


def relu_drop(seeds: Tensor, draw: Tensor, below: Tensor, scale: Tensor, h: Tensor, first: int = 0) -> Tensor:
    """ReLU(h) · mask · scale for h (T, …); see :func:`masks`."""
    h = h.contiguous()
    out = torch.empty_like(h)
    trials = seeds.numel()
    arrays = h.view(trials, -1).numpy(), out.view(trials, -1).numpy()
    _relu_drop(seeds.numpy(), int(draw), below.numpy(), scale.numpy(), first, *arrays)
    return out


def relu_drop_back(grad: Tensor, scale: Tensor, out: Tensor) -> Tensor:
    """The derivative of :func:`relu_drop`, whose result ``out`` is positive where it lets the gradient through."""
    to_h, trials = torch.empty_like(out), out.size(0)
    arrays = (part.view(trials, -1).numpy() for part in (out, to_h))
    _relu_drop_back(grad.contiguous().view(trials, -1).numpy(), scale.numpy(), *arrays)
    return to_h
