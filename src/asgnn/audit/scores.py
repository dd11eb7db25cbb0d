"""Scores of edges by name; a higher score is more suspicious."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch_geometric.data import Data

from asgnn.audit.combine import learn
from asgnn.audit.evidence import Array, Evidence, adjacency_of, dots, single_edges
from asgnn.audit.views import ModelView
from asgnn.errors import ConfigError, GraphError
from asgnn.graphs.checks import validate
from asgnn.graphs.features import Features
from asgnn.graphs.low_rank import low_rank
from asgnn.graphs.neighbors import uninformative
from asgnn.graphs.similarity import pair_similarity
from asgnn.settings import check_choice

Score = Literal["combined", "weights", "disagreement", "cosine", "jaccard", "svd", "gnnguard"]
SCORES: tuple[Score, ...] = get_args(Score)
NEED_MODEL = ("weights", "disagreement")
RANK = 50
# GNNGuard drops edges below this cosine; its authors' value.
GUARD_THRESHOLD = 0.1


def edge_scores(
    data: Data,
    score: Score = "combined",
    model: nn.Module | None = None,
    *,
    temperature: float = 1.0,
    seed: int = 0,
) -> Array:
    r"""Return the suspicion of every undirected edge, (E,), in the order of :func:`single_edges`.

    - "combined": the estimated probability that the edge is false, from features, neighbourhoods and, if a model is
      given, its predictions and those of its witness; see :class:`~asgnn.audit.combine.Judge`;
    - "weights": 1 minus the weight after the last layer of a trained ASGNN;
    - "disagreement": :math:`1 - p_i \cdot p_j` of the model's probabilities;
    - "cosine", "jaccard": 1 minus that similarity of the features; Jaccard needs binary features;
    - "svd": 1 minus the edge's entry in the rank-50 approximation of the adjacency matrix;
    - "gnnguard": 1 minus the edge's weight in the first layer of GNNGuard: its cosine, if at least 0.1, divided by the
      sum of those of a node's edges, and averaged over both directions.

    Only "combined" is a probability. Time O(E · (degree · words + C)), memory O(NF + E); never N × N.

    Args:
        data: the graph, with x and edge_index; labels are not used.
        score: its name.
        model: a trained model or an :class:`~asgnn.models.Ensemble`; needed by "weights" and "disagreement".
        temperature: divides the model's scores, see ``temperature_`` of the estimator.
        seed: of the random pairs that "combined" compares the edges with.
    """
    check_choice("score", score, SCORES)
    validate(data, need_labels=False, sparse=True)
    if model is None and score in NEED_MODEL:
        raise ConfigError(f"score={score!r} needs a trained model; give one or choose another score.")
    edges = single_edges(data)
    view = None if model is None else ModelView(model, data, temperature)
    if score == "combined":
        evidence = combined_evidence(data, view)
        columns = evidence.columns(edges, joined=True)
        judge = learn(evidence, columns, seed=seed)
        return judge.suspicion(judge.log_ratio(columns))
    if score == "weights":
        assert view is not None
        weights = view.weights(edges)
        if weights is None or not len(weights):
            raise ConfigError('score="weights" needs a trained ASGNN with an adaptive structure and support="edges".')
        return 1 - weights[-1]
    if score == "disagreement":
        assert view is not None
        p = view.probabilities()
        return 1 - dots(p, p, *edges)
    return _simple(data, score, edges)


def combined_evidence(data: Data, view: ModelView | None) -> Evidence:
    """Return all that is known about pairs of nodes of a checked graph."""
    p, witness = (None, None) if view is None else (view.probabilities(), view.witness())
    return Evidence(Features.of(data.x.detach().cpu()), single_edges(data), p, witness)


def _simple(data: Data, score: Score, edges: NDArray[np.int64]) -> Array:
    features = Features.of(data.x.detach().cpu())
    if score == "svd":
        factors = low_rank(adjacency_of(data), RANK)
        left, right = (part.detach().cpu().numpy() for part in (factors.left, factors.right))
        return 1 - (dots(left, right, *edges) + dots(left, right, *edges[::-1])) / 2
    reason = uninformative(features)
    if reason is not None:
        raise GraphError(f"score={score!r} needs features. {reason}")
    metric: Literal["jaccard", "cosine"] = "jaccard" if score == "jaccard" else "cosine"
    row, col = torch.from_numpy(edges)
    found = pair_similarity(features, row, col, metric).numpy()
    found = np.where(np.isnan(found), 0.0, found)
    if score != "gnnguard":
        return 1 - found
    near = np.where(found < GUARD_THRESHOLD, 0.0, found)
    total = np.bincount(edges.reshape(-1), np.tile(near, 2), minlength=features.num_nodes)
    share = [np.divide(near, total[end], out=np.zeros_like(near), where=total[end] > 0) for end in edges]
    return 1 - (share[0] + share[1]) / 2
