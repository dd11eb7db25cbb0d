"""Make the flips that the package carries (asgnn.graphs.OWN_FLIPS), each by the command that its meta names.

    python scripts/own_flips.py --device cuda [--output FOLDER]

A stopped run goes on where it was. With the default folder it is the package's own that is filled.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from asgnn.experiments.attack import AttackSpec, keep_attack
from asgnn.graphs import OWN_FLIPS
from asgnn.graphs.own import LARGEST_RATE

FOLDER = Path(__file__).parents[1] / "src" / "asgnn" / "graphs" / "resources" / "flips"


def specs() -> dict[str, AttackSpec]:
    """File name → what makes it."""
    found = {}
    for attack, graphs in OWN_FLIPS.items():
        for dataset, split in graphs.items():
            if attack == "nettack":
                for count in range(1, 6):
                    spec = AttackSpec(dataset, attack, per_target=count, split=split)
                    found[f"{attack}_{dataset}_{count}.npz"] = spec
            else:
                found[f"{attack}_{dataset}.npz"] = AttackSpec(dataset, attack, rate=LARGEST_RATE, split=split)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--output", type=Path, default=FOLDER)
    chosen = parser.parse_args()
    for name, spec in specs().items():
        kept = keep_attack(spec, chosen.output / name, device=chosen.device)
        print(f"{name}: {len(kept.found)} flips, {kept.said}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
