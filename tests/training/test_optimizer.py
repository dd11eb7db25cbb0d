"""TrialAdam equals torch's Adam for each trial."""

from __future__ import annotations

import pytest
import torch

from asgnn.training.optimizer import TrialAdam

F64 = torch.float64
RATES = (0.1, 1e-3, 0.0, 2.0)
DECAYS = (0.0, 0.3, 1e-2, 1.0)


@pytest.mark.parametrize("shape", [(), (3,), (2, 5)], ids=str)
def test_equals_torch_for_every_trial(shape: tuple[int, ...]) -> None:
    """50 steps on a different quadratic for each trial."""
    rng = torch.Generator().manual_seed(0)
    start, centre, bend = (torch.randn(4, *shape, generator=rng, dtype=F64) for _ in range(3))
    bend = bend.exp()
    ours = start.clone()
    adam = TrialAdam([ours], torch.tensor(RATES, dtype=F64), torch.tensor(DECAYS, dtype=F64))
    peers = [start[i].clone().requires_grad_() for i in range(4)]
    optimizers = [
        torch.optim.Adam([peer], lr=lr, weight_decay=decay)
        for peer, lr, decay in zip(peers, RATES, DECAYS, strict=True)
    ]
    for _ in range(50):
        adam.step([bend * (ours - centre)])
        for i, (peer, optimizer) in enumerate(zip(peers, optimizers, strict=True)):
            peer.grad = bend[i] * (peer.detach() - centre[i])
            optimizer.step()
            torch.testing.assert_close(ours[i], peer.detach(), rtol=1e-12, atol=1e-12)
    assert torch.equal(ours[2], start[2])  # a learning rate of 0 changes nothing


def test_scalar_rate_with_any_shape_and_a_missing_gradient() -> None:
    rng = torch.Generator().manual_seed(0)
    ours = [torch.randn(shape, generator=rng, dtype=F64) for shape in ((), (3,), (2, 5))]
    peers = [p.clone().requires_grad_() for p in ours]
    adam = TrialAdam(ours, torch.tensor(0.05, dtype=F64), torch.tensor(0.2, dtype=F64))
    optimizer = torch.optim.Adam(peers, lr=0.05, weight_decay=0.2)
    for _ in range(20):
        adam.step([ours[0].sin(), None, ours[2].cos()])
        peers[0].grad, peers[2].grad = peers[0].detach().sin(), peers[2].detach().cos()
        optimizer.step()
    for p, peer in zip(ours, peers, strict=True):
        torch.testing.assert_close(p, peer.detach(), rtol=1e-12, atol=1e-12)


def test_nan_gradient_affects_only_its_trial() -> None:
    ours = torch.ones(2, 3, dtype=F64)
    adam = TrialAdam([ours], torch.tensor([0.1, 0.1], dtype=F64), torch.zeros(2, dtype=F64))
    adam.step([torch.tensor([[torch.nan] * 3, [1.0] * 3], dtype=F64)])
    assert ours[0].isnan().all()
    torch.testing.assert_close(ours[1], torch.full((3,), 0.9, dtype=F64))
