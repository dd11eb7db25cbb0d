"""Commands in processes of their own that tests interrupt: at a known point, and gone when the test is over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Seconds after which something that does not end is taken to hang. No test takes a tenth of this on a busy machine.
HANG = 600.0

# For ``before``: ``pause(text)`` prints a line, then waits until the process is interrupted or killed. It waits in
# short steps, because a signal that comes just before one long sleep would be noticed only after it.
PAUSE = f"""
import time

def pause(text):
    print(text, flush=True)
    for _ in range({100 * HANG:.0f}):
        time.sleep(0.01)
    raise TimeoutError("nobody interrupted this process")
"""


@contextmanager
def command(*words: str, before: str = "", cwd: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    """Starts the command line; at the end the process is killed if it still runs, and its pipes are closed.

    The process runs the code ``before`` first. It receives Ctrl-C even if the tests run in the background.
    """
    begin = ["-c", f"{before}\nfrom asgnn.__main__ import main\nmain()"] if before else ["-m", "asgnn"]
    with subprocess.Popen(
        [sys.executable, *begin, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        try:
            yield process
        finally:
            process.kill()
