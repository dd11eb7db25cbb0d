"""The projection of ElasticGNN on a GPU, in Triton: one pass over the dual variables, and one on the way back."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TRIALS = 64  # of a program, at the most
TILE = 4096  # numbers that a program holds of one operand


@triton.jit
def _into_ball(
    z, radius, grad, out, rows, channels, trials,
    BACKWARD: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr, TRIALS: tl.constexpr,
):  # fmt: skip
    """z · min(1, radius/‖z‖), or what its derivative makes of ``grad``."""
    r = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    c, t = tl.arange(0, CHANNELS), tl.program_id(1) * TRIALS + tl.arange(0, TRIALS)
    inside = (r < rows)[:, None, None] & (c < channels)[None, :, None] & (t < trials)[None, None, :]
    place = r[:, None, None] * channels * trials + c[None, :, None] * trials + t[None, None, :]
    values = tl.load(z + place, mask=inside, other=0.0)
    most = tl.load(radius + t, mask=t < trials, other=0.0)[None, :]
    squared = tl.sum(values * values, axis=1)
    outside = squared > most * most
    shorter = tl.where(outside, most / tl.sqrt(tl.where(outside, squared, 1.0)), 1.0)
    if BACKWARD:
        g = tl.load(grad + place, mask=inside, other=0.0)
        along = tl.where(outside, shorter / tl.where(outside, squared, 1.0), 0.0) * tl.sum(g * values, axis=1)
        found = g * shorter[:, None, :] - values * along[:, None, :]
    else:
        found = values * shorter[:, None, :]
    tl.store(out + place, found, mask=inside)


def into_ball(z: Tensor, radius: Tensor) -> Tensor:
    """(edges, C, T), each vector along C no longer than its trial's radius (T,)."""
    return _launch(z, radius, None)


def into_ball_backward(z: Tensor, radius: Tensor, grad: Tensor) -> Tensor:
    return _launch(z, radius, grad)


def _launch(z: Tensor, radius: Tensor, grad: Tensor | None) -> Tensor:
    z = z.contiguous()
    out = torch.empty_like(z)
    if not out.numel():
        return out
    rows, channels, trials = z.shape
    wide, deep = (triton.next_power_of_2(size) for size in (trials, channels))
    wide = max(1, min(wide, TRIALS, TILE // deep))
    high = max(1, TILE // (deep * wide))
    _into_ball[triton.cdiv(rows, high), triton.cdiv(trials, wide)](
        z, radius.expand(trials).contiguous(), None if grad is None else grad.contiguous(), out, rows, channels, trials,
        BACKWARD=grad is not None, ROWS=high, CHANNELS=deep, TRIALS=wide,
    )  # fmt: skip
    return out
