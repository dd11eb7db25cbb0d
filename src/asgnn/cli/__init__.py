"""The command line."""

from asgnn.cli import certificates, experiments, own
from asgnn.cli.app import run

__all__ = ["certificates", "experiments", "own", "run"]
