"""The attacks: each takes a graph, a budget and a generator and returns the flips it would make."""

from asgnn.attacks.dice import dice
from asgnn.attacks.metattack import metattack

__all__ = ["dice", "metattack"]
