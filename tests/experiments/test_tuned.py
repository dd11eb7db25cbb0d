"""Tuned rows, with fake candidates: their searches, what they are compared with, and the ensembles of their trials."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from asgnn.errors import ConfigError
from asgnn.experiments import spec as spec_module
from asgnn.experiments.engine import Engine
from asgnn.experiments.executors import Batch, _Waiting, local, processes
from asgnn.experiments.measure import ensemble_figures, load_graph, train
from asgnn.experiments.questions import Plan, Question, plan, questions
from asgnn.experiments.spec import BUDGET, SMALL_BUDGET, Row, Spec, budget_of, load_spec, search_rank
from asgnn.experiments.store import Store
from asgnn.experiments.values import ENSEMBLE, Attack, Case, Outcome, SplitName, Training, as_settings, parse_case
from asgnn.graphs import find_dataset
from asgnn.training.evaluate import auc

KINDS: list[dict[str, Any]] = [
    {},
    {"witness_floor": 0.2},
    {"prior_neighbors": 5, "prior_threshold": 0.02},
    {"prior_edges": 0.0, "prior_neighbors": 20},
    {"num_layers": 4},
]


@pytest.fixture
def candidates(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, object]]:
    """Fake candidates: kinds in turn, with few different numbers. Lists what was asked for."""
    asked: list[tuple[str, object]] = []

    def tuned(model: str, budget: int | str) -> tuple[Any, ...]:
        asked.append((model, budget))
        count = 3 if budget == "portfolio" else int(budget)
        return tuple(as_settings({**KINDS[i % len(KINDS)], "lr": 0.01 * (1 + i // 2)}) for i in range(count))

    monkeypatch.setattr(spec_module, "tuned", tuned)
    return asked


def tuned_row(**changed: Any) -> Row:
    return replace(Row("row", "row", "asgnn", (), {}, None, None, search="tune"), **changed)


# --- searches ---------------------------------------------------------------------------------------------------------

BUDGETS = {"none": None, "paper": None, "wide": None, "small": SMALL_BUDGET, "tune": BUDGET, "tune-7": 7}


@pytest.mark.parametrize("search", [*BUDGETS, "portfolio"])
def test_budget_of_a_search(search: str) -> None:
    assert budget_of(search) == BUDGETS.get(search, "portfolio")


@pytest.mark.parametrize("search", ["tune-", "tune-1", "tune-x", "tune-1000000", "tune-²"])
def test_a_budget_that_is_none(search: str) -> None:
    with pytest.raises(ConfigError, match="needs a number of candidates"):
        budget_of(search)


def test_more_candidates_are_a_more_thorough_search() -> None:
    order = ["unknown", "none", "small", "portfolio", "tune-16", "tune-32", "tune", "tune-128", "paper"]
    ranks = [search_rank(search) for search in order]
    assert ranks == sorted(set(ranks))


# the row's kind of search → asked for → what it does
SEARCHED: dict[str, dict[str, str | None]] = {
    "grid": {"none": "none", "small": "small", "wide": "wide", "paper": "paper", "tune": None, "portfolio": None},
    "tune": {"none": "none", "small": "small", "wide": "tune", "paper": "tune", "tune-9": "tune-9"},
    "portfolio": {"none": "none", "small": "portfolio", "paper": "portfolio", "tune-9": "portfolio"},
    "none": {"none": "none", "paper": "none", "tune": "none"},
}


@pytest.mark.parametrize(("kind", "asked"), [(kind, asked) for kind, of in SEARCHED.items() for asked in of])
def test_the_search_of_a_row(kind: str, asked: str) -> None:
    assert tuned_row(search=kind).search_for(asked) == SEARCHED[kind][asked]


# --- candidates -------------------------------------------------------------------------------------------------------

RESTRICTED: dict[str, tuple[dict[str, Any], set[str]]] = {
    "all": ({}, {"witness_floor", "prior_neighbors", "prior_threshold", "prior_edges", "num_layers", "lr"}),
    "no features": ({"without": ("prior_", "witness_")}, {"num_layers", "lr"}),
    "frozen": (
        {"settings": (("structure", "frozen"),), "without": ("prior_",)},
        {"structure", "witness_floor", "num_layers", "lr"},
    ),
    "edge-free": (
        {"settings": (("prior_edges", 0.0),), "needs": ("prior_neighbors",), "without": ("prior_threshold",)},
        {"prior_neighbors", "prior_edges", "lr"},
    ),
    "in turn": (
        {"without": ("prior_", "witness_", "num_"), "variants": ((("hops", 2),), ())},
        {"lr", "hops"},
    ),
}


@pytest.mark.usefixtures("candidates")
@pytest.mark.parametrize("budget", [2, 8, 64])
@pytest.mark.parametrize("kind", RESTRICTED)
def test_a_restricted_row_has_as_many_candidates(kind: str, budget: int) -> None:
    changed, names = RESTRICTED[kind]
    row = tuned_row(**changed)
    found = row.candidates(f"tune-{budget}", "cora")
    assert len(found) == len(set(found)) == budget
    assert {name for one in found for name, _ in one} <= names
    if budget > 8:
        assert {name for one in found for name, _ in one} == names
    for one in map(dict, found):
        assert all(one[name] == value for name, value in row.settings)
        assert all(one[name] > 0 for name in row.needs)  # type: ignore[operator]


@pytest.mark.usefixtures("candidates")
@pytest.mark.parametrize("count", [one for one in (2, 3, 4, 5, 7) if math.gcd(one, len(KINDS)) == 1])
def test_all_pairs_of_variants_occur(count: int) -> None:
    """Of the model's own, which the candidates have in turn, and those that the row gives them."""
    row = tuned_row(variants=tuple((("hops", i),) for i in range(count)))
    kinds = [{k: v for k, v in one if k not in ("lr", "hops")} for one in row.candidates("tune", "cora")]
    hops = [dict(one)["hops"] for one in row.candidates("tune", "cora")]
    pairs = {(KINDS.index(kind), hop) for kind, hop in zip(kinds, hops, strict=True)}
    assert len(pairs) == count * len(KINDS)


