"""Compilation by Numba with a cache on disk that may fail to be read or written, but never stops a computation."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from numba import njit
from numba.core.caching import FunctionCache


class _Cache(FunctionCache):
    """Numba's cache, for which a full disk or a damaged file only means to compile again."""

    def save_overload(self, sig: Any, data: Any) -> None:
        with contextlib.suppress(Exception):
            super().save_overload(sig, data)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        with contextlib.suppress(Exception):
            return super().load_overload(sig, target_context)
        return None


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function on its first call for each combination of types; it runs without Python's global lock.

    The machine code is kept beside the source if that folder can be written, else in the user's cache folder, or in
    ``$NUMBA_CACHE_DIR``; if none can be written, it is compiled again in each process. Numba notices a change of the
    function's own file only: after a change of :mod:`asgnn.kernels.cpu.vectors`, remove the ``*.nbi`` files.

    The order of sums is as written: floating-point operations are not reordered. A division by zero gives ±inf or NaN.
    """
    dispatcher = njit(nogil=True, error_model="numpy")(function)
    with contextlib.suppress(RuntimeError, OSError):  # no folder for the cache
        dispatcher._cache = _Cache(function)
    return dispatcher


inlined = njit(inline="always")
"""Makes a function part of each compiled function that calls it, so that constants among its arguments are known."""
