"""The attacks: each takes a graph, a budget and a generator and returns the flips it would make."""

from asgnn.attacks.dice import dice
from asgnn.attacks.metattack import metattack
from asgnn.attacks.minmax import minmax
from asgnn.attacks.nettack import nettack, nettack_targets
from asgnn.attacks.pgd import pgd
from asgnn.attacks.prbcd import grbcd, prbcd
from asgnn.attacks.random_flips import random_flips
from asgnn.attacks.surrogate import Surrogate, fit_surrogate

__all__ = [
    "Surrogate",
    "dice",
    "fit_surrogate",
    "grbcd",
    "metattack",
    "minmax",
    "nettack",
    "nettack_targets",
    "pgd",
    "prbcd",
    "random_flips",
]
