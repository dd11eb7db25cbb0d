"""Purification of a graph, independent of the model that is trained on it."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch_geometric.data import Data

from asgnn.errors import ConfigError
from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.checks import validate
from asgnn.graphs.features import Features
from asgnn.graphs.keys import to_keys
from asgnn.graphs.low_rank import low_rank
from asgnn.graphs.similarity import edge_similarity
from asgnn.models.asgnn import ASGNN
from asgnn.settings import check_choice, check_number

Cleaner = Literal["jaccard", "svd", "asgnn"]
# Threshold, and whether scores become edge weights. "jaccard": DeepRobust's threshold. "svd": keep all but negligible
# scores. "asgnn": 0.5 without weights is better on Cora's validation nodes, clean and attacked, than the weights.
DEFAULTS: dict[Cleaner, tuple[float, bool]] = {"jaccard": (0.01, False), "svd": (1e-3, True), "asgnn": (0.5, False)}


def purify(
    data: Data,
    how: Cleaner = "jaccard",
    *,
    threshold: float | None = None,
    weighted: bool | None = None,
    rank: int = 50,
    model: ASGNN | None = None,
) -> Data:
    """Return a copy of the graph without the edges whose score is below a threshold.

    Every edge gets a score in [0, 1]; no edge is added:

    - "jaccard": the similarity of the features of its ends (:func:`~asgnn.graphs.similarity.edge_similarity`);
    - "svd": its entry in the rank-``rank`` approximation of the adjacency matrix, clipped to [0, 1]. Entries without
      an edge are dropped, unlike in ``GCNSVD``, so the graph stays sparse;
    - "asgnn": its weight after the last layer of a trained ASGNN.

    Args:
        data: x, edge_index and optionally edge_weight; other attributes are copied.
        how: the method that scores the edges.
        threshold: edges with a lower score are dropped; by default 0.01 for "jaccard", 0.001 for "svd" and 0.5 for
            "asgnn".
        weighted: whether the scores become the ``edge_weight`` of the remaining edges; by default for "svd" only.
            Otherwise a given ``edge_weight`` is kept.
        rank: the rank for "svd".
        model: the model for "asgnn", trained on this graph with edge support.

    Time O(E log E) plus the time of the scores.
    """
    check_choice("how", how, tuple(DEFAULTS))
    validate(data, need_labels=False)
    if (model is not None) != (how == "asgnn"):
        raise ConfigError('how="asgnn" needs a trained model, and no other method takes one.')
    threshold = DEFAULTS[how][0] if threshold is None else threshold
    weighted = DEFAULTS[how][1] if weighted is None else weighted
    check_number("threshold", threshold, 0, 1)
    features = Features.of(data.x)
    adj = Adjacency.of(data.edge_index, features.num_nodes, data.get("edge_weight"))
    if model is not None:
        score = _learned_weight(model, features, adj)
    else:
        score = edge_similarity(features, adj) if how == "jaccard" else low_rank(adj, rank).entries(adj)
    score = ((score + score[adj.reverse]) / 2).clamp(0, 1)  # the same decision for both directions of an edge
    by_edge = torch.empty(data.edge_index.size(1), dtype=data.x.dtype, device=score.device)
    # an adjacency is sorted and has self-loops; data.edge_index has any order and no self-loops
    by_edge[torch.argsort(to_keys(data.edge_index, features.num_nodes))] = score[~adj.loops].to(by_edge.dtype)
    out: Data = data.edge_subgraph(by_edge >= threshold)
    if weighted:
        out.edge_weight = by_edge[by_edge >= threshold]
    return out


def _learned_weight(model: ASGNN, features: Features, adj: Adjacency) -> Tensor:
    if model.stacked is not None or model.asmp.scheme.support == "dense":
        raise ConfigError('how="asgnn" needs a single ASGNN with support="edges".')
    return model.structure(features, adj).weights[-1]
