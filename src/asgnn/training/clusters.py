"""Mini-batches of nodes: in every step of training the model sees some parts of the graph and the edges among them."""

from __future__ import annotations

from collections.abc import Iterator
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.features import Features
from asgnn.graphs.induced import induced
from asgnn.graphs.partition import Method, partition_nodes


class Clusters:
    """The parts of a graph, from which each step of training takes a few (Cluster-GCN: Chiang et al., KDD 2019).

    A step sees the subgraph that its parts induce: the edges inside the parts and those between them. Every node is in
    one step of an epoch. Edges between parts of different steps are not seen in that epoch.

    Args:
        features, adj: the whole graph, with the edges that the model sees; both stay on their device.
        parts, parts_per_step, method: see :class:`~asgnn.training.TrainConfig`.

    Memory O(N) beside the graph. A step takes time and memory in proportion to its parts, not to the graph.
    """

    def __init__(self, features: Features, adj: Adjacency, parts: int, parts_per_step: int, method: Method) -> None:
        self.features, self.adj = features, adj
        self.parts, self.steps = parts, -(-parts // parts_per_step)
        part = _part_of_nodes(adj, parts, method).to(adj.row.device)
        self._members = torch.argsort(part, stable=True).split(torch.bincount(part, minlength=parts).tolist())
        self._local = torch.full_like(part, -1)

    def draw(self, rng: torch.Generator) -> Iterator[Tensor]:
        """Yields the nodes of each step of an epoch, ascending; ``rng`` draws which parts come together."""
        for parts in torch.randperm(self.parts, generator=rng).tensor_split(self.steps):
            yield torch.cat([self._members[part] for part in parts.tolist()]).sort().values

    def cut(self, nodes: Tensor, device: torch.device) -> tuple[Features, Adjacency]:
        """Returns the subgraph of some nodes, on ``device``."""
        return self.features.rows(nodes).to(device), induced(self.adj, nodes, self._local).to(device)

    def among(self, nodes: Tensor, sets: list[Tensor]) -> list[Tensor]:
        """Returns of each set of nodes those that are among ``nodes``, by their number in the subgraph."""
        self._local[nodes] = torch.arange(nodes.numel(), device=nodes.device)
        found = [self._local[one] for one in sets]
        self._local[nodes] = -1
        return [one[one >= 0] for one in found]


# The parts of a graph by their number and method, as long as the graph lives.
_PARTS: WeakKeyDictionary[Adjacency, dict[tuple[int, Method], Tensor]] = WeakKeyDictionary()


def _part_of_nodes(adj: Adjacency, parts: int, method: Method) -> Tensor:
    known = _PARTS.setdefault(adj, {})
    if (parts, method) not in known:
        known[parts, method] = partition_nodes(adj.edge_index[:, ~adj.loops], adj.num_nodes, parts, method)
    return known[parts, method]