def test_without_restrictions_the_candidates_are_those_of_tune(candidates: list[tuple[str, object]]) -> None:
    assert len(tuned_row().candidates("tune", "cora")) == BUDGET
    assert tuned_row(search="portfolio").candidates("portfolio", "cora") == list(
        spec_module.tuned("asgnn", "portfolio")
    )
    assert candidates[:2] == [("asgnn", BUDGET), ("asgnn", "portfolio")]
    assert tuned_row().candidates("none", "cora") == [()]


def test_what_is_set_for_a_dataset_is_in_every_candidate() -> None:
    spec = load_spec("generality")
    for row in spec.rows:
        (one,) = row.candidates("none", "tolokers")
        assert dict(one)["metric"] == "roc_auc"
        assert ("metric", "roc_auc") not in row.candidates("none", "actor")[0]
    assert [spec.figure_of(name) for name in ("tolokers", "actor")] == ["test_auc", "test"]


# --- questions --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("candidates")
def test_rows_of_a_search() -> None:
    """A grid and a budget are for different rows; a row brings those that it is compared with."""
    table1 = load_spec("table1")
    cell: dict[str, Any] = {"datasets": ["cora"], "rates": [0.25]}
    searches = {one.row.name: one.search for one in questions(table1, **cell)}
    assert (searches["gcn"], searches["gcn-tuned"], searches["asgnn-edge-free"]) == ("paper", "tune", "tune")
    assert len(searches) == len(table1.rows)
    asked = questions(table1, **cell, search="tune-16")
    assert {one.row.name for one in asked if one.search == "none"} == {
        row.name for row in table1.rows if row.search == "none"
    }
    only_tuned = [one for one in asked if one.search == "tune-16"]
    assert len(only_tuned) == sum(row.search == "tune" for row in table1.rows)
    assert all(len(one.candidates) == 16 for one in only_tuned)
    named = questions(table1, **cell, models=["asgnn-features"])
    assert [one.row.name for one in named] == ["asgnn-features", "asgnn-features-frozen", "asgnn-edge-free"]


