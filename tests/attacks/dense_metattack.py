"""Reference implementation of Metattack: dense graph, unrolled training, autograd through all steps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from asgnn.attacks.inner import InnerTraining


def dense(edge_index: Tensor, n: int) -> Tensor:
    a = torch.zeros(n, n, dtype=torch.float64)
    a[edge_index[0], edge_index[1]] = 1
    return a


def attack_loss(
    logits: Tensor, truth: Tensor, labelled: Tensor, share: float, nodes: Tensor | None = None, loss: str = "ce"
) -> Tensor:
    others = torch.zeros(truth.numel(), dtype=torch.bool)
    others[torch.arange(truth.numel()) if nodes is None else nodes] = True
    others[labelled] = False
    each = F.cross_entropy(logits, truth, reduction="none")
    if loss == "tanh_margin":
        wrong = logits.scatter(1, truth.unsqueeze(1), -torch.inf).amax(1)
        each = torch.tanh(wrong - logits[torch.arange(truth.numel()), truth])
    value = share * each[labelled].mean()
    return value + (1 - share) * each[others].mean() if bool(others.any()) else value


def meta_gradient(
    a: Tensor,
    x: Tensor,
    truth: Tensor,
    labelled: Tensor,
    w1: Tensor,
    w2: Tensor,
    *,
    share: float,
    inner: InnerTraining,
    exact: bool = True,
    **attacked: Any,
) -> Tensor:
    """Return the derivative (N, N) in both entries of each pair.

    ``truth`` holds the labels where they are known and pseudo-labels elsewhere; ``attacked`` is passed to the loss.
    """
    if w1.dim() == 3:  # the mean over initialisations
        each = [
            meta_gradient(a, x, truth, labelled, one, two, share=share, inner=inner, exact=exact, **attacked)
            for one, two in zip(w1, w2, strict=True)
        ]
        return torch.stack(each).mean(0)
    a = a.clone().requires_grad_()
    with_loops = a + torch.eye(a.size(0), dtype=a.dtype)
    root = with_loops.sum(1).rsqrt()
    hat = root.unsqueeze(1) * with_loops * root
    p = hat @ hat @ x
    weights = [w1.clone().requires_grad_(), w2.clone().requires_grad_()]
    velocities = [torch.zeros_like(w) for w in weights]
    total = torch.zeros_like(a)
    for _ in range(inner.steps):
        loss = F.cross_entropy((p @ weights[0] @ weights[1])[labelled], truth[labelled])
        gradients = torch.autograd.grad(loss, weights, create_graph=True)
        velocities = [inner.momentum * v + g for v, g in zip(velocities, gradients, strict=True)]
        weights = [w - inner.lr * v for w, v in zip(weights, velocities, strict=True)]
        if not exact:
            fixed = [w.detach() for w in weights]
            now = attack_loss(p @ fixed[0] @ fixed[1], truth, labelled, share, **attacked)
            total = total + torch.autograd.grad(now, a, retain_graph=True)[0]
    if exact:
        (total,) = torch.autograd.grad(attack_loss(p @ weights[0] @ weights[1], truth, labelled, share, **attacked), a)
    return total + total.t()
