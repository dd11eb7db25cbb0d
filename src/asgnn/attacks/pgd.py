"""PGD topology attack: projected gradient ascent on relaxed flips, then rounding by sampling."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch_geometric.data import Data

from asgnn.attacks.blocks import repaired
from asgnn.attacks.checkpoint import Checkpoint, State
from asgnn.attacks.problem import Loss, Problem, check_unit, make_problem
from asgnn.attacks.relaxation import Start, best_rounding, check_schedule, multiplier, starting_point
from asgnn.attacks.restarts import Restarts
from asgnn.attacks.rules import finish
from asgnn.attacks.surrogate import Edges, SurrogateGCN, Victim
from asgnn.graphs import Perturbation
from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.features import Features
from asgnn.graphs.keys import from_keys, to_keys
from asgnn.progress import Progress

# The gradient is computed in blocks of this many entries: 16 MiB of float32.
ENTRIES = 2**22
REPAIR_BLOCK = 250_000

Gradient = Callable[[int, int], Tensor]
"""(first, last) → rows first … last − 1 of the N × N matrix of derivatives in the weight of the pair {i, j}."""


def pgd(
    data: Data,
    budget: int,
    train: Tensor,
    rng: torch.Generator,
    *,
    nodes: Tensor | None = None,
    surrogate: Victim | None = None,
    victim: Victim | None = None,
    steps: int = 200,
    base_lr: float = 0.3,
    loss: Loss = "tanh_margin",
    samples: int = 20,
    start: Start = "zero",
    repair: int = 0,
    restarts: int = 1,
    allow_isolated: bool = False,
    device: torch.device | str | None = None,
    checkpoint: Checkpoint | None = None,
    progress: Progress | None = None,
) -> Perturbation:
    r"""PGD topology attack (Xu et al., IJCAI 2019).

    The flip of each pair is relaxed to s ∈ [0, 1]. The loss of a trained model on the graph
    :math:`A + C \circ S` (C: 1 where an edge can be added, −1 where one can be removed) is maximised by

    .. math:: s \leftarrow \Pi_{\{s \in [0, 1],\ 1^\top s \le \mathrm{budget}\}}(s + \eta_t \nabla_s), \qquad
              \eta_t = \mathrm{base\_lr} / (g \sqrt t),

    and s is rounded by sampling flips with these probabilities and keeping the best set. Not in the paper: g is the
    largest entry of the first gradient, so that the first step of the best pair is ``base_lr`` for every graph and
    loss.

    Threat model: global evasion, white box if ``surrogate`` and ``victim`` are one model or one is the other relaxed,
    grey box otherwise. The attacker knows the graph, the features and the labels of ``train``. Unknown labels are
    replaced by the surrogate's predictions. (For the usual white-box evaluation, in which all labels are known, pass
    all nodes as ``train``, the attacked nodes as ``nodes`` and the model as ``victim``.) The model is fixed, so the
    flips need not be effective against a model that is trained on the flipped graph.

    Args:
        data: the clean graph.
        budget: the exact number of flips.
        train: the nodes whose labels are known, as numbers or a mask.
        rng: a CPU generator; the same state gives the same flips.
        nodes: the attacked nodes, as numbers or a mask; by default all nodes outside ``train``.
        surrogate: the model whose gradient proposes flips; by default the victim.
        victim: the attacked model, which decides between steps, roundings and restarts; by default the surrogate. With
            neither, a GCN trained on the clean graph.
        steps: steps of gradient ascent.
        base_lr: the first step of the best pair.
        loss: "tanh_margin" (Geisler et al. 2021), "cw" or "ce" (Xu et al. 2019), "masked_ce" (of nodes that are still
            classified correctly), "elu_margin" or "margin"; a key of ``asgnn.attacks.problem.LOSSES``.
        samples: sets of flips that are sampled for the rounding.
        start: the first s: "zero", or with sum ``budget``: "uniform" or "random". Some models have no gradient at 0.
        repair: attempts to swap flips for better ones after the rounding.
        restarts: the attack is made this often, with other random numbers, and the best result is kept.
        allow_isolated: whether a removal may leave a node without an edge.
        device: device of the computation; that of ``data`` by default.
        checkpoint: stores the state after each step; an interrupted attack resumes from it.
        progress: called after each step.

    Memory is dense: N² numbers for s and up to half as many for its projection. The gradient is stored in full only
    for a surrogate other than :class:`SurrogateGCN`, which gets all N(N − 1) pairs as edges.
    Time O(steps · N² (H + C)).
    """
    meta = {"attack": "pgd", "steps": steps, "base_lr": base_lr, "loss": loss, "samples": samples}
    meta |= {"start": start, "repair": repair, "restarts": restarts}
    check_schedule(steps, base_lr, samples, start, repair, restarts)
    state = checkpoint.load() if checkpoint is not None else None
    problem = make_problem(
        data, budget, train, rng, nodes=nodes, surrogate=surrogate, victim=victim, loss=loss, device=device, state=state
    )
    if budget == 0:
        return finish(data, torch.empty(2, 0, dtype=torch.int64), 0, allow_isolated=allow_isolated, meta=meta)
    runs = Restarts(problem, restarts, state)
    for restart in runs.left():
        flips = DenseFlips(problem)
        first = flips.restore(state, rng) if state is not None else flips.begin(start, budget, rng)
        state = None
        for step in range(first, steps):
            flips.ascend(flips.gradient(), base_lr / math.sqrt(step + 1), budget)
            if checkpoint is not None:
                checkpoint.save(problem.state() | runs.state() | flips.state(step + 1, rng))
            if progress is not None:
                progress(restart * steps + step + 1, restarts * steps)
        chosen, _ = best_rounding(problem, *flips.ranked(budget), budget, samples, rng, allow_isolated=allow_isolated)
        runs.add(repaired(problem, chosen, repair, REPAIR_BLOCK, rng, allow_isolated=allow_isolated))
    return finish(data, runs.best, budget, allow_isolated=allow_isolated, meta=meta)


class DenseFlips:
    """The relaxed flips s (N, N), above the diagonal, and the gradient of the problem's loss in them.

    The weighted adjacency matrix A + C ∘ (S + Sᵀ) is never formed: it is S + Sᵀ plus a sparse matrix with 1 − 2s on
    the edges.
    """

    def __init__(self, problem: Problem) -> None:
        n, edges = problem.num_nodes, problem.edges.to(problem.device)
        self.problem, self.edges = problem, edges
        self.s = torch.zeros(n, n, dtype=problem.inputs.dtype, device=problem.device)
        self.unit: float | None = None
        self.mu = 0.0
        self.all_pairs: Tensor | None = None  # the same tensor at every step, so that a model sorts it only once
        self.adj = Adjacency.of(torch.cat([edges, edges.flip(0)], dim=1), n)
        # row i of the upper triangle holds the edges first[i] … first[i+1] − 1
        self.first = torch.searchsorted(edges[0].contiguous(), torch.arange(n + 1, device=problem.device)).tolist()

    def nonzeros(self) -> tuple[Tensor, Tensor]:
        """Return the pairs (2, P) with s > 0, sorted by row, and their s."""
        pairs = self.s.nonzero().t().contiguous()
        return pairs, self.s[pairs[0], pairs[1]]

    def logits(self, victim: SurrogateGCN) -> tuple[Tensor, Tensor, list[tuple[Tensor, Tensor]]]:
        """Return the logits on the relaxed graph, the degrees (N, 1) as a leaf that requires grad, and the products.

        The products are those of :meth:`SurrogateGCN.layers`.
        """
        # After the projection few pairs are above 0, so the sparse product is much faster.
        pairs, values = self.nonzeros()
        flips = Edges.of(torch.cat([pairs, pairs.flip(0)], dim=1), self.problem.num_nodes)
        both = torch.cat([values, values])
        low, high = torch.minimum(self.adj.row, self.adj.col), torch.maximum(self.adj.row, self.adj.col)
        weight = 1 - 2 * self.s[low, high]  # the diagonal of s is 0, so self-loops weigh 1

        def product(h: Tensor) -> Tensor:
            return flips.product(both, h) + self.adj.matmul(weight, h)

        degree = product(torch.ones_like(self.s[:, :1])).requires_grad_()
        logits, products = victim.layers(Features.of(self.problem.inputs), degree, product)
        return logits, degree, products

    def gradient(self, victim: Victim | None = None) -> Gradient:
        """Return the gradient of the loss in the weight of each pair, before multiplication by C.

        ``victim`` replaces the surrogate of the problem.
        """
        victim = self.problem.surrogate if victim is None else victim
        if not isinstance(victim, SurrogateGCN):
            return self._gradient_by_edges(victim)
        logits, degree, products = self.logits(victim)
        inputs, outputs = zip(*products, strict=True)
        of_degree, *of_outputs = torch.autograd.grad(self.problem.value(logits), [degree, *outputs])
        # ∂/∂A_ij = Σ over the products of ⟨∂/∂output_i, input_j⟩; the degree is the product with the all-ones vector
        left = torch.cat([of_degree, *of_outputs], dim=1)
        right = torch.cat([torch.ones_like(degree), *inputs], dim=1).detach()
        # a pair has two entries: L Rᵀ + R Lᵀ = [L R] [R L]ᵀ
        left, right = torch.cat([left, right], dim=1), torch.cat([right, left], dim=1)
        return lambda first, last: left[first:last] @ right.t()

    def _gradient_by_edges(self, victim: Victim) -> Gradient:
        both = self.s + self.s.t()
        both[self.adj.row, self.adj.col] = 1 - both[self.adj.row, self.adj.col]
        off_diagonal = ~torch.eye(self.problem.num_nodes, dtype=torch.bool, device=self.s.device)
        if self.all_pairs is None:
            self.all_pairs = off_diagonal.nonzero().t()
        weight = both[off_diagonal].requires_grad_()
        of_weight = self.problem.gradient(victim(self.problem.inputs, self.all_pairs, weight), weight)
        full = torch.zeros_like(both)
        full[off_diagonal] = of_weight
        return lambda first, last: full[first:last] + full[:, first:last].t()

    def ascend(self, gradient: Gradient, rate: float, budget: int) -> None:
        """s ← Π(s + rate / unit · C ∘ ∇), in place."""
        unit = self.step_unit(gradient)
        for first, last, rows in self._rows(gradient):
            self.s[first:last].add_(rows, alpha=rate / unit)
        # μ decreases slowly between steps, so half of the last one is a good lower bound
        self.mu = multiplier(self.s, budget, self.mu / 2)
        self.s.sub_(self.mu).clamp_(0, 1)

    def step_unit(self, gradient: Gradient) -> float:
        """Return the unit of the step size: the largest entry of the first gradient."""
        if self.unit is None:  # torch's max propagates NaN, which check_unit rejects
            self.unit = check_unit(float(torch.stack([rows.abs().max() for _, _, rows in self._rows(gradient)]).max()))
        return self.unit

    def _rows(self, gradient: Gradient) -> Iterator[tuple[int, int, Tensor]]:
        """Yield (first, last, rows first … last − 1 of C ∘ ∇ above the diagonal)."""
        n = self.problem.num_nodes
        height = max(1, ENTRIES // n)
        for first in range(0, n, height):
            last = min(n, first + height)
            rows = gradient(first, last)
            u, v = self.edges[:, self.first[first] : self.first[last]]
            rows[u - first, v] *= -1
            yield first, last, rows.triu_(first + 1)

    def ranked(self, budget: int) -> tuple[Tensor, Tensor]:
        """Return pairs (2, P) and their s on the CPU, best first: sorted by s, and by the gradient where s = 0.

        P = budget + E suffices for every rounding, because only removals can be skipped (to isolate no node).
        """
        n = self.problem.num_nodes
        pairs, values = self.nonzeros()
        order = values.argsort(descending=True, stable=True)
        pairs, values = pairs[:, order].cpu(), values[order].cpu()
        missing = min(budget + self.edges.size(1), self.problem.pairs) - values.numel()
        if missing <= 0:
            return pairs, values
        keys: list[Tensor] = []
        scores: list[Tensor] = []
        gradient = self.gradient()
        self.step_unit(gradient)  # rejects a gradient of 0
        for first, last, rows in self._rows(gradient):
            rows.masked_fill_(self.s[first:last] > 0, -torch.inf)
            rows.masked_fill_(torch.ones_like(rows, dtype=torch.bool).tril_(first), -torch.inf)
            score, at = rows.view(-1).topk(min(missing, rows.numel()))
            keys.append(at[score > -torch.inf] + first * n)
            scores.append(score[score > -torch.inf])
        at = torch.cat(scores).argsort(descending=True, stable=True)[:missing]
        more = from_keys(torch.cat(keys)[at], n).cpu()
        return torch.cat([pairs, more], dim=1), torch.cat([values, values.new_zeros(more.size(1))])

    def state(self, step: int, rng: torch.Generator) -> State:
        """Return the checkpoint after ``step`` steps, with s as its non-zeros; shares no memory with this object."""
        pairs, values = self.nonzeros()
        return {
            "step": torch.tensor(step),
            "rng": rng.get_state(),
            "unit": torch.tensor(self.unit or 1.0, dtype=torch.float64),
            "mu": torch.tensor(self.mu, dtype=torch.float64),
            "keys": to_keys(pairs, self.problem.num_nodes),
            "values": values,
        }

    def begin(self, start: Start, budget: int, rng: torch.Generator) -> int:
        """Set the first s and return the number of the first step."""
        n = self.problem.num_nodes
        s = starting_point(start, self.problem.pairs, budget, rng).to(self.s)
        u, v = torch.triu_indices(n, n, 1, device=self.s.device)
        self.s[u, v] = s
        return 0

    def restore(self, state: State, rng: torch.Generator) -> int:
        """Load ``state`` and return the number of the next step."""
        pairs = from_keys(state["keys"].to(self.s.device), self.problem.num_nodes)
        self.s[pairs[0], pairs[1]] = state["values"].to(self.s.device)
        self.unit, self.mu = float(state["unit"]), float(state["mu"])
        rng.set_state(state["rng"])
        return int(state["step"])
