"""Train/validation/test splits that were published with a dataset."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asgnn.errors import ConfigError, DataCorrupt
from asgnn.graphs.checks import SPLITS
from asgnn.graphs.datasets import DATASETS, MASKS, find_dataset
from asgnn.graphs.sources import PRO_GNN, Source, fetch, read_npz
from asgnn.graphs.splits import Split
from asgnn.settings import check_count

PUBLISHED_SPLITS: dict[str, Source] = {
    name: Source(*PRO_GNN, f"splits/{name}_prognn_splits.json", sha256)
    for name, sha256 in {
        "cora": "40a3e7e4025c349095d425c597a9db53b2ddd2437f0d5ccf7b46417d912f1db0",
        "citeseer": "12ab5787371b8826691d0c6f33ba7c250dff2754a0f571578bc83920594bb9a3",
        "cora_ml": "0ac1ce174624eb1143d0ddfe72dd11ebbb5562b1e60dc69e427c570cafd71e09",
    }.items()
}


def count_published(name: str) -> int:
    """Returns the number of published splits of a dataset: 0, 1 (by Pro-GNN) or 10 (with the heterophilous graphs)."""
    dataset = find_dataset(name)
    return 1 if dataset.name in PUBLISHED_SPLITS else dataset.splits


def check_published(name: str, number: int | None) -> None:
    """Raises unless the dataset has this published split; ``number`` is ``None`` for a dataset that has only one."""
    count, dataset = count_published(name), find_dataset(name).name
    if count == 0:
        several = [other.name for other in DATASETS.values() if other.splits]
        raise ConfigError(
            f"No split of {dataset} is published, only of {', '.join([*PUBLISHED_SPLITS, *several])}; "
            "use a random split instead."
        )
    if count == 1 and number is not None:
        raise ConfigError(f"{dataset} has one published split, without a number; {number!r} was given.")
    if count > 1:
        if number is None:
            raise ConfigError(f"{dataset} has {count} published splits; choose one by its number, 0 to {count - 1}.")
        check_count(f"The number of the published split of {dataset}", number, 0, count - 1)


def published_split(name: str, root: str | Path | None = None, *, number: int | None = None) -> Split:
    """Returns a published split for a graph of :func:`load_dataset`.

    For cora, citeseer and cora_ml it is the split of Pro-GNN (Jin et al. 2020), against which the published attacks
    were made. On Cora and Citeseer it omits one node. The heterophilous graphs have ten splits, the same as the columns
    of the graph's masks.

    Args:
        name: A name in :data:`DATASETS`.
        root: The cache folder.
        number: The number of the split, if the dataset has several.
    """
    check_published(name, number)
    dataset = find_dataset(name)
    if number is not None and isinstance(dataset.source, Source):
        masks = read_npz(fetch(dataset.source, root), MASKS)
        return Split(*(torch.from_numpy(np.flatnonzero(masks[key][number])) for key in MASKS))
    path = fetch(PUBLISHED_SPLITS[dataset.name], root)
    content = read_json(path)
    return Split(*(node_list(content, f"idx_{part}", path) for part in SPLITS))


def read_json(path: Path) -> dict[str, Any]:
    """Returns the object in a JSON file."""
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as cause:
        raise DataCorrupt(f"{path} is not valid JSON: {cause}.") from cause
    if not isinstance(content, dict):
        raise DataCorrupt(f"{path} contains a JSON {type(content).__name__} instead of an object.")
    return content


def node_list(content: dict[str, Any], key: str, path: Path) -> Tensor:
    """Returns the sorted list of node indices under ``key``."""
    numbers = content.get(key)
    if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
        raise DataCorrupt(f"{path} has no list of node indices named {key}.")
    return torch.tensor(numbers, dtype=torch.int64).sort().values
