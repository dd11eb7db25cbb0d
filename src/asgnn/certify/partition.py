"""Voting by parts of the edges and by neighbours: a flip changes one vote."""

from __future__ import annotations

import time

import torch
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.data import Data

from asgnn.certify.votes import Ballot, Certificate
from asgnn.errors import ConfigError
from asgnn.graphs import Split, labels_of, num_classes, split_of, validate
from asgnn.graphs.checks import check_edges
from asgnn.graphs.features import Features
from asgnn.graphs.similarity import Metric, views_of
from asgnn.models import MLP
from asgnn.models.base import NodeClassifier
from asgnn.models.layers import mix
from asgnn.progress import Progress
from asgnn.settings import check_count
from asgnn.training import Fit, Recipe, Trial, fit_many, recipe

NEIGHBORS = 15
"""The number of nearest neighbours in the feature graph, if a recipe does not say otherwise."""
PARTS = 30
FLOOR_MODELS = 5
FLOOR_SEED = 2**33  # of the edge-free models, far from the seeds of the parts


def edge_parts(edge_index: Tensor, num_nodes: int, parts: int, seed: int = 0) -> Tensor:
    """Return the part of every edge, (E,) int64 from 0 to ``parts`` − 1, from its two nodes and ``seed`` alone.

    The part of {u, v} with u < v is ``mix(mix(seed + 1) + u·2³² + v) mod parts`` in unsigned 64-bit arithmetic, where
    ``mix`` is the finaliser of SplitMix64 (Steele, Lea & Flood, 2014). It is the same in both directions, on every
    machine, and whatever the other edges are: a flip leaves all other edges in their parts.
    """
    check_edges(edge_index, num_nodes)
    check_count("parts", parts)
    check_count("seed", seed, 0)
    low, high = edge_index.min(0).values, edge_index.max(0).values
    mixed = mix(mix(low.new_tensor(seed + 1)) + (low << 32) + high)
    # the remainder of an unsigned number, from its upper and its lower half
    upper, lower = (mixed >> 32) & (2**32 - 1), mixed & (2**32 - 1)
    return ((upper % parts) * (2**32 % parts) + lower) % parts


def certify(
    model: str | Recipe,
    data: Data,
    split: Split | None = None,
    *,
    parts: int = PARTS,
    anchor: int = 0,
    abstain: bool = False,
    models: int = FLOOR_MODELS,
    seed: int = 0,
    batch: bool = True,
    device: torch.device | str | None = None,
    progress: Progress | None = None,
) -> Certificate:
    """Return the certificate of :func:`vote_by_parts` with ``anchor`` votes of the edge-free model."""
    check_count("anchor", anchor, 0)
    ballot = vote_by_parts(
        model, data, split, parts=parts, abstain=abstain, models=models, seed=seed, batch=batch, device=device,
        progress=progress,
    )  # fmt: skip
    return ballot.certificate(anchor)


def vote_by_parts(
    model: str | Recipe,
    data: Data,
    split: Split | None = None,
    *,
    parts: int = PARTS,
    abstain: bool = False,
    models: int = FLOOR_MODELS,
    seed: int = 0,
    batch: bool = True,
    device: torch.device | str | None = None,
    progress: Progress | None = None,
) -> Ballot:
    """Train one model on each part of the edges, and return their votes.

    A hash puts every edge into one of T parts (:func:`edge_parts`). The model of a part is trained and evaluated on the
    edges of its part alone, so a flip changes at most one vote for each node, whether it comes before or after
    training. That holds for fixed settings; features, labels and split are not attacked. docs/certify.md has the proof.

    A part has few edges, so what the model reads from the features is decisive: a model that is given by its name gets
    a feature prior of 15 neighbours. Its edge-free twin, the mean of ``models`` trainings on each feature graph alone,
    is the floor that holds against any number of flips.

    Args:
        model: the name of a model of :data:`~asgnn.training.RECIPES`, which then has the feature prior, or a recipe,
            which is used as it is.
        data: the graph, without edge weights.
        split: the train, validation and test nodes; the masks of ``data`` by default.
        parts: T. More parts withstand more flips, but each sees fewer edges.
        abstain: a part votes on a node only if the node has an edge in it.
        models: the number of edge-free models, of each view of the features.
        seed: of the hash, the initial weights and the dropout.
        batch: train the parts as one batch where the model allows it. ``False`` trains each on a graph of its own, so
            that not even a rounding error of one part depends on the edges of another.
        device: the device to train on; that of ``data`` by default.
        progress: called with the number of steps done and of all steps.

    Models with :attr:`~asgnn.models.NodeClassifier.own_weights` (ASGNN, GCN, GCN-Jaccard, SGC, APPNP, MLP) are trained
    as one batch, all others one after the other. Time O(parts · one training), memory O(parts · E) for a batch.
    """
    check_count("parts", parts, 2)
    split = _checked(data, split, models, seed)
    chosen = _recipe(model)
    start = time.perf_counter()
    part = edge_parts(data.edge_index, int(data.num_nodes), parts, seed)
    fits = _train(chosen, data, split, part, parts, seed, batch, device, progress)
    classes = torch.stack([fit.logits[0].argmax(1) for fit in fits])  # (T, N)
    voting = torch.ones_like(classes)
    if abstain:
        voting.zero_()[part.cpu(), data.edge_index[0].cpu()] = 1
    votes = voting.new_zeros(classes.size(1), num_classes(data)).scatter_add_(1, classes.t(), voting.t())
    floor = predict_without_edges(chosen, data, split, models=models, seed=seed, device=device)
    return Ballot(votes, parts - voting.sum(0), floor, time.perf_counter() - start)


