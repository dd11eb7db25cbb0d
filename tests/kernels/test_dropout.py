"""Dropout and its masks equal those of the CPU bit for bit."""

from __future__ import annotations

import pytest
import torch

from asgnn.kernels import dropout
from asgnn.models import layers
from tests.kernels.machine import DEVICE


@pytest.mark.parametrize("count", [0, 1, 5, 1024, 1031])
def test_dropout_equals_the_cpu(count: int) -> None:
    seeds, below = [0, 5, 2**62, 7], torch.tensor([-(2**15), 0, 30_000, 0], dtype=torch.int16)
    below[3] = layers.Streams([7]).bits(1).view(torch.int16)[0, 0]  # equal to the drawn value, which is kept
    on_cpu, on_gpu = layers.Streams(seeds), layers.Streams(seeds, DEVICE)
    h, scale = (
        torch.randn(4, count, generator=torch.Generator().manual_seed(count)),
        torch.tensor([1.0, 2.0, 20.0, 3.0]),
    )
    inputs = [part.to(DEVICE) for part in (below, h, scale)]
    for _ in range(3):
        expected = on_cpu.at_least(below, count)
        on_gpu.draws += 1
        alone = dropout.masks(on_gpu.seeds, on_gpu.draws, inputs[0], count, layers.CONSTANTS)
        assert torch.equal(alone.cpu(), expected)
        out, mask = dropout.drop(on_gpu.seeds, on_gpu.draws, *inputs, layers.CONSTANTS)
        assert torch.equal(mask.cpu(), expected)
        assert torch.equal(out.cpu(), h * expected * scale.unsqueeze(1))
