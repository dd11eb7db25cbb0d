"""The models, one file each; every model trains alone or stacked with others of its class."""

from asgnn.models.airgnn import AirGNN
from asgnn.models.appnp import APPNP
from asgnn.models.asgnn import ASGNN, ASMP
from asgnn.models.base import NodeClassifier, stack, unstack
from asgnn.models.elastic import ElasticGNN
from asgnn.models.ensemble import Ensemble
from asgnn.models.gat import GAT
from asgnn.models.gcn import GCN
from asgnn.models.gcn_jaccard import GCNJaccard
from asgnn.models.gcn_svd import GCNSVD
from asgnn.models.gnnguard import GNNGuard
from asgnn.models.mlp import MLP
from asgnn.models.prognn import ProGNN
from asgnn.models.rung import RUNG
from asgnn.models.sgc import SGC
from asgnn.models.softmedian import SoftMedianGCN
from asgnn.models.witness import Witness

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
    "AirGNN",
    "ElasticGNN",
    "Ensemble",
    "GCNJaccard",
    "GNNGuard",
    "NodeClassifier",
    "ProGNN",
    "SoftMedianGCN",
    "Witness",
    "stack",
    "unstack",
]
