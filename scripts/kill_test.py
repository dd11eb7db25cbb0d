"""Kill a small run of ``asgnn reproduce`` at random moments, again and again, and see that nothing comes of it.

    python scripts/kill_test.py --kills 50

First the run is made once undisturbed. Then it is started on a new store and killed (signal 9) after a random time,
counted from the start of the process and uniform between nothing and half of what the undisturbed run took; and started
again on the same store, until it gets to its end. Rounds like that are made until enough kills have hit. At the end of
each, the store must hold what that of the undisturbed run holds. Some seven minutes for 50 kills; exit code 1 if any
store is not equal.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from asgnn.experiments.store import Store

SMALL = ["reproduce", "small", "--search", "small", "--trials", "3", "--batch", "4", "--device", "cpu"]


def start(store: Path, models: str) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "asgnn", *SMALL, "--models", models, "--store", str(store)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment)


def ended(process: subprocess.Popen[bytes], within: float | None) -> bool:
    """Whether the run got to its end in time; else it is dead now."""
    try:
        _, said = process.communicate(timeout=within)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return process.returncode == 0  # it may have been quicker than the signal
    if process.returncode != 0:
        raise SystemExit(f"The run failed by itself:\n{said.decode()}")
    return True


def trainings(path: Path) -> int:
    if not path.exists():
        return 0
    with Store.open(path) as store:
        return store.summary().trainings


def content(path: Path) -> object:
    with Store.open(path, create=False) as store:
        return store.content()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--models", default="gcn,asgnn", help="rows of the table, with commas between")
    parser.add_argument("--seed", type=int, default=0, help="of the random moments")
    given = parser.parse_args()
    moments = random.Random(given.seed)
    with tempfile.TemporaryDirectory() as folder:
        undisturbed = Path(folder) / "undisturbed.sqlite"
        began = time.monotonic()
        ended(start(undisturbed, given.models), None)
        took = time.monotonic() - began
        wanted, total = content(undisturbed), trainings(undisturbed)
        print(f"Undisturbed: {total} trainings in {took:.1f} s.", flush=True)
        kills, rounds, equal, kept = 0, 0, 0, 0
        while kills < given.kills:
            store = Path(folder) / f"killed-{rounds}.sqlite"
            while not ended(start(store, given.models), moments.uniform(0, took / 2) if kills < given.kills else None):
                kills += 1
                found = trainings(store)
                kept += found > 0
                print(f"Kill {kills}: {found} of {total} trainings are kept.", flush=True)
            rounds += 1
            same = content(store) == wanted
            equal += same
            print(
                f"Round {rounds} is at its end, {kills} kills so far: {'equal' if same else 'NOT EQUAL'}.", flush=True
            )
    print(f"{kills} kills in {rounds} rounds, {kept} of them with trainings in the store; {equal} of {rounds} equal.")
    sys.exit(0 if equal == rounds else 1)


if __name__ == "__main__":
    main()
