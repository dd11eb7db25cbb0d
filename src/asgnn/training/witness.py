"""Training of witnesses, before the models that use them."""

from __future__ import annotations

import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch_geometric.data import Data

from asgnn.errors import DivergedWarning, FeaturesWarning
from asgnn.graphs import labels_of
from asgnn.graphs.features import Features
from asgnn.graphs.neighbors import uninformative
from asgnn.graphs.similarity import Metric, views_of
from asgnn.models import Ensemble
from asgnn.models.base import NodeClassifier
from asgnn.models.witness import Testimony, Witness
from asgnn.training.calibrate import temperature_of
from asgnn.training.config import Trial
from asgnn.training.recipes import RECIPES
from asgnn.training.tuning_file import content_hash, split_hash

if TYPE_CHECKING:
    from asgnn.training.fit import Fit

# Seeds of witnesses are far from those of trials, so that no trial repeats the initial weights of its witness.
FIRST_SEED = 2**32
# Both are trained, and the better one on the validation nodes is taken: much dropout suits bags of words, little suits
# a few dense features.
DROPOUTS = (0.8, 0.3)
# Temperatures that are compared on the validation nodes.
TEMPERATURES = [2.0 ** (i / 4) for i in range(-8, 9)]
# The settings of a training that its witness is trained with, too.
SHARED = ("metric", "parts", "parts_per_step", "partition")
# A witness does not depend on the edges, so it serves every attacked copy of a graph and every setting of a search.
MAX_KEPT = 64
_KEPT: OrderedDict[Hashable, Testimony] = OrderedDict()
_LOCK = threading.Lock()


def add_witnesses(
    models: Sequence[NodeClassifier],
    trials: Sequence[Trial],
    data: Data,
    features: Features,
    device: torch.device,
    train: Callable[..., list[Fit]],
) -> None:
    """Train the witness of every model that has one, and set its ``testimony``.

    Models with equal witness settings and equal training and validation nodes share one. Trained witnesses are kept for
    further calls with the same features, labels and nodes.

    Args:
        models: the models of ``trials``.
        features: of ``data``.
        device: the device to train on.
        train: :func:`~asgnn.training.fit.fit_many`.
    """
    wanted: dict[Hashable, list[int]] = {}
    content = ""
    for i, (model, trial) in enumerate(zip(models, trials, strict=True)):
        if model.witness is not None and model.witness.active:
            content = content or content_hash(data.x, labels_of(data))
            asked = (
                replace(model.witness.silent(), floor=0.0),
                tuple((name, getattr(trial.config, name)) for name in SHARED),
                device.type,
            )
            wanted.setdefault((content, split_hash(trial.split), *asked), []).append(i)
    if not wanted:
        return
    with _LOCK:  # batches that are trained side by side want the same witness
        _train_missing(wanted, models, trials, data, features, device, train)
        for key, at in wanted.items():
            _KEPT.move_to_end(key)
            for i in at:
                models[i].testimony = _KEPT[key]
        while len(_KEPT) > MAX_KEPT:
            _KEPT.popitem(last=False)


def _train_missing(
    wanted: Mapping[Hashable, Sequence[int]],
    models: Sequence[NodeClassifier],
    trials: Sequence[Trial],
    data: Data,
    features: Features,
    device: torch.device,
    train: Callable[..., list[Fit]],
) -> None:
    missing = [key for key in wanted if key not in _KEPT]
    reason = uninformative(features) if missing else None
    if reason is not None:
        warnings.warn(f"The witness stands aside. {reason}", FeaturesWarning, stacklevel=4)
        _KEPT.update({key: Testimony(None) for key in missing})
    elif missing:
        firsts = [trials[wanted[key][0]] for key in missing]
        witnesses = [witness for key in missing if (witness := models[wanted[key][0]].witness) is not None]
        views = views_of(features)
        asked = [
            _trial(data, trial, witness, dropout, view, one)
            for trial, witness in zip(firsts, witnesses, strict=True)
            for dropout in DROPOUTS
            for view in views[: witness.views]
            for one in range(witness.models)
        ]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DivergedWarning)  # a witness that diverged has poor probabilities, no more
            fits = iter(train(asked, data, device=device))
        y = labels_of(data).cpu()
        for key, trial, witness in zip(missing, firsts, witnesses, strict=True):
            members = witness.models * len(views[: witness.views])
            groups = [[next(fits) for _ in range(members)] for _ in DROPOUTS]
            _KEPT[key] = Testimony(_best(groups, y, trial.split.val.cpu()))


def _trial(data: Data, like: Trial, witness: Witness, dropout: float, view: Metric, number: int) -> Trial:
    """A trial of the edge-free model. Its structure is frozen: there are no false edges that it could find."""
    settings = {"structure": "frozen", "prior_edges": 0.0, "prior_neighbors": witness.neighbors, "prior_weight": 1.0}
    settings["prior_metric"] = view
    shared = {name: getattr(like.config, name) for name in SHARED}
    own = RECIPES["asgnn"].with_settings({**settings, "dropout": dropout, **shared})
    # as many steps as on the whole graph
    own = own.with_settings({"epochs": -(-own.config.epochs // own.config.steps)})
    trial = own.trial(data, like.split, FIRST_SEED + witness.seed * witness.models + number)
    trial.model.to(data.x.dtype)
    return trial


def _best(groups: Sequence[Sequence[Fit]], y: Tensor, nodes: Tensor) -> Ensemble:
    """The group and the temperature with the lowest loss of the mean probability on ``nodes``."""
    losses = []
    for i, group in enumerate(groups):
        logits = torch.stack([fit.logits[0][nodes] for fit in group])
        temperature, loss = temperature_of(logits, y[nodes], TEMPERATURES)
        losses.append((loss, i, temperature))
    _, best, temperature = min(losses)
    return Ensemble([fit.model for fit in groups[best]], temperature).requires_grad_(False)
