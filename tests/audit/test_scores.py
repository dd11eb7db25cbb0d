"""Scores of edges against dense references and on graphs whose false edges are known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from sklearn.metrics.pairwise import cosine_similarity
from torch_geometric.data import Data

from asgnn.audit import SCORES, edge_scores, single_edges
from asgnn.audit.combine import lowest_share
from asgnn.errors import AsgnnError, ConfigError, GraphError
from asgnn.graphs import to_scipy
from asgnn.models import ASGNN, Ensemble
from asgnn.training import predict, recipe
from tests.audit.problem import false_edges, permuted, planted, trained, untrained


def score(name: str, features: str) -> np.ndarray:
    return edge_scores(planted(features), name, trained(features))  # type: ignore[arg-type]


@pytest.mark.parametrize("features", ["words", "dense"])
def test_feature_scores_equal_dense_references(features: str) -> None:
    x = planted(features).x.double().numpy()
    row, col = single_edges(planted(features))
    cosine = cosine_similarity(x)
    np.testing.assert_allclose(edge_scores(planted(features), "cosine"), 1 - cosine[row, col], atol=1e-6)
    near = np.where(cosine < 0.1, 0, cosine) * to_scipy(planted(features)).toarray()
    total = near.sum(1, keepdims=True)
    share = near / np.where(total > 0, total, 1)
    expected = 1 - (share + share.T)[row, col] / 2
    np.testing.assert_allclose(edge_scores(planted(features), "gnnguard"), expected, atol=1e-6)
    if features == "words":
        both, either = x[row] * x[col], np.maximum(x[row], x[col])
        np.testing.assert_allclose(edge_scores(planted("words"), "jaccard"), 1 - both.sum(1) / either.sum(1), atol=1e-9)


def test_svd_score_equals_the_truncated_svd() -> None:
    row, col = single_edges(planted())
    u, s, vt = np.linalg.svd(to_scipy(planted()).toarray().astype(float))
    dense = (u[:, :50] * s[:50]) @ vt[:50]
    np.testing.assert_allclose(edge_scores(planted(), "svd"), 1 - dense[row, col], atol=1e-7)


def test_model_scores_equal_those_of_its_members() -> None:
    data, model = planted(), trained()
    row, col = single_edges(data)
    p = model(data.x, data.edge_index).detach().double().exp().numpy()
    np.testing.assert_allclose(edge_scores(data, "disagreement", model), 1 - (p[row] * p[col]).sum(1), atol=1e-6)
    (stack,) = model.members
    assert isinstance(stack, ASGNN)
    seen = stack.structure(data.x, data.edge_index)
    dense = np.zeros((2, 240, 240))
    dense[:, seen.edge_index[0], seen.edge_index[1]] = seen.weights[-1].numpy()
    expected = 1 - (dense[:, row, col] + dense[:, col, row]).mean(0) / 2
    np.testing.assert_allclose(edge_scores(data, "weights", model), expected, atol=1e-6)


def test_a_temperature_makes_predictions_more_equal() -> None:
    sharp, flat = (edge_scores(planted(), "disagreement", trained(), temperature=t) for t in (1.0, 1e6))
    np.testing.assert_allclose(flat, 2 / 3, atol=1e-4)
    assert sharp.std() > 0.05


# The worst that each score may do; chance is 0.5. The SVD of rank 50 knows nothing of a graph of 240 nodes.
LEAST_AUC = {
    "combined": {"dense": 0.95, "words": 0.95, "none": 0.65},
    "weights": {"dense": 0.85, "words": 0.9},
    "disagreement": {"dense": 0.9, "words": 0.9},
    "cosine": {"dense": 0.75, "words": 0.62},
    "jaccard": {"words": 0.62},
    "gnnguard": {"dense": 0.68, "words": 0.62},
}


@pytest.mark.parametrize(("name", "features"), [(n, f) for n, kinds in LEAST_AUC.items() for f in kinds])
def test_planted_false_edges_are_found(name: str, features: str) -> None:
    found = roc_auc_score(false_edges(features), score(name, features))
    assert found > LEAST_AUC[name][features]


@pytest.mark.parametrize("features", ["words", "dense"])
def test_the_combined_score_is_no_worse_than_the_best_other(features: str) -> None:
    false = false_edges(features)
    others = [name for name, kinds in LEAST_AUC.items() if features in kinds and name != "combined"]
    best = max(roc_auc_score(false, score(name, features)) for name in others)
    assert roc_auc_score(false, score("combined", features)) >= best - 0.01


def test_suspicion_is_a_probability() -> None:
    found = score("combined", "dense")
    assert (found >= 0).all()
    assert (found <= 1).all()
    assert found.sum() == pytest.approx(false_edges().sum(), rel=0.35)


@pytest.mark.parametrize("name", SCORES)
def test_scores_do_not_depend_on_the_order_of_edges(name: str) -> None:
    data = planted("words")
    shuffled = Data(x=data.x, edge_index=data.edge_index[:, torch.randperm(data.num_edges)])
    found = edge_scores(shuffled, name, trained("words"))
    np.testing.assert_allclose(found, score(name, "words"), atol=1e-6)


@pytest.mark.parametrize("name", SCORES)
def test_scores_follow_the_nodes(name: str) -> None:
    """Other numbers of the nodes give the same scores; the combined one also depends on which pairs are drawn."""
    # Without a witness, whose nearest neighbours depend on the order of nodes where there are ties.
    model = trained("words", witness=False)
    data, order = planted("words"), torch.randperm(240, generator=torch.Generator().manual_seed(1))
    other = permuted(data, order)
    found, before = edge_scores(other, name, model), edge_scores(data, name, model)
    where = {tuple(edge): at for at, edge in enumerate(single_edges(other).T.tolist())}
    new = np.sort(order.numpy()[single_edges(data)], axis=0).T.tolist()
    found = found[[where[tuple(edge)] for edge in new]]
    if name == "combined":
        assert np.corrcoef(found.argsort().argsort(), before.argsort().argsort())[0, 1] > 0.9
    else:
        np.testing.assert_allclose(found, before, atol=1e-4)


def test_the_combined_score_needs_no_model_and_takes_any() -> None:
    data = planted("words")
    alone = edge_scores(data, "combined")
    assert roc_auc_score(false_edges("words"), alone) > 0.8
    gcn = untrained(data)
    assert edge_scores(data, "combined", gcn).shape == alone.shape
    assert predict(gcn, data).shape == (240,)


def test_lowest_share_reads_off_the_share_of_false_edges() -> None:
    rng = np.random.default_rng(0)
    random = rng.normal(0, 1, 30_000)
    given = np.concatenate([rng.normal(0, 1, 3_000), rng.normal(6, 1, 7_000)])
    assert lowest_share(given, random) == pytest.approx(0.3, abs=0.03)


BAD = {
    "name": (ConfigError, "score must be one of combined, weights", lambda: edge_scores(planted(), "pca")),  # type: ignore[arg-type]
    "no model": (ConfigError, "'weights' needs a trained model", lambda: edge_scores(planted(), "weights")),
    "no weights": (
        ConfigError,
        "needs a trained ASGNN",
        lambda: edge_scores(planted(), "weights", untrained(planted())),
    ),
    "no structure": (
        ConfigError,
        "needs a trained ASGNN",
        lambda: edge_scores(planted(), "weights", _frozen()),
    ),
    "not binary": (ConfigError, "needs features that are 0 or 1", lambda: edge_scores(planted(), "jaccard")),
    "no features": (GraphError, "No two nodes share a feature", lambda: edge_scores(planted("none"), "cosine")),
    "no module": (ConfigError, "must be a trained model", lambda: edge_scores(planted(), model=3)),  # type: ignore[arg-type]
    "temperature": (
        ConfigError,
        "temperature must be",
        lambda: edge_scores(planted(), "disagreement", trained(), temperature=0),
    ),
}


def _frozen() -> Ensemble:
    from asgnn.graphs import random_split

    one = recipe("asgnn", structure="frozen").trial(planted(), random_split(planted(), 0), 0)
    return Ensemble([one.model])


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_a_sentence(case: str) -> None:
    kind, message, call = BAD[case]
    with pytest.raises(kind, match=message) as found:
        call()
    assert issubclass(kind, AsgnnError)
    assert str(found.value).endswith(".")
