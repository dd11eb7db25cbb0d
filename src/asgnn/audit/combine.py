"""The combined score: learned by telling the given edges from random pairs of nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asgnn.audit.evidence import Array, Evidence
from asgnn.errors import GraphError

# Given edges and random pairs that are learned from; more are sampled down.
MOST_EDGES = 200_000
# The share of false edges is read off where at least this share of the random pairs lies: in the tail beyond, attackers
# place few edges, so that a smaller share would underestimate them (chosen on the graphs that docs/audit.md names).
LEAST_PAIRS = 0.5
# Draws of pairs from which those of different predicted classes are taken.
DRAWS = 4


@dataclass(frozen=True, eq=False)
class Judge:
    r"""Estimates the probability that an edge is false from the evidence about its two nodes.

    False edges are assumed to look like random pairs of nodes (:func:`random_pairs`). If a share π of the given edges
    is false, an edge with evidence x is false with probability

    .. math:: P(\mathrm{false} \mid x) = \pi \, \frac{f_\mathrm{random}(x)}{f_\mathrm{given}(x)}

    A classifier that tells given edges from random pairs estimates the ratio of the densities; no edge is labelled. It
    is a boosted ensemble of small trees, monotone in every input: more evidence for an edge never makes it more
    suspicious. An input that says nothing about edges gets no split.

    Attributes:
        names: of the inputs.
        classifier: given edge (1) against random pair (0), both of equal total weight.
        false_share: π, see :func:`lowest_share`.
    """

    names: tuple[str, ...]
    classifier: Any
    false_share: float

    def log_ratio(self, columns: Mapping[str, Array]) -> Array:
        r"""Return :math:`\log f_\mathrm{given} / f_\mathrm{random}` of pairs with these inputs."""
        inputs = np.stack([columns[name] for name in self.names], axis=1)
        found: Array = self.classifier.decision_function(inputs) if len(inputs) else np.empty(0)
        return found

    def suspicion(self, log_ratio: Array) -> Array:
        """Return the estimated probability that given edges with these log-ratios are false."""
        found: Array = np.minimum(self.false_share * np.exp(-log_ratio), 1.0)
        return found

    def plausibility(self, evidence: Evidence, pairs: NDArray[np.int64]) -> Array:
        r"""Return the estimated probability that pairs (2, P), which are not joined, would be joined.

        Among random pairs whose ends are drawn by degree, i and j are expected to share :math:`d_i d_j / 2E` edges;
        the evidence multiplies this.
        """
        degree = np.maximum(evidence.degree, 1)
        expected = degree[pairs[0]] * degree[pairs[1]] / max(2 * evidence.edges.shape[1], 1)
        odds = expected * np.exp(self.log_ratio(evidence.columns(pairs, joined=False)))
        found: Array = odds / (1 + odds)
        return found


def learn(evidence: Evidence, columns: Mapping[str, Array], *, seed: int = 0) -> Judge:
    """Return a judge that learned from all given edges, whose inputs are ``columns``, and from random pairs.

    Time O(E log E) with at most 200,000 edges and three times as many pairs.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier

    names = tuple(columns)
    if evidence.edges.shape[1] == 0:
        raise GraphError("The graph has no edges, so there is nothing to audit.")
    rng = np.random.default_rng(seed)
    given = np.stack([columns[name] for name in names], axis=1)
    if given.shape[0] > MOST_EDGES:
        given = given[rng.choice(given.shape[0], MOST_EDGES, replace=False)]
    random = random_pairs(evidence, given.shape[0], rng)
    apart = evidence.columns(random, joined=False)
    absent = np.stack([apart[name] for name in names], axis=1)
    target = np.repeat([1, 0], [given.shape[0], absent.shape[0]])
    classifier = HistGradientBoostingClassifier(
        max_iter=100,
        learning_rate=0.1,
        max_depth=3,
        min_samples_leaf=20,
        monotonic_cst=[1] * len(names),
        class_weight="balanced",
        early_stopping=False,
        random_state=seed,
    ).fit(np.concatenate([given, absent]), target)
    share = lowest_share(classifier.decision_function(given), classifier.decision_function(absent))
    return Judge(names, classifier, share)


def random_pairs(evidence: Evidence, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return up to 3 ``count`` random pairs (2, P) of different nodes that are not joined.

    One third has ends that are drawn like ends of edges, so that degrees alone do not tell the two apart; one third has
    ends that are drawn like nodes; and one third is like the first, but of different predicted classes, because false
    edges join classes more often than random ones. Without predictions, or without features, when predictions know
    nothing but the edges, there is no such third.
    """
    ends, n = evidence.edges.reshape(-1), evidence.features.num_nodes
    drawn = [ends[rng.integers(max(ends.size, 1), size=(2, count))], rng.integers(n, size=(2, count))]
    if evidence.probabilities is not None and evidence.informative:
        predicted = evidence.probabilities.argmax(axis=1)
        more = ends[rng.integers(max(ends.size, 1), size=(2, DRAWS * count))]
        drawn.append(more[:, predicted[more[0]] != predicted[more[1]]][:, :count])
    pairs: NDArray[np.int64] = np.concatenate(drawn, axis=1)
    keys = np.minimum(*pairs) * n + np.maximum(*pairs)
    return pairs[:, (pairs[0] != pairs[1]) & ~np.isin(keys, evidence.edges[0] * n + evidence.edges[1])]


def lowest_share(given: Array, random: Array) -> float:
    """Return the least ratio of the shares of given and of random pairs up to any score above the random pairs' median.

    Where no true edge lies, the density of the given edges is π times that of the random pairs.
    """
    levels = np.quantile(random, np.linspace(LEAST_PAIRS, 1, 51))
    below_given = np.searchsorted(np.sort(given), levels, side="right") / max(given.size, 1)
    below_random = np.searchsorted(np.sort(random), levels, side="right") / max(random.size, 1)
    return float(np.clip((below_given / below_random).min(initial=1.0), 0.0, 1.0))
