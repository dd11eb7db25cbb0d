"""docs/build.md: its block runs, and its tables are those of the records."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest
import torch

from asgnn.graphs import build_graph, load_dataset, validate
from tests.test_docs import run_page

ROOT = Path(__file__).parents[2]


def test_blocks_of_the_page_run(capsys: pytest.CaptureFixture[str]) -> None:
    seen = run_page(ROOT / "docs" / "build.md")
    validate(seen["data"])
    assert seen["same"] > 0.8
    assert "of the edges join nodes of one class" in capsys.readouterr().out


@pytest.mark.parametrize(("folder", "script"), [("scripts", "no_graph"), ("benchmarks", "neighbors")])
def test_tables_of_the_page_are_those_of_the_records(folder: str, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / folder)
    page = (ROOT / "docs" / "build.md").read_text()
    tables = importlib.import_module(script).tables()
    assert tables
    for name, lines in tables.items():
        assert "\n".join([f"<!-- {name} -->", "", *lines, ""]) in page
    record = json.loads((ROOT / "docs" / "records" / f"{script}.json").read_text())
    assert f"`{record['command']}`" in page
    assert record["machine"] in page


def test_every_method_without_a_graph_chose_its_setting_on_validation() -> None:
    rows = json.loads((ROOT / "docs" / "records" / "no_graph.json").read_text())["rows"]
    assert {row["dataset"] for row in rows} == {"digits", "cora", "citeseer"}
    for row in rows:
        best = max(row["tried"], key=lambda tried: tried["val"])
        assert len(row["tried"]) == 4
        assert {name: value for name, value in best.items() if name != "val"} == row["chosen"]


def test_degrees_of_cora() -> None:
    degrees = []
    for how in ("smooth", "knn"):
        data = build_graph(load_dataset("cora").x, how, 10)  # type: ignore[arg-type]
        degrees.append(int(torch.bincount(data.edge_index[0]).max()))
    page = " ".join((ROOT / "docs" / "build.md").read_text().split())
    assert "the largest degree is {} instead of {}".format(*degrees) in page
