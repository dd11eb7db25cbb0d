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


def predict(model: nn.Module, data: Data) -> Tensor:
    """Return the predicted class of every node, (N,). The model stays on its device and is left in evaluation mode.

    Edge weights are used as in training; see :func:`~asgnn.training.fit`.
    """
    return _logits(model, data).argmax(-1).to(data.x.device)


@torch.no_grad()
def _logits(model: nn.Module, data: Data) -> Tensor:
    """(N, C) the finite scores of every node, on the device of the model."""
    device = next((p.device for p in model.parameters()), data.x.device)
    features, adj = prepare(data, device)
    classifier = as_model(model).eval()
    classifier.init_lazy(features, adj)
    logits: Tensor = classifier(features, adj)
    if not bool(logits.isfinite().all()):
        raise GraphError("The model's scores are not finite: its training diverged, or the features are far too large.")
    return logits


def accuracy(model: nn.Module, data: Data, nodes: Tensor) -> float:
    """Return the accuracy of the model on ``nodes``, in [0, 1]; nodes without a label are left out.

    Args:
        model: see :func:`~asgnn.training.fit`.
        data: the graph, with labels.
        nodes: node indices, or a mask over all nodes.
    """
    y, nodes = _labelled(data, nodes, "accuracy")
    return float((predict(model, data) == y)[nodes].float().mean())


def roc_auc(model: nn.Module, data: Data, nodes: Tensor) -> float:
    """Return the area under the ROC curve of class 1 against class 0 on ``nodes``, in [0, 1]; ties count half.

    For graphs with two classes. Nodes without a label are left out.

    Args:
        model: see :func:`~asgnn.training.fit`.
        data: the graph, with labels.
        nodes: node indices, or a mask over all nodes.

    Time O(one forward pass + n log n) for n nodes.
    """
    y, nodes = _labelled(data, nodes, "ROC-AUC")
    logits = _logits(model, data).to(y.device)
    if logits.size(-1) != 2 or int(y[nodes].max()) > 1:
        raise GraphError("The ROC-AUC needs a graph and a model with two classes.")
    positive = y[nodes] == 1
    if bool(positive.all()) or not bool(positive.any()):
        raise GraphError("The ROC-AUC needs nodes of both classes.")
    return auc((logits[:, 1] - logits[:, 0])[nodes], positive)


def _labelled(data: Data, nodes: Tensor, what: str) -> tuple[Tensor, Tensor]:
    """The labels of all nodes, and those of ``nodes`` that have one."""
    y = labels_of(data)
    nodes = node_numbers(nodes, y.numel()).to(y.device)
    nodes = nodes[y[nodes] >= 0]
    if nodes.numel() == 0:
        raise GraphError(f"None of the nodes has a label, so the {what} is undefined.")
    return y, nodes


def auc(score: Tensor, positive: Tensor) -> float:
    """The share of pairs of a positive and a negative that ``score`` orders rightly; ties count half, 0 if none."""
    from scipy.stats import rankdata  # imported here because it takes most of a second

    ranks, chosen = rankdata(score.cpu().numpy()), positive.cpu().numpy()
    positives, negatives = int(chosen.sum()), int((~chosen).sum())
    return float((ranks[chosen].sum() - positives * (positives + 1) / 2) / max(positives * negatives, 1))


def edge_auc(seen: Propagation, added: Tensor) -> float:
    """Return the AUC with which the last structure separates false edges from true ones.

    1 means that every false edge has a lower weight than every true one, 0.5 is chance; ties count half.

    Args:
        seen: the result of :meth:`ASGNN.structure`.
        added: (2, F) the undirected edges known to be false, u < v.

    Time O(E log E).
    """
    row, col = seen.edge_index.cpu()
    upper = row < col
    weight = seen.weights[-1].detach().cpu()[upper]
    num_nodes = int(row.max()) + 1
    false = contains(to_keys(added.cpu(), num_nodes), to_keys(torch.stack([row, col])[:, upper], num_nodes))
    if bool(false.all()) or not bool(false.any()):
        raise GraphError("The AUC of the edges needs at least one false and one true edge.")
    return auc(-weight, false)
