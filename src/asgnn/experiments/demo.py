"""The demo: three models on the built-in graph, ever more attacked; kept cell by cell, so a stopped run goes on."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from asgnn.errors import ConfigError
from asgnn.experiments.run import Cell, run_cell
from asgnn.graphs import own_split
from asgnn.graphs.sources import write_file
from asgnn.progress import Progress
from asgnn.version import __version__

MODELS = ("gcn", "appnp", "asgnn")
RATES = (0.0, 0.1, 0.25)


@dataclass(frozen=True)
class Outcome:
    """What the demo found: ``figures[model, rate]`` is a record as a dictionary."""

    models: tuple[str, ...]
    rates: tuple[float, ...]
    figures: dict[tuple[str, float], dict[str, Any]]
    written: tuple[Path, ...]


def run_demo(
    folder: Path,
    *,
    trials: int = 3,
    rates: tuple[float, ...] = RATES,
    device: str = "cpu",
    fresh: bool = False,
    progress: Progress | None = None,
) -> Outcome:
    """Measure every model at every rate and write results.json, table.md and curves.png into ``folder``.

    results.json is written whole after each cell; a later run takes over the cells that it holds, unless ``fresh``.
    """
    cells = {(m, r): _cell(m, r, trials) for r in rates for m in MODELS}
    results = folder / "results.json"
    kept = [] if fresh else _kept(results)
    figures: dict[tuple[str, float], dict[str, Any]] = {}
    for done, (key, cell) in enumerate(cells.items()):
        wanted = asdict(cell) | {"version": __version__}
        found = next((old for old in kept if wanted.items() <= old.items()), None)
        if found is None:

            def report(epoch: int, epochs: int, done: int = done) -> None:
                if progress is not None:
                    progress(done * epochs + epoch, len(cells) * epochs)

            found = run_cell(cell, device=device, progress=report).as_dict()
            kept = [*kept, found]
            write_file(results, json.dumps(kept, indent=1).encode())
        figures[key] = found
    table, picture = folder / "table.md", folder / "curves.png"
    write_file(table, _markdown(figures, rates, trials).encode())
    write_file(picture, _curves(figures, rates))
    return Outcome(MODELS, rates, figures, (table, picture, results))


def _cell(model: str, rate: float, trials: int) -> Cell:
    # one split for all trials: the one whose training labels the attack was made with
    return Cell(
        "cora",
        model,
        poisoned="own-metattack" if rate else None,
        rate=rate,
        split=own_split("cora", "metattack"),
        trials=trials,
    )


def _kept(results: Path) -> list[dict[str, Any]]:
    """What an earlier run left; a file that is not ours is named rather than overwritten."""
    if not results.exists():
        return []
    try:
        kept = json.loads(results.read_bytes())
        if not isinstance(kept, list) or not all(isinstance(record, dict) for record in kept):
            raise ValueError("it holds no list of records")
    except ValueError as wrong:
        raise ConfigError(
            f"{results} is not what an earlier demo wrote ({wrong}); remove it, or use --fresh."
        ) from wrong
    return kept


def _markdown(figures: dict[tuple[str, float], dict[str, Any]], rates: tuple[float, ...], trials: int) -> str:
    lines = [
        f"Test accuracy on Cora, %, mean ± std of {trials} seeds; one random 10/10/80 split, Metattack flips.",
        "",
        f"| flips / edges | {' | '.join(MODELS)} |",
        f"|---:|{'---:|' * len(MODELS)}",
    ]
    for rate in rates:
        cells = (figures[model, rate] for model in MODELS)
        shown = " | ".join(f"{cell['test_mean']:.1f} ± {cell['test_std']:.1f}" for cell in cells)
        lines.append(f"| {rate:.0%} | {shown} |")
    return "\n".join(lines) + "\n"


def _curves(figures: dict[tuple[str, float], dict[str, Any]], rates: tuple[float, ...]) -> bytes:
    """Accuracy against the share of flipped edges, a line a model, as a PNG."""
    import io

    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for model, style in zip(MODELS, ("s--", "^--", "o-"), strict=True):
        means = [figures[model, rate]["test_mean"] for rate in rates]
        spread = [figures[model, rate]["test_std"] for rate in rates]
        axes.errorbar([100 * rate for rate in rates], means, yerr=spread, fmt=style, capsize=3, label=model.upper())
    axes.set_xlabel("flipped edges, % of the edges (Metattack)")
    axes.set_ylabel("test accuracy, %")
    axes.set_title("Node classification on Cora, ever more attacked")
    axes.grid(alpha=0.3)
    axes.legend()
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=150)
    return content.getvalue()
