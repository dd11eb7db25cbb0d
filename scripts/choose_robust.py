"""Chooses the settings of the recipe asgnn-robust on attacked validation nodes; no label of a test node is read.

    python scripts/choose_robust.py --device cuda --workers 12 -o docs/records/robust.json

Every variant is trained on the clean graph. Then all nodes but the training nodes are attacked at test time, where the
labels of test nodes are the model's own predictions, and the worst accuracy on the validation nodes counts. The best
mean over graphs, splits and budgets wins, among the variants that lose at most one point on the clean validation nodes
against the default settings. The recipe changes only for a gain of more than one validation node, 0.5 points. This last
rule was added after the stored search had been read; without it the record's "best" would have been chosen.
"""

from __future__ import annotations

import argparse
import copy
import json
import multiprocessing
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from asgnn.challenge import EVASION
from asgnn.challenge.attempts import Target, make_flips, planned
from asgnn.challenge.signs import probe
from asgnn.experiments.machine import origin
from asgnn.graphs import Split, load_dataset, stratified_split
from asgnn.training import accuracy, fit_many, predict, recipe

GRAPHS = ("cora", "citeseer")
BUDGETS = (0.05, 0.1, 0.2)
ATTACKS = ("prbcd-relaxed", "prbcd-twin", "unnoticed-most")
DEFAULT, LOSS = "asgnn", 1.0
PRESENT, GAIN = "asgnn, floor 0.1, voice 0.3, tolerance 0.15, prior", 0.5
WITNESS: dict[str, Any] = {"witness_floor": 0.1}
PRIOR: dict[str, Any] = {"prior_neighbors": 20, "prior_weight": 0.1}


def _variant(base: str, **settings: Any) -> tuple[str, str, dict[str, Any]]:
    """The name of a variant, its recipe and what differs from it."""
    words = [f"{name.removeprefix('witness_')} {value:g}" for name, value in settings.items() if name.startswith("w")]
    words += ["prior"] * ("prior_weight" in settings)
    words += [f"{name} {settings[name]}" for name in ("penalty", "gamma") if name in settings]
    return ", ".join([base, *words]), base, settings


def _grid(
    base: str, voices: Sequence[float], tolerances: Sequence[float], **settings: Any
) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        _variant(base, **WITNESS, witness_voice=voice, witness_tolerance=tolerance, **settings)
        for voice in voices
        for tolerance in tolerances
    ]


VARIANTS = {
    name: (base, settings)
    for name, base, settings in (
        _variant("asgnn"),
        _variant("rung"),
        *_grid("asgnn", (0.3, 0.5, 0.8), (0.15, 0.2, 0.3), **PRIOR),
        *_grid("asgnn", (0.3, 0.5), (0.15, 0.2), penalty="mcp", **PRIOR),
        *_grid("rung", (0.3, 0.5, 0.8), (0.15, 0.2, 0.3)),
        *_grid("rung", (0.3, 0.5, 0.8), (0.15, 0.2), **PRIOR),
        *_grid("rung", (0.5,), (0.2,), gamma=3.0),
        *_grid("rung", (0.5, 1.0), (0.2,), witness_bound=3.0),
    )
}


def measure(job: tuple[str, int, str, str]) -> dict[str, Any]:
    """Clean accuracy and envelope on the validation nodes of one variant on one split."""
    graph, trial, name, device = job
    base, settings = VARIANTS[name]
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    data = load_dataset(graph)
    split = stratified_split(data, trial)
    model = fit_many([recipe(base, **settings).trial(data, split, trial)], data, device=device)[0].model
    seen = copy.copy(data)
    seen.y = data.y.clone()
    seen.y[split.test] = predict(model, data)[split.test].to(seen.y)
    attacked = Split(train=split.train, val=split.val, test=torch.cat([split.val, split.test]))
    clean = 100 * accuracy(model, data, split.val)
    through = probe(model, seen, attacked, torch.Generator().manual_seed(0), device=device).through
    envelope, worst = [], clean
    ways = {attack: EVASION[attack] for attack in ATTACKS}
    for budget in BUDGETS:
        for attempt in planned(name, [budget], ways, through):
            way = ways[attempt.attack]
            for made in make_flips(attempt, way, Target(model), seen, attacked, [budget], device=device):
                worst = min(worst, 100 * accuracy(model, made.flips.apply(data), split.val))
        envelope.append(worst)
    return {"graph": graph, "trial": trial, "variant": name, "clean": clean, "attacked": envelope}


def choice(rows: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """The best variant; and the chosen one, which is the present one if that is hardly worse."""
    of = {row["variant"]: row for row in rows}
    allowed = [row for row in rows if row["clean"] >= of[DEFAULT]["clean"] - LOSS]
    best: str = max(allowed, key=lambda row: row["mean"])["variant"]
    return best, best if of[best]["mean"] > of[PRESENT]["mean"] + GAIN else PRESENT


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--splits", type=int, default=1)
    parser.add_argument("--graphs", default=",".join(GRAPHS))
    parser.add_argument("-o", "--output", type=Path, required=True)
    chosen = parser.parse_args()
    jobs = [
        (graph, trial, variant, chosen.device)
        for variant in VARIANTS
        for graph in chosen.graphs.split(",")
        for trial in range(chosen.splits)
    ]
    with multiprocessing.get_context("spawn").Pool(chosen.workers) as pool:
        found: list[dict[str, Any]] = []
        for one in pool.imap_unordered(measure, jobs, chunksize=1):
            print(len(found) + 1, "of", len(jobs), *one.values(), file=sys.stderr, flush=True)
            found.append(one)
    rows: list[dict[str, Any]] = []
    for variant, (base, settings) in VARIANTS.items():
        mine = [one for one in found if one["variant"] == variant]
        attacked = [fmean(one["attacked"][i] for one in mine) for i in range(len(BUDGETS))]
        row: dict[str, Any] = {"variant": variant, "recipe": base, "settings": settings}
        row["clean"] = round(fmean(one["clean"] for one in mine), 2)
        row |= {"attacked": [round(value, 2) for value in attacked], "mean": round(fmean(attacked), 2)}
        rows.append(row)
        print(f"{variant:50} {row['clean']:6.1f}", *(f"{value:6.1f}" for value in attacked))
    best, taken = choice(rows)
    record = {**origin("python scripts/choose_robust.py", chosen.device), "budgets": BUDGETS, "splits": chosen.splits}
    record |= {"graphs": chosen.graphs.split(","), "best": best, "chosen": taken, "rows": rows}
    chosen.output.write_text(json.dumps(record, indent=1) + "\n")
    print("best:", best, "chosen:", taken, sep="\n")


if __name__ == "__main__":
    main()
