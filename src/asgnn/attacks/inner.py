"""The inner training of Metattack and its reverse pass, in the kernel of the labelled nodes.

The surrogate is linear: its logits are P W₁ W₂ with P = Â²X. Gradient descent moves W₁ only within the span of the
labelled rows of P. So W₁ = W₁⁰ + PₗᵀB, where B has one row per labelled node, and a step needs only the small kernel
K = PₗPₗᵀ and the initial Z⁰ = PₗW₁⁰. The cost does not depend on the number of features or nodes. Momentum is linear,
so it is also a matrix of the size of B.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True)
class InnerTraining:
    """Settings of the surrogate's training, which is repeated for every flip; the defaults are the published ones.

    Args:
        steps: gradient steps; the meta-gradient is taken through all of them.
        lr: learning rate.
        momentum: momentum of gradient descent.
        hidden: columns of W₁.
        starts: number of random initialisations, trained in parallel; their losses are averaged.
    """

    steps: int = 100
    lr: float = 0.1
    momentum: float = 0.9
    hidden: int = 16
    starts: int = 4


class Trace(NamedTuple):
    """The trajectory of the weights for S initialisations; index t is before step t, the last one is the result.

    All matrices are transposed, with the nodes last. The S matrices of h rows are then one matrix of S·h rows for the
    product with the kernel, and sums over the classes run along contiguous nodes.
    """

    b: Tensor
    """(T + 1, S, h, n) Bᵀ"""
    w2: Tensor
    """(T + 1, S, C, h) W₂ᵀ"""
    m: Tensor
    """(T, S, h, n) hidden layer of the labelled nodes, (PₗW₁)ᵀ"""
    p: Tensor
    """(T, S, C, n) class probabilities of the labelled nodes"""


class Adjoint(NamedTuple):
    """The derivatives of a loss with respect to the inputs of :func:`train`."""

    k: Tensor
    """(n, n) ∂L/∂K + (∂L/∂K)ᵀ, because K is symmetric"""
    z0: Tensor
    """(S, h, n) ∂L/∂Z⁰"""


def train(k: Tensor, z0: Tensor, w2: Tensor, onehot: Tensor, inner: InnerTraining) -> Trace:
    """Minimise the cross-entropy of the labelled nodes by gradient descent with momentum. Time O(T S n² h).

    Args:
        k: (n, n) kernel.
        z0: (S, h, n) initial hidden layer.
        w2: (S, C, h) initial weights of the second layer.
        onehot: (C, n) labels.
        inner: the settings.
    """
    n = k.size(0)
    b = z0.new_zeros(inner.steps + 1, *z0.shape)
    ws = w2.new_empty(inner.steps + 1, *w2.shape)
    ms = z0.new_empty(inner.steps, *z0.shape)
    ps = z0.new_empty(inner.steps, z0.size(0), *onehot.shape)
    ws[0] = w2
    vb, v2, start = torch.zeros_like(z0), torch.zeros_like(w2), z0.view(-1, n)
    for t in range(inner.steps):
        w2, m = ws[t], ms[t]
        torch.addmm(start, b[t].view(-1, n), k, out=m.view(-1, n))  # (PₗW₁)ᵀ
        p = torch.softmax(w2 @ m, dim=1, out=ps[t])
        r = (p - onehot).div_(n)  # ∂CE/∂logits; the gradient of W₁ is Pₗᵀ rᵀ W₂ᵀ
        vb = torch.baddbmm(vb, w2.mT, r, beta=inner.momentum)
        v2 = torch.baddbmm(v2, r, m.mT, beta=inner.momentum)
        torch.sub(b[t], vb, alpha=inner.lr, out=b[t + 1])
        torch.sub(w2, v2, alpha=inner.lr, out=ws[t + 1])
    return Trace(b, ws, ms, ps)


def reverse(trace: Trace, k: Tensor, b_bar: Tensor, w2_bar: Tensor, onehot: Tensor, inner: InnerTraining) -> Adjoint:
    """Return the exact derivatives in K and Z⁰ from those in the last B and W₂: the reverse pass of :func:`train`."""
    n = k.size(0)
    vb_bar, v2_bar = torch.zeros_like(b_bar), torch.zeros_like(w2_bar)
    m_bars = torch.empty_like(trace.m)
    for t in range(inner.steps - 1, -1, -1):
        w2, m, p = trace.w2[t], trace.m[t], trace.p[t]
        r = (p - onehot).div_(n)
        vb_bar = torch.sub(vb_bar, b_bar, alpha=inner.lr)
        v2_bar = torch.sub(v2_bar, w2_bar, alpha=inner.lr)
        weighted = torch.baddbmm(w2 @ vb_bar, v2_bar, m).mul_(p)  # r̄ times p
        z_bar = weighted.addcmul_(p, weighted.sum(1, keepdim=True), value=-1).div_(n)  # softmax
        m_bar = torch.baddbmm(v2_bar.mT @ r, w2.mT, z_bar, out=m_bars[t])
        w2_bar = torch.baddbmm(torch.baddbmm(w2_bar, r, vb_bar.mT), z_bar, m.mT)
        b_bar = torch.addmm(b_bar.view(-1, n), m_bar.view(-1, n), k).view_as(b_bar)
        vb_bar.mul_(inner.momentum)
        v2_bar.mul_(inner.momentum)
    # Σ m̄ bᵀ over steps and starts as one product
    k_bar = m_bars.view(-1, n).t() @ trace.b[:-1].view(-1, n)
    return Adjoint(k_bar + k_bar.t(), m_bars.sum(0))


def cuda_graph(function: Callable[..., Sequence[Tensor]], *inputs: Tensor) -> Callable[..., list[Tensor]]:
    """Capture a function as a CUDA graph, which launches its thousands of small kernels at once.

    Every call takes tensors of the shapes of ``inputs`` and overwrites and returns the same output tensors. The
    function must not read other tensors, because the graph would still read their memory after they are freed.
    """
    buffers = [one.clone() for one in inputs]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # warm-up: libraries must be initialised before the capture
        function(*buffers)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = list(function(*buffers))

    def replay(*values: Tensor) -> list[Tensor]:
        for buffer, value in zip(buffers, values, strict=True):
            buffer.copy_(value)
        graph.replay()
        return outputs

    return replay
