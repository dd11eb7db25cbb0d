"""Compare every model's gradient with central differences, and attack through every model.

    python scripts/gradient_table.py -o docs/records/gradients.json                  # on the CPU
    python scripts/gradient_table.py --device cuda -o docs/records/gradients-gpu.json
    python scripts/gradient_table.py --page                                          # updates docs/attacks.md

First, the gradient of each model with respect to ``edge_weight`` and ``x`` against central differences, on a small
graph in double precision. Then PR-BCD with 253 flips (5 % of the edges) on the built-in Cora, through each model
trained by its recipe: the accuracy on the test nodes, next to random flips and flips made through a GCN surrogate.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch_geometric.data import Data

from asgnn import models
from asgnn.asmp import Scheme
from asgnn.attacks import fit_surrogate, prbcd, random_flips
from asgnn.errors import ConfigError
from asgnn.experiments.machine import origin
from asgnn.graphs import Perturbation, load_dataset, low_rank, random_split, undirected
from asgnn.models.base import NodeClassifier
from asgnn.training import accuracy, fit_many, recipe

RECORD = Path("docs/records/gradients.json")
GPU_RECORD = RECORD.with_name("gradients-gpu.json")
PAGE = Path("docs/attacks.md")
STEP = 1e-6
BOUND = 1e-5
"""Bound on the relative error of a gradient in double precision; central differences have an error of about 1e-9."""
FLIPS = 253
SETTINGS = {"steps": 60, "fine_tune": 15, "block_size": 100_000, "samples": 10}
RANDOM_DRAWS = 5
# the authors' 2000 epochs take a quarter of an hour on a CPU
FEW_EPOCHS = {"prognn": 20}


@dataclass(frozen=True)
class Case:
    """A model with 7 features and 3 classes, and the arguments by which to differentiate.

    ``by_pairs``: the weights must be symmetric, so both directions of an edge change together.
    """

    make: Callable[[], NodeClassifier]
    by_pairs: bool = False
    by_edges: bool = True


def _asgnn(backend: str = "auto", **scheme: Any) -> Case:
    by_pairs = scheme.get("objective", "degree") == "degree"
    return Case(lambda: models.ASGNN(7, 6, 3, num_layers=3, scheme=Scheme(**scheme), backend=backend), by_pairs)  # type: ignore[arg-type]


CASES: dict[str, Case] = {
    "gcn": Case(lambda: models.GCN(7, 6, 3)),
    "sgc": Case(lambda: models.SGC(7, 3)),
    "gat": Case(lambda: models.GAT(7, 4, 3, heads=2)),
    "appnp": Case(lambda: models.APPNP(7, 6, 3, num_layers=4)),
    "airgnn": Case(lambda: models.AirGNN(7, 6, 3, num_layers=4, lam=0.2)),
    "elastic": Case(lambda: models.ElasticGNN(7, 6, 3, num_layers=5, lambda1=0.03, lambda2=1.0), by_pairs=True),
    "elastic, l1": Case(
        lambda: models.ElasticGNN(7, 6, 3, num_layers=5, lambda1=0.02, lambda2=1.0, norm="l1"), by_pairs=True
    ),
    "elastic, no dual": Case(lambda: models.ElasticGNN(7, 6, 3, num_layers=5, lambda1=0.0), by_pairs=True),
    "gcn-jaccard": Case(lambda: models.GCNJaccard(7, 6, 3)),
    "gcn-svd": Case(lambda: models.GCNSVD(7, 6, 3, rank=4)),
    "softmedian": Case(lambda: models.SoftMedianGCN(7, 6, 3)),
    "gnnguard": Case(lambda: models.GNNGuard(7, 6, 3)),
    "rung": Case(lambda: models.RUNG(7, 6, 3, num_layers=3)),
    "prognn, untrained": Case(lambda: models.ProGNN(7, 6, 3)),
    "mlp": Case(lambda: models.MLP(7, 6, 3), by_edges=False),
    "asgnn": _asgnn(),
    "asgnn, exact": _asgnn(structure="exact"),
    "asgnn, paper": _asgnn(objective="paper"),
    "asgnn, joint": _asgnn(update="joint"),
    "asgnn, unit rows": _asgnn(unit_norm=True),
    "asgnn, dense": _asgnn("dense"),
    "asgnn, frozen": _asgnn(structure="frozen"),
    "asgnn, frozen sym": _asgnn(structure="frozen", normalization="sym"),
    "asgnn, frozen dense": _asgnn("dense", structure="frozen"),
}


def small_graph(device: torch.device | str = "cpu") -> tuple[Tensor, Tensor, Tensor]:
    """x (14, 7), where every fourth row has one feature; edges with a hub and an isolated node; weights."""
    rng = torch.Generator().manual_seed(4)
    upper = (torch.rand(14, 14, generator=rng) < 0.2).triu(1)
    upper[0, 1:9] = True
    upper[:, 13] = False
    edge_index = undirected(upper.nonzero().t(), 14)
    edge_index = edge_index[:, torch.randperm(edge_index.size(1), generator=rng)]
    weight = 0.2 + 0.7 * torch.rand(14, 14, generator=rng, dtype=torch.float64)
    weight = ((weight + weight.t()) / 2)[edge_index[0], edge_index[1]]
    x = torch.randn(14, 7, generator=rng, dtype=torch.float64)
    x[::4, 1:] = 0
    return x.to(device), edge_index.to(device), weight.to(device)


def built(name: str, device: torch.device | str = "cpu") -> NodeClassifier:
    torch.manual_seed(1)
    return CASES[name].make().to(device, torch.float64).eval()


@contextmanager
def same_subspace() -> Iterator[None]:
    """Keeps the singular vectors of GCN-SVD fixed in the differences, because its gradient does so, too."""
    found: list[Any] = []
    decompose = low_rank.decompose

    def first(*args: Any) -> Any:
        if not found:
            found.append(decompose(*args))
        return found[0]

    with mock.patch.object(low_rank, "decompose", first):
        yield


def gradient_error(name: str, by: str, device: torch.device | str = "cpu") -> float:
    """The largest error of the gradient, relative to the largest central difference."""
    case, model = CASES[name], built(name, device)
    x, edge_index, weight = small_graph(device)
    rng = torch.Generator().manual_seed(2)
    probe = torch.randn(x.size(0), 3, generator=rng, dtype=torch.float64).to(device)
    base = weight if by == "edge_weight" else x

    def value(leaf: Tensor) -> Tensor:
        logits = model(x, edge_index, leaf) if by == "edge_weight" else model(leaf, edge_index, weight)
        total: Tensor = (logits * probe).sum()
        return total

    groups = [[at] for at in range(base.numel())]
    if by == "edge_weight" and case.by_pairs:
        place = {pair: at for at, pair in enumerate(zip(*edge_index.tolist(), strict=True))}
        groups = [[at, place[v, u]] for (u, v), at in place.items() if u < v]
    with same_subspace():
        leaf = base.clone().requires_grad_()
        (grad,) = torch.autograd.grad(value(leaf), [leaf], allow_unused=True)
        grad = torch.zeros_like(leaf) if grad is None else grad
        worst = largest = 0.0
        for group in groups:
            step = torch.zeros_like(base).view(-1)
            step[group] = STEP
            # both ends require a gradient, so that the model takes the same path
            above, below = (value((base + sign * step.view_as(base)).requires_grad_()).item() for sign in (1, -1))
            difference = (above - below) / (2 * STEP)
            worst = max(worst, abs(float(grad.view(-1)[group].sum()) - difference))
            largest = max(largest, abs(difference))
    return worst / largest if largest else worst


def left_after(device: str) -> Iterator[dict[str, Any]]:
    """One row per model: test accuracy on Cora in percent, clean and after each kind of flips."""
    data = load_dataset("cora").to(device)
    split = random_split(data, 0)
    everyone = torch.arange(int(data.num_nodes))

    def by_prbcd(victim: Any) -> Perturbation:
        rng = torch.Generator().manual_seed(0)
        return prbcd(data, FLIPS, everyone, rng, nodes=split.test, surrogate=victim, device=device, **SETTINGS)  # type: ignore[arg-type]

    surrogate = fit_surrogate(data, split.train, torch.Generator().manual_seed(0), device=device)
    of_surrogate = by_prbcd(surrogate)
    draws = [random_flips(data, FLIPS, torch.Generator().manual_seed(seed)) for seed in range(RANDOM_DRAWS)]
    names = [*dict.fromkeys(name.partition(",")[0] for name in CASES)]
    for name in names:
        few = FEW_EPOCHS.get(name) if device == "cpu" else None
        chosen = recipe(name) if few is None else recipe(name, epochs=few)
        (one,) = fit_many([chosen.trial(data, split, 0)], data, device=device)
        model = one.model.to(device).eval()

        def left(graph: Data, model: torch.nn.Module = model) -> float:
            return round(100 * accuracy(model, graph, split.test), 2)

        start = time.perf_counter()
        try:
            own: float | None = left(by_prbcd(model).apply(data))
        except ConfigError as refused:
            own, why = None, str(refused)
        row: dict[str, Any] = {
            "model": name,
            "clean": left(data),
            "random": round(fmean(left(flips.apply(data)) for flips in draws), 2),
            "through a surrogate": left(of_surrogate.apply(data)),
            "through the model": own,
            "seconds": round(time.perf_counter() - start, 1),
        }
        if own is None:
            row["refused"] = why
        if few is not None:
            row["epochs"] = few
        yield row


def measure(device: str, output: Path, command: str) -> None:
    """Writes the record after every row, so that an interrupted run loses no finished rows."""
    record: dict[str, Any] = {
        **origin(command, device),
        "bound": BOUND,
        "errors": [],
        "flips": FLIPS,
        "prbcd": SETTINGS,
    }
    record["split"], record["left"] = "random, trial 0; all labels known, the test nodes attacked", []

    def keep(part: str, row: dict[str, Any]) -> None:
        record[part].append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)
        output.write_text(json.dumps(record, indent=1) + "\n")

    for name in CASES:
        if device != "cpu" and "dense" in name:
            continue  # the same as on a CPU
        errors = {by: gradient_error(name, by, device) for by in ("edge_weight", "x")}
        keep("errors", {"model": name} | {by: float(f"{error:.1e}") for by, error in errors.items()})
    for row in left_after(device):
        keep("left", row)


def tables() -> dict[str, list[str]]:
    """The tables of the page: gradients on CPU and GPU, and PR-BCD through each model, trained on the GPU."""
    cpu, gpu = (json.loads(record.read_text()) for record in (RECORD, GPU_RECORD))
    on_gpu = {row["model"]: row for row in gpu["errors"]}
    gradients = ["| model | edge_weight, CPU | edge_weight, GPU | x, CPU | x, GPU |", "|:--|--:|--:|--:|--:|"]
    for row in cpu["errors"]:
        pairs = (f"{row[by]:.0e} | {_error(on_gpu.get(row['model']), by)}" for by in ("edge_weight", "x"))
        gradients.append(f"| {row['model']} | {' | '.join(pairs)} |")
    names = ("clean", "random", "through a surrogate", "through the model")
    evasion = ["| model | clean | random flips | flips through a GCN | flips through the model itself |"]
    evasion.append("|:--|--:|--:|--:|--:|")
    for row in gpu["left"]:
        shown = ("none: its gradient is 0" if row[name] is None else f"{row[name]:.1f}" for name in names)
        evasion.append(f"| {row['model']} | {' | '.join(shown)} |")
    return {"gradients": gradients, "evasion": evasion}


def _error(row: dict[str, Any] | None, by: str) -> str:
    return "–" if row is None else f"{row[by]:.0e}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--page", action="store_true", help="write the tables of docs/attacks.md from the records only")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("-o", "--output", type=Path, default=RECORD)
    chosen = parser.parse_args()
    if chosen.page:
        from pages import fill  # imported here, because tests import this file from another folder

        fill(PAGE, tables())
        return
    command = f"python scripts/gradient_table.py --device {chosen.device} -o {chosen.output}"
    measure(chosen.device, chosen.output, command)


if __name__ == "__main__":
    main()
