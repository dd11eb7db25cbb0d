"""Experiments: from questions to stored outcomes; the only package that knows the whole order of work."""

from asgnn.experiments.trials import run_trials
from asgnn.experiments.values import Attack, Case, Outcome, SplitName, Training, parse_case

__all__ = ["Attack", "Case", "Outcome", "SplitName", "Training", "parse_case", "run_trials"]
