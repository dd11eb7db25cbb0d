"""Challenges in a store: resumed, shared between models, shown as a table; the command and the unit-test file."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch_geometric.data import Data

from asgnn.__main__ import main
from asgnn.attacks import metattack, prbcd, random_flips
from asgnn.attacks.inner import InnerTraining
from asgnn.challenge import Attempt, Way, challenge_evasion, challenge_nodes, challenge_poisoning, load_unit_test
from asgnn.cli import app
from asgnn.errors import AsgnnError, ConfigError, DataCorrupt
from asgnn.experiments import challenge
from asgnn.experiments.challenge import CONTROLS, Job, StoreLedger, Subject, jobs_of, parse_splits, standing
from asgnn.experiments.store import Store
from asgnn.experiments.values import SplitName
from asgnn.graphs import DATASETS, Dataset, Gaussian, load_dataset, planted_graph, stratified_split
from asgnn.training import fit_many, recipe
from tests.challenge.problem import FEW

BUDGETS = (0.05, 0.2)
EVASION = {"prbcd": Way(prbcd, "gradient", FEW), "random": Way(random_flips, "nothing")}
POISONING = {"metattack": Way(metattack, "nothing", {"inner": InnerTraining(steps=5)}, ordered=True), **EVASION}
GCN, SGC = Subject.parse("gcn+epochs=20"), Subject.parse("sgc", ["epochs=20"])


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small dataset, and attacks of a few steps."""

    def make() -> Data:
        return planted_graph(80, classes=2, degree=6, false_edges=0.05, features=Gaussian(8, signal=1.0))

    data = make()
    sizes = (80, data.num_edges // 2, 8, 2)
    monkeypatch.setitem(DATASETS, "small", Dataset("small", "planted", *sizes, None, whole=True, generate=make))
    monkeypatch.setattr(challenge, "EVASION", EVASION)
    monkeypatch.setattr(challenge, "POISONING", POISONING)
    controls = {"MLP": replace(CONTROLS["MLP"], settings=(("epochs", 20),))}
    monkeypatch.setattr(challenge, "CONTROLS", controls)
    monkeypatch.setattr("asgnn.cli.challenge.CONTROLS", controls)
    challenge._trained.cache_clear()


def asked(*subjects: Subject, kinds: tuple[str, ...] = ("evasion",), splits: str = "stratified:0") -> list[Job]:
    return jobs_of(kinds, "small", parse_splits(splits), subjects, BUDGETS)


def content(path: Path) -> dict[str, dict[str, object]]:
    """What a store holds, without the seconds of attacks."""
    with Store.open(path) as store:
        found = store.content()
    for key, text in found["series"].items():
        rows = json.loads(str(text))
        found["series"][key] = [rows["victim"], rows["probe"], sorted(row[:7] for row in rows["outcomes"])]
    return found


def test_a_run_keeps_all_flips_and_outcomes_and_every_model_gets_those_of_the_others(tmp_path: Path) -> None:
    path, jobs = tmp_path / "s.sqlite", asked(GCN, SGC)
    challenge.run_challenge(jobs, path)
    with Store.open(path) as store:
        ledgers = [StoreLedger(store, job) for job in jobs]
        for ledger, other in zip(ledgers, reversed(jobs), strict=True):
            tried = {one.attempt for one in ledger.outcomes()}
            for budget in BUDGETS:
                assert Attempt("prbcd", other.subject.name, budget) in tried
                assert Attempt("random", "", budget) in tried
            assert tried == set(ledger.pool())
            assert all(ledger.made(attempt) is not None for attempt in tried)
        first, second = standing(store, jobs)
    for one, ledger in zip((first, second), ledgers, strict=True):
        for budget in BUDGETS:
            within = [each.after for each in ledger.outcomes() if each.attempt.budget <= budget]
            assert one.envelope[budget] == min(within) < one.clean
    assert first.random.keys() == set(BUDGETS)


def test_an_interrupted_run_resumes_and_ends_with_the_same_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = asked(GCN, SGC)
    challenge.run_challenge(jobs, tmp_path / "whole.sqlite")
    kept = StoreLedger.keep_outcome
    calls = 0

    def stop(self: StoreLedger, outcome: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        kept(self, outcome)

    monkeypatch.setattr(StoreLedger, "keep_outcome", stop)
    with pytest.raises(KeyboardInterrupt):
        challenge.run_challenge(jobs, tmp_path / "half.sqlite")
    assert content(tmp_path / "half.sqlite") != content(tmp_path / "whole.sqlite")
    monkeypatch.setattr(StoreLedger, "keep_outcome", kept)
    challenge._trained.cache_clear()
    challenge.run_challenge(jobs, tmp_path / "half.sqlite")
    assert content(tmp_path / "half.sqlite") == content(tmp_path / "whole.sqlite")
    # nothing is left to do: no model is trained again
    monkeypatch.setattr(challenge, "fit_many", None)
    challenge._trained.cache_clear()
    challenge.run_challenge(jobs, tmp_path / "half.sqlite")


def test_trainings_on_each_poisoned_graph(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    many = asked(GCN, kinds=("poisoning",))
    one = [replace(job, seeds=1) for job in many]
    challenge.run_challenge([*one, *many], path)
    data, split = challenge._graph("small", one[0].split, None)
    direct = challenge_poisoning(recipe("gcn", epochs=20), data, split, BUDGETS, name=GCN.name, seeds=1, ways=POISONING)
    with Store.open(path) as store:
        (single,), (mean,) = standing(store, one), standing(store, many)
    assert single.clean == pytest.approx(direct.clean, abs=1e-3)
    assert single.envelope == pytest.approx({b: direct.envelope.accuracy(b) for b in BUDGETS}, abs=1e-3)
    assert mean.envelope != single.envelope
    evasion = asked(GCN)[0]
    assert replace(evasion, seeds=1).key == evasion.key  # one trained model is attacked
    with pytest.raises(ConfigError, match="seeds must be a whole number from 1"):
        jobs_of(["poisoning"], "small", parse_splits("stratified:0"), [GCN], BUDGETS, seeds=0)


def test_poisoning_shares_flips_with_evasion(tmp_path: Path) -> None:
    path, jobs = tmp_path / "s.sqlite", asked(SGC, kinds=("evasion", "poisoning"))
    said: list[str] = []
    challenge.run_challenge(jobs, path, report=said.append)
    with Store.open(path) as store:
        evasion, poisoning = standing(store, jobs)
        attempts = {one.attempt for one in StoreLedger(store, jobs[1]).outcomes()}
        flips = {case.attacks[0].kind for case in store.attack_cases()}
    assert flips == {"prbcd", "random", "metattack"}
    assert {attempt.attack for attempt in attempts} == flips
    assert evasion.envelope[0.2] < evasion.clean
    assert poisoning.envelope[0.2] < poisoning.clean
    assert "1/2" in said[0]
    assert "sets of flips without a model" in said[0]


def test_of_several_starts_the_strongest_is_transferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ways = {"starts": Way(prbcd, "gradient", FEW, seeds=3)}
    monkeypatch.setattr(challenge, "POISONING", ways)
    path, jobs = tmp_path / "s.sqlite", asked(GCN, SGC, kinds=("poisoning",))
    challenge.run_challenge(jobs, path, transfers=False)
    with Store.open(path) as store:
        of_gcn, of_sgc = (StoreLedger(store, job).outcomes() for job in jobs)
        assert not any(one.transferred for one in (*of_gcn, *of_sgc))
    challenge.run_challenge(jobs, path)
    with Store.open(path) as store:
        given = [one.attempt for one in StoreLedger(store, jobs[1]).outcomes() if one.transferred]
    assert [attempt.budget for attempt in sorted(given, key=lambda one: one.budget)] == list(BUDGETS)
    for attempt in given:
        after = {one.attempt: one.after for one in of_gcn if one.attempt.budget == attempt.budget}
        assert len(after) == 3
        assert after[attempt] == min(after.values())


def test_a_job_that_fails_does_not_end_the_others(tmp_path: Path) -> None:
    jobs, path = asked(Subject.parse("gat+hidden_channels=0+epochs=20"), GCN), tmp_path / "s.sqlite"
    said: list[str] = []
    with pytest.raises(
        ConfigError, match="2 of the challenges failed, and all other results are stored; the first is gat"
    ):
        challenge.run_challenge(jobs, path, report=said.append)
    assert sum("hidden_channels" in line and "gcn" not in line for line in said) == 3  # the first phase needs no model
    with Store.open(path) as store:
        (found,) = standing(store, jobs)
    assert found.subject == GCN


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def call(*words: str) -> int:
        monkeypatch.setattr(sys, "argv", ["asgnn", "challenge", *words, "--store", str(tmp_path / "c.sqlite")])
        with pytest.raises(SystemExit) as left:
            main()
        return int(left.value.code or 0)

    own = "tests.challenge.problem:OwnModel"
    monkeypatch.setattr(app.out, "width", 200)
    usual = ["--dataset", "small", "--budget", "0.2", "--split", "stratified:0..1", "--set", "epochs=20"]
    assert call(own, *usual) == 0
    table = capsys.readouterr().out
    assert own in table
    assert "MLP" in table
    assert "mean of 2 splits" in table
    assert call(own, *usual, "--json") == 0
    (found, control) = json.loads(capsys.readouterr().out)
    assert found["splits"] == ["stratified:0", "stratified:1"]
    assert found["envelope"]["0.2"] < found["clean"]
    assert control["envelope"]["0.2"] == control["clean"]
    for words, message in {
        ("gcn", "--dataset", "small", "--kind", "both-of-them"): "--kind must be evasion, poisoning or both",
        ("gcn", "--dataset", "small", "--budget", "much"): "--budget must be numbers",
        ("gcn", "--dataset", "small", "--split", "random"): "random:0 or random:0..4",
        ("gcn", "--dataset", "small", "--split", "random:3..1"): "Several splits are given as random:0..4",
        ("gcn", "--dataset", "small", "--local", "--kind", "both"): "--local attacks single nodes",
        ("gcn+lam", "--dataset", "small"): "A setting is given as name=value",
        ("gcnn", "--dataset", "small"): "There is no model 'gcnn'",
        ("gcn", "--dataset", "small", "--effort", "huge"): "effort must be one of quick, full",
        ("gcn", "--dataset", "small", "--split", "stratified:5"): "from 0 to 4",
    }.items():
        assert call(*words) == 2
        assert message in capsys.readouterr().err


def test_single_nodes_are_kept_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(challenge, "challenge_nodes", partial(challenge_nodes, targets=6, pgd_steps=0))
    path = tmp_path / "n.sqlite"
    jobs = jobs_of(["evasion"], "small", parse_splits("stratified:0..1"), [GCN], [0.5, 2.0], nodes=True)
    challenge.run_challenge(jobs, path)
    monkeypatch.setattr(challenge, "fit_many", None)  # what is kept is not made again
    challenge._trained.cache_clear()
    challenge.run_challenge(jobs, path)
    with Store.open(path) as store:
        (found,) = standing(store, jobs)
    assert found.kind == "single nodes"
    assert found.splits == ("stratified:0", "stratified:1")
    assert found.envelope[2.0] <= found.envelope[0.5] <= found.clean
    assert found.envelope[2.0] < found.clean


def test_splits_are_parsed() -> None:
    assert [str(one) for one in parse_splits("stratified:1..3,random:7, published")] == [
        *(f"stratified:{i}" for i in (1, 2, 3)),
        "random:7",
        "published",
    ]


# --- the unit test ---------------------------------------------------------------------------------------------------


def unit_test(path: Path, data: Data, **changed: Any) -> dict[str, Any]:
    """Write a file in the format of unit_test.npz for Cora, with flips of the first pairs."""
    arrays = {
        "cora_ml/dataset/adjacency": data.edge_index[:, data.edge_index[0] < data.edge_index[1]].t().numpy(),
        "cora_ml/dataset/features": data.x.nonzero().numpy(),
        "cora_ml/dataset/labels": data.y.numpy(),
    }
    for number in range(2):
        split = stratified_split(data, number)
        for part in ("train", "val", "test"):
            arrays[f"cora_ml/splits/{number}/{part}"] = getattr(split, part).numpy()
        for count in (2, 5, 9):
            pairs = np.array([(2 * i, 2 * i + 1 + number) for i in range(count)])
            for kind in ("evasion", "poisoning"):
                arrays[f"cora_ml/perturbations/{kind}/svd_gcn/split_{number}/budget_{count:05d}"] = pairs
    arrays |= {f"cora_ml/{name}": value for name, value in changed.items()}
    np.savez(path, **{name: value for name, value in arrays.items() if value is not None})
    return arrays


@pytest.fixture
def cora() -> Data:
    return load_dataset("cora")


def test_the_unit_test_is_read_and_tried(tmp_path: Path, cora: Data) -> None:
    file = tmp_path / "unit_test.npz"
    arrays = unit_test(file, cora)
    found = load_unit_test(file, "cora")
    assert found.data.x.equal(cora.x)
    assert found.data.edge_index.equal(cora.edge_index)
    made = found.strongest("evasion", 1, [6 / 5069, 0.01])
    assert [len(one.flips) for one in made] == [5, 9]
    assert made[1].flips.flips.t().tolist() == [
        sorted(pair) for pair in arrays["cora_ml/perturbations/evasion/svd_gcn/split_1/budget_00009"].tolist()
    ]
    trial = recipe("mlp", epochs=5).trial(cora, found.splits[1], 0)
    model = fit_many([trial], cora)[0].model
    result = challenge_evasion(model, found.data, found.splits[1], [0.01], name="mlp", ways={}, pool=made[1:])
    assert result.outcomes[0].after == result.clean
    assert result.outcomes[0].attempt.source == "unit test, svd_gcn"


def test_the_unit_test_joins_the_pool(tmp_path: Path, cora: Data) -> None:
    file, path = tmp_path / "unit_test.npz", tmp_path / "s.sqlite"
    unit_test(file, cora)
    jobs = jobs_of(["evasion"], "cora", parse_splits("stratified:0..1"), [GCN], [0.01])
    assert challenge.add_unit_test(path, file, jobs) == 2
    with Store.open(path) as store:
        (attempt,) = StoreLedger(store, jobs[0]).pool()
        assert attempt == Attempt("unit test, evasion", "unit test, svd_gcn", 0.01)
        assert challenge._transfers(replace(jobs[0], phase="transfer"), attempt)
    with pytest.raises(ConfigError, match="does not hold the graph cora with the split random:0"):
        challenge.add_unit_test(path, file, [replace(jobs[0], split=SplitName("random", 0))])


@pytest.mark.parametrize(
    ("changed", "dataset", "kind", "words"),
    [
        ({}, "acm", ConfigError, "the graphs cora and citeseer"),
        ({}, "citeseer", DataCorrupt, "holds no perturbations of citeseer"),
        ({"dataset/labels": None}, "cora", DataCorrupt, "labels"),
        ({"splits/0/test": np.array([9999])}, "cora", DataCorrupt, "nodes that the graph does not have"),
        (
            {"perturbations/evasion/gcn/split_0/budget_00001": np.array([[3, 3]])},
            "cora",
            DataCorrupt,
            "self-loop at node 3",
        ),
    ],
)
def test_bad_unit_tests(
    changed: dict[str, Any], dataset: str, kind: type[AsgnnError], words: str, tmp_path: Path, cora: Data
) -> None:
    unit_test(tmp_path / "u.npz", cora, **changed)
    with pytest.raises(kind, match=words):
        load_unit_test(tmp_path / "u.npz", dataset)
