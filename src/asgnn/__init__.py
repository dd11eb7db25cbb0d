"""Graph neural networks with adaptive structure, and the attacks and defences to judge them by."""

from asgnn.asmp import ASMPParams, Scheme, asmp
from asgnn.errors import AsgnnError
from asgnn.graphs import (
    Perturbation,
    Split,
    diff,
    from_edges,
    load_dataset,
    load_own,
    load_poisoned,
    published_split,
    random_split,
    validate,
)
from asgnn.models import APPNP, ASGNN, ASMP, GCN, MLP
from asgnn.training import TrainConfig, Trial, accuracy, fit, fit_many, predict, recipe
from asgnn.version import __version__

__all__ = [
    "APPNP",
    "ASGNN",
    "ASMP",
    "GCN",
    "MLP",
    "ASMPParams",
    "AsgnnError",
    "Perturbation",
    "Scheme",
    "Split",
    "TrainConfig",
    "Trial",
    "__version__",
    "accuracy",
    "asmp",
    "diff",
    "fit",
    "fit_many",
    "from_edges",
    "load_dataset",
    "load_own",
    "load_poisoned",
    "predict",
    "published_split",
    "random_split",
    "recipe",
    "validate",
]
