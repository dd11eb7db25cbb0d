"""Poisoning through the unrolled training of the model itself: PGD and Metattack's greedy loop on its meta-gradient."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from asgnn.attacks.blocks import block_gradient, check_block, draw_block, repaired, resampled
from asgnn.attacks.checkpoint import Checkpoint, State
from asgnn.attacks.problem import Loss, Problem, check_unit, make_problem
from asgnn.attacks.relaxation import best_rounding, check_schedule, project
from asgnn.attacks.rules import check_labelled, check_task, finish, first_allowed
from asgnn.attacks.surrogate import Victim
from asgnn.attacks.unrolled import Retrain, Unrolled, UnrolledTraining, mean_logits
from asgnn.errors import ConfigError
from asgnn.graphs import Perturbation, labels_of
from asgnn.graphs.keys import contains, from_keys, to_keys, unique_keys
from asgnn.progress import Progress
from asgnn.settings import check_count

CHECKS = 8  # how often an ascent is rounded and tried before its end


def meta_pgd(
    data: Data,
    budget: int,
    train: Tensor,
    rng: torch.Generator,
    *,
    model: nn.Module,
    known: Tensor | None = None,
    nodes: Tensor | None = None,
    training: UnrolledTraining | None = None,
    retrain: Retrain | None = None,
    steps: int = 200,
    block_size: int = 60_000,
    base_lr: float = 0.3,
    loss: Loss = "tanh_margin",
    samples: int = 10,
    repair: int = 0,
    allow_isolated: bool = False,
    device: torch.device | str | None = None,
    checkpoint: Checkpoint | None = None,
    progress: Progress | None = None,
) -> Perturbation:
    r"""Projected gradient ascent on the meta-gradient (Mujkanovic et al., NeurIPS 2022), on blocks of pairs.

    Relaxed flips s ∈ [0, 1] of the pairs of a random block follow the gradient of the loss after the unrolled training;
    see :class:`~asgnn.attacks.Unrolled`. After each step pairs with s = 0 are replaced by new ones, as in
    :func:`~asgnn.attacks.prbcd`. The length of a step is at most base_lr · budget / √t, because a meta-gradient can be
    huge. Its noise spreads s over many pairs, so the pairs with the highest s are a poor choice: some times on the way,
    and at the end, sets are drawn with probabilities s, and the victim decides.

    Threat model: global poisoning, white box. The attacker knows the graph, the features, the model and its training,
    and the labels of ``train`` and ``known``. The label of any other node is the prediction of the victim that is
    trained on the clean graph.

    Args:
        data, budget, rng, allow_isolated, device, checkpoint, progress: as for :func:`~asgnn.attacks.pgd`.
        train: the nodes on which the victim is trained, as numbers or a mask.
        model: the untrained victim, or a stack of several; see :class:`~asgnn.attacks.Unrolled`. Its weights are the
            initial ones.
        known: further nodes whose labels the attacker knows, as numbers or a mask.
        nodes: the attacked nodes, as numbers or a mask; by default all nodes outside ``train``.
        training: the settings of the unrolled training.
        retrain: trains the true victim on given edges and returns its logits; for the decisions. By default the
            unrolled training decides. A resumed attack gives the same flips if it always returns the same logits for
            the same edges.
        steps: number of steps.
        block_size: number of pairs in the block, at least twice the budget or all pairs.
        base_lr: the length of the first step, relative to the budget.
        loss: the loss of the attacked nodes that grows; see :func:`~asgnn.attacks.pgd`.
        samples: sets that are drawn at the end, and half as many each of the eight times before.
        repair: rounds of the local search at the end, as for :func:`~asgnn.attacks.pgd`.

    Time O(steps · training steps · (E + block)), memory O((E + block) (H + C) + training steps · weights).
    """
    check_schedule(steps, base_lr, samples, "zero", repair, 1)
    unrolled, labelled, nodes = _unrolled(data, budget, train, known, nodes, model, training, device)
    problem, state = _problem(data, budget, labelled, rng, nodes, unrolled, retrain, loss, block_size, checkpoint)
    meta = {"steps": steps, "block_size": block_size, "base_lr": base_lr, "loss": loss, "samples": samples}
    meta |= {"repair": repair}
    if budget == 0:
        none = finish(data, torch.empty(2, 0, dtype=torch.int64), 0, allow_isolated=allow_isolated, meta=meta)
        return _named(none, "meta_pgd", unrolled, retrain)
    ascent = _Ascent.start(problem, block_size, rng) if state is None else _Ascent.restore(state, problem, rng)
    for step in range(ascent.step, steps):
        gradient = block_gradient(problem, ascent.keys, ascent.s)
        size = float(gradient.norm())
        if step == 0:
            check_unit(size)
        rate = base_lr * budget / math.sqrt(step + 1) / max(size, 1.0)
        ascent = replace(ascent, step=step + 1, s=project(ascent.s + rate * gradient, budget))
        last = step + 1 == steps
        if last or (step + 1) % math.ceil(steps / (CHECKS + 1)) == 0:
            tries = samples if last else math.ceil(samples / 2)
            ascent = ascent.tried(problem, budget, tries, rng, allow_isolated)
        if not last:
            ascent = ascent.resampled(problem, block_size, rng)
        if checkpoint is not None:
            checkpoint.save(problem.state() | ascent.state(rng))
        if progress is not None:
            progress(step + 1, steps)
    flips = repaired(problem, ascent.best, repair, block_size, rng, allow_isolated=allow_isolated)
    found = finish(data, flips, budget, allow_isolated=allow_isolated, meta=meta)
    return _named(found, "meta_pgd", unrolled, retrain)


@dataclass(frozen=True, eq=False)
class _Ascent:
    """The state of an ascent after ``step`` steps: the keys and s of the block, and the best flips so far."""

    step: int
    keys: Tensor
    s: Tensor
    best: Tensor
    value: tuple[float, float]

    @classmethod
    def start(cls, problem: Problem, size: int, rng: torch.Generator) -> _Ascent:
        keys = draw_block(problem, size, rng)
        s = torch.zeros(keys.numel(), dtype=problem.inputs.dtype, device=keys.device)
        return cls(0, keys, s, torch.empty(2, 0, dtype=torch.int64), (-math.inf, -math.inf))

    def tried(self, problem: Problem, budget: int, samples: int, rng: torch.Generator, allow_isolated: bool) -> _Ascent:
        """Draw sets with probabilities s, and keep the best one if it is better than the best so far."""
        s, order = self.s.sort(descending=True, stable=True)
        pairs = from_keys(self.keys[order], problem.num_nodes).cpu()
        flips, value = best_rounding(problem, pairs, s.cpu(), budget, samples, rng, allow_isolated=allow_isolated)
        return replace(self, best=flips, value=value) if value > self.value else self

    def resampled(self, problem: Problem, size: int, rng: torch.Generator) -> _Ascent:
        keys, s = resampled(problem, self.keys, self.s, size, rng)
        return replace(self, keys=keys, s=s)

    def state(self, rng: torch.Generator) -> State:
        return {
            "step": torch.tensor(self.step),
            "rng": rng.get_state(),
            "keys": self.keys,
            "s": self.s,
            "best": self.best,
            "value": torch.tensor(self.value, dtype=torch.float64),
        }

    @classmethod
    def restore(cls, state: State, problem: Problem, rng: torch.Generator) -> _Ascent:
        rng.set_state(state["rng"])
        keys, s = (state[name].to(problem.device) for name in ("keys", "s"))
        first, second = state["value"].tolist()
        return cls(int(state["step"]), keys, s, state["best"], (first, second))


def meta_greedy(
    data: Data,
    budget: int,
    train: Tensor,
    rng: torch.Generator,
    *,
    model: nn.Module,
    known: Tensor | None = None,
    nodes: Tensor | None = None,
    training: UnrolledTraining | None = None,
    retrain: Retrain | None = None,
    steps: int = 125,
    block_size: int = 250_000,
    loss: Loss = "tanh_margin",
    repair: int = 0,
    allow_isolated: bool = False,
    device: torch.device | str | None = None,
    checkpoint: Checkpoint | None = None,
    progress: Progress | None = None,
) -> Perturbation:
    """Metattack's outer loop through the unrolled training of the model itself, with some flips per step.

    Each step takes the meta-gradient of the current graph on a block of pairs and flips the ``budget / steps`` best
    ones. The best quarter of the block stays, and the rest is replaced by new random pairs. No pair is flipped twice.
    The flips are in the order in which they were made, unless ``repair`` swaps some of them.

    Threat model: as :func:`meta_pgd`.

    Args:
        data, budget, train, rng, model, known, nodes, training, loss, allow_isolated, device, checkpoint, progress:
            as for :func:`meta_pgd`.
        retrain: as for :func:`meta_pgd`; it decides only in the local search.
        steps: number of steps; at most ``budget`` are made.
        block_size: number of pairs in the block, at least twice the budget or all pairs.
        repair: rounds of the local search at the end, as for :func:`~asgnn.attacks.pgd`.

    Time and memory as for :func:`meta_pgd`.
    """
    check_count("steps", steps)
    check_count("repair", repair, 0)
    unrolled, labelled, nodes = _unrolled(data, budget, train, known, nodes, model, training, device)
    problem, state = _problem(data, budget, labelled, rng, nodes, unrolled, retrain, loss, block_size, checkpoint)
    n, total, start = problem.num_nodes, min(steps, budget), 0
    made, kept = torch.empty(2, 0, dtype=torch.int64), torch.empty(0, dtype=torch.int64, device=problem.device)
    if state is not None:
        made, kept, start = state["made"], state["kept"].to(problem.device), int(state["step"])
        rng.set_state(state["rng"])
    for step in range(start, total):
        edges = problem.flipped(made)
        fresh = block_size if block_size >= problem.pairs else block_size - kept.numel()
        keys = unique_keys(torch.cat([kept, draw_block(problem, fresh, rng)]))
        keys = keys[~contains(to_keys(made, n).to(keys.device), keys)]
        gradient = block_gradient(problem, keys, torch.zeros(keys.numel(), device=keys.device), edges)
        if step == start:
            check_unit(float(gradient.abs().max()))
        keys = keys[gradient.argsort(descending=True, stable=True)]
        # includes flips that earlier steps could not find
        count = (step + 1) * budget // total - made.size(1)
        flips = first_allowed(from_keys(keys, n).cpu(), count, edges.cpu(), n, allow_isolated=allow_isolated)
        made, kept = torch.cat([made, flips], dim=1), keys[: block_size // 4]
        if checkpoint is not None:
            now = {"step": torch.tensor(step + 1), "made": made, "kept": kept, "rng": rng.get_state()}
            checkpoint.save(problem.state() | now)
        if progress is not None:
            progress(step + 1, total)
    if made.size(1) == budget:
        made = repaired(problem, made, repair, block_size, rng, allow_isolated=allow_isolated)
    meta = {"steps": steps, "block_size": block_size, "loss": loss, "repair": repair}
    found = finish(data, made, budget, allow_isolated=allow_isolated, meta=meta)
    return _named(found, "meta_greedy", unrolled, retrain)


def _unrolled(
    data: Data,
    budget: int,
    train: Tensor,
    known: Tensor | None,
    nodes: Tensor | None,
    model: nn.Module,
    training: UnrolledTraining | None,
    device: torch.device | str | None,
) -> tuple[Unrolled, Tensor, Tensor]:
    """Return the attacked training, the nodes whose labels are known, and the attacked nodes."""
    check_task(data, budget)
    train = check_labelled(train, data)
    labelled = train if known is None else torch.cat([train, check_labelled(known, data)]).unique()
    if nodes is None:
        outside = torch.ones(int(data.num_nodes or 0), dtype=torch.bool)
        outside[train] = False
        if not bool(outside.any()):
            raise ConfigError("Every node is labelled, so none is left to attack; pass the nodes to attack as nodes=.")
        nodes = outside.nonzero().view(-1)
    place = torch.device(device or data.x.device)
    return Unrolled(model, train.to(place), labels_of(data).to(place), training), labelled, nodes


def _problem(
    data: Data,
    budget: int,
    labelled: Tensor,
    rng: torch.Generator,
    nodes: Tensor,
    unrolled: Unrolled,
    retrain: Retrain | None,
    loss: Loss,
    block_size: int,
    checkpoint: Checkpoint | None,
) -> tuple[Problem, State | None]:
    """Return the problem of an attack on the training, checked, and the state of an interrupted run."""
    state = checkpoint.load() if checkpoint is not None else None
    problem = make_problem(
        data,
        budget,
        labelled,
        rng,
        nodes=nodes,
        surrogate=unrolled,
        victim=_victim(retrain),
        loss=loss,
        device=unrolled.train.device,
        state=state,
    )
    check_block(block_size, budget, problem)
    return problem, state


def _victim(retrain: Retrain | None) -> Victim | None:
    """Return the victim that decides: one that is retrained, or ``None`` for the unrolled training itself."""
    if retrain is None:
        return None

    def call(x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        with torch.enable_grad():  # decisions need no gradient, but training does
            logits = retrain(edge_index)
        return mean_logits(logits.detach().to(edge_weight))

    return call


def _named(found: Perturbation, attack: str, unrolled: Unrolled, retrain: Retrain | None) -> Perturbation:
    about = {f"training_{name}": str(value) for name, value in asdict(unrolled.training).items()}
    about |= {"attack": attack, "model": type(unrolled.model).__name__, "retrain": str(retrain is not None)}
    return replace(found, meta={**found.meta, **about})
