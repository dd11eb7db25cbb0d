"""Experiments: from questions to stored outcomes and the report."""

from asgnn.experiments.trials import run_trials
from asgnn.experiments.values import Attack, Case, Outcome, SplitName, Training, parse_case

__all__ = ["Attack", "Case", "Outcome", "SplitName", "Training", "parse_case", "run_trials"]
