"""The command line."""

from asgnn.cli import challenge, experiments, own
from asgnn.cli.app import run

__all__ = ["challenge", "experiments", "own", "run"]
