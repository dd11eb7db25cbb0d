"""Calibration of probabilities: temperatures, and how far confidences are from the share of hits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from asgnn.errors import GraphError
from asgnn.settings import check_choice, check_count

LEAST = 1e-12  # probabilities are not smaller than this in a logarithm
Bins = Literal["width", "mass"]


def temperature_of(logits: Tensor, y: Tensor, temperatures: Sequence[float], doubt: float = 0.0) -> tuple[float, float]:
    r"""Return the temperature with the lowest loss, and that loss.

    .. math:: -\frac{1}{n} \sum_i \sum_c t_{ic} \log \frac{1}{M} \sum_m \mathrm{softmax}(H_m / \tau)_{ic}

    with :math:`t_{ic}` = 1 − d for the label of node i and d / (C − 1) for every other class. This is the loss of an
    :class:`~asgnn.models.Ensemble` of M models with temperature τ; one model is M = 1. Of equal losses the lower
    temperature is taken.

    Args:
        logits: (M, n, C) the scores of each model for n nodes.
        y: (n,) their labels.
        temperatures: those that are compared.
        doubt: d. Without it, nodes that are all classified right have the lowest temperature as their best.
            :func:`succession` is that of Laplace's rule.

    Time O(M n C) for each temperature.
    """
    logits = logits.double()
    others = doubt / max(logits.size(-1) - 1, 1)
    found = []
    for temperature in temperatures:
        log_p = (logits / temperature).softmax(-1).mean(0).clamp(min=LEAST).log()
        loss = (1 - doubt - others) * F.nll_loss(log_p, y)
        if doubt:
            loss -= others * log_p.sum(-1).mean()
        found.append((float(loss), temperature))
    least, best = min(found)
    return best, least


def succession(nodes: int) -> float:
    """Laplace's estimate of the share of errors if none was seen among ``nodes``."""
    return 1 / (nodes + 2)


def calibration_error(probabilities: Tensor, y: Tensor, bins: int = 15, by: Bins = "width") -> float:
    """Return the expected calibration error: the mean of \\|confidence − share of hits\\| over bins of nodes.

    The confidence of a node is the probability of its predicted class. A bin counts as many times as it has nodes.

    Args:
        probabilities: (n, C).
        y: (n,) the labels.
        bins: their number.
        by: "width" divides [0, 1] into intervals of equal length, "mass" the nodes by their confidence into parts of
            equal size, up to one node.
    """
    check_count("bins", bins)
    check_choice("by", by, ("width", "mass"))
    if y.numel() == 0:
        raise GraphError("The calibration error of no nodes is undefined.")
    confidence, predicted = probabilities.double().max(-1)
    gap = confidence - (predicted == y).double()
    if by == "width":
        at = (confidence * bins).ceil().long().clamp(1, bins) - 1  # bins are open below: (0, 1/15], (1/15, 2/15], …
    else:
        at = torch.empty_like(y)
        at[confidence.argsort(stable=True)] = torch.arange(y.numel(), device=y.device) * bins // y.numel()
    sums = torch.zeros(bins, dtype=torch.float64, device=y.device).index_add_(0, at, gap)
    return float(sums.abs().sum()) / y.numel()


def log_grid(low: float, high: float, count: int) -> list[float]:
    """``count`` numbers from ``low`` to ``high`` in equal ratios."""
    step = math.log(high / low) / (count - 1)
    return [low * math.exp(i * step) for i in range(count)]
