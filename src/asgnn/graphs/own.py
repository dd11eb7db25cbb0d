"""Attacks computed by this project and included in the package, a few kilobytes of flips each."""

from __future__ import annotations

from dataclasses import replace
from importlib import resources
from numbers import Real

from asgnn.errors import ConfigError
from asgnn.graphs.datasets import DATASETS, find_dataset
from asgnn.graphs.flips import Perturbation
from asgnn.settings import check_number

LARGEST_RATE = 0.25
# attack → dataset → the split whose training labels the attacker knew
OWN_FLIPS: dict[str, dict[str, str]] = {
    "metattack": {"cora": "random:0", "acm": "random:0", "polblogs": "random:0"},
    "nettack": {"cora_ml": "published", "acm": "random:0"},
}


def own_split(name: str, attack: str) -> str:
    """Returns the split that the included flips of a dataset were made for."""
    made_for = OWN_FLIPS.get(attack, {})
    dataset = find_dataset(name).name
    if dataset not in made_for:
        raise ConfigError(
            f"The package does not include {attack} flips of {dataset}"
            f"{', only of ' + ', '.join(made_for) if made_for else ''}; create some with asgnn attack."
        )
    return made_for[dataset]


def own_source(name: str, attack: str, rate: float) -> tuple[str, int]:
    """Returns the name of the file in the package and the number of flips to use (−1: all); raises if there is none."""
    own_split(name, attack)
    dataset = find_dataset(name).name
    if attack == "metattack":
        check_number("rate", rate, 0, LARGEST_RATE, "(]")
        # A greedy attack: its first flips are the attack with a smaller budget.
        return f"{attack}_{dataset}.npz", int(rate * DATASETS[dataset].edges)
    if not isinstance(rate, Real) or rate not in range(1, 6):
        raise ConfigError(f"rate must be 1, 2, 3, 4 or 5 flips per target; it is {rate!r}.")
    return f"{attack}_{dataset}_{int(rate)}.npz", -1


def load_own(name: str, attack: str, rate: float) -> Perturbation:
    """Returns included flips; their ``meta`` has the command, the version and the machine that made them.

    Args:
        name: Dataset: for Metattack cora, acm or polblogs, for Nettack cora_ml or acm.
        attack: ``"metattack"`` or ``"nettack"``.
        rate: For Metattack the flips divided by the edges, above 0 and up to 0.25; for Nettack the flips per target,
            1 to 5.
    """
    file, count = own_source(name, attack, rate)
    with resources.as_file(resources.files("asgnn.graphs") / "resources" / "flips" / file) as path:
        found = Perturbation.load(path)
    if count >= 0:
        found = found.first(count)
    return replace(found, meta={**found.meta, "rate": f"{rate:g}"})
