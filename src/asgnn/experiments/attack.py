"""An attack as a value: which graph, which method, how much; and the run of it, which can be stopped and goes on."""

from __future__ import annotations

import inspect
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Data

from asgnn.attacks import dice, grbcd, metattack, minmax, nettack, nettack_targets, pgd, prbcd, random_flips
from asgnn.attacks.checkpoint import Checkpoint, FileCheckpoint
from asgnn.errors import ConfigError
from asgnn.experiments.machine import machine
from asgnn.experiments.run import check_split_name, find_split
from asgnn.graphs import Perturbation, Split, find_dataset, load_dataset
from asgnn.progress import Progress
from asgnn.version import __version__

# name → the attack and, in order, what it takes besides the graph
METHODS: dict[str, tuple[Callable[..., Perturbation], tuple[str, ...]]] = {
    "metattack": (metattack, ("budget", "labelled", "rng")),
    "nettack": (nettack, ("per_target", "labelled", "targets", "rng")),
    "pgd": (pgd, ("budget", "labelled", "rng")),
    "minmax": (minmax, ("budget", "labelled", "rng")),
    "prbcd": (prbcd, ("budget", "labelled", "rng")),
    "grbcd": (grbcd, ("budget", "labelled", "rng")),
    "dice": (dice, ("budget", "rng")),
    "random": (random_flips, ("budget", "rng")),
}
TARGETED = tuple(name for name, (_, takes) in METHODS.items() if "targets" in takes)


@dataclass(frozen=True)
class AttackSpec:
    """What is attacked and how: equal specs on equal machines give equal flips.

    Args:
        dataset: a name of ``asgnn.graphs.DATASETS``.
        method: a name of :data:`METHODS`.
        rate: flips as a share of the edges, for attacks on the whole graph.
        per_target: flips for each target, for targeted attacks; the targets are the test nodes of degree above 10.
        split: "published", or "random:I" for the random split of trial I: whose training labels the attacker knows.
        seed: of the attack's generator.
        settings: further arguments of the attack, by name.
    """

    dataset: str
    method: str
    rate: float = 0.0
    per_target: int = 0
    split: str = "published"
    seed: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dataset", find_dataset(self.dataset).name)
        if self.method not in METHODS:
            raise ConfigError(f"There is no attack {self.method!r}; the attacks are {', '.join(METHODS)}.")
        if self.method in TARGETED and (self.rate or self.per_target < 1):
            raise ConfigError(f"{self.method} attacks single nodes: give it --per-target, 1 or more, and no --rate.")
        if self.method not in TARGETED and (self.per_target or not 0 < self.rate <= 1):
            raise ConfigError(f"{self.method} attacks the whole graph: give it --rate, above 0 and at most 1, only.")
        check_split_name(self.split, self.dataset)
        if self.split == "random":
            raise ConfigError("An attack is made against one split: name its trial, as in random:0.")
        known = settings_of(self.method)
        unknown = [name for name in self.settings if name not in known]
        if unknown:
            raise ConfigError(f"{self.method} has no setting {unknown[0]!r}, only {', '.join(known)}.")

    @property
    def command(self) -> str:
        """The command line that makes these flips."""
        how_much = ["--per-target", str(self.per_target)] if self.per_target else ["--rate", f"{self.rate:g}"]
        kind, _, trial = self.split.partition(":")
        words = ["asgnn", "attack", "--dataset", self.dataset, "--method", self.method, *how_much, "--split", kind]
        words += ["--trial", trial] if trial else []
        words += ["--seed", str(self.seed)]
        for name, value in sorted(self.settings.items()):
            words += ["--set", f"{name}={value}"]
        return shlex.join(words)


def settings_of(method: str) -> dict[str, bool | int | float | str]:
    """The settings of an attack that a command line can give, with their defaults."""
    parameters = inspect.signature(METHODS[method][0]).parameters.values()
    return {p.name: p.default for p in parameters if isinstance(p.default, bool | int | float | str)}


