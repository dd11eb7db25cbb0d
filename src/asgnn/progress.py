"""How long work says where it stands."""

from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Called with the steps done and the steps in all."""
