"""The edge-list backend in plain torch, for any device and any number of trials.

Time O(K E C), memory O(N C + K E) for each trial.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from asgnn.asmp.objective import MIN_DEGREE
from asgnn.asmp.params import ASMPParams, Scheme
from asgnn.asmp.penalties import PENALTIES, Penalty, damping, strength_and_trust
from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.edge_ops import sddmm, spmm, sqdist


class EdgeSteps:
    """The steps of ASMP on edges; internally x and h are (N, C, T) and s is (E, T), with the T trials last."""

    def __init__(self, x: Tensor, adj: Adjacency, params: ASMPParams, scheme: Scheme) -> None:
        self.batch_shape = x.shape[:-2]
        # (…, N, C) → (N, C, T)
        self.x = x.reshape(-1, *x.shape[-2:]).permute(1, 2, 0).contiguous()
        self.h, self.adj, self.scheme = self.x, adj, scheme
        self.penalty = PENALTIES.get(scheme.penalty)
        scalars = params.tensors(x, self.batch_shape)
        self.lam, self.gamma, self.mu1, self.mu2, self.eta1, self.eta2 = (v.reshape(-1) for v in scalars)
        self.a = adj.weight.to(x.dtype).unsqueeze(1)
        if scheme.structure == "frozen":
            self.fixed = adj.normalized(scheme.normalization, x.dtype)
        self.s = self.a.expand(-1, self.x.size(2))
        self.prepare()

    def prepare(self) -> None:
        """Compute the coefficients of both steps once for all layers.

        Each product of a scalar with all edges or features costs a pass over them and two more in the backward pass.
        """
        self.loops = self.adj.loops.unsqueeze(1)
        step = 2 * self.eta1
        self.h_factor, self.average_factor, self.x_term = 1 - step - step * self.lam, step * self.lam, step * self.x
        if self.penalty is not None:
            size, theta, trust = self.averaging()
            self.size, self.u_factor, self.target = theta * size, 1 - theta, trust * self.a
            self.u = self.x.new_zeros(())  # ū
            return
        self.s_factor = 1 - 2 * self.eta2 * (self.gamma + self.mu2)
        self.a_term = 2 * self.eta2 * self.gamma * self.a - self.eta2 * self.mu1

    def averaging(self) -> tuple[Tensor, Tensor, Tensor]:
        """1/2γ′, θ and a′/a of a penalty other than the quadratic."""
        strength, trust = strength_and_trust(self.gamma, self.mu2)
        exact = self.scheme.structure == "exact"
        return 1 / (2 * strength), torch.ones_like(strength) if exact else damping(self.eta2, strength), trust

    def degree(self, s: Tensor) -> Tensor:
        return self.adj.row_sum(s).clamp(min=MIN_DEGREE)

    def h_step(self, h: Tensor, s: Tensor) -> Tensor:
        """(1 − 2η₁ − 2η₁λ) H + 2η₁λ D⁻¹S H + 2η₁ X."""
        return self.h_factor * h + self.average_factor * self.average(h, s) + self.x_term

    def average(self, h: Tensor, s: Tensor) -> Tensor:
        """D⁻¹SH; with a frozen structure all trials share one matrix, so one product covers all their columns."""
        if self.scheme.structure == "frozen":
            return self.adj.matmul(self.fixed, h.flatten(1)).view_as(h)
        return spmm(s, h, self.adj) / self.degree(s).unsqueeze(1)

    def s_step(self, h: Tensor, s: Tensor) -> Tensor:
        u = F.normalize(h, dim=1) if self.scheme.unit_norm else h
        return self._paper_s_step(u, s) if self.scheme.objective == "paper" else self._degree_s_step(h, u, s)

    def _paper_s_step(self, u: Tensor, s: Tensor) -> Tensor:
        """S − η₂T − η₂μ₁ with T = (2γ+2μ₂)S − 2γA − (λ/D_i)(g_ij − a_i)."""
        adj, d = self.adj, self.degree(s)
        g = sddmm(u, u, adj)
        average = adj.row_sum(s * g) / d
        pull = adj.at_row(self.eta2 * self.lam / d) * (g - adj.at_row(average))
        return (self.s_factor * s + self.a_term + pull).clamp(0, 1)

    def _degree_s_step(self, h: Tensor, u: Tensor, s: Tensor) -> Tensor:
        """S − η₂T − η₂μ₁ with T = ½(e_i+e_j) + (λ/2)‖h_i−h_j‖² + 2γ(S−A) + 2μ₂S; or the minimiser over S."""
        adj, e = self.adj, (h - self.x).square().sum(1)
        if self.penalty is not None:
            new = self._averaged_step(self.penalty, e, u)
            return torch.where(self.loops, new.new_ones(()), new)
        if self.scheme.structure == "exact":
            size = 1 / (2 * (self.gamma + self.mu2))
            start = 2 * size * self.gamma * self.a - size * self.mu1
        else:
            size, start = self.eta2, self.s_factor * s + self.a_term
        fidelity = size / 2 * e
        new = start - (adj.at_row(fidelity) + adj.at_col(fidelity)) - size * self.lam / 2 * sqdist(u, adj)
        return torch.where(self.loops, new.new_ones(()), new.clamp(0, 1))

    def _averaged_step(self, penalty: Penalty, e: Tensor, h: Tensor) -> Tensor:
        """a′w(ū) with ū⁺ = (1 − θ)ū + θz/2γ′ and z = ½(e_i+e_j) + (λ/2)‖h_i−h_j‖² + μ₁."""
        adj, fidelity = self.adj, self.size / 2 * (e + self.mu1)
        u = adj.at_row(fidelity) + adj.at_col(fidelity) + self.size * self.lam / 2 * sqdist(h, adj)
        self.u = self.u_factor * self.u + u
        return self.target * penalty.weight(self.u)

    def terms(self, h: Tensor, s: Tensor) -> tuple[Tensor, ...]:
        if self.scheme.objective == "degree":
            fidelity = (self.degree(s) * (h - self.x).square().sum(1)).sum(0)
            smoothness = self.lam / 2 * (s * sqdist(h, self.adj)).sum(0)
        else:
            fidelity = (h - self.x).square().sum((0, 1))
            smoothness = self.lam * (h * (h - self.average(h, s))).sum((0, 1))
        if self.penalty is None:
            structure, l2 = self.gamma * (s - self.a).square().sum(0), self.mu2 * s.square().sum(0)
        else:
            structure = self.penalty.value(s, self.a, self.gamma, self.mu2).sum(0)
            l2 = torch.zeros_like(structure)
        values = (fidelity, smoothness, structure, self.mu1 * s.abs().sum(0), l2)
        return tuple(value.view(self.batch_shape) for value in values)

    def features(self, h: Tensor) -> Tensor:
        return h.permute(2, 0, 1).reshape(*self.batch_shape, *h.shape[:2])

    def structure(self, s: Tensor) -> Tensor:
        return s.t().reshape(*self.batch_shape, s.size(0))
