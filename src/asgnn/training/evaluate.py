"""What a trained model is worth on nodes it has not seen."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from asgnn.errors import GraphError


@torch.no_grad()
def predict(model: nn.Module, data: Data) -> Tensor:
    """(N,) the class of every node, without dropout; the model is left in evaluation mode."""
    model.eval()
    out: Tensor = model(data.x, data.edge_index)
    return out.argmax(-1)


def accuracy(model: nn.Module, data: Data, nodes: Tensor) -> float:
    """The share of ``nodes`` (their numbers) whose class the model gets right, in [0, 1]."""
    if nodes.numel() == 0:
        raise GraphError("There are no nodes to take an accuracy over.")
    return float((predict(model, data)[nodes] == data.y[nodes]).float().mean())