@pytest.mark.usefixtures("candidates")
def test_other_graphs() -> None:
    asked = plan("generality", together=True)
    (wave,) = asked.waves
    spec = load_spec("generality")
    assert len(spec.cases) >= 16
    assert len(wave) == len(spec.cases) * len(spec.rows)
    searches = {(one.row.name, one.search) for one in wave}
    assert {("asgnn-portfolio", "portfolio"), ("gcn-default", "none"), ("mlp", "tune")} <= searches
    # by dataset: both graphs of polblogs
    polblogs = questions(spec, datasets=["polblogs"], models=["mlp"])
    assert [one.case.label for one in polblogs] == ["clean", "own-metattack, 25%"]


def test_other_graphs_are_judged_as_their_datasets_say_and_were_not_tuned_on() -> None:
    spec = load_spec("generality")
    datasets = {name: find_dataset(case.dataset) for name, case in spec.cases.items()}
    assert {name for name, one in datasets.items() if one.metric == "roc_auc"} == spec.aucs
    assert all(one.name == spec.cases[name].dataset for name, one in datasets.items())
    assert not [name for name in datasets if name.startswith("tuning-")]
    for name, case in spec.cases.items():
        assert case.split.kind == SplitName.usual(case.dataset).kind, name


@pytest.mark.usefixtures("candidates")
def test_the_ablation_compares_every_part_with_the_whole() -> None:
    spec = load_spec("ablation")
    assert [row.against for row in spec.rows] == [(), *[("full",)] * (len(spec.rows) - 1)]
    assert len(questions(spec)) == 3 * 2 * len(spec.rows)


# --- batches and workers ----------------------------------------------------------------------------------------------


def batch(dataset: str, rate: float, model: str = "gcn") -> Batch:
    attacks = (Attack("metattack", "published", rate),) if rate else ()
    return Batch((Training(Case(dataset, attacks, SplitName("published")), model),))


def test_a_worker_stays_with_its_graph_then_with_its_dataset() -> None:
    given = [batch(dataset, rate) for dataset in ("cora", "acm") for rate in (0.0, 0.25) for _ in range(3)]
    waiting = _Waiting(given)
    last, taken = None, []
    while waiting:
        last = waiting.take(last, [])
        taken.append(last)
    assert sorted(map(id, taken)) == sorted(map(id, given))
    places = [(one.trainings[0].case.dataset, one.trainings[0].case.amount) for one in taken]
    assert [len(list(of)) for _, of in itertools.groupby(places)] == [3] * 4
    assert [len(list(of)) for _, of in itertools.groupby(place[0] for place in places)] == [6, 6]


def test_workers_share_the_graphs_out() -> None:
    given = [batch(dataset, 0.0) for dataset in ("cora", "acm", "citeseer") for _ in range(4)]
    waiting = _Waiting(given)
    taken: list[Batch] = []
    for _ in range(3):
        taken.append(waiting.take(None, taken))
    assert {one.trainings[0].case.dataset for one in taken} == {"cora", "acm", "citeseer"}
    # a worker whose dataset is finished helps with the one that has the most batches per worker
    rest = _Waiting([batch("cora", 0.0), *(batch("citeseer", 0.0) for _ in range(3))])
    helped = rest.take(batch("acm", 0.0), [batch("cora", 0.0), batch("citeseer", 0.0)])
    assert helped.trainings[0].case.dataset == "citeseer"


