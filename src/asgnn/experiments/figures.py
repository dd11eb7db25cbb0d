"""The paper's two figures: the objective and the edge weights of a trained ASGNN, layer by layer."""

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

# name of a figure → kind of series that it shows
FIGURES = {"figure-convergence": "objective", "figure-structure": "weights"}
ROWS = ("asgnn-paper", "asgnn")
RATES = (0.0, 0.25)
DEEPER = 64  # layers to run, however few the model was trained with
TERMS = ("fidelity", "smoothness", "structure", "l1", "l2")
QUANTILES = {"q05": 0.05, "q25": 0.25, "q50": 0.5, "q75": 0.75, "q95": 0.95}


def series_of(
    choice: Choice, kinds: Sequence[str], *, root: str | Path | None = None, device: str = "cpu"
) -> list[Series]:
    """Measure the layers of the reported trainings, which are trained again because a store holds no weights."""
    graph = load_graph(choice.case, root)
    trainings = trainings_of(choice.case, choice.model, choice.settings, len(choice.trainings))
    return [
        Series(outcome.training.key, kind, MEASURED[kind](fit.model, graph))
        for outcome, fit in train(graph, trainings, root=root, device=device)
        for kind in kinds
        if isinstance(fit.model, ASGNN)
    ]


def objective(model: ASGNN, graph: Graph) -> dict[str, object]:
    """The terms of the objective at the start and after each layer, beyond the layers used in training."""
    seen = model.structure(*prepare(graph.data, next(model.parameters()).device), num_layers=DEEPER)
    last = {term.layer: term for term in seen.objective}  # the last half-step of each layer
    terms = [{name: float(getattr(term, name)) for name in TERMS} for term in last.values()]
    return {"trained": model.asmp.num_layers, "terms": terms}


def weights(model: ASGNN, graph: Graph) -> dict[str, object]:
    """Quantiles of the weights of original and of added edges, at the start and after each layer."""
    seen = model.structure(*prepare(graph.data, next(model.parameters()).device))
    edges = seen.edge_index.cpu()
    false = torch.zeros(edges.size(1), dtype=torch.bool)
    if graph.flips is not None:
        nodes = graph.flips.num_nodes
        added = graph.flips.added(graph.clean).cpu()
        false = contains(to_keys(torch.cat([added, added.flip(0)], dim=1), nodes), to_keys(edges, nodes))
    given = (edges[0] != edges[1]) & ~false  # ASGNN adds the self-loops
    parts = {"clean": given, "added": false}
    layers = [layer.detach().cpu().double() for layer in seen.weights]
    return {name: [_spread(layer[which]) for layer in layers] for name, which in parts.items() if which.any()}


MEASURED = {"objective": objective, "weights": weights}


def _spread(values: Tensor) -> dict[str, float]:
    found = {name: float(values.quantile(share)) for name, share in QUANTILES.items()}
    return {name: round(value, 5) for name, value in {**found, "mean": float(values.mean())}.items()}
