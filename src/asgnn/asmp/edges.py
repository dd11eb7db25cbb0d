"""The edge-list backend in plain torch, for any device and any number of trials.

Time O(K E C), memory O(N C + K E) for each trial.
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import functional as F

from asgnn.asmp.objective import MIN_DEGREE
from asgnn.asmp.params import ASMPParams, Scheme
from asgnn.asmp.penalties import damping, mcp_value, mcp_weight, strength_and_trust
from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.edge_ops import sddmm, spmm, sqdist
from asgnn.graphs.relaxed import clip, relaxation

_SHARED: WeakKeyDictionary[Adjacency, tuple[Tensor, Adjacency, Tensor]] = WeakKeyDictionary()


def _shared_and_own(adj: Adjacency) -> tuple[Tensor, Adjacency, Tensor]:
    """The weights (E,) that all trials share, and the pattern and weights (·, T) of the other entries; cached.

    With a feature prior the trials share most entries, and a product with all their columns takes a tenth of the time.
    """
    if adj not in _SHARED:
        weight = adj.weight
        differ = (weight != weight[:, :1]).any(1)
        differ |= differ[adj.reverse]
        own = Adjacency.of(adj.edge_index[:, differ], adj.num_nodes, weight[differ])
        _SHARED[adj] = (
            weight[:, 0].masked_fill(differ, 0.0),
            own,
            own.weight.masked_fill(own.loops.unsqueeze(1), 0.0),  # self-loops are shared
        )
    return _SHARED[adj]


class EdgeSteps:
    """The steps of ASMP on edges; internally x and h are (N, C, T) and s is (E, T), with the T trials last."""

    def __init__(self, x: Tensor, adj: Adjacency, params: ASMPParams, scheme: Scheme) -> None:
        self.batch_shape = x.shape[:-2]
        # (…, N, C) → (N, C, T)
        self.x = x.reshape(-1, *x.shape[-2:]).permute(1, 2, 0).contiguous()
        self.h, self.adj, self.scheme = self.x, adj, scheme
        self.mcp = scheme.penalty == "mcp"
        scalars = params.tensors(x, self.batch_shape)
        self.lam, self.gamma, self.mu1, self.mu2, self.eta1, self.eta2 = (v.reshape(-1) for v in scalars)
        self.a = adj.weight.to(x.dtype).view(adj.row.numel(), -1)  # (E, 1), or (E, T) with weights for each trial
        if scheme.structure == "frozen":
            self.fixed = self._frozen()
        self.s = self.a.expand(-1, self.x.size(2))
        self.prepare()

    def prepare(self) -> None:
        """Compute the coefficients of both steps once for all layers.

        Each product of a scalar with all edges or features costs a pass over them and two more in the backward pass.
        """
        self.loops = self.adj.loops.unsqueeze(1)
        step = 2 * self.eta1
        self.h_factor, self.average_factor, self.x_term = 1 - step - step * self.lam, step * self.lam, step * self.x
        if self.mcp:
            size, theta, trust = self.averaging()
            self.size, self.u_factor, self.target = theta * size, 1 - theta, trust * self.a
            self.u = self.x.new_zeros(())  # ū
            return
        self.s_factor = 1 - 2 * self.eta2 * (self.gamma + self.mu2)
        self.a_term = 2 * self.eta2 * self.gamma * self.a - self.eta2 * self.mu1
        self.relaxation = relaxation()
        if self.relaxation is not None:
            trust = torch.ones_like(self.a) if self.adj.trust is None else self.adj.trust.to(self.a.dtype).unsqueeze(1)
            self.presence, self.trust, self.full = self.a / trust, trust, trust.expand_as(self.s)

    def averaging(self) -> tuple[Tensor, Tensor, Tensor]:
        """1/2γ′, θ and a′/a of penalty="mcp"."""
        strength, trust = strength_and_trust(self.gamma, self.mu2)
        exact = self.scheme.structure == "exact"
        return 1 / (2 * strength), torch.ones_like(strength) if exact else damping(self.eta2, strength), trust

    def degree(self, s: Tensor) -> Tensor:
        return self.adj.row_sum(s).clamp(min=MIN_DEGREE)

    def h_step(self, h: Tensor, s: Tensor) -> Tensor:
        """(1 − 2η₁ − 2η₁λ) H + 2η₁λ D⁻¹S H + 2η₁ X."""
        return self.h_factor * h + self.average_factor * self.average(h, s) + self.x_term

    def average(self, h: Tensor, s: Tensor) -> Tensor:
        """D⁻¹SH, or with the frozen matrix."""
        if self.scheme.structure == "frozen":
            return self.fixed(h)
        return spmm(s, h, self.adj) / self.degree(s).unsqueeze(1)

    def _frozen(self) -> Callable[[Tensor], Tensor]:
        """The product with the frozen, normalised matrix; it covers the columns of all trials that share the matrix."""
        adj, dtype = self.adj, self.x.dtype
        if adj.weight.dim() == 2 and (self.scheme.normalization == "sym" or adj.weight.requires_grad):
            each = adj.normalized(self.scheme.normalization, dtype)
            return lambda h: spmm(each, h, adj)
        if adj.weight.dim() == 2:
            # D⁻¹ is applied after the product, so that trials share the entries in which their weights are equal
            shared, own, weight = _shared_and_own(adj)
            shared, weight, degree = shared.to(dtype), weight.to(dtype), self.degree(self.a).unsqueeze(1)
            return lambda h: (adj.matmul(shared, h.flatten(1)).view_as(h) + spmm(weight, h, own)) / degree
        one = adj.normalized(self.scheme.normalization, dtype)
        return lambda h: adj.matmul(one, h.flatten(1)).view_as(h)

    def s_step(self, h: Tensor, s: Tensor) -> Tensor:
        u = F.normalize(h, dim=1) if self.scheme.unit_norm else h
        return self._paper_s_step(u, s) if self.scheme.objective == "paper" else self._degree_s_step(h, u, s)

    def _paper_s_step(self, u: Tensor, s: Tensor) -> Tensor:
        """S − η₂T − η₂μ₁ with T = (2γ+2μ₂)S − 2γA − (λ/D_i)(g_ij − a_i)."""
        adj, d = self.adj, self.degree(s)
        g = sddmm(u, u, adj)
        average = adj.row_sum(s * g) / d
        pull = adj.at_row(self.eta2 * self.lam / d) * (g - adj.at_row(average))
        return self._clipped(self.s_factor * s + self.a_term + pull, pull)

    def _degree_s_step(self, h: Tensor, u: Tensor, s: Tensor) -> Tensor:
        """S − η₂T − η₂μ₁ with T = ½(e_i+e_j) + (λ/2)‖h_i−h_j‖² + 2γ(S−A) + 2μ₂S; or the minimiser over S."""
        adj, e = self.adj, (h - self.x).square().sum(1)
        if self.mcp:
            new = self._mcp_step(e, u)
            return torch.where(self.loops, new.new_ones(()), new)
        if self.scheme.structure == "exact":
            size = 1 / (2 * (self.gamma + self.mu2))
            start = 2 * size * self.gamma * self.a - size * self.mu1
        else:
            size, start = self.eta2, self.s_factor * s + self.a_term
        fidelity = size / 2 * e
        pull = -(adj.at_row(fidelity) + adj.at_col(fidelity)) - size * self.lam / 2 * sqdist(u, adj)
        return torch.where(self.loops, pull.new_ones(()), self._clipped(start + pull, pull))

    def _clipped(self, new: Tensor, pull: Tensor) -> Tensor:
        """The new S, clipped to [0, 1].

        Relaxed, S is the presence of an edge times F, the S that it would have if it were there. Both agree for edges
        that are present or absent, but F, unlike the clip, shows what adding an edge does.
        """
        if self.relaxation is None:
            return new.clamp(0, 1)
        size = 1 / (2 * (self.gamma + self.mu2)) if self.scheme.structure == "exact" else self.eta2
        start = 2 * size * self.gamma * self.trust - size * self.mu1
        self.full = clip(start + pull + (0 if self.scheme.structure == "exact" else self.s_factor * self.full), 0, 1)
        return self.presence * self.full

    def _mcp_step(self, e: Tensor, h: Tensor) -> Tensor:
        """a′w(ū) with ū⁺ = (1 − θ)ū + θz/2γ′ and z = ½(e_i+e_j) + (λ/2)‖h_i−h_j‖² + μ₁."""
        adj, fidelity = self.adj, self.size / 2 * (e + self.mu1)
        u = adj.at_row(fidelity) + adj.at_col(fidelity) + self.size * self.lam / 2 * sqdist(h, adj)
        self.u = self.u_factor * self.u + u
        return self.target * mcp_weight(self.u)

    def terms(self, h: Tensor, s: Tensor) -> tuple[Tensor, ...]:
        if self.scheme.objective == "degree":
            fidelity = (self.degree(s) * (h - self.x).square().sum(1)).sum(0)
            smoothness = self.lam / 2 * (s * sqdist(h, self.adj)).sum(0)
        else:
            fidelity = (h - self.x).square().sum((0, 1))
            smoothness = self.lam * (h * (h - self.average(h, s))).sum((0, 1))
        if self.mcp:
            structure = mcp_value(s, self.a, self.gamma, self.mu2).sum(0)
            l2 = torch.zeros_like(structure)
        else:
            structure, l2 = self.gamma * (s - self.a).square().sum(0), self.mu2 * s.square().sum(0)
        values = (fidelity, smoothness, structure, self.mu1 * s.abs().sum(0), l2)
        return tuple(value.view(self.batch_shape) for value in values)

    def features(self, h: Tensor) -> Tensor:
        return h.permute(2, 0, 1).reshape(*self.batch_shape, *h.shape[:2])

    def structure(self, s: Tensor) -> Tensor:
        return s.t().reshape(*self.batch_shape, s.size(0))
