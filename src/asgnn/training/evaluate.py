"""What a trained model is worth on nodes it has not seen."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from asgnn.errors import GraphError
from asgnn.models.base import NodeClassifier


@torch.no_grad()
def predict(model: nn.Module, data: Data) -> Tensor:
    """(N,) the class of every node, without dropout; the model is left in evaluation mode, and where it is.

    Weights of the edges are seen by the models of this library, as they are in training.
    """
    model.eval()
    place = next((p.device for p in model.parameters()), data.x.device)
    inputs = [data.x, data.edge_index]
    if isinstance(model, NodeClassifier) and data.get("edge_weight") is not None:
        inputs.append(data.edge_weight)
    out: Tensor = model(*(tensor.to(place) for tensor in inputs))
    return out.argmax(-1).to(data.x.device)


def accuracy(model: nn.Module, data: Data, nodes: Tensor) -> float:
    """The share of ``nodes`` (their numbers) whose class the model gets right, in [0, 1]."""
    if nodes.numel() == 0:
        raise GraphError("There are no nodes to take an accuracy over.")
    return float((predict(model, data)[nodes] == data.y[nodes]).float().mean())
