"""Time and peak memory of Metattack and Nettack compared with DeepRobust, on Cora, on the CPU.

    python benchmarks/run_attacks.py
    python benchmarks/run_attacks.py --only nettack --targets 10 -o runs/nettack.json

DeepRobust is not a dependency: the first run creates an environment for it, .venv-peers. Each side of each attack runs
in its own process, one after the other, on the same graph, split and targets, with the same number of threads.

The flips are checked first. Both sides must respect the budget and isolate no node. Our Nettack must lower the margins
of the targets nearly as far as DeepRobust's, measured on a linear GCN that neither side has used. If a check fails, the
attack is FAILED, no time is printed, and the exit code is 1. The two sides of Metattack need not choose the same flips,
because their initial weights differ.

Times are seconds per flip (Metattack) or target (Nettack) after a first one as warm-up, without the training of the
surrogate. Memory is the peak of the whole process. Ratios are relative to ours: 3.0 means three times as much time or
memory.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from cases import cora
from measure import Check, resident
from peers import ENVIRONMENT, PEER, build, choose_split, peer_command, sides, write
from report import about, positive, report
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.data import Data
from worker import CannotMeasure, failure, read

from asgnn import attacks
from asgnn.errors import GraphError
from asgnn.graphs import Perturbation, Split
from asgnn.graphs.adjacency import Adjacency

UNITS = {"metattack": "flip", "nettack": "target"}
PER_TARGET, DEGREE = 5, 10
"""Nettack: flips for each target, and the degree that a target must exceed."""
MARGIN_TOLERANCE = 0.1
"""Relative amount by which our Nettack may lower the margins less than DeepRobust's, which uses another surrogate."""


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse(argv)
    if arguments.ours is not None:
        attack, path = arguments.ours
        print(json.dumps(run_ours(attack, read(path))))
        return 0
    try:
        python = arguments.peer or build(ENVIRONMENT)
    except CannotMeasure as error:
        print(f"{error} Nothing was measured.", file=sys.stderr)
        return 1
    data = cora()
    split, split_name = choose_split(data)
    record = about(torch.device("cpu")) | {"peer": PEER, "split": split_name, "wait_policy": wait_policy()}
    # The sides run for minutes, one after the other, so other programs can change a ratio: record the load.
    record["load"] = round(os.getloadavg()[0], 2)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "task.npz")
        targets = choose_targets(data, split, 1 + arguments.targets)
        write(path, data, split, budget=1 + arguments.flips, per_target=PER_TARGET, targets=targets)
        results = (measure(attack, path, python, data, split, arguments) for attack in arguments.only or UNITS)
        return report(record, results, arguments.output, "attack")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(UNITS), action="append", metavar="NAME", help=" or ".join(UNITS))
    parser.add_argument("--flips", type=positive, default=2, help="timed flips of Metattack, after a first one")
    parser.add_argument("--targets", type=positive, default=4, help="timed targets of Nettack, after a first one")
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/bench-attacks.json"), metavar="FILE")
    parser.add_argument("--peer", type=Path, metavar="PYTHON", help="an interpreter that has DeepRobust")
    # Used by the program for its subprocesses: run our side of an attack and print the result.
    parser.add_argument("--ours", nargs=2, metavar=("NAME", "TASK"), help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def choose_targets(data: Data, split: Split, count: int) -> Tensor:
    degree = torch.bincount(data.edge_index[0], minlength=data.num_nodes)
    return split.test[degree[split.test] > DEGREE][:count]


def run_ours(attack: str, task: Mapping[str, Any]) -> dict[str, Any]:
    """Run our side and return the fields that peer_deeprobust.py prints."""
    data, train, rng = cora(), torch.from_numpy(task["train"]), torch.Generator().manual_seed(0)
    clock: dict[int, float] = {}
    steps = 0

    def tick(done: int, total: int) -> None:
        nonlocal steps
        steps = total
        clock.setdefault(done, time.perf_counter())

    attack_graph: Any = getattr(attacks, attack)
    made: Perturbation
    if attack == "metattack":
        units = int(task["budget"])
        made = attack_graph(data, units, train, rng, variant="self", exact=True, progress=tick)
    else:
        targets = torch.from_numpy(task["targets"])
        units = targets.numel()
        made = attack_graph(data, int(task["per_target"]), train, targets, rng, progress=tick)
    return {
        "seconds": unit_seconds(clock, steps, units),
        "flips": made.flips.t().tolist(),
        "peak_bytes": resident("VmHWM"),
        "threads": torch.get_num_threads(),
    }


def unit_seconds(clock: Mapping[int, float], steps: int, units: int) -> list[float]:
    """Return the seconds of each unit after the first; ``clock`` maps the number of finished steps to the time."""
    each, rest = divmod(steps, units)
    ends = [unit * each for unit in range(1, units + 1)]
    if rest or not each or any(end not in clock for end in ends):
        raise CannotMeasure(
            f"The attack reported progress after {sorted(clock)} of {steps} steps, not after each of {units} units."
        )
    return [clock[end] - clock[start] for start, end in itertools.pairwise(ends)]


def measure(
    attack: str, path: Path, python: Path, data: Data, split: Split, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Return the result of an attack for the file: always its checks, and its sides if all checks pass."""
    what = {
        "metattack": f"Meta-Self with the exact meta-gradient on Cora, {arguments.flips} flips after a first one",
        "nettack": f"Nettack on Cora, {PER_TARGET} direct flips for each of {arguments.targets} targets of degree over "
        f"{DEGREE} after a first one",
    }[attack]
    result: dict[str, Any] = {"name": attack, "what": what, "unit": UNITS[attack], "ok": False, "checks": []}
    try:
        answers = {
            "asgnn": answer([sys.executable, __file__, "--ours", attack, str(path)], "asgnn"),
            "DeepRobust": answer(peer_command(python, "peer_deeprobust.py", attack, path), "DeepRobust"),
        }
    except CannotMeasure as error:
        return {**result, "sides": [], "error": str(error)}
    task = read(path)
    budget = int(task["budget"]) if attack == "metattack" else PER_TARGET * len(task["targets"])
    targets = torch.from_numpy(task["targets"]) if attack == "nettack" else None
    made = {side: answer["flips"] for side, answer in answers.items()}
    checks = [check_rules(side, flips, data, budget, targets) for side, flips in made.items()]
    threads = [answer["threads"] for answer in answers.values()]
    checks.append(Check("number of threads", float(max(threads) - min(threads)), 0))
    if targets is not None and all(check.ok for check in checks):
        result["margins"] = margins = mean_margins(made, data, split, targets)
        checks.append(check_margins(margins))
    result["checks"] = [asdict(check) for check in checks]
    ok = all(check.ok for check in checks)
    return {**result, "ok": ok, "sides": sides(answers) if ok else []}


def answer(command: list[str], side: str) -> dict[str, Any]:
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_WAIT_POLICY": wait_policy()})
    if done.returncode:
        raise CannotMeasure(failure(side, done.returncode, done.stderr))
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def wait_policy() -> str:
    """Return the policy for both sides; busy loops would be slow if other programs use the processor."""
    return os.environ.get("OMP_WAIT_POLICY", "PASSIVE")


def check_rules(side: str, flips: list[list[int]], data: Data, budget: int, targets: Tensor | None) -> Check:
    """Count the violations: flips above the budget, no flips at all, isolated nodes, flips without a target."""
    where = f"number of rule violations of {side}"
    pairs = torch.tensor(flips, dtype=torch.int64).view(-1, 2).t()
    try:
        made = Perturbation(pairs, int(data.num_nodes))
        made.check(data)
    except GraphError:
        return Check(where, torch.inf, 0)
    after = torch.bincount(made.apply(data).edge_index[0], minlength=made.num_nodes)
    violations = max(0, len(made) - budget) + int((after == 0).sum()) + int(len(made) == 0)
    if side == "asgnn":  # our attacks meet the budget exactly; DeepRobust's may undo a flip
        violations += max(0, budget - len(made))
    if targets is not None:
        violations += int((~torch.isin(pairs, targets).any(0)).sum())
    return Check(where, float(violations), 0)


def mean_margins(made: Mapping[str, list[list[int]]], data: Data, split: Split, targets: Tensor) -> dict[str, float]:
    """Return the mean margin of the targets on the clean graph and after the flips of each side.

    The margins are those of one linear GCN that is trained on the clean graph.
    """
    weight = linear_gcn(data, split)
    graphs = {"clean": data}
    for side, flips in made.items():
        graphs[side] = Perturbation(torch.tensor(flips).t().contiguous(), int(data.num_nodes)).apply(data)
    out = {}
    for side, graph in graphs.items():
        scores = twice_propagated(graph, data.x @ weight)[targets]
        own = F.one_hot(data.y[targets], scores.size(1)).bool()
        out[side] = float((scores[own] - scores.masked_fill(own, -torch.inf).amax(1)).mean())
    return out


def linear_gcn(data: Data, split: Split) -> Tensor:
    """Return W of the scores Â² X W, fitted to the training nodes from 0, because the problem is convex."""
    smooth = twice_propagated(data, data.x)[split.train]
    weight = torch.zeros(data.num_features, int(data.y.max()) + 1, requires_grad=True)
    optimizer = torch.optim.Adam([weight], lr=0.01)
    for _ in range(200):
        optimizer.zero_grad()
        F.cross_entropy(smooth @ weight, data.y[split.train]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return weight.detach()


def twice_propagated(data: Data, x: Tensor) -> Tensor:
    adj = Adjacency.of(data.edge_index, int(data.num_nodes))
    weight = adj.normalized("sym", x.dtype)
    return adj.matmul(weight, adj.matmul(weight, x))


def check_margins(margins: Mapping[str, float]) -> Check:
    """Check by how much our decrease of the margin is smaller than DeepRobust's, relative to theirs."""
    ours, theirs = (margins["clean"] - margins[side] for side in ("asgnn", "DeepRobust"))
    less = max(0.0, 1 - ours / theirs) if theirs > 0 else float(ours <= 0)
    return Check("decrease of the margin", less, MARGIN_TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
