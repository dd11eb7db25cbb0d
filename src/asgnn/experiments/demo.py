"""The demo: three models on the built-in graph, clean and under attack; resumes if interrupted."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from asgnn.experiments.engine import Engine
from asgnn.experiments.executors import local
from asgnn.experiments.store import Store
from asgnn.experiments.trials import summarise
from asgnn.experiments.values import MAX_TRIALS, parse_case, trainings_of
from asgnn.graphs import own_split
from asgnn.graphs.sources import write_file
from asgnn.progress import Progress
from asgnn.settings import check_count

MODELS = ("gcn", "appnp", "asgnn")
RATES = (0.0, 0.1, 0.25)
ATTACK = "own-metattack"


Figures = dict[tuple[str, float], dict[str, Any]]
"""(model, rate) → the summary of the trials."""


def run_demo(
    folder: Path, *, trials: int = 3, device: str = "cpu", fresh: bool = False, progress: Progress | None = None
) -> tuple[Figures, tuple[Path, ...]]:
    """Measure every model at every rate; returns the figures and the files written into ``folder``.

    Reuses the results of an earlier run unless ``fresh``.
    """
    check_count("trials", trials, 1, MAX_TRIALS)
    folder.mkdir(parents=True, exist_ok=True)
    results = folder / "results.sqlite"
    if fresh:
        results.unlink(missing_ok=True)
    split = own_split("cora", "metattack")  # one split for all trials: the attack knew its training labels
    asked = {
        (model, rate): trainings_of(parse_case("cora", ATTACK if rate else None, rate, split), model, (), trials)
        for rate in RATES
        for model in MODELS
    }
    with Store.open(results) as store:
        engine = Engine(store, local(device, progress=progress), device, largest=trials, edge_aucs=True)
        found = engine.outcomes([training for trainings in asked.values() for training in trainings])
    figures = {cell: summarise([found[one.key] for one in trainings]) for cell, trainings in asked.items()}
    table, picture = folder / "table.md", folder / "curves.png"
    write_file(table, _markdown(figures, trials).encode())
    write_file(picture, _curves(figures))
    return figures, (table, picture, results)


def mean_std(summary: dict[str, Any]) -> str:
    return f"{summary['test_mean']:.1f} ± {summary['test_std']:.1f}"


def _markdown(figures: Figures, trials: int) -> str:
    lines = [
        f"Test accuracy on Cora, %, mean ± std of {trials} seeds; one random 10/10/80 split, Metattack flips.",
        "",
        f"| flips / edges | {' | '.join(MODELS)} |",
        f"|---:|{'---:|' * len(MODELS)}",
    ]
    for rate in RATES:
        lines.append(f"| {rate:.0%} | {' | '.join(mean_std(figures[model, rate]) for model in MODELS)} |")
    return "\n".join(lines) + "\n"


def _curves(figures: Figures) -> bytes:
    """A PNG: accuracy by the share of flipped edges, one line per model."""
    from matplotlib.figure import Figure  # in the extra "cli"

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for model, style in zip(MODELS, ("s--", "^--", "o-"), strict=True):
        cells = [figures[model, rate] for rate in RATES]
        means, spread = ([cell[name] for cell in cells] for name in ("test_mean", "test_std"))
        axes.errorbar([100 * rate for rate in RATES], means, yerr=spread, fmt=style, capsize=3, label=model.upper())
    axes.set_xlabel("flipped edges, % of the edges (Metattack)")
    axes.set_ylabel("test accuracy, %")
    axes.set_title("Node classification on Cora under attack")
    axes.grid(alpha=0.3)
    axes.legend()
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=150)
    return content.getvalue()
