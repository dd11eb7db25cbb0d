"""Challenges of a model by attackers who know it: many attacks, and the worst of them for each budget."""

from asgnn.challenge.attempts import EVASION, POISONING, WAYS, Way, chosen
from asgnn.challenge.controls import Memoriser, on_matrices
from asgnn.challenge.ledger import Ledger
from asgnn.challenge.nodes import NodesChallenge, challenge_nodes
from asgnn.challenge.signs import Probe, probe, signs_of_masking
from asgnn.challenge.suite import Challenge, challenge_evasion, challenge_poisoning, trained_on
from asgnn.challenge.unit_test import UnitTest, load_unit_test
from asgnn.challenge.values import Attempt, AttemptOutcome, Envelope, Made

__all__ = [
    "EVASION",
    "POISONING",
    "WAYS",
    "Attempt",
    "AttemptOutcome",
    "Challenge",
    "Envelope",
    "Ledger",
    "Made",
    "Memoriser",
    "NodesChallenge",
    "Probe",
    "UnitTest",
    "Way",
    "challenge_evasion",
    "challenge_nodes",
    "challenge_poisoning",
    "chosen",
    "load_unit_test",
    "on_matrices",
    "probe",
    "signs_of_masking",
    "trained_on",
]
