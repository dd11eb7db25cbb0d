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
    """One score over all graphs that are judged.

    Attributes:
        graphs: on how many graphs it was measured.
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
    """The record and what it says.

    Attributes:
        judged: which graphs the summary is about, in words.
        published: ROC-AUC that others report, for other attacked graphs of the same datasets.
    """

    rows: Rows
    judged: str
    scores: tuple[ScoreSummary, ...]
    published: Mapping[Place, float]
    published_label: str
    findings: tuple[str, ...]


def edge_finding(rows: Rows) -> EdgeFinding:
    """The record in the order of its rows; scores in the order of their mean ROC-AUC.

    Graphs that took part in the design of a score do not count in the summary, unless there are no others.
    """
    known = [row for row in rows if row["auc"] is not None]
    others = [row for row in known if not row["design"]]
    counted = others or known
    judged = "attacked graphs" if len(counted) == len(known) else "attacked graphs that no score was designed on"
    best: dict[Place, float] = {}
    for row in counted:
        best[_place(row)] = max(row["auc"], best.get(_place(row), 0.0))
    of_score: dict[str, list[dict[str, Any]]] = {}
    for row in counted:
        of_score.setdefault(row["score"], []).append(row)
    scores = sorted(
        (_summary(score, found, best) for score, found in of_score.items()), key=lambda one: -(one.means["auc"] or 0.0)
    )
    label, published = _published([_place(row) for row in known])
    findings = _findings(judged, scores, of_score.get(COMBINED, []), best, published)
    return EdgeFinding(rows, judged, tuple(scores), published, label, tuple(findings))


def _published(places: Sequence[Place]) -> tuple[str, dict[Place, float]]:
    found = read_toml("published")["edges"]
    label = found.pop("label")
    known = {
        (graph, attack, float(rate)): auc
        for attack, graphs in found.items()
        for graph, rates in graphs.items()
        for rate, auc in rates.items()
    }
    return label, {place: known[_plain(place)] for place in places if _plain(place) in known}


def _summary(score: str, rows: Sequence[Mapping[str, Any]], best: Mapping[Place, float]) -> ScoreSummary:
    values = {name: [row[name] for row in rows if row[name] is not None] for name in MEASURES}
    return ScoreSummary(
        score=score,
        graphs=len(rows),
        close=sum(_is_close(row, best) for row in rows),
        worst=min(values["auc"]),
        means={name: fmean(found) if found else None for name, found in values.items()},
    )


def _findings(
    judged: str,
    scores: Sequence[ScoreSummary],
    rows: Sequence[Mapping[str, Any]],
    best: Mapping[Place, float],
    published: Mapping[Place, float],
) -> Iterator[str]:
    """About the combined score, which has these rows."""
    combined = next((one for one in scores if one.score == COMBINED), None)
    if combined is None:
        return
    single = max((one for one in scores if one is not combined), key=lambda one: one.close, default=None)
    yield (
        f"The combined score has the best ROC-AUC, or is within {CLOSE:g} of it, on {combined.close} of "
        f"{combined.graphs} {judged}"
        + (f"; of the single scores, {single.score} does so most often, on {single.close}." if single else ".")
    )
    far = [row for row in rows if not _is_close(row, best)]
    if far:
        row = max(far, key=lambda row: best[_place(row)] - row["auc"])
        flips = f" at {rate_text(row['rate'])}" if row["rate"] else ""
        yield (
            f"It is farthest from the best on {row['graph']} under {row['attack']}{flips}: "
            f"{row['auc']:.3f} against {best[_place(row)]:.3f}."
        )
    pairs = [(row["auc"], published[_place(row)]) for row in rows if _place(row) in published]
    if pairs:
        above = sum(ours >= theirs for ours, theirs in pairs)
        yield (
            f"It is at or above the figures of LEO, for other attacked graphs of the same datasets, in {above} of "
            f"{len(pairs)} cases."
        )


def _is_close(row: Mapping[str, Any], best: Mapping[Place, float]) -> bool:
    return bool(row["auc"] >= best[_place(row)] - CLOSE - 1e-9)


def _plain(place: Place) -> Place:
    """With names as in the file of published figures: cora_ml for Cora-ML."""
    graph, attack, rate = place
    return graph.lower().replace("-", "_"), attack.lower(), rate


def _place(row: Mapping[str, Any]) -> Place:
    return row["graph"], row["attack"], row["rate"]
