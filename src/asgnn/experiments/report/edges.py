"""How well scores find the edges that an attack added, from the record of that name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from asgnn.experiments.records import Rows
from asgnn.experiments.report.text import rate_text
from asgnn.experiments.spec import read_toml

COMBINED = "combined"  # the score that the package recommends
CLOSE = 0.01  # of the best ROC-AUC
MEASURES = {
    "auc": "ROC-AUC",
    "precision_1": "precision at 1 %",
    "precision_5": "precision at 5 %",
    "precision_10": "precision at 10 %",
}

Place = tuple[str, str, float]  # graph, attack, rate


@dataclass(frozen=True)
class ScoreSummary:
    """One score over all attacked graphs.

    Attributes:
        graphs: on how many attacked graphs it was measured.
        close: on how many of them its ROC-AUC is the best or at most ``CLOSE`` below.
        worst: its lowest ROC-AUC.
        means: measure → mean over the graphs; ``None`` without values.
    """

    score: str
    graphs: int
    close: int
    worst: float
    means: Mapping[str, float | None]


@dataclass(frozen=True)
class EdgeFinding:
    """``published`` has the ROC-AUC that others report, on other attacked graphs of the same datasets."""

    rows: Rows
    scores: tuple[ScoreSummary, ...]
    published: Mapping[Place, float]
    published_label: str
    findings: tuple[str, ...]


def edge_finding(rows: Rows) -> EdgeFinding:
    """The record in the order of its rows; scores in the order of their mean ROC-AUC."""
    of_score: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if row["auc"] is not None:
            of_score.setdefault(row["score"], []).append(row)
    best: dict[Place, float] = {}
    for row in (row for found in of_score.values() for row in found):
        best[_place(row)] = max(row["auc"], best.get(_place(row), 0.0))
    scores = sorted(
        (_summary(score, found, best) for score, found in of_score.items()), key=lambda one: -(one.means["auc"] or 0.0)
    )
    others = read_toml("published")["edges"]
    label = others.pop("label")
    published = {
        (graph, attack, float(rate)): auc
        for attack, graphs in others.items()
        for graph, rates in graphs.items()
        for rate, auc in rates.items()
    }
    known = {place: published[_plain(place)] for place in best if _plain(place) in published}
    return EdgeFinding(rows, tuple(scores), known, label, tuple(_findings(scores, of_score, best, known)))


def _summary(score: str, rows: Sequence[Mapping[str, Any]], best: Mapping[Place, float]) -> ScoreSummary:
    values = {name: [row[name] for row in rows if row[name] is not None] for name in MEASURES}
    return ScoreSummary(
        score=score,
        graphs=len(rows),
        close=sum(row["auc"] >= best[_place(row)] - CLOSE - 1e-9 for row in rows),
        worst=min(values["auc"]),
        means={name: fmean(found) if found else None for name, found in values.items()},
    )


def _findings(
    scores: Sequence[ScoreSummary],
    of_score: Mapping[str, Sequence[Mapping[str, Any]]],
    best: Mapping[Place, float],
    published: Mapping[Place, float],
) -> Iterator[str]:
    combined = next((one for one in scores if one.score == COMBINED), None)
    single = max((one for one in scores if one.score != COMBINED), key=lambda one: one.close, default=None)
    if combined is None:
        return
    yield (
        f"The combined score has the best ROC-AUC, or is within {CLOSE:g} of it, on {combined.close} of "
        f"{combined.graphs} attacked graphs"
        + (f"; of the single scores, {single.score} comes closest, with {single.close}." if single else ".")
    )
    far = [row for row in of_score[COMBINED] if row["auc"] < best[_place(row)] - CLOSE - 1e-9]
    if far:
        row = max(far, key=lambda row: best[_place(row)] - row["auc"])
        yield (
            f"It is farthest from the best on {row['graph']} under {row['attack']} at {rate_text(row['rate'])}: "
            f"{row['auc']:.3f} against {best[_place(row)]:.3f}."
        )
    pairs = [(row["auc"], published[_place(row)]) for row in of_score[COMBINED] if _place(row) in published]
    if pairs:
        above = sum(ours >= theirs for ours, theirs in pairs)
        yield (
            f"It is at or above the figures of LEO, for other attacked graphs of the same datasets, in {above} of "
            f"{len(pairs)} cases."
        )


def _plain(place: Place) -> Place:
    """With names as in the file of published figures: cora_ml for Cora-ML."""
    graph, attack, rate = place
    return graph.lower().replace("-", "_"), attack.lower(), rate


def _place(row: Mapping[str, Any]) -> Place:
    return row["graph"], row["attack"], row["rate"]
