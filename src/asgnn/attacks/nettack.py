"""Nettack: targeted attack that lowers the margin of each target node under a linear surrogate."""

from __future__ import annotations

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
from asgnn.graphs.checks import node_numbers
from asgnn.graphs.features import Features
from asgnn.progress import Progress
from asgnn.settings import check_count

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]
EDGE, FEATURE = 0, 1
# After 200 epochs the surrogate overfits the labels of train, and the flips transfer less to other models. Selected
# from 10, 20, 50, 100 and 200 by the accuracy of GCN on attacked validation nodes of Cora and Citeseer.
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
    r"""Nettack: targeted attack on single nodes (Zügner, Akbarnejad and Günnemann, KDD 2018, Alg. 1).

    Threat model: targeted, poisoning or evasion. The attacker knows the graph, the features, the labels of ``train``
    and the true classes of the targets, but no model. Edges, binary features or both may be flipped, either at the
    targets themselves (``direct``) or only at some of their neighbours (influencers).

    The surrogate has the logits :math:`\hat A^2 X W` (:func:`~asgnn.attacks.linear.fit_linear`). It is trained once, on
    the clean graph, for 50 epochs. Each flip is the allowed one that gives the lowest margin of the target: the logit
    of its class minus the highest other logit. The margins are exact for every candidate. The targets are attacked one
    after the other in the same graph. No pair is flipped twice, so the flips of one target never undo those of another.

    Not in the paper, which attacks one node: the degree test compares with the graph before the flips of the current
    target, because a single test for all targets would stop the attack after a few of them. The influencers are the
    neighbours whose best single flip gives the lowest margin; ties go to the lower node number.

    Args:
        data: the clean graph, with labels.
        per_target: flips for each target; the total is exactly ``per_target × len(targets)``.
        train: the nodes whose labels are known, as numbers or a mask.
        targets: the target nodes, as numbers in the order of the attack or as a mask.
        rng: a CPU generator; the same state gives the same flips.
        structure: whether edges may be flipped.
        features: whether features may be flipped; they must be 0 or 1.
        direct: whether to flip at the target; otherwise only its influencers are changed, and no flip involves it.
        influencers: maximum number of influencers.
        degree_test: whether the flips must pass :class:`~asgnn.attacks.degrees.DegreeTest`.
        cooccurrence: whether only features that co-occur with those of the node may be added.
        allow_isolated: whether a removal may leave a node without an edge.
        checkpoint: stores the state after each target; an interrupted attack resumes from it.
        progress: called after each target with the number of flips made and their total.

    With C classes, time O(budget · (N + F) C), and as much again for each influencer and, once per target, for each
    neighbour; memory O(N C + E).
    """
    if not structure and not features:
        raise ConfigError("structure and features are both False, so Nettack has nothing to flip; allow at least one.")
    check_count("per_target", per_target)
    check_count("influencers", influencers)
    edges = check_task(data, per_target)
    train = check_labelled(train, data)
    targets = _check_targets(targets, int(data.num_nodes))
    if features and not bool(((data.x == 0) | (data.x == 1)).all()):
        raise GraphError("Nettack flips only binary features, but x has values other than 0 and 1; set features=False.")

    state = None if checkpoint is None else checkpoint.load()
    weight = fit_linear(data, train, rng, epochs=EPOCHS) if state is None else state["weight"]
    graph = LinearSurrogate(data, edges, weight)
    constraints = _Constraints(graph, cooccurrence=features and cooccurrence, allow_isolated=allow_isolated)
    made: list[tuple[int, int, int]] = []
    if state is not None:
        # repeated in the same order, so that all sums have the same rounding errors as in the interrupted run
        for kind, i, j in state["made"].tolist():
            constraints.flip(kind, i, j)
            made.append((kind, i, j))
    budget = int(per_target) * targets.numel()
    y = labels_of(data).cpu()
    if bool((y[targets] < 0).any()):  # the surrogate's prediction replaces a missing label
        y = torch.where(y < 0, linear_logits(data, weight).argmax(1), y)
    for target in targets[len(made) // int(per_target) :].tolist():
        constraints.degree_test = DegreeTest(torch.from_numpy(graph.degree)) if degree_test else None
        attack = _TargetAttack(graph, constraints, target, int(y[target]), structure=structure, features=features)
        places = [target] if direct else attack.influencers(int(influencers))
        for _ in range(int(per_target)):
            best = min(attack.best(places), default=None)
            if best is None or best[0] == np.inf:
                raise GraphError(
                    f"Nettack found no allowed flip for target {target} after {len(made)} of {budget} flips; "
                    "lower per_target or lift a constraint."
                )
            made.append(best[1:])
            constraints.flip(*best[1:])
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
    """Return the candidates with more than ``min_degree`` neighbours, sorted.

    For the test nodes of the published split, these are the targets of the published Nettack graphs.
    """
    check_task(data, 0)
    nodes = _check_targets(candidates, int(data.num_nodes)).sort().values
    degree = torch.bincount(data.edge_index[0].cpu(), minlength=int(data.num_nodes))
    return nodes[degree[nodes] > min_degree]


def _check_targets(targets: Tensor, num_nodes: int) -> Tensor:
    """Return the targets on the CPU, in the given order."""
    numbers = node_numbers(targets, num_nodes, "target")
    if targets.dtype == torch.bool:
        return numbers
    targets = targets.cpu()
    if numbers.numel() < targets.numel():
        repeated = int((torch.bincount(targets) > 1).nonzero()[0])
        raise GraphError(f"Node {repeated} is more than once among the targets; list each target once.")
    return targets


class LinearSurrogate:
    r"""The linear surrogate :math:`\hat A^2 X W` on the current graph, updated after every flip.

    With :math:`\tilde A = A + I`, its row sums d and Z = XW, it stores :math:`q_k = d_k^{-1/2} Z_k` and
    :math:`r_w = \sum_k \tilde A_{wk} q_k`. The logits of node 0 are then
    :math:`d_0^{-1/2} \sum_w \tilde A_{0w} d_w^{-1} r_w`. A flip changes q at its end nodes and r at their neighbours.
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
        # neighbours of the nodes that a flip has changed; all others are those of the clean graph
        self._changed: dict[int, Ints] = {}

    def neighbours(self, node: int) -> Ints:
        found = self._changed.get(node)
        if found is None:
            found = self._neighbour[self._start[node] : self._start[node + 1]].astype(np.int64)
        return found

    def flip_edge(self, u: int, v: int) -> None:
        """Add or remove the edge u–v. Time O((d_u + d_v) C)."""
        present = v in self.neighbours(u)
        for node in (u, v):
            self._add_to_q(node, -self.q[node])
        for node, other in ((u, v), (v, u)):
            old = self.neighbours(node)
            self._changed[node] = old[old != other] if present else np.append(old, other)
            self.degree[node] += -1 if present else 1
        for node in (u, v):
            self._add_to_q(node, self.z[node] / np.sqrt(self.degree[node] + 1.0))

    def flip_feature(self, node: int, feature: int, step: int) -> None:
        """Change x[node, feature] by ``step``. Time O(d C)."""
        self.z[node] += step * self.weight[feature]
        self._add_to_q(node, step * self.weight[feature] / np.sqrt(self.degree[node] + 1.0))

    def _add_to_q(self, node: int, change: Floats) -> None:
        self.q[node] += change
        self.r[node] += change
        self.r[self.neighbours(node)] += change


class TargetLogits:
    r"""The logits of one target on the current graph, and after every single flip.

    ``a[w]`` is :math:`a_w = \tilde A_{0w} / d_w`, and ``t[k]`` is :math:`t_k = \sum_w a_w \tilde A_{wk}`, so that
    :math:`[\hat A^2]_{0k} = t_k / \sqrt{d_0 d_k}`; ``total`` is :math:`\sum_w a_w r_w`. Time O(N + the number of edges
    of the target's neighbours).
    """

    def __init__(self, graph: LinearSurrogate, target: int) -> None:
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

    def current(self) -> Floats:
        """Return the logits (C,) on the current graph."""
        return self.total / np.sqrt(self.d[self.target])

    def after_edge(self, u: int) -> Floats:
        r"""Return the target's logits (N, C) after the flip of (u, v), for every node v; row u is undefined.

        With :math:`s = \pm 1` the change of :math:`\tilde A_{uv} = e`, and a prime for values after the flip, the
        logits are proportional to

        .. math::
            \sum_w a'_w r'_w = \sum_w a_w r_w + c_u r_u + c_v r_v
                + Z_u \big[(t_u + c_u + e c_v)(d_u'^{-1/2} - d_u^{-1/2}) + s a'_v d_u'^{-1/2}\big]
                + Z_v \big[(t_v + c_v + e c_u)(d_v'^{-1/2} - d_v^{-1/2}) + s a'_u d_v'^{-1/2}\big],

        where :math:`c = a' - a`. Only the entries of a at u and v change; r changes at the neighbours of u and v by
        the changes of q, and at u and v also by the new term. This replaces the update of :math:`[\hat A^2]_0` in the
        paper, which loops over the neighbours of each candidate. Time O(N C).
        """
        graph, d, a, t, target = self.graph, self.d, self.a, self.t, self.target
        e = np.zeros(graph.num_nodes)
        e[graph.neighbours(u)] = 1
        s = 1 - 2 * e
        du, dv = d[u] + s, d + s
        if u == target:
            a_u, a_v = 1 / du, (self.near + s) / dv
            a_v[u] = a[u]  # the pair (u, u) is not a candidate
            d_target = du
        else:
            a_u, a_v = self.near[u] / du, self.near / dv
            a_u[target] = (self.near[u] + s[target]) / du[target]
            d_target = np.full(graph.num_nodes, d[target])
            d_target[target] = dv[target]
        c_u, c_v = a_u - a[u], a_v - a
        root_u, root_v = du**-0.5, dv**-0.5
        by_u = (t[u] + c_u + e * c_v) * (root_u - d[u] ** -0.5) + s * a_v * root_u
        by_v = (t + c_v + e * c_u) * (root_v - d**-0.5) + s * a_u * root_v
        out = by_v[:, None] * graph.z
        out += c_v[:, None] * graph.r
        out += np.stack([c_u, by_u], axis=1) @ np.stack([graph.r[u], graph.z[u]])
        out += self.total
        out /= np.sqrt(d_target)[:, None]
        return out

    def after_feature(self, node: int, step: Floats) -> Floats:
        """Return the target's logits (F, C) after x[node, f] changes by step[f], for every feature f."""
        entry = self.t[node] / np.sqrt(self.d[self.target] * self.d[node])  # of Â²
        return self.current() + (entry * step)[:, None] * self.graph.weight


class _Constraints:
    """The constraints on the flips, including the flips made so far."""

    def __init__(self, graph: LinearSurrogate, *, cooccurrence: bool, allow_isolated: bool) -> None:
        self.graph = graph
        self.allow_isolated = allow_isolated
        self.degree_test: DegreeTest | None = None
        self._by_feature = graph.x.tocsc() if cooccurrence else None
        self._flipped: dict[tuple[int, int], list[int]] = {}
        self._rows: dict[int, tuple[Floats, Bools]] = {}

    def flip(self, kind: int, i: int, j: int) -> None:
        """Make a flip and exclude it from now on."""
        self._flipped.setdefault((kind, i), []).append(j)
        if kind == EDGE:
            self._flipped.setdefault((kind, j), []).append(i)
            self.graph.flip_edge(i, j)
        else:
            row, _ = self.row(i)
            self.graph.flip_feature(i, j, int(1 - 2 * row[j]))
            row[j] = 1 - row[j]

    def edges_at(self, u: int, excluded: int) -> Bools:
        """Return a mask of the nodes v whose pair with u may be flipped; without u and ``excluded``."""
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
        free[[u, excluded]] = False
        free[self._flipped.get((EDGE, u), [])] = False
        return free

    def features_at(self, node: int) -> Bools:
        """Return a mask of the features of the node that may be flipped."""
        row, addable = self.row(node)
        free: Bools = (row == 1) | addable
        free[self._flipped.get((FEATURE, node), [])] = False
        return free

    def row(self, node: int) -> tuple[Floats, Bools]:
        """Return the current features of the node, and a mask of those that may be added."""
        if node not in self._rows:
            x = self.graph.x
            row = x[[node]].toarray()[0]
            addable = np.ones(x.shape[1], dtype=np.bool_)
            if self._by_feature is not None:
                addable = cooccurring(x, self._by_feature, row.nonzero()[0])
            self._rows[node] = row, addable
        return self._rows[node]


def cooccurring(x: sp.csr_array, by_feature: sp.csc_array, own: Ints) -> Bools:
    r"""Return a mask (F,) of the features that co-occur often enough with the features ``own`` of a node.

    Two features are neighbours, :math:`E_{ij} = 1`, if a node of the clean graph has both. One step of a random walk
    from a random feature of S leads to i with probability :math:`p(i | S) = |S|^{-1} \sum_{j \in S} E_{ij} / d_j`.
    Feature i is allowed if this is more than half of the possible maximum, :math:`|S|^{-1} \sum_{j \in S} 1 / d_j`. If
    S is empty, no feature is allowed. Time O(the entries of x in the rows that share a feature with the node).
    """
    cooccur = (by_feature[:, own].T @ x).toarray() > 0
    cooccur[np.arange(len(own)), own] = False
    degree = cooccur.sum(axis=1)
    # a feature without neighbours contributes nothing
    inverse = np.divide(1.0, degree, out=np.zeros(len(own)), where=degree > 0)
    # a tolerance, so that rounding does not decide about exactly one half
    return np.asarray(inverse @ cooccur > 0.5 * inverse.sum() + 1e-12)


class _TargetAttack:
    """The attack on one target: its candidates and their margins."""

    def __init__(
        self,
        graph: LinearSurrogate,
        constraints: _Constraints,
        target: int,
        label: int,
        *,
        structure: bool,
        features: bool,
    ) -> None:
        self.graph, self.constraints, self.target, self.label = graph, constraints, target, label
        self.structure, self.features = structure, features

    def best(self, places: list[int]) -> list[tuple[float, int, int, int]]:
        """Return for each node of ``places`` the lowest margin after one flip there (inf if none is allowed), and it.

        A flip is (EDGE or FEATURE, node, other node or feature).
        """
        logits = TargetLogits(self.graph, self.target)
        return [self._best_at(place, logits) for place in places]

    def influencers(self, count: int) -> list[int]:
        """Return the neighbours of the target whose best flip gives the lowest margins."""
        found = self.best(sorted(self.graph.neighbours(self.target).tolist()))
        return [place for _, place in sorted((margin, place) for margin, _, place, _ in found)[:count]]

    def _best_at(self, place: int, logits: TargetLogits) -> tuple[float, int, int, int]:
        found = []
        if self.structure:
            # excludes the pair of an influencer and the target; no effect if place is the target
            free = self.constraints.edges_at(place, self.target)
            found.append((self._margins(logits.after_edge(place), free), EDGE))
        if self.features:
            row, _ = self.constraints.row(place)
            free = self.constraints.features_at(place)
            found.append((self._margins(logits.after_feature(place, 1 - 2 * row), free), FEATURE))
        return min((float(margin.min()), kind, place, int(margin.argmin())) for margin, kind in found)

    def _margins(self, logits: Floats, free: Bools) -> Floats:
        own = logits[:, self.label].copy()
        logits[:, self.label] = -np.inf
        return np.where(free, own - logits.max(axis=1), np.inf)
