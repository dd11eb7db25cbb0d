"""How many CPU threads torch may use for a piece of work."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_LOCK = threading.Lock()
_inside, _outside = 0, 1  # callers inside the block, and the number of threads outside it


@contextmanager
def one_thread(only: bool = True) -> Iterator[None]:
    """One thread for work made of small pieces, the caller's number for everything else; put back afterwards.

    torch's threads wait for each other by spinning: after every small piece they cost more than they give, and many
    times as much where the cores are shared with other programs. Several callers may be inside at once; the number
    found by the first is put back by each.
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
