"""The trials of one model on one graph, run by the engine and summarised."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from asgnn.experiments.engine import Engine
from asgnn.experiments.executors import local
from asgnn.experiments.store import Store
from asgnn.experiments.values import MAX_TRIALS, Case, Outcome, Settings, count_diverged, trainings_of
from asgnn.progress import Progress
from asgnn.settings import check_count
from asgnn.training import recipe

MEANS = {"test": 3, "test_auc": 3, "val": 3, "target": 3, "edge_auc": 4}  # figure → digits of its mean


def run_trials(
    case: Case,
    model: str = "asgnn",
    settings: Settings = (),
    trials: int = 10,
    *,
    store: Store | None = None,
    root: str | Path | None = None,
    device: str = "cpu",
    progress: Progress | None = None,
) -> dict[str, Any]:
    """The summary of a model's trials on one graph; trainings that the store has are not repeated.

    Args:
        case: the graph and the split.
        model, settings: see :class:`~asgnn.experiments.values.Training`.
        trials: their number; trial i has seed i.
        store: for outcomes; default: in memory.
        root: the folder of the data.
        progress: called after each epoch.
    """
    check_count("trials", trials, 1, MAX_TRIALS)
    recipe(model, **dict(settings))
    with Store.in_memory() as memory:
        executor = local(device, root, progress)
        engine = Engine(store or memory, executor, device, root, largest=trials, edge_aucs=True)
        found = list(engine.outcomes(trainings_of(case, model, settings, trials)).values())
    return {**describe(case), "model": model, "settings": dict(settings), **summarise(found), "device": device}


def describe(case: Case) -> dict[str, Any]:
    """The case as a part of the summary."""
    attack = " and ".join(one.name for one in case.attacks) or None
    found = {"dataset": case.dataset, "poisoned": attack, "rate": case.amount, "split": str(case.split)}
    return found | ({"flips_sha256": case.attacks[0].sha256} if case.attacks and case.attacks[0].sha256 else {})


def summarise(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Means and sample standard deviations of the figures that all trials have, and the figures of each trial."""
    out: dict[str, Any] = {"trials": len(outcomes)}
    for name, digits in MEANS.items():
        if all(name in one.figures for one in outcomes):
            values = [one.figures[name] for one in outcomes]
            spread = stdev(values) if len(values) > 1 else 0.0
            out |= {f"{name}_mean": round(fmean(values), digits), f"{name}_std": round(spread, digits)}
    out["diverged"] = count_diverged(outcomes)
    out["seconds"] = round(sum(one.seconds for one in outcomes), 2)
    out["version"] = outcomes[0].version
    out |= {name: [round(one.figures[name], 3) for one in outcomes] for name in ("test", "val")}
    return out | {"best_epochs": [one.figures["best_epoch"] for one in outcomes]}
