"""The Adam kernel equals the CPU implementation."""

from __future__ import annotations

import pytest
import torch

from asgnn.kernels import adam
from asgnn.training import optimizer
from tests.kernels.machine import CLOSE, DEVICE


@pytest.mark.parametrize("dtype", CLOSE, ids=["float32", "float64"])
@pytest.mark.parametrize("shape", [(1, 1), (3, 5, 7), (2, 40, 33), (4,)])
def test_adam_equals_the_cpu(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    rng = torch.Generator().manual_seed(len(shape))
    p, *grads = (torch.randn(shape, generator=rng, dtype=dtype) for _ in range(5))
    lr, decay = torch.rand(shape[0], generator=rng, dtype=dtype), torch.rand(shape[0], generator=rng, dtype=dtype)
    on_cpu = optimizer.TrialAdam([p.clone()], lr, decay)
    on_gpu = optimizer.TrialAdam([p.to(DEVICE).clone()], lr.to(DEVICE), decay.to(DEVICE))
    for grad in grads:
        on_cpu.step([grad])
        for power, beta in zip(on_gpu.powers, (optimizer.BETA1, optimizer.BETA2), strict=True):
            power *= beta
        parts = on_gpu.parameters[0], grad.to(DEVICE), (on_gpu.first[0], on_gpu.second[0])
        adam.step(
            *parts, on_gpu.lr, on_gpu.weight_decay, on_gpu.powers, (optimizer.BETA1, optimizer.BETA2), optimizer.EPS
        )
        for ours, expected in zip(
            (on_gpu.parameters, on_gpu.first, on_gpu.second),
            (on_cpu.parameters, on_cpu.first, on_cpu.second),
            strict=True,
        ):
            torch.testing.assert_close(ours[0].cpu(), expected[0], **CLOSE[dtype])
