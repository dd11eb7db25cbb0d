"""The audit of a graph: every edge with its suspicion, and missing edges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from asgnn.audit.combine import Judge, learn
from asgnn.audit.evidence import Array, Evidence, dots, single_edges
from asgnn.audit.missing import candidates
from asgnn.audit.scores import SCORES, Score, combined_evidence, edge_scores
from asgnn.audit.views import ModelView
from asgnn.graphs.checks import validate
from asgnn.graphs.named import NamedGraph, named_graph
from asgnn.graphs.similarity import pair_similarity
from asgnn.settings import check_choice, check_count

if TYPE_CHECKING:
    import pandas as pd

MISSING = 1000


@dataclass(frozen=True, eq=False)
class Audit:
    """What is suspicious about the edges of a graph.

    Attributes:
        edges: one row for each undirected edge, in the order of ``graph.edge_list()``:

            - ``source``, ``target``: the ids of its ends;
            - ``suspicion``: the estimated probability that it is false, in [0, 1]; for other scores than "combined"
              that score, higher is more suspicious;
            - ``rank``: 1 for the most suspicious edge;
            - ``similarity``: of the features, NaN if unknown;
            - ``agreement``: the probability that both ends are of one class, p_i · p_j;
            - ``weight_1`` … ``weight_K``: the mean weight of the models after each layer, if they learn a structure;
            - ``class_source``, ``class_target``, ``confidence_source``, ``confidence_target``: what the model predicts.
        missing: pairs that are not joined and look most like edges, best first: ``source``, ``target``,
            ``plausibility`` (the estimated probability that such a pair is joined), ``rank`` and the columns above.
        graph: the audited graph.
        notes: sentences for the reader.
        score: what the edges are ranked by; suspicion is a probability for "combined" only.
    """

    edges: pd.DataFrame
    missing: pd.DataFrame
    graph: NamedGraph
    notes: tuple[str, ...] = ()
    score: str = "combined"


def audit_graph(
    graph: Any,
    model: nn.Module,
    *,
    temperature: float = 1.0,
    missing: int = MISSING,
    score: Score = "combined",
    seed: int = 0,
) -> Audit:
    """Return the audit of a graph by a trained model.

    Args:
        graph: a :class:`~asgnn.graphs.NamedGraph` or anything that :func:`~asgnn.graphs.named_graph` takes.
        model: a trained model or an :class:`~asgnn.models.Ensemble` of some.
        temperature: divides the model's scores before the softmax, so that its probabilities are calibrated.
        missing: the largest number of missing edges to report.
        score: what the edges are ranked by; see :func:`~asgnn.audit.edge_scores`.
        seed: of the random pairs that edges are compared with.

    Time O(E · (degree · words + C)) plus the search of nearest neighbours, memory O(NF + E); never N × N.
    """
    check_choice("score", score, SCORES)
    check_count("missing", missing, 0)
    named = named_graph(graph)
    data = named.data
    validate(data, need_labels=False, sparse=True)
    view = ModelView(model, data, temperature)
    evidence = combined_evidence(data, view)
    edges = single_edges(data)
    columns = evidence.columns(edges, joined=True)
    judge = learn(evidence, columns, seed=seed)
    log_ratio = judge.log_ratio(columns)
    suspicious, rank = judge.suspicion(log_ratio), ranks(-log_ratio)  # also among edges of suspicion 1
    notes = [_share_note(judge)] if score == "combined" else [f"Edges are ranked by the score {score!r}."]
    if not evidence.informative:
        notes.append("The features say nothing about pairs of nodes, so edges are judged by the graph alone.")
    if score != "combined":
        suspicious = edge_scores(data, score, model, temperature=temperature, seed=seed)
        rank = ranks(suspicious)
    table = {"suspicion": suspicious, "rank": rank}
    found, more = _missing(evidence, judge, missing, seed)
    weights = view.weights(edges)
    layers = {} if weights is None else {f"weight_{k}": w.astype(np.float32) for k, w in enumerate(weights, 1)}
    return Audit(
        _frame(named, evidence, edges, table, layers),
        _frame(named, evidence, found["pairs"], {"plausibility": found["plausibility"], "rank": found["rank"]}, {}),
        named,
        (*notes, *more),
        score,
    )


def ranks(suspicious: Array) -> NDArray[np.int64]:
    """Return 1 for the highest score, 2 for the next; equal scores keep their order."""
    found = np.empty(suspicious.size, dtype=np.int64)
    found[np.argsort(-suspicious, kind="stable")] = np.arange(1, suspicious.size + 1)
    return found


def _share_note(judge: Judge) -> str:
    return f"About {judge.false_share:.1%} of the edges look like pairs of random nodes."


def _missing(evidence: Evidence, judge: Judge, most: int, seed: int) -> tuple[dict[str, Array], tuple[str, ...]]:
    pairs, notes = candidates(evidence, seed) if most else (np.empty((2, 0), dtype=np.int64), ())
    plausible = judge.plausibility(evidence, pairs) if pairs.size else np.empty(0)
    best = np.argsort(-plausible, kind="stable")[:most]
    rank = np.arange(1, best.size + 1)
    return {"pairs": pairs[:, best], "plausibility": plausible[best], "rank": rank}, notes


def _frame(
    named: NamedGraph, evidence: Evidence, pairs: NDArray[np.int64], table: dict[str, Array], layers: dict[str, Array]
) -> pd.DataFrame:
    import pandas as pd

    row, col = pairs
    p = evidence.probabilities
    assert p is not None
    named_classes = _class_names(named, p.shape[1])
    found: dict[str, Any] = {"source": named.ids[row], "target": named.ids[col], **table}
    found["similarity"] = (
        pair_similarity(evidence.features, *torch.from_numpy(pairs)).numpy()
        if evidence.informative
        else np.full(row.size, np.nan)
    )
    found["agreement"] = dots(p, p, row, col)
    found |= layers
    predicted, confidence = p.argmax(axis=1), p.max(axis=1)
    for end, nodes in (("source", row), ("target", col)):
        found[f"class_{end}"] = named_classes[predicted[nodes]]
    for end, nodes in (("source", row), ("target", col)):
        found[f"confidence_{end}"] = confidence[nodes]
    return pd.DataFrame(found)


def _class_names(named: NamedGraph, count: int) -> NDArray[Any]:
    """Return the names of the classes, or their numbers if the model has others than the graph."""
    if len(named.classes) == count:
        return named.classes
    return np.arange(count)
