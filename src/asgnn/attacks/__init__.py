"""The attacks: each takes a graph, a budget and a generator and returns the flips it would make."""

from asgnn.attacks.dice import dice
from asgnn.attacks.metattack import metattack
from asgnn.attacks.nettack import nettack, nettack_targets

__all__ = ["dice", "metattack", "nettack", "nettack_targets"]
