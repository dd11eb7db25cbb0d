"""One cell of a table: dataset → attack → split → trials → record."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.data import Data

from asgnn.asmp.params import Objective
from asgnn.attacks import dice
from asgnn.errors import ConfigError
from asgnn.experiments.machine import machine
from asgnn.experiments.trainings import Case, Outcome, Training, settings_of
from asgnn.graphs import (
    OWN_FLIPS,
    POISONED,
    PUBLISHED_SPLITS,
    Perturbation,
    Split,
    find_dataset,
    load_dataset,
    load_own,
    load_poisoned,
    own_source,
    own_split,
    prepare,
    published,
    published_split,
    random_split,
)
from asgnn.graphs.sources import hash_of
from asgnn.models import ASGNN
from asgnn.models.foreign import as_model
from asgnn.progress import Progress
from asgnn.training import Fit, Recipe, Trial, fit_many, recipe
from asgnn.training.evaluate import edge_auc
from asgnn.version import __version__

OWN = tuple(f"own-{attack}" for attack in OWN_FLIPS)
ATTACKS = (*POISONED, *OWN, "dice")
DICE_SEED = 0  # one attacked graph for every model and trial


@dataclass(frozen=True)
class Cell:
    """What is measured: equal cells are equal measurements.

    Args:
        dataset: a name of ``asgnn.graphs.DATASETS``.
        model: a name of ``asgnn.training.RECIPES``.
        objective: ASGNN's objective; ``None`` for the model's default.
        poisoned: "metattack" or "nettack" (the published graphs), "own-metattack" or "own-nettack" (made by this
            project and built in), "dice" (made on the spot), a file of flips that ends in .npz, or ``None`` for the
            clean graph.
        rate: flips as a share of the edges; for nettack, flips for each target; 0 for the clean graph and for a file.
        split: "published" (one split for all trials), "random" (one a trial) or "random:I" (trial I's for all).
        trials: how many; trial i has seed i.
    """

    dataset: str
    model: str = "asgnn"
    objective: Objective | None = None
    poisoned: str | None = None
    rate: float = 0.0
    split: str = "published"
    trials: int = 10

    def __post_init__(self) -> None:
        object.__setattr__(self, "dataset", find_dataset(self.dataset).name)
        named_recipe(self.model, {} if self.objective is None else {"objective": self.objective})
        if self.trials < 1:
            raise ConfigError(f"There must be at least one trial; trials is {self.trials}.")
        check_split_name(self.split, self.dataset)
        if self.poisoned is None and self.rate:
            raise ConfigError(f"A rate of {self.rate:g} needs an attack: name one of {', '.join(ATTACKS)}.")
        if is_file(self.poisoned):
            if self.rate:
                raise ConfigError(f"{self.poisoned} says itself how many flips it holds; leave the rate out.")
            return
        if self.poisoned is not None and self.poisoned not in ATTACKS:
            raise ConfigError(
                f"There is no attack {self.poisoned!r}; the attacks are {', '.join(ATTACKS)}, "
                "and a file of flips ends in .npz."
            )
        if self.poisoned is not None and not self.rate > 0:
            raise ConfigError(f"The attack {self.poisoned} needs a rate above 0; it is {self.rate:g}.")
        if self.poisoned in POISONED:
            published(self.dataset, self.poisoned, self.rate)
        if self.poisoned in OWN:
            own_source(self.dataset, self.poisoned.removeprefix("own-"), self.rate)

    def trainings(self) -> list[Training]:
        """One for each trial; on random splits, each on its own."""
        settings = settings_of({} if self.objective is None else {"objective": self.objective})
        case = Case(self.dataset, self.poisoned, self.rate, self.split)
        return [Training(case.of_trial(seed), self.model, settings, seed) for seed in range(self.trials)]


def is_file(poisoned: str | None) -> bool:
    """Whether the name of an attack is that of a file with flips."""
    return poisoned is not None and poisoned.endswith(".npz")


def check_split_name(name: str, dataset: str) -> None:
    kind, colon, trial = name.partition(":")
    if kind not in ("published", "random") or (colon and (kind == "published" or not trial.isdecimal())):
        raise ConfigError(f"split must be published, random or random:I with a whole number I; it is {name!r}.")
    if kind == "published" and dataset not in PUBLISHED_SPLITS:
        raise ConfigError(
            f"No split of {dataset} is published, only of {', '.join(PUBLISHED_SPLITS)}; use the split random."
        )


def find_split(name: str, data: Data, dataset: str, root: str | Path | None = None) -> Split:
    """The one split called "published" or "random:I"."""
    check_split_name(name, dataset)
    return published_split(dataset, root) if name == "published" else random_split(data, int(name.partition(":")[2]))


def default_split(dataset: str, poisoned: str | None = None) -> str:
    """The split that the attacked graph was made for, or else the published one, or else a random one a trial."""
    if poisoned is not None and is_file(poisoned):
        made_for = Perturbation.load(poisoned).meta.get("split")
        if made_for is not None:
            return made_for
    if poisoned in OWN:
        return own_split(dataset, poisoned.removeprefix("own-"))
    return "published" if dataset in PUBLISHED_SPLITS else "random"


@dataclass(frozen=True)
class Record:
    """What came out of a cell; accuracies in percent, one entry a trial.

    Attributes:
        val: on the validation nodes, at the epoch that was kept.
        test: on the test nodes.
        target: on the attacked nodes of a targeted attack; else ``None``.
        edge_auc: for ASGNN on an attacked graph, how well its last structure tells added edges from given ones
            (1 is perfect, 0.5 is chance); else ``None``.
        best_epochs: the epochs that were kept.
        seconds: wall time, loading aside.
        device: where it was trained.
        flips_sha256: of the file of flips, if the cell names one; else ``None``.
    """

    cell: Cell
    val: list[float]
    test: list[float]
    target: list[float] | None
    edge_auc: list[float] | None
    best_epochs: list[int]
    seconds: float
    device: str
    flips_sha256: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Flat, for JSON: the cell, then means and sample standard deviations, then the trials."""

        def spread(values: list[float]) -> float:
            return round(stdev(values), 3) if len(values) > 1 else 0.0

        out: dict[str, Any] = asdict(self.cell)
        out |= {"test_mean": round(fmean(self.test), 3), "test_std": spread(self.test)}
        out |= {"val_mean": round(fmean(self.val), 3), "val_std": spread(self.val)}
        if self.target is not None:
            out |= {"target_mean": round(fmean(self.target), 3), "target_std": spread(self.target)}
        if self.edge_auc is not None:
            out["edge_auc_mean"] = round(fmean(self.edge_auc), 4)
        if self.flips_sha256 is not None:
            out["flips_sha256"] = self.flips_sha256
        out |= {"seconds": round(self.seconds, 2), "device": self.device, "version": __version__}
        out |= {"test": [round(v, 3) for v in self.test], "val": [round(v, 3) for v in self.val]}
        out["best_epochs"] = self.best_epochs
        return out


@dataclass(frozen=True)
class Graph:
    """A case's graph, loaded: what models are trained on, the clean one it comes from, and what lies between."""

    data: Data
    clean: Data
    flips: Perturbation | None


def load_graph(case: Case, root: str | Path | None = None, flips: Perturbation | None = None) -> Graph:
    """The graph of a case, or, where the flips are given, the case's clean graph with those made."""
    clean = load_dataset(case.dataset, root)
    flips = flips or _flips(case, clean, root)
    return Graph(clean if flips is None else flips.apply(clean), clean, flips)


@dataclass(frozen=True)
class Trained:
    """What came of a training, and the model itself."""

    outcome: Outcome
    fit: Fit


def train(
    graph: Graph,
    trainings: Sequence[Training],
    *,
    root: str | Path | None = None,
    device: str = "cpu",
    progress: Progress | None = None,
) -> list[Trained]:
    """Train what is to be trained on one graph, all that can be as one batch, and measure it.

    The test labels are read here alone, after all training.
    """
    case = trainings[0].case
    splits = {name: find_split(name, graph.data, case.dataset, root) for name in {one.case.split for one in trainings}}
    trials = [_trial(graph, training, splits[training.case.split]) for training in trainings]
    also_on = [] if graph.flips is None else [graph.clean]
    began = time.perf_counter()
    fits = fit_many(trials, graph.data, device=device, also_on=also_on, progress=progress)
    each, where = (time.perf_counter() - began) / len(fits), machine(device)
    out = []
    for training, trial, fit in zip(trainings, trials, fits, strict=True):
        scalars = as_model(trial.model).scalar_values()
        outcome = Outcome(training, _figures(fit, graph), each, fit.batch, where, __version__, scalars)
        out.append(Trained(outcome, fit))
    return out


def _trial(graph: Graph, training: Training, split: Split) -> Trial:
    settings: dict[str, Any] = dict(training.settings)
    return named_recipe(training.model, settings).trial(graph.data, split, training.seed)


def named_recipe(model: str, settings: dict[str, Any]) -> Recipe:
    """The recipe with these settings; ASGNN's two objectives start from settings of their own."""
    return recipe("asgnn-paper" if model == "asgnn" and settings.get("objective") == "paper" else model, **settings)


def _figures(fit: Fit, graph: Graph) -> dict[str, float]:
    """See :class:`~asgnn.experiments.trainings.Outcome`."""
    y, kept = graph.data.y.cpu(), max(fit.best_epoch - 1, 0)
    found = {"val": 100 * fit.val_accuracy, "val_loss": float(fit.history.val_loss[kept])}
    found |= _on_nodes("test", fit.logits[0], y, fit.split.test)
    if graph.flips is not None:
        found |= _on_nodes("clean_test", fit.logits[1], y, fit.split.test)
        if graph.flips.targets is not None:
            found["target"] = _on_nodes("target", fit.logits[0], y, graph.flips.targets)["target"]
    return {**{name: round(value, 4) for name, value in found.items()}, "best_epoch": fit.best_epoch}


def _on_nodes(name: str, logits: Tensor, y: Tensor, nodes: Tensor) -> dict[str, float]:
    nodes = nodes.cpu()
    loss = F.cross_entropy(logits[nodes].double(), y[nodes])
    hits = (logits[nodes].argmax(-1) == y[nodes]).double()
    return {name: 100 * float(hits.mean()), f"{name}_loss": float(loss)}


def run_cell(
    cell: Cell, *, root: str | Path | None = None, device: str = "cpu", progress: Progress | None = None
) -> Record:
    """Load, attack, train all trials as one batch, and measure."""
    trainings = cell.trainings()
    graph = load_graph(trainings[0].case, root)
    began = time.perf_counter()
    trained = train(graph, trainings, root=root, device=device, progress=progress)
    seconds = time.perf_counter() - began
    figures = [one.outcome.figures for one in trained]
    targeted = graph.flips is not None and graph.flips.targets is not None
    return Record(
        cell,
        val=[one["val"] for one in figures],
        test=[one["test"] for one in figures],
        target=[one["target"] for one in figures] if targeted else None,
        edge_auc=None if graph.flips is None else _edge_aucs(trained, graph, device),
        best_epochs=[one.fit.best_epoch for one in trained],
        seconds=seconds,
        device=device,
        flips_sha256=hash_of(Path(cell.poisoned)) if cell.poisoned is not None and is_file(cell.poisoned) else None,
    )


def _flips(case: Case, clean: Data, root: str | Path | None) -> Perturbation | None:
    if case.poisoned is None:
        return None
    if is_file(case.poisoned):
        found = Perturbation.load(case.poisoned)
        if found.meta.get("dataset", case.dataset) != case.dataset:
            raise ConfigError(f"{case.poisoned} holds flips for {found.meta['dataset']}, not for {case.dataset}.")
        return found
    if case.poisoned == "dice":
        budget = int(case.rate * (clean.num_edges // 2))
        return dice(clean, budget, torch.Generator().manual_seed(DICE_SEED))
    # a targeted attack without flips is the clean graph with the targets known
    rate = case.rate or 1.0
    if case.poisoned in OWN:
        found = load_own(case.dataset, case.poisoned.removeprefix("own-"), rate)
    else:
        found = load_poisoned(case.dataset, case.poisoned, rate, root)
    return found if case.rate else found.first(0)


def _edge_aucs(trained: Sequence[Trained], graph: Graph, device: str) -> list[float] | None:
    assert graph.flips is not None
    added = graph.flips.added(graph.clean)
    models = [one.fit.model for one in trained if isinstance(one.fit.model, ASGNN)]
    if not models or added.size(1) == 0:
        return None
    inputs = prepare(graph.data, device)
    return [edge_auc(model.structure(*inputs), added) for model in models]
