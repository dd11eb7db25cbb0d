"""Make the flips that are part of the package (asgnn.graphs.OWN_FLIPS).

    python scripts/own_flips.py --device cuda [--output FOLDER]

Resumes if interrupted. The default folder is that of the package. The metadata of each file names its command.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from asgnn.experiments.attacks import made_case, write_attack
from asgnn.experiments.values import Case, SplitName
from asgnn.graphs import OWN_FLIPS
from asgnn.graphs.own import LARGEST_RATE

FOLDER = Path(__file__).parents[1] / "src" / "asgnn" / "graphs" / "resources" / "flips"


def cases() -> dict[str, Case]:
    """File name → case."""
    found = {}
    for attack, graphs in OWN_FLIPS.items():
        for dataset, name in graphs.items():
            split = SplitName.parse(name)
            if attack == "nettack":
                for count in range(1, 6):
                    found[f"{attack}_{dataset}_{count}.npz"] = made_case(dataset, attack, count, split)
            else:
                found[f"{attack}_{dataset}.npz"] = made_case(dataset, attack, LARGEST_RATE, split)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--output", type=Path, default=FOLDER)
    chosen = parser.parse_args()
    for name, case in cases().items():
        file = write_attack(case, chosen.output / name, device=chosen.device)
        print(f"{name}: {len(file.found)} flips, {file.time}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
