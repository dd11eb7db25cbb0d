"""RobustNodeClassifier keeps scikit-learn's habits, sees only the labels it is given, and says what it does."""

from __future__ import annotations

import copy
import itertools
import json
import pickle
import tempfile
import warnings
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch
from scipy.optimize import minimize_scalar
from scripts.calibration import table
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.metrics import accuracy_score
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score, train_test_split
from torch_geometric.data import Data

from asgnn import estimator
from asgnn.errors import AsgnnError, ConfigError, GraphError, StructureWarning
from asgnn.estimator import NodeSamples, RobustNodeClassifier
from asgnn.graphs import Gaussian, planted_graph, to_scipy
from asgnn.graphs.named import NamedGraph, named_graph
from asgnn.graphs.scaling import Scaling
from asgnn.training.calibrate import calibration_error, log_grid, succession, temperature_of
from tests.test_docs import ROOT, run_page

NODES, FEATURES = 240, 10
DATA = planted_graph(NODES, 3, 8, 0.15, features=Gaussian(FEATURES, 1.5), seed=1)
NAMES = np.array(["apple", "pear", "plum"])[DATA.y.numpy()]
KNOWN = np.arange(NODES) % 3 > 0  # the labels that are not missing
SETTINGS = {"epochs": 30}


def quick(model: str = "asgnn", **options: Any) -> RobustNodeClassifier:
    return RobustNodeClassifier(model, **{"budget": None, "models": 2, "settings": SETTINGS, **options})


def labels(known: np.ndarray = KNOWN) -> np.ndarray:
    return np.where(known, NAMES, None)


def without_labels() -> Data:
    return Data(x=DATA.x, edge_index=DATA.edge_index)


@pytest.fixture(scope="module")
def fitted() -> RobustNodeClassifier:
    return quick(settings={**SETTINGS, "witness_floor": 0.1, "witness_models": 1}, models=3).fit(
        without_labels(), labels()
    )


# --- scikit-learn's habits ------------------------------------------------------------------------------------------


def test_the_constructor_stores_what_it_is_given() -> None:
    given = {
        "model": "gcn",
        "settings": {"lr": 0.1},
        "budget": 7,
        "models": "many",  # wrong values are found by fit
        "validation": [1, 2],
        "scale": 0,
        "device": object(),
        "progress": print,
        "verbose": 3,
        "random_state": np.random.RandomState(0),
    }
    clf = RobustNodeClassifier(**given)
    assert clf.get_params().keys() == given.keys()
    assert all(getattr(clf, name) is value for name, value in given.items())
    assert clf.set_params(models=2, budget=None) is clf
    assert (clf.models, clf.budget) == (2, None)


def test_clone_and_repr(fitted: RobustNodeClassifier) -> None:
    again = clone(fitted)
    assert again.get_params() == fitted.get_params()
    assert not hasattr(again, "ensemble_")
    assert repr(RobustNodeClassifier("gcn", models=3)) == "RobustNodeClassifier(model='gcn', models=3)"
    assert is_classifier(fitted)


@pytest.mark.parametrize("method", ["predict", "predict_proba", "spread", "score", "audit", "clean"])
def test_methods_before_fit_raise_one_sentence(method: str, tmp_path: Path) -> None:
    with pytest.raises(NotFittedError, match="call fit with a graph and labels first") as seen:
        getattr(RobustNodeClassifier(), method)()
    assert isinstance(seen.value, AsgnnError)
    with pytest.raises(NotFittedError):
        RobustNodeClassifier().save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_results_have_the_shapes_and_types_of_scikit_learn(fitted: RobustNodeClassifier) -> None:
    p = fitted.predict_proba()
    assert fitted.classes_.tolist() == ["apple", "pear", "plum"]
    assert p.shape == (NODES, 3)
    assert p.dtype == np.float64
    np.testing.assert_allclose(p.sum(1), 1, atol=1e-12)
    assert (fitted.predict() == fitted.classes_[p.argmax(1)]).all()
    assert fitted.n_features_in_ == FEATURES
    # the missing labels are found
    assert accuracy_score(NAMES[~KNOWN], fitted.predict()[~KNOWN]) > 0.85
    assert fitted.score() == accuracy_score(NAMES[KNOWN], fitted.predict()[KNOWN])
    assert fitted.score(without_labels(), NAMES) == accuracy_score(NAMES, fitted.predict())


