"""The progress callback of long computations."""

from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Called with the number of steps done and the total number of steps."""
