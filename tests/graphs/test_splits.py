import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from asgnn.errors import ConfigError, GraphError
from asgnn.graphs import (
    PUBLISHED_SPLITS,
    apply_split,
    check_split,
    load_dataset,
    published_split,
    random_split,
)

SIZES = {"cora": (247, 249, 1988), "citeseer": (210, 211, 1688), "cora_ml": (280, 282, 2248)}


def graph(num_nodes: int) -> Data:
    return Data(x=torch.ones(num_nodes, 1), edge_index=torch.empty(2, 0, dtype=torch.int64))


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


BAD = [
    ((graph(5), 0), {}, GraphError, "5 nodes is too small"),
    ((graph(2), 0), {"train": 0.5, "val": 0.49}, GraphError, "2 nodes is too small"),
    ((graph(50), -1), {}, ConfigError, "trial must be a whole number from 0, and is -1"),
    ((graph(50), 1.5), {}, ConfigError, "and is 1.5"),
    ((graph(50), True), {}, ConfigError, "and is True"),
    ((graph(50), 0), {"train": 0.0}, ConfigError, "train=0.0"),
    ((graph(50), 0), {"train": 0.5, "val": 0.5}, ConfigError, "sum to less than 1"),
    ((graph(50), 0), {"val": float("nan")}, ConfigError, "val=nan"),
]


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
    # Every class can be learned.
    assert data.y[split.train].unique().numel() == 7


def test_no_published_split():
    with pytest.raises(ConfigError, match=r"of acm .*only of cora, citeseer, cora_ml; random_split serves"):
        published_split("acm")


def test_apply_split_replaces_masks_on_a_copy():
    data = graph(20)
    data.train_mask = torch.zeros(20, 10, dtype=torch.bool)
    split = random_split(data, 1)
    result = apply_split(data, split)
    assert result.x is data.x
    assert data.train_mask.shape == (20, 10)
    for part in ("train", "val", "test"):
        assert torch.equal(result[f"{part}_mask"].nonzero().flatten(), getattr(split, part))
    with pytest.raises(GraphError, match="is node"):
        apply_split(graph(5), split)
