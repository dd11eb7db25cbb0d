"""Pro-GNN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from asgnn.errors import ConfigError, GraphError
from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.features import Features
from asgnn.models.gcn import GCN
from asgnn.models.spectral import Method, shrink_spectrum
from asgnn.settings import PerTrial, check_count

MOMENTUM = 0.9  # of the structure's steps, in the authors' code
LEAST_DEGREE = 1e-3  # added to the degrees of the Laplacian in the authors' code; not in the paper


class ProGNN(GCN):
    r"""Pro-GNN: a GCN that learns a low-rank, sparse, smooth graph beside its weights (Jin et al., KDD 2020).

    .. math:: \min_{\theta,\; S \in [0,1]^{N \times N}} \|S - A\|_F + \alpha \|S\|_1 + \beta \|S\|_*
              + \gamma\, L(\theta, S) + \lambda \operatorname{tr}(X^\top \hat L_S X)

    with :math:`L` the GCN's training loss on S and :math:`\hat L_S` the normalised Laplacian of S; Eq. (10), in which
    the first norm is squared: ``squared=True``. As in the authors' code, from which the published figures are, it is
    not by default. With ``lam=0`` this is Pro-GNN-fs.

    ``fit`` trains the weights; after every ``inner_steps`` of its steps the structure makes one: down the gradient of
    the differentiable terms, with momentum, then the proximal steps of :math:`\|S\|_*` and :math:`\|S\|_1`, then into
    [0, 1] (Alg. 1). One epoch of the authors is therefore ``inner_steps`` epochs of ``fit``.

    A trained model has its graph in it: it is for the nodes it was trained on, and of the edges given to it later none
    is looked at, so that its gradient in their weights is 0 by nature. Before its training it is a GCN on the graph it
    is given.

    Args:
        alpha: weight of :math:`\|S\|_1`.
        beta: weight of the nuclear norm.
        gamma: weight of the GCN's loss in the structure's step.
        lam: weight of the features' smoothness on S.
        structure_lr: rate of the structure's step.
        inner_steps: steps of the weights for each of the structure.
        symmetric: keep S symmetric. The graph is undirected, and an eigendecomposition is a third of the work of
            singular values. The authors' code has both and takes ``False`` by default.
        squared: square the first norm, as the paper has it.
        method: how the nuclear norm's step is made, see :func:`~asgnn.models.spectral.shrink_spectrum`.

    Time O(N³) for each step of the structure and O(N² H) for each of the weights; memory O(N²), each for every trial.
    """

    dense_matrices = 12
    repeatable = False  # the structure moves every other epoch

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
            if not 0 <= value < float("inf"):
                raise ConfigError(f"{name} must be 0 or more, and finite; it is {value}.")
        check_count("inner_steps", inner_steps)
        if method not in (None, "exact", "products"):
            raise ConfigError(f"method must be exact, products or None; it is {method!r}.")
        self.alpha, self.beta, self.gamma, self.lam, self.structure_lr = alpha, beta, gamma, lam, structure_lr
        self.inner_steps, self.symmetric, self.squared, self.method = inner_steps, symmetric, squared, method
        # (N, N) from the beginning of the training on; a parameter so that the best epoch's is kept with its weights
        self.structure = nn.Parameter(torch.empty(0, 0), requires_grad=False)
        self._forget()

    def _forget(self) -> None:
        """What belongs to one training: the graph, the steps made, the momentum and the Gram matrix of the features.

        Attributes and not buffers: the first and the last are the same for all trials of a stack.
        """
        self._graph: tuple[Features, Adjacency] | None = None
        self._steps = 0
        self._velocity: Tensor | None = None
        self._gram: Tensor | None = None

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        super().reset_parameters(generator)
        self.structure = nn.Parameter(self.structure.new_empty(0, 0), requires_grad=False)
        self._forget()

    def begin(self, features: Features, adj: Adjacency) -> None:
        self._forget()
        weight = self.first.weight
        dense = torch.zeros(adj.num_nodes, adj.num_nodes, dtype=weight.dtype, device=weight.device)
        apart = ~adj.loops
        dense[adj.row[apart], adj.col[apart]] = adj.weight[apart].to(weight.dtype)
        self.structure = nn.Parameter((dense + dense.t()) / 2 if self.symmetric else dense, requires_grad=False)
        self._graph = features, adj

    def operator(self, features: Features, adj: Adjacency) -> Callable[[Tensor], Tensor]:
        """D^(−1/2) (S + I) D^(−1/2), D the row sums of S + I."""
        nodes = self.structure.size(-1)
        if not nodes:
            return super().operator(features, adj)
        if features.num_nodes != nodes:
            raise GraphError(
                f"The model has learned a graph of {nodes} nodes, and x has {features.num_nodes} rows; a Pro-GNN is "
                "for the nodes it was trained on."
            )
        structure = self.structure.view(-1, nodes, nodes)
        root = (structure.sum(-1, keepdim=True) + 1).rsqrt()

        def spread(h: Tensor) -> Tensor:
            h = root * h
            # as h^T S^T: with so few columns the product from the left takes several times as long
            return root * ((h.mT.contiguous() @ structure.mT).mT + h)

        return spread

    def after_step(self, losses: Callable[[], Tensor]) -> None:
        self._steps += 1
        if self._steps % self.inner_steps == 0 and self.structure_lr > 0:
            self.step_structure(losses)

    def step_structure(self, losses: Callable[[], Tensor]) -> None:
        """One step of S for every trial: Alg. 1, lines 5 to 8."""
        nodes = self.structure.size(-1)
        grad = self._gradient_of_loss(losses).view(-1, nodes, nodes)
        with torch.no_grad():
            structure = self.structure.view(-1, nodes, nodes)
            room = torch.empty_like(structure)  # one for all: a new N × N matrix costs more than to work on it
            if self.symmetric:
                torch.add(grad, grad.mT, out=room)
                grad, room = room.div_(2), grad if grad.is_contiguous() else grad.mT
            self._add_fidelity(grad, structure, room)
            if self.lam > 0:
                self._add_smoothness(grad, structure, room)
            # not in the paper: the authors' code has momentum
            self._velocity = grad if self._velocity is None else self._velocity.mul_(MOMENTUM).add_(grad)
            moved = torch.add(structure, self._velocity, alpha=-self.structure_lr, out=room)
            if self.beta > 0:
                moved = shrink_spectrum(
                    moved, self.structure_lr * self.beta, symmetric=self.symmetric, method=self.method
                )
            # the proximal step of the l1 norm and the projection in one: what is negative goes to 0 either way
            structure.copy_(moved.sub_(self.structure_lr * self.alpha).clamp_(0, 1))

    def _gradient_of_loss(self, losses: Callable[[], Tensor]) -> Tensor:
        """γ ∂L/∂S of every trial, without dropout, as in the authors' code."""
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

    def _add_fidelity(self, grad: Tensor, structure: Tensor, room: Tensor) -> None:
        """Add the gradient of the distance from A, which is taken off at its own entries only."""
        assert self._graph is not None
        adj = self._graph[1]
        apart, trials = ~adj.loops, structure.size(0)
        weight = adj.weight[apart].to(grad.dtype)
        if self.symmetric:
            weight = (weight + adj.weight[adj.reverse][apart].to(grad.dtype)) / 2
        distance = room.copy_(structure)
        places = adj.row[apart] * adj.num_nodes + adj.col[apart]
        distance.view(trials, -1).index_add_(1, places, weight.expand(trials, -1), alpha=-1)
        if self.squared:
            grad.add_(distance, alpha=2)
            return
        size = distance.view(trials, -1).norm(dim=1).view(-1, 1, 1)
        # at S = A, where the norm has no gradient, 0, which is one of its subgradients
        grad.add_(distance.div_(size.where(size > 0, 1)))

    def _add_smoothness(self, grad: Tensor, structure: Tensor, room: Tensor) -> None:
        r"""Add λ times the gradient of Σᵢ rᵢ² dᵢ Kᵢᵢ − Σᵢⱼ rᵢ Sᵢⱼ rⱼ Kᵢⱼ, with S made symmetric and K = X Xᵀ.

        d are the degrees and r = (d + 10⁻³)^(−1/2), so that dr/dd = −r³/2. By K, computed once, no product with the
        features is left: time and memory O(N²).
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
        across = torch.mul(structure, gram, out=room) @ root  # Σⱼ Sᵢⱼ Kᵢⱼ rⱼ
        own = gram.diagonal().view(-1, 1)
        by_degree = own * (root.square() - degree * root.pow(4)) + root.pow(3) * across
        grad.add_(by_degree, alpha=self.lam / 2).add_(by_degree.mT, alpha=self.lam / 2)
        grad.sub_(torch.mul(gram, root, out=room).mul_(root.mT), alpha=self.lam)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Take the structure in whatever size it was saved: a new model has none."""
        saved = state_dict.get(f"{prefix}structure")
        if saved is not None:
            self.structure = nn.Parameter(self.structure.new_empty(saved.shape), requires_grad=False)
        super()._load_from_state_dict(state_dict, prefix, *rest)
