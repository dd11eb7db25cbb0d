"""Where a graph enters: it is checked, and brought into the form that every model works on."""

from __future__ import annotations

import torch
from torch_geometric.data import Data

from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.checks import validate
from asgnn.graphs.features import Features


def prepare(data: Data, device: torch.device | str | None = None) -> tuple[Features, Adjacency]:
    """The features and the adjacency of a graph, checked, on a device; its own by default."""
    validate(data, need_labels=False)
    place = data.x.device if device is None else device
    # detached: what is trained or evaluated here has no gradient in the graph
    features = Features.of(data.x.detach() if data.x.requires_grad else data.x).to(place)
    weight = data.get("edge_weight")
    weight = None if weight is None else weight.detach()
    return features, Adjacency.of(data.edge_index, features.num_nodes, weight).to(place)
