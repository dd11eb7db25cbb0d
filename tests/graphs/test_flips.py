import copy
import errno
import functools
import os

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from asgnn.errors import ConfigError, DataCorrupt, DataUnavailable, GraphError
from asgnn.graphs import (
    DATASETS,
    POISONED,
    Perturbation,
    diff,
    flips,
    from_edges,
    from_scipy,
    largest_component,
    load_dataset,
    load_poisoned,
    to_scipy,
    validate,
)
from asgnn.graphs.flips import NETTACK_TARGETS


def random_graph(seed: int, n: int = 33) -> Data:
    generator = np.random.default_rng(seed)
    return from_scipy(generator.random((n, n)) < 0.1, generator.random((n, 3)), np.arange(n) % 2)


def random_flips(seed: int, n: int = 33, count: int = 20) -> Perturbation:
    generator = np.random.default_rng(1000 + seed)
    pairs = np.stack(np.triu_indices(n, 1))
    chosen = pairs[:, generator.permutation(pairs.shape[1])[:count]]
    # Random directions: the constructor sorts them.
    chosen = np.where(generator.random(count) < 0.5, chosen, chosen[::-1])
    return Perturbation(torch.from_numpy(chosen), n, meta={"seed": str(seed)})


def pair_tensor(*pairs: tuple[int, int]) -> torch.Tensor:
    return torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).t()


