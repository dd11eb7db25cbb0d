"""Choose the default settings of ASGNN: one setting for every graph, by validation accuracy only.

Random settings are trained on the published graphs, clean and with 25 % of Metattack's flips, on the published
split; a setting's score is its validation accuracy, averaged over the graphs. The best few are trained again with
more seeds, and the best of these is chosen. Test accuracies are measured only for the chosen setting, after the choice,
and are part of the record docs/records/defaults.json. The chosen setting is copied by hand into
src/asgnn/training/recipes.py.

    python scripts/choose_defaults.py --device cuda -o docs/records/defaults.json
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Data

from asgnn.asmp.params import Objective
from asgnn.experiments.machine import origin
from asgnn.graphs import Split, load_dataset, load_poisoned, published_split
from asgnn.training import Recipe, accuracy, fit_many, recipe

CASES = [(name, rate) for name in ("cora", "citeseer", "cora_ml") for rate in (0.0, 0.25)]


@dataclass(frozen=True)
class Setting:
    objective: Objective
    num_layers: int
    dropout: float
    lam: float
    gamma: float
    mu1: float
    mu2: float
    eta2: float
    lr: float
    weight_decay: float
    scalar_lr: float

    def recipe(self) -> Recipe:
        return recipe("asgnn", **vars(self))


def draw(objective: Objective, rng: torch.Generator) -> Setting:
    def pick(*values: Any) -> Any:
        return values[int(torch.randint(len(values), (), generator=rng))]

    def between(low: float, high: float) -> float:
        share = float(torch.rand((), generator=rng))
        return float(f"{math.exp(math.log(low) + share * math.log(high / low)):.2g}")

    lam = between(0.5, 8)
    if objective == "degree":
        gamma, mu1 = between(2, 30), between(0.001, 0.3)
        eta2 = float(f"{between(0.05, 0.95) / (gamma + 0.01):.2g}")
    else:
        gamma, mu1 = between(0.1, 15), between(0.001, 0.1)
        eta2 = between(0.02, 0.5)
    return Setting(
        objective,
        pick(4, 8),
        pick(0.5, 0.65, 0.8),
        lam,
        gamma,
        mu1,
        0.01,
        eta2,
        pick(0.005, 0.01, 0.02),
        between(0.0005, 0.005),
        pick(1e-5, 0.003, 0.01, 0.03),
    )


def scores(
    settings: list[Setting], seeds: range, graphs: list[tuple[Data, Split]], device: str, test: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Validation (and test) accuracies in percent, (settings, cases); the mean over the seeds."""
    val = torch.zeros(len(settings), len(graphs))
    tested = torch.full_like(val, torch.nan)
    for case, (data, split) in enumerate(graphs):
        began = time.perf_counter()
        trials = [setting.recipe().trial(data, split, seed) for setting in settings for seed in seeds]
        fits = fit_many(trials, data, device=device)
        val[:, case] = 100 * torch.tensor([f.val_score for f in fits]).view(len(settings), -1).mean(1)
        if test:
            on_device = data.to(device)
            each = [accuracy(f.model, on_device, split.test.to(device)) for f in fits]
            tested[:, case] = 100 * torch.tensor(each).view(len(settings), -1).mean(1)
        name, rate = CASES[case]
        seconds = time.perf_counter() - began
        print(f"{name} {rate:.0%}: {len(trials)} trainings in {seconds:.1f} s", file=sys.stderr, flush=True)
    return val, tested


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--objective", choices=["degree", "paper"], action="append", help="both by default")
    parser.add_argument("--settings", type=int, default=128, help="random settings for each objective")
    parser.add_argument("--seeds", type=int, default=2, help="seeds of the first stage")
    parser.add_argument("--finalists", type=int, default=8)
    parser.add_argument("--final-seeds", type=int, default=10)
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    graphs = []
    for name, rate in CASES:
        data = load_dataset(name)
        if rate:
            data = load_poisoned(name, "metattack", rate).apply(data)
        graphs.append((data, published_split(name)))
    # keep the results of the other objective
    record: dict[str, Any] = json.loads(arguments.output.read_text()) if arguments.output.exists() else {}
    record |= {
        **origin(
            f"python scripts/choose_defaults.py --device {arguments.device} -o docs/records/defaults.json",
            arguments.device,
        ),
        "cases": [f"{name} {rate:.0%}" for name, rate in CASES],
        "chosen_by": "mean validation accuracy over the cases",
    }
    for objective in arguments.objective or ["degree", "paper"]:
        rng = torch.Generator().manual_seed(0)
        settings = [draw(objective, rng) for _ in range(arguments.settings)]
        began = time.perf_counter()
        val, _ = scores(settings, range(arguments.seeds), graphs, arguments.device)
        order = val.mean(1).argsort(descending=True)[: arguments.finalists].tolist()
        finalists = [settings[i] for i in order]
        # other seeds than in the first stage
        seeds = range(100, 100 + arguments.final_seeds)
        val, _ = scores(finalists, seeds, graphs, arguments.device)
        best = int(val.mean(1).argmax())
        _, tested = scores([finalists[best]], seeds, graphs, arguments.device, test=True)
        record[objective] = {
            "settings": arguments.settings,
            "seconds": round(time.perf_counter() - began, 1),
            "chosen": replace(finalists[best]).__dict__,
            "val": [round(v, 2) for v in val[best].tolist()],
            "test_after_the_choice": [round(v, 2) for v in tested[0].tolist()],
            "finalists": [
                {**s.__dict__, "val_mean": round(float(v.mean()), 2), "val": [round(x, 2) for x in v.tolist()]}
                for s, v in zip(finalists, val, strict=True)
            ],
        }
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(json.dumps(record, indent=1) + "\n")
        print(json.dumps({k: v for k, v in record[objective].items() if k != "finalists"}, indent=1), flush=True)


if __name__ == "__main__":
    main()
