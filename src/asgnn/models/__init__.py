"""The models: one short file each; every one trains alone or stacked with others of its kind."""

from asgnn.models.airgnn import AirGNN
from asgnn.models.appnp import APPNP
from asgnn.models.asgnn import ASGNN, ASMP
from asgnn.models.base import NodeClassifier, stack, unstack
from asgnn.models.elastic import ElasticGNN
from asgnn.models.gcn import GCN
from asgnn.models.gnnguard import GNNGuard
from asgnn.models.mlp import MLP
from asgnn.models.rung import RUNG
from asgnn.models.softmedian import SoftMedianGCN

__all__ = [
    "APPNP",
    "ASGNN",
    "ASMP",
    "GCN",
    "MLP",
    "RUNG",
    "AirGNN",
    "ElasticGNN",
    "GNNGuard",
    "NodeClassifier",
    "SoftMedianGCN",
    "stack",
    "unstack",
]
