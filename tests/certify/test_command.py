"""The command asgnn certify."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from asgnn.__main__ import main

QUICK = ["--dataset", "cora", "--split", "random:0", "--models", "1", "--set", "epochs=2"]


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "argv", ["asgnn", "certify", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    return int(left.value.code or 0)


def test_prints_and_writes_the_curve_beside_the_floors(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "found.json"
    assert run(monkeypatch, "sgc", *QUICK, "--radii", "0,3", "--set", "prior_neighbors=2", "-o", str(path)) == 0
    said = capsys.readouterr().out
    found = json.loads(path.read_text())
    assert found["radii"] == [0, 3]
    assert found["settings"]["prior_neighbors"] == 2
    first, last = found["test"]["certified"]
    assert 0 <= last <= first <= 1
    for figure in (first, last, found["test"]["edge_free"], found["test"]["mlp"]):
        assert f"{100 * figure:.2f}" in said


def test_parts_with_an_anchor_above_their_number_have_the_floor(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = ["--by", "parts", "--parts", "3", "--abstain", "--anchor", "4", "--json"]
    assert run(monkeypatch, "sgc", *QUICK, *parts) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["parts"], found["anchor"], found["abstain"]) == (3, 4, True)
    assert found["test"]["certified"] == [found["test"]["edge_free"]] * 4


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["gnc", "--dataset", "cora"], "There is no model 'gnc'"),
        (["gcn", "--dataset", "coral"], "There is no dataset 'coral'"),
        (["gcn", "--dataset", "cora", "--by", "friends"], "--by must be one of neighbors, parts"),
        (["gcn", "--dataset", "cora", "--radii", "1,-2"], "--radii are different numbers of flips"),
        (["gcn", "--dataset", "cora", "-o", "found.txt"], "found.txt must end in .json"),
        (["gcn", "--dataset", "cora", "--set", "depth=2"], "no setting 'depth'"),
        ([*["gcn", "--dataset", "cora", "--split", "random:0"], "--by", "parts", "--parts", "1"], "parts must be"),
    ],
)
def test_failures_are_one_sentence(
    arguments: list[str], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, *arguments) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