def test_a_fitted_classifier_travels_between_processes(fitted: RobustNodeClassifier) -> None:
    for again in (pickle.loads(pickle.dumps(fitted)), copy.deepcopy(fitted)):
        assert (again.predict_proba() == fitted.predict_proba()).all()


# --- labels ---------------------------------------------------------------------------------------------------------


def fit_bits(graph: Any, given: Any = None, **options: Any) -> np.ndarray:
    return quick("gcn", **options).fit(graph, given).predict_proba()


def test_missing_labels_may_be_written_in_many_ways() -> None:
    numbers = DATA.y.numpy()
    expected = fit_bits(without_labels(), labels())
    ways = [
        np.where(KNOWN, NAMES, ""),
        labels().tolist(),
        np.where(KNOWN, numbers, np.nan),
        np.where(KNOWN, numbers, -1),
        {i: name for i, name in enumerate(NAMES) if KNOWN[i]},
        pd.Series(NAMES[KNOWN], index=np.flatnonzero(KNOWN)),
        pd.Series(labels()),
    ]
    for given in ways:
        assert (fit_bits(without_labels(), given) == expected).all()
    double = Data(x=DATA.x.double(), edge_index=DATA.edge_index)
    assert (fit_bits(double, labels()) == expected).all()
    with_y = Data(x=DATA.x, edge_index=DATA.edge_index, y=torch.where(torch.from_numpy(KNOWN), DATA.y, -1))
    assert (fit_bits(with_y) == expected).all()


def test_the_same_graph_of_any_kind_gives_the_same_predictions() -> None:
    expected = fit_bits(without_labels(), labels())
    row, col = DATA.edge_index[:, DATA.edge_index[0] < DATA.edge_index[1]].numpy()
    x = DATA.x.numpy()
    columns = [f"x{i}" for i in range(FEATURES)]
    table = pd.DataFrame(x, columns=columns, index=pd.Index(range(NODES), name="id"))
    graph = nx.Graph()
    graph.add_nodes_from((i, dict(zip(columns, x[i], strict=True))) for i in range(NODES))
    graph.add_edges_from(zip(row.tolist(), col.tolist(), strict=True))
    kinds = {
        "scipy": named_graph(to_scipy(DATA), features=x),
        "pandas": named_graph(pd.DataFrame({"source": row, "target": col}), features=table),
        "networkx": graph,
        "named": named_graph(without_labels()),
    }
    for kind, one in kinds.items():
        np.testing.assert_allclose(fit_bits(one, labels()), expected, rtol=0, atol=1e-6, err_msg=kind)


def test_labels_of_test_nodes_are_not_used() -> None:
    masked = copy.copy(DATA)
    masked.test_mask = torch.from_numpy(~KNOWN)
    clf = quick("gcn").fit(masked)
    masked.y = torch.where(masked.test_mask, (DATA.y + 1) % 3, DATA.y)
    assert (clf.predict_proba() == fit_bits(masked)).all()
    assert any("80 nodes in test_mask" in note for note in clf.notes_)
    assert (clf.graph_.data.y.numpy()[~KNOWN] == -1).all()


@pytest.mark.parametrize(
    ("share", "expected"), [(0.2, [0, 1, 1, 2, 8]), (0.5, [0, 1, 2, 5, 20]), (0.9, [0, 1, 2, 9, 36])]
)
def test_a_share_of_every_class_is_held_out(share: float, expected: list[int]) -> None:
    sizes = [1, 2, 3, 10, 40]
    codes = np.random.default_rng(0).permutation(np.repeat(np.arange(5), sizes))
    held, notes = estimator._hold_out(codes, np.array(list("abcde")), share, 0)
    assert np.bincount(codes[held], minlength=5).tolist() == expected
    assert notes == ["The class 'a' has one labelled node: it is used for training and not validated."]
    assert (held == estimator._hold_out(codes, np.array(list("abcde")), share, 0)[0]).all()
    assert set(held.tolist()) != set(estimator._hold_out(codes, np.array(list("abcde")), share, 1)[0].tolist())


