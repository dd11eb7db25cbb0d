"""Training of witnesses, before the models that use them."""

from __future__ import annotations

import hashlib
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.data import Data

from asgnn.errors import DivergedWarning, FeaturesWarning
from asgnn.graphs import labels_of
from asgnn.graphs.features import Features
from asgnn.graphs.neighbors import uninformative
from asgnn.models import Ensemble
from asgnn.models.base import NodeClassifier
from asgnn.models.witness import Testimony
from asgnn.training.config import Trial
from asgnn.training.recipes import RECIPES

# Seeds of witnesses are far from those of trials, so that no trial repeats the initial weights of its witness.
FIRST_SEED = 2**32
# Temperatures that are compared on the validation nodes.
TEMPERATURES = [2.0 ** (i / 4) for i in range(-8, 9)]
# A witness does not depend on the edges, so it serves every attacked copy of a graph and every setting of a search.
MAX_KEPT = 64
_KEPT: OrderedDict[Hashable, Testimony] = OrderedDict()


def add_witnesses(
    models: Sequence[NodeClassifier],
    trials: Sequence[Trial],
    data: Data,
    features: Features,
    train: Callable[..., list],  # type: ignore[type-arg]
) -> None:
    """Train the witness of every model that has one, and set its ``testimony``.

    Models with equal witness settings and equal training and validation nodes share one. Trained witnesses are kept for
    further calls with the same features, labels and nodes.

    Args:
        models: the models of ``trials``.
        features: of ``data``, on the device to train on.
        train: :func:`~asgnn.training.fit.fit_many`.
    """
    wanted: dict[Hashable, list[int]] = {}
    content = ""
    for i, (model, trial) in enumerate(zip(models, trials, strict=True)):
        if model.witness is not None and model.witness.active:
            content = content or _digest(data)
            asked = replace(model.witness, floor=0.0), trial.config.metric, features.device.type
            wanted.setdefault((content, _digest_of(trial.split.train, trial.split.val), *asked), []).append(i)
    missing = [key for key in wanted if key not in _KEPT]
    reason = uninformative(features) if missing else None
    if reason is not None:
        warnings.warn(f"The witness stands aside. {reason}", FeaturesWarning, stacklevel=3)
        _KEPT.update({key: Testimony(None) for key in missing})
    elif missing:
        firsts = [trials[wanted[key][0]] for key in missing]
        witnesses = [models[wanted[key][0]].witness for key in missing]
        asked_trials = [
            _trial(data, trial, witness.neighbors, FIRST_SEED + witness.seed * witness.models + one)
            for trial, witness in zip(firsts, witnesses, strict=True)
            if witness is not None
            for one in range(witness.models)
        ]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DivergedWarning)  # a witness that diverged has poor probabilities, no more
            fits = iter(train(asked_trials, data, device=features.device))
        y = labels_of(data).cpu()
        for key, trial, witness in zip(missing, firsts, witnesses, strict=True):
            assert witness is not None
            own = [next(fits) for _ in range(witness.models)]
            logits = torch.stack([fit.logits[0] for fit in own])
            temperature = _temperature(logits, y, trial.split.val.cpu())
            ensemble = Ensemble([fit.model for fit in own], temperature).requires_grad_(False)
            _KEPT[key] = Testimony(ensemble)
    for key, at in wanted.items():
        _KEPT.move_to_end(key)
        for i in at:
            models[i].testimony = _KEPT[key]
    while len(_KEPT) > MAX_KEPT:
        _KEPT.popitem(last=False)


def _trial(data: Data, like: Trial, neighbors: int, seed: int) -> Trial:
    """A trial of the edge-free model. Its structure is frozen: there are no false edges that it could find."""
    settings = {"structure": "frozen", "prior_edges": 0.0, "prior_neighbors": neighbors, "prior_weight": 1.0}
    return RECIPES["asgnn"].with_settings({**settings, "metric": like.config.metric}).trial(data, like.split, seed)


def _temperature(logits: Tensor, y: Tensor, nodes: Tensor) -> float:
    """The temperature at which the mean probability (M, N, C) has the lowest loss on ``nodes``."""

    def loss(temperature: float) -> float:
        p = (logits[:, nodes].double() / temperature).softmax(-1).mean(0)
        return float(F.nll_loss(p.clamp(min=1e-12).log(), y[nodes]))

    return min(TEMPERATURES, key=loss)


def _digest(data: Data) -> str:
    x = data.x.detach()
    parts = (x.indices(), x.values()) if x.layout == torch.sparse_coo else (x.to_dense(),)
    return _digest_of(*parts, labels_of(data))


def _digest_of(*tensors: Tensor) -> str:
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(str((tuple(tensor.shape), tensor.dtype)).encode())
        found.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()
