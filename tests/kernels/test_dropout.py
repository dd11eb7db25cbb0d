"""Dropout and its masks, bit for bit those of the CPU."""

from __future__ import annotations

import pytest
import torch

from asgnn.kernels import dropout
from asgnn.models import layers
from tests.kernels.machine import DEVICE


@pytest.mark.parametrize("count", [0, 1, 5, 1024, 1031])
def test_dropout_is_that_of_the_cpu(count: int) -> None:
    seeds, below = [0, 5, 2**62, 7], torch.tensor([-(2**15), 0, 30_000, 0], dtype=torch.int16)
    below[3] = layers.Streams([7]).bits(1).view(torch.int16)[0, 0]  # equal to what is drawn, which is kept
    here, there = layers.Streams(seeds), layers.Streams(seeds, DEVICE)
    h, scale = (
        torch.randn(4, count, generator=torch.Generator().manual_seed(count)),
        torch.tensor([1.0, 2.0, 20.0, 3.0]),
    )
    on_gpu = [part.to(DEVICE) for part in (below, h, scale)]
    for _ in range(3):
        expected = here.at_least(below, count)
        there.draws += 1
        found = dropout.masks(there.seeds, there.draws, on_gpu[0], count, layers.CONSTANTS)
        assert torch.equal(found.cpu(), expected)
        out, mask = dropout.drop(there.seeds, there.draws, *on_gpu, layers.CONSTANTS)
        assert torch.equal(mask.cpu(), expected)
        assert torch.equal(out.cpu(), h * expected * scale.unsqueeze(1))