def test_validation_nodes_may_be_given_as_ids_or_as_a_mask() -> None:
    ids = [f"n{i}" for i in range(NODES)]
    graph = NamedGraph(
        without_labels(), np.array(ids, dtype=object), tuple(f"x{i}" for i in range(FEATURES)), np.array([])
    )
    mask = np.arange(NODES) % 5 == 0
    by_ids = quick("gcn", validation=[name for name, held in zip(ids, mask, strict=True) if held])
    by_ids.fit(graph, labels())
    assert set(by_ids.validation_ids_) == {ids[i] for i in np.flatnonzero(mask & KNOWN)}
    assert (fit_bits(graph, labels(), validation=mask) == by_ids.predict_proba()).all()


def test_random_state_decides_everything() -> None:
    first = fit_bits(DATA, random_state=3)
    assert (first == fit_bits(DATA, random_state=3)).all()
    assert not (first == fit_bits(DATA, random_state=4)).all()
    drawn = [fit_bits(DATA, random_state=np.random.RandomState(5)) for _ in range(2)]
    assert (drawn[0] == drawn[1]).all()


WRONG: dict[str, tuple[Any, Any, dict[str, Any], str]] = {
    "one class": (DATA, np.zeros(NODES), {}, "at least two classes"),
    "no labels": (Data(x=DATA.x, edge_index=DATA.edge_index), None, {}, "there are none"),
    "too few labels": (DATA, {0: "a", 1: "b"}, {}, "label more nodes"),
    "short labels": (DATA, NAMES[:10], {}, "10 entries"),
    "no model": (DATA, None, {"model": "gnc"}, "no model 'gnc'"),
    "no setting": (DATA, None, {"settings": {"hidden": 3}}, "no setting hidden"),
    "models": (DATA, None, {"models": 0}, "models must be"),
    "share": (DATA, None, {"validation": 1.0}, "validation must be"),
    "unknown node": (DATA, None, {"validation": [NODES + 7]}, f"no node {NODES + 7}"),
    "unlabelled validation": (DATA, labels(), {"validation": np.flatnonzero(~KNOWN)}, "None of the validation nodes"),
    "all validation": (DATA, None, {"validation": np.ones(NODES, bool)}, "none is left to train on"),
    "short mask": (DATA, None, {"validation": np.ones(3, bool)}, "mask has 3 entries"),
    "device": (DATA, None, {"device": "abacus"}, "device must be"),
    "no such GPU": (DATA, None, {"device": "cuda:99"}, "needs a GPU"),
    "random state": (DATA, None, {"random_state": "luck"}, "random_state must be"),
    "graph": ("nowhere.csv", None, {}, "nowhere.csv"),
    "kind": (42, None, {}, "int"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_gets_one_sentence(case: str) -> None:
    graph, given, options, message = WRONG[case]
    with pytest.raises(AsgnnError, match=message) as seen:
        quick(**{"model": "gcn", **options}).fit(graph, given)
    assert "\n" not in str(seen.value)


# --- nodes as samples -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (3, [3]),
        (slice(2, 8, 2), [2, 4, 6]),
        ([5, 1], [5, 1]),
        (np.array([7, 7]), [7, 7]),
        (np.arange(NODES) == 9, [9]),
        ((np.array([4, 2]), ...), [4, 2]),
    ],
)
def test_indexing_selects_nodes(key: Any, expected: list[int]) -> None:
    samples = NodeSamples(DATA)
    assert samples.shape == (NODES,)
    found = samples[key]
    assert found.nodes.tolist() == expected
    assert found.graph is samples.graph
    assert len(found) == len(expected) == found.shape[0]
    assert (
        samples[10:][key if not isinstance(key, np.ndarray) or key.dtype != bool else key[10:]].graph is samples.graph
    )


def test_samples_with_missing_labels(fitted: RobustNodeClassifier) -> None:
    samples, y = NodeSamples(without_labels(), labels()).labelled()
    assert (samples.ids == np.flatnonzero(KNOWN)).all()
    assert (y == NAMES[KNOWN]).all()
    assert (fitted.predict_proba(samples) == fitted.predict_proba()[KNOWN]).all()
    assert (fitted.spread(samples) == fitted.spread()[KNOWN]).all()
    assert fitted.score(samples, y) == fitted.score()


