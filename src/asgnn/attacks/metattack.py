"""Metattack: the graph as a hyper-parameter of the training it will spoil."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Literal

import torch
from torch import Tensor
from torch_geometric.data import Data

from asgnn.attacks.checkpoint import Checkpoint
from asgnn.attacks.degrees import DegreeTest
from asgnn.attacks.inner import InnerTraining
from asgnn.attacks.linear import fit_linear, linear_logits
from asgnn.attacks.meta_gradient import MetaGradient
from asgnn.attacks.rules import check_labelled, check_task, finish
from asgnn.errors import ConfigError
from asgnn.graphs import Perturbation
from asgnn.progress import Progress
from asgnn.threads import one_thread

Variant = Literal["self", "train", "both"]
# the paper's λ: the share of the loss on the labelled nodes
SHARE: dict[str, float] = {"self": 0.0, "train": 1.0, "both": 0.5}
NEVER = -math.inf


def metattack(
    data: Data,
    budget: int,
    train: Tensor,
    rng: torch.Generator,
    *,
    variant: Variant = "self",
    exact: bool = True,
    inner: InnerTraining | None = None,
    add: bool = True,
    remove: bool = True,
    degree_test: bool = False,
    allow_isolated: bool = False,
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
    checkpoint: Checkpoint | None = None,
    progress: Progress | None = None,
) -> Perturbation:
    r"""Flips that make a model trained on the graph err (Zügner & Günnemann, ICLR 2019, Alg. 1).

    Each flip is the one whose meta-gradient promises most: the surrogate :math:`\hat A^2 X W_1 W_2` is trained from
    a random start, the attacker's loss is taken at the end of the training, and its derivative in every pair of nodes
    is taken through all steps of the training. The flips are in the order in which they were found, so the first k
    are the attack with budget k.

    Threat model: global, poisoning. The attacker knows the graph, the features and the labels of ``train``, and
    not the model that will be trained: the surrogate stands in for it. "self" raises the loss of all other nodes
    against the labels that the surrogate gives them on the clean graph (Meta-Self), "train" that of the labelled
    nodes (Meta-Train), "both" the mean of the two (Meta-Both).

    Args:
        data: the clean graph.
        budget: the number of flips, met exactly.
        train: numbers or mask of the nodes whose labels are known.
        rng: a CPU generator; equal states give equal flips on one machine.
        variant: what the attacker's loss is.
        exact: through the training, or, with ``False``, the sum of the gradients at its steps as if the weights did
            not depend on the graph (the paper's A-Meta). Here the exact one is also the faster one.
        inner: how the surrogate is trained.
        add: whether edges may be added.
        remove: whether edges may be removed.
        degree_test: whether the degrees must stay plausible: :class:`~asgnn.attacks.degrees.DegreeTest`.
        allow_isolated: whether a removal may leave a node without an edge.
        device: where to compute.
        dtype: of the computation.
        checkpoint: where a stopped attack is kept.
        progress: called after every flip.

    Time O(T n² h + n² N + E n + N² C) a flip for n labelled nodes and T inner steps, whatever the number of features;
    memory O(N²), a few matrices.
    """
    check_task(data, budget)
    labelled = check_labelled(train, data)
    inner = inner or InnerTraining()
    if variant not in SHARE:
        raise ConfigError(f"variant must be self, train or both; it is {variant!r}.")
    if not add and not remove:
        raise ConfigError("Metattack can neither add nor remove edges with add=False and remove=False.")
    if labelled.numel() == data.num_nodes and variant != "train":
        raise ConfigError("Every node is labelled, so none is left to attack; use variant='train'.")
    state = checkpoint.load() if checkpoint is not None else None
    if state is None:
        drawn = torch.randint(2**62, (1,), generator=rng)
        pseudo = pseudo_labels(data, labelled, torch.Generator().manual_seed(int(drawn)))
        state = {"flips": torch.empty(2, 0, dtype=torch.int64), "seed": drawn, "pseudo": pseudo}
    seed, flips = int(state["seed"]), state["flips"].t().tolist()
    place = torch.device(device or "cpu")
    with one_thread(place.type == "cpu"):
        graph = MetaGradient(data, labelled, state["pseudo"], SHARE[variant], inner, place, dtype)
        rules = _Rules(add, remove, DegreeTest(graph.degree) if degree_test else None, allow_isolated)
        for u, v in flips:
            graph.flip(u, v)
        while len(flips) < budget:
            # A start of its own for every flip, drawn by its number, so that a stopped attack goes on with the same.
            start = torch.Generator().manual_seed((seed + len(flips)) % 2**62)
            # Alg. 1: train from a random start, back-propagate through the training, turn the sign on edges, …
            score = graph.scores(*graph.start(start), exact=exact)
            # … take the highest entry that the constraints allow, and flip it
            pair = rules.best(score, graph, flips)
            if pair is None:
                break
            graph.flip(*pair)
            flips.append(list(pair))
            if checkpoint is not None:
                checkpoint.save({**state, "flips": torch.tensor(flips).t()})
            if progress is not None:
                progress(len(flips), budget)
    meta = {"attack": "metattack", "variant": variant, "exact": exact, "add": add, "remove": remove}
    meta |= {"degree_test": degree_test} | {f"inner_{key}": value for key, value in asdict(inner).items()}
    found = torch.tensor(flips, dtype=torch.int64).reshape(-1, 2).t()
    return finish(data, found, budget, allow_isolated=allow_isolated, meta=meta)


def pseudo_labels(data: Data, labelled: Tensor, rng: torch.Generator) -> Tensor:
    """(N,) the classes that a surrogate trained on the clean graph gives (Alg. 1, its first two lines)."""
    return linear_logits(data, fit_linear(data, labelled, rng)).argmax(1)


@dataclass(frozen=True)
class _Rules:
    """Which flips are allowed."""

    add: bool
    remove: bool
    degree_test: DegreeTest | None
    allow_isolated: bool

    def best(self, score: Tensor, graph: MetaGradient, flips: list[list[int]]) -> tuple[int, int] | None:
        """The pair of the highest score that may be flipped, or ``None``; ``score`` is spoilt."""
        row, col = graph.edges()
        degree = graph.degree
        # edges apart, because what is allowed differs between additions and removals
        removals = score[row, col]
        if not self.remove:
            removals.fill_(NEVER)
        if not self.allow_isolated:
            last = (degree == 1).to(score.device)
            removals.masked_fill_(last[row] | last[col], NEVER)
        if not self.add:
            score.fill_(NEVER)
        if self.degree_test is not None:
            values, kind = degree.unique(return_inverse=True)
            added, removed = (
                ~self.degree_test.allowed(degree, values.unsqueeze(1), values, step).to(score.device)
                for step in (1, -1)
            )
            kind = kind.to(score.device)
            score.masked_fill_(added[kind][:, kind], NEVER)
            removals.masked_fill_(removed[kind[row], kind[col]], NEVER)
        score[row, col] = removals
        if flips:
            u, v = torch.tensor(flips, device=score.device).t()
            score[u, v] = NEVER
        # rows first: torch finds the place of a maximum several times more slowly than the maximum
        first = int(score.amax(1).argmax())
        second = int(score[first].argmax())
        best = float(score[first, second])
        if best == NEVER:
            return None
        if not math.isfinite(best):
            raise ConfigError("The meta-gradient of Metattack is not finite; use a smaller lr or fewer steps.")
        return first, second
