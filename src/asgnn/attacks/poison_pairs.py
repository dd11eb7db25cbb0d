"""Poisoning through the training on dense matrices: all pairs of nodes, many budgets and starts as one batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from asgnn.attacks.problem import LOSSES, Loss, check_unit
from asgnn.attacks.relaxation import multiplier, roundings
from asgnn.attacks.rules import check_labelled, check_rng, check_task, finish
from asgnn.attacks.unrolled import UnrolledMatrices, UnrolledTraining
from asgnn.errors import ConfigError
from asgnn.graphs import Perturbation, labels_of
from asgnn.graphs.adjacency import Normalization
from asgnn.graphs.checks import node_numbers
from asgnn.graphs.dense import DenseAdjacency, shrunk
from asgnn.graphs.features import Features
from asgnn.graphs.keys import from_keys, single_keys, to_keys
from asgnn.progress import Progress
from asgnn.settings import check_choice, check_count, check_number

Trainings = Callable[[Sequence[Tensor]], Sequence[Tensor]]
"""Trains the victim anew on each of some graphs, given as edge_index (2, E), and returns its logits (N, C) of each."""


@dataclass(frozen=True)
class Start:
    """The settings of one run.

    Attributes:
        loss: the loss of the attacked nodes that grows; see :func:`~asgnn.attacks.pgd`.
        share: the share of the pairs, drawn anew in each step, whose s may grow.
        base_lr: the length of the first step, relative to the budget.
    """

    loss: Loss = "tanh_margin"
    share: float = 0.1
    base_lr: float = 0.3

    def __post_init__(self) -> None:
        check_choice("loss", self.loss, tuple(LOSSES))
        check_number("share", self.share, 0, 1, "(]")
        check_number("base_lr", self.base_lr, 0, math.inf, "()")


@dataclass(frozen=True, eq=False)
class MatrixVictim:
    """A model whose training sees the graph as a matrix only.

    Attributes:
        stacked: T → T untrained models as one, which maps features and the matrices of T graphs to logits (T, N, C).
        normalization: of the matrices.
        absent: (N, N) the weights that the model gives to pairs without an edge.
        present: (N, N) the weights that it gives to edges.
        joined: what else the trained model does with its logits.
        shrinkages: each step of the ascent reduces the singular values of the matrices by the next of these, for a
            model that trains on graphs of lower and lower rank.
    """

    stacked: Callable[[int], nn.Module]
    normalization: Normalization
    absent: Tensor
    present: Tensor
    joined: Callable[[Tensor], Tensor] = lambda logits: logits
    shrinkages: tuple[float, ...] = (0.0,)


# Of twelve settings, compared in three runs each against a GCN, with 15 % flips on one split of Cora. All pairs in each
# step, and the losses "probability" and "masked_ce", were clearly weaker.
STARTS = (Start(), Start(share=0.02), Start("elu_margin"), Start(base_lr=0.1))


def meta_pgd_pairs(
    data: Data,
    budgets: Sequence[int],
    train: Tensor,
    rng: torch.Generator,
    *,
    model: MatrixVictim,
    trainings: Trainings,
    known: Tensor | None = None,
    nodes: Tensor | None = None,
    training: UnrolledTraining | None = None,
    starts: Sequence[Start] = STARTS,
    steps: int = 100,
    samples: int = 4,
    checks: int = 4,
    device: torch.device | str | None = None,
    progress: Progress | None = None,
) -> list[list[Perturbation]]:
    r"""Projected gradient ascent on the meta-gradient, as :func:`meta_pgd`, for several budgets and starts at once.

    The graph is a dense matrix, so that one meta-gradient for all budgets and starts is some thousand products of
    matrices: on a GPU many times faster than one after the other on edge lists. It is meant for graphs of a few
    thousand nodes and for models that are a function of the normalised matrix.

    Threat model: as :func:`meta_pgd`, but only nodes with known labels are attacked.

    Args:
        data, train, training, steps, device, progress: as for :func:`meta_pgd`.
        budgets: numbers of flips.
        rng: a CPU generator.
        model: the attacked model; :func:`asgnn.challenge.on_matrices` makes it.
        known: the nodes whose labels the attacker knows beside those of ``train``, as numbers or a mask.
        nodes: the attacked nodes, as numbers or a mask; by default all of ``known`` outside ``train``.
        trainings: trains the true victim on some sets of flips, to decide which of them is the best.
        starts: the runs for each budget, each with random numbers of its own.
        samples: sets that are drawn from s in each check.
        checks: how often on the way the victim is trained on such sets, the last time at the end.

    Returns:
        For each budget its runs.

    Time O(steps · training steps · T N² (H + C)), memory O(T N²) for T = budgets · starts.
    """
    check_rng(rng)
    check_count("steps", steps)
    check_count("samples", samples)
    check_count("checks", checks)
    if not isinstance(model, MatrixVictim):
        raise ConfigError(f"model must be a MatrixVictim, which asgnn.challenge.on_matrices makes; it is {model!r}.")
    if not budgets or not starts:
        raise ConfigError("meta_pgd_pairs needs at least one budget and one start.")
    edges = check_task(data, max(budgets))
    place, n = torch.device(device or data.x.device), int(data.num_nodes or 0)
    train = check_labelled(train, data)
    labelled = train if known is None else torch.cat([train, check_labelled(known, data)]).unique()
    nodes = labelled[~torch.isin(labelled, train)] if nodes is None else node_numbers(nodes, n, "attacked")
    nodes = nodes[torch.isin(nodes, labelled)].to(place)
    if nodes.numel() == 0:
        raise ConfigError("No attacked node has a label that the attacker knows; pass nodes with labels as known=.")
    labels = labels_of(data).to(place)
    for budget in budgets:
        check_count("budget", budget)
    runs = [(int(budget), start) for budget in budgets for start in starts]
    unrolled = UnrolledMatrices(model.stacked(len(runs)), train.to(place), labels, training)
    features = Features.of(data.x.to(place))
    pairs = _Pairs(edges, model, runs, int(torch.randint(2**62, (), generator=rng)), place)
    s = torch.zeros(len(runs), n, n, dtype=features.dtype, device=place)
    best = [(-math.inf, torch.empty(2, 0, dtype=torch.int64))] * len(runs)
    for step in range(steps):
        s.requires_grad_()
        seed = int(torch.randint(2**62, (), generator=rng))
        logits = model.joined(unrolled.after(features, pairs.graphs(s, step), seed))
        values = [
            LOSSES[run.loss](each[nodes], labels[nodes]).mean() for (_, run), each in zip(runs, logits, strict=True)
        ]
        (gradient,) = torch.autograd.grad(torch.stack(values).sum(), s)
        if step == 0:
            check_unit(float(gradient.abs().max()))
        s = pairs.stepped(s.detach(), gradient, step)
        if step + 1 == steps or (step + 1) % math.ceil(steps / checks) == 0:
            tries = [(at, flips) for at in range(len(runs)) for flips in pairs.drawn(s[at], runs[at][0], samples, rng)]
            found = trainings([pairs.flipped(flips) for _, flips in tries])
            for (at, flips), scores in zip(tries, found, strict=True):
                value = _harm(scores.to(place)[nodes], labels[nodes])
                if value > best[at][0]:
                    best[at] = value, flips
        if progress is not None:
            progress(step + 1, steps)
    made = []
    for (budget, start), (_, flips) in zip(runs, best, strict=True):
        meta = {"attack": "meta_pgd_pairs", "steps": steps, "samples": samples, **asdict(start)}
        made.append(finish(data, flips, budget, allow_isolated=False, meta=meta))
    return [made[at : at + len(starts)] for at in range(0, len(made), len(starts))]


def _harm(logits: Tensor, labels: Tensor) -> float:
    """The share of errors; the mean probability of an error breaks ties."""
    wrong = (logits.argmax(1) != labels).double().mean()
    return float(wrong + 1e-6 * LOSSES["probability"](logits, labels).mean())


class _Pairs:
    """All pairs of nodes: which are edges, how the victim weighs them, and what each run may flip."""

    def __init__(
        self, edges: Tensor, model: MatrixVictim, runs: Sequence[tuple[int, Start]], seed: int, device: torch.device
    ) -> None:
        self.edges, self.num_nodes, self.normalization = edges, model.absent.size(0), model.normalization
        self.shrinkages = model.shrinkages
        self.absent = model.absent.to(device)
        self.gain = model.present.to(device) - self.absent
        self.given = torch.zeros_like(self.absent)
        self.given[edges[0], edges[1]] = self.given[edges[1], edges[0]] = 1

        def of_runs(values: Iterable[float]) -> Tensor:
            return torch.tensor(list(values), dtype=self.absent.dtype, device=device).view(-1, 1, 1)

        self.budgets = [budget for budget, _ in runs]
        self.share = of_runs(start.share for _, start in runs)
        self.rate = of_runs(budget * start.base_lr for budget, start in runs)
        self.rng = torch.Generator(device).manual_seed(seed)

    def graphs(self, s: Tensor, step: int) -> DenseAdjacency:
        """The graphs with relaxed flips s (T, N, N), as a step of the ascent sees them; ``step`` counts from 0."""
        weight = self.absent + (self.given + s * (1 - 2 * self.given)) * self.gain
        shrinkage = self.shrinkages[step % len(self.shrinkages)]
        if shrinkage:
            weight = shrunk(weight, shrinkage).clamp(min=0)
        return DenseAdjacency.of(weight, self.normalization)

    @torch.no_grad()
    def stepped(self, s: Tensor, gradient: Tensor, step: int) -> Tensor:
        """s after a step along the gradient, on the budget again; ``step`` counts from 0."""
        gradient = gradient + gradient.mT
        drawn = torch.rand(s.shape, dtype=s.dtype, device=s.device, generator=self.rng).triu_(1) > 1 - self.share
        gradient *= drawn | drawn.mT | (s > 0)
        gradient.diagonal(dim1=-2, dim2=-1).zero_()
        size = gradient.flatten(1).norm(dim=1).view(-1, 1, 1) / math.sqrt(2)  # each pair is there twice
        return self.projected(s + self.rate / math.sqrt(step + 1) * gradient / size.clamp(min=1))

    def projected(self, s: Tensor) -> Tensor:
        """The nearest s in [0, 1] with a sum of at most the budget; each pair is there twice."""
        over = [multiplier(one.flatten(), 2 * budget) for one, budget in zip(s, self.budgets, strict=True)]
        return (s - s.new_tensor(over).view(-1, 1, 1)).clamp_(0, 1)

    def drawn(self, s: Tensor, budget: int, samples: int, rng: torch.Generator) -> Iterator[Tensor]:
        """Sets of ``budget`` pairs, drawn with probabilities s (N, N)."""
        n = self.num_nodes
        # also some pairs with s = 0, in case the others do not suffice
        count = min(max(int((s > 0).sum()), 2 * budget + 1000), n * (n - 1) // 2)
        values, keys = (s - 2 * torch.ones_like(s).tril_()).view(-1).topk(count)  # u < v
        pairs = from_keys(keys, n).cpu()
        yield from roundings(pairs, values.cpu(), budget, samples, rng, self.edges, self.num_nodes)

    def flipped(self, flips: Tensor) -> Tensor:
        """edge_index (2, E), both directions, of the graph after ``flips``."""
        keys = torch.cat([to_keys(self.edges, self.num_nodes), to_keys(flips, self.num_nodes)])
        edges = from_keys(single_keys(keys), self.num_nodes)
        return torch.cat([edges, edges.flip(0)], 1)