def test_a_fold_sees_the_labels_of_its_nodes_only() -> None:
    """The graph's own labels elsewhere are no part of the fit: the result is that of a graph without them."""
    train = np.flatnonzero(KNOWN)
    expected = fit_bits(without_labels(), np.where(KNOWN, DATA.y.numpy(), -1))
    assert (fit_bits(NodeSamples(DATA)[train]) == expected).all()
    assert (fit_bits(NodeSamples(DATA)[train], DATA.y.numpy()[train]) == expected).all()


def test_cross_validation_over_nodes() -> None:
    samples, clf = NodeSamples(DATA), quick("gcn", models=1)
    scores = cross_val_score(clf, samples, NAMES, cv=3)
    assert scores.shape == (3,)
    assert scores.min() > 0.8
    assert (scores == cross_val_score(clf, samples, NAMES, cv=3, scoring="accuracy")).all()
    p = cross_val_predict(clf, samples, NAMES, cv=3, method="predict_proba")
    assert (np.unique(NAMES)[p.argmax(1)] == NAMES).mean() == pytest.approx(scores.mean())
    left, right, *_ = train_test_split(samples, NAMES, random_state=0)
    assert sorted([*left.nodes, *right.nodes]) == list(range(NODES))


def test_grid_search_over_nodes() -> None:
    samples, y = NodeSamples(DATA, labels()).labelled()
    # the first cannot learn anything
    grid = {"settings": [{"epochs": 1, "lr": 0.0}, {"epochs": 40}], "model": ["gcn"]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StructureWarning)
        found = GridSearchCV(quick(models=1), grid, cv=2, error_score="raise").fit(samples, y)
    assert found.best_params_["settings"] == {"epochs": 40}
    assert accuracy_score(NAMES[~KNOWN], found.predict(NodeSamples(DATA)[~KNOWN])) > 0.8


# --- other graphs ---------------------------------------------------------------------------------------------------


def permuted(order: np.ndarray) -> Data:
    place = np.empty(NODES, dtype=np.int64)
    place[order] = np.arange(NODES)
    return Data(x=DATA.x[order], edge_index=torch.from_numpy(place)[DATA.edge_index])


def test_nodes_in_another_order_get_the_same_probabilities(fitted: RobustNodeClassifier) -> None:
    order = np.random.default_rng(0).permutation(NODES)
    np.testing.assert_allclose(fitted.predict_proba(permuted(order)), fitted.predict_proba()[order], atol=1e-5)


def test_a_new_graph_with_the_same_features_is_predicted(fitted: RobustNodeClassifier) -> None:
    """The nodes of two copies of the graph, which are not joined, are those of one."""
    twice = Data(x=torch.cat([DATA.x, DATA.x]), edge_index=torch.cat([DATA.edge_index, DATA.edge_index + NODES], dim=1))
    clf = quick("gcn").fit(DATA)
    np.testing.assert_allclose(clf.predict_proba(twice), np.tile(clf.predict_proba(), (2, 1)), atol=1e-5)


def frame(columns: list[str]) -> NamedGraph:
    row, col = DATA.edge_index.numpy()
    x = DATA.x.numpy()[:, : len(columns)]
    return named_graph(pd.DataFrame({"u": row, "v": col}), features=pd.DataFrame(x, columns=columns))


def test_features_are_matched_by_name() -> None:
    columns = [f"column {i}" for i in range(FEATURES)]
    clf = quick("gcn").fit(frame(columns), labels())
    assert clf.feature_names_in_.tolist() == columns
    edges, nodes = frame(columns).to_pandas()
    shuffled = named_graph(edges, features=nodes[columns[::-1]])
    assert (clf.predict_proba(shuffled) == clf.predict_proba()).all()
    assert (clf.predict_proba(without_labels()) == clf.predict_proba()).all()  # without names, the number must match
    with pytest.raises(GraphError, match="column 9"):
        clf.predict(frame(columns[:9]))
    with pytest.raises(GraphError, match="has 4 features, but the classifier was fitted with 10"):
        clf.predict(Data(x=DATA.x[:, :4], edge_index=DATA.edge_index))


