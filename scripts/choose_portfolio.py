"""Choose the portfolio of ASGNN: 16 settings that together suit very different graphs, by validation scores only.

Candidates (``asgnn.training.candidates``) are trained on the published graphs, clean and with 25 % of Metattack's
flips, on the published split, and on the generated graphs whose names begin with "tuning-". The portfolio starts with
the recipe itself. Then the candidate is added that raises the mean over the graphs of the best member's value most,
until there are 16. The value is the mean of the validation accuracy and of the geometric mean of the calibrated
probabilities of the right classes: of the accuracy alone, the best of many is often the luckiest. No label of a test
node is read, and no graph of ``asgnn reproduce generality`` is used. Graphs that the record already has are not trained
again, so an interrupted run resumes.

    python scripts/choose_portfolio.py --device cuda
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Data

from asgnn.errors import DivergedWarning, FeaturesWarning
from asgnn.experiments.machine import origin
from asgnn.experiments.measure import find_split
from asgnn.experiments.values import SplitName
from asgnn.graphs import DATASETS, Split, labels_of, load_dataset, load_poisoned, published_split
from asgnn.training import candidates, fit_many, recipe
from asgnn.training.calibrate import temperature_of
from asgnn.training.space import PORTFOLIO_SIZE
from asgnn.training.tune import PATIENCE, TEMPERATURES

ATTACKED = 0.25
PUBLISHED = ("cora", "citeseer", "cora_ml")
RECORD = Path("docs/records/portfolio.json")
PORTFOLIO_FILE = Path(__file__).parents[1] / "src/asgnn/training/portfolio.json"


def graphs() -> list[str]:
    """The names of the graphs, with the share of flips of those that are attacked."""
    attacked = [f"{name} {rate:.0%}" for name in PUBLISHED for rate in (0.0, ATTACKED)]
    return attacked + [name for name in DATASETS if name.startswith("tuning-")]


def load(name: str) -> tuple[Data, Split]:
    dataset, _, rate = name.partition(" ")
    data = load_dataset(dataset)
    if not rate:
        return data, find_split(SplitName("random", 0), data, dataset)
    if float(rate.strip("%")):
        data = load_poisoned(dataset, "metattack", ATTACKED).apply(data)
    return data, published_split(dataset)


def scores(name: str, settings: list[dict[str, Any]], seeds: int, epochs: int, device: str) -> dict[str, list[float]]:
    """The mean validation score and calibrated loss of each candidate; a candidate that diverged has score −1."""
    data, split = load(name)
    training = {"epochs": epochs, "patience": PATIENCE}
    recipes = [recipe("asgnn", **{**training, **one}) for one in settings]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DivergedWarning)
        warnings.simplefilter("ignore", FeaturesWarning)
        trials = [one.trial(data, split, seed) for one in recipes for seed in range(seeds)]
        fits = fit_many(trials, data, device=device)
    y = labels_of(data)[split.val]
    score = [-1.0 if fit.diverged else fit.val_score for fit in fits]
    # JSON has no infinity
    loss = [
        99.0 if fit.diverged else temperature_of(fit.logits[0][None, split.val], y, TEMPERATURES)[1] for fit in fits
    ]
    means = [torch.tensor(values).view(len(settings), seeds).mean(1).tolist() for values in (score, loss)]
    return {"score": [round(v, 5) for v in means[0]], "loss": [round(v, 5) for v in means[1]]}


def choose(value: torch.Tensor, size: int) -> list[int]:
    """Greedy choice of rows of (candidates, graphs), row 0 first: the next raises the mean of the best values most."""
    chosen, best = [0], value[0].clone()
    while len(chosen) < min(size, len(value)):
        gains = torch.maximum(value, best).mean(1)
        gains[chosen] = -1.0
        chosen.append(int(gains.argmax()))
        best = torch.maximum(best, value[chosen[-1]])
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--candidates", type=int, default=256)
    parser.add_argument("--seeds", type=int, default=1, help="trainings of each candidate on each graph")
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--graphs", nargs="+", choices=graphs(), default=graphs(), metavar="GRAPH")
    parser.add_argument("-o", "--output", type=Path, default=RECORD, help="the record with all scores")
    parser.add_argument("--portfolio", type=Path, default=PORTFOLIO_FILE, help="the file of the package")
    arguments = parser.parse_args()
    settings = candidates("asgnn", arguments.candidates, portfolio=False)
    asked = {"candidates": settings, "seeds": arguments.seeds, "epochs": arguments.epochs}
    record: dict[str, Any] = json.loads(arguments.output.read_text()) if arguments.output.exists() else {}
    if any(record.get(name) != value for name, value in asked.items()):
        record = {**asked, "graphs": {}}
    began = time.perf_counter()
    for number, name in enumerate(arguments.graphs, 1):
        if name not in record["graphs"]:
            start = time.perf_counter()
            found = scores(name, settings, arguments.seeds, arguments.epochs, arguments.device)
            record["graphs"][name] = {**found, "seconds": round(time.perf_counter() - start, 1)}
            arguments.output.parent.mkdir(parents=True, exist_ok=True)
            arguments.output.write_text(json.dumps(record) + "\n")
        of = record["graphs"][name]
        print(
            f"{number}/{len(arguments.graphs)} {name}: recipe {of['score'][0]:.3f}, best {max(of['score']):.3f}, "
            f"{of['seconds']} s, {time.perf_counter() - began:.0f} s in all",
            file=sys.stderr,
            flush=True,
        )
    names = list(arguments.graphs)
    score = torch.tensor([record["graphs"][name]["score"] for name in names]).t()
    loss = torch.tensor([record["graphs"][name]["loss"] for name in names]).t()
    chosen = choose((score + (-loss).exp()) / 2, PORTFOLIO_SIZE)
    best, reached = score.max(0).values, score[chosen].max(0).values
    about = {
        **origin(f"python scripts/choose_portfolio.py --device {arguments.device}", arguments.device),
        "date": datetime.now(UTC).date().isoformat(),
        "chosen_by": f"the mean over the graphs of the best member's value, greedily, of {len(settings)} candidates",
        "graphs": {
            name: {"recipe": round(float(score[0, i]), 4), "portfolio": round(float(reached[i]), 4)}
            | {"best_candidate": round(float(best[i]), 4)}
            for i, name in enumerate(names)
        },
    }
    record |= {"about": about, "chosen": chosen}
    arguments.output.write_text(json.dumps(record) + "\n")
    lines = ",\n".join(f"  {json.dumps(settings[i])}" for i in chosen)
    head = json.dumps(about, indent=1)[:-2]
    arguments.portfolio.write_text(f'{head},\n "settings": [\n{lines}\n ]\n}}\n')
    print(f"mean score: recipe {float(score[0].mean()):.4f}, portfolio {float(reached.mean()):.4f}, "
          f"best candidates {float(best.mean()):.4f}")  # fmt: skip
    for i in chosen:
        wins = [name for j, name in enumerate(names) if score[i, j] >= reached[j]]
        print(settings[i], "best on:", ", ".join(wins) or "–")


if __name__ == "__main__":
    main()
