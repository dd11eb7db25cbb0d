"""The training inside Metattack, and its reverse pass, without the features.

The surrogate is linear: its logits are P W₁ W₂ with P = Â²X. Gradient descent moves W₁ only within the span of the
labelled rows of P, so W₁ = W₁⁰ + PₗᵀB with a matrix B of one row per labelled node, and a step needs nothing but the
small kernel K = PₗPₗᵀ and the start Z⁰ = PₗW₁⁰: the number of features and of nodes has gone. Momentum is linear, so
it, too, is a matrix of B's size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True)
class InnerTraining:
    """How the surrogate is trained anew at every step of the attack; the defaults are the published settings.

    Args:
        steps: gradient steps, all of which the meta-gradient is taken through.
        lr: their size.
        momentum: of gradient descent with momentum.
        hidden: columns of W₁.
        starts: trainings from different random weights, side by side; their losses are averaged.
    """

    steps: int = 100
    lr: float = 0.1
    momentum: float = 0.9
    hidden: int = 16
    starts: int = 4


class Trace(NamedTuple):
    """The way the weights took, of S starts; index t is before step t, the last one the result.

    All matrices are transposed, with the nodes last: the S matrices of h rows are then one matrix of S·h rows for the
    product with the kernel, and sums over the classes run along the nodes.
    """

    b: Tensor
    """(T + 1, S, h, n) Bᵀ"""
    w2: Tensor
    """(T + 1, S, C, h) W₂ᵀ"""
    m: Tensor
    """(T, S, h, n) the hidden layer of the labelled nodes, (PₗW₁)ᵀ"""
    p: Tensor
    """(T, S, C, n) their class probabilities"""


class Adjoint(NamedTuple):
    k: Tensor
    """(n, n) ∂L/∂K + (∂L/∂K)ᵀ, because K is symmetric."""
    z0: Tensor
    """(S, h, n) ∂L/∂Z⁰"""


def train(k: Tensor, z0: Tensor, w2: Tensor, onehot: Tensor, how: InnerTraining) -> Trace:
    """Gradient descent with momentum on the cross-entropy of the labelled nodes. Time O(T S n² h).

    Args:
        k: (n, n) the kernel.
        z0: (S, h, n) the hidden layer at the start.
        w2: (S, C, h) the second weights at the start.
        onehot: (C, n) the labels.
        how: the settings.
    """
    n = k.size(0)
    b = z0.new_zeros(how.steps + 1, *z0.shape)
    ws = w2.new_empty(how.steps + 1, *w2.shape)
    ms = z0.new_empty(how.steps, *z0.shape)
    ps = z0.new_empty(how.steps, z0.size(0), *onehot.shape)
    ws[0] = w2
    vb, v2, start = torch.zeros_like(z0), torch.zeros_like(w2), z0.view(-1, n)
    for t in range(how.steps):
        w2, m = ws[t], ms[t]
        torch.addmm(start, b[t].view(-1, n), k, out=m.view(-1, n))  # (PₗW₁)ᵀ
        p = torch.softmax(w2 @ m, dim=1, out=ps[t])
        r = (p - onehot).div_(n)  # ∂CE/∂logits; the gradient of W₁ is Pₗᵀ rᵀ W₂ᵀ
        vb = torch.baddbmm(vb, w2.mT, r, beta=how.momentum)
        v2 = torch.baddbmm(v2, r, m.mT, beta=how.momentum)
        torch.sub(b[t], vb, alpha=how.lr, out=b[t + 1])
        torch.sub(w2, v2, alpha=how.lr, out=ws[t + 1])
    return Trace(b, ws, ms, ps)


def reverse(trace: Trace, k: Tensor, b_bar: Tensor, w2_bar: Tensor, onehot: Tensor, how: InnerTraining) -> Adjoint:
    """From the derivatives of a loss in the last B and W₂ to those in K and Z⁰: :func:`train` backwards, exact."""
    n = k.size(0)
    vb_bar, v2_bar = torch.zeros_like(b_bar), torch.zeros_like(w2_bar)
    m_bars = torch.empty_like(trace.m)
    for t in range(how.steps - 1, -1, -1):
        w2, m, p = trace.w2[t], trace.m[t], trace.p[t]
        r = (p - onehot).div_(n)
        vb_bar = torch.sub(vb_bar, b_bar, alpha=how.lr)
        v2_bar = torch.sub(v2_bar, w2_bar, alpha=how.lr)
        weighted = torch.baddbmm(w2 @ vb_bar, v2_bar, m).mul_(p)  # r̄ times p
        z_bar = weighted.addcmul_(p, weighted.sum(1, keepdim=True), value=-1).div_(n)  # softmax
        m_bar = torch.baddbmm(v2_bar.mT @ r, w2.mT, z_bar, out=m_bars[t])
        w2_bar = torch.baddbmm(torch.baddbmm(w2_bar, r, vb_bar.mT), z_bar, m.mT)
        b_bar = torch.addmm(b_bar.view(-1, n), m_bar.view(-1, n), k).view_as(b_bar)
        vb_bar.mul_(how.momentum)
        v2_bar.mul_(how.momentum)
    # Σ m̄ bᵀ over steps and starts as one product
    k_bar = m_bars.view(-1, n).t() @ trace.b[:-1].view(-1, n)
    return Adjoint(k_bar + k_bar.t(), m_bars.sum(0))


def captured(function: Callable[..., Sequence[Tensor]], *inputs: Tensor) -> Callable[..., list[Tensor]]:
    """The function as one CUDA graph: its thousand small kernels are launched at once.

    Every call takes tensors of the shapes of ``inputs`` and gives the same output tensors, filled anew. The function
    must read no other tensor: the graph would go on reading its place after the tensor is gone.
    """
    held = [one.clone() for one in inputs]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # the libraries set themselves up before, not within, the capture
        function(*held)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = list(function(*held))

    def replay(*given: Tensor) -> list[Tensor]:
        for place, value in zip(held, given, strict=True):
            place.copy_(value)
        graph.replay()
        return outputs

    return replay
