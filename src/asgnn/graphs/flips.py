"""What an attack does to a graph: pairs of nodes whose edge is added if absent and removed if there."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch_geometric.data import Data

from asgnn.errors import ConfigError, DataCorrupt, GraphError
from asgnn.graphs.checks import check_edges, check_size, check_weights, nodes_of
from asgnn.graphs.datasets import find_dataset, load_dataset
from asgnn.graphs.keys import MAX_NODES, contains, from_keys, single_keys, sort_keys, to_keys
from asgnn.graphs.sources import PRO_GNN, Source, fetch, read_npz, write_npz
from asgnn.graphs.splits import node_list, read_json


# Compared by identity: == between tensors gives tensors, not an answer.
@dataclass(frozen=True, eq=False)
class Perturbation:
    """A set of edge flips on a graph of ``num_nodes`` nodes, and of flips of its binary features.

    Flips keep the order in which they were made, so that the first k flips of a greedy attack are its attack with
    budget k (:meth:`first`). They are kept on the CPU with u < v. A self-loop, a node that is not there and a pair
    given twice (two flips that cancel) are errors.

    Args:
        flips: Pairs of nodes, int64 of shape (2, F).
        num_nodes: Nodes of the graph.
        targets: The attacked nodes, if single nodes were attacked.
        meta: How it was made.
        feature_flips: Pairs (node, feature), int64 of shape (2, G): entries of x that turn from 0 to 1 or back.
    """

    flips: Tensor
    num_nodes: int
    targets: Tensor | None = None
    meta: Mapping[str, str] = field(default_factory=dict)
    feature_flips: Tensor | None = None

    def __post_init__(self) -> None:
        flips, targets, feature_flips = self.flips, self.targets, self.feature_flips
        _check_pairs(flips, "flips")
        if check_size(self.num_nodes) < 1:
            raise GraphError("num_nodes must be a whole number from 1, and is 0.")
        if not isinstance(self.meta, Mapping):
            raise GraphError(f"meta must map names to words, and is a {type(self.meta).__name__}.")
        flips = flips.cpu()
        _check_range(flips, self.num_nodes, "flip")
        low, high = flips.min(dim=0).values, flips.max(dim=0).values
        if bool((low == high).any()):
            raise GraphError(f"The flips hold a self-loop at node {int(low[low == high][0])}.")
        flips = torch.stack([low, high])
        _check_single(flips, self.num_nodes, "flips")
        if targets is not None:
            if not isinstance(targets, Tensor) or targets.dtype != torch.int64 or targets.dim() != 1:
                raise GraphError("targets must be a one-dimensional int64 tensor of node numbers, or None.")
            targets = targets.cpu().unique()
            _check_range(targets, self.num_nodes, "target")
        if feature_flips is not None:
            _check_pairs(feature_flips, "feature_flips")
            feature_flips = feature_flips.cpu()
            _check_range(feature_flips[0], self.num_nodes, "feature flip")
            if feature_flips.numel():
                for feature in (int(feature_flips[1].min()), int(feature_flips[1].max())):
                    if not 0 <= feature < MAX_NODES:
                        raise GraphError(f"A feature flip names feature {feature}.")
                _check_single(feature_flips, int(feature_flips[1].max()) + 1, "feature flips")
        object.__setattr__(self, "num_nodes", int(self.num_nodes))
        object.__setattr__(self, "flips", flips)
        object.__setattr__(self, "targets", targets)
        object.__setattr__(self, "feature_flips", feature_flips)
        object.__setattr__(self, "meta", {str(key): str(value) for key, value in self.meta.items()})

    def __len__(self) -> int:
        """Flips of edges and of features."""
        return self.flips.size(1) + (0 if self.feature_flips is None else self.feature_flips.size(1))

    def __bool__(self) -> bool:
        # Without this, an attack of no flips would count as no attack at all in `if perturbation:`.
        return True

    def first(self, count: int) -> Perturbation:
        """The first ``count`` edge flips: of a greedy attack, what it does with that budget."""
        if self.feature_flips is not None:
            raise ConfigError(
                "The order of edge flips and feature flips is not kept together, so there are no first ones."
            )
        if isinstance(count, bool) or not isinstance(count, Integral) or not 0 <= count <= self.flips.size(1):
            raise ConfigError(
                f"There are {self.flips.size(1)} edge flips, and the first {count!r} of them were asked for."
            )
        return replace(self, flips=self.flips[:, :count])

    def apply(self, data: Data) -> Data:
        r"""The graph with the flips made; ``data`` itself and all it holds besides edges stay as they are.

        Applied twice it gives the first graph again. Where the graph has ``edge_weight``, kept edges keep
        theirs and added ones get 1. Time :math:`O((E + F) \log (E + F))`.
        """
        keys = self._keys_of(data)
        both_ways = torch.cat([self.flips, self.flips.flip(0)], dim=1)
        flipped = to_keys(both_ways, self.num_nodes).to(keys.device)
        edges = single_keys(torch.cat([keys, flipped]))
        for name in set(data.edge_attrs()) - {"edge_index", "edge_weight"}:
            raise GraphError(f"The graph has {name}, which added edges would lack; remove it first.")
        result = copy.copy(data)
        weight = data.get("edge_weight")
        if weight is not None:
            check_weights(weight, keys.numel())
            # Kept edges are in the same order in both sorted lists.
            stays = contains(edges, keys)
            result.edge_weight = weight.new_ones(edges.numel())
            result.edge_weight[contains(keys, edges)] = weight[stays][keys[stays].argsort()]
        result.edge_index = from_keys(edges, self.num_nodes)
        if self.feature_flips is not None:
            result.x = _flip_features(data.x, self.feature_flips)
        return result

    def added(self, clean: Data) -> Tensor:
        """The flips that add an edge to ``clean``, of shape (2, ·)."""
        return self.flips[:, ~self._present(clean)]

    def removed(self, clean: Data) -> Tensor:
        """The flips that remove an edge of ``clean``, of shape (2, ·)."""
        return self.flips[:, self._present(clean)]

    def rate(self, clean: Data) -> float:
        """Flips as a share of the undirected edges of ``clean``."""
        edges = self._keys_of(clean).numel() // 2
        if edges == 0:
            raise GraphError("The rate of flips is a share of the edges, and the clean graph has none.")
        return self.flips.size(1) / edges

    def check(self, clean: Data, budget: int | None = None) -> None:
        """Raises if these are not flips for ``clean``, or more of them than ``budget``."""
        self._keys_of(clean)
        if budget is not None and not isinstance(budget, Real):
            raise ConfigError(f"The budget must be a number of flips, and is {budget!r}.")
        if budget is not None and len(self) > budget:
            raise GraphError(f"There are {len(self)} flips, and the budget is {budget}.")

    def _keys_of(self, data: Data) -> Tensor:
        if nodes_of(data) != self.num_nodes:
            raise GraphError(f"The flips are for {self.num_nodes} nodes, and the graph has {nodes_of(data)}.")
        check_edges(data.edge_index, self.num_nodes)
        return to_keys(data.edge_index, self.num_nodes)

    def _present(self, clean: Data) -> Tensor:
        return contains(self._keys_of(clean).cpu(), to_keys(self.flips, self.num_nodes))

    def save(self, path: str | Path) -> None:
        """Writes a NumPy archive without pickled objects, whole or not at all; its folder is made if need be."""
        arrays = {
            "flips": self.flips.numpy(),
            "num_nodes": np.array(self.num_nodes, dtype=np.int64),
            # Text as bytes: a NumPy string array would drop trailing zeros and pad the rest.
            "meta": np.frombuffer(json.dumps(self.meta, sort_keys=True).encode(), dtype=np.uint8),
        }
        if self.targets is not None:
            arrays["targets"] = self.targets.numpy()
        if self.feature_flips is not None:
            arrays["feature_flips"] = self.feature_flips.numpy()
        write_npz(Path(path), arrays)

    @classmethod
    def load(cls, path: str | Path) -> Perturbation:
        """Reads what :meth:`save` wrote; any damage is a :class:`~asgnn.errors.DataCorrupt`."""
        path = Path(path)
        arrays = read_npz(path, ["flips", "num_nodes", "meta"], optional=["targets", "feature_flips"])
        try:
            if any(array.dtype != np.int64 for key, array in arrays.items() if key != "meta"):
                raise ValueError("flips, num_nodes, targets and feature_flips must be int64")
            if arrays["num_nodes"].shape != () or arrays["meta"].dtype != np.uint8:
                raise ValueError("num_nodes must be one number and meta bytes")
            meta = json.loads(arrays["meta"].tobytes())
            if not isinstance(meta, dict) or not all(isinstance(value, str) for value in meta.values()):
                raise ValueError("meta must map strings to strings")
            tensors = {key: torch.from_numpy(arrays[key]) for key in ("targets", "feature_flips") if key in arrays}
            return cls(torch.from_numpy(arrays["flips"]), int(arrays["num_nodes"]), meta=meta, **tensors)
        except (ValueError, RecursionError) as cause:  # GraphError is a ValueError; nested JSON may recurse too deeply
            raise DataCorrupt(f"{path} does not hold a set of flips: {str(cause).removesuffix('.')}.") from cause


def _flip_features(x: Tensor | None, flips: Tensor) -> Tensor:
    if x is None:
        raise GraphError("The flips name features, and the graph has no x.")
    node, feature = flips.to(x.device)
    if feature.numel() and int(feature.max()) >= x.size(1):
        raise GraphError(f"The flips name feature {int(feature.max())}, and the graph has {x.size(1)}.")
    old = x[node, feature]
    if bool(((old != 0) & (old != 1)).any()):
        raise GraphError("Only entries of x that are 0 or 1 can be flipped, and the flips name another one.")
    return x.index_put((node, feature), 1 - old)


def _check_pairs(pairs: Tensor, name: str) -> None:
    if not isinstance(pairs, Tensor) or pairs.dtype != torch.int64 or pairs.dim() != 2 or pairs.size(0) != 2:
        what = f"{pairs.dtype} of shape {tuple(pairs.shape)}" if isinstance(pairs, Tensor) else repr(pairs)
        raise GraphError(f"{name} must be an int64 tensor of shape (2, F), and is {what}.")


def _check_single(pairs: Tensor, width: int, name: str) -> None:
    keys = sort_keys(to_keys(pairs, width))
    repeated = keys[1:][keys[1:] == keys[:-1]]
    if repeated.numel():
        u, v = divmod(int(repeated[0]), width)
        raise GraphError(f"The {name} hold the pair {u}–{v} more than once; two flips of one pair cancel.")


def _check_range(nodes: Tensor, num_nodes: int, what: str) -> None:
    outside = (nodes < 0) | (nodes >= num_nodes)
    if bool(outside.any()):
        raise GraphError(
            f"A {what} names node {int(nodes[outside][0])}, but the nodes are numbered 0 to {num_nodes - 1}."
        )


def diff(clean: Data, poisoned: Data) -> Perturbation:
    r"""The flips that lead from ``clean`` to ``poisoned``; a directed graph on either side is refused.

    Time :math:`O(E \log E)`.
    """
    num_nodes = nodes_of(clean)
    if nodes_of(poisoned) != num_nodes:
        raise GraphError(f"The clean graph has {num_nodes} nodes and the poisoned one {nodes_of(poisoned)}.")
    keys = []
    for data, name in (
        (clean, "edge_index of the clean graph"),
        (poisoned, "edge_index of the poisoned graph"),
    ):
        check_edges(data.edge_index, num_nodes, name)
        edges = data.edge_index.cpu()
        keys.append(to_keys(edges[:, edges[0] < edges[1]], num_nodes))
    return Perturbation(from_keys(single_keys(torch.cat(keys)), num_nodes), num_nodes)


_METATTACK = {
    "cora": {
        0.05: "bfb6ed914acbae726906ff0aa09b5ae70713849dcc637d8f08eeb27c0ef24c1f",
        0.1: "fbb6b1485cdfa93ae23501f950b43f4dc96eb09099f5fec3d67b93a92394dbd7",
        0.15: "f22e02303c239ba236acf3c214e4ff8e2539d68992737e2d909d02a96eabfc88",
        0.2: "adbe44b4014bc183525d8f55f2173c091fad9cc5c97e01a08a423ee6ceea8caa",
        0.25: "2e0e4eb2293a48f9a54c612bb1ac36b7ef4e643626acf4c159792b2cb6b534d8",
    },
    "citeseer": {
        0.05: "8d27840b7ead85ed90260d54a6f4ff65740d869e1203017111c7fa9ef355242f",
        0.1: "5c333f8c92267ccd6f08ec27c421e9f0a17d9dda58729c93c7c823794c7c23f3",
        0.15: "69069c65343fc75c7b508bd97263a1a2d96212f62e72259ce34c4146f6db866d",
        0.2: "599e1fb14330bb5451216a5cebe7987840ecfa6a2d41004088f616e8653e9f5a",
        0.25: "63ff4f587683c93f36ff9ef987b9efad36260af5407bdf1a4175359dfb25ce91",
    },
    "cora_ml": {
        0.05: "b6fa842571104a1460a1cab4c334646a7de25545bddafe6cc76c29e6dfe7ff55",
        0.1: "7079e0297962f04a27711588d267659e5699a48db5b2d3952aebdaa423712125",
        0.15: "7202ff756cf817c6814f76088532488e5465a430119f5815d879c59a2607b8e0",
        0.2: "b63601136d9b2bca3fe3322da0259a5358762eefec5e0996137b0a7024efed7c",
        0.25: "0f471f3b2ed55ab795216cb310bb8bf9f0378bd56c4e5c4c55bf245e4275a5cc",
    },
}
_NETTACK = {
    "cora": {
        1.0: "34bebc2f07bd6d6c26d60aeaa04468188c473d3166461e591f5118b554533a2e",
        2.0: "fee90b13ccf0c23b14e0cf087ce41e584bc0c964436853894c01cde48f54fb80",
        3.0: "aa333452e7852f75a26c8d77b73b6d905406253cabc46338a1e96f3cafda2557",
        4.0: "12782aff23c81c44c2b15fd0e2fb31f953ae32814c4c4b8ab0452481c312150f",
        5.0: "f0e64db018d3278ecba60a999091b9f3c1bab0b5a07a3bf3e97995cfaa5e71ef",
    },
    "citeseer": {
        1.0: "54c2c3aa78ec07665abd60fb24efd8a0eb1ec7ee012cdcea624b344488091c31",
        2.0: "14f931cda7e2e2851e6370c18df505be1c0c09c16b77e44be98d01fdb44d5e55",
        3.0: "481b4edf430bcaae435765b33fd9f18779c6764436361c673b1812ea8d7154b9",
        4.0: "2fd8ae75036a8e9161cc385e04dd175687cb2c5766a7c813566a44aa30fff95f",
        5.0: "2783e043bd41379e6d67088df56451a27298b390119671a87ddff6e622ab5b10",
    },
}
# attack -> dataset -> rate -> file
POISONED: dict[str, dict[str, dict[float, Source]]] = {
    attack: {
        name: {rate: Source(*PRO_GNN, path.format(name=name, rate=rate), sha256) for rate, sha256 in hashes.items()}
        for name, hashes in table.items()
    }
    for attack, table, path in (
        ("metattack", _METATTACK, "meta/{name}_meta_adj_{rate}.npz"),
        ("nettack", _NETTACK, "nettack/{name}_nettack_adj_{rate}.npz"),
    )
}
NETTACK_TARGETS: dict[str, Source] = {
    name: Source(*PRO_GNN, f"nettack/{name}_nettacked_nodes.json", sha256)
    for name, sha256 in {
        "cora": "09ac6e4debd2c0dd4288e1130349da6547bfe971864a82d717e782f2f7953cbf",
        "citeseer": "a9911a5de538cfa856322d76d2095384d4c3a32aa3ff828b37365c6c247ed868",
    }.items()
}


def published(name: str, attack: str, rate: float) -> tuple[str, str, float, Source]:
    """The names and the rate as the table :data:`POISONED` has them, and the file; a sentence where there is none."""
    dataset = find_dataset(name)
    attack = str(attack).strip().lower()
    if attack not in POISONED:
        raise ConfigError(f"No graphs attacked by {attack!r} are published, only by {' and '.join(POISONED)}.")
    published = POISONED[attack]
    if dataset.name not in published:
        raise ConfigError(
            f"No {attack} graph of {dataset.name} is published, only of {', '.join(published)}; "
            f"asgnn.attacks makes one."
        )
    rates = published[dataset.name]
    known = next((one for one in rates if isinstance(rate, Real) and abs(one - float(rate)) < 1e-9), None)
    if known is None:
        raise ConfigError(
            f"No {attack} graph of {dataset.name} at rate {rate} is published, "
            f"only at {', '.join(f'{one:g}' for one in rates)}."
        )
    return dataset.name, attack, known, rates[known]


def load_poisoned(name: str, attack: str, rate: float, root: str | Path | None = None) -> Perturbation:
    """The flips of an attacked graph published with Pro-GNN (Jin et al. 2020).

    They were made for :func:`published_split`.

    Args:
        name: Dataset: cora, citeseer, or for Metattack also cora_ml.
        attack: ``"metattack"`` or ``"nettack"``.
        rate: For Metattack the flips as a share of the edges, 0.05 to 0.25; for Nettack the flips for each
            target, 1 to 5. The targets come with the perturbation.
        root: Folder to use as the cache.
    """
    name, attack, known, source = published(name, attack, rate)
    path = fetch(source, root)
    clean = load_dataset(name, root)
    found = diff(clean, _read_adjacency(path))
    targets = None
    if attack == "nettack":
        nodes = fetch(NETTACK_TARGETS[name], root)
        targets = node_list(read_json(nodes), "attacked_test_nodes", nodes)
        # The targets were attacked one after another, so a later flip may undo an earlier one.
        budget = round(known) * targets.numel()
        within = len(found) <= budget
    else:
        budget = int(known * (clean.num_edges // 2))
        within = len(found) == budget
    if not within:
        raise DataCorrupt(f"{path} differs from the clean graph by {len(found)} edges, and its budget is {budget}.")
    meta = {"dataset": name, "attack": attack, "rate": f"{known:g}", "source": source.url}
    return Perturbation(found.flips, found.num_nodes, targets, meta)


def _read_adjacency(path: Path) -> Data:
    arrays = read_npz(path, ["data", "indices", "indptr", "shape"])
    shape = (int(arrays["shape"][0]), int(arrays["shape"][1]))
    matrix = sp.csr_array((arrays["data"], arrays["indices"], arrays["indptr"]), shape=shape).tocoo()
    # Taken as it stands and not made undirected: diff is to see an asymmetric file for what it is.
    present = matrix.data != 0
    row, col = (torch.from_numpy(index[present].astype(np.int64)) for index in (matrix.row, matrix.col))
    return Data(edge_index=torch.stack([row, col]), num_nodes=shape[0])