def parse_settings(method: str, words: Sequence[str]) -> dict[str, bool | int | float | str]:
    """Settings given as ``name=value``, each of the type of its default."""
    known = settings_of(method) if method in METHODS else {}
    found: dict[str, bool | int | float | str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise ConfigError(f"A setting is given as name=value, and {word!r} is not.")
        default = known.get(name, "")
        try:
            if isinstance(default, bool):
                found[name] = {"true": True, "false": False}[value.lower()]
            else:
                found[name] = type(default)(value)
        except (KeyError, ValueError):
            kind = "true or false" if isinstance(default, bool) else f"a number like {default}"
            raise ConfigError(f"The setting {name} of {method} must be {kind}, and {value!r} is not.") from None
    return found


def run_attack(
    spec: AttackSpec,
    data: Data,
    *,
    device: str = "cpu",
    checkpoint: Checkpoint | None = None,
    progress: Progress | None = None,
) -> Perturbation:
    """Attack the graph ``data``, which is the spec's, and say in ``meta`` by which command, version and machine."""
    split = find_split(spec.split, data, spec.dataset)
    attack, takes = METHODS[spec.method]
    given = _inputs(spec, data, split)
    options: dict[str, Any] = {"device": device, "checkpoint": checkpoint, "progress": progress}
    known = inspect.signature(attack).parameters
    options = {name: value for name, value in options.items() if name in known} | dict(spec.settings)
    found = attack(data, *(given[name] for name in takes), **options)
    where = machine(device if "device" in known else "cpu")
    about = {"dataset": spec.dataset, "split": spec.split, "seed": str(spec.seed), "command": spec.command}
    about |= {"rate": f"{spec.per_target or spec.rate:g}", "version": __version__, "machine": where}
    return replace(found, meta={**found.meta, **about})


@dataclass(frozen=True, eq=False)
class Kept:
    """An attack that is on the disk: its flips, what they do to the graph, and whether they were there already."""

    found: Perturbation
    added: int
    removed: int
    between: float | None
    rate: float
    seconds: float | None

    @property
    def said(self) -> str:
        return "found as an earlier run left it" if self.seconds is None else f"{self.seconds:.1f} s"

    def as_dict(self) -> dict[str, Any]:
        counts = {"flips": len(self.found), "added": self.added, "removed": self.removed}
        return {**self.found.meta, **counts, "between": self.between, "rate": self.rate, "seconds": self.seconds}


def keep_attack(
    spec: AttackSpec, path: Path, *, device: str = "cpu", fresh: bool = False, progress: Progress | None = None
) -> Kept:
    """Run the attack into a file; what an earlier run of the same spec finished is taken, what it left half goes on.

    A file of another attack at the same place is not overwritten, unless ``fresh``.
    """
    if path.suffix != ".npz":
        raise ConfigError(f"The file for the flips must end in .npz; it is {path}.")
    data = load_dataset(spec.dataset)
    half = path.with_name(f"{path.name}.partial")
    if fresh:
        half.unlink(missing_ok=True)
    elif path.exists():
        found = Perturbation.load(path)
        if found.meta.get("command") != spec.command:
            raise ConfigError(f"{path} holds the flips of another attack; choose another file, or use --fresh.")
        return _kept(found, data, None)
    path.parent.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    with FileCheckpoint(half, {"command": spec.command, "version": __version__}) as checkpoint:
        found = run_attack(spec, data, device=device, checkpoint=checkpoint, progress=progress)
        found.save(path)
        checkpoint.remove()
    return _kept(found, data, time.perf_counter() - began)


def _kept(found: Perturbation, data: Data, seconds: float | None) -> Kept:
    added, removed = found.added(data), found.removed(data)
    between = float((data.y[added[0]] != data.y[added[1]]).float().mean()) if added.size(1) else None
    return Kept(found, added.size(1), removed.size(1), between, found.rate(data), seconds)


def _inputs(spec: AttackSpec, data: Data, split: Split) -> dict[str, Any]:
    return {
        "budget": int(spec.rate * (data.num_edges // 2)),
        "per_target": spec.per_target,
        "labelled": split.train,
        "targets": nettack_targets(data, split.test) if spec.method in TARGETED else None,
        "rng": torch.Generator().manual_seed(spec.seed),
    }
