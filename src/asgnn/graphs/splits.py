"""Train/validation/test splits."""

from __future__ import annotations

import copy
import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from asgnn.errors import ConfigError, DataCorrupt, GraphError
from asgnn.graphs.checks import SPLITS, check_split, labels_of, nodes_of, validate
from asgnn.graphs.datasets import find_dataset
from asgnn.graphs.sources import PRO_GNN, Source, fetch
from asgnn.settings import check_count, check_number

PUBLISHED_SPLITS: dict[str, Source] = {
    name: Source(*PRO_GNN, f"splits/{name}_prognn_splits.json", sha256)
    for name, sha256 in {
        "cora": "40a3e7e4025c349095d425c597a9db53b2ddd2437f0d5ccf7b46417d912f1db0",
        "citeseer": "12ab5787371b8826691d0c6f33ba7c250dff2754a0f571578bc83920594bb9a3",
        "cora_ml": "0ac1ce174624eb1143d0ddfe72dd11ebbb5562b1e60dc69e427c570cafd71e09",
    }.items()
}


# eq=False: == between tensors does not give a bool.
@dataclass(frozen=True, eq=False)
class Split:
    """Three disjoint sets of node indices, int64; they need not cover the graph."""

    train: Tensor
    val: Tensor
    test: Tensor

    def masks(self, num_nodes: int) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the three sets as bool masks of length ``num_nodes``."""
        check_split(self, num_nodes)
        masks = []
        for part in (self.train, self.val, self.test):
            mask = torch.zeros(num_nodes, dtype=torch.bool, device=part.device)
            mask[part] = True
            masks.append(mask)
        return masks[0], masks[1], masks[2]


def random_split(data: Data, trial: int, *, train: float = 0.1, val: float = 0.1) -> Split:
    """Returns a random train/validation/test split of the labelled nodes; the remaining nodes are for testing.

    Classes are not balanced. The order of the nodes depends only on N and ``trial``, so all models and attacks of a
    trial use the same split. Unlabelled nodes are left out; without ``y``, every node counts as labelled.

    Args:
        data: The graph.
        trial: The number of the trial, used as the seed.
        train: The fraction of the labelled nodes for training.
        val: The fraction of the labelled nodes for validation.
    """
    check_count("trial", trial, 0, 2**63 - 1)
    check_number("train", train, 0, 1, "()")
    check_number("val", val, 0, 1, "()")
    if train + val >= 1:
        raise ConfigError(f"train={train!r} and val={val!r} must sum to less than 1.")
    order = torch.randperm(nodes_of(data), generator=torch.Generator().manual_seed(int(trial)))
    nodes = "nodes"
    if getattr(data, "y", None) is not None:
        order = order[labels_of(data).cpu()[order] >= 0]
        nodes = "labelled nodes"
    num_train, num_val = round(train * order.numel()), round(val * order.numel())
    num_test = order.numel() - num_train - num_val
    if min(num_train, num_val, num_test) < 1:
        raise GraphError(
            f"A graph of {order.numel()} {nodes} is too small for train={train} and val={val}: "
            f"the parts would have {num_train}, {num_val} and {num_test} nodes."
        )
    return Split(*(part.sort().values for part in order.split([num_train, num_val, num_test])))


def split_of(data: Data, split: Split | None = None) -> Split:
    """Checks and returns ``split``, or the split given by the graph's masks.

    Unlabelled nodes are removed, and a warning gives their number.
    """
    if split is None:
        validate(data, need_split=True)
        masks = [data[f"{part}_mask"] for part in SPLITS]
        if masks[0].dim() != 1:
            raise GraphError(f"The masks of the graph hold {masks[0].size(1)} splits; pass one of them as split.")
        split = Split(*(mask.nonzero().view(-1) for mask in masks))
    labels = labels_of(data)
    check_split(split, labels.numel())
    has_label = labels >= 0
    parts = [getattr(split, part) for part in SPLITS]
    known = [nodes[has_label.to(nodes.device)[nodes]] for nodes in parts]
    left_out = [nodes.numel() - kept.numel() for nodes, kept in zip(parts, known, strict=True)]
    if not any(left_out):
        return split
    split = Split(*known)
    check_split(split, data)
    warnings.warn(
        f"{sum(left_out)} nodes of the split have no label and are removed: {left_out[0]} from train, "
        f"{left_out[1]} from val and {left_out[2]} from test; {sum(map(len, known))} remain.",
        stacklevel=2,
    )
    return split


def published_split(name: str, root: str | Path | None = None) -> Split:
    """Returns the split published with Pro-GNN (Jin et al. 2020) for a graph of :func:`load_dataset`.

    The published attacks were made for this split. On Cora and Citeseer it omits one node.
    """
    dataset = find_dataset(name)
    if dataset.name not in PUBLISHED_SPLITS:
        raise ConfigError(
            f"Pro-GNN has no split of {dataset.name}, only of {', '.join(PUBLISHED_SPLITS)}; use random_split instead."
        )
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


def apply_split(data: Data, split: Split) -> Data:
    """Returns a shallow copy of the graph with the masks of ``split``."""
    masks = split.masks(nodes_of(data))
    result = copy.copy(data)
    for part, mask in zip(SPLITS, masks, strict=True):
        result[f"{part}_mask"] = mask if data.x is None else mask.to(data.x.device)
    return result
