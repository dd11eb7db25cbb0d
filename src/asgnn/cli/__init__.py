"""The command line."""

from asgnn.cli import experiments, own
from asgnn.cli.app import run

__all__ = ["experiments", "own", "run"]
