"""Experiments: from the name of a dataset to a record of figures; the only room that knows the whole order."""

from asgnn.experiments.run import Cell, Record, run_cell

__all__ = ["Cell", "Record", "run_cell"]
