"""Edges as integer keys: the key of edge (u, v) in a graph of N nodes is u·N + v."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

MAX_NODES = 3_037_000_499  # the largest N for which N·N - 1 is an int64


def index_dtype(largest: int) -> torch.dtype:
    """Returns the shorter dtype of indices that can hold ``largest``."""
    return torch.int32 if largest < 2**31 else torch.int64


def to_keys(edge_index: Tensor, num_nodes: int) -> Tensor:
    return edge_index[0] * num_nodes + edge_index[1]


def from_keys(keys: Tensor, num_nodes: int) -> Tensor:
    return torch.stack([torch.div(keys, num_nodes, rounding_mode="floor"), keys % num_nodes])


def sort_keys(keys: Tensor) -> Tensor:
    """Returns the sorted keys. Time O(E log E)."""
    if keys.device.type == "cpu":
        # Faster than torch's sort, whose threads can wait 0.1 s for each other on a busy CPU.
        return torch.from_numpy(np.sort(keys.numpy()))
    return keys.sort().values


def unique_keys(keys: Tensor) -> Tensor:
    """Returns the sorted keys without duplicates. Time O(E log E)."""
    keys = sort_keys(keys)
    first = torch.ones_like(keys, dtype=torch.bool)
    first[1:] = keys[1:] != keys[:-1]
    return keys[first]


def single_keys(keys: Tensor) -> Tensor:
    """Returns the sorted keys that occur exactly once: the symmetric difference of two sets. Time O(E log E)."""
    keys = sort_keys(keys)
    single = torch.ones_like(keys, dtype=torch.bool)
    repeats = keys[1:] == keys[:-1]
    single[1:][repeats] = False
    single[:-1][repeats] = False
    return keys[single]


def contains(keys: Tensor, wanted: Tensor) -> Tensor:
    """Returns for each wanted key whether it is in ``keys``, which need not be sorted. Time O((E + F) log E)."""
    keys = sort_keys(keys)
    if keys.numel() == 0:
        return torch.zeros_like(wanted, dtype=torch.bool)
    place = torch.searchsorted(keys, wanted).clamp_(max=keys.numel() - 1)
    return keys[place] == wanted
