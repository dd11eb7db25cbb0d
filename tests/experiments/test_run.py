"""Cells: what may be asked, and that a record says what was measured."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from asgnn.asmp import Propagation
from asgnn.errors import AsgnnError
from asgnn.experiments import Cell, run_cell
from asgnn.training.evaluate import edge_auc

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "unknown dataset": ({"dataset": "coral"}, "no dataset 'coral'.*cora"),
    "unknown model": ({"model": "gnc"}, "no model 'gnc'; the models are asgnn, gcn, appnp, mlp, prognn, prognn-fs"),
    "objective of a GCN": ({"model": "gcn", "objective": "paper"}, "asgnn only"),
    "unknown objective": ({"objective": "q"}, "objective must be one of"),
    "unknown attack": ({"poisoned": "metatack", "rate": 0.1}, "no attack 'metatack'; the attacks are metattack"),
    "attack without rate": ({"poisoned": "dice"}, "needs a rate above 0"),
    "NaN rate": ({"poisoned": "dice", "rate": float("nan")}, "needs a rate above 0"),
    "rate without attack": ({"rate": 0.1}, "needs an attack"),
    "no trials": ({"trials": 0}, "at least one trial"),
    "unknown split": ({"split": "mine"}, "published, random or random:I"),
    "no published split": ({"dataset": "acm", "split": "published"}, "only of cora, citeseer, cora_ml"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_means_nothing_is_refused_before_anything_is_loaded(case: str) -> None:
    changed, message = REFUSED[case]
    with pytest.raises(AsgnnError, match=message):
        Cell(**({"dataset": "cora", "split": "random"} | changed))


def test_record_of_a_small_cell() -> None:
    cell = Cell("Cora", "gcn", poisoned="dice", rate=0.25, split="random", trials=2)
    assert cell.dataset == "cora"
    counts: list[tuple[int, int]] = []
    record = run_cell(cell, progress=lambda done, total: counts.append((done, total)))
    figures = record.as_dict()
    assert counts == [(i, 200) for i in range(1, 201)]
    assert figures["test_mean"] == pytest.approx(sum(record.test) / 2, abs=1e-3)
    assert figures["test_std"] == pytest.approx(abs(record.test[0] - record.test[1]) / 2**0.5, abs=1e-3)
    assert 60 < figures["test_mean"] < 85  # 83 on the clean graph, 65 without edges
    assert record.edge_auc is None
    assert record.target is None
    again = run_cell(cell)
    assert (again.test, again.val, again.best_epochs) == (record.test, record.val, record.best_epochs)


def test_edge_auc_is_the_mann_whitney_statistic() -> None:
    edge_index = torch.tensor([[0, 0, 1, 1, 2, 0, 1, 2, 3, 3], [1, 2, 0, 3, 0, 0, 1, 2, 1, 3]])
    by_pair = {(0, 1): 0.9, (0, 2): 0.2, (1, 3): 0.5}
    weight = torch.tensor([by_pair.get((min(u, v), max(u, v)), 1.0) for u, v in edge_index.t().tolist()])
    seen = Propagation(torch.empty(0), edge_index, (weight,), (), "edges")
    # weights of the pairs: 0–1 .9, 0–2 .2, 1–3 .5
    for false, area in (([[0], [2]], 1.0), ([[0], [1]], 0.0), ([[1], [3]], 0.5), ([[0, 1], [2, 3]], 1.0)):
        assert edge_auc(seen, torch.tensor(false)) == area
    with pytest.raises(AsgnnError, match="at least one false"):
        edge_auc(seen, torch.empty(2, 0, dtype=torch.int64))
