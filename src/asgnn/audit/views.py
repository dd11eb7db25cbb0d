"""What a trained model knows about a graph: probabilities, those of its witness, and its edge weights."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch_geometric.data import Data

from asgnn.audit.evidence import Array
from asgnn.errors import ConfigError, GraphError
from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.features import Features
from asgnn.graphs.keys import to_keys
from asgnn.graphs.prepare import prepare
from asgnn.models.asgnn import ASGNN
from asgnn.models.base import NodeClassifier
from asgnn.models.ensemble import Ensemble
from asgnn.models.foreign import as_model
from asgnn.settings import check_number


class ModelView:
    """A trained model on one graph; everything on the CPU and without gradient.

    Args:
        model: one model or an :class:`~asgnn.models.Ensemble`, of this library or not; it stays on its device.
        data: the graph.
        temperature: divides the scores before the softmax.
    """

    def __init__(self, model: nn.Module, data: Data, temperature: float = 1.0) -> None:
        check_number("temperature", temperature, 0, float("inf"), "()")
        if not isinstance(model, nn.Module):
            raise ConfigError(f"model must be a trained model; it is a {type(model).__name__}.")
        device = next((p.device for p in model.parameters()), data.x.device)
        self.features, self.adj = prepare(data, device)
        self.model = as_model(model).eval()
        self.temperature = temperature

    @torch.no_grad()
    def probabilities(self) -> Array:
        """(N, C) the calibrated probabilities."""
        self.model.init_lazy(self.features, self.adj)
        logits: Tensor = self.model(self.features, self.adj)
        if not bool(logits.isfinite().all()):
            raise GraphError(
                "The model's scores are not finite: its training diverged, or the features are far too large."
            )
        found: Array = (logits.double() / self.temperature).softmax(-1).cpu().numpy()
        return found

    @torch.no_grad()
    def witness(self) -> Array | None:
        """(N, C) the mean probabilities of the witnesses of its models; ``None`` if no model has one."""
        told = {id(one.testimony): one.testimony for one in members(self.model) if one.testimony is not None}
        known = [p for one in told.values() if (p := one.probabilities(self.features, self.adj)) is not None]
        if not known:
            return None
        found: Array = torch.stack([p.double() for p in known]).mean(0).cpu().numpy()
        return found

    def weights(self, edges: NDArray[np.int64]) -> Array | None:
        """(K, E) the mean weight of each edge after each layer; ``None`` if no model learns a structure.

        Both directions and all models of the most frequent depth count; an edge that a model's prior dropped has 0.
        """
        found: dict[int, list[Array]] = {}
        for one in members(self.model):
            if isinstance(one, ASGNN) and one.asmp.scheme.support == "edges" and one.asmp.scheme.structure != "frozen":
                weights = _weights(one, self.features, self.adj, edges)
                found.setdefault(weights.shape[1], []).append(weights)
        if not found:
            return None
        most = max(found.values(), key=lambda group: sum(one.shape[0] for one in group))
        mean: Array = np.concatenate(most).mean(axis=0)
        return mean


def members(model: NodeClassifier) -> Iterator[NodeClassifier]:
    """The models of an ensemble, single or stacked; else the model itself."""
    if isinstance(model, Ensemble):
        for member in model.members:
            assert isinstance(member, NodeClassifier)
            yield from members(member)
    else:
        yield model


def _weights(model: ASGNN, features: Features, adj: Adjacency, edges: NDArray[np.int64]) -> Array:
    """(T, K, E) the mean of both directions."""
    seen = model.structure(features, adj)
    n = features.num_nodes
    keys = to_keys(seen.edge_index, n).cpu()
    pairs = torch.from_numpy(edges)
    total: Array | None = None
    for way in (pairs, pairs.flip(0)):
        wanted = to_keys(way, n)
        place = torch.searchsorted(keys, wanted).clamp_(max=keys.numel() - 1)
        there = keys[place] == wanted
        layers = [torch.where(there, w.cpu()[..., place], 0.0) for w in seen.weights[1:]]
        one = torch.stack(layers, dim=-2).double().numpy() if layers else np.zeros((0, pairs.size(1)))
        total = one / 2 if total is None else total + one / 2
    assert total is not None
    return total.reshape(-1, *total.shape[-2:])
