"""Runs odd cases against the library and the command line and counts their outcomes.

    python scripts/fuzz.py --cases 5000 --seed 0

Exits with 1 if a case fails; prints a command that repeats each failure.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.fuzz import FAILURES, FAMILIES, run_case


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--family", choices=FAMILIES, help="only cases of this family")
    arguments = parser.parse_args()
    began, counts, failed = time.perf_counter(), Counter[tuple[str, str]](), 0
    for number in range(arguments.first, arguments.first + arguments.cases):
        found = run_case(arguments.seed, number, arguments.family)
        counts[found.family, found.outcome] += 1
        if found.failed:
            failed += 1
            family = f" --family {found.family!r}" if arguments.family else ""
            print(
                f"{found.outcome} in {found.family}: {found.detail}\n"
                f"    python scripts/fuzz.py --seed {arguments.seed} --first {number} --cases 1{family}",
                flush=True,
            )
    outcomes = ("right", "sentence", *FAILURES)
    print(f"{'family':>14} " + " ".join(f"{name:>9}" for name in outcomes))
    for family in (*FAMILIES, "all"):
        row = [sum(n for (name, what), n in counts.items() if what == o and family in (name, "all")) for o in outcomes]
        print(f"{family:>14} " + " ".join(f"{count:>9}" for count in row))
    print(f"{arguments.cases} cases, {failed} failures, {time.perf_counter() - began:.0f} s")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
