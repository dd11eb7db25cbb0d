"""The seconds that each attack of a challenge takes, one after the other, on one machine.

    python scripts/attack_seconds.py --device cpu      # adds to the record docs/records/attack_seconds.json
    python scripts/attack_seconds.py --page            # updates the table of docs/challenge.md

Cora, the first split, flips of 5 % of the edges, against a trained GCN and a trained ASGNN. A short attack before warms
up kernels and caches. Attacks on the training are made against the GCN alone. A CPU makes the attacks of the effort
"quick", which are meant for it. The record is written after each row; rows that it has are not measured again.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from pages import fill

from asgnn.challenge import EVASION, POISONING, Attempt
from asgnn.challenge.attempts import Target, Way, chosen, make_flips
from asgnn.challenge.signs import probe
from asgnn.challenge.suite import trainable_target
from asgnn.errors import AsgnnError
from asgnn.experiments.machine import origin
from asgnn.graphs import load_dataset, stratified_split
from asgnn.training import fit_many, recipe

DOCS = Path(__file__).parents[1] / "docs"
RECORD, PAGE = DOCS / "records" / "attack_seconds.json", DOCS / "challenge.md"
MODELS = ("gcn", "asgnn")
BUDGET = 0.05
OF_GCN = ("meta-pgd-pairs", "meta-greedy", "meta-pgd")
WARM = {"prbcd": {"steps": 2, "fine_tune": 1, "repair": 1}, "weakest_first": {"steps": 1}}


def measure(device: str, known: Collection[tuple[str, str]] = ()) -> Iterator[dict[str, Any]]:
    """One row for each model and attack, but for those that are known."""
    data = load_dataset("cora")
    split = stratified_split(data, 0)
    for name in MODELS:
        model = fit_many([recipe(name).trial(data, split, 0)], data, device=device)[0].model
        target = trainable_target(recipe(name), model, data, split, device)
        through = probe(model, data, split, torch.Generator().manual_seed(0), device=device).through
        ways = EVASION | ({attack: POISONING[attack] for attack in ("metattack", *OF_GCN)} if name == "gcn" else {})
        for attack, way in chosen(ways, "quick" if device == "cpu" else "full").items():
            if way.through not in through or (way.seeds > 1 and not way.together) or (name, attack) in known:
                continue
            warm = WARM.get(getattr(way.attack, "__name__", ""))
            if warm is not None:
                seconds_of(attack, replace(way, settings={**way.settings, **warm}), target, data, split, device)
            try:
                seconds = seconds_of(attack, way, target, data, split, device)
            except AsgnnError as problem:
                print(name, attack, problem, file=sys.stderr, flush=True)
                continue
            yield {"model": name, "attack": attack, "seconds": round(seconds, 2)}
            print(name, attack, f"{seconds:.2f}", file=sys.stderr, flush=True)


def seconds_of(attack: str, way: Way, target: Target, data: Any, split: Any, device: str) -> float:
    """Of one set of flips."""
    return make_flips(Attempt(attack, "model", BUDGET), way, target, data, split, [BUDGET], device=device)[0].seconds


def tables() -> dict[str, list[str]]:
    records = json.loads(RECORD.read_text())
    columns = [(machine, model) for machine in records for model in MODELS]
    of = {
        (machine, row["model"], row["attack"]): row["seconds"]
        for machine in records
        for row in records[machine]["rows"]
    }
    lines = [f"| attack | {' | '.join(f'{model}, {machine}' for machine, model in columns)} |"]
    lines.append(f"|:--|{'--:|' * len(columns)}")
    for attack in EVASION | POISONING:
        cells = [of.get((*column, attack)) for column in columns]
        if any(cell is not None for cell in cells):
            shown = ["–" if cell is None else f"{cell:.1f}" for cell in cells]
            lines.append(f"| {attack} | {' | '.join(shown)} |")
    return {"seconds of each attack": lines}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--page", action="store_true")
    parser.add_argument("-o", "--output", type=Path, default=RECORD)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    if not given.page:
        records = json.loads(given.output.read_text()) if given.output.exists() else {}
        about = origin("python scripts/attack_seconds.py", given.device)
        rows = records.get(about["machine"], {}).get("rows", [])
        records[about["machine"]] = {**about, "rows": rows}
        for row in measure(given.device, {(row["model"], row["attack"]) for row in rows}):
            rows.append(row)
            given.output.write_text(json.dumps(records, indent=1) + "\n")
    if given.output == RECORD:
        fill(PAGE, tables())


if __name__ == "__main__":
    main()
