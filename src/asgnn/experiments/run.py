"""One cell of a table: dataset → attack → split → trials → record."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from torch_geometric.data import Data

from asgnn.asmp.params import Objective
from asgnn.attacks import dice
from asgnn.errors import ConfigError
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
    published,
    published_split,
    random_split,
)
from asgnn.graphs.sources import hash_of
from asgnn.models import ASGNN
from asgnn.progress import Progress
from asgnn.training import Fit, accuracy, fit_many, recipe
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
        recipe(self.model, objective=self.objective)
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


def run_cell(
    cell: Cell, *, root: str | Path | None = None, device: str = "cpu", progress: Progress | None = None
) -> Record:
    """Load, attack, train all trials as one batch, and measure; the test labels are read once, at the end."""
    clean = load_dataset(cell.dataset, root)
    flips = _flips(cell, clean, root)
    data = clean if flips is None else flips.apply(clean)
    splits = _splits(cell, data, root)
    began = time.perf_counter()
    chosen = recipe(cell.model, objective=cell.objective)
    trials = [chosen.trial(data, split, seed) for seed, split in enumerate(splits)]
    fits = fit_many(trials, data, device=device, progress=progress)
    seconds = time.perf_counter() - began
    data = data.to(device)
    targets = None if flips is None else flips.targets
    return Record(
        cell,
        val=[100 * f.val_accuracy for f in fits],
        test=[100 * accuracy(f.model, data, f.split.test) for f in fits],
        target=None if targets is None else [100 * accuracy(f.model, data, targets) for f in fits],
        edge_auc=None if flips is None else _edge_aucs(fits, data, flips.added(clean)),
        best_epochs=[f.best_epoch for f in fits],
        seconds=seconds,
        device=device,
        flips_sha256=hash_of(Path(cell.poisoned)) if cell.poisoned is not None and is_file(cell.poisoned) else None,
    )


def _flips(cell: Cell, clean: Data, root: str | Path | None) -> Perturbation | None:
    if cell.poisoned is None:
        return None
    if is_file(cell.poisoned):
        found = Perturbation.load(cell.poisoned)
        if found.meta.get("dataset", cell.dataset) != cell.dataset:
            raise ConfigError(f"{cell.poisoned} holds flips for {found.meta['dataset']}, not for {cell.dataset}.")
        return found
    if cell.poisoned in OWN:
        return load_own(cell.dataset, cell.poisoned.removeprefix("own-"), cell.rate)
    if cell.poisoned == "dice":
        budget = int(cell.rate * (clean.num_edges // 2))
        return dice(clean, budget, torch.Generator().manual_seed(DICE_SEED))
    return load_poisoned(cell.dataset, cell.poisoned, cell.rate, root)


def _splits(cell: Cell, data: Data, root: str | Path | None) -> list[Split]:
    if cell.split == "random":
        return [random_split(data, trial) for trial in range(cell.trials)]
    return [find_split(cell.split, data, cell.dataset, root)] * cell.trials


def _edge_aucs(fits: list[Fit], data: Data, added: torch.Tensor) -> list[float] | None:
    models = [f.model for f in fits if isinstance(f.model, ASGNN)]
    if not models or added.size(1) == 0:
        return None
    return [edge_auc(model.structure(data.x, data.edge_index), added) for model in models]
