"""The command line."""

from asgnn.cli import experiments
from asgnn.cli.app import run

__all__ = ["experiments", "run"]
