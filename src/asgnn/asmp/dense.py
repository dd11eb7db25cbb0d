"""The dense reference backend, written like the equations.

Time O(K N² C), memory O(K N²) for each trial. Tests compare every other backend with this one.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from asgnn.asmp.objective import MIN_DEGREE, degree_terms, paper_terms
from asgnn.asmp.params import ASMPParams, Scheme
from asgnn.asmp.penalties import damping, mcp_weight, strength_and_trust
from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.dense import DenseAdjacency


class DenseSteps:
    """The steps of ASMP on dense matrices; x and h are (…, N, C), s is (…, N, N)."""

    def __init__(self, x: Tensor, adj: Adjacency, params: ASMPParams, scheme: Scheme) -> None:
        self.x, self.h, self.adj, self.scheme = x, x, adj, scheme
        self.mcp = scheme.penalty == "mcp"
        self.scalars = params.tensors(x, x.shape[:-2])
        self.lam, self.gamma, self.mu1, self.mu2, self.eta1, self.eta2 = (v[..., None, None] for v in self.scalars)
        self.a = x.new_zeros(adj.num_nodes, adj.num_nodes)
        self.a[adj.row, adj.col] = adj.weight.to(x.dtype)
        self.on_support = torch.zeros_like(self.a, dtype=torch.bool)
        self.on_support[adj.row, adj.col] = True
        self.loops = torch.eye(adj.num_nodes, dtype=torch.bool, device=x.device)
        self.s = self.a.expand(*x.shape[:-2], -1, -1)
        self.u = x.new_zeros(())  # ū of penalty="mcp"

    def degree(self, s: Tensor) -> Tensor:
        return s.sum(-1, keepdim=True).clamp(min=MIN_DEGREE)

    def h_step(self, h: Tensor, s: Tensor) -> Tensor:
        """H⁺ = (1 − 2η₁ − 2η₁λ) H + 2η₁λ D⁻¹S H + 2η₁ X, the first line of (ASMP)."""
        step = 2 * self.eta1
        return (1 - step - step * self.lam) * h + step * self.lam * self.average(h, s) + step * self.x

    def average(self, h: Tensor, s: Tensor) -> Tensor:
        """D⁻¹S H, or D^(−1/2) S D^(−1/2) H."""
        d = self.degree(s)
        return s @ h / d if self.scheme.normalization == "rw" else d**-0.5 * (s @ (d**-0.5 * h))

    def s_step(self, h: Tensor, s: Tensor) -> Tensor:
        new = self._paper_s_step(h, s) if self.scheme.objective == "paper" else self._degree_s_step(h, s)
        return new if self.scheme.support == "dense" else torch.where(self.on_support, new, new.new_zeros(()))

    def _paper_s_step(self, h: Tensor, s: Tensor) -> Tensor:
        """T and the proximal step of the second line of (ASMP)."""
        u = F.normalize(h, dim=-1) if self.scheme.unit_norm else h
        d, g = self.degree(s), u @ u.mT
        average = (s * g).sum(-1, keepdim=True) / d
        t = (2 * self.gamma + 2 * self.mu2) * s - 2 * self.gamma * self.a - self.lam / d * (g - average)
        return (s - self.eta2 * t - self.eta2 * self.mu1).clamp(0, 1)

    def _degree_s_step(self, h: Tensor, s: Tensor) -> Tensor:
        """T_ij = ½(e_i+e_j) + (λ/2)‖h_i−h_j‖² + 2γ(S_ij−A_ij) + 2μ₂ S_ij; its proximal step or the minimiser."""
        u = F.normalize(h, dim=-1) if self.scheme.unit_norm else h
        e = (h - self.x).square().sum(-1, keepdim=True)
        cost = (e + e.mT) / 2 + self.lam / 2 * (u.unsqueeze(-2) - u.unsqueeze(-3)).square().sum(-1)
        if self.mcp:
            new = self._mcp_step(cost + self.mu1)
        elif self.scheme.structure == "exact":
            new = (2 * self.gamma * self.a - cost - self.mu1) / (2 * (self.gamma + self.mu2))
        else:
            t = cost + 2 * self.gamma * (s - self.a) + 2 * self.mu2 * s
            new = s - self.eta2 * t - self.eta2 * self.mu1
        return torch.where(self.loops, new.new_ones(()), new.clamp(0, 1))  # self-loops stay 1, so D ≥ 1

    def _mcp_step(self, z: Tensor) -> Tensor:
        """a′w(ū) with ū⁺ = ū + θ(z/2γ′ − ū); θ = 1 for the exact structure."""
        strength, trust = strength_and_trust(self.gamma, self.mu2)
        u = z / (2 * strength)
        if self.scheme.structure == "adaptive":
            u = self.u + damping(self.eta2, strength) * (u - self.u)
        self.u = u
        return trust * self.a * mcp_weight(u)

    def terms(self, h: Tensor, s: Tensor) -> tuple[Tensor, ...]:
        if self.scheme.objective == "degree":
            return degree_terms(h, s, self.x, self.a, self.scalars, self.mcp)
        return paper_terms(h, s, self.x, self.a, self.average(h, s), self.scalars)

    def features(self, h: Tensor) -> Tensor:
        return h

    def structure(self, s: Tensor) -> Tensor:
        """S in the public layout: (…, N, N) for dense support, (…, E) in adjacency order for edge support."""
        return s if self.scheme.support == "dense" else s[..., self.adj.row, self.adj.col]


class MatrixSteps(DenseSteps):
    """The steps of a frozen structure on the normalised matrices of T graphs; x and h are (T, N, C)."""

    def __init__(self, x: Tensor, adj: DenseAdjacency, params: ASMPParams, scheme: Scheme) -> None:
        self.x, self.h, self.graphs, self.scheme = x, x, adj, scheme
        self.s = adj.normalized(scheme.normalization, x.dtype)
        self.scalars = params.tensors(x, x.shape[:-2])
        self.lam, *_, self.eta1, _ = (v[..., None, None] for v in self.scalars)

    def average(self, h: Tensor, s: Tensor) -> Tensor:
        return self.graphs.matmul(s, h)