def test_without_features_only_the_same_nodes_can_be_predicted() -> None:
    clf = quick("gcn").fit(to_scipy(DATA), NAMES)
    assert clf.n_features_in_ == NODES
    assert clf.feature_names_in_.size == 0
    with pytest.raises(GraphError, match="knows these nodes only"):
        clf.predict(to_scipy(DATA)[:100, :100])
    with pytest.raises(GraphError, match="fitted without features"):
        clf.predict(DATA)


def test_without_features_other_ids_are_refused_also_after_loading(tmp_path: Path) -> None:
    edges = named_graph(to_scipy(DATA)).edge_list().astype(str)
    clf = quick("gcn").fit(edges, {str(i): name for i, name in enumerate(NAMES) if str(i) in set(edges.stack())})
    clf.save(tmp_path / "model")
    again = RobustNodeClassifier.load(tmp_path / "model")
    assert (again.predict(edges) == clf.predict()).all()
    with pytest.raises(GraphError, match="with other ids"):
        again.predict("n" + edges)


@pytest.mark.parametrize("scale", [True, False])
def test_many_nodes_without_features(scale: bool) -> None:
    """Their identity features are sparse."""
    large = planted_graph(5000, 2, 8, 0.0, features=Gaussian(1, 0.0), seed=4)
    clf = quick("gcn", models=1, scale=scale).fit(to_scipy(large), np.where(np.arange(5000) < 2500, large.y, -1))
    assert clf.graph_.data.x.layout != torch.strided
    assert (clf.predict() == large.y.numpy())[2500:].mean() > 0.8


# --- scales ---------------------------------------------------------------------------------------------------------

SIZES = torch.tensor([1.0, 1e3, 1e5, 1e-4, 1.0, 50.0, 1.0, 1.0, 1e4, 1.0])
SHIFTS = torch.tensor([0.0, 2e3, 3e5, 0.0, 0.0, 0.0, 0.0, 0.0, -1e4, 0.0])


def test_columns_of_any_size_may_be_mixed() -> None:
    """Scaled columns are the standardised ones; without scaling the large ones hide all others."""
    mixed = Data(x=DATA.x * SIZES + SHIFTS, edge_index=DATA.edge_index)
    clf = quick("gcn").fit(mixed, labels())
    assert clf.scaling_.columns.tolist() == [1, 2, 3, 5, 8]
    assert (
        "5 features ('x1', 'x2', 'x3', 'x5', 'x8') were scaled, because of very large or very small values."
        in clf.notes_
    )
    assert accuracy_score(NAMES[~KNOWN], clf.predict()[~KNOWN]) > 0.85
    x = DATA.x.double()
    x[:, [1, 2, 3, 5, 8]] = ((x - x.mean(0)) / x.std(0, correction=0))[:, [1, 2, 3, 5, 8]]
    by_hand = fit_bits(Data(x=x, edge_index=DATA.edge_index), labels())
    np.testing.assert_allclose(clf.predict_proba(), by_hand, atol=0.02)
    assert (clf.predict_proba(mixed) == clf.predict_proba()).all()
    # another graph is scaled as the graph of the fit was
    part = np.arange(NODES) < 60
    alone = Data(x=mixed.x[part], edge_index=torch.empty(2, 0, dtype=torch.int64))
    many = Data(x=mixed.x, edge_index=torch.empty(2, 0, dtype=torch.int64))
    np.testing.assert_allclose(clf.predict_proba(alone), clf.predict_proba(many)[part], atol=1e-6)


COLUMNS: dict[str, tuple[list[float], list[float]]] = {
    "as it is": ([1.0, -2.0, 3.0, 0.5], [1.0, -2.0, 3.0, 0.5]),
    "zeros": ([0.0] * 4, [0.0] * 4),
    "constant": ([1.0] * 4, [1.0] * 4),
    "large constant": ([2020.0] * 4, [0.0] * 4),
    "large": ([100.0, 200.0, 100.0, 200.0], [-1.0, 1.0, -1.0, 1.0]),
    "small": ([1e-4, 3e-4, 1e-4, 3e-4], [-1.0, 1.0, -1.0, 1.0]),
    "mostly 0": ([0.0, 0.0, 0.0, 40.0], [0.0, 0.0, 0.0, 1.0]),
    "small and mostly 0": ([0.0, 0.0, 0.0, 1e-3], [0.0, 0.0, 0.0, 1e-3]),
}


