from dataclasses import asdict, fields

import numpy as np
import pytest
import torch
from sklearn.model_selection import train_test_split
from torch_geometric.data import Data

from asgnn.errors import ConfigError, GraphError
from asgnn.graphs import (
    DATASETS,
    PUBLISHED_SPLITS,
    STRATIFIED_SEEDS,
    Split,
    SplitRule,
    apply_split,
    check_split,
    count_published,
    load_dataset,
    published_split,
    random_split,
    split_of,
    stratified_split,
)

SIZES = {"cora": (247, 249, 1988), "citeseer": (210, 211, 1688), "cora_ml": (280, 282, 2248)}


def graph(num_nodes: int, y: list[float] | None = None) -> Data:
    labels = None if y is None else torch.tensor(y)
    return Data(x=torch.ones(num_nodes, 1), edge_index=torch.empty(2, 0, dtype=torch.int64), y=labels)


@pytest.mark.parametrize("num_nodes", [10, 33, 2485])
def test_random_split_has_the_shares_and_covers_the_graph(num_nodes):
    split = random_split(graph(num_nodes), 0)
    check_split(split, num_nodes)
    assert abs(len(split.train) - num_nodes / 10) <= 0.5
    assert abs(len(split.val) - num_nodes / 10) <= 0.5
    assert torch.equal(torch.cat([split.train, split.val, split.test]).sort().values, torch.arange(num_nodes))


def test_random_split_depends_on_the_trial_alone():
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = random_split(graph(50), 3)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    again, other = random_split(graph(50), np.int64(3)), random_split(graph(50), 4)
    assert torch.equal(first.train, again.train)
    assert not torch.equal(first.train, other.train)


def test_random_split_is_the_same_on_every_machine():
    assert random_split(graph(20), 0).train.tolist() == [4, 5]


def test_a_fully_labelled_graph_is_split_as_one_without_labels():
    for part in ("train", "val", "test"):
        bare, labelled = (getattr(random_split(data, 3), part) for data in (graph(50), graph(50, [0, 1] * 25)))
        assert torch.equal(bare, labelled)


@pytest.mark.parametrize("missing", [-1, float("nan")])
def test_random_split_draws_labelled_nodes_only(missing):
    data = graph(60, [0, missing, 1] * 20)
    full, split = random_split(graph(60), 3, train=0.2), random_split(data, 3, train=0.2)
    check_split(split, data)
    parts = [len(split.train), len(split.val), len(split.test)]
    assert parts == [8, 4, 28]
    # The order is that of the full graph, so its labelled training nodes are training nodes here.
    assert set(full.train[full.train % 3 != 1].tolist()) <= set(split.train.tolist())


def masked(y: list[float], *parts: list[int]) -> Data:
    data = graph(len(y), y)
    for name, nodes in zip(("train_mask", "val_mask", "test_mask"), parts, strict=True):
        data[name] = torch.zeros(len(y), dtype=torch.bool)
        data[name][nodes] = True
    return data


def test_split_of_reads_the_masks_or_takes_the_split_given():
    data = masked([0, 1, 0, 1, 0, 1], [0, 1], [2], [3, 5])
    split = split_of(data)
    assert [part.tolist() for part in (split.train, split.val, split.test)] == [[0, 1], [2], [3, 5]]
    given = Split(torch.tensor([5]), torch.tensor([4]), torch.tensor([3, 1]))
    assert split_of(data, given) is given


def test_split_of_removes_unlabelled_nodes_with_a_warning():
    data = masked([0, -1, 0, 1, -1, 1], [0, 1], [2], [3, 4, 5])
    given = Split(torch.tensor([1, 0]), torch.tensor([2]), torch.tensor([3, 4, 5]))
    for split in (None, given):
        with pytest.warns(
            UserWarning, match="2 nodes of the split have no label .* 1 from train, 0 from val and 1 from test"
        ):
            found = split_of(data, split)
        assert [part.tolist() for part in (found.train, found.val, found.test)] == [[0], [2], [3, 5]]
        check_split(found, data)


