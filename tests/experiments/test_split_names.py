"""Names of splits: parsed, resolved for each trial, and looked up by the rule of the dataset."""

from __future__ import annotations

import os

import pytest
import torch

from asgnn.errors import ConfigError
from asgnn.experiments.measure import find_split
from asgnn.experiments.values import Case, SplitName, parse_case, trainings_of
from asgnn.graphs import load_dataset, published_split, random_split

needs_mirror = pytest.mark.skipif("ASGNN_MIRROR" not in os.environ, reason="needs ASGNN_MIRROR")


@pytest.mark.parametrize(
    "text", ["published", "published:0", "published:9", "random", "random:0", "random:12", "stratified:4"]
)
def test_names_are_read_and_written(text: str) -> None:
    name = SplitName.parse(text)
    assert str(name) == text
    assert SplitName.of_dict(name.as_dict()) == name


@pytest.mark.parametrize("text", ["", "given", "published:", "published:-1", "random:x", "random:1.5", "random:٣"])
def test_bad_names(text: str) -> None:
    with pytest.raises(ConfigError, match="split must be published, random or stratified, or published:I"):
        SplitName.parse(text)


# dataset, split → the splits of trials 0, 1 and 12
TRIALS = {
    ("cora", None): ["published"] * 3,
    ("cora", "random"): ["random:0", "random:1", "random:12"],
    ("acm", None): ["random:0", "random:1", "random:12"],
    ("acm", "random:3"): ["random:3"] * 3,
    ("cora", "stratified"): ["stratified:0", "stratified:1", "stratified:2"],
    ("texas", None): ["published:0", "published:1", "published:2"],
    ("texas", "published"): ["published:0", "published:1", "published:2"],
    ("chameleon_filtered", "published:7"): ["published:7"] * 3,
    ("tolokers", "random"): ["random:0", "random:1", "random:12"],
    ("planted-weak", None): ["random:0", "random:1", "random:12"],
}


@pytest.mark.parametrize(("asked", "wanted"), TRIALS.items())
def test_splits_of_trials(asked: tuple[str, str | None], wanted: list[str]) -> None:
    case = parse_case(asked[0], split=asked[1])
    trainings = trainings_of(case, "gcn", trials=13)
    assert [str(trainings[trial].case.split) for trial in (0, 1, 12)] == wanted


@pytest.mark.parametrize(
    ("dataset", "split", "words"),
    [
        ("acm", "published", "No split of acm is published"),
        ("acm", "published:0", "No split of acm is published"),
        ("cora", "published:0", "cora has one published split"),
        ("texas", "published:10", "from 0 to 9; it is 10"),
        ("cora", "stratified:5", "from 0 to 4; it is 5"),
    ],
)
def test_splits_that_do_not_exist(dataset: str, split: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_case(dataset, split=split)
    if split != "published":
        with pytest.raises(ConfigError, match=words):
            find_split(SplitName.parse(split), load_dataset("cora"), dataset)


def test_keys_of_earlier_versions_stay() -> None:
    published, random = Case("cora", (), SplitName("published")), Case("cora", (), SplitName("random", 3))
    assert published.as_dict()["split"] == {"kind": "published"}
    assert random.as_dict()["split"] == {"kind": "random", "trial": 3}
    assert published.of_trial(4) == published
    assert trainings_of(published, "gcn", trials=1)[0].key == KEY


KEY = "9a6a036ecf61432d2fd1f1caae6a9d6cf59d694665970c4f288f69855c1c531f"


@pytest.mark.parametrize(
    ("dataset", "sizes"),
    [
        ("planted-one-percent", (30, 300, 2670)),
        ("planted-five-per-class", (35, 210, 1855)),
        ("tuning-dense-few", (64, 190, 1646)),
        ("planted-weak", (240, 240, 1920)),
        ("cora", (248, 248, 1989)),
    ],
)
def test_random_splits_follow_the_rule_of_the_dataset(dataset: str, sizes: tuple[int, int, int]) -> None:
    data = load_dataset(dataset)
    first, second = (find_split(SplitName("random", trial), data, dataset) for trial in (0, 1))
    assert (
        (len(first.train), len(first.val), len(first.test))
        == sizes
        == (*map(len, (second.train, second.val)), sizes[2])
    )
    assert torch.cat([first.train, first.val, first.test]).sort().values.equal(torch.arange(sum(sizes)))
    assert not first.train.equal(second.train)
    if dataset == "cora":
        assert first.train.equal(random_split(data, 0).train)


def test_a_name_for_all_trials_is_no_split() -> None:
    data = load_dataset("cora")
    with pytest.raises(ConfigError, match="Each trial has its own random split; choose one, such as random:0"):
        find_split(SplitName("random"), data, "cora")
    with pytest.raises(ConfigError, match="Each trial has its own published split; choose one, such as published:0"):
        find_split(SplitName("published"), data, "texas")


@needs_mirror
@pytest.mark.parametrize("number", [0, 9])
def test_published_splits_of_several(number: int) -> None:
    data = load_dataset("wisconsin")
    found = find_split(SplitName("published", number), data, "wisconsin")
    for part in ("train", "val", "test"):
        assert getattr(found, part).equal(data[f"{part}_mask"][:, number].nonzero().flatten())
        assert getattr(found, part).equal(getattr(published_split("wisconsin", number=number), part))
