"""Graph neural networks with adaptive structure, and the attacks and defences to judge them by."""

import os

# Threads that wait by spinning make training many times slower where the cores are shared with something else; waiting
# asleep makes it at most half as slow again where they are not. OpenMP reads this once, before torch is loaded, and
# OMP_WAIT_POLICY=ACTIVE in the environment keeps the spinning for machines that are one's own.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from asgnn.asmp import ASMPParams, Scheme, asmp
from asgnn.errors import AsgnnError
from asgnn.graphs import (
    Perturbation,
    Split,
    diff,
    from_edges,
    load_dataset,
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
    "load_poisoned",
    "predict",
    "published_split",
    "random_split",
    "recipe",
    "validate",
]
