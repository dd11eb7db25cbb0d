"""The flips included in the package: complete, within budget, with provenance."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from asgnn.errors import ConfigError
from asgnn.graphs import DATASETS, OWN_FLIPS, find_dataset, load_dataset, load_own, random_split

RATES = {"metattack": (0.001, 0.05, 0.1, 0.15, 0.2, 0.25), "nettack": (1, 2, 3, 4, 5)}
ALL = [
    (attack, name, rate, split)
    for attack, graphs in OWN_FLIPS.items()
    for name, split in graphs.items()
    for rate in RATES[attack]
]


@pytest.mark.parametrize(("attack", "name", "rate", "split"), ALL)
def test_meta(attack: str, name: str, rate: float, split: str) -> None:
    found = load_own(name, attack, rate)
    dataset = find_dataset(name)
    assert found.num_nodes == dataset.nodes
    expected = {"attack": attack, "dataset": name, "split": split, "rate": f"{rate:g}"}
    assert expected.items() <= found.meta.items()
    assert found.meta["command"].startswith(f"asgnn attack --dataset {name} --method {attack} ")
    assert found.meta["machine"]
    assert found.meta["version"]
    if attack == "metattack":
        assert found.targets is None
        assert len(found) == int(rate * dataset.edges)
    else:
        assert found.targets is not None
        assert len(found) == rate * found.targets.numel()


@pytest.mark.parametrize(("attack", "name", "rate", "split"), [one for one in ALL if one[1] != "cora"])
def test_flips_fit_the_graph(attack: str, name: str, rate: float, split: str, mirror: Callable[..., Path]) -> None:
    mirror(DATASETS[name].source)
    data, found = load_dataset(name), load_own(name, attack, rate)
    degree = torch.bincount(found.apply(data).edge_index[0], minlength=found.num_nodes)
    assert int(degree.min()) >= 1
    if found.targets is not None:
        before = torch.bincount(data.edge_index[0], minlength=found.num_nodes)
        assert int(before[found.targets].min()) > 10
        assert torch.isin(found.flips, found.targets).any(dim=0).all()
        if split == "random:0":
            assert torch.isin(found.targets, random_split(data, 0).test).all()


def test_metattack_on_cora_joins_classes() -> None:
    data, found = load_dataset("cora"), load_own("cora", "metattack", 0.25)
    added = found.added(data)
    assert added.size(1) > 0.9 * len(found)
    # for random pairs it is three quarters
    assert float((data.y[added[0]] != data.y[added[1]]).float().mean()) > 0.9
    smaller = load_own("cora", "metattack", 0.05)
    assert torch.equal(smaller.flips, found.flips[:, : len(smaller)])


BAD = {
    "graph": (("citeseer", "metattack", 0.1), "not include metattack flips of citeseer, only of cora, acm, polblogs"),
    "attack": (("cora", "dice", 0.1), "not include dice flips of cora; create some"),
    "too much": (("cora", "metattack", 0.3), r"rate must be a number in \(0, 0.25\]; it is 0.3"),
    "nothing": (("cora", "metattack", 0.0), r"rate must be a number in \(0, 0.25\]"),
    "NaN": (("cora", "metattack", float("nan")), r"rate must be a number in \(0, 0.25\]"),
    "half a flip": (("acm", "nettack", 1.5), "1, 2, 3, 4 or 5 flips per target; it is 1.5"),
    "text": (("acm", "nettack", "2"), "it is '2'"),
}


@pytest.mark.parametrize(("arguments", "words"), BAD.values(), ids=BAD.keys())
def test_missing_flips_raise(arguments: tuple[str, str, float], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_own(*arguments)
