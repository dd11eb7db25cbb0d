"""Training by several processes of torch.distributed, on one machine or on many."""

from asgnn.distributed.fit import MODELS, DistributedFit, fit

__all__ = ["MODELS", "DistributedFit", "fit"]
