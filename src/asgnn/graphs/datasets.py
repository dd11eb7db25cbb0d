"""The benchmark datasets and their loader.

Every graph is undirected and without self-loops, and its nodes keep the order of the file. The graphs of the first
group (cora to polblogs) are reduced to their largest connected component. All others are whole: the heterophilous
graphs are connected and have no self-loops, and each of their edges is stored in one direction, so nothing is dropped;
digits has no edges; the planted graphs may have isolated nodes.
"""

from __future__ import annotations

import difflib
import gzip
import hashlib
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data

from asgnn.errors import ConfigError, DataCorrupt
from asgnn.graphs.checks import SPLITS
from asgnn.graphs.convert import from_edges, from_scipy, largest_component
from asgnn.graphs.planted import PLANTED
from asgnn.graphs.sources import (
    GNN_META_ATTACK,
    HETEROPHILOUS,
    PRO_GNN,
    PackageFile,
    Source,
    cache_folder,
    fetch,
    find_packaged,
    mirror_folder,
    read_npz,
    read_zip,
)
from asgnn.graphs.splits import USUAL_RULE, SplitRule

Metric = Literal["accuracy", "roc_auc"]


@dataclass(frozen=True)
class Dataset:
    """A dataset: its origin, its size after loading, how to read its file, and how models are usually compared on it.

    Args:
        name: The name, unique in :data:`DATASETS`.
        origin: What it is and where it comes from, in a few words.
        nodes, edges, features, classes: The size after loading; edges are undirected.
        read: Returns the graph from the file; ``None`` for a generated graph.
        source: The file; ``None`` if it is included in the package, or generated.
        splits: The number of published splits that the file contains, as columns of the graph's masks.
        rule: The sizes of random splits.
        metric: The figure by which models are compared: accuracy, or the area under the ROC curve.
        whole: Whether the graph is kept whole, instead of its largest connected component.
        generate: Returns a generated graph.
    """

    name: str
    origin: str
    nodes: int
    edges: int
    features: int
    classes: int
    read: Callable[[Path], Data] | None
    source: Source | PackageFile | None = None
    splits: int = 0
    rule: SplitRule = USUAL_RULE
    metric: Metric = "accuracy"
    whole: bool = False
    generate: Callable[[], Data] | None = None


MASKS = tuple(f"{part}_masks" for part in SPLITS)
CSR = ("data", "indices", "indptr", "shape")


def csr_from(arrays: dict[str, NDArray[Any]], prefix: str = "") -> sp.csr_array:
    """Builds a CSR matrix from the arrays named by :data:`CSR`, each with the prefix."""
    data, indices, indptr, shape = (arrays[prefix + part] for part in CSR)
    return sp.csr_array((data, indices, indptr), shape=(int(shape[0]), int(shape[1])))


def _read_attributed(path: Path) -> Data:
    # The citeseer archive also contains pickled objects, which are never read.
    keys = [f"{matrix}_{part}" for matrix in ("adj", "attr") for part in CSR]
    arrays = read_npz(path, [*keys, "labels"])
    return from_scipy(csr_from(arrays, "adj_"), csr_from(arrays, "attr_").astype(np.float32), arrays["labels"])


def _read_featureless(path: Path) -> Data:
    arrays = read_npz(path, [*(f"adj_{part}" for part in CSR), "labels"])
    adj = csr_from(arrays, "adj_")
    data = largest_component(from_scipy(adj, np.zeros((adj.shape[0], 1), np.float32), arrays["labels"]))
    # Identity features of the component only: columns of removed nodes would be zero.
    data.x = torch.eye(data.num_nodes)
    return data


def _read_builtin(path: Path) -> Data:
    arrays = read_npz(path, ["shape", "attr_indptr", "attr_indices", "edges", "labels"])
    nodes, features = arrays["shape"].tolist()
    # Stored as unsigned integers; SciPy needs signed ones.
    indices, indptr = arrays["attr_indices"].astype(np.int32), arrays["attr_indptr"].astype(np.int32)
    x = sp.csr_array((np.ones(len(indices), np.float32), indices, indptr), shape=(nodes, features))
    return from_edges(x, arrays["edges"], arrays["labels"])


def _read_heterophilous(path: Path) -> Data:
    arrays = read_npz(path, ["node_features", "node_labels", "edges", *MASKS])
    data = from_edges(arrays["node_features"], arrays["edges"], arrays["node_labels"])
    for part, stored in zip(SPLITS, MASKS, strict=True):
        data[f"{part}_mask"] = torch.from_numpy(np.ascontiguousarray(arrays[stored].T))
    return data


