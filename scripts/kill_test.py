"""Kill a small run of ``asgnn reproduce`` at random times and check that its results stay the same.

    python scripts/kill_test.py --kills 50

The script runs the command once without kills. Then it starts the command on a new store, kills it (signal 9) after a
random time between 0 and half the duration of the first run, and starts it again on the same store until it finishes.
It repeats such rounds until the number of kills is reached. At the end of each round, the store must be equal to that
of the first run. 50 kills take about seven minutes; the exit code is 1 if a store is not equal.
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
    """Whether the run finished in time; if not, it is killed."""
    try:
        _, said = process.communicate(timeout=within)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return process.returncode == 0  # it may have finished before the signal
    if process.returncode != 0:
        raise SystemExit(f"The run failed:\n{said.decode()}")
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
    parser.add_argument("--models", default="gcn,asgnn", help="rows of the table, separated by commas")
    parser.add_argument("--seed", type=int, default=0, help="of the random times")
    given = parser.parse_args()
    times = random.Random(given.seed)
    with tempfile.TemporaryDirectory() as folder:
        undisturbed = Path(folder) / "undisturbed.sqlite"
        began = time.monotonic()
        ended(start(undisturbed, given.models), None)
        took = time.monotonic() - began
        wanted, total = content(undisturbed), trainings(undisturbed)
        print(f"Without kills: {total} trainings in {took:.1f} s.", flush=True)
        kills, rounds, equal, kept = 0, 0, 0, 0
        while kills < given.kills:
            store = Path(folder) / f"killed-{rounds}.sqlite"
            while not ended(start(store, given.models), times.uniform(0, took / 2) if kills < given.kills else None):
                kills += 1
                found = trainings(store)
                kept += found > 0
                print(f"Kill {kills}: {found} of {total} trainings are stored.", flush=True)
            rounds += 1
            same = content(store) == wanted
            equal += same
            print(f"Round {rounds} finished, {kills} kills so far: {'equal' if same else 'NOT EQUAL'}.", flush=True)
    print(f"{kills} kills in {rounds} rounds, {kept} of them with trainings in the store; {equal} of {rounds} equal.")
    sys.exit(0 if equal == rounds else 1)


if __name__ == "__main__":
    main()
