"""Starts the command line.

Beside the package and not in it: to import the package is to load torch, which takes seconds, and Ctrl-C during these
is to end in a sentence as it does everywhere else.
"""

import sys


def main() -> None:
    try:
        from asgnn.__main__ import main as begin
    except KeyboardInterrupt:
        print("asgnn: Interrupted before anything was begun.", file=sys.stderr)
        sys.exit(130)
    begin()
