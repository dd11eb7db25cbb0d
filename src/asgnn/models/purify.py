"""A graph without the edges that a cleaner doubts, for any model to be trained on."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch_geometric.data import Data

from asgnn.asmp.params import one_of
from asgnn.errors import ConfigError
from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.checks import validate
from asgnn.graphs.features import Features
from asgnn.graphs.keys import to_keys
from asgnn.graphs.low_rank import low_rank
from asgnn.graphs.similarity import edge_similarity
from asgnn.models.asgnn import ASGNN
from asgnn.settings import check_number

Cleaner = Literal["jaccard", "svd", "asgnn"]
# Threshold, and whether the scores stay as weights. DeepRobust's for Jaccard; half for ASGNN, better on the validation
# nodes of Cora, clean and attacked, than its weights themselves; for SVD all that is left of the edge.
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
    """The graph with the edges left out that score below a threshold; ``data`` itself stays as it is.

    Every given edge gets a score in [0, 1], and no edge is added:

    - "jaccard": how alike the features of its ends are (:func:`~asgnn.graphs.similarity.edge_similarity`);
    - "svd": its entry in the approximation of rank ``rank`` to the adjacency matrix, cut to [0, 1]. What the
      approximation puts where there is no edge is left out, unlike in ``GCNSVD``: the graph stays sparse;
    - "asgnn": the weight that a trained ASGNN gives it after its last layer.

    Args:
        data: x, edge_index and, if there are any, edge_weight; all other attributes are carried over.
        how: the cleaner.
        threshold: edges that score less are dropped; by default 0.01 for "jaccard", 0.001 for "svd" and 0.5 for
            "asgnn".
        weighted: whether those that stay carry their scores as ``edge_weight``, by default for "svd" only. Otherwise
            a given ``edge_weight`` is kept.
        rank: of "svd".
        model: of "asgnn", trained on this graph, with its structure on the given edges.

    Time O(E log E), and that of the cleaner.
    """
    one_of("how", how, tuple(DEFAULTS))
    validate(data, need_labels=False)
    if (model is not None) != (how == "asgnn"):
        raise ConfigError('how="asgnn" needs a trained model, and no other cleaner takes one.')
    threshold = DEFAULTS[how][0] if threshold is None else threshold
    weighted = DEFAULTS[how][1] if weighted is None else weighted
    check_number("threshold", threshold, 0, 1)
    features = Features.of(data.x)
    adj = Adjacency.of(data.edge_index, features.num_nodes, data.get("edge_weight"))
    if model is not None:
        score = _learned(model, features, adj)
    else:
        score = edge_similarity(features, adj) if how == "jaccard" else low_rank(adj, rank).entries(adj)
    score = ((score + score[adj.reverse]) / 2).clamp(0, 1)  # an edge stays or goes in both directions
    given = torch.empty(data.edge_index.size(1), dtype=data.x.dtype, device=score.device)
    # An adjacency is sorted and has self-loops, the given edges are in any order and have none.
    given[torch.argsort(to_keys(data.edge_index, features.num_nodes))] = score[~adj.loops].to(given.dtype)
    out: Data = data.edge_subgraph(given >= threshold)
    if weighted:
        out.edge_weight = given[given >= threshold]
    return out


def _learned(model: ASGNN, features: Features, adj: Adjacency) -> Tensor:
    if model.stacked is not None or model.asmp.scheme.support == "dense":
        raise ConfigError("Only a single ASGNN whose structure is on the given edges can say what these are worth.")
    return model.structure(features, adj).weights[-1]
