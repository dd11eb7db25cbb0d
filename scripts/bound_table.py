"""What a bound on the edges costs, and how many nodes it makes safe from any flips.

    python scripts/bound_table.py            # the record and the table of docs/structure.md
    python scripts/bound_table.py --page     # the table alone

For the recipe asgnn-safe with each bound: test accuracy on the clean graph, and the share of test nodes that are right
and safe from any number of flips, before and after training. Mean over the splits of Mujkanovic et al.; nothing is
chosen here.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from statistics import fmean
from typing import Any

from pages import arguments, fill

from asgnn.experiments.machine import origin
from asgnn.graphs import labels_of, load_dataset, prepare, stratified_split
from asgnn.training import fit_many, recipe

DOCS = Path(__file__).parents[1] / "docs"
RECORD, PAGE = DOCS / "records" / "bound.json", DOCS / "structure.md"
GRAPHS = ("cora", "citeseer")
BOUNDS = (0.0, 4.0, 2.0, 1.0, 0.5, 0.25, 0.1)  # 0 is no bound; the last is that of the recipe


def measure(graph: str, trial: int) -> list[dict[str, Any]]:
    """One row for each bound, beside the witness alone."""
    data = load_dataset(graph)
    split, y = stratified_split(data, trial), labels_of(data)
    trials = [recipe("asgnn-safe", witness_bound=bound).trial(data, split, trial) for bound in BOUNDS]
    rows = []
    for bound, fit in zip(BOUNDS, fit_many(trials, data), strict=True):
        model: Any = fit.model
        p = model.testimony.probabilities(*prepare(data))
        right, witness = ((one.argmax(-1) == y)[split.test] for one in (fit.logits[0], p))
        safe = model.witness.safe(p)[split.test]
        assert bool((right | ~witness | ~safe).all()), "A node that is safe has the answer of the witness."
        shares = {"accuracy": right, "safe": right & safe, "witness": witness}
        about = {"graph": graph, "split": trial, "bound": bound}
        rows.append(about | {name: round(100 * float(one.double().mean()), 2) for name, one in shares.items()})
    return rows


def tables() -> dict[str, list[str]]:
    rows = json.loads(RECORD.read_text())["rows"]
    head = [f"{graph}, accuracy | right and safe" for graph in GRAPHS]
    lines = [f"| bound | {' | '.join(head)} |", f"|:--|{'--:|' * 2 * len(GRAPHS)}"]
    for bound in BOUNDS:
        cells = [_mean(rows, graph, bound, name) for graph in GRAPHS for name in ("accuracy", "safe")]
        lines.append(f"| {f'{bound:g}' if bound else 'none'} | {' | '.join(cells)} |")
    alone = [f"{_mean(rows, graph, 0.0, 'witness')} | {_mean(rows, graph, 0.0, 'witness')}" for graph in GRAPHS]
    return {"bound": [*lines, f"| the witness alone | {' | '.join(alone)} |"]}


def _mean(rows: list[dict[str, Any]], graph: str, bound: float, name: str) -> str:
    return f"{fmean(row[name] for row in rows if (row['graph'], row['bound']) == (graph, bound)):.1f}"


def main() -> None:
    chosen = arguments(__doc__, splits=5)
    if not chosen.page:
        warnings.simplefilter("ignore")
        rows = [row for graph in GRAPHS for trial in range(chosen.splits) for row in measure(graph, trial)]
        record = {**origin("python scripts/bound_table.py", "cpu"), "rows": rows}
        RECORD.write_text(json.dumps(record, indent=1) + "\n")
    fill(PAGE, tables())


if __name__ == "__main__":
    main()
