"""Metattack: poisoning by meta-gradients, with the graph as a hyper-parameter of the training."""

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
from asgnn.attacks.meta_gradient import MetaGradient, MetaLoss
from asgnn.attacks.rules import check_labelled, check_rng, check_task, finish
from asgnn.errors import ConfigError
from asgnn.graphs import Perturbation, labels_of
from asgnn.graphs.checks import node_numbers
from asgnn.progress import Progress
from asgnn.settings import check_choice
from asgnn.threads import one_thread

Variant = Literal["self", "train", "both"]
# the weight of the labelled nodes in the attacker's loss; the paper's λ
SHARE: dict[str, float] = {"self": 0.0, "train": 1.0, "both": 0.5}
NEVER = -math.inf


def metattack(
    data: Data,
    budget: int,
    train: Tensor,
    rng: torch.Generator,
    *,
    variant: Variant = "self",
    known: Tensor | None = None,
    nodes: Tensor | None = None,
    loss: MetaLoss = "ce",
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
    r"""Metattack: global poisoning by meta-gradients (Zügner & Günnemann, ICLR 2019, Alg. 1).

    The attack is greedy. For each flip, the surrogate :math:`\hat A^2 X W_1 W_2` is trained from a random
    initialisation, and the attacker's loss after training is differentiated in every pair of nodes, through all steps
    of the training. The allowed pair with the highest score is flipped. The flips are in the order in which they were
    found, so the first k flips are the attack with budget k.

    Threat model: global, poisoning. The attacker knows the graph, the features and the labels of ``train``, but not
    the model that will be trained; the surrogate replaces it. "self" maximises the loss of the unlabelled nodes with
    respect to the labels that the surrogate predicts on the clean graph (Meta-Self), "train" the loss of the labelled
    nodes (Meta-Train), and "both" the mean of the two (Meta-Both). Not in the paper: an attacker who knows more labels
    (``known``) or who attacks only some nodes (``nodes``), and a loss that ignores nodes that are already
    misclassified (``loss``).

    Args:
        data: the clean graph.
        budget: the exact number of flips.
        train: the nodes whose labels are known, as numbers or a mask.
        rng: a CPU generator; the same state gives the same flips on the same machine.
        variant: the nodes of the attacker's loss: "self", "train" or "both".
        known: further nodes whose labels the attacker knows, as numbers or a mask; no surrogate is trained on them.
        nodes: the attacked nodes of "self" and "both", as numbers or a mask; by default all nodes outside ``train``.
        loss: "ce", cross-entropy as in the paper, or "tanh_margin" (Geisler et al. 2021), which is much stronger if
            the labels of the attacked nodes are known.
        exact: whether to differentiate through the training. ``False`` sums the gradients at its steps and treats the
            weights as constant (A-Meta in the paper); here this is slower than the exact gradient.
        inner: settings of the surrogate's training.
        add: whether edges may be added.
        remove: whether edges may be removed.
        degree_test: whether the flips must pass :class:`~asgnn.attacks.degrees.DegreeTest`.
        allow_isolated: whether a removal may leave a node without an edge.
        device: device of the computation; the CPU by default.
        dtype: dtype of the computation.
        checkpoint: stores the state after every flip; an interrupted attack resumes from it.
        progress: called after every flip.

    Time O(T n² h + n² N + E n + N² C) per flip for n labelled nodes and T inner steps, independent of the number of
    features; memory O(N²), a few matrices.
    """
    check_task(data, budget)
    check_rng(rng)
    labelled = check_labelled(train, data)
    inner = inner or InnerTraining()
    check_choice("variant", variant, tuple(SHARE))
    check_choice("loss", loss, ("ce", "tanh_margin"))
    if not add and not remove:
        raise ConfigError("add and remove are both False, so Metattack has nothing to flip; allow at least one.")
    if labelled.numel() == data.num_nodes and variant != "train":
        raise ConfigError("Every node is labelled, so none is left to attack; use variant='train'.")
    if nodes is not None:
        nodes = node_numbers(nodes, int(data.num_nodes), "attacked")
        if bool(torch.isin(nodes, labelled).all()):
            raise ConfigError("All attacked nodes are training nodes; use variant='train'.")
    state = checkpoint.load() if checkpoint is not None else None
    if state is None:
        drawn = torch.randint(2**62, (1,), generator=rng)
        pseudo = pseudo_labels(data, labelled, torch.Generator().manual_seed(int(drawn)))
        if known is not None:
            known = check_labelled(known, data)
            pseudo[known] = labels_of(data).cpu()[known]
        state = {"flips": torch.empty(2, 0, dtype=torch.int64), "seed": drawn, "pseudo": pseudo}
    seed, flips = int(state["seed"]), state["flips"].t().tolist()
    place = torch.device(device or "cpu")
    with one_thread(place.type == "cpu"):
        graph = MetaGradient(
            data, labelled, state["pseudo"], SHARE[variant], inner, place, dtype, nodes=nodes, loss=loss
        )
        constraints = _Constraints(add, remove, DegreeTest(graph.degree) if degree_test else None, allow_isolated)
        for u, v in flips:
            graph.flip(u, v)
        while len(flips) < budget:
            # The seed depends on the number of the flip, so that a resumed attack uses the same initialisations.
            start = torch.Generator().manual_seed((seed + len(flips)) % 2**62)
            # Alg. 1: train from a random initialisation, back-propagate, invert the sign on edges, …
            score = graph.scores(*graph.start(start), exact=exact)
            # … and flip the allowed pair with the highest score
            pair = constraints.best(score, graph, flips)
            if pair is None:
                break
            graph.flip(*pair)
            flips.append(list(pair))
            if checkpoint is not None:
                checkpoint.save({**state, "flips": torch.tensor(flips).t()})
            if progress is not None:
                progress(len(flips), budget)
    meta = {"attack": "metattack", "variant": variant, "exact": exact, "add": add, "remove": remove}
    meta |= {"degree_test": degree_test, "loss": loss} | {f"inner_{key}": value for key, value in asdict(inner).items()}
    found = torch.tensor(flips, dtype=torch.int64).reshape(-1, 2).t()
    return finish(data, found, budget, allow_isolated=allow_isolated, meta=meta)


def pseudo_labels(data: Data, labelled: Tensor, rng: torch.Generator) -> Tensor:
    """Return the classes (N,) that a surrogate trained on the clean graph predicts (Alg. 1, first two lines)."""
    return linear_logits(data, fit_linear(data, labelled, rng)).argmax(1)


@dataclass(frozen=True)
class _Constraints:
    """The constraints on the flips."""

    add: bool
    remove: bool
    degree_test: DegreeTest | None
    allow_isolated: bool

    def best(self, score: Tensor, graph: MetaGradient, flips: list[list[int]]) -> tuple[int, int] | None:
        """Return the allowed pair with the highest score, or ``None``; overwrites ``score``."""
        row, col = graph.edges()
        degree = graph.degree
        # separate, because the constraints of additions and removals differ
        removals = score[row, col]
        if not self.remove:
            removals.fill_(NEVER)
        if not self.allow_isolated:
            leaf = (degree == 1).to(score.device)
            removals.masked_fill_(leaf[row] | leaf[col], NEVER)
        if not self.add:
            score.fill_(NEVER)
        if self.degree_test is not None:
            values, kind = degree.unique(return_inverse=True)
            no_addition, no_removal = (
                ~self.degree_test.allowed(degree, values.unsqueeze(1), values, step).to(score.device)
                for step in (1, -1)
            )
            kind = kind.to(score.device)
            score.masked_fill_(no_addition[kind][:, kind], NEVER)
            removals.masked_fill_(no_removal[kind[row], kind[col]], NEVER)
        score[row, col] = removals
        if flips:
            u, v = torch.tensor(flips, device=score.device).t()
            score[u, v] = NEVER
        # by rows, because in torch argmax over the matrix is several times slower than amax
        first = int(score.amax(1).argmax())
        second = int(score[first].argmax())
        best = float(score[first, second])
        if best == NEVER:
            return None
        if not math.isfinite(best):
            raise ConfigError("The meta-gradient of Metattack is not finite; use a smaller lr or fewer steps.")
        return first, second
