"""The black-box unit test of Mujkanovic et al. (NeurIPS 2022): flips found against eight models, in one file.

The file ``unit_test.npz`` of LoadingByte/are-gnn-defenses-robust holds two graphs, five splits of each, and for every
model, kind of attack, split and budget the strongest flips that its authors found. It reads without pickle.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data

from asgnn.challenge.values import KINDS, Attempt, Kind, Made, flips_of
from asgnn.errors import AsgnnError, ConfigError, DataCorrupt
from asgnn.graphs import Perturbation, Split, from_edges, read_npz
from asgnn.graphs.archives import names_in

ATTACK = "unit test"
# their name → ours; their Cora-ML is our Cora
DATASETS = {"cora_ml": "cora", "citeseer": "citeseer"}
PERTURBATION = re.compile(
    rf"(?P<graph>[^/]+)/perturbations/(?P<kind>{'|'.join(KINDS)})/(?P<model>[^/]+)/split_(?P<split>\d+)/budget_(?P<k>\d+)"
)


@dataclass(frozen=True, eq=False)
class UnitTest:
    """One graph of the file.

    Attributes:
        data: the clean graph.
        splits: by number.
        flips: (kind, number of the split) → the flips that were found, each with its model as ``source``.
    """

    data: Data
    splits: Mapping[int, Split]
    flips: Mapping[tuple[Kind, int], tuple[Made, ...]]

    def strongest(self, kind: Kind, split: int, budgets: Sequence[float]) -> list[Made]:
        """For each model and budget, the largest set of flips within the budget."""
        found: dict[Attempt, Made] = {}
        for budget in budgets:
            most = flips_of(budget, self.data)
            for made in self.flips.get((kind, split), ()):
                attempt = replace(made.attempt, budget=budget)
                if len(made.flips) <= most and len(made.flips) > (len(found[attempt].flips) if attempt in found else 0):
                    found[attempt] = replace(made, attempt=attempt)
        return list(found.values())


def load_unit_test(path: str | Path, dataset: str) -> UnitTest:
    """Returns one graph of the file with its splits and flips.

    Args:
        path: the file ``unit_test.npz``.
        dataset: "cora" or "citeseer"; the file calls the first one Cora-ML.
    """
    path = Path(path)
    graph = next((theirs for theirs, ours in DATASETS.items() if ours == dataset), None)
    if graph is None:
        raise ConfigError(f"The unit test has the graphs {' and '.join(DATASETS.values())}; it has no {dataset!r}.")
    names = names_in(path)
    found = [(name, match) for name in names if (match := PERTURBATION.fullmatch(name)) and match["graph"] == graph]
    numbers = sorted({int(match["split"]) for _, match in found})
    if not found:
        raise DataCorrupt(f"{path} holds no perturbations of {graph}, so it is not the unit test.")
    parts = {part: f"{graph}/dataset/{part}" for part in ("adjacency", "features", "labels")}
    of_splits = {
        (number, part): f"{graph}/splits/{number}/{part}" for number in numbers for part in ("train", "val", "test")
    }
    arrays = read_npz(path, [*parts.values(), *of_splits.values(), *(name for name, _ in found)])
    try:
        labels = arrays[parts["labels"]].astype(np.int64)
        data = from_edges(_features(arrays[parts["features"]], len(labels)), arrays[parts["adjacency"]], labels)
        splits = {
            number: Split(*(_nodes(arrays[of_splits[number, part]], len(labels)) for part in ("train", "val", "test")))
            for number in numbers
        }
        flips: dict[tuple[Kind, int], list[Made]] = {}
        for name, match in found:
            made = _made(arrays[name], match["kind"], match["model"], data)
            flips.setdefault((match["kind"], int(match["split"])), []).append(made)  # type: ignore[arg-type]
    except (AsgnnError, ValueError, IndexError) as cause:
        raise DataCorrupt(f"{path} is damaged: {str(cause).rstrip('.')}.") from cause
    return UnitTest(data, splits, {place: tuple(made) for place, made in flips.items()})


def _features(coordinates: NDArray[Any], nodes: int) -> torch.Tensor:
    """(N, F) with ones at the coordinates (·, 2)."""
    x = torch.zeros(nodes, int(coordinates[:, 1].max()) + 1)
    x[coordinates[:, 0], coordinates[:, 1]] = 1
    return x


def _nodes(numbers: NDArray[Any], nodes: int) -> torch.Tensor:
    if numbers.ndim != 1 or (numbers.size and not 0 <= numbers.min() <= numbers.max() < nodes):
        raise ValueError("a split names nodes that the graph does not have")
    return torch.from_numpy(np.sort(numbers.astype(np.int64)))


def _made(pairs: NDArray[Any], kind: str, model: str, data: Data) -> Made:
    """Flips (k, 2) of the file."""
    flips = Perturbation(torch.from_numpy(pairs.astype(np.int64)).t().contiguous(), int(data.num_nodes or 0))
    return Made(Attempt(f"{ATTACK}, {kind}", f"{ATTACK}, {model}", flips.rate(data)), flips, 0.0)
