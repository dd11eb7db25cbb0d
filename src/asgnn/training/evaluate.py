"""What a trained model is worth on nodes it has not seen."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from asgnn.asmp import Propagation
from asgnn.errors import GraphError
from asgnn.graphs.keys import contains, to_keys
from asgnn.models.base import NodeClassifier


def graph_inputs(model: nn.Module, data: Data, device: torch.device) -> tuple[Tensor, ...]:
    """What a model is called with: x, edge_index and, for a model of this library, edge_weight where there is one."""
    inputs = [data.x, data.edge_index]
    if isinstance(model, NodeClassifier) and data.get("edge_weight") is not None:
        inputs.append(data.edge_weight)
    return tuple(tensor.to(device) for tensor in inputs)


@torch.no_grad()
def predict(model: nn.Module, data: Data) -> Tensor:
    """(N,) the class of every node, without dropout; the model is left in evaluation mode, and where it is.

    Weights of the edges are seen by the models of this library, as they are in training.
    """
    model.eval()
    place = next((p.device for p in model.parameters()), data.x.device)
    out: Tensor = model(*graph_inputs(model, data, place))
    return out.argmax(-1).to(data.x.device)


def accuracy(model: nn.Module, data: Data, nodes: Tensor) -> float:
    """The share of ``nodes`` (their numbers) whose class the model gets right, in [0, 1]."""
    if nodes.numel() == 0:
        raise GraphError("There are no nodes to take an accuracy over.")
    return float((predict(model, data) == data.y)[nodes.to(data.y.device)].float().mean())


def edge_auc(seen: Propagation, added: Tensor) -> float:
    """How well the last structure tells false edges from given ones: the area under the ROC curve.

    1 means that every false edge weighs less than every true one, 0.5 is chance; ties count half.

    Args:
        seen: what :meth:`ASGNN.structure` returned.
        added: (2, F) the undirected edges known to be false, u < v.

    Time O(E log E).
    """
    from scipy.stats import rankdata  # here, because it takes most of a second to load

    row, col = seen.edge_index.cpu()
    upper = row < col
    weight = seen.weights[-1].detach().cpu()[upper].numpy()
    num_nodes = int(row.max()) + 1
    false = contains(to_keys(added.cpu(), num_nodes), to_keys(torch.stack([row, col])[:, upper], num_nodes)).numpy()
    positives, negatives = int(false.sum()), int((~false).sum())
    if not positives or not negatives:
        raise GraphError("An area under the ROC curve needs at least one false and one true edge.")
    ranks = rankdata(-weight)
    return float((ranks[false].sum() - positives * (positives + 1) / 2) / (positives * negatives))
