"""The masks of dropout on a GPU, in Triton: one kernel in place of a dozen passes over the random bits."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

WORDS = 256  # of 64 bits that a program mixes, four elements each


@triton.jit
def _mix(x, FIRST: tl.constexpr, SECOND: tl.constexpr):
    x = (x ^ (x >> 30)) * tl.full((), FIRST, tl.uint64)
    x = (x ^ (x >> 27)) * tl.full((), SECOND, tl.uint64)
    return x ^ (x >> 31)


@triton.jit
def _masks(
    start, below, out, count,
    GOLDEN: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    trial = tl.program_id(1).to(tl.int64)
    word = tl.program_id(0).to(tl.int64) * WORDS + tl.arange(0, WORDS)
    place = (word + 1).to(tl.uint64) * tl.full((), GOLDEN, tl.uint64)
    bits = _mix(tl.load(start + trial).to(tl.uint64, bitcast=True) + place, FIRST, SECOND)
    quarter = tl.arange(0, 4)
    drawn = (bits[:, None] >> (16 * quarter)[None, :].to(tl.uint64)).to(tl.uint16).to(tl.int16, bitcast=True)
    i = word[:, None] * 4 + quarter[None, :]
    tl.store(out + trial * count + i, (drawn >= tl.load(below + trial)).to(tl.uint8), mask=i < count)


def masks(start: Tensor, below: Tensor, count: int, golden: int, first: int, second: int) -> Tensor:
    """(T, count) bool: whether each quarter of the words of SplitMix64 that begin at ``start`` is not ``below``.

    Args:
        start: (T,) int64.
        below: (T,) int16.
        count: elements a trial.
        golden, first, second: the generator's constants, unsigned.
    """
    out = torch.empty(start.numel(), count, dtype=torch.bool, device=start.device)
    if out.numel():
        grid = (triton.cdiv(count, 4 * WORDS), start.numel())
        _masks[grid](start, below, out.view(torch.uint8), count, GOLDEN=golden, FIRST=first, SECOND=second, WORDS=WORDS)
    return out