@pytest.mark.parametrize("case", COLUMNS)
def test_the_scale_of_a_column(case: str) -> None:
    given, expected = (torch.tensor(column).view(-1, 1) for column in COLUMNS[case])
    scaling = Scaling.of(given)
    torch.testing.assert_close(scaling(given), expected)
    assert (scaling(given) is given) == (given is expected or torch.equal(given, expected))
    assert (len(scaling.columns) > 0) == (not torch.equal(given, expected))


# --- confidence -----------------------------------------------------------------------------------------------------


def test_probabilities_and_spread_are_those_of_the_members(fitted: RobustNodeClassifier) -> None:
    fits = fitted.tuned_.fits
    assert len(fits) == 3
    logits = np.stack([fit.logits[0].double().numpy() for fit in fits]) / fitted.temperature_
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    np.testing.assert_allclose(fitted.predict_proba(), p.mean(0), atol=1e-5)
    chosen = p[:, np.arange(NODES), p.mean(0).argmax(-1)]
    np.testing.assert_allclose(fitted.spread(), chosen.std(0), atol=1e-5)
    assert (quick("gcn", models=1).fit(DATA).spread() == 0).all()


def test_it_says_when_confidences_say_little(fitted: RobustNodeClassifier, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fitted.ensemble_.confidence is None
    assert not any("confidences say nothing" in note for note in fitted.notes_)
    clf = quick("gcn").fit(DATA)
    monkeypatch.setattr(estimator, "VAGUE", 0.0)
    vague = quick("gcn").fit(DATA)
    held = vague.graph_.numbers(vague.validation_ids_)
    right = vague.predict()[held] == DATA.y.numpy()[held]
    share = (right.sum() + 1) / (len(held) + 2)
    assert vague.ensemble_.confidence == pytest.approx(share)
    assert any(f"validation nodes that are right, {share:.0%}." in note for note in vague.notes_)
    np.testing.assert_allclose(vague.predict_proba().max(1), share, atol=1e-9)
    assert (vague.predict() == clf.predict()).all()


def test_the_temperature_is_the_best_on_the_validation_nodes(fitted: RobustNodeClassifier) -> None:
    held = fitted.graph_.numbers(fitted.validation_ids_)
    y = fitted.graph_.data.y.numpy()[held]
    logits = np.stack([fit.logits[0].double().numpy()[held] for fit in fitted.tuned_.fits])
    target = np.full((len(y), 3), 0.5 / (len(y) + 2))
    target[np.arange(len(y)), y] = 1 - 1 / (len(y) + 2)

    def loss(log_tau: float) -> float:
        scaled = np.exp(logits / np.exp(log_tau))
        return -float((target * np.log((scaled / scaled.sum(-1, keepdims=True)).mean(0))).sum(1).mean())

    best = minimize_scalar(loss, bounds=(-2.5, 2.5), method="bounded")
    assert loss(np.log(fitted.temperature_)) == pytest.approx(best.fun, abs=1e-4)


def test_nodes_that_are_all_right_do_not_make_it_certain() -> None:
    rng = torch.Generator().manual_seed(0)
    y = torch.randint(3, (50,), generator=rng)
    logits = (torch.randn(50, 3, generator=rng) + 9 * torch.nn.functional.one_hot(y, 3))[None]
    grid = log_grid(0.01, 100, 201)
    assert temperature_of(logits, y, grid)[0] < 0.3
    tau, _ = temperature_of(logits, y, grid, succession(50))
    doubt = 1 - float((logits[0] / tau).softmax(-1).max(-1).values.mean())
    assert 0.5 / 52 < doubt < 2 / 52


def reference_error(p: np.ndarray, y: np.ndarray, edges: np.ndarray) -> float:
    """Guo et al. 2017, bin by bin."""
    confidence, right = p.max(1), p.argmax(1) == y
    total = 0.0
    for low, high in itertools.pairwise(edges):
        inside = (confidence > low) & (confidence <= high)
        if inside.any():
            total += inside.mean() * abs(confidence[inside].mean() - right[inside].mean())
    return total


@pytest.mark.parametrize("sharpness", [0.3, 1.0, 4.0])
def test_calibration_error_is_that_of_a_plain_loop(sharpness: float) -> None:
    rng = torch.Generator().manual_seed(0)
    logits = torch.randn(600, 4, generator=rng, dtype=torch.float64)
    y = torch.multinomial(logits.softmax(-1), 1, generator=rng).view(-1)  # calibrated at sharpness 1
    p = (sharpness * logits).softmax(-1)
    found = calibration_error(p, y)
    assert found == pytest.approx(reference_error(p.numpy(), y.numpy(), np.linspace(0, 1, 16)))
    ordered = np.sort(p.max(-1).values.numpy())
    by_mass = np.concatenate([[0], ordered[39::40]])  # 15 bins of 40
    assert calibration_error(p, y, by="mass") == pytest.approx(reference_error(p.numpy(), y.numpy(), by_mass))
    assert (found < 0.06) == (sharpness == 1)
    assert temperature_of(p.log()[None], y, log_grid(0.1, 10, 201))[0] == pytest.approx(sharpness, rel=0.2)


def test_calibration_error_by_hand() -> None:
    p = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.4, 0.6], [0.4, 0.6]])
    y = torch.tensor([0, 1, 1, 1])  # half of the first two are right, all of the others
    assert calibration_error(p, y) == pytest.approx((0.4 + 0.4) / 2)
    assert calibration_error(p, y, bins=1) == pytest.approx(0.0, abs=1e-7)
    with pytest.raises(GraphError, match="no nodes"):
        calibration_error(p[:0], y[:0])


