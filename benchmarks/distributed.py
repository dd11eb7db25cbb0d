"""Two processes against one: the same losses, the time of an epoch and the bytes exchanged.

    OMP_NUM_THREADS=1 python benchmarks/distributed.py -o docs/records/distributed.json

Trains ASGNN with its default settings, dropout included, on Cora and on a planted graph of 100,000 nodes, in one
process and in two (gloo, one thread each), with nodes divided by METIS and by order. The difference of a training is
the largest absolute difference of its training and validation losses from those of one process, over all epochs.
Rounding alone makes trainings differ, because gradients jump where a ReLU or a clip begins; so the record also has the
difference of one process whose initial weights are changed in their last digit, and everything in double precision. The
time of an epoch is the median after the first three, beside the seconds of the processor of one process, which other
programs disturb less. Takes a few minutes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch_geometric.data import Data

from asgnn import distributed
from asgnn.experiments.machine import origin
from asgnn.graphs import Gaussian, load_dataset, planted_graph, random_split
from asgnn.graphs.partition import Method
from asgnn.training import Epoch, Fit, Trial, fit, recipe

DTYPES = {"float32": torch.float32, "float64": torch.float64}
PARTITIONS: tuple[Method, ...] = ("metis", "order")
WARM_UP = 3


@dataclass(frozen=True)
class Case:
    """A graph, with the epochs to train on it."""

    graph: str
    epochs: int
    nodes: int = 0

    def data(self, dtype: torch.dtype) -> Data:
        if self.nodes:
            data = planted_graph(self.nodes, 5, 10, 0.2, features=Gaussian(50, 2.0), seed=0)
        else:
            data = load_dataset(self.graph)
        data.x = data.x.to(dtype)
        return data


CASES = (Case("cora", 200), Case("planted", 20, 100_000))


class Clock:
    """The seconds of each epoch, and those of the processor."""

    def __init__(self) -> None:
        self.times: list[tuple[float, float]] = []

    def __call__(self, epoch: Epoch) -> None:
        self.times.append((time.perf_counter(), time.process_time()))

    def medians(self) -> dict[str, float]:
        later = list(pairwise(self.times[WARM_UP:]))
        names = ("seconds", "processor_seconds")
        return {name: round(statistics.median(b[i] - a[i] for a, b in later), 5) for i, name in enumerate(names)}


def trial_of(case: Case, data: Data) -> Trial:
    made = recipe("asgnn", epochs=case.epochs).trial(data, random_split(data, 0), 0)
    made.model.to(data.x.dtype)
    return made


def alone(case: Case, dtype: torch.dtype, last_digit: bool = False) -> tuple[Fit, dict[str, float]]:
    """Train in one process; return the result and the time of an epoch."""
    data, clock = case.data(dtype), Clock()
    trial = trial_of(case, data)
    if last_digit:
        rng = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for weight in trial.model.mlp.parameters():  # type: ignore[union-attr]
                weight *= 1 + torch.finfo(dtype).eps * torch.randint(-1, 2, weight.shape, generator=rng).to(dtype)
    return fit(trial.model, data, trial.config, split=trial.split, on_epoch=clock), clock.medians()


def together(case: Case, dtype: torch.dtype, processes: int, partition: Method) -> dict[str, Any]:
    """Train in several processes; return what the first one found, with the time of an epoch."""
    with tempfile.TemporaryDirectory() as folder:
        spawned = (folder, case, dtype, processes, partition)
        mp.spawn(_one_of, spawned, processes)  # type: ignore[attr-defined, no-untyped-call]
        found: dict[str, Any] = torch.load(Path(folder) / "result")
        return found


def _one_of(rank: int, folder: str, case: Case, dtype: torch.dtype, processes: int, partition: Method) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=processes)
    data, clock = case.data(dtype), Clock()
    trial = trial_of(case, data)
    done = distributed.fit(trial.model, data, trial.config, split=trial.split, partition=partition, on_epoch=clock)
    if rank == 0:
        kept = {name: getattr(done, name) for name in ("nodes", "borrowed", "row_bytes", "sum_bytes", "best_epoch")}
        losses = torch.stack([done.history.train_loss, done.history.val_loss])
        torch.save(kept | clock.medians() | {"losses": losses}, Path(folder) / "result")
    dist.destroy_process_group()


def rows_of(case: Case, show: Callable[[dict[str, Any]], object]) -> list[dict[str, Any]]:
    rows = []

    def add(**row: Any) -> None:
        rows.append({"graph": case.graph, "epochs": case.epochs, **row})
        show(rows[-1])

    for name, dtype in DTYPES.items():
        one, times = alone(case, dtype)
        losses = torch.stack([one.history.train_loss, one.history.val_loss])
        common = {"dtype": name, "processes": 1, "partition": None}
        add(**common, **times, best_epoch=one.best_epoch)
        changed, _ = alone(case, dtype, last_digit=True)
        other = torch.stack([changed.history.train_loss, changed.history.val_loss])
        add(**common, what="last digit", difference=float((other - losses).abs().max()), best_epoch=changed.best_epoch)
        for partition in PARTITIONS:
            found = together(case, dtype, 2, partition)
            add(
                dtype=name,
                processes=2,
                partition=partition,
                seconds=found["seconds"],
                processor_seconds=found["processor_seconds"],
                difference=float((found["losses"] - losses).abs().max()),
                best_epoch=found["best_epoch"],
                nodes=found["nodes"],
                borrowed=found["borrowed"],
                row_bytes=found["row_bytes"] // case.epochs,
                sum_bytes=found["sum_bytes"] // case.epochs,
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, required=True, help="the record")
    parser.add_argument("--only", choices=[case.graph for case in CASES], help="one graph, without a record")
    parser.add_argument("--epochs", type=int, help="others than those of the record")
    asked = parser.parse_args()
    cases = [case for case in CASES if asked.only in (None, case.graph)]
    if asked.epochs is not None:
        cases = [replace(case, epochs=asked.epochs) for case in cases]
    rows = [row for case in cases for row in rows_of(case, lambda row: print(row, flush=True))]
    made = origin("OMP_NUM_THREADS=1 python benchmarks/distributed.py -o docs/records/distributed.json", "cpu")
    asked.output.write_text(json.dumps(made | {"backend": "gloo", "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
