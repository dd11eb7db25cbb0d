"""How many CPU threads torch may use for a piece of work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread(only: bool = True) -> Iterator[None]:
    """One thread for work made of small pieces, the caller's number for everything else; put back afterwards.

    torch's threads wait for each other by spinning: after every small piece they cost more than they give, and many
    times as much where the cores are shared with other programs.
    """
    before = torch.get_num_threads()
    if only:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
