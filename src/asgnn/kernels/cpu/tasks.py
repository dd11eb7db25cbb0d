"""Parts of a computation on several threads that wait without using the processor, unlike torch's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

ENTRIES = 2**17  # per range of rows
ONE_THREAD_BELOW = 2**20  # values; less takes about as long as starting threads


def ranges(crow: NDArray[Any]) -> list[tuple[int, int]]:
    """Divide the rows of a CSR matrix into ranges (first, last + 1) of about ENTRIES entries.

    They depend on the matrix alone, so sums over ranges do not depend on the number of threads.
    """
    rows = crow.size - 1
    if rows and crow[-1] <= ENTRIES:
        return [(0, rows)]
    starts = np.searchsorted(crow, np.arange(0, max(1, int(crow[-1])), ENTRIES, dtype=crow.dtype))
    bounds = [0, *sorted({*starts.tolist()} - {0, rows}), rows]
    return [(first, last) for first, last in pairwise(bounds) if first < last]


class Crew:
    """Calls functions on as many threads as torch may use, for as long as it is open; on one if there is little work.

    Args:
        tasks: the largest number of tasks at a time.
        values: the number of values that one round of tasks handles.
    """

    def __init__(self, tasks: int, values: int) -> None:
        threads = min(torch.get_num_threads(), tasks) if values >= ONE_THREAD_BELOW else 1
        self.pool = ThreadPoolExecutor(threads) if threads > 1 else None

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *error: object) -> None:
        if self.pool is not None:
            self.pool.shutdown()

    def map(self, task: Callable[..., None], arguments: Sequence[tuple[Any, ...]]) -> None:
        """Call ``task`` with each tuple of arguments and wait for all calls."""
        if self.pool is None or len(arguments) == 1:
            for each in arguments:
                task(*each)
        else:
            list(self.pool.map(lambda each: task(*each), arguments))
