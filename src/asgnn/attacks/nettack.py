"""Nettack: the flips that most lower the margin of one node after another under a linear surrogate."""

from __future__ import annotations

from numbers import Integral
from typing import TypeAlias

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch_geometric.data import Data

from asgnn.attacks.checkpoint import Checkpoint
from asgnn.attacks.degrees import DegreeTest
from asgnn.attacks.linear import fit_linear, linear_logits
from asgnn.attacks.rules import check_labelled, check_task, degrees, finish
from asgnn.errors import ConfigError, GraphError
from asgnn.graphs import Perturbation, labels_of
from asgnn.graphs.features import Features
from asgnn.progress import Progress

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]
EDGE, FEATURE = 0, 1
# After 200 epochs the surrogate fits the labels of train so closely that the flips carry over less to other models.
# Chosen of 10, 20, 50, 100 and 200 by the harm to GCN on validation nodes of Cora and Citeseer.
EPOCHS = 50


def nettack(
    data: Data,
    per_target: int,
    train: Tensor,
    targets: Tensor,
    rng: torch.Generator,
    *,
    structure: bool = True,
    features: bool = False,
    direct: bool = True,
    influencers: int = 5,
    degree_test: bool = True,
    cooccurrence: bool = True,
    allow_isolated: bool = False,
    checkpoint: Checkpoint | None = None,
    progress: Progress | None = None,
) -> Perturbation:
    r"""Attack single nodes through a linear surrogate (Zügner, Akbarnejad and Günnemann, KDD 2018, Alg. 1).

    Threat model: targeted, poisoning or evasion; the attacker knows the graph, the features, the labels of ``train``
    and the true classes of the targets, and no model. Edges, binary features or both may be changed, at the targets
    themselves (``direct``) or only at some of their neighbours.

    The surrogate has the logits :math:`\hat A^2 X W` (:func:`~asgnn.attacks.linear.fit_linear`) and is trained once, on
    the clean graph and for 50 epochs. Each flip is, of all allowed ones, the one after which the target's margin is
    lowest: the logit of its class less the highest other. Margins are exact for every candidate. The targets are
    attacked in the given order into one graph, and no pair is flipped twice, so that no target's flip undoes another's.

    Not in the paper, which attacks one node: the degree test compares with the graph as it was before the target's own
    flips, since one threshold for all targets together would stop the attack after a few of them. The influencers are
    the neighbours whose best single flip lowers the margin most, at equal margins the lower number.

    Args:
        data: the clean graph, with labels.
        per_target: flips for each target; the budget ``per_target × len(targets)`` is met exactly.
        train: the nodes whose labels the attacker knows, as numbers or a mask.
        targets: the attacked nodes, in the order in which they are attacked.
        rng: a CPU generator; equal states give equal flips.
        structure: whether edges may be flipped.
        features: whether features may be flipped; they must be 0 or 1.
        direct: whether the flips are at the target; else they are at its influencers, and none touches the target.
        influencers: how many neighbours serve as influencers, at most.
        degree_test: hold to :class:`~asgnn.attacks.degrees.DegreeTest`.
        cooccurrence: add only features that occur together with those a node has.
        allow_isolated: whether a removal may leave a node without an edge.
        checkpoint: where the state is kept after each target.
        progress: called with the flips made and the flips in all, after each target.

    With C classes, time O(budget · (N + F) C) and as much again for each influencer and, once a target, each
    neighbour; memory O(N C + E).
    """
    if not structure and not features:
        raise ConfigError("Nettack flips edges or features, and both are switched off.")
    for value, name in ((per_target, "per_target"), (influencers, "influencers")):
        if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
            raise ConfigError(f"{name} must be a whole number from 1; it is {value}.")
    edges = check_task(data, per_target)
    train = check_labelled(train, data)
    targets = _check_targets(targets, int(data.num_nodes))
    if features and not bool(((data.x == 0) | (data.x == 1)).all()):
        raise GraphError("Only features that are 0 or 1 can be flipped, and x has others; set features=False.")

    state = None if checkpoint is None else checkpoint.load()
    weight = fit_linear(data, train, rng, epochs=EPOCHS) if state is None else state["weight"]
    graph = Surrogate(data, edges, weight)
    rules = _Rules(graph, cooccurrence=features and cooccurrence, allow_isolated=allow_isolated)
    made: list[tuple[int, int, int]] = []
    if state is not None:
        # made again in their order, so that every sum is rounded as in the run that was stopped
        for kind, i, j in state["made"].tolist():
            rules.make(kind, i, j)
            made.append((kind, i, j))
    budget = int(per_target) * targets.numel()
    y = labels_of(data).cpu()
    if bool((y[targets] < 0).any()):  # the attacker's own prediction stands in for a label that is missing
        y = torch.where(y < 0, linear_logits(data, weight).argmax(1), y)
    for target in targets[len(made) // int(per_target) :].tolist():
        rules.degree_test = DegreeTest(torch.from_numpy(graph.degree)) if degree_test else None
        aim = _Aim(graph, rules, target, int(y[target]), structure=structure, features=features)
        places = [target] if direct else aim.influencers(int(influencers))
        for _ in range(int(per_target)):
            best = min(aim.best(places), default=None)
            if best is None or best[0] == np.inf:
                left = budget - len(made)
                raise GraphError(
                    f"Nettack finds no flip it may make for target {target}, with {left} of {budget} flips to make; "
                    "lower per_target or lift a constraint."
                )
            made.append(best[1:])
            rules.make(*best[1:])
        if checkpoint is not None:
            checkpoint.save({"weight": weight, "made": torch.tensor(made)})
        if progress is not None:
            progress(len(made), budget)

    flips, feature_flips = (
        torch.tensor([one[1:] for one in made if one[0] == kind], dtype=torch.int64).reshape(-1, 2).t()
        for kind in (EDGE, FEATURE)
    )
    return finish(
        data,
        flips,
        budget,
        allow_isolated=allow_isolated,
        targets=targets,
        feature_flips=feature_flips if features else None,
        meta={
            "attack": "nettack",
            "per_target": per_target,
            "structure": structure,
            "features": features,
            "direct": direct,
            "influencers": influencers,
            "degree_test": degree_test,
            "cooccurrence": cooccurrence,
            "allow_isolated": allow_isolated,
        },
    )


def nettack_targets(data: Data, candidates: Tensor, min_degree: int = 10) -> Tensor:
    """The candidates with more than ``min_degree`` neighbours, in order: with the test nodes of the published split
    these are the targets of the published Nettack graphs."""
    check_task(data, 0)
    nodes = _check_targets(candidates, int(data.num_nodes)).sort().values
    degree = torch.bincount(data.edge_index[0].cpu(), minlength=int(data.num_nodes))
    return nodes[degree[nodes] > min_degree]


def _check_targets(targets: Tensor, num_nodes: int) -> Tensor:
    if not isinstance(targets, Tensor) or targets.dtype != torch.int64 or targets.dim() != 1:
        raise ConfigError("The targets must be a one-dimensional int64 tensor of node numbers.")
    if targets.numel() == 0:
        raise ConfigError("Nettack needs at least one target, and none was given.")
    targets = targets.cpu()
    outside = (targets < 0) | (targets >= num_nodes)
    if bool(outside.any()):
        wrong = int(targets[outside][0])
        raise GraphError(f"The targets name node {wrong}, but the nodes are numbered 0 to {num_nodes - 1}.")
    numbers, times = targets.unique(return_counts=True)
    if bool((times > 1).any()):
        raise ConfigError(f"Node {int(numbers[times > 1][0])} is given as a target more than once.")
    return targets


class Surrogate:
    r"""The graph as the attack has changed it, with all that the surrogate's logits :math:`\hat A^2 X W` are made of.

    With :math:`\tilde A = A + I`, its row sums d and Z = XW, it keeps :math:`q_k = d_k^{-1/2} Z_k` and
    :math:`r_w = \sum_k \tilde A_{wk} q_k`; the logits of node 0 are then
    :math:`d_0^{-1/2} \sum_w \tilde A_{0w} d_w^{-1} r_w`. A flip changes q at its ends and r at their neighbours.
    """

    def __init__(self, data: Data, edges: Tensor, weight: Tensor) -> None:
        n = int(data.num_nodes)
        row, col = torch.cat([edges, edges.flip(0)], dim=1).numpy()
        adj = sp.csr_array((np.ones(len(row)), (row, col)), shape=(n, n))
        self.num_nodes = n
        self.degree: Ints = degrees(edges, n).numpy()
        self.weight: Floats = weight.double().cpu().numpy()
        self.x = Features.of(data.x).to_scipy()
        self.z: Floats = self.x @ self.weight
        self.q: Floats = self.z / np.sqrt(self.degree + 1.0)[:, None]
        self.r: Floats = self.q + adj @ self.q
        self._start, self._neighbour = adj.indptr, adj.indices
        # rows that a flip has changed; all others are those of the clean graph
        self._changed: dict[int, Ints] = {}

    def neighbours(self, node: int) -> Ints:
        found = self._changed.get(node)
        if found is None:
            found = self._neighbour[self._start[node] : self._start[node + 1]].astype(np.int64)
        return found

    def flip_edge(self, u: int, v: int) -> None:
        """Time O((d_u + d_v) C)."""
        there = v in self.neighbours(u)
        for node in (u, v):
            self._add_to_q(node, -self.q[node])
        for node, other in ((u, v), (v, u)):
            old = self.neighbours(node)
            self._changed[node] = old[old != other] if there else np.append(old, other)
            self.degree[node] += -1 if there else 1
        for node in (u, v):
            self._add_to_q(node, self.z[node] / np.sqrt(self.degree[node] + 1.0))

    def flip_feature(self, node: int, feature: int, step: int) -> None:
        """x[node, feature] changes by ``step``. Time O(d C)."""
        self.z[node] += step * self.weight[feature]
        self._add_to_q(node, step * self.weight[feature] / np.sqrt(self.degree[node] + 1.0))

    def _add_to_q(self, node: int, change: Floats) -> None:
        self.q[node] += change
        self.r[node] += change
        self.r[self.neighbours(node)] += change


class Around:
    r"""What the logits of one target hang on in the graph as it is now.

    ``a[w]`` is :math:`a_w = \tilde A_{0w} / d_w` and ``t[k]`` is :math:`t_k = \sum_w a_w \tilde A_{wk}`, so that
    :math:`[\hat A^2]_{0k} = t_k / \sqrt{d_0 d_k}`; ``total`` is :math:`\sum_w a_w r_w`. Time O(N + E of the target's
    neighbours).
    """

    def __init__(self, graph: Surrogate, target: int) -> None:
        self.graph = graph
        self.target = target
        self.d = graph.degree.astype(np.float64) + 1
        near = np.append(graph.neighbours(target), target)
        self.near: Floats = np.zeros(graph.num_nodes)
        self.near[near] = 1
        self.a = self.near / self.d
        ends = [graph.neighbours(w) for w in near.tolist()]
        weights = np.repeat(self.a[near], [len(end) for end in ends])
        self.t: Floats = self.a + np.bincount(np.concatenate(ends), weights=weights, minlength=graph.num_nodes)
        self.total: Floats = self.a[near] @ graph.r[near]

    def logits(self) -> Floats:
        """(C,)"""
        return self.total / np.sqrt(self.d[self.target])

    def after_edge(self, u: int) -> Floats:
        r"""The target's logits after the flip of (u, v), for every node v at once: (N, C); row u means nothing.

        With :math:`s = \pm 1` the change of :math:`\tilde A_{uv} = e` and a prime on what has changed, the sum of the
        logits is

        .. math::
            \sum_w a'_w r'_w = \sum_w a_w r_w + c_u r_u + c_v r_v
                + Z_u \big[(t_u + c_u + e c_v)(d_u'^{-1/2} - d_u^{-1/2}) + s a'_v d_u'^{-1/2}\big]
                + Z_v \big[(t_v + c_v + e c_u)(d_v'^{-1/2} - d_v^{-1/2}) + s a'_u d_v'^{-1/2}\big],

        where :math:`c = a' - a`: a changes at u and v only, and r by the changes of q at u and v, wherever these are
        neighbours, and by the new term at u and v. It replaces the update of :math:`[\hat A^2]_0` in the paper,
        which needs a loop over the neighbours of each candidate. Time O(N C).
        """
        graph, d, a, t, target = self.graph, self.d, self.a, self.t, self.target
        e = np.zeros(graph.num_nodes)
        e[graph.neighbours(u)] = 1
        s = 1 - 2 * e
        du, dv = d[u] + s, d + s
        if u == target:
            a_u, a_v = 1 / du, (self.near + s) / dv
            a_v[u] = a[u]  # the pair (u, u) is no candidate
            own = du
        else:
            a_u, a_v = self.near[u] / du, self.near / dv
            a_u[target] = (self.near[u] + s[target]) / du[target]
            own = np.full(graph.num_nodes, d[target])
            own[target] = dv[target]
        c_u, c_v = a_u - a[u], a_v - a
        root_u, root_v = du**-0.5, dv**-0.5
        by_u = (t[u] + c_u + e * c_v) * (root_u - d[u] ** -0.5) + s * a_v * root_u
        by_v = (t + c_v + e * c_u) * (root_v - d**-0.5) + s * a_u * root_v
        out = by_v[:, None] * graph.z
        out += c_v[:, None] * graph.r
        out += np.stack([c_u, by_u], axis=1) @ np.stack([graph.r[u], graph.z[u]])
        out += self.total
        out /= np.sqrt(own)[:, None]
        return out

    def after_feature(self, node: int, step: Floats) -> Floats:
        """The target's logits after x[node, f] has changed by step[f], for every feature f at once: (F, C)."""
        share = self.t[node] / np.sqrt(self.d[self.target] * self.d[node])
        return self.logits() + (share * step)[:, None] * self.graph.weight


class _Rules:
    """What may be flipped, and what has been."""

    def __init__(self, graph: Surrogate, *, cooccurrence: bool, allow_isolated: bool) -> None:
        self.graph = graph
        self.allow_isolated = allow_isolated
        self.degree_test: DegreeTest | None = None
        self._by_feature = graph.x.tocsc() if cooccurrence else None
        self._flipped: dict[tuple[int, int], list[int]] = {}
        self._rows: dict[int, tuple[Floats, Bools]] = {}

    def make(self, kind: int, i: int, j: int) -> None:
        self._flipped.setdefault((kind, i), []).append(j)
        if kind == EDGE:
            self._flipped.setdefault((kind, j), []).append(i)
            self.graph.flip_edge(i, j)
        else:
            row, _ = self.row(i)
            self.graph.flip_feature(i, j, int(1 - 2 * row[j]))
            row[j] = 1 - row[j]

    def edges_at(self, u: int, barred: int) -> Bools:
        """Which nodes v may have their pair with u flipped; ``barred`` may not, nor u itself."""
        degree = self.graph.degree
        neighbours = self.graph.neighbours(u)
        step = np.ones(self.graph.num_nodes, dtype=np.int64)
        step[neighbours] = -1
        free: Bools = np.ones(self.graph.num_nodes, dtype=np.bool_)
        if self.degree_test is not None:
            current = torch.from_numpy(degree)
            free = self.degree_test.allowed(current, current[u], current, torch.from_numpy(step)).numpy()
        if not self.allow_isolated:
            free[neighbours] &= (degree[neighbours] > 1) & (degree[u] > 1)
        free[[u, barred]] = False
        free[self._flipped.get((EDGE, u), [])] = False
        return free

    def features_at(self, node: int) -> Bools:
        """Which features of the node may be flipped."""
        row, fits = self.row(node)
        free: Bools = (row == 1) | fits
        free[self._flipped.get((FEATURE, node), [])] = False
        return free

    def row(self, node: int) -> tuple[Floats, Bools]:
        """The features of the node as they are now, and which may be added."""
        if node not in self._rows:
            x = self.graph.x
            row = x[[node]].toarray()[0]
            fits = np.ones(x.shape[1], dtype=np.bool_)
            if self._by_feature is not None:
                fits = cooccurring(x, self._by_feature, row.nonzero()[0])
            self._rows[node] = row, fits
        return self._rows[node]


def cooccurring(x: sp.csr_array, by_feature: sp.csc_array, own: Ints) -> Bools:
    r"""Which features a random walk may reach from the features ``own`` of a node: (F,).

    Features are neighbours if a node of the clean graph has both, :math:`E_{ij} = 1`. One step from a random feature of
    S leads to i with probability :math:`p(i | S) = |S|^{-1} \sum_{j \in S} E_{ij} / d_j`, and i is allowed if this
    is more than half of what could be reached at most, :math:`|S|^{-1} \sum_{j \in S} 1 / d_j`. From no features
    nothing is reached. Time O(the entries of x in the rows that share a feature with the node).
    """
    together = (by_feature[:, own].T @ x).toarray() > 0
    together[np.arange(len(own)), own] = False
    degree = together.sum(axis=1)
    # a feature that occurs with no other leads nowhere
    share = np.divide(1.0, degree, out=np.zeros(len(own)), where=degree > 0)
    reached = share @ together
    # compared with some slack, so that one half of a half is not decided by rounding
    return np.asarray(reached > 0.5 * share.sum() + 1e-12)


class _Aim:
    """The attack on one target: its candidates and their margins."""

    def __init__(
        self, graph: Surrogate, rules: _Rules, target: int, label: int, *, structure: bool, features: bool
    ) -> None:
        self.graph, self.rules, self.target, self.label = graph, rules, target, label
        self.structure, self.features = structure, features

    def best(self, places: list[int]) -> list[tuple[float, int, int, int]]:
        """For each place the lowest margin that one flip there leads to (inf if none is allowed), and the flip."""
        around = Around(self.graph, self.target)
        return [self._best_at(place, around) for place in places]

    def influencers(self, count: int) -> list[int]:
        found = self.best(sorted(self.graph.neighbours(self.target).tolist()))
        return [place for _, place in sorted((margin, place) for margin, _, place, _ in found)[:count]]

    def _best_at(self, place: int, around: Around) -> tuple[float, int, int, int]:
        found = []
        if self.structure:
            # an influencer's pair with the target is barred; at the target itself this bars nothing more
            free = self.rules.edges_at(place, self.target)
            found.append((self._margins(around.after_edge(place), free), EDGE))
        if self.features:
            row, _ = self.rules.row(place)
            free = self.rules.features_at(place)
            found.append((self._margins(around.after_feature(place, 1 - 2 * row), free), FEATURE))
        return min((float(margin.min()), kind, place, int(margin.argmin())) for margin, kind in found)

    def _margins(self, logits: Floats, free: Bools) -> Floats:
        own = logits[:, self.label].copy()
        logits[:, self.label] = -np.inf
        return np.where(free, own - logits.max(axis=1), np.inf)