def _heterophilous(
    name: str, about: str, nodes: int, edges: int, features: int, classes: int, sha256: str,
    metric: Metric = "accuracy", file: str = "",
) -> Dataset:  # fmt: skip
    source = Source(*HETEROPHILOUS, f"data/{file or name}.npz", sha256)
    origin, sizes = f"{about}, data of Platonov et al. 2023", (nodes, edges, features, classes)
    return Dataset(name, origin, *sizes, _read_heterophilous, source, 10, metric=metric, whole=True)


# of the numbers as bytes, row by row
DIGITS_SHA256 = "68aea062d35a127749050fa0e52dca09d6569ac08092c925610e0954e172dde2"
DIGITS_SHAPE = (1797, 65)
MAX_DIGITS = 1 << 20  # bytes; the file has under 300 kB


def _read_digits(path: Path) -> Data:
    try:
        with gzip.open(path) as file:
            lines = file.read(MAX_DIGITS).split()
        numbers = np.array([line.split(b",") for line in lines], dtype=np.float64)
        with np.errstate(invalid="ignore"):
            table = numbers.astype(np.uint8)
    except (OSError, EOFError, ValueError, zlib.error) as cause:
        raise DataCorrupt(f"{path} is damaged or not the file of digits: {cause}.") from cause
    if table.shape != DIGITS_SHAPE or hashlib.sha256(table.tobytes()).hexdigest() != DIGITS_SHA256:
        raise DataCorrupt(f"{path} does not contain the 1797 digits of scikit-learn.")
    # Pixels have 17 levels, 0 to 16.
    return from_edges(table[:, :-1] / np.float32(16), np.empty((0, 2), np.int64), table[:, -1].astype(np.int64))


def _read_acm(path: Path) -> Data:
    names = ("acm/acm.feature", "acm/acm.label", "acm/acm.edge")
    feature, label, edge = read_zip(path, names).values()
    try:
        labels = np.array(label.split(), dtype=np.int64)
        edges = np.array(edge.split(), dtype=np.int64).reshape(-1, 2)
        # 11 MB of "0 1 0 …": reading the digits as bytes is a hundred times faster than parsing text.
        digits = np.frombuffer(feature, dtype=np.uint8)
        digits = digits[digits > ord(" ")] - ord("0")
        x = digits.reshape(len(labels), -1)
    except ValueError as cause:
        raise DataCorrupt(f"{path} contains something other than numbers: {cause}.") from cause
    if digits.max(initial=0) > 1:
        raise DataCorrupt(f"acm/acm.feature in {path} contains something other than the digits 0 and 1.")
    return from_edges(x, edges, labels)


_CITATION = "citation graph"
_ATTRIBUTED = "data of Zügner and Günnemann 2019"

DATASETS: dict[str, Dataset] = {
    dataset.name: dataset
    for dataset in (
        Dataset("cora", f"{_CITATION}, Sen et al. 2008", 2485, 5069, 1433, 7, _read_builtin),
        Dataset(
            "citeseer", f"{_CITATION}, {_ATTRIBUTED}", 2110, 3668, 3703, 6, _read_attributed,
            Source(*GNN_META_ATTACK, "data/citeseer.npz",
                   "36e9a5bbe84eaa0c3c6b226f8b27450bb79246a5df22c375b3bacddb856efa8e"),
        ),
        Dataset(
            "cora_ml", f"{_CITATION}, {_ATTRIBUTED}", 2810, 7981, 2879, 7, _read_attributed,
            Source(*GNN_META_ATTACK, "data/cora_ml.npz",
                   "ffbe4e64857dc6bf38f1877e4312559a064df84b59d0f32f938717de5d5af0fd"),
        ),
        Dataset(
            "acm", "papers sharing an author, data of Jin et al. 2020", 2006, 12628, 1870, 3, _read_acm,
            Source(*PRO_GNN, "other_datasets/acm.zip",
                   "f3950005c650a390e869fac37d21d5bfadcf349bc4b5d275eb5090d15564f7ed"),
        ),
        Dataset(
            "polblogs", f"political blogs, {_ATTRIBUTED}", 1222, 16714, 1222, 2, _read_featureless,
            Source(*GNN_META_ATTACK, "data/polblogs.npz",
                   "cd0983c2b1caa3bbe2703a4e316f97bb1dccd33f98800d3d8e4bbe51cc86941b"),
        ),
        _heterophilous(
            "actor", "actors on one page", 7600, 26659, 932, 5,
            "c350eef06b2c2a9bf8218be2b57cac6d4003d0922eb597a039e9123f75817816",
        ),
        _heterophilous(
            "chameleon", "pages of a wiki without duplicates", 890, 8854, 2325, 5,
            "bf46f07e1fb5249280447e5fe3100f3e82fc4b93ad1e13ffcfdec924b6ac0bb5", file="chameleon_filtered",
        ),
        _heterophilous(
            "squirrel", "pages of a wiki without duplicates", 2223, 46998, 2089, 5,
            "f06370ffb3116c5de8b7a600005400b2293c025e0ce2f6916d8201a825505ac7", file="squirrel_filtered",
        ),
        _heterophilous(
            "cornell", "web pages of a university", 183, 277, 1703, 5,
            "684c54ba3daa13b0ba1f04a3d6dd1b1175c1ae9bdeb982851fd4ff96d3aac298",
        ),
        _heterophilous(
            "texas", "web pages of a university", 183, 279, 1703, 5,
            "b164b99e6c3d43e4ab07488ec59bd8c815f90cbc1bd4cf425ce587d2b534d844",
        ),
        _heterophilous(
            "wisconsin", "web pages of a university", 251, 450, 1703, 5,
            "2543c89838cfc75f737f7c4664cc1d097f8268602c20b2d1bd4f21407df9c074",
        ),
        _heterophilous(
            "minesweeper", "a board of the game", 10000, 39402, 7, 2,
            "e664c8dacf1e8ac466c2c09ed4b237bd2c5541f47a6eae9c6092cb87f16412b3", "roc_auc",
        ),
        _heterophilous(
            "tolokers", "workers on common tasks", 11758, 519000, 10, 2,
            "dacf3ac94cec53d03cd2adb5255c08b33dee1656c33ca8164a464bd9450a1667", "roc_auc",
        ),
        Dataset(
            "digits", "images of digits without edges, data of scikit-learn", 1797, 0, 64, 10, _read_digits,
            PackageFile("sklearn", "scikit-learn", "datasets/data/digits.csv.gz"), whole=True,
        ),
        *(
            Dataset(
                name, f"planted partition, {one.about}", one.nodes, one.num_edges, one.num_features,
                one.num_classes, None, rule=one.rule, whole=True, generate=one.generate,
            )
            for name, one in PLANTED.items()
        ),
    )
}  # fmt: skip


