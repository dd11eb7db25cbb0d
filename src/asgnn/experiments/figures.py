"""The paper's two figures: what a trained ASGNN does layer by layer, to the objective and to the weights of edges."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from asgnn.experiments.measure import Graph, load_graph, train
from asgnn.experiments.values import Choice, Series, trainings_of
from asgnn.graphs import prepare
from asgnn.graphs.keys import contains, to_keys
from asgnn.models import ASGNN

# the name of a figure → the kind of series it is drawn from
FIGURES = {"figure-convergence": "objective", "figure-structure": "weights"}
ROWS = ("asgnn-paper", "asgnn")
RATES = (0.0, 0.25)
DEEPER = 64  # layers that a model is run for, however few it was trained with
TERMS = ("fidelity", "smoothness", "structure", "l1", "l2")
QUANTILES = {"q05": 0.05, "q25": 0.25, "q50": 0.5, "q75": 0.75, "q95": 0.95}


def series_of(
    choice: Choice, kinds: Sequence[str], *, root: str | Path | None = None, device: str = "cpu"
) -> list[Series]:
    """Train what a choice reports once more, since a store keeps no weights, and measure its layers."""
    graph = load_graph(choice.case, root)
    trainings = trainings_of(choice.case, choice.model, choice.settings, len(choice.trainings))
    trained = train(graph, trainings, root=root, device=device)
    return [
        Series(one.outcome.training.key, kind, MEASURED[kind](one.fit.model, graph))
        for one in trained
        for kind in kinds
        if isinstance(one.fit.model, ASGNN)
    ]


def objective(model: ASGNN, graph: Graph) -> dict[str, object]:
    """The objective, term by term, at the start and after each layer, for more layers than it was trained with."""
    seen = model.structure(*prepare(graph.data, next(model.parameters()).device), num_layers=DEEPER)
    last = {term.layer: term for term in seen.objective}  # of a layer's half-steps, the last
    terms = [{name: float(getattr(term, name)) for name in TERMS} for term in last.values()]
    return {"trained": model.asmp.num_layers, "terms": terms}


def weights(model: ASGNN, graph: Graph) -> dict[str, object]:
    """How the weights of given and of added edges are spread, at the start and after each layer."""
    seen = model.structure(*prepare(graph.data, next(model.parameters()).device))
    edges = seen.edge_index.cpu()
    false = torch.zeros(edges.size(1), dtype=torch.bool)
    if graph.flips is not None:
        nodes = graph.flips.num_nodes
        added = graph.flips.added(graph.clean).cpu()
        false = contains(to_keys(torch.cat([added, added.flip(0)], dim=1), nodes), to_keys(edges, nodes))
    given = (edges[0] != edges[1]) & ~false  # a node's edge to itself is ours
    parts = {"clean": given, "added": false}
    layers = [layer.detach().cpu().double() for layer in seen.weights]
    return {name: [_spread(layer[which]) for layer in layers] for name, which in parts.items() if which.any()}


MEASURED = {"objective": objective, "weights": weights}


def _spread(values: Tensor) -> dict[str, float]:
    found = {name: float(values.quantile(share)) for name, share in QUANTILES.items()}
    return {name: round(value, 5) for name, value in {**found, "mean": float(values.mean())}.items()}
