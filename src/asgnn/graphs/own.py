"""Attacks that this project made itself and carries in the package, a few kilobytes of flips each."""

from __future__ import annotations

from dataclasses import replace
from importlib import resources
from numbers import Real

from asgnn.errors import ConfigError
from asgnn.graphs.datasets import DATASETS, find_dataset
from asgnn.graphs.flips import Perturbation

LARGEST_RATE = 0.25
# attack → dataset → the split whose training labels the attacker knew
OWN_FLIPS: dict[str, dict[str, str]] = {
    "metattack": {"cora": "random:0", "acm": "random:0"},
    "nettack": {"cora_ml": "published", "acm": "random:0"},
}


def own_split(name: str, attack: str) -> str:
    """The split that our flips of a graph were made for."""
    made_for = OWN_FLIPS.get(attack, {})
    dataset = find_dataset(name).name
    if dataset not in made_for:
        raise ConfigError(
            f"This package has no {attack} flips of {dataset} of its own, only of {' and '.join(made_for)}; "
            "asgnn attack makes some."
        )
    return made_for[dataset]


def own_source(name: str, attack: str, rate: float) -> tuple[str, int]:
    """The name of the file in the package and the number of flips to take from it; a sentence where there is none."""
    own_split(name, attack)
    dataset = find_dataset(name).name
    if not isinstance(rate, Real):
        raise ConfigError(f"The rate must be a number; it is {rate!r}.")
    if attack == "metattack":
        if not 0 < rate <= LARGEST_RATE:
            raise ConfigError(f"Our metattack flips go up to a rate of {LARGEST_RATE:g}; {rate:g} was asked for.")
        # A greedy attack: the smaller one is the beginning of the larger one.
        return f"{attack}_{dataset}.npz", int(rate * DATASETS[dataset].edges)
    if rate not in range(1, 6):
        raise ConfigError(f"Our nettack flips are for 1, 2, 3, 4 or 5 flips a target; {rate:g} was asked for.")
    return f"{attack}_{dataset}_{int(rate)}.npz", -1


def load_own(name: str, attack: str, rate: float) -> Perturbation:
    """The flips that this project's attack made on a graph; ``meta`` has the command, the version and the machine.

    Args:
        name: Dataset: for Metattack cora or acm, for Nettack cora_ml or acm.
        attack: ``"metattack"`` or ``"nettack"``.
        rate: For Metattack the flips as a share of the edges, above 0 and up to 0.25; for Nettack the flips for
            each target, 1 to 5.
    """
    file, count = own_source(name, attack, rate)
    with resources.as_file(resources.files("asgnn.graphs") / "resources" / "flips" / file) as path:
        found = Perturbation.load(path)
    if count >= 0:
        found = found.first(count)
    return replace(found, meta={**found.meta, "rate": f"{rate:g}"})
