"""Dropout on a GPU: one kernel instead of a dozen passes over the random bits."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

WORDS = 256  # 64-bit words per program, four elements each


@triton.jit
def _mix(x, FIRST: tl.constexpr, SECOND: tl.constexpr):
    x = (x ^ (x >> 30)) * tl.full((), FIRST, tl.uint64)
    x = (x ^ (x >> 27)) * tl.full((), SECOND, tl.uint64)
    return x ^ (x >> 31)


@triton.jit
def _drop(
    seeds, draw, below, h, scale, mask, out, count, first,
    WITH_VALUES: tl.constexpr, GOLDEN: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """Write the mask of draw ``draw`` and, with values, h · mask · scale."""
    trial = tl.program_id(1).to(tl.int64)
    word = tl.program_id(0).to(tl.int64) * WORDS + tl.arange(0, WORDS)
    start = _mix((tl.load(seeds + trial) + tl.load(draw)).to(tl.uint64, bitcast=True), FIRST, SECOND)
    bits = _mix(start + (first + word + 1).to(tl.uint64) * tl.full((), GOLDEN, tl.uint64), FIRST, SECOND)
    quarter = tl.arange(0, 4)
    drawn = (bits[:, None] >> (16 * quarter)[None, :].to(tl.uint64)).to(tl.uint16).to(tl.int16, bitcast=True)
    i = word[:, None] * 4 + quarter[None, :]
    inside, offset = i < count, trial * count + i
    keep = drawn >= tl.load(below + trial)
    tl.store(mask + offset, keep.to(tl.uint8), mask=inside)
    if WITH_VALUES:
        values = tl.load(h + offset, mask=inside, other=0.0) * tl.load(scale + trial)
        tl.store(out + offset, tl.where(keep, values, 0.0), mask=inside)


def masks(
    seeds: Tensor, draw: Tensor, below: Tensor, count: int, constants: tuple[int, int, int], first: int = 0
) -> Tensor:
    """(T, count) bool: whether each 16-bit quarter of the words of a SplitMix64 draw is at least ``below``.

    Args:
        seeds: (T,) int64, already mixed.
        draw: () int64, the index of the draw.
        below: (T,) int16.
        count: elements per trial.
        constants: the constants of SplitMix64, unsigned.
        first: the word of the draw with which they begin.
    """
    mask = torch.empty(seeds.numel(), count, dtype=torch.bool, device=seeds.device)
    _launch(seeds, draw, below, None, None, mask, None, constants, first)
    return mask


def drop(
    seeds: Tensor,
    draw: Tensor,
    below: Tensor,
    h: Tensor,
    scale: Tensor,
    constants: tuple[int, int, int],
    first: int = 0,
) -> tuple[Tensor, Tensor]:
    """h · mask · scale for h (T, …) and scale (T,), and the mask, of the shape of h."""
    h = h.contiguous()
    mask, out = torch.empty_like(h, dtype=torch.bool), torch.empty_like(h)
    _launch(seeds, draw, below, h, scale, mask, out, constants, first)
    return out, mask


def _launch(
    seeds: Tensor,
    draw: Tensor,
    below: Tensor,
    h: Tensor | None,
    scale: Tensor | None,
    mask: Tensor,
    out: Tensor | None,
    constants: tuple[int, int, int],
    first: int,
) -> None:
    if not mask.numel():
        return
    count = mask[0].numel()
    golden, factor, other = constants
    _drop[triton.cdiv(count, 4 * WORDS), seeds.numel()](
        seeds, draw, below, h, scale, mask.view(torch.uint8), out, count, first,
        WITH_VALUES=h is not None, GOLDEN=golden, FIRST=factor, SECOND=other, WORDS=WORDS,
    )  # fmt: skip
