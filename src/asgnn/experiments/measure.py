"""From a case to its outcomes: load the graph, train a batch of models, measure their figures."""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.data import Data

from asgnn.errors import ConfigError, DataUnavailable, DivergedWarning
from asgnn.experiments.machine import machine
from asgnn.experiments.values import Case, Outcome, SplitName, Training, regular_file
from asgnn.graphs import (
    Perturbation,
    Split,
    find_dataset,
    labels_of,
    load_dataset,
    load_own,
    load_poisoned,
    prepare,
    published_split,
    random_split,
    stratified_split,
)
from asgnn.models import ASGNN
from asgnn.models.foreign import as_model
from asgnn.progress import Progress
from asgnn.training import Fit, fit_many, recipe
from asgnn.training.evaluate import auc, edge_auc
from asgnn.version import __version__


@dataclass(frozen=True)
class Graph:
    """The graph of a case, the clean graph, and the flips between them."""

    data: Data
    clean: Data
    flips: Perturbation | None


def load_graph(case: Case, root: str | Path | None = None, flips: Perturbation | None = None) -> Graph:
    """The graph of a case; an attack that is made needs its ``flips``."""
    clean = load_dataset(case.dataset, root)
    flips = flips or _load_flips(case, root)
    return Graph(clean if flips is None else flips.apply(clean), clean, flips)


def _load_flips(case: Case, root: str | Path | None) -> Perturbation | None:
    if not case.attacks:
        return None
    if len(case.attacks) > 1 or case.attacks[0].source == "made":
        raise ConfigError(f"The flips of {case.label} must be made before the graph is loaded.")
    (attack,) = case.attacks
    if attack.source == "file":
        path = regular_file(Path(attack.path))
        found = Perturbation.load(path)
        if hashlib.sha256(path.read_bytes()).hexdigest() != attack.sha256:
            raise DataUnavailable(f"{path} no longer holds the requested flips (sha256 {attack.sha256}).")
        if found.meta.get("dataset", case.dataset) != case.dataset:
            raise ConfigError(f"{path} holds flips for {found.meta['dataset']}, not for {case.dataset}.")
        return found
    amount = attack.amount or 1.0  # a targeted attack without flips still has its targets
    if attack.source == "built-in":
        found = load_own(case.dataset, attack.kind, amount)
    else:
        found = load_poisoned(case.dataset, attack.kind, amount, root)
    return found if attack.amount else found.first(0)


def find_split(name: SplitName, data: Data, dataset: str, root: str | Path | None = None) -> Split:
    """The split of a graph by its name; random splits follow the rule of the dataset."""
    if name.trial is None and name.of_trial(dataset, 0) != name:
        raise ConfigError(f"Each trial has its own {name} split; choose one, such as {name}:0.")
    if name.kind == "published":
        return published_split(dataset, root, number=name.trial)
    if name.kind == "stratified":
        return stratified_split(data, name.trial or 0)
    return random_split(data, name.trial or 0, **asdict(find_dataset(dataset).rule))


def train(
    graph: Graph,
    trainings: Sequence[Training],
    *,
    root: str | Path | None = None,
    device: str = "cpu",
    edge_aucs: bool = False,
    progress: Progress | None = None,
) -> list[tuple[Outcome, Fit]]:
    """Train models on one graph as one batch, and measure them.

    Test labels are read only here, after training. ``edge_aucs`` adds the figure "edge_auc" for ASGNN on a graph with
    added edges: how well its learned edge weights separate them from original edges (1 is perfect, 0.5 is chance).
    """
    dataset = trainings[0].case.dataset
    splits = {name: find_split(name, graph.data, dataset, root) for name in {one.case.split for one in trainings}}
    recipes = [recipe(one.model, **dict[str, Any](one.settings)) for one in trainings]
    trials = [
        of.trial(graph.data, splits[one.case.split], one.seed) for of, one in zip(recipes, trainings, strict=True)
    ]
    also_on = [] if graph.flips is None else [graph.clean]
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DivergedWarning)  # it is recorded as a figure
        fits = fit_many(trials, graph.data, device=device, also_on=also_on, progress=progress)
    each, where = (time.perf_counter() - began) / len(fits), machine(device)
    out = []
    for training, trial, fit in zip(trainings, trials, fits, strict=True):
        scalars = as_model(trial.model).scalar_values()
        by_auc = dict(training.settings).get("metric") == "roc_auc"
        figures = _figures(fit, graph, by_auc) | (_edge_auc(fit, graph, device) if edge_aucs else {})
        out.append((Outcome(training, figures, each, fit.batch, where, __version__, scalars), fit))
    return out


def ensemble_figures(fits: Sequence[Fit], graph: Graph) -> dict[str, float]:
    """The figures of the mean probability of several models, with the prefix "ensemble_".

    None if the models were not trained on one split: the test nodes of one are training nodes of another.
    """
    split = fits[0].split
    if any(not one.split.test.equal(split.test) for one in fits):
        return {}
    mean = torch.stack([one.logits[0].double().softmax(-1) for one in fits]).mean(0).log()
    y, targets = labels_of(graph.data).cpu(), graph.flips.targets if graph.flips is not None else None
    parts = {"test": split.test} | ({"target": targets} if targets is not None else {})
    return {f"ensemble_{name}": round(_on_nodes(name, mean, y, part)[name], 4) for name, part in parts.items()}


def _figures(fit: Fit, graph: Graph, by_auc: bool) -> dict[str, float]:
    y, kept = labels_of(graph.data).cpu(), max(fit.best_epoch - 1, 0)
    found = {"val": 100 * fit.val_score, "val_loss": float(fit.history.val_loss[kept])}
    found |= _on_nodes("test", fit.logits[0], y, fit.split.test)
    if by_auc:
        test = fit.split.test.cpu()
        found["test_auc"] = 100 * auc((fit.logits[0][test, 1] - fit.logits[0][test, 0]).double(), y[test] == 1)
    if graph.flips is not None:
        found |= _on_nodes("clean_test", fit.logits[1], y, fit.split.test)
        if graph.flips.targets is not None:
            found["target"] = _on_nodes("target", fit.logits[0], y, graph.flips.targets)["target"]
    figures = {**{name: round(value, 4) for name, value in found.items()}, "best_epoch": fit.best_epoch}
    return figures | ({"diverged": 1.0} if fit.diverged else {})


def _on_nodes(name: str, logits: Tensor, y: Tensor, nodes: Tensor) -> dict[str, float]:
    nodes = nodes.cpu()
    loss = F.cross_entropy(logits[nodes].double(), y[nodes])
    hits = (logits[nodes].argmax(-1) == y[nodes]).double()
    return {name: 100 * float(hits.mean()), f"{name}_loss": float(loss)}


def _edge_auc(fit: Fit, graph: Graph, device: str) -> dict[str, float]:
    added = None if graph.flips is None else graph.flips.added(graph.clean)
    if not isinstance(fit.model, ASGNN) or added is None or added.size(1) == 0:
        return {}
    return {"edge_auc": edge_auc(fit.model.structure(*prepare(graph.data, device)), added)}
