"""Predictions and metrics of trained models."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from asgnn.asmp import Propagation
from asgnn.errors import GraphError
from asgnn.graphs import labels_of, prepare
from asgnn.graphs.checks import node_numbers
from asgnn.graphs.keys import contains, to_keys
from asgnn.models.foreign import as_model


@torch.no_grad()
def predict(model: nn.Module, data: Data) -> Tensor:
    """Return the predicted class of every node, (N,). The model stays on its device and is left in evaluation mode.

    Edge weights are used as in training; see :func:`~asgnn.training.fit`.
    """
    device = next((p.device for p in model.parameters()), data.x.device)
    features, adj = prepare(data, device)
    classifier = as_model(model).eval()
    classifier.init_lazy(features, adj)
    logits = classifier(features, adj)
    if not bool(logits.isfinite().all()):
        raise GraphError("The model's scores are not finite: its training diverged, or the features are far too large.")
    return logits.argmax(-1).to(data.x.device)


def accuracy(model: nn.Module, data: Data, nodes: Tensor) -> float:
    """Return the accuracy of the model on ``nodes``, in [0, 1]; nodes without a label are left out.

    Args:
        model: see :func:`~asgnn.training.fit`.
        data: the graph, with labels.
        nodes: node indices, or a mask over all nodes.
    """
    y = labels_of(data)
    nodes = node_numbers(nodes, y.numel()).to(y.device)
    nodes = nodes[y[nodes] >= 0]
    if nodes.numel() == 0:
        raise GraphError("None of the nodes has a label, so the accuracy is undefined.")
    return float((predict(model, data) == y)[nodes].float().mean())


def edge_auc(seen: Propagation, added: Tensor) -> float:
    """Return the AUC with which the last structure separates false edges from true ones.

    1 means that every false edge has a lower weight than every true one, 0.5 is chance; ties count half.

    Args:
        seen: the result of :meth:`ASGNN.structure`.
        added: (2, F) the undirected edges known to be false, u < v.

    Time O(E log E).
    """
    from scipy.stats import rankdata  # imported here because it takes most of a second

    row, col = seen.edge_index.cpu()
    upper = row < col
    weight = seen.weights[-1].detach().cpu()[upper].numpy()
    num_nodes = int(row.max()) + 1
    false = contains(to_keys(added.cpu(), num_nodes), to_keys(torch.stack([row, col])[:, upper], num_nodes)).numpy()
    positives, negatives = int(false.sum()), int((~false).sum())
    if not positives or not negatives:
        raise GraphError("The AUC of the edges needs at least one false and one true edge.")
    ranks = rankdata(-weight)
    return float((ranks[false].sum() - positives * (positives + 1) / 2) / (positives * negatives))
