"""The command line."""

from asgnn.cli import certificates, challenge, experiments, own
from asgnn.cli.app import run

__all__ = ["certificates", "challenge", "experiments", "own", "run"]
