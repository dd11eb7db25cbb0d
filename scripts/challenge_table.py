"""Models under attackers who know them: many models and splits at once, on one machine.

    python scripts/challenge_table.py run --models gcn,asgnn --dataset cora --splits stratified:0..4 \
        --budgets 0.05,0.1,0.15 --kinds evasion,poisoning --device cuda --workers 12 --store challenge.sqlite
    python scripts/challenge_table.py table --store challenge.sqlite --models gcn,asgnn     # prints what the store has
    python scripts/challenge_table.py record --store challenge.sqlite --models gcn,asgnn    # adds to the record
    python scripts/challenge_table.py page                                         # updates tables of docs/challenge.md

The record is docs/records/challenge.json, which the report shows. The script needs no package of the command line;
`asgnn challenge` does the same with one.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pages import fill

from asgnn.challenge.suite import SEEDS
from asgnn.errors import AsgnnError
from asgnn.experiments.challenge import (
    CONTROLS,
    NODES,
    SERIES,
    Job,
    Subject,
    headings,
    jobs_of,
    parse_splits,
    record_rows,
    run_challenge,
    standing,
    table_rows,
)
from asgnn.experiments.store import Store
from asgnn.version import __version__

DOCS = Path(__file__).parents[1] / "docs"
RECORD, PAGE = DOCS / "records" / "challenge.json", DOCS / "challenge.md"


def jobs(chosen: argparse.Namespace) -> list[Job]:
    subjects = [Subject.parse(name) for name in chosen.models.split(",") if name]
    subjects += [] if chosen.no_controls else CONTROLS.values()
    shares = [float(word) for word in chosen.budgets.split(",")]
    attacks = [name for name in chosen.attacks.split(",") if name]
    found = []
    for dataset in chosen.dataset.split(","):
        splits = parse_splits(chosen.splits)
        found += jobs_of(
            chosen.kinds.split(","),
            dataset,
            splits,
            subjects,
            shares,
            chosen.effort,
            nodes=chosen.local,
            attacks=attacks,
            seeds=chosen.seeds,
        )
    return found


def show(asked: Sequence[Job], path: Path) -> None:
    with Store.open(path, create=False) as store:
        found = standing(store, asked)
    for kind, dataset in dict.fromkeys((one.kind, one.dataset) for one in found):
        budgets = asked[0].budgets
        group = [one for one in found if (one.kind, one.dataset) == (kind, dataset)]
        rows = [headings(budgets), *table_rows(group, budgets)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        splits = max(len(one.splits) for one in group)
        print(f"\n{dataset}, {kind}: test accuracy, %, mean of {splits} splits; worst of all attempts for each budget")
        for row in rows:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        for one in group:
            times = ", ".join(f"{attack} {seconds:.1f}" for attack, seconds in one.seconds.items() if seconds >= 0.05)
            print(f"  {one.subject.name}, seconds of each attack: {times or 'less than 0.05'}")
            for sentence in () if one.subject in CONTROLS.values() else one.signs:
                print(f"  {one.subject.name}: {sentence}")


def record(asked: Sequence[Job], path: Path) -> None:
    """Write what the store has into the record; rows of other graphs, kinds and models stay.

    So does a lower accuracy of the same model on as many splits, which was the worst of the attempts in another store,
    and the time of attacks that this store does not have.
    """
    with Store.open(path, create=False) as store:
        rows = record_rows(standing(store, asked))
        series = [one for job in asked for kind in (SERIES, NODES) for one in store.series_of(job.key, kind)]
    machines = sorted({one.content["machine"] for one in series})
    for row in rows:
        row["machines"] = machines
        if row["kind"] == "poisoning" and asked[0].seeds != SEEDS:
            row["seeds"] = asked[0].seeds
    new = {(row["graph"], row["kind"], row["model"]) for row in rows}
    kept = json.loads(RECORD.read_text())["rows"] if RECORD.exists() else []
    known = {_cell(row): row for row in kept}
    for row in rows:
        before = known.get(_cell(row))
        if before is None:
            continue
        _take_lower(row, before)
        if "seconds" in row:
            row["seconds"] = before.get("seconds", {}) | row["seconds"]
            if "random" in before:
                row.setdefault("random", before["random"])
        row["machines"] = sorted({*before["machines"], *machines})
    for smaller, row in itertools.pairwise(sorted(rows, key=_cell)):
        if _cell(smaller)[:-1] == _cell(row)[:-1]:  # an attacker may leave flips unused
            _take_lower(row, smaller)
    rows = [row for row in kept if (row["graph"], row["kind"], row["model"]) not in new] + rows
    about = {"command": "python scripts/challenge_table.py record", "version": __version__}
    RECORD.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


def _take_lower(row: dict[str, Any], other: dict[str, Any]) -> None:
    """Take over the outcome of another row under attack if it is lower."""
    if other["budget"] and other["accuracy"] < row["accuracy"]:
        row |= {"accuracy": other["accuracy"], "worst": other["worst"]}


def _cell(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("graph", "kind", "model", "splits", "budget"))


def tables() -> dict[str, list[str]]:
    """The tables of the page, by name: test accuracy that is left, controls last."""
    rows = json.loads(RECORD.read_text())["rows"]
    found = {}
    for kind, graph in dict.fromkeys((row["kind"], row["graph"]) for row in rows):
        group = [row for row in rows if (row["kind"], row["graph"]) == (kind, graph)]
        budgets = sorted({row["budget"] for row in group})
        head = ["model", *("clean" if not budget else f"{budget:.0%}" for budget in budgets), "splits"]
        lines = [f"| {' | '.join(head)} |", f"|:--|{'--:|' * (len(head) - 1)}"]
        for model in sorted(dict.fromkeys(row["model"] for row in group), key=lambda name: _is_control(group, name)):
            cells = {row["budget"]: row for row in group if row["model"] == model}
            shown = [f"{cells[budget]['accuracy']:.1f}" if budget in cells else "–" for budget in budgets]
            lines.append(f"| {model} | {' | '.join(shown)} | {next(iter(cells.values()))['splits']} |")
        found[f"{kind}, {graph}"] = lines
    return found


def _is_control(rows: Sequence[dict[str, Any]], model: str) -> bool:
    return any(row["control"] for row in rows if row["model"] == model)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["run", "table", "record", "page"])
    parser.add_argument("--models", default="gcn,asgnn", help="separated by commas; settings as asgnn+lam=1+gamma=2")
    parser.add_argument("--dataset", default="cora")
    parser.add_argument("--splits", default="stratified:0..4")
    parser.add_argument("--budgets", default="0.05,0.1,0.15")
    parser.add_argument("--kinds", default="evasion")
    parser.add_argument("--effort", default="quick", choices=["quick", "full"])
    parser.add_argument("--attacks", default="", help="the only ones to make, separated by commas")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="trainings on each poisoned graph")
    parser.add_argument("--local", action="store_true", help="single nodes; budgets are shares of the degree")
    parser.add_argument("--no-controls", action="store_true")
    parser.add_argument("--no-transfers", action="store_true", help="only the attacks that are made for each model")
    parser.add_argument("--store", type=Path, default=Path("runs/challenge.sqlite"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=1)
    chosen = parser.parse_args()
    if chosen.what == "page":
        fill(PAGE, tables())
        return
    try:
        asked = jobs(chosen)
        if chosen.what == "run":
            chosen.store.parent.mkdir(parents=True, exist_ok=True)
            run_challenge(
                asked,
                chosen.store,
                device=chosen.device,
                workers=chosen.workers,
                transfers=not chosen.no_transfers,
                report=lambda line: print(line, file=sys.stderr, flush=True),
            )
        if chosen.what == "record":
            record(asked, chosen.store)
        show(asked, chosen.store)
    except AsgnnError as known:
        sys.exit(str(known))


if __name__ == "__main__":
    main()
