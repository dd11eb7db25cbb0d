"""The trials of one model on one graph: errors, and the summary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from asgnn.asmp import Propagation
from asgnn.errors import AsgnnError
from asgnn.experiments import parse_case, run_trials
from asgnn.experiments.store import Store
from asgnn.experiments.values import NAMES, Attack, SplitName, as_settings, made_against, parse_attack
from asgnn.graphs import load_own
from asgnn.graphs.adjacency import Adjacency
from asgnn.training.evaluate import edge_auc

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "unknown dataset": ({"dataset": "coral"}, "no dataset 'coral'.*cora"),
    "unknown attack": ({"attack": "metatack", "amount": 0.1}, "no attack 'metatack'; the attacks are metattack"),
    "attack without rate": ({"attack": "dice"}, "needs a rate above 0"),
    "NaN rate": ({"attack": "dice", "amount": float("nan")}, r"in \[0, 1\]; it is nan"),
    "infinite rate": ({"attack": "dice", "amount": float("inf")}, r"in \[0, 1\]; it is inf"),
    "huge rate": ({"attack": "made-nettack", "amount": 1e300}, r"in \[0, 1000\]; it is 1e.300"),
    "half a flip": ({"attack": "made-nettack", "amount": 0.5}, "must be a whole number; it is 0.5"),
    "rate without attack": ({"amount": 0.1}, "needs an attack"),
    "unknown split": ({"split": "mine"}, "published, random or stratified, or"),
    "no trial of a split": ({"split": "random:"}, "published, random or stratified, or"),
    "trial of the published split": ({"split": "published:1"}, "cora has one published split"),
    "trial too large": ({"split": f"random:{2**63}"}, f"from 0 to {2**62 - 1}"),
    "trial much too large": ({"split": f"random:{'9' * 5000}"}, "with a whole number I"),
    "no published split": ({"dataset": "acm", "split": "published"}, "only of cora, citeseer, cora_ml"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_cases_are_refused_before_anything_is_loaded(case: str) -> None:
    changed, message = REFUSED[case]
    with pytest.raises(AsgnnError, match=message):
        parse_case(**({"dataset": "cora", "split": "random"} | changed))


@pytest.mark.parametrize(
    ("model", "trials", "message"),
    [
        ("gnc", 1, "no model 'gnc'; the models are asgnn"),
        ("gcn", 0, "from 1 to 10000; it is 0"),
        ("gcn", 10**18, "from 1 to 10000"),
    ],
)
def test_what_cannot_be_trained_is_refused(model: str, trials: int, message: str) -> None:
    with pytest.raises(AsgnnError, match=message):
        run_trials(parse_case("cora", split="random"), model, trials=trials)


@pytest.mark.parametrize("name", NAMES)
def test_names_of_attacks(name: str) -> None:
    attack = parse_attack(name, 1)
    assert attack.name == name
    assert Attack.of_dict(attack.as_dict()) == attack


def test_a_file_is_known_by_its_content(tmp_path: Path) -> None:
    own = load_own("cora", "metattack", 0.1)
    for name in ("a.npz", "b.npz"):
        own.save(tmp_path / name)
    one, other = (parse_attack(str(tmp_path / name)) for name in ("a.npz", "b.npz"))
    assert one == other
    assert one.as_dict() == {"kind": "metattack", "source": "file", "sha256": one.sha256}
    assert made_against("cora", one) == SplitName("random", 0)
    case = parse_case("cora", str(tmp_path / "a.npz"))
    load_own("cora", "metattack", 0.2).save(tmp_path / "a.npz")
    with pytest.raises(AsgnnError, match="no longer holds the requested flips"):
        run_trials(case, "gcn", trials=1)


def test_summary_of_a_few_trials() -> None:
    case = parse_case("Cora", "dice", 0.25, "random")
    assert case.dataset == "cora"
    counts: list[tuple[int, int]] = []
    with Store.in_memory() as store:
        options: dict[str, Any] = {"trials": 2, "store": store}
        found = run_trials(case, "gcn", progress=lambda done, total: counts.append((done, total)), **options)
        assert counts == [(i, 200) for i in range(1, 201)]
        assert found["test_mean"] == pytest.approx(sum(found["test"]) / 2, abs=1e-3)
        assert found["test_std"] == pytest.approx(abs(found["test"][0] - found["test"][1]) / 2**0.5, abs=1e-3)
        assert 60 < found["test_mean"] < 85  # 83 on the clean graph, 65 without edges
        assert {"edge_auc_mean", "target_mean"} & found.keys() == set()
        assert (found["poisoned"], found["rate"], found["split"], found["diverged"]) == ("dice", 0.25, "random", 0)
        assert store.summary().attacks == 1  # one attacked graph for all splits: dice knows no labels
        assert run_trials(case, "gcn", **options) == found  # seconds included: nothing is trained again
    again = run_trials(case, "gcn", trials=2)
    assert [again[name] for name in ("test", "val", "best_epochs")] == [
        found[name] for name in ("test", "val", "best_epochs")
    ]


def test_edge_auc_is_measured_for_asgnn() -> None:
    case = parse_case("cora", "own-metattack", 0.25)
    found = run_trials(case, "asgnn", as_settings({"epochs": 20, "hidden_channels": 16}), trials=2)
    assert 0.5 < found["edge_auc_mean"] < 1
    assert "edge_auc_mean" not in run_trials(case, "gcn", as_settings({"epochs": 2}), trials=1)


def test_edge_auc_is_the_mann_whitney_statistic() -> None:
    adj = Adjacency.of(torch.tensor([[0, 0, 1, 1, 2, 3], [1, 2, 0, 3, 0, 1]]), 4)
    by_pair = {(0, 1): 0.9, (0, 2): 0.2, (1, 3): 0.5}
    weight = torch.tensor([by_pair.get((min(u, v), max(u, v)), 1.0) for u, v in adj.edge_index.t().tolist()])
    seen = Propagation(torch.empty(0), adj, (weight,), (), "edges")
    # weights of the pairs: 0–1 .9, 0–2 .2, 1–3 .5
    for false, area in (([[0], [2]], 1.0), ([[0], [1]], 0.0), ([[1], [3]], 0.5), ([[0, 1], [2, 3]], 1.0)):
        assert edge_auc(seen, torch.tensor(false)) == area
    with pytest.raises(AsgnnError, match="at least one false"):
        edge_auc(seen, torch.empty(2, 0, dtype=torch.int64))
