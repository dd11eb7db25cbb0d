"""The models: one short file each; every one trains alone or stacked with others of its kind."""

from asgnn.models.appnp import APPNP
from asgnn.models.asgnn import ASGNN, ASMP
from asgnn.models.base import NodeClassifier, stack, unstack
from asgnn.models.gcn import GCN
from asgnn.models.mlp import MLP
from asgnn.models.prognn import ProGNN

__all__ = ["APPNP", "ASGNN", "ASMP", "GCN", "MLP", "NodeClassifier", "ProGNN", "stack", "unstack"]
