"""Attacks that are made: the flips of a case, and ``asgnn attack``, which writes them to a file and resumes."""

from __future__ import annotations

import inspect
import shlex
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from asgnn.attacks import nettack_targets
from asgnn.attacks.checkpoint import Checkpoint, FileCheckpoint
from asgnn.errors import ConfigError
from asgnn.experiments.machine import machine
from asgnn.experiments.measure import Graph, find_split, load_graph
from asgnn.experiments.values import METHODS, PER_TARGET, Attack, Case, SplitName, inputs_of, regular_file
from asgnn.graphs import Perturbation, Split, diff
from asgnn.progress import Progress
from asgnn.settings import Setting, arguments_for, settings_of
from asgnn.version import __version__

# Attacked validation nodes are chosen like the test nodes that Nettack attacks, by degree above 10; if there are fewer
# of them than this, the nodes with the highest degrees.
VALIDATION_TARGETS = 40


def attack_settings(kind: str) -> dict[str, Setting]:
    """The settings of an attack that the command line accepts."""
    known = settings_of(METHODS[kind])
    return {name: one for name, one in known.items() if isinstance(one.default, bool | int | float | str)}


def made_case(dataset: str, kind: str, amount: float, split: SplitName, **options: Any) -> Case:
    """A case with one attack that is made; ``options`` are further fields of the attack."""
    if split in (SplitName("random"), SplitName("stratified")):
        raise ConfigError(f"An attack is made against one split; choose its trial, such as {split}:0.")
    return Case(dataset, (Attack(kind, "made", amount, **options),), split)


def command_of(case: Case) -> str:
    """The command line that makes the flips of a case with one attack."""
    (attack,) = case.attacks
    words = ["asgnn", "attack", "--dataset", case.dataset, "--method", attack.kind]
    words += ["--per-target" if attack.unit == PER_TARGET else "--rate", f"{attack.amount:g}"]
    words += ["--split", case.split.kind, *([] if case.split.trial is None else ["--trial", str(case.split.trial)])]
    words += ["--seed", str(attack.seed)]
    for name, value in attack.settings:
        words += ["--set", f"{name}={value}"]
    return shlex.join(words)


def make_attack(
    case: Case,
    before: Graph | None = None,
    *,
    root: str | Path | None = None,
    device: str = "cpu",
    checkpoint: Checkpoint | None = None,
    progress: Progress | None = None,
) -> Perturbation:
    """The flips from the clean graph to that of a case whose last attack is made; ``meta`` records how.

    The attacker knows the training labels of the case's split. ``before`` is the graph before the last attack; it is
    loaded if it is not given.
    """
    attack = case.attacks[-1]
    graph = before or load_graph(replace(case, attacks=case.attacks[:-1]), root)
    split = find_split(case.split, graph.data, case.dataset, root)
    method, targets = METHODS[attack.kind], None
    if attack.unit == PER_TARGET:
        targets = attacked_nodes(graph.data, split, attack.targets)
    known = inspect.signature(method).parameters
    options: dict[str, Any] = {"device": device, "checkpoint": checkpoint, "progress": progress}
    options = {name: value for name, value in options.items() if name in known}
    options |= arguments_for(method, dict(attack.settings))
    inputs = {
        "budget": int(attack.amount * (graph.data.num_edges // 2)),
        "per_target": int(attack.amount),
        "train": split.train,
        "targets": targets,
        "rng": torch.Generator().manual_seed(attack.seed),
    }
    if attack.amount:
        found = method(graph.data, *(inputs[name] for name in inputs_of(attack.kind)), **options)
    else:  # only the targets
        found = Perturbation(torch.empty(2, 0, dtype=torch.int64), int(graph.data.num_nodes or 0), targets)
    about = {"dataset": case.dataset, "split": str(case.split), "seed": str(attack.seed), "rate": f"{attack.amount:g}"}
    about |= {"version": __version__, "machine": machine(device if "device" in known else "cpu")}
    if len(case.attacks) == 1:
        return replace(found, meta={**found.meta, **about, "command": command_of(case)})
    both = diff(graph.clean, found.apply(graph.data))
    return replace(both, targets=found.targets, meta={**found.meta, **about})


def attacked_nodes(data: Data, split: Split, which: str = "test") -> Tensor:
    """The targets of a targeted attack: test nodes of degree above 10, or similar validation nodes."""
    if which == "test":
        return nettack_targets(data, split.test)
    degree = torch.bincount(data.edge_index[0], minlength=data.num_nodes)[split.val]
    count = max(VALIDATION_TARGETS, nettack_targets(data, split.val).numel())
    return split.val[degree.argsort(descending=True, stable=True)[:count]]


@dataclass(frozen=True, eq=False)
class AttackFile:
    """The flips in a file and the clean graph; ``seconds`` is ``None`` if an earlier run made them."""

    found: Perturbation
    clean: Data
    seconds: float | None

    @property
    def time(self) -> str:
        return "made by an earlier run" if self.seconds is None else f"{self.seconds:.1f} s"

    def as_dict(self) -> dict[str, Any]:
        """The metadata and counts; "between" is the share of added edges between different classes."""
        added, removed, y = self.found.added(self.clean), self.found.removed(self.clean), self.clean.y
        between = float((y[added[0]] != y[added[1]]).float().mean()) if added.size(1) else None
        counts = {"flips": len(self.found), "added": added.size(1), "removed": removed.size(1), "between": between}
        return {**self.found.meta, **counts, "rate": self.found.rate(self.clean), "seconds": self.seconds}


def write_attack(
    case: Case, path: Path, *, device: str = "cpu", fresh: bool = False, progress: Progress | None = None
) -> AttackFile:
    """Make the attack of a case and write it to a file; resumes if interrupted.

    Finished flips of the same attack are reused. A file of another attack is overwritten only if ``fresh``.
    """
    if path.suffix != ".npz":
        raise ConfigError(f"The file for the flips must end in .npz; it is {path}.")
    half = path.with_name(f"{path.name}.partial")
    regular_file(path)
    regular_file(half)
    graph = load_graph(replace(case, attacks=()))
    command = command_of(case)
    if fresh:
        half.unlink(missing_ok=True)
    elif path.exists():
        found = Perturbation.load(path)
        if found.meta.get("command") != command:
            raise ConfigError(f"{path} holds the flips of another attack; choose another file, or use --fresh.")
        return AttackFile(found, graph.clean, None)
    path.parent.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    with FileCheckpoint(half, {"command": command, "version": __version__}) as checkpoint:
        found = make_attack(case, graph, device=device, checkpoint=checkpoint, progress=progress)
        found.save(path)
        checkpoint.remove()
    return AttackFile(found, graph.clean, time.perf_counter() - began)
