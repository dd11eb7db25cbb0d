"""Train/validation/test splits."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor
from torch_geometric.data import Data

from asgnn.errors import ConfigError, GraphError
from asgnn.graphs.checks import SPLITS, check_split, labels_of, nodes_of, validate
from asgnn.settings import check_count, check_number


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


@dataclass(frozen=True)
class SplitRule:
    """The sizes of the parts of a random split, the arguments of :func:`random_split`.

    Args:
        train: The fraction of the labelled nodes for training; ``None`` if ``train_per_class`` is given, or for 0.1.
        val: The fraction of the labelled nodes for validation. The remaining ones are for testing.
        train_per_class: The number of training nodes of each class, in place of ``train``.
    """

    train: float | None = None
    val: float = 0.1
    train_per_class: int | None = None

    def __post_init__(self) -> None:
        check_number("val", self.val, 0, 1, "()")
        if self.train_per_class is not None:
            check_count("train_per_class", self.train_per_class)
            if self.train is not None:
                raise ConfigError(
                    f"train={self.train!r} and train_per_class={self.train_per_class!r} exclude each other; "
                    "give one of them."
                )
            return
        train = 0.1 if self.train is None else self.train
        check_number("train", train, 0, 1, "()")
        if train + self.val >= 1:
            raise ConfigError(f"train={train!r} and val={self.val!r} must sum to less than 1.")
        object.__setattr__(self, "train", train)

    def __str__(self) -> str:
        if self.train is None:
            return f"{self.train_per_class} nodes per class for training, {100 * self.val:g} % for validation"
        shares = (self.train, self.val, 1 - self.train - self.val)
        return "/".join(f"{100 * share:.4g}" for share in shares) + " % train/validation/test"


USUAL_RULE = SplitRule()  # 10/10/80


def random_split(
    data: Data, trial: int, *, train: float | None = None, val: float = 0.1, train_per_class: int | None = None
) -> Split:
    r"""Returns a random train/validation/test split of the labelled nodes; the remaining nodes are for testing.

    The order of the nodes depends only on N and ``trial``, so all models and attacks of a trial use the same split.
    Classes are balanced only by ``train_per_class``: the training nodes are then the first ones of each class in this
    order. Unlabelled nodes are left out; without ``y``, every node counts as labelled. Time :math:`O(N \log N)`.

    Args:
        data: The graph.
        trial: The number of the trial, used as the seed.
        train: The fraction of the labelled nodes for training. Default: 0.1.
        val: The fraction of the labelled nodes for validation.
        train_per_class: The number of training nodes of each class, in place of ``train``.
    """
    check_count("trial", trial, 0, 2**63 - 1)
    rule = SplitRule(train, val, train_per_class)
    order = torch.randperm(nodes_of(data), generator=torch.Generator().manual_seed(int(trial)))
    nodes, labels = "nodes", None
    if getattr(data, "y", None) is not None:
        order = order[labels_of(data).cpu()[order] >= 0]
        nodes, labels = "labelled nodes", labels_of(data).cpu()
    if rule.train is None:
        order, num_train = _by_class(order, labels, int(rule.train_per_class or 0))
        wanted = f"train_per_class={rule.train_per_class}"
    else:
        num_train, wanted = round(rule.train * order.numel()), f"train={rule.train}"
    num_val = round(rule.val * order.numel())
    num_test = order.numel() - num_train - num_val
    if min(num_train, num_val, num_test) < 1:
        raise GraphError(
            f"A graph of {order.numel()} {nodes} is too small for {wanted} and val={rule.val}: "
            f"the parts would have {num_train}, {num_val} and {max(num_test, 0)} nodes."
        )
    return Split(*(part.sort().values for part in order.split([num_train, num_val, num_test])))


def _by_class(order: Tensor, labels: Tensor | None, count: int) -> tuple[Tensor, int]:
    """Returns the order with the first ``count`` nodes of each class in front, and the number of these."""
    if labels is None:
        raise GraphError("train_per_class needs labels, but the graph has no y.")
    label = labels[order]
    sizes = torch.bincount(label)
    short = (sizes > 0) & (sizes < count)
    if bool(short.any()):
        at = int(short.nonzero()[0])
        raise GraphError(f"Class {at} has {int(sizes[at])} labelled nodes, fewer than train_per_class={count}.")
    # A stable sort keeps the random order within a class.
    by_label = label.argsort(stable=True)
    place = torch.empty_like(order)
    place[by_label] = torch.arange(order.numel()) - (sizes.cumsum(0) - sizes)[label[by_label]]
    first = place < count
    return torch.cat([order[first], order[~first]]), int(first.sum())


def split_of(data: Data, split: Split | None = None) -> Split:
    """Checks and returns ``split``, or the split given by the graph's masks.

    Unlabelled nodes are removed, and a warning gives their number. A given ``split`` may have no test nodes.
    """
    need_test = split is None
    if split is None:
        validate(data, need_split=True, sparse=True)
        masks = [data[f"{part}_mask"] for part in SPLITS]
        if masks[0].dim() != 1:
            raise GraphError(f"The masks of the graph hold {masks[0].size(1)} splits; pass one of them as split.")
        split = Split(*(mask.nonzero().view(-1) for mask in masks))
    labels = labels_of(data)
    check_split(split, labels.numel(), need_test=need_test)
    has_label = labels >= 0
    parts = [getattr(split, part) for part in SPLITS]
    known = [nodes[has_label.to(nodes.device)[nodes]] for nodes in parts]
    left_out = [nodes.numel() - kept.numel() for nodes, kept in zip(parts, known, strict=True)]
    if not any(left_out):
        return split
    split = Split(*known)
    check_split(split, data, need_test=need_test)
    warnings.warn(
        f"{sum(left_out)} nodes of the split have no label and are removed: {left_out[0]} from train, "
        f"{left_out[1]} from val and {left_out[2]} from test; {sum(map(len, known))} remain.",
        stacklevel=2,
    )
    return split


def apply_split(data: Data, split: Split) -> Data:
    """Returns a shallow copy of the graph with the masks of ``split``."""
    masks = split.masks(nodes_of(data))
    result = copy.copy(data)
    for part, mask in zip(SPLITS, masks, strict=True):
        result[f"{part}_mask"] = mask if data.x is None else mask.to(data.x.device)
    return result
