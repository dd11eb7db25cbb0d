"""Graphs: datasets, splits, edge flips, conversion and checks."""

from asgnn.graphs.build import build_graph, knn_graph, learn_graph
from asgnn.graphs.checks import check_split, describe, labels_of, num_classes, validate
from asgnn.graphs.convert import (
    from_edges,
    from_networkx,
    from_scipy,
    largest_component,
    to_scipy,
    undirected,
)
from asgnn.graphs.datasets import DATASETS, Dataset, available, find_dataset, load_dataset
from asgnn.graphs.flips import POISONED, Perturbation, diff, load_poisoned, published
from asgnn.graphs.own import OWN_FLIPS, load_own, own_source, own_split
from asgnn.graphs.prepare import prepare
from asgnn.graphs.sources import Source, fetch, read_npz
from asgnn.graphs.splits import PUBLISHED_SPLITS, Split, apply_split, published_split, random_split, split_of

__all__ = [
    "DATASETS",
    "OWN_FLIPS",
    "POISONED",
    "PUBLISHED_SPLITS",
    "Dataset",
    "Perturbation",
    "Source",
    "Split",
    "apply_split",
    "available",
    "build_graph",
    "check_split",
    "describe",
    "diff",
    "fetch",
    "find_dataset",
    "from_edges",
    "from_networkx",
    "from_scipy",
    "knn_graph",
    "labels_of",
    "largest_component",
    "learn_graph",
    "load_dataset",
    "load_own",
    "load_poisoned",
    "num_classes",
    "own_source",
    "own_split",
    "prepare",
    "published",
    "published_split",
    "random_split",
    "read_npz",
    "split_of",
    "to_scipy",
    "undirected",
    "validate",
]
