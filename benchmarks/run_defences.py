"""Pro-GNN beside DeepRobust's, on Cora, on the CPU: seconds an epoch, and peak memory.

    python benchmarks/run_defences.py
    python benchmarks/run_defences.py --epochs 5 -o runs/prognn.json

An epoch is the authors': one step of the structure and two of the weights. Both sides have the same graph, split,
settings and number of threads, and run in a process of their own, one after the other; the first epoch is not timed.
DeepRobust is no dependency: the first run makes an environment for it, .venv-peers.

First the nuclear-norm step is checked: both sides shrink the spectrum of Cora's adjacency matrix, and must agree. Where
they do not, no time is given and the exit code is 1. Ours keeps the structure symmetric, DeepRobust's default does not.
CPU seconds are printed too: where other programs use the processor they say more than the clock.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cases import Setting, cora
from measure import Check, resident
from run import COLUMNS, about, lines
from run_attacks import (
    ENVIRONMENT,
    HERE,
    PEER,
    CannotMeasure,
    answer,
    build,
    choose_split,
    positive,
    read,
    sides,
    write,
)

from asgnn.graphs import Split
from asgnn.models import ProGNN
from asgnn.models.spectral import shrink_spectrum
from asgnn.training import TrainConfig, fit

SETTINGS = {"alpha": 5e-4, "beta": 1.5, "gamma": 1.0, "lambda_": 1e-3, "lr": 5e-4, "lr_adj": 0.01}


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse(argv)
    if arguments.ours is not None:
        print(json.dumps(run_ours(*arguments.ours)))
        return 0
    try:
        python = arguments.peer or build(ENVIRONMENT)
    except CannotMeasure as error:
        print(f"{error} Nothing was measured.", file=sys.stderr)
        return 1
    data = cora()
    split, whose = choose_split(data)
    record = about(Setting(torch.device("cpu"), False)) | {"peer": PEER, "split": whose}
    record["load"] = round(os.getloadavg()[0], 2)
    print(", ".join(f"{key} {value}" for key, value in record.items()), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        path, files = Path(folder, "task.npz"), {side: Path(folder, f"{side}.npy") for side in ("asgnn", "DeepRobust")}
        write(path, data, split, 0, split.test[:0])
        np.savez(path, allow_pickle=False, **read(path), **SETTINGS, epochs=np.array(1 + arguments.epochs))
        answers = {
            "asgnn": answer([sys.executable, __file__, "--ours", str(path), str(files["asgnn"])], "asgnn"),
            "DeepRobust": answer(
                [str(python), str(HERE / "peer_prognn.py"), str(path), str(files["DeepRobust"])], "DeepRobust"
            ),
        }
        ours, theirs = (np.load(files[side]) for side in answers)
    check = Check("shrunk adjacency", float(np.abs(ours - theirs).max()), 1e-4)
    result: dict[str, Any] = {"name": "prognn", "unit": "epoch", "what": "Pro-GNN on Cora", "ok": check.ok}
    result |= {"checks": [asdict(check)], "sides": sides(answers) if check.ok else []}
    print(COLUMNS.format("defence", "side", "time", "ratio", "(range)", "memory", "ratio", "difference"))
    print("\n".join(lines(result)))
    if check.ok:
        cpu = {side: statistics.median(found["cpu"]) for side, found in answers.items()}
        result["cpu_seconds"] = cpu
        print("    CPU seconds: " + ", ".join(f"{side} {value:.2f}" for side, value in cpu.items()))
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps({**record, "cases": [result]}, indent=1) + "\n")
    return 0 if check.ok else 1


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=positive, default=2, help="timed after a first one")
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/bench-defences.json"), metavar="FILE")
    parser.add_argument("--peer", type=Path, metavar="PYTHON", help="an interpreter that has DeepRobust already")
    # What the program calls itself with: run our side and print what came of it.
    parser.add_argument("--ours", nargs=2, metavar=("TASK", "FILE"), help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def run_ours(path: str, shrunk: str) -> dict[str, Any]:
    """What peer_prognn.py prints, of our side."""
    task: Mapping[str, Any] = read(Path(path))
    data = cora()
    split = Split(*(torch.from_numpy(task[name]) for name in ("train", "val", "test")))
    named = {"lam": "lambda_", "structure_lr": "lr_adj"}
    weights = {name: task[named.get(name, name)].item() for name in ("alpha", "beta", "gamma", "lam", "structure_lr")}
    model = ProGNN(data.num_features, 16, int(data.y.max()) + 1, **weights)
    clock: list[tuple[float, float]] = []

    def tick(done: int, total: int) -> None:
        if done % model.inner_steps == 0:
            clock.append((time.perf_counter(), time.process_time()))

    config = TrainConfig(epochs=model.inner_steps * int(task["epochs"]), lr=task["lr"].item(), weight_decay=5e-4)
    fit(model, data, config, split=split, progress=tick)
    matrix = torch.zeros(1, int(data.num_nodes), int(data.num_nodes))
    matrix[0, data.edge_index[0], data.edge_index[1]] = 1
    np.save(shrunk, shrink_spectrum(matrix, weights["structure_lr"] * weights["beta"], symmetric=True)[0].numpy())
    seconds, cpu = np.diff(np.array(clock), axis=0).T.tolist()
    return {"seconds": seconds, "cpu": cpu, "peak_bytes": resident("VmHWM"), "threads": torch.get_num_threads()}


if __name__ == "__main__":
    sys.exit(main())