def test_large_graphs_have_smaller_batches_on_a_gpu() -> None:
    sizes = {
        name: Engine(Store.in_memory(), local("cpu"), "cuda")._largest_batch(name) for name in ("cora", "tolokers")
    }
    assert sizes == {"cora": 1024, "tolokers": 16}
    assert Engine(Store.in_memory(), local("cpu"), "cpu")._largest_batch("tolokers") == 16


# --- ensembles --------------------------------------------------------------------------------------------------------

FEW = as_settings({"epochs": 3})
ATTACKED = parse_case("cora", "own-metattack", 0.25)


def test_the_figures_of_an_ensemble_are_those_of_the_mean_probability() -> None:
    graph = load_graph(ATTACKED)
    found = train(graph, [Training(ATTACKED, "gcn", FEW, seed) for seed in range(3)])
    fits = [fit for _, fit in found]
    probability = sum(fit.logits[0].softmax(-1) for fit in fits)
    test = fits[0].split.test
    wanted = 100 * float((probability.argmax(-1) == graph.data.y)[test].double().mean())
    assert ensemble_figures(fits, graph) == {"ensemble_test": pytest.approx(wanted, abs=1e-4)}
    other = replace(fits[1], split=replace(fits[1].split, test=test[:-1]))
    assert ensemble_figures([fits[0], other], graph) == {}  # the splits differ


def asked(case: Case, trials: int = 2, **changed: Any) -> Question:
    row = tuned_row(model="gcn", settings=FEW, **changed)
    attacks = {"cora": (Attack("metattack", "built-in"), SplitName("random", 0))}
    spec = Spec("small", "", "test", "", attacks, (0.25,), ("validation",), (row,), {}, ())
    return Question(spec, row, case, "validation", "none", trials)


def test_reported_trials_are_trained_once_more_for_their_ensemble() -> None:
    """Once, as one batch; not for rows of the paper, single trials or trials with splits of their own."""
    batches: list[Batch] = []

    def watched(given: Sequence[Batch]) -> Iterator[tuple[Batch, list[Outcome]]]:
        batches.extend(given)
        yield from local("cpu")(given)

    wave = [
        asked(ATTACKED),
        asked(ATTACKED, trials=1),
        asked(replace(ATTACKED, attacks=(), split=SplitName("random"))),
        asked(ATTACKED, search="grid"),
    ]
    with Store.in_memory() as store:
        for _ in range(2):
            for _ in Engine(store, watched).run(Plan([wave], [], [])):
                pass
        (series,) = store.series(ENSEMBLE)
        choice = store.choices()
        assert series.training in {one.trainings[0] for one in choice}
        assert series.content["trials"] == 2
        assert series.content["figures"].keys() == {"test"}
        assert 0 < series.content["figures"]["test"] < 100
        again = [one for one in batches if one.ensemble]
        assert [len(one.trainings) for one in again] == [2]
        assert all("ensemble_test" not in one.figures for one in store.outcomes())


def test_an_ensemble_in_another_process() -> None:
    given = [Batch(tuple(Training(ATTACKED, "gcn", FEW, seed) for seed in range(2)), ensemble=True)]
    with processes(2, "cpu") as run:
        ((_, there),) = run(given)
    ((_, here),) = local("cpu")(given)
    assert [one.figures for one in there] == [one.figures for one in here]


# --- the ROC-AUC ------------------------------------------------------------------------------------------------------


def test_roc_auc_is_that_of_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    rng = torch.Generator().manual_seed(0)
    logits = torch.randn(200, 2, generator=rng).round(decimals=1)  # with ties
    y = (torch.rand(200, generator=rng) < 0.3).long()
    nodes = torch.arange(50, 200)
    wanted = metrics.roc_auc_score(y[nodes], logits[nodes, 1] - logits[nodes, 0])
    found = auc((logits[nodes, 1] - logits[nodes, 0]).double(), y[nodes] == 1)
    assert 100 * found == pytest.approx(100 * wanted)
