"""Adam's step against that of the CPU."""

from __future__ import annotations

import pytest
import torch

from asgnn.kernels import adam
from asgnn.training import optimizer
from tests.kernels.machine import CLOSE, DEVICE


@pytest.mark.parametrize("dtype", CLOSE, ids=["float32", "float64"])
@pytest.mark.parametrize("shape", [(1, 1), (3, 5, 7), (2, 40, 33), (4,)])
def test_adam_is_that_of_the_cpu(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    rng = torch.Generator().manual_seed(len(shape))
    p, *grads = (torch.randn(shape, generator=rng, dtype=dtype) for _ in range(5))
    lr, decay = torch.rand(shape[0], generator=rng, dtype=dtype), torch.rand(shape[0], generator=rng, dtype=dtype)
    here = optimizer.TrialAdam([p.clone()], lr, decay)
    there = optimizer.TrialAdam([p.to(DEVICE).clone()], lr.to(DEVICE), decay.to(DEVICE))
    for grad in grads:
        here.step([grad])
        for power, beta in zip(there.powers, (optimizer.BETA1, optimizer.BETA2), strict=True):
            power *= beta
        parts = there.parameters[0], grad.to(DEVICE), (there.first[0], there.second[0])
        adam.step(*parts, there.lr, there.weight_decay, there.powers, (optimizer.BETA1, optimizer.BETA2), optimizer.EPS)
        for ours, expected in zip(
            (there.parameters, there.first, there.second), (here.parameters, here.first, here.second), strict=True
        ):
            torch.testing.assert_close(ours[0].cpu(), expected[0], **CLOSE[dtype])
