"""Challenges: every attack of the table against one model, and the worst of them for each budget."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from statistics import fmean

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from asgnn.attacks import UnrolledTraining
from asgnn.challenge.attempts import EVASION, POISONING, WAYS, Target, Way, chosen, make_flips, planned
from asgnn.challenge.controls import as_attacked
from asgnn.challenge.ledger import Ledger
from asgnn.challenge.signs import Probe, probe, signs_of_masking
from asgnn.challenge.values import Attempt, AttemptOutcome, Envelope, Kind, Made, check_budgets
from asgnn.errors import ConfigError, GraphError
from asgnn.graphs import Perturbation, Split, labels_of, split_of
from asgnn.graphs.keys import contains, from_keys, to_keys, unique_keys
from asgnn.models import ASGNN, NodeClassifier
from asgnn.progress import Progress
from asgnn.settings import check_count
from asgnn.training import Fit, Recipe, accuracy, fit_many

SEEDS = 3  # trainings on each poisoned graph


@dataclass(frozen=True)
class Challenge:
    """The result of a challenge.

    Attributes:
        kind: "evasion" or "poisoning".
        victim: the name of the model.
        budgets: shares of the edges.
        clean: test accuracy in percent on the clean graph.
        outcomes: of every attempt.
        probe: of the model trained on the clean graph.
    """

    kind: Kind
    victim: str
    budgets: tuple[float, ...]
    clean: float
    outcomes: tuple[AttemptOutcome, ...]
    probe: Probe

    @cached_property
    def envelope(self) -> Envelope:
        """For each budget the worst outcome."""
        return Envelope.of(self.outcomes, self.budgets)

    @cached_property
    def signs(self) -> tuple[str, ...]:
        """Signs of a masked gradient, as sentences."""
        return signs_of_masking(self.probe, self.outcomes, {name: way.through for name, way in WAYS.items()})


def challenge_evasion(
    model: nn.Module,
    data: Data,
    split: Split | None = None,
    budgets: Sequence[float] = (0.05, 0.1, 0.15),
    *,
    name: str = "model",
    ways: Mapping[str, Way] | None = None,
    pool: Iterable[Made] = (),
    unbounded: bool = False,
    ledger: Ledger | None = None,
    device: torch.device | str | None = None,
    progress: Progress | None = None,
) -> Challenge:
    """Attack a trained model at test time: it stays as it is and is judged on the flipped graph.

    The attacker knows the model, the graph and all labels (Mujkanovic et al., NeurIPS 2022), and attacks the test
    nodes. Ways that need a gradient are left out for a model that has none.

    Args:
        model: trained on ``data``.
        data: the clean graph.
        split: its test nodes are attacked; the masks of ``data`` by default.
        budgets: flips as shares of the edges.
        name: of the model, in the outcomes.
        ways: the attacks; by default the quick ones of :data:`~asgnn.challenge.EVASION`. An empty dict tries the pool
            alone.
        pool: flips that were made against other models, to be tried on this one.
        unbounded: whether one attack gets as many flips as edges, too: a sign of a masked gradient if it fails.
        ledger: of an interrupted challenge, which then resumes; by default nothing is kept.
        device: the device of the attacks; that of ``data`` by default.
        progress: called after each attempt.

    Time: that of the attacks, and a forward pass for each outcome.
    """
    split, budgets = split_of(data, split), check_budgets(budgets, data)
    ways, pool = _table(ways, EVASION, pool)
    seen = as_attacked(model, data)
    clean = 100 * accuracy(seen, data, split.test)

    def judge(made: Made) -> float:
        return 100 * accuracy(seen, made.flips.apply(data), split.test)

    scene = _Scene("evasion", name, data, split, budgets, ways, device, unbounded)
    return _run(scene, lambda: Target(seen), clean, judge, pool, ledger or Ledger(), progress)


def challenge_poisoning(
    recipe: Recipe,
    data: Data,
    split: Split | None = None,
    budgets: Sequence[float] = (0.05, 0.1, 0.15),
    *,
    name: str = "model",
    seeds: int = SEEDS,
    ways: Mapping[str, Way] | None = None,
    pool: Iterable[Made] = (),
    ledger: Ledger | None = None,
    device: torch.device | str | None = None,
    progress: Progress | None = None,
) -> Challenge:
    """Attack the training of a model: it is trained anew on each flipped graph, and its validation sees the flips.

    Attacks through the training differentiate 50 steps of it; the others use the model trained on the clean graph.

    Args:
        recipe: the model with its training; see :func:`asgnn.training.recipe`.
        data, split, budgets, name, pool, ledger, device, progress: as for :func:`challenge_evasion`.
        seeds: the number of trainings, whose mean accuracy counts.
        ways: the attacks; by default the quick ones of :data:`~asgnn.challenge.POISONING`.

    Time: that of the attacks, and ``seeds`` trainings, as one batch, for each outcome. The model is trained on the
    clean graph only if its accuracy there is not known or an attack wants it.
    """
    split, budgets = split_of(data, split), check_budgets(budgets, data)
    ways, pool = _table(ways, POISONING, pool)
    check_count("seeds", seeds)
    ledger = ledger or Ledger()

    def train(graph: Data) -> list[Fit]:
        trials = [recipe.trial(graph, split, seed) for seed in range(seeds)]
        return fit_many(trials, graph, device=device)

    def judge(made: Made) -> float:
        flipped = made.flips.apply(data)
        return fmean(_right(one, flipped) for one in train(flipped))

    @cache
    def fits() -> list[Fit]:
        return train(data)

    @cache
    def target() -> Target:
        return trainable_target(recipe, as_attacked(fits()[0].model, data), data, split, device)

    known = ledger.outcomes()
    clean = known[0].before if known else fmean(_right(one, data) for one in fits())
    scene = _Scene("poisoning", name, data, split, budgets, ways, device)
    return _run(scene, target, clean, judge, pool, ledger, progress)


def trainable_target(
    recipe: Recipe, model: nn.Module, data: Data, split: Split, device: torch.device | str | None = None
) -> Target:
    """What an attack on the training can use of a recipe, and of its model that was trained on the clean graph."""

    def retrain(edge_index: Tensor) -> Tensor:
        return trained_on(recipe, data, split, [edge_index], device)[0].to(edge_index.device)

    def trainings(graphs: Sequence[Tensor]) -> list[Tensor]:
        return trained_on(recipe, data, split, graphs, device)

    untrained = recipe.trial(data, split, 0).model
    if isinstance(untrained, NodeClassifier):
        untrained.testimony = getattr(model, "testimony", None)  # does not depend on the edges
    config = recipe.config
    training = UnrolledTraining(lr=config.lr, weight_decay=config.weight_decay, scalar_lr=config.scalar_lr)
    return Target(model, untrained, training, retrain, trainings)


def trained_on(
    recipe: Recipe, data: Data, split: Split, graphs: Sequence[Tensor], device: torch.device | str | None = None
) -> list[Tensor]:
    """Train a model on each of some graphs with the same nodes and return its logits (N, C) of each.

    ``graphs`` holds the edge_index (2, E) of each. If trials may have edge weights of their own, all are one batch, but
    for ASGNN, whose compiled layers are for edges that all trials share.
    """
    together, n, place = copy.copy(data), int(data.num_nodes or 0), data.edge_index.device
    model = recipe.trial(data, split, 0).model
    with torch.enable_grad():  # attacks decide without gradients
        if not getattr(model, "own_weights", False) or isinstance(model, ASGNN):
            fits = []
            for edge_index in graphs:
                together.edge_index = edge_index.to(place)
                fits += fit_many([recipe.trial(together, split, 0)], together, device=device)
        else:
            keys = [to_keys(edge_index.to(place), n) for edge_index in graphs]
            union = unique_keys(torch.cat(keys))
            together.edge_index = from_keys(union, n)
            weights = [contains(own, union).to(data.x.dtype) for own in keys]
            trials = [replace(recipe.trial(together, split, 0), edge_weight=weight) for weight in weights]
            fits = fit_many(trials, together, device=device)
    return [fit.logits[0] for fit in fits]


def _right(fit: Fit, data: Data) -> float:
    """Accuracy in percent on the test nodes of the graph that a model was trained on."""
    y, test = labels_of(data).cpu(), fit.split.test.cpu()
    return 100 * float((fit.logits[0].argmax(-1) == y)[test].float().mean())


def _table(
    ways: Mapping[str, Way] | None, table: Mapping[str, Way], pool: Iterable[Made]
) -> tuple[Mapping[str, Way], tuple[Made, ...]]:
    """The ways and the pool of a challenge; raises if it has nothing to try."""
    found = chosen(table, "quick") if ways is None else ways, tuple(pool)
    if not any(found):
        raise ConfigError("A challenge needs flips to try, but ways and pool are both empty.")
    return found


@dataclass(frozen=True, eq=False)
class _Scene:
    """What is attacked: the arguments of a challenge, checked."""

    kind: Kind
    name: str
    data: Data
    split: Split
    budgets: tuple[float, ...]
    ways: Mapping[str, Way]
    device: torch.device | str | None
    unbounded: bool = False


def _run(
    scene: _Scene,
    target: Callable[[], Target],
    clean: float,
    judge: Callable[[Made], float],
    pool: Sequence[Made],
    ledger: Ledger,
    progress: Progress | None,
) -> Challenge:
    """Make the flips that are missing, and judge all.

    ``target`` returns what is attacked, and ``judge`` the test accuracy in percent after flips.
    """
    found = ledger.probe()
    if found is None:
        model = target().model
        assert model is not None
        found = probe(model, scene.data, scene.split, torch.Generator().manual_seed(0), device=scene.device)
        ledger.keep_probe(found)
    given = {made.attempt: made for made in pool}
    own = planned(scene.name, scene.budgets, scene.ways, found.through, unbounded=scene.unbounded)
    attempts = list(dict.fromkeys([*own, *given]))
    outcomes: list[AttemptOutcome] = []
    for done, attempt in enumerate(attempts, 1):
        outcome = ledger.outcome(attempt)
        if outcome is None:
            made = given.get(attempt) or ledger.made(attempt)
            try:
                made = made or _make(attempt, scene, target(), outcomes, ledger)
                result = (judge(made), len(made.flips), made.seconds)
                outcome = AttemptOutcome(scene.kind, scene.name, attempt, clean, *result)
            except AttackFailed as problem:
                outcome = AttemptOutcome(scene.kind, scene.name, attempt, clean, clean, 0, 0.0, str(problem))
            ledger.keep_outcome(outcome)
        outcomes.append(outcome)
        if progress is not None:
            progress(done, len(attempts))
    return Challenge(scene.kind, scene.name, scene.budgets, clean, tuple(outcomes), found)


class AttackFailed(Exception):
    """An attack could not be made against this model; the message says why."""


def _continued(
    attempt: Attempt, scene: _Scene, outcomes: Sequence[AttemptOutcome], ledger: Ledger
) -> Perturbation | None:
    """The flips that an attempt starts from, if there are any."""
    continues = scene.ways[attempt.attack].continues
    found: list[Attempt] = []
    if continues == "smaller":
        found = [replace(attempt, budget=budget) for budget in scene.budgets if budget < attempt.budget]
    elif continues == "strongest":
        same = [one for one in outcomes if one.attempt.budget == attempt.budget]
        own = [one for one in same if not one.transferred and not one.problem]
        found = [min(own, key=lambda one: one.after).attempt] if own else []
    made = ledger.made(found[-1]) if found else None
    return None if made is None else made.flips


def _make(attempt: Attempt, scene: _Scene, target: Target, outcomes: Sequence[AttemptOutcome], ledger: Ledger) -> Made:
    """Make the flips of an attempt, and keep all that come with them."""
    way, start = scene.ways[attempt.attack], _continued(attempt, scene, outcomes, ledger)
    try:
        found = make_flips(attempt, way, target, scene.data, scene.split, scene.budgets, start, scene.device)
    except (ConfigError, GraphError) as problem:
        # an attack that this model does not allow, perhaps because its first gradient is 0, must not end the others
        raise AttackFailed(str(problem)) from problem
    for made in found:
        ledger.keep_made(made)
    return next(made for made in found if made.attempt == attempt)
