"""Graph neural networks with adaptive structure, and the attacks and defences to judge them by."""

from typing import TYPE_CHECKING, Any

from asgnn.asmp import ASMPParams, Scheme, asmp
from asgnn.audit import Audit, CleanEdges, audit_graph, clean, write_audit_page
from asgnn.errors import AsgnnError, DivergedWarning, FeaturesWarning, StructureWarning
from asgnn.graphs import (
    FeaturePrior,
    NamedGraph,
    Perturbation,
    Split,
    diff,
    from_edges,
    from_networkx,
    from_scipy,
    load_dataset,
    load_own,
    load_poisoned,
    named_graph,
    published_split,
    random_split,
    read_graph,
    stratified_split,
    validate,
)
from asgnn.models import (
    APPNP,
    ASGNN,
    ASMP,
    GAT,
    GCN,
    GCNSVD,
    MLP,
    RUNG,
    SGC,
    AirGNN,
    ElasticGNN,
    Ensemble,
    GCNJaccard,
    GNNGuard,
    NodeClassifier,
    ProGNN,
    SoftMedianGCN,
    Witness,
)
from asgnn.training import Fit, TrainConfig, Trial, Tuned, accuracy, fit, fit_many, predict, recipe, roc_auc, tune
from asgnn.version import __version__

if TYPE_CHECKING:
    from asgnn.estimator import NodeSamples, RobustNodeClassifier

# They need scikit-learn, which takes a second to import.
LAZY = {"NodeSamples": "asgnn.estimator", "RobustNodeClassifier": "asgnn.estimator"}

__all__ = [
    "APPNP",
    "ASGNN",
    "ASMP",
    "GAT",
    "GCN",
    "GCNSVD",
    "MLP",
    "RUNG",
    "SGC",
    "ASMPParams",
    "AirGNN",
    "AsgnnError",
    "Audit",
    "CleanEdges",
    "DivergedWarning",
    "ElasticGNN",
    "Ensemble",
    "FeaturePrior",
    "FeaturesWarning",
    "Fit",
    "GCNJaccard",
    "GNNGuard",
    "NamedGraph",
    "NodeClassifier",
    "NodeSamples",
    "Perturbation",
    "ProGNN",
    "RobustNodeClassifier",
    "Scheme",
    "SoftMedianGCN",
    "Split",
    "StructureWarning",
    "TrainConfig",
    "Trial",
    "Tuned",
    "Witness",
    "__version__",
    "accuracy",
    "asmp",
    "audit_graph",
    "clean",
    "diff",
    "fit",
    "fit_many",
    "from_edges",
    "from_networkx",
    "from_scipy",
    "load_dataset",
    "load_own",
    "load_poisoned",
    "named_graph",
    "predict",
    "published_split",
    "random_split",
    "read_graph",
    "recipe",
    "roc_auc",
    "stratified_split",
    "tune",
    "validate",
    "write_audit_page",
]


def __getattr__(name: str) -> Any:
    if name not in LAZY:
        raise AttributeError(f"module 'asgnn' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *LAZY})
