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
from asgnn.graphs.named import NamedGraph, named_graph
from asgnn.graphs.own import OWN_FLIPS, load_own, own_source, own_split
from asgnn.graphs.partition import partition_nodes
from asgnn.graphs.planted import JUDGING, PLANTED, TUNING, Gaussian, Words, planted_graph
from asgnn.graphs.prepare import prepare
from asgnn.graphs.prior import FeaturePrior
from asgnn.graphs.published_splits import PUBLISHED_SPLITS, check_published, count_published, published_split
from asgnn.graphs.read import read_graph
from asgnn.graphs.sources import Source, fetch, read_npz
from asgnn.graphs.splits import Split, SplitRule, apply_split, random_split, split_of
from asgnn.graphs.stratified import STRATIFIED_SEEDS, stratified_split

__all__ = [
    "DATASETS",
    "JUDGING",
    "OWN_FLIPS",
    "PLANTED",
    "POISONED",
    "PUBLISHED_SPLITS",
    "STRATIFIED_SEEDS",
    "TUNING",
    "Dataset",
    "FeaturePrior",
    "Gaussian",
    "NamedGraph",
    "Perturbation",
    "Source",
    "Split",
    "SplitRule",
    "Words",
    "apply_split",
    "available",
    "build_graph",
    "check_published",
    "check_split",
    "count_published",
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
    "named_graph",
    "num_classes",
    "own_source",
    "own_split",
    "partition_nodes",
    "planted_graph",
    "prepare",
    "published",
    "published_split",
    "random_split",
    "read_graph",
    "read_npz",
    "split_of",
    "stratified_split",
    "to_scipy",
    "undirected",
    "validate",
]
