"""Edge flips: the changes an attack makes to a graph, and the attacks published with Pro-GNN."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from numbers import Real
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from asgnn.errors import ConfigError, DataCorrupt, GraphError
from asgnn.graphs.checks import check_edges, check_nodes, check_pairs, check_size, check_weights, nodes_of
from asgnn.graphs.datasets import CSR, csr_from, find_dataset, load_dataset
from asgnn.graphs.keys import MAX_NODES, contains, from_keys, single_keys, sort_keys, to_keys
from asgnn.graphs.published_splits import node_list, read_json
from asgnn.graphs.sources import PRO_GNN, Source, fetch, read_npz, write_npz
from asgnn.settings import check_count


# eq=False: == between tensors does not give a bool.
@dataclass(frozen=True, eq=False)
class Perturbation:
    """A set of edge flips, and optionally flips of binary features; a flip adds an absent edge or removes an edge.

    Flips keep their order, so the first k flips of a greedy attack are its result for budget k (:meth:`first`). They
    are stored on the CPU with u < v. Self-loops, unknown nodes and repeated pairs (two flips that cancel) are errors.

    Args:
        flips: Pairs of nodes, int64 of shape (2, F).
        num_nodes: The number of nodes of the graph.
        targets: The attacked nodes of a targeted attack.
        meta: How the flips were made.
        feature_flips: Pairs (node, feature), int64 of shape (2, G): entries of x that change from 0 to 1 or back.
    """

    flips: Tensor
    num_nodes: int
    targets: Tensor | None = None
    meta: Mapping[str, str] = field(default_factory=dict)
    feature_flips: Tensor | None = None

    def __post_init__(self) -> None:
        targets, feature_flips, num_nodes = self.targets, self.feature_flips, check_size(self.num_nodes, least=1)
        if not isinstance(self.meta, Mapping):
            raise GraphError(f"meta must be a mapping; it is a {type(self.meta).__name__}.")
        flips = check_pairs(self.flips, num_nodes, "flips").cpu()
        low, high = flips.min(dim=0).values, flips.max(dim=0).values
        if bool((low == high).any()):
            raise GraphError(f"flips contains a self-loop at node {int(low[low == high][0])}.")
        flips = torch.stack([low, high])
        _check_unique(flips, num_nodes, "flips")
        if targets is not None:
            targets = check_nodes(targets, num_nodes, "targets").unique()
        if feature_flips is not None:
            feature_flips = check_pairs(feature_flips, None, "feature_flips").cpu()
            check_nodes(feature_flips[0], num_nodes, "feature_flips[0]")
            if feature_flips.numel():
                for feature in (int(feature_flips[1].min()), int(feature_flips[1].max())):
                    if not 0 <= feature < MAX_NODES:
                        raise GraphError(f"feature_flips contains feature {feature}, which cannot exist.")
                _check_unique(feature_flips, int(feature_flips[1].max()) + 1, "feature_flips")
        object.__setattr__(self, "num_nodes", num_nodes)
        object.__setattr__(self, "flips", flips)
        object.__setattr__(self, "targets", targets)
        object.__setattr__(self, "feature_flips", feature_flips)
        object.__setattr__(self, "meta", {str(key): str(value) for key, value in self.meta.items()})

    def __len__(self) -> int:
        """Returns the number of edge flips and feature flips."""
        return self.flips.size(1) + (0 if self.feature_flips is None else self.feature_flips.size(1))

    def __bool__(self) -> bool:
        # An attack with no flips is still an attack in `if perturbation:`.
        return True

    def first(self, count: int) -> Perturbation:
        """Returns the first ``count`` edge flips: the result of a greedy attack with that budget."""
        if self.feature_flips is not None:
            raise ConfigError("first needs edge flips only: the common order of edge and feature flips is not stored.")
        check_count("count", count, 0, self.flips.size(1))
        return replace(self, flips=self.flips[:, :count])

    def apply(self, data: Data) -> Data:
        r"""Returns a copy of the graph with the flips applied; all other attributes are shared with ``data``.

        Applying it twice restores the graph. If the graph has ``edge_weight``, kept edges keep their weight and added
        edges get 1. Time :math:`O((E + F) \log (E + F))`.
        """
        keys = self._keys_of(data)
        both_ways = torch.cat([self.flips, self.flips.flip(0)], dim=1)
        flipped = to_keys(both_ways, self.num_nodes).to(keys.device)
        edges = single_keys(torch.cat([keys, flipped]))
        for name in set(data.edge_attrs()) - {"edge_index", "edge_weight"}:
            raise GraphError(f"The graph has {name}, which is undefined for added edges; remove it first.")
        result = copy.copy(data)
        weight = data.get("edge_weight")
        if weight is not None:
            check_weights(weight, keys.numel())
            # Kept edges have the same order in both sorted lists.
            stays = contains(edges, keys)
            result.edge_weight = weight.new_ones(edges.numel())
            result.edge_weight[contains(keys, edges)] = weight[stays][keys[stays].argsort()]
        result.edge_index = from_keys(edges, self.num_nodes)
        if self.feature_flips is not None:
            result.x = _flip_features(data.x, self.feature_flips)
        return result

    def added(self, clean: Data) -> Tensor:
        """Returns the flips that add an edge to ``clean``, of shape (2, ·)."""
        return self.flips[:, ~self._present(clean)]

    def removed(self, clean: Data) -> Tensor:
        """Returns the flips that remove an edge of ``clean``, of shape (2, ·)."""
        return self.flips[:, self._present(clean)]

    def rate(self, clean: Data) -> float:
        """Returns the number of edge flips divided by the number of undirected edges of ``clean``."""
        edges = self._keys_of(clean).numel() // 2
        if edges == 0:
            raise GraphError("The rate is undefined: the clean graph has no edges.")
        return self.flips.size(1) / edges

    def check(self, clean: Data, budget: int | None = None) -> None:
        """Raises if the flips do not fit ``clean`` or exceed ``budget``."""
        self._keys_of(clean)
        if budget is not None and not isinstance(budget, Real):
            raise ConfigError(f"budget must be a number; it is {budget!r}.")
        if budget is not None and len(self) > budget:
            raise GraphError(f"There are {len(self)} flips, but the budget is {budget}.")

    def _keys_of(self, data: Data) -> Tensor:
        if nodes_of(data) != self.num_nodes:
            raise GraphError(f"The flips are for {self.num_nodes} nodes, but the graph has {nodes_of(data)}.")
        check_edges(data.edge_index, self.num_nodes)
        return to_keys(data.edge_index, self.num_nodes)

    def _present(self, clean: Data) -> Tensor:
        return contains(self._keys_of(clean).cpu(), to_keys(self.flips, self.num_nodes))

    def save(self, path: str | Path) -> None:
        """Writes a NumPy archive without pickled objects, atomically; creates missing folders."""
        arrays = {
            "flips": self.flips.numpy(),
            "num_nodes": np.array(self.num_nodes, dtype=np.int64),
            # Text as bytes: a NumPy string array drops trailing zeros.
            "meta": np.frombuffer(json.dumps(self.meta, sort_keys=True).encode(), dtype=np.uint8),
        }
        if self.targets is not None:
            arrays["targets"] = self.targets.numpy()
        if self.feature_flips is not None:
            arrays["feature_flips"] = self.feature_flips.numpy()
        write_npz(Path(path), arrays)

    @classmethod
    def load(cls, path: str | Path) -> Perturbation:
        """Reads a file written by :meth:`save`; raises :class:`~asgnn.errors.DataCorrupt` if it is damaged."""
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
        except (ValueError, RecursionError) as cause:  # GraphError is a ValueError; deeply nested JSON recurses
            raise DataCorrupt(f"{path} does not contain valid flips: {str(cause).removesuffix('.')}.") from cause


def _flip_features(x: Tensor | None, flips: Tensor) -> Tensor:
    if x is None:
        raise GraphError("There are feature flips, but the graph has no x.")
    node, feature = flips.to(x.device)
    if feature.numel() and int(feature.max()) >= x.size(1):
        raise GraphError(f"feature_flips contains feature {int(feature.max())}, but x has {x.size(1)} features.")
    old = x[node, feature]
    if bool(((old != 0) & (old != 1)).any()):
        raise GraphError(
            "feature_flips contains an entry of x that is neither 0 nor 1; only binary features can be flipped."
        )
    return x.index_put((node, feature), 1 - old)


def _check_unique(pairs: Tensor, width: int, name: str) -> None:
    keys = sort_keys(to_keys(pairs, width))
    repeated = keys[1:][keys[1:] == keys[:-1]]
    if repeated.numel():
        u, v = divmod(int(repeated[0]), width)
        raise GraphError(f"{name} contains the pair {u}–{v} more than once; two flips of one pair cancel.")


def diff(clean: Data, poisoned: Data) -> Perturbation:
    r"""Returns the flips that turn ``clean`` into ``poisoned``; both must be undirected.

    Time :math:`O(E \log E)`.
    """
    num_nodes = nodes_of(clean)
    if nodes_of(poisoned) != num_nodes:
        raise GraphError(f"The clean graph has {num_nodes} nodes, but the poisoned graph has {nodes_of(poisoned)}.")
    keys = []
    for data, name in ((clean, "clean"), (poisoned, "poisoned")):
        check_edges(data.edge_index, num_nodes, f"edge_index of the {name} graph")
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
    """Returns the names and rate as written in :data:`POISONED`, and the file; raises if there is no such attack."""
    dataset = find_dataset(name)
    attack = str(attack).strip().lower()
    if attack not in POISONED:
        raise ConfigError(f"No graphs attacked by {attack!r} are published, only by {' and '.join(POISONED)}.")
    published = POISONED[attack]
    if dataset.name not in published:
        raise ConfigError(
            f"No {attack} graph of {dataset.name} is published, only of {', '.join(published)}; "
            "create one with asgnn.attacks."
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
    """Returns the flips of an attacked graph published with Pro-GNN (Jin et al. 2020) for :func:`published_split`.

    Args:
        name: Dataset: cora, citeseer, or for Metattack also cora_ml.
        attack: ``"metattack"`` or ``"nettack"``.
        rate: For Metattack the flips divided by the edges, 0.05 to 0.25; for Nettack the flips per target, 1 to 5.
            The result includes the targets.
        root: The cache folder.
    """
    name, attack, known, source = published(name, attack, rate)
    path = fetch(source, root)
    clean = load_dataset(name, root)
    found = diff(clean, _read_adjacency(path))
    targets = None
    if attack == "nettack":
        nodes = fetch(NETTACK_TARGETS[name], root)
        targets = node_list(read_json(nodes), "attacked_test_nodes", nodes)
        # The targets were attacked one after another, and a later flip may undo an earlier one.
        budget = round(known) * targets.numel()
        within = len(found) <= budget
    else:
        budget = int(known * (clean.num_edges // 2))
        within = len(found) == budget
    if not within:
        raise DataCorrupt(f"{path} differs from the clean graph by {len(found)} edges, but its budget is {budget}.")
    meta = {"dataset": name, "attack": attack, "rate": f"{known:g}", "source": source.url}
    return Perturbation(found.flips, found.num_nodes, targets, meta)


def _read_adjacency(path: Path) -> Data:
    matrix = csr_from(read_npz(path, CSR)).tocoo()
    # Not made undirected, so that diff rejects an asymmetric file.
    present = matrix.data != 0
    row, col = (torch.from_numpy(index[present].astype(np.int64)) for index in (matrix.row, matrix.col))
    return Data(edge_index=torch.stack([row, col]), num_nodes=matrix.shape[0])
