"""Attacks: functions that take a graph, a budget and a random generator and return a perturbation."""

from asgnn.attacks.dice import dice
from asgnn.attacks.evolve import evolve
from asgnn.attacks.feature_flips import feature_flips
from asgnn.attacks.join_unlike import join_unlike
from asgnn.attacks.local import LocalEvasion, local_evasion
from asgnn.attacks.metattack import metattack
from asgnn.attacks.minmax import minmax
from asgnn.attacks.nettack import nettack, nettack_targets
from asgnn.attacks.pgd import pgd
from asgnn.attacks.poison import meta_greedy, meta_pgd
from asgnn.attacks.poison_pairs import MatrixVictim, Start, meta_pgd_pairs
from asgnn.attacks.prbcd import grbcd, prbcd
from asgnn.attacks.random_flips import random_flips
from asgnn.attacks.smoothing import smoothed, straight_through
from asgnn.attacks.surrogate import SurrogateGCN, fit_surrogate
from asgnn.attacks.unrolled import Unrolled, UnrolledTraining
from asgnn.attacks.weakest_first import weakest_first

__all__ = [
    "LocalEvasion",
    "MatrixVictim",
    "Start",
    "SurrogateGCN",
    "Unrolled",
    "UnrolledTraining",
    "dice",
    "evolve",
    "feature_flips",
    "fit_surrogate",
    "grbcd",
    "join_unlike",
    "local_evasion",
    "meta_greedy",
    "meta_pgd",
    "meta_pgd_pairs",
    "metattack",
    "minmax",
    "nettack",
    "nettack_targets",
    "pgd",
    "prbcd",
    "random_flips",
    "smoothed",
    "straight_through",
    "weakest_first",
]