@pytest.mark.parametrize("seed", range(10))
def test_identities(seed):
    clean, attack = random_graph(seed), random_flips(seed)
    poisoned = attack.apply(clean)
    validate(poisoned)
    assert torch.equal(attack.apply(poisoned).edge_index, clean.edge_index)
    in_order = torch.from_numpy(np.array(sorted(attack.flips.t().tolist())).T)
    assert torch.equal(diff(clean, poisoned).flips, in_order)
    assert torch.equal(diff(poisoned, clean).flips, in_order)
    assert len(diff(clean, clean)) == 0
    # |A' - A| is the matrix of flips.
    dense = np.zeros((33, 33))
    u, v = attack.flips.numpy()
    dense[u, v] = dense[v, u] = 1
    assert np.array_equal(np.abs(to_scipy(poisoned).toarray() - to_scipy(clean).toarray()), dense)
    added, removed = attack.added(clean), attack.removed(clean)
    assert added.size(1) + removed.size(1) == len(attack) == 20
    assert poisoned.num_edges == clean.num_edges + 2 * added.size(1) - 2 * removed.size(1)
    assert attack.rate(clean) == 20 / (clean.num_edges // 2)
    # Other attributes are shared.
    assert poisoned.x is clean.x
    assert poisoned.y is clean.y


def test_flips_keep_their_order_and_lose_their_direction():
    attack = Perturbation(pair_tensor((4, 1), (0, 2), (1, 3)), 5, targets=torch.tensor([3, 1, 3]))
    assert attack.flips.tolist() == [[1, 0, 1], [4, 2, 3]]
    assert attack.first(2).flips.tolist() == [[1, 0], [4, 2]]
    assert attack.first(2).targets.tolist() == [1, 3]
    for count in (-1, 4, 1.5, "2", True):
        words = f"count must be a whole number from 0 to 3; it is {count!r}"
        with pytest.raises(ConfigError, match=words):
            attack.first(count)
    assert attack.targets.tolist() == [1, 3]
    assert bool(Perturbation(pair_tensor(), 5))


def test_features_are_flipped_too(tmp_path):
    clean = from_edges(torch.eye(4), [(0, 1), (1, 2)], y=[0, 1, 0, 1])
    attack = Perturbation(pair_tensor((0, 3)), 4, feature_flips=pair_tensor((0, 0), (2, 1)))
    assert len(attack) == 3
    assert attack.rate(clean) == 0.5
    poisoned = attack.apply(clean)
    assert poisoned.x.tolist() == [[0, 0, 0, 0], [0, 1, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1]]
    assert torch.equal(clean.x, torch.eye(4))
    assert torch.equal(attack.apply(poisoned).x, clean.x)
    attack.save(tmp_path / "flips.npz")
    assert torch.equal(Perturbation.load(tmp_path / "flips.npz").feature_flips, attack.feature_flips)
    with pytest.raises(GraphError, match="entry of x that is neither 0 nor 1"):
        attack.apply(from_edges(torch.eye(4) / 2, [(0, 1)]))
    with pytest.raises(GraphError, match="contains feature 1, but x has 1 features"):
        attack.apply(from_edges(torch.zeros(4, 1), [(0, 1)]))


def test_edges_in_any_order_and_with_weights():
    clean = random_graph(0)
    order = torch.randperm(clean.num_edges, generator=torch.Generator().manual_seed(0))
    shuffled = clean.clone()
    shuffled.edge_index = clean.edge_index[:, order]
    # A symmetric weight that identifies the edge.
    shuffled.edge_weight = 0.01 * shuffled.edge_index.sum(dim=0)
    poisoned = random_flips(0).apply(shuffled)
    assert torch.equal(poisoned.edge_index, random_flips(0).apply(clean).edge_index)
    old = torch.from_numpy(to_scipy(clean).toarray())[tuple(poisoned.edge_index)] > 0
    expected = torch.where(old, 0.01 * poisoned.edge_index.sum(dim=0), 1.0)
    assert torch.equal(poisoned.edge_weight, expected)
    shuffled.edge_attr = torch.ones(clean.num_edges, 2)
    with pytest.raises(GraphError, match="has edge_attr, which is undefined for added edges"):
        random_flips(0).apply(shuffled)


EDGELESS = Data(x=torch.ones(5, 1), edge_index=torch.empty(2, 0, dtype=torch.int64))


def test_awkward_graphs():
    everything = Perturbation(torch.triu_indices(5, 5, 1), 5)
    full = everything.apply(EDGELESS)
    assert full.num_edges == 20
    assert everything.apply(full).num_edges == 0
    assert everything.added(EDGELESS).size(1) == 10
    nothing = Perturbation(pair_tensor(), 5)
    assert torch.equal(nothing.apply(full).edge_index, full.edge_index)
    with pytest.raises(GraphError, match="clean graph has no edges"):
        nothing.rate(EDGELESS)


def test_as_many_edges_as_nodes():
    """Only the names distinguish node from edge attributes here."""
    clean = from_edges(torch.eye(4), [(0, 1), (1, 2)], y=[0, 1, 0, 1])
    clean.edge_weight = torch.full((4,), 0.5)
    clean.train_mask = torch.tensor([True, False, False, False])
    poisoned = Perturbation(pair_tensor((0, 1), (2, 3)), 4).apply(clean)
    assert poisoned.edge_index.tolist() == [[1, 2, 2, 3], [2, 1, 3, 2]]
    assert poisoned.edge_weight.tolist() == [0.5, 0.5, 1, 1]
    assert poisoned.train_mask is clean.train_mask
    part = largest_component(clean)
    assert part.y.tolist() == [0, 1, 0]
    assert part.train_mask.tolist() == [True, False, False]
    assert part.edge_weight.numel() == 4


BAD = {
    "loop": ((pair_tensor((0, 1), (2, 2)), 5), "self-loop at node 2"),
    "twice": ((pair_tensor((0, 1), (1, 0)), 5), "flips contains the pair 0–1 more than once"),
    "outside": ((pair_tensor((0, 5)), 5), r"flips\[:, 0\] is the edge 0–5.*0 to 4"),
    "negative": ((pair_tensor((0, -1)), 5), r"flips\[:, 0\] is the edge 0–-1"),
    "shape": ((pair_tensor((0, 1), (0, 2), (0, 3)).t(), 5), r"flips must have shape \(2, E\); its shape is \(3, 2\)"),
    "dtype": ((pair_tensor((0, 1)).int(), 5), "flips has dtype int32"),
    "list": (([(0, 1)], 5), "flips is a list"),
    "no nodes": ((pair_tensor(), 0), "num_nodes must be a whole number from 1 to 3037000499; it is 0"),
    "text nodes": ((pair_tensor(), "5"), "it is '5'"),
    "too many nodes": ((pair_tensor(), 2**40), "num_nodes must be a whole number from 1 to 3037000499"),
    "true nodes": ((pair_tensor(), True), "it is True"),
    "meta": ((pair_tensor(), 5, None, "cora"), "meta must be a mapping; it is a str"),
    "huge feature": ((pair_tensor(), 5, None, {}, pair_tensor((1, 2**62))), "contains feature 4611686018427387904"),
    "feature twice": ((pair_tensor(), 5, None, {}, pair_tensor((0, 1), (0, 1))), "feature_flips contains the pair 0–1"),
    "feature of no node": ((pair_tensor(), 5, None, {}, pair_tensor((7, 1))), r"feature_flips\[0\] contains node 7"),
    "no feature": ((pair_tensor(), 5, None, {}, pair_tensor((1, -2))), "contains feature -2"),
    "targets outside": ((pair_tensor((0, 1)), 5, torch.tensor([7])), "targets contains node 7"),
    "targets list": ((pair_tensor((0, 1)), 5, [7]), "targets is a list"),
}


@pytest.mark.parametrize(("arguments", "words"), BAD.values(), ids=BAD.keys())
def test_bad_flips(arguments, words):
    with pytest.raises(GraphError, match=words):
        Perturbation(*arguments)


def test_apply_refuses():
    attack = Perturbation(pair_tensor((0, 1)), 5, feature_flips=pair_tensor((0, 0)))
    with pytest.raises(GraphError, match="feature flips, but the graph has no x"):
        attack.apply(Data(edge_index=EDGELESS.edge_index, num_nodes=5))
    with pytest.raises(GraphError, match="neither x nor num_nodes"):
        attack.apply(Data(edge_index=EDGELESS.edge_index))
    weighted = copy.copy(EDGELESS)
    weighted.edge_weight = torch.ones(3)
    with pytest.raises(GraphError, match=r"edge_weight must have shape \(0,\)"):
        attack.apply(weighted)


def test_flips_for_another_graph():
    attack = Perturbation(pair_tensor((0, 1), (0, 2)), 6)
    for use in (attack.apply, attack.added, attack.removed, attack.rate, attack.check):
        with pytest.raises(GraphError, match="flips are for 6 nodes, but the graph has 5"):
            use(EDGELESS)


def test_budget():
    attack = Perturbation(pair_tensor((0, 1), (0, 2)), 5)
    attack.check(EDGELESS)
    attack.check(EDGELESS, budget=2)
    with pytest.raises(GraphError, match="2 flips, but the budget is 1"):
        attack.check(EDGELESS, budget=1)
    with pytest.raises(ConfigError, match="budget must be a number; it is '2'"):
        attack.check(EDGELESS, budget="2")


def test_diff_refuses():
    one_way = Data(x=torch.ones(5, 1), edge_index=pair_tensor((0, 1)))
    with pytest.raises(GraphError, match="edge_index of the poisoned graph lists the edge 0→1 without its reverse"):
        diff(EDGELESS, one_way)
    with pytest.raises(GraphError, match="edge_index of the clean graph"):
        diff(one_way, EDGELESS)
    with pytest.raises(GraphError, match="clean graph has 5 nodes, but the poisoned graph has 33"):
        diff(EDGELESS, random_graph(0))


# --- files ---

SAVED = {
    "plain": Perturbation(pair_tensor((0, 1), (2, 4)), 5),
    "targets": Perturbation(pair_tensor((0, 1)), 5, torch.tensor([1, 3]), {"attack": "nettack", "ε": "½\0"}),
    "no targets": Perturbation(pair_tensor((0, 1)), 5, torch.tensor([], dtype=torch.int64)),
    "no flips": Perturbation(pair_tensor(), 5),
}


@pytest.mark.parametrize("attack", SAVED.values(), ids=SAVED.keys())
def test_round_trip(tmp_path, attack):
    path = tmp_path / "attack.npz"
    attack.save(path)
    first = path.read_bytes()
    attack.save(path)
    assert path.read_bytes() == first
    loaded = Perturbation.load(path)
    assert torch.equal(loaded.flips, attack.flips)
    assert loaded.num_nodes == attack.num_nodes
    assert loaded.meta == attack.meta
    assert (loaded.targets is None) == (attack.targets is None)
    assert attack.targets is None or torch.equal(loaded.targets, attack.targets)
    assert [file.name for file in tmp_path.iterdir()] == ["attack.npz"]


GOOD_FILE = {
    "flips": np.array([[0], [1]]),
    "num_nodes": np.array(5),
    "meta": np.frombuffer(b"{}", dtype=np.uint8),
}
BAD_FILES = {
    "pickle": ({"flips": np.array([[None], [1]])}, "Object arrays cannot be loaded"),
    "float flips": ({"flips": np.array([[0.0], [1.0]])}, "must be int64"),
    "loop": ({"flips": np.array([[1], [1]])}, "does not contain valid flips: .*self-loop at node 1"),
    "outside": ({"flips": np.array([[1], [7]])}, "is the edge 1–7"),
    "shape": ({"flips": np.array([1, 2])}, "shape"),
    "num_nodes": ({"num_nodes": np.array([5])}, "num_nodes must be one number"),
    "meta bytes": ({"meta": np.frombuffer(b"{", dtype=np.uint8)}, "does not contain valid flips"),
    "meta utf-8": ({"meta": np.frombuffer(b"\xff", dtype=np.uint8)}, "does not contain valid flips"),
    "meta nested": ({"meta": np.frombuffer(b"[" * 100_000, dtype=np.uint8)}, "does not contain valid flips"),
    "meta list": ({"meta": np.frombuffer(b"[]", dtype=np.uint8)}, "meta must map strings"),
    "meta number": ({"meta": np.frombuffer(b'{"a": 1}', dtype=np.uint8)}, "meta must map strings"),
    "meta text": ({"meta": np.array("{}")}, "meta bytes"),
    "targets": ({"targets": np.array([9])}, "targets contains node 9"),
    "targets shape": ({"targets": np.array([[1]])}, "targets must be"),
}


@pytest.mark.parametrize(("changes", "words"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_bad_files(tmp_path, changes, words):
    path = tmp_path / "attack.npz"
    np.savez(path, **(GOOD_FILE | changes))
    with pytest.raises(DataCorrupt, match=words) as caught:
        Perturbation.load(path)
    assert str(path) in str(caught.value)


def test_missing_and_truncated_files(tmp_path):
    path = tmp_path / "attack.npz"
    with pytest.raises(DataUnavailable, match="no file"):
        Perturbation.load(path)
    random_flips(0).save(path)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(DataCorrupt, match="damaged or not a zip archive"):
        Perturbation.load(path)
    np.savez(path, flips=GOOD_FILE["flips"], meta=GOOD_FILE["meta"])
    with pytest.raises(DataCorrupt, match="does not contain num_nodes"):
        Perturbation.load(path)


def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "attack.npz"
    SAVED["plain"].save(path)
    before = path.read_bytes()

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataUnavailable, match=r"attack\.npz could not be written: No space left on device"):
        SAVED["targets"].save(path)
    assert path.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1
    with pytest.raises(DataUnavailable, match="could not be written"):
        SAVED["plain"].save(tmp_path / "no" / "such" / "folder.npz")


# --- published attacks ---

# dataset, attack, rate: edges added, edges removed
PUBLISHED = {
    ("cora", "metattack", 0.05): (253, 0),
    ("cora", "metattack", 0.1): (502, 4),
    ("cora", "metattack", 0.15): (750, 10),
    ("cora", "metattack", 0.2): (992, 21),
    ("cora", "metattack", 0.25): (1222, 45),
    ("citeseer", "metattack", 0.05): (183, 0),
    ("citeseer", "metattack", 0.1): (365, 1),
    ("citeseer", "metattack", 0.15): (539, 11),
    ("citeseer", "metattack", 0.2): (720, 13),
    ("citeseer", "metattack", 0.25): (899, 18),
    ("cora_ml", "metattack", 0.05): (396, 3),
    ("cora_ml", "metattack", 0.1): (750, 48),
    ("cora_ml", "metattack", 0.15): (1040, 157),
    ("cora_ml", "metattack", 0.2): (1317, 279),
    ("cora_ml", "metattack", 0.25): (1646, 349),
    ("cora", "nettack", 1): (83, 0),
    ("cora", "nettack", 2): (161, 5),
    ("cora", "nettack", 3): (241, 6),
    ("cora", "nettack", 4): (319, 13),
    ("cora", "nettack", 5): (393, 22),
    ("citeseer", "nettack", 1): (63, 0),
    ("citeseer", "nettack", 2): (126, 0),
    ("citeseer", "nettack", 3): (189, 0),
    ("citeseer", "nettack", 4): (250, 2),
    ("citeseer", "nettack", 5): (305, 10),
}


def test_every_published_attack_is_in_the_test():
    table = {(name, attack, rate) for attack in POISONED for name, rates in POISONED[attack].items() for rate in rates}
    assert table == PUBLISHED.keys()


clean_graph = functools.cache(load_dataset)


@pytest.mark.parametrize(("name", "attack", "rate"), PUBLISHED)
def test_published_attack(name, attack, rate, mirror, monkeypatch):
    mirror(DATASETS[name].source, POISONED[attack][name][rate], NETTACK_TARGETS.get(name))
    monkeypatch.setattr(flips, "load_dataset", clean_graph)
    clean = clean_graph(name, None)
    found = load_poisoned(name, attack, rate)
    assert (found.added(clean).size(1), found.removed(clean).size(1)) == PUBLISHED[name, attack, rate]
    assert found.meta["rate"] == f"{rate:g}"
    if attack == "metattack":
        assert found.targets is None
        assert found.rate(clean) == pytest.approx(rate, abs=1 / 3668)
    else:
        assert found.targets.numel() == {"cora": 83, "citeseer": 63}[name]
        degree = torch.bincount(clean.edge_index[0])
        assert int(degree[found.targets].min()) > 10
        assert torch.isin(found.flips, found.targets).any(dim=0).all()


NOT_PUBLISHED = [
    (("cora", "metattack", 0.3), "at rate 0.3 is published, only at 0.05, 0.1, 0.15, 0.2, 0.25"),
    (("cora", "metattack", 25), "only at 0.05"),
    (("cora", "metattack", "5%"), "at rate 5% is published"),
    (("cora", "metattack", float("nan")), "at rate nan"),
    (("citeseer", "nettack", 0.05), "only at 1, 2, 3, 4, 5"),
    (("cora_ml", "nettack", 1), "No nettack graph of cora_ml is published, only of cora, citeseer"),
    (("acm", "metattack", 0.1), "No metattack graph of acm is published"),
    (("cora", "dice", 0.1), "attacked by 'dice' are published, only by metattack and nettack"),
    (("coral", "metattack", 0.1), "no dataset 'coral'"),
]


@pytest.mark.parametrize(("arguments", "words"), NOT_PUBLISHED)
def test_not_published(arguments, words):
    with pytest.raises(ConfigError, match=words):
        load_poisoned(*arguments)


def test_published_attack_that_is_unavailable():
    with pytest.raises(DataUnavailable, match=r"meta/cora_meta_adj_0\.05\.npz of ChandlerBang/Pro-GNN"):
        load_poisoned("cora", "metattack", 0.05)