def test_split_of_refuses():
    data = masked([0, -1, 0, 1], [0], [1], [2, 3])
    with pytest.raises(GraphError, match="val_mask selects no labelled node"):
        split_of(data)
    with pytest.raises(GraphError, match=r"split\.val is empty"):
        split_of(data, Split(torch.tensor([0]), torch.tensor([1]), torch.tensor([2])))
    with pytest.raises(GraphError, match=r"split\.test contains node 9"):
        split_of(data, Split(torch.tensor([0]), torch.tensor([2]), torch.tensor([9])))
    with pytest.raises(GraphError, match="train_mask is missing"):
        split_of(graph(4, [0, 1, 0, 1]))
    several = masked([0, 1, 0, 1], [0], [1], [2, 3])
    for name in ("train_mask", "val_mask", "test_mask"):
        several[name] = several[name].unsqueeze(1).repeat(1, 3)
    with pytest.raises(GraphError, match="hold 3 splits"):
        split_of(several)


@pytest.mark.parametrize("count", [1, 5, 10])
def test_training_nodes_per_class(count):
    data = graph(130, [0, 1, -1, 3, 3] * 26)  # no node of class 2
    full, split = random_split(data, 3), random_split(data, 3, train_per_class=count, val=0.25)
    check_split(split, data)
    assert torch.bincount(data.y[split.train]).tolist() == [count, count, 0, count]
    assert len(split.val) == round(0.25 * 104)
    assert len(split.train) + len(split.val) + len(split.test) == 104
    # The nodes are the first of their class in the order of every split of this trial.
    for label in (0, 1, 3):
        first = full.train[data.y[full.train] == label]
        mine = split.train[data.y[split.train] == label]
        assert set(first.tolist()) <= set(mine.tolist()) or set(mine.tolist()) <= set(first.tolist())


def test_one_percent():
    split = random_split(graph(1000), 0, train=0.01)
    assert (len(split.train), len(split.val), len(split.test)) == (10, 100, 890)


def test_a_rule_is_the_arguments_of_a_random_split():
    data = graph(90, [0, 1, 2] * 30)
    for rule in (SplitRule(), SplitRule(train=0.3, val=0.2), SplitRule(train_per_class=4)):
        assert [one.name for one in fields(SplitRule)] == ["train", "val", "train_per_class"]
        found = random_split(data, 1, **asdict(rule))
        if rule == SplitRule():
            assert torch.equal(found.train, random_split(data, 1).train)
        wanted = 12 if rule.train is None else round(rule.train * 90)
        assert (len(found.train), len(found.val)) == (wanted, round(rule.val * 90))
    assert str(SplitRule()) == "10/10/80 % train/validation/test"
    assert SplitRule() == SplitRule(train=0.1)


BAD = [
    ((graph(50), 0), {"train_per_class": 2}, GraphError, "train_per_class needs labels, but the graph has no y"),
    ((graph(50, [0] * 48 + [1] * 2), 0), {"train_per_class": 3}, GraphError,
     "Class 1 has 2 labelled nodes, fewer than train_per_class=3"),
    ((graph(50, [0, 1] * 25), 0), {"train_per_class": 0}, ConfigError, "train_per_class must be a whole number from 1"),
    ((graph(50, [0, 1] * 25), 0), {"train_per_class": 2.0}, ConfigError, "train_per_class must be a whole number"),
    ((graph(50, [0, 1] * 25), 0), {"train": 0.1, "train_per_class": 2}, ConfigError,
     "train=0.1 and train_per_class=2 exclude each other"),
    ((graph(50, [0, 1] * 25), 0), {"train_per_class": 23}, GraphError,
     "50 labelled nodes is too small for train_per_class=23 and val=0.1: the parts would have 46, 5 and 0 nodes"),
    ((graph(5), 0), {}, GraphError, "5 nodes is too small"),
    ((graph(2), 0), {"train": 0.5, "val": 0.49}, GraphError, "2 nodes is too small"),
    ((graph(50), -1), {}, ConfigError, r"trial must be a whole number from 0 to .*; it is -1"),
    ((graph(50), 1.5), {}, ConfigError, "it is 1.5"),
    ((graph(50), True), {}, ConfigError, "it is True"),
    ((graph(50), 2**63), {}, ConfigError, "it is 9223372036854775808"),
    ((graph(50), "0"), {}, ConfigError, "it is '0'"),
    (("cora", 0), {}, GraphError, "it is a str"),
    ((graph(50, [-1] * 46 + [0, 1] * 2), 0), {}, GraphError, "4 labelled nodes is too small"),
    ((graph(50), 0), {"train": "0.1"}, ConfigError, "train must be a number in .*; it is '0.1'"),
    ((graph(50), 0), {"train": 0.0}, ConfigError, "train must be a number in .*; it is 0.0"),
    ((graph(50), 0), {"train": 0.5, "val": 0.5}, ConfigError, "sum to less than 1"),
    ((graph(50), 0), {"val": float("nan")}, ConfigError, "val must be a number in .*; it is nan"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "options", "error", "words"), BAD)