def test_the_page_shows_the_record_and_the_goals_are_met() -> None:
    record = json.loads((ROOT / "docs" / "records" / "calibration.json").read_text())
    assert table(record["graphs"]) in (ROOT / "docs" / "estimator.md").read_text()
    for key, row in record["graphs"].items():
        goal = record["goal"]["clean" if key.endswith(" 0%") else "attacked"]
        assert max(row["after"].values()) < goal, key
        assert (row["temperature"] > estimator.VAGUE) == (key == "polblogs 25%"), key  # as the page says


# --- suspicious edges -----------------------------------------------------------------------------------------------


def test_audit_and_clean_are_those_of_the_calibrated_models(fitted: RobustNodeClassifier, tmp_path: Path) -> None:
    found = fitted.audit(missing=5).edges
    graph, p = fitted.graph_, fitted.predict_proba()
    ends = [graph.numbers(found[side].to_numpy()) for side in ("source", "target")]
    assert len(found) == DATA.num_edges // 2
    np.testing.assert_allclose(found["agreement"], (p[ends[0]] * p[ends[1]]).sum(1), atol=1e-5)
    np.testing.assert_allclose(found["confidence_source"], p.max(1)[ends[0]], atol=1e-5)
    assert (found["class_target"].to_numpy() == fitted.predict()[ends[1]]).all()
    assert fitted.clean(number=10).num_edges == len(found) - 10
    edges, nodes = graph.to_pandas()
    edges.to_csv(tmp_path / "edges.csv", index=False)
    nodes.to_csv(tmp_path / "nodes.csv")
    of_files = fitted.clean((tmp_path / "edges.csv", tmp_path / "nodes.csv"), number=10)
    assert of_files.edge_list().equals(fitted.clean(number=10).edge_list())
    assert of_files.feature_names == graph.feature_names
    left = fitted.clean(DATA, share=0.1)
    assert left.num_edges == DATA.num_edges - 2 * round(0.1 * len(found))
    false = NAMES[left.edge_index[0]] != NAMES[left.edge_index[1]]
    assert false.mean() < 0.1 < (NAMES[DATA.edge_index[0]] != NAMES[DATA.edge_index[1]]).mean()


