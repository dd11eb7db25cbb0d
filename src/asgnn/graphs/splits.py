"""Which nodes a model learns from, which it is chosen by, and which it is judged on."""

from __future__ import annotations

import copy
import json
import warnings
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from asgnn.errors import ConfigError, DataCorrupt, GraphError
from asgnn.graphs.checks import SPLITS, check_split, labels_of, nodes_of, validate
from asgnn.graphs.datasets import find_dataset
from asgnn.graphs.sources import PRO_GNN, Source, fetch

PUBLISHED_SPLITS: dict[str, Source] = {
    name: Source(*PRO_GNN, f"splits/{name}_prognn_splits.json", sha256)
    for name, sha256 in {
        "cora": "40a3e7e4025c349095d425c597a9db53b2ddd2437f0d5ccf7b46417d912f1db0",
        "citeseer": "12ab5787371b8826691d0c6f33ba7c250dff2754a0f571578bc83920594bb9a3",
        "cora_ml": "0ac1ce174624eb1143d0ddfe72dd11ebbb5562b1e60dc69e427c570cafd71e09",
    }.items()
}


# Compared by identity: == between tensors gives tensors, not an answer.
@dataclass(frozen=True, eq=False)
class Split:
    """Three disjoint sets of node numbers, int64; together they need not cover the graph."""

    train: Tensor
    val: Tensor
    test: Tensor

    def masks(self, num_nodes: int) -> tuple[Tensor, Tensor, Tensor]:
        """The three sets as bool masks of length ``num_nodes``."""
        check_split(self, num_nodes)
        masks = []
        for part in (self.train, self.val, self.test):
            mask = torch.zeros(num_nodes, dtype=torch.bool, device=part.device)
            mask[part] = True
            masks.append(mask)
        return masks[0], masks[1], masks[2]


def random_split(data: Data, trial: int, *, train: float = 0.1, val: float = 0.1) -> Split:
    """The split of one trial: random labelled nodes in the given shares, the rest for the test.

    The classes are not balanced. ``trial`` alone decides the order in which the N nodes are drawn, so every model and
    every attack of a trial sees the same split. Nodes without a label are passed over, and the shares are those of the
    labelled nodes; a graph without ``y`` is split as if every node had a label.

    Args:
        data: The graph.
        trial: Number of the trial, from 0.
        train: Share of the labelled nodes for training.
        val: Share of the labelled nodes for validation.
    """
    if isinstance(trial, bool) or not isinstance(trial, Integral) or not 0 <= trial < 2**63:
        raise ConfigError(f"trial must be a whole number from 0 to 2**63 - 1, and is {trial!r}.")
    if not all(isinstance(share, Real) for share in (train, val)) or not (train > 0 and val > 0 and train + val < 1):
        raise ConfigError(f"train={train!r} and val={val!r} must be positive and sum to less than 1.")
    order = torch.randperm(nodes_of(data), generator=torch.Generator().manual_seed(int(trial)))
    nodes = "nodes"
    if getattr(data, "y", None) is not None:
        order = order[labels_of(data).cpu()[order] >= 0]
        nodes = "labelled nodes"
    num_train, num_val = round(train * order.numel()), round(val * order.numel())
    num_test = order.numel() - num_train - num_val
    if min(num_train, num_val, num_test) < 1:
        raise GraphError(
            f"A graph of {order.numel()} {nodes} is too small for the shares train={train} and val={val}: "
            f"they give {num_train}, {num_val} and {num_test} nodes."
        )
    return Split(*(part.sort().values for part in order.split([num_train, num_val, num_test])))


def split_of(data: Data, split: Split | None = None) -> Split:
    """The split to train, validate and test on: the one given, else the graph's masks, checked.

    Nodes without a label are left out, and a warning says how many.
    """
    if split is None:
        validate(data, need_split=True)
        masks = [data[f"{part}_mask"] for part in SPLITS]
        if masks[0].dim() != 1:
            raise GraphError(
                f"The graph has {masks[0].size(1)} splits, one for each column of its masks; choose one and give it "
                "as split."
            )
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
        f"{sum(left_out)} nodes of the split have no label and are left out: {left_out[0]} of train, {left_out[1]} of "
        f"val and {left_out[2]} of test; {sum(map(len, known))} remain.",
        stacklevel=2,
    )
    return split


def published_split(name: str, root: str | Path | None = None) -> Split:
    """The split published with Pro-GNN (Jin et al. 2020) for a graph as :func:`load_dataset` gives it.

    The pre-attacked graphs were made for this split. On Cora and Citeseer it leaves one node out.
    """
    dataset = find_dataset(name)
    if dataset.name not in PUBLISHED_SPLITS:
        raise ConfigError(
            f"No split of {dataset.name} is published by Pro-GNN, only of {', '.join(PUBLISHED_SPLITS)}; "
            f"random_split serves for every graph."
        )
    path = fetch(PUBLISHED_SPLITS[dataset.name], root)
    content = read_json(path)
    return Split(*(node_list(content, f"idx_{part}", path) for part in SPLITS))


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file that :func:`fetch` has checked."""
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as cause:
        raise DataCorrupt(f"{path} is not JSON: {cause}.") from cause
    if not isinstance(content, dict):
        raise DataCorrupt(f"{path} holds a {type(content).__name__} and no object.")
    return content


def node_list(content: dict[str, Any], key: str, path: Path) -> Tensor:
    """A sorted list of node numbers out of a JSON object."""
    numbers = content.get(key)
    if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
        raise DataCorrupt(f"{path} holds no list of node numbers named {key}.")
    return torch.tensor(numbers, dtype=torch.int64).sort().values


def apply_split(data: Data, split: Split) -> Data:
    """The same graph with the masks of ``split``; a shallow copy, so ``data`` keeps its own."""
    masks = split.masks(nodes_of(data))
    result = copy.copy(data)
    for part, mask in zip(SPLITS, masks, strict=True):
        result[f"{part}_mask"] = mask if data.x is None else mask.to(data.x.device)
    return result