def test_random_split_refuses(arguments, options, error, words):
    with pytest.raises(error, match=words):
        random_split(*arguments, **options)


@pytest.mark.parametrize("name", SIZES)
def test_published_split(name, mirror):
    mirror(PUBLISHED_SPLITS[name])
    split = published_split(name)
    assert (len(split.train), len(split.val), len(split.test)) == SIZES[name]


def test_published_split_fits_the_builtin_graph(mirror):
    mirror(PUBLISHED_SPLITS["cora"])
    data = load_dataset("cora")
    split = published_split("cora")
    poisoned = apply_split(data, split)
    assert poisoned.train_mask.sum() == 247
    assert "train_mask" not in data
    # Every class occurs in the training set.
    assert data.y[split.train].unique().numel() == 7


def test_no_published_split():
    with pytest.raises(ConfigError, match=r"No split of acm is published, only of cora, citeseer, .*; use a random"):
        published_split("acm")


@pytest.mark.parametrize(
    ("name", "number", "words"),
    [
        ("cora", 0, "cora has one published split, without a number; 0 was given"),
        ("texas", None, "texas has 10 published splits; choose one by its number, 0 to 9"),
        ("texas", 10, "published split of texas must be a whole number from 0 to 9; it is 10"),
        ("texas", -1, "it is -1"),
        ("texas", True, "it is True"),
        ("planted-weak", 0, "No split of planted-weak is published"),
    ],
)
def test_numbers_of_published_splits(name, number, words):
    with pytest.raises(ConfigError, match=words):
        published_split(name, number=number)


def test_counts_of_published_splits():
    counts = {name: count_published(name) for name in DATASETS}
    assert counts.pop("cora") == counts.pop("citeseer") == counts.pop("cora_ml") == 1
    ten = {name for name, count in counts.items() if count == 10}
    assert ten == {"actor", "chameleon", "squirrel", "cornell", "texas", "wisconsin", "minesweeper", "tolokers"}
    assert {count for name, count in counts.items() if name not in ten} == {0}


def test_apply_split_replaces_masks_on_a_copy():
    data = graph(20)
    data.train_mask = torch.zeros(20, 10, dtype=torch.bool)
    split = random_split(data, 1)
    result = apply_split(data, split)
    assert result.x is data.x
    assert data.train_mask.shape == (20, 10)
    for part in ("train", "val", "test"):
        assert torch.equal(result[f"{part}_mask"].nonzero().flatten(), getattr(split, part))
    with pytest.raises(GraphError, match="contains node"):
        apply_split(graph(5), split)


@pytest.mark.parametrize("trial", [0, 4])
def test_stratified_split(trial: int) -> None:
    """10/10/80 of the labelled nodes, in which every class has its share up to one node."""
    data = load_dataset("cora")
    data.y = torch.where(torch.arange(data.num_nodes) % 10 == 0, -1, data.y)
    split = stratified_split(data, trial)
    whole = torch.cat([split.train, split.val, split.test]).sort().values
    assert torch.equal(whole, (data.y >= 0).nonzero().view(-1))
    for part, share in ((split.train, 0.1), (split.val, 0.1), (split.test, 0.8)):
        assert torch.equal(part, part.sort().values)
        counts, wanted = (torch.bincount(data.y[nodes], minlength=7) for nodes in (part, whole))
        assert float((counts - share * wanted).abs().max()) < 2
    assert not torch.equal(split.train, stratified_split(data, 2).train)


def test_stratified_split_needs_two_nodes_of_each_class() -> None:
    data = load_dataset("cora")
    data.y[0] = 9
    with pytest.raises(GraphError, match="This graph has no stratified split: "):
        stratified_split(data, 0)
    with pytest.raises(ConfigError, match="trial must be a whole number from 0 to 4; it is 5"):
        stratified_split(data, 5)


def test_stratified_splits_are_those_of_scikit_learn() -> None:
    data = load_dataset("cora")
    y = data.y.numpy()
    for trial, seed in enumerate(STRATIFIED_SEEDS):
        known, test = train_test_split(np.arange(len(y)), train_size=0.2, random_state=seed, stratify=y)
        train, val = train_test_split(known, train_size=0.5, random_state=seed, stratify=y[known])
        found = stratified_split(data, trial)
        for mine, theirs in ((found.train, train), (found.val, val), (found.test, test)):
            assert mine.tolist() == sorted(theirs.tolist())
