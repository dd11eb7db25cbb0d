"""Attacks: functions that take a graph, a budget and a random generator and return a perturbation."""

from asgnn.attacks.dice import dice
from asgnn.attacks.metattack import metattack
from asgnn.attacks.minmax import minmax
from asgnn.attacks.nettack import nettack, nettack_targets
from asgnn.attacks.pgd import pgd
from asgnn.attacks.prbcd import grbcd, prbcd
from asgnn.attacks.random_flips import random_flips
from asgnn.attacks.surrogate import SurrogateGCN, fit_surrogate
from asgnn.attacks.unrolled import Unrolled, UnrolledTraining, meta_greedy, meta_prbcd

__all__ = [
    "SurrogateGCN",
    "Unrolled",
    "UnrolledTraining",
    "dice",
    "fit_surrogate",
    "grbcd",
    "meta_greedy",
    "meta_prbcd",
    "metattack",
    "minmax",
    "nettack",
    "nettack_targets",
    "pgd",
    "prbcd",
    "random_flips",
]
