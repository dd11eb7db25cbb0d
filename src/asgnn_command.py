"""Starts the command line.

Outside of the package, because importing the package loads torch, which takes seconds, and Ctrl-C during that time must
not print a traceback.
"""

import sys


def main() -> None:
    try:
        from asgnn.__main__ import main as begin
    except KeyboardInterrupt:
        print("asgnn: Interrupted before anything was started.", file=sys.stderr)
        sys.exit(130)
    begin()
