"""Pro-GNN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from asgnn.errors import GraphError
from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.features import Features
from asgnn.models.gcn import GCN
from asgnn.models.spectral import Method, shrink_spectrum
from asgnn.settings import PerTrial, check_choice, check_count, check_number

MOMENTUM = 0.9  # of the structure steps, as in the authors' code
LEAST_DEGREE = 1e-3  # added to the degrees of the Laplacian, as in the authors' code; not in the paper


def dense_propagation(structure: Tensor) -> Callable[[Tensor], Tensor]:
    """h (T, N, C) → D^(−1/2) (S + I) D^(−1/2) h for S (T, N, N), D the row sums of S + I."""
    root = (structure.sum(-1, keepdim=True) + 1).rsqrt()

    def propagate(h: Tensor) -> Tensor:
        h = root * h
        # as hᵀSᵀ, because S h takes several times as long for so few columns
        return root * ((h.mT.contiguous() @ structure.mT).mT + h)

    return propagate


class ProGNN(GCN):
    r"""Pro-GNN: a GCN that learns a low-rank, sparse, smooth graph together with its weights (Jin et al., KDD 2020).

    .. math:: \min_{\theta,\; S \in [0,1]^{N \times N}} \|S - A\|_F + \alpha \|S\|_1 + \beta \|S\|_*
              + \gamma\, L(\theta, S) + \lambda \operatorname{tr}(X^\top \hat L_S X)

    with :math:`L` the training loss of the GCN on S and :math:`\hat L_S` the normalised Laplacian of S. Eq. (10) of the
    paper squares the first norm (``squared=True``). The default does not, as in the authors' code, which produced the
    published results. With ``lam=0`` this is Pro-GNN-fs.

    ``fit`` trains the weights. After every ``inner_steps`` weight steps the structure takes one step: a gradient step
    with momentum on the differentiable terms, the proximal steps of :math:`\|S\|_*` and :math:`\|S\|_1`, and the
    projection onto [0, 1] (Alg. 1). One epoch of the authors' code therefore equals ``inner_steps`` epochs of ``fit``.

    A trained model contains its graph. It applies only to the nodes it was trained on and ignores the edges it is
    called with, so its gradient in their weights is 0. An untrained model is a GCN on the graph it is called with.

    Args:
        alpha: weight of :math:`\|S\|_1`.
        beta: weight of the nuclear norm.
        gamma: weight of the GCN's loss in the structure step.
        lam: weight of the feature smoothness on S.
        structure_lr: learning rate of the structure.
        inner_steps: weight steps per structure step.
        symmetric: keep S symmetric, as the graph is undirected. An eigendecomposition costs a third of a singular value
            decomposition. The authors' code has both and defaults to ``False``.
        squared: square the first norm, as in the paper.
        method: the algorithm of the nuclear norm's proximal step; see :func:`~asgnn.models.spectral.shrink_spectrum`.

    Time O(N³) for a structure step and O(N² H) for a weight step; memory O(N²); each per trial.
    """

    dense_matrices = 12
    whole_graph = True  # the structure is learned for the nodes of the graph
    repeatable = False  # only some epochs update the structure

    own_weights = False

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        *,
        dropout: PerTrial = 0.5,
        alpha: float = 5e-4,
        beta: float = 1.5,
        gamma: float = 1.0,
        lam: float = 1e-3,
        structure_lr: float = 0.01,
        inner_steps: int = 2,
        symmetric: bool = True,
        squared: bool = False,
        method: Method | None = None,
    ) -> None:
        super().__init__(in_channels, hidden_channels, out_channels, dropout=dropout)
        weights = {"alpha": alpha, "beta": beta, "gamma": gamma, "lam": lam, "structure_lr": structure_lr}
        for name, value in weights.items():
            check_number(name, value, 0, float("inf"), "[)")
        check_count("inner_steps", inner_steps)
        if method is not None:
            check_choice("method", method, ("exact", "products"))
        self.alpha, self.beta, self.gamma, self.lam, self.structure_lr = alpha, beta, gamma, lam, structure_lr
        self.inner_steps, self.symmetric, self.squared, self.method = inner_steps, symmetric, squared, method
        # (N, N) once training has begun; a parameter, so that it is saved with the weights of the best epoch
        self.structure = nn.Parameter(torch.empty(0, 0), requires_grad=False)
        self._reset_state()

    def _reset_state(self) -> None:
        """Reset the state of one training run: graph, step count, momentum and Gram matrix of the features.

        Attributes and not buffers, because all trials of a stack share the graph and the Gram matrix.
        """
        self._graph: tuple[Features, Adjacency] | None = None
        self._steps = 0
        self._velocity: Tensor | None = None
        self._gram: Tensor | None = None

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        super().reset_parameters(generator)
        self.structure = nn.Parameter(self.structure.new_empty(0, 0), requires_grad=False)
        self._reset_state()

    def begin(self, features: Features, adj: Adjacency) -> None:
        self._reset_state()
        weight = self.first.weight
        dense = torch.zeros(adj.num_nodes, adj.num_nodes, dtype=weight.dtype, device=weight.device)
        no_loop = ~adj.loops
        dense[adj.row[no_loop], adj.col[no_loop]] = adj.weight[no_loop].to(weight.dtype)
        self.structure = nn.Parameter((dense + dense.t()) / 2 if self.symmetric else dense, requires_grad=False)
        self._graph = features, adj

    def operator(self, features: Features, adj: Adjacency) -> Callable[[Tensor], Tensor]:
        """D^(−1/2) (S + I) D^(−1/2), D the row sums of S + I."""
        nodes = self.structure.size(-1)
        if not nodes:
            return super().operator(features, adj)
        if features.num_nodes != nodes:
            raise GraphError(
                f"The model has learned a graph of {nodes} nodes, but x has {features.num_nodes} rows; use Pro-GNN on "
                "the nodes it was trained on."
            )
        return dense_propagation(self.structure.view(-1, nodes, nodes))

    def after_step(self, losses: Callable[[], Tensor]) -> None:
        self._steps += 1
        if self._steps % self.inner_steps == 0 and self.structure_lr > 0:
            self.step_structure(losses)

    def step_structure(self, losses: Callable[[], Tensor]) -> None:
        """Take one structure step for every trial: Alg. 1, lines 5 to 8."""
        nodes = self.structure.size(-1)
        grad = self._gradient_of_loss(losses).view(-1, nodes, nodes)
        with torch.no_grad():
            structure = self.structure.view(-1, nodes, nodes)
            scratch = torch.empty_like(structure)  # used throughout, because allocating N × N costs more than computing
            if self.symmetric:
                torch.add(grad, grad.mT, out=scratch)
                grad, scratch = scratch.div_(2), grad if grad.is_contiguous() else grad.mT
            self._add_fidelity(grad, structure, scratch)
            if self.lam > 0:
                self._add_smoothness(grad, structure, scratch)
            # not in the paper: the authors' code has momentum
            self._velocity = grad if self._velocity is None else self._velocity.mul_(MOMENTUM).add_(grad)
            moved = torch.add(structure, self._velocity, alpha=-self.structure_lr, out=scratch)
            if self.beta > 0:
                moved = shrink_spectrum(
                    moved, self.structure_lr * self.beta, symmetric=self.symmetric, method=self.method
                )
            # the proximal step of the l1 norm and the projection in one: negative entries become 0 either way
            structure.copy_(moved.sub_(self.structure_lr * self.alpha).clamp_(0, 1))

    def _gradient_of_loss(self, losses: Callable[[], Tensor]) -> Tensor:
        """γ ∂L/∂S for every trial, without dropout, as in the authors' code."""
        if self.gamma == 0:
            return torch.zeros_like(self.structure)
        training = self.training
        self.eval()
        self.structure.requires_grad_(True)
        try:
            (grad,) = torch.autograd.grad(losses().sum(), self.structure)
        finally:
            self.structure.requires_grad_(False)
            self.train(training)
        return grad.mul_(self.gamma) if self.symmetric else self.gamma * grad.contiguous()

    def _add_fidelity(self, grad: Tensor, structure: Tensor, scratch: Tensor) -> None:
        """Add the gradient of the distance from A; A is subtracted at its nonzero entries only."""
        assert self._graph is not None
        adj = self._graph[1]
        no_loop, trials = ~adj.loops, structure.size(0)
        weight = adj.weight[no_loop].to(grad.dtype)
        if self.symmetric:
            weight = (weight + adj.weight[adj.reverse][no_loop].to(grad.dtype)) / 2
        distance = scratch.copy_(structure)
        entries = adj.row[no_loop].long() * adj.num_nodes + adj.col[no_loop]
        distance.view(trials, -1).index_add_(1, entries, weight.expand(trials, -1), alpha=-1)
        if self.squared:
            grad.add_(distance, alpha=2)
            return
        size = distance.view(trials, -1).norm(dim=1).view(-1, 1, 1)
        # at S = A the norm has no gradient; 0 is a subgradient
        grad.add_(distance.div_(size.where(size > 0, 1)))

    def _add_smoothness(self, grad: Tensor, structure: Tensor, scratch: Tensor) -> None:
        r"""Add λ times the gradient of Σᵢ rᵢ² dᵢ Kᵢᵢ − Σᵢⱼ rᵢ Sᵢⱼ rⱼ Kᵢⱼ, with S made symmetric and K = X Xᵀ.

        d are the degrees and r = (d + 10⁻³)^(−1/2), so that dr/dd = −r³/2. K is computed once, so no product with the
        features is needed: time and memory O(N²).
        """
        if self._gram is None:
            assert self._graph is not None
            features = self._graph[0]
            self._gram = features.gram(torch.eye(features.num_nodes, dtype=grad.dtype, device=grad.device))
        gram = self._gram
        if not self.symmetric:
            structure = (structure + structure.mT) / 2
        degree = structure.sum(-1, keepdim=True)
        root = (degree + LEAST_DEGREE).rsqrt()
        across = torch.mul(structure, gram, out=scratch) @ root  # Σⱼ Sᵢⱼ Kᵢⱼ rⱼ
        diagonal = gram.diagonal().view(-1, 1)
        by_degree = diagonal * (root.square() - degree * root.pow(4)) + root.pow(3) * across
        grad.add_(by_degree, alpha=self.lam / 2).add_(by_degree.mT, alpha=self.lam / 2)
        grad.sub_(torch.mul(gram, root, out=scratch).mul_(root.mT), alpha=self.lam)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Load a structure of any size; the structure of a new model is empty."""
        saved = state_dict.get(f"{prefix}structure")
        if saved is not None:
            self.structure = nn.Parameter(self.structure.new_empty(saved.shape), requires_grad=False)
        super()._load_from_state_dict(state_dict, prefix, *rest)