def vote_by_neighbors(
    model: str | Recipe,
    data: Data,
    split: Split | None = None,
    *,
    models: int = FLOOR_MODELS,
    seed: int = 0,
    device: torch.device | str | None = None,
) -> Ballot:
    """Return one vote of every neighbour: the class that the edge-free twin of the model predicts for it.

    Every edge is a part of its own, and a part votes only on the ends of its edge. The twin never sees the edges, so a
    flip adds or removes one vote at each of its two ends and changes nothing else, before and after training. Training
    nodes vote for their labels. Arguments as in :func:`vote_by_parts`; time O(models · one training + E).
    """
    split = _checked(data, split, models, seed)
    start = time.perf_counter()
    floor = predict_without_edges(_recipe(model), data, split, models=models, seed=seed, device=device)
    known, train = floor.clone(), split.train.cpu()
    known[train] = labels_of(data).cpu()[train]
    row, col = data.edge_index.cpu()
    votes = torch.zeros(len(floor), num_classes(data), dtype=torch.int64)
    votes.index_put_((row, known[col]), torch.ones_like(row), accumulate=True)
    return Ballot(votes, None, floor, time.perf_counter() - start)


def edge_free(chosen: Recipe, metric: Metric = "auto") -> Recipe:
    """Return the recipe on the feature graph alone, which no flip of an edge can affect; of a foreign module, the MLP.

    ``metric`` is that of the feature graph. The structure of ASGNN is frozen: there are no false edges that it could
    find.
    """
    if not issubclass(chosen.kind, NodeClassifier):
        return recipe("mlp")
    neighbors = chosen.arguments.get("prior_neighbors") or NEIGHBORS
    settings = {"prior_edges": 0.0, "prior_neighbors": neighbors, "prior_weight": 1.0, "prior_metric": metric}
    frozen = {"structure": "frozen"} if "structure" in chosen.settings else {}
    return chosen.with_settings({**settings, **frozen})


def predict_without_edges(
    chosen: Recipe,
    data: Data,
    split: Split,
    *,
    models: int = FLOOR_MODELS,
    seed: int = 0,
    device: torch.device | str | None = None,
) -> Tensor:
    """Return the class of every node, (N,), by the mean probability of edge-free twins: certified against any flips.

    There are ``models`` of each view of the features, with a feature graph of its own; see
    :func:`~asgnn.graphs.similarity.views_of`. An MLP has no graph, and so one view.
    """
    views: tuple[Metric, ...] = ("auto",) if edge_free(chosen).kind is MLP else views_of(Features.of(data.x))
    seeds = range(FLOOR_SEED + seed * models, FLOOR_SEED + (seed + 1) * models)
    twins = [edge_free(chosen, view).trial(data, split, one) for view in views for one in seeds]
    fits = fit_many(twins, data, device=device)
    return torch.stack([F.softmax(fit.logits[0], 1) for fit in fits]).mean(0).argmax(1)


def _checked(data: Data, split: Split | None, models: int, seed: int) -> Split:
    check_count("models", models)
    check_count("seed", seed, 0)
    validate(data, need_labels=True, sparse=True)
    if data.get("edge_weight") is not None:
        raise ConfigError("A certificate counts flips of edges, so the graph must not have edge_weight.")
    return split_of(data, split)


def _recipe(model: str | Recipe) -> Recipe:
    if isinstance(model, Recipe):
        return model
    named = recipe(model)
    own = issubclass(named.kind, NodeClassifier)
    return named.with_settings({"prior_neighbors": NEIGHBORS, "prior_weight": 1.0}) if own else named


def _train(
    chosen: Recipe,
    data: Data,
    split: Split,
    part: Tensor,
    parts: int,
    seed: int,
    batch: bool,
    device: torch.device | str | None,
    progress: Progress | None,
) -> list[Fit]:
    """One training for each part; as one batch if the trials may have edge weights of their own."""
    trials = [chosen.trial(data, split, seed * parts + i) for i in range(parts)]
    first = trials[0].model
    if batch and isinstance(first, NodeClassifier) and first.own_weights:
        dtype = torch.get_default_dtype()
        own = [Trial(one.model, one.config, split, (part == i).to(dtype)) for i, one in enumerate(trials)]
        return fit_many(own, data, device=device, progress=progress)
    fits: list[Fit] = []
    for i, one in enumerate(trials):
        sub = data.__copy__()
        sub.edge_index = data.edge_index[:, part == i]
        fits += fit_many([one], sub, device=device)
        if progress is not None:
            progress(i + 1, parts)
    return fits
