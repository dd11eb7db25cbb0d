"""Limits on the CPU threads that torch uses."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_LOCK = threading.Lock()
_inside, _outside = 0, 1  # callers inside the block; number of threads outside it


@contextmanager
def one_thread(only: bool = True) -> Iterator[None]:
    """Run the block on one thread, then restore the number of threads; do nothing if ``only`` is false.

    For work made of many small operations. torch's threads wait for each other by spinning, which costs more than it
    gains after a small operation, and far more when other programs use the same cores. Several callers may be inside
    at once; each restores the number that the first one found.
    """
    global _inside, _outside
    if not only:
        yield
        return
    with _LOCK:
        _outside = torch.get_num_threads() if _inside == 0 else _outside
        _inside += 1
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _LOCK:
            _inside -= 1
            torch.set_num_threads(_outside)