# Names that these datasets had in earlier versions, and have in the files.
ALIASES = {"chameleon_filtered": "chameleon", "squirrel_filtered": "squirrel"}


def find_dataset(name: str) -> Dataset:
    """Returns the dataset with a name, ignoring case and treating ``-`` as ``_``."""
    key = str(name).strip().lower().replace("-", "_")
    known = {dataset.replace("-", "_"): dataset for dataset in DATASETS}
    key = ALIASES.get(key, key)
    if key in known:
        return DATASETS[known[key]]
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.4)
    hint = f" (did you mean {known[close[0]]}?)" if close else ""
    raise ConfigError(f"There is no dataset {name!r}{hint}; choose from {', '.join(DATASETS)}.")


def load_dataset(name: str, root: str | Path | None = None) -> Data:
    """Returns a graph of :data:`DATASETS` with ``x`` (float32), ``y`` (int64), ``edge_index`` and ``name``.

    Cora is included and planted graphs are generated; digits comes with scikit-learn (see :func:`find_packaged`); the
    others come from the cache, the mirror or a download (see :func:`fetch`). Ten published splits are N×10 masks.
    Takes under a second if the file is available locally.

    Args:
        name: A name in :data:`DATASETS`.
        root: The cache folder.
    """
    dataset = find_dataset(name)
    data = _read(dataset, root)
    if not dataset.whole:
        data = largest_component(data)
    # The caller may have changed torch's default dtype.
    data.x = data.x.float()
    data.name = dataset.name
    return data


def _read(dataset: Dataset, root: str | Path | None) -> Data:
    if dataset.generate is not None:
        return dataset.generate()
    if dataset.read is None:
        raise ConfigError(f"The dataset {dataset.name} has neither a file nor a generator; give it read or generate.")
    if isinstance(dataset.source, PackageFile):
        return dataset.read(find_packaged(dataset.source, root))
    if dataset.source is not None:
        return dataset.read(fetch(dataset.source, root))
    with resources.as_file(resources.files("asgnn.graphs") / "resources" / f"{dataset.name}.npz") as path:
        return dataset.read(path)


Availability = Literal["built in", "generated", "installed", "cached", "mirror", "download", "missing"]


def available(name: str, root: str | Path | None = None) -> Availability:
    """Returns where :func:`load_dataset` would find the graph; checks only whether files exist, reads none."""
    dataset = find_dataset(name)
    source = dataset.source
    if source is None:
        return "built in" if dataset.generate is None else "generated"
    cached = source.within(cache_folder(root)).is_file()
    if isinstance(source, PackageFile):
        return "installed" if source.installed() else "cached" if cached else "missing"
    if cached:
        return "cached"
    mirror = mirror_folder()
    if mirror is not None and source.within(mirror).is_file():
        return "mirror"
    return "download"
