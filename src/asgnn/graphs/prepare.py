"""Converts a checked graph to the form that all models use."""

from __future__ import annotations

from contextlib import suppress

import torch
from torch_geometric.data import Data

from asgnn.errors import GraphError
from asgnn.graphs.adjacency import Adjacency, pattern_of
from asgnn.graphs.checks import nodes_of, validate
from asgnn.graphs.features import Features


def prepare(
    data: Data, device: torch.device | str | None = None, *, need_labels: bool = False
) -> tuple[Features, Adjacency]:
    """Checks a graph and returns its features and adjacency on ``device`` (default: the graph's own)."""
    with suppress(GraphError):  # what it raises, the check below raises in its turn, which then need not sort again
        pattern_of(getattr(data, "edge_index", None), nodes_of(data))
    validate(data, need_labels=need_labels, sparse=True)
    place = data.x.device if device is None else device
    # Detached: training and evaluation need no gradient in the graph.
    features = Features.of(data.x.detach() if data.x.requires_grad else data.x).to(place)
    weight = data.get("edge_weight")
    weight = None if weight is None else weight.detach()
    return features, Adjacency.of(data.edge_index, features.num_nodes, weight).to(place)
