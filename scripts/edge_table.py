"""How well the scores of the audit find the false edges, and what cleaning is worth.

    python scripts/edge_table.py -o docs/records/edges.json              # every score on every graph
    python scripts/edge_table.py --cleaning -o docs/records/cleaning.json # other models on cleaned graphs
    python scripts/edge_table.py --page                                  # updates the tables of docs/audit.md

Each graph is judged by an ensemble of three ASGNN with the settings of the recipe and a witness, without a search.
Rows in the record are not measured again, so an interrupted run resumes. Trained ensembles are kept in --fits.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pages import fill
from torch import Tensor
from torch_geometric.data import Data

import asgnn
from asgnn.audit import edge_scores, single_edges
from asgnn.audit.cleaning import choose, remove
from asgnn.audit.combine import learn
from asgnn.audit.evidence import Evidence, dots
from asgnn.audit.views import ModelView
from asgnn.errors import AsgnnError
from asgnn.experiments.attacks import made_case, make_attack
from asgnn.experiments.machine import machine
from asgnn.experiments.measure import find_split
from asgnn.experiments.values import SplitName
from asgnn.graphs import JUDGING, TUNING, Split, load_dataset, load_own, load_poisoned, named_graph, own_split
from asgnn.graphs.features import Features
from asgnn.graphs.flips import Perturbation
from asgnn.graphs.keys import contains, to_keys
from asgnn.models import Ensemble
from asgnn.training import fit_many, recipe
from asgnn.training.evaluate import auc

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "audit.md"
EDGES, CLEANING = ROOT / "docs" / "records" / "edges.json", ROOT / "docs" / "records" / "cleaning.json"
SCORES = ("combined", "disagreement", "weights", "cosine", "jaccard", "svd", "gnnguard")
SHARES = (0.01, 0.05, 0.1)
MEMBERS = 3
TEMPERATURES = 2.0 ** (np.arange(-8, 17) / 4)
# shares of edges to remove, of which validation nodes choose one
REMOVED = (0.0, 0.05, 0.1, 0.2, 0.3)
SEEDS = 3
# Variants of the combined score were compared on these, so that their figures are no independent evidence for it.
DESIGN = {("cora", "metattack", rate) for rate in (0.05, 0.1, 0.15, 0.2, 0.25)}
DESIGN |= {("citeseer", "metattack", rate) for rate in (0.05, 0.2, 0.25)}
DESIGN |= {("cora_ml", "metattack", rate) for rate in (0.05, 0.2)}
DESIGN |= {(name, "dice", rate) for name in ("cora", "citeseer", "cora_ml", "acm", "polblogs") for rate in (0.05, 0.2)}
DESIGN |= {(name, "random", rate) for name in ("cora", "citeseer", "polblogs") for rate in (0.05, 0.2)}
DESIGN |= {("polblogs", "own-metattack", rate) for rate in (0.05, 0.2)}


@dataclass(frozen=True)
class Case:
    """An attacked or planted graph."""

    graph: str
    attack: str
    rate: float

    @property
    def file(self) -> str:
        return f"{self.graph}_{self.attack}_{self.rate:g}"

    @property
    def design(self) -> bool:
        return self.graph in TUNING or (self.graph, self.attack, self.rate) in DESIGN

    def load(self, folder: Path) -> tuple[Data, Split, Tensor]:
        """The graph, the split and the false edges (2, F)."""
        clean = load_dataset(self.graph)
        published = self.graph in ("cora", "citeseer", "cora_ml")
        name = SplitName("published") if published else SplitName("random", 0)
        if self.attack == "planted":
            edges = torch.from_numpy(single_edges(clean))
            return clean, find_split(name, clean, self.graph, None), edges[:, clean.y[edges[0]] != clean.y[edges[1]]]
        if self.attack in ("metattack", "nettack"):
            flips = load_poisoned(self.graph, self.attack, self.rate)
        elif self.attack.startswith("own-"):
            kind = self.attack.removeprefix("own-")
            flips = load_own(self.graph, kind, self.rate)
            if own_split(self.graph, kind) != "published":
                name = SplitName("random", 0)
        else:
            flips = _made(self, name, folder / f"{self.file}.flips.npz")
        return flips.apply(clean), find_split(name, clean, self.graph, None), flips.added(clean)


def _made(case: Case, split: SplitName, path: Path) -> Perturbation:
    if not path.exists():
        make_attack(made_case(case.graph, case.attack, case.rate, split)).save(path)
    return Perturbation.load(path)


def cases() -> list[Case]:
    three = ("cora", "citeseer", "cora_ml")
    found = [Case(name, "metattack", rate) for name in three for rate in (0.05, 0.1, 0.15, 0.2, 0.25)]
    found += [Case(name, "nettack", float(rate)) for name in three[:2] for rate in (1, 2, 3, 4, 5)]
    found += [Case(name, "own-metattack", rate) for name in ("acm", "polblogs") for rate in (0.05, 0.2)]
    found += [Case(name, "own-nettack", 5.0) for name in ("cora_ml", "acm")]
    found += [Case(name, kind, rate) for kind in ("pgd", "prbcd") for name in three[:2] for rate in (0.05, 0.2)]
    found += [
        Case(name, kind, rate)
        for kind in ("dice", "random")
        for name in (*three, "acm", "polblogs")
        for rate in (0.05, 0.2)
    ]
    return found + [Case(name, "planted", 0.0) for name in (*JUDGING, *TUNING)]


@dataclass(frozen=True, eq=False)
class Seen:
    """A graph, its false edges and what the trained ensemble says of it."""

    data: Data
    split: Split
    false: NDArray[np.bool_]
    probabilities: NDArray[Any]
    witness: NDArray[Any] | None
    weight: NDArray[Any]

    def score(self, name: str) -> NDArray[Any] | None:
        """The score of every edge; ``None`` where it does not exist."""
        edges = single_edges(self.data)
        if name == "combined":
            evidence = Evidence(Features.of(self.data.x), edges, self.probabilities, self.witness)
            columns = evidence.columns(edges, joined=True)
            judge = learn(evidence, columns)
            return judge.suspicion(judge.log_ratio(columns))
        if name == "weights":
            return 1 - self.weight
        if name == "disagreement":
            return 1 - dots(self.probabilities, self.probabilities, *edges)
        try:
            return edge_scores(self.data, name)  # type: ignore[arg-type]
        except AsgnnError:  # no binary features, or none at all
            return None


def see(case: Case, folder: Path) -> Seen:
    data, split, added = case.load(folder)
    edges, n = single_edges(data), int(data.num_nodes or 0)
    false = contains(to_keys(added, n), to_keys(torch.from_numpy(edges), n)).numpy()
    path = folder / f"{case.file}.npz"
    if not path.exists():
        trials = [recipe("asgnn", witness_floor=0.1).trial(data, split, seed) for seed in range(MEMBERS)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fits = fit_many(trials, data)
        view = ModelView(Ensemble([fit.model for fit in fits]), data)
        witness, weights = view.witness(), view.weights(edges)
        assert weights is not None
        logits = torch.stack([fit.logits[0] for fit in fits]).numpy()
        np.savez(path, logits=logits, wit=np.empty(0) if witness is None else witness, weights=weights)
    kept = np.load(path)
    p = calibrated(kept["logits"], data.y.numpy(), split.val.numpy())
    witness = kept["wit"].astype(np.float64) if kept["wit"].ndim == 2 else None
    return Seen(data, split, false, p, witness, kept["weights"][-1].astype(np.float64))


def calibrated(logits: NDArray[Any], y: NDArray[Any], nodes: NDArray[Any]) -> NDArray[Any]:
    """The mean probability of the models at the temperature of the lowest loss on ``nodes``."""
    means = [torch.from_numpy(logits / t).double().softmax(-1).mean(0).numpy() for t in TEMPERATURES]
    found: NDArray[Any] = min(means, key=lambda p: -np.log(np.maximum(p[nodes, y[nodes]], 1e-12)).mean())
    return found


def rows(case: Case, seen: Seen) -> Iterator[dict[str, Any]]:
    about = {"graph": case.graph, "attack": case.attack, "rate": case.rate, "design": case.design}
    about |= {"edges": int(seen.false.size), "false": int(seen.false.sum())}
    for name in SCORES:
        score = seen.score(name)
        if score is None:
            continue
        order = np.argsort(-score, kind="stable")
        row = about | {"score": name, "auc": round(auc(torch.from_numpy(score), torch.from_numpy(seen.false)), 4)}
        for share in SHARES:
            top = order[: max(1, round(share * order.size))]
            row[f"precision_{share * 100:g}"] = round(float(seen.false[top].mean()), 4)
            if name == "combined":
                row[f"expected_{share * 100:g}"] = round(float(score[top].mean()), 4)
        yield row


# --- cleaning -------------------------------------------------------------------------------------------------------

CLEANED = [
    Case("cora", "metattack", 0.05),
    Case("cora", "metattack", 0.2),
    Case("citeseer", "metattack", 0.2),
    Case("cora_ml", "metattack", 0.2),
    Case("cora", "random", 0.2),
    Case("planted-false-20", "planted", 0.0),
]
MODELS = ("gcn", "gat", "logistic regression")


def cleaned_rows(case: Case, seen: Seen) -> Iterator[dict[str, Any]]:
    score = seen.score("combined")
    assert score is not None
    graphs = {}
    for share in REMOVED:
        chosen = single_edges(seen.data)[:, choose(score, share=share)]
        graphs[share] = remove(seen.data, named_graph(seen.data), chosen)
    for model in MODELS:
        found = {share: _accuracies(model, graph, seen.split) for share, graph in graphs.items()}
        best = max(REMOVED, key=lambda share: (found[share][0], -share))
        yield {
            "graph": case.graph,
            "attack": case.attack,
            "rate": case.rate,
            "model": model,
            "seeds": SEEDS,
            "before": round(100 * found[0.0][1], 2),
            "after": round(100 * found[best][1], 2),
            "removed": best,
            "validation": {f"{share:g}": round(100 * one[0], 2) for share, one in found.items()},
            "test": {f"{share:g}": round(100 * one[1], 2) for share, one in found.items()},
        }


def _accuracies(model: str, data: Data, split: Split) -> tuple[float, float]:
    """Mean accuracy on validation and test nodes."""
    if model == "logistic regression":
        return _regression(data, split)
    fits = fit_many([recipe(model).trial(data, split, seed) for seed in range(SEEDS)], data)
    right = [fit.logits[0].argmax(-1) == data.y for fit in fits]
    val, test = (fmean(float(one[nodes].float().mean()) for one in right) for nodes in (split.val, split.test))
    return val, test


def _regression(data: Data, split: Split) -> tuple[float, float]:
    """Logistic regression of the features beside their means over neighbours at distance one and two."""
    from sklearn.linear_model import LogisticRegression

    matrix = asgnn.graphs.to_scipy(data)
    degree = np.maximum(np.asarray(matrix.sum(axis=1)).reshape(-1, 1), 1)
    blocks = [data.x.numpy()]
    for _ in range(2):
        blocks.append(matrix @ blocks[-1] / degree)
    x, y = np.concatenate(blocks, axis=1), data.y.numpy()
    model = LogisticRegression(max_iter=500).fit(x[split.train], y[split.train])
    val, test = (float((model.predict(x[nodes]) == y[nodes]).mean()) for nodes in (split.val, split.test))
    return val, test


# --- record and page ------------------------------------------------------------------------------------------------


def measure(record: Path, folder: Path, *, cleaning: bool, only: str) -> None:
    kept = json.loads(record.read_text()) if record.exists() else {}
    found: list[dict[str, Any]] = kept.get("rows", [])
    done = {(row["graph"], row["attack"], row["rate"]) for row in found}
    command = f"python scripts/edge_table.py{' --cleaning' if cleaning else ''} -o docs/records/{record.name}"
    # graphs whose ensembles are already trained come first
    for case in sorted(CLEANED if cleaning else cases(), key=lambda one: not (folder / f"{one.file}.npz").exists()):
        if (case.graph, case.attack, case.rate) in done or only not in case.file:
            continue
        seen = see(case, folder)
        new = list((cleaned_rows if cleaning else rows)(case, seen))
        found += new
        about = {"command": command, "version": asgnn.__version__, "machine": machine("cpu"), "rows": found}
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text(json.dumps(about, indent=1) + "\n")
        if cleaning:
            shown = [f"{row['model']} {row['before']:.1f} → {row['after']:.1f}" for row in new]
        else:
            shown = [f"{row['score']} {row['auc']:.3f}" for row in new]
        print(f"{case.file}: {', '.join(shown)}", file=sys.stderr, flush=True)


def label(row: dict[str, Any]) -> str:
    attack, rate = row["attack"].removeprefix("own-"), row["rate"]
    if row["attack"] == "planted":
        return f"{row['graph']} ({row['false'] / row['edges']:.0%})" if "edges" in row else row["graph"]
    amount = f"{rate:g} per target" if "nettack" in attack else f"{rate:.0%}"
    return f"{row['graph']}, {attack} {amount}"


def tables() -> dict[str, list[str]]:
    """The tables of docs/audit.md; a test compares them with the records."""
    out: dict[str, list[str]] = {}
    found = json.loads(EDGES.read_text())["rows"]
    groups: dict[str, dict[str, dict[str, Any]]] = {}
    for row in found:
        if row["graph"] not in TUNING:
            groups.setdefault(label(row) + (" †" if row["design"] else ""), {})[row["score"]] = row
    out["auc"] = [f"| false edges | {' | '.join(SCORES)} |", f"|:--|{'--:|' * len(SCORES)}"]
    out["precision"] = [
        "| false edges | share | first 1 % | first 5 % | first 10 % | expected 1 % | 5 % | 10 % |",
        f"|:--|{'--:|' * 7}",
    ]
    for name, of in groups.items():
        best = max(row["auc"] for row in of.values())
        cells = [_cell(of.get(score), best) for score in SCORES]
        out["auc"].append(f"| {name} | {' | '.join(cells)} |")
        one = of["combined"]
        precision = [f"{one[f'{kind}_{share}']:.2f}" for kind in ("precision", "expected") for share in (1, 5, 10)]
        out["precision"].append(f"| {name} | {one['false'] / one['edges']:.3f} | {' | '.join(precision)} |")
    if CLEANING.exists():
        out["cleaning"] = ["| graph | model | as it was | cleaned | removed |", "|:--|:--|--:|--:|--:|"]
        for row in json.loads(CLEANING.read_text())["rows"]:
            out["cleaning"].append(
                f"| {label(row)} | {row['model']} | {row['before']:.1f} | {row['after']:.1f} | {row['removed']:.0%} |"
            )
    return out


def _cell(row: dict[str, Any] | None, best: float) -> str:
    if row is None:
        return "–"
    return f"**{row['auc']:.3f}**" if row["auc"] == best else f"{row['auc']:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, help="the record")
    parser.add_argument("--cleaning", action="store_true", help="measure what cleaning is worth")
    parser.add_argument("--page", action="store_true", help="only update docs/audit.md")
    parser.add_argument("--only", default="", help="only graphs whose name contains this, such as cora_metattack")
    parser.add_argument("--fits", type=Path, default=Path(tempfile.gettempdir()) / "asgnn-edge-table")
    chosen = parser.parse_args()
    if not chosen.page:
        chosen.fits.mkdir(parents=True, exist_ok=True)
        record = chosen.output or (CLEANING if chosen.cleaning else EDGES)
        measure(record, chosen.fits, cleaning=chosen.cleaning, only=chosen.only)
    if EDGES.exists():
        fill(PAGE, tables())
        if not chosen.page and not chosen.cleaning:
            print("\n".join(tables()["auc"]))


if __name__ == "__main__":
    main()
