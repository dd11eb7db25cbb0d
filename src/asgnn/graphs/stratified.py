"""The five stratified splits on which adaptive attacks are compared (Mujkanovic et al., NeurIPS 2022)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data

from asgnn.errors import GraphError
from asgnn.graphs.checks import labels_of
from asgnn.graphs.splits import Split
from asgnn.settings import check_count

# the authors' seeds, one for each split
STRATIFIED_SEEDS = (1234, 2021, 1309, 4242, 1998)

Ints = NDArray[np.int64]


def stratified_split(data: Data, trial: int) -> Split:
    """Returns one of five 10/10/80 splits with the same share of every class in each part.

    The nodes are those of scikit-learn's ``train_test_split``: 20 % of the labelled nodes, then half of these for
    training and half for validation, both stratified and with the same ``random_state``. The rule is written out here,
    with NumPy's old generator, so that the splits need no scikit-learn; a test compares the two. Time O(N log N).

    Args:
        data: The graph, with labels; unlabelled nodes are left out.
        trial: The number of the split, 0 to 4.
    """
    check_count("trial", trial, 0, len(STRATIFIED_SEEDS) - 1)
    seed, labels = STRATIFIED_SEEDS[trial], labels_of(data).cpu().numpy()
    nodes: Ints = np.flatnonzero(labels >= 0)
    small, test = _two_parts(nodes, labels[nodes], len(nodes) // 5, seed)
    train, val = _two_parts(small, labels[small], len(small) // 2, seed)
    return Split(*(torch.from_numpy(np.sort(part)) for part in (train, val, test)))


def _two_parts(nodes: Ints, labels: Ints, size: int, seed: int) -> tuple[Ints, Ints]:
    """Returns ``size`` of the nodes and the others, each in the random order in which scikit-learn gives them."""
    rng = np.random.RandomState(seed)
    classes, codes = np.unique(labels, return_inverse=True)
    counts = np.bincount(codes)
    if counts.min(initial=2) < 2 or min(size, len(nodes) - size) < len(classes):
        raise GraphError(
            f"This graph has no stratified split: it needs two labelled nodes of each class and {len(classes)} in each "
            f"part, but the smallest class has {int(counts.min(initial=0))}, and the parts would have {size} and "
            f"{len(nodes) - size}."
        )
    first = _shares(counts, size, rng)
    second = _shares(counts - first, len(nodes) - size, rng)
    parts: tuple[list[Any], list[Any]] = ([], [])
    for code, (mine, others) in enumerate(zip(first, second, strict=True)):
        order = np.flatnonzero(codes == code)[rng.permutation(counts[code])]
        parts[0].extend(order[:mine])
        parts[1].extend(order[mine : mine + others])
    one, other = (nodes[rng.permutation(np.array(part, dtype=np.int64))] for part in parts)
    return one, other


def _shares(counts: Ints, size: int, rng: np.random.RandomState) -> Ints:
    """Returns how many of each class, ``size`` together: rounded down, then up at the largest remainders.

    Classes with equal remainders are drawn.
    """
    exact = counts / counts.sum() * size
    whole = np.floor(exact)
    left = int(size - whole.sum())
    for remainder in np.unique(exact - whole)[::-1]:
        if left == 0:
            break
        (tied,) = np.where(exact - np.floor(exact) == remainder)
        chosen = rng.choice(tied, size=min(len(tied), left), replace=False)
        whole[chosen] += 1
        left -= len(chosen)
    found: Ints = whole.astype(np.int64)
    return found