def test_the_audit_sees_scaled_features_and_the_classes_of_the_fit() -> None:
    mixed = Data(x=DATA.x * SIZES + SHIFTS, edge_index=DATA.edge_index)
    clf = quick("gcn").fit(mixed, labels())
    again = named_graph(mixed, np.where(np.arange(NODES) == 0, "quince", NAMES))  # a class that is not known
    found = clf.audit(again, missing=0)
    at = clf.graph_.numbers(found.edges["source"].to_numpy())
    np.testing.assert_allclose(found.edges["confidence_source"], clf.predict_proba().max(1)[at], atol=1e-5)
    assert set(found.edges["class_source"]) == set(clf.classes_)
    assert found.graph.classes.tolist() == clf.classes_.tolist()
    assert (found.graph.labels()[1:] == NAMES[1:]).all()
    assert found.graph.labels()[0] is None


# --- the page -------------------------------------------------------------------------------------------------------


def test_blocks_of_the_page_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    seen = run_page(ROOT / "docs" / "estimator.md")
    clf, truth = seen["clf"], seen["data"].y.numpy()
    assert clf.classes_.tolist() == ["blue", "green", "red"]
    hidden = clf.predict()[clf.graph_.numbers(seen["people"][200:])]
    assert (hidden == np.array(["red", "green", "blue"])[truth[200:]]).mean() > 0.85


# --- what it says ---------------------------------------------------------------------------------------------------


def test_it_warns_when_the_edges_do_not_help() -> None:
    random = planted_graph(300, 3, 8, 2 / 3, features=Gaussian(10, 3.0), seed=2)
    with pytest.warns(StructureWarning, match="an MLP .* reaches"):
        quick("gcn").fit(random)
    clear = planted_graph(300, 3, 8, 0.0, features=Gaussian(10, 0.8), seed=2)
    quick("gcn").fit(clear)  # warnings are errors in tests


def test_verbose_compares_with_an_mlp_and_a_gcn(capsys: pytest.CaptureFixture[str]) -> None:
    quick("appnp", verbose=True).fit(DATA)
    printed = capsys.readouterr()
    assert "an MLP (features alone): " in printed.out
    assert "a GCN (the given edges): " in printed.out
    assert "the mean of 2 models: " in printed.out
    assert printed.err == ""  # not a terminal, so there is no bar


def test_progress_counts_to_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[tuple[int, int]] = []
    quick("gcn", budget=2, models=5, progress=lambda done, total: seen.append((done, total))).fit(DATA)
    done, totals = zip(*seen, strict=True)
    assert len(set(totals)) == 1
    assert sorted(done) == list(done)
    assert done[-1] == totals[-1]
    quick("gcn", models=1, progress=True).fit(DATA)
    assert "choosing settings" in capsys.readouterr().err


def test_the_budget_is_the_number_of_settings() -> None:
    assert len(quick("gcn", budget=3).fit(DATA).tuned_.tried.best()) == 3
    listed = quick("gcn", budget=[{"hidden_channels": 4}, {"hidden_channels": 8}], settings={"epochs": 20}).fit(DATA)
    assert {row.settings["hidden_channels"] for row in listed.tuned_.tried} == {4, 8}
    assert listed.settings_["hidden_channels"] in (4, 8)
    fixed = quick(settings={**SETTINGS, "num_layers": 3}).fit(DATA)
    assert fixed.settings_["num_layers"] == 3
    assert len(fixed.tuned_.tried) == 1


def test_a_large_graph_gets_a_short_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimator, "LARGE", 0)
    clf = RobustNodeClassifier(settings={"epochs": 4}, device="cpu").fit(DATA)
    tried = clf.tuned_.tried
    assert len(tried.best()) == 4
    assert all(row.settings.get("witness_floor", 1) == 1 for row in tried)
    assert any("large for a CPU" in note for note in clf.notes_)
    assert len(clf.tuned_.fits) == 3
    assert len(RobustNodeClassifier(budget=2, settings={"epochs": 4}).fit(DATA).tuned_.fits) == 5  # as asked


def test_the_ensemble_differs_in_seeds_alone(fitted: RobustNodeClassifier) -> None:
    assert [fit.config.seed for fit in fitted.tuned_.fits] == [0, 1, 2]
    more = quick("gcn", budget=2, models=5).fit(DATA)
    assert [fit.config.seed for fit in more.tuned_.fits] == [0, 1, 2, 3, 4]
    with pytest.raises(ConfigError, match="cannot be trained"):
        more.ensemble_.stacked_with([])
