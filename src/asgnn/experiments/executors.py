"""Executors, which run batches of trainings: in this process, in several processes, or on a Ray cluster."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import torch

from asgnn.errors import ConfigError, DataUnavailable
from asgnn.experiments.measure import Graph, ensemble_figures, load_graph, train
from asgnn.experiments.values import Attack, Outcome, Training
from asgnn.graphs import Perturbation
from asgnn.progress import Progress
from asgnn.settings import check_count, check_number

RETRIES = 5  # of a batch whose worker died; limited, because a batch may kill every worker
MAX_WORKERS = 256
PATIENCE = 10.0  # seconds to wait for a cluster


@dataclass(frozen=True, eq=False)
class Batch:
    """Trainings that run in parallel on one graph.

    ``flips`` are those of an attack that was made; ``edge_aucs`` adds the figure "edge_auc"; ``ensemble`` adds to every
    outcome the figures of the mean probability of all trainings, with the prefix "ensemble_".
    """

    trainings: tuple[Training, ...]
    flips: Perturbation | None = None
    edge_aucs: bool = False
    ensemble: bool = False

    @cached_property
    def keys(self) -> set[str]:
        return {training.key for training in self.trainings}


Executor = Callable[[Sequence[Batch]], Iterator[tuple[Batch, list[Outcome]]]]
"""Runs batches and yields each with its outcomes, in the order in which they finish."""


@dataclass(frozen=True)
class _GraphKey:
    """Equal for batches with the same graph; the split is no part of a graph, but of the flips made for it."""

    dataset: str
    attacks: tuple[Attack, ...]
    flips: str
    root: str | Path | None
    batch: Batch = field(compare=False)

    @classmethod
    def of(cls, batch: Batch, root: str | Path | None) -> _GraphKey:
        case, flips = batch.trainings[0].case, ""
        if batch.flips is not None:
            parts = (batch.flips.flips, batch.flips.targets, batch.flips.feature_flips)
            content = repr([None if one is None else one.tolist() for one in parts])
            flips = hashlib.sha256(content.encode()).hexdigest()
        return cls(case.dataset, case.attacks, flips, root, batch)


@lru_cache(maxsize=8)
def cached_graph(key: _GraphKey) -> Graph:
    return load_graph(key.batch.trainings[0].case, key.root, key.batch.flips)


def run_batch(
    batch: Batch, device: str, root: str | Path | None = None, progress: Progress | None = None
) -> list[Outcome]:
    graph = cached_graph(_GraphKey.of(batch, root))
    found = train(graph, batch.trainings, root=root, device=device, edge_aucs=batch.edge_aucs, progress=progress)
    outcomes = [outcome for outcome, _ in found]
    if not batch.ensemble:
        return outcomes
    together = ensemble_figures([fit for _, fit in found], graph)
    return [replace(one, figures={**one.figures, **together}) for one in outcomes]


def local(device: str, root: str | Path | None = None, progress: Progress | None = None) -> Executor:
    """Runs one batch after another in this process; ``progress`` counts the epochs of all batches."""

    def run(batches: Sequence[Batch]) -> Iterator[tuple[Batch, list[Outcome]]]:
        for done, batch in enumerate(batches):

            def report(epoch: int, epochs: int, done: int = done) -> None:
                if progress is not None:
                    progress(done * epochs + epoch, len(batches) * epochs)

            yield batch, run_batch(batch, device, root, report)

    return run


class _Waiting:
    """Batches that wait for a worker, which takes those of one graph after another where it can.

    A worker has loaded the graph of its last batch and trained the witness for its dataset. A worker that finds neither
    goes to the dataset with the most batches per worker.
    """

    def __init__(self, batches: Sequence[Batch]) -> None:
        self._left: dict[str, dict[object, deque[Batch]]] = {}
        for batch in batches:
            dataset, graph = self._place(batch)
            self._left.setdefault(dataset, {}).setdefault(graph, deque()).append(batch)

    def __bool__(self) -> bool:
        return bool(self._left)

    @staticmethod
    def _place(batch: Batch) -> tuple[str, object]:
        case = batch.trainings[0].case
        return case.dataset, case.attacks

    def take(self, last: Batch | None, others: Sequence[Batch]) -> Batch:
        """The next batch for a worker that had ``last``, while the other workers have ``others``."""
        dataset, graph = self._place(last) if last is not None else ("", None)
        busy = Counter(self._place(batch)[0] for batch in others)
        if dataset not in self._left:
            count = {name: sum(map(len, graphs.values())) for name, graphs in self._left.items()}
            dataset = max(self._left, key=lambda name: count[name] / (1 + busy[name]))
        graphs = self._left[dataset]
        if graph not in graphs:
            at_work = Counter(self._place(batch)[1] for batch in others)
            graph = max(graphs, key=lambda one: len(graphs[one]) / (1 + at_work[one]))
        batch = graphs[graph].popleft()
        if not graphs[graph]:
            del graphs[graph]
        if not graphs:
            del self._left[dataset]
        return batch


@contextmanager
def processes(workers: int, device: str, root: str | Path | None = None) -> Iterator[Executor]:
    """Runs batches in several processes of this machine; they share its GPU, which one batch rarely fills.

    A process that has loaded a graph gets further batches of it first.
    """
    check_count("workers", workers, 1, MAX_WORKERS)
    others = multiprocessing.active_children()
    # One pool for each process, so that a batch can be given to a certain process; spawn, because a forked process
    # cannot use CUDA.
    context = multiprocessing.get_context("spawn")
    pools = [ProcessPoolExecutor(1, context, initializer=begin_worker) for _ in range(workers)]
    last: dict[int, Batch] = {}  # worker → its latest batch

    def run(batches: Sequence[Batch]) -> Iterator[tuple[Batch, list[Outcome]]]:
        waiting, idle = _Waiting(batches), list(range(workers))
        running: dict[Future[list[Outcome]], tuple[int, Batch]] = {}

        def start() -> None:
            while waiting and idle:
                worker = idle.pop(0)
                batch = waiting.take(last.get(worker), [batch for _, batch in running.values()])
                last[worker] = batch
                running[pools[worker].submit(run_batch, batch, device, root)] = worker, batch

        try:
            start()
            while running:
                finished = {done: running.pop(done) for done in wait(running, return_when=FIRST_COMPLETED).done}
                idle += [worker for worker, _ in finished.values()]
                start()  # before the results are looked at: no worker waits for that
                for done, (_, batch) in finished.items():
                    yield batch, done.result()
        except BrokenProcessPool as lost:
            raise DataUnavailable(
                "A worker process was killed, perhaps for lack of memory; finished batches are stored, and the same "
                "command resumes. Fewer workers or smaller batches need less memory."
            ) from lost

    try:
        yield run
    finally:
        for pool in pools:
            pool.shutdown(wait=False, cancel_futures=True)
        for child in multiprocessing.active_children():
            if child not in others:
                child.terminate()  # unfinished batches are lost in any case


def begin_worker() -> None:
    """Ignores Ctrl-C, which the parent process handles, and ends when the parent ends for whatever reason."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: _leave())
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        _leave()

    threading.Thread(target=watch, daemon=True).start()


def _leave() -> None:
    """Exits, but not during a CUDA kernel: MPS would then refuse the next process."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    os._exit(1)


@contextmanager
def cluster(address: str | None = None, workers: int | None = None) -> Iterator[bool]:
    """Joins a Ray cluster, or starts one on this machine, and leaves it at the end; yields whether it has a GPU.

    Args:
        address: of a running cluster, as HOST:PORT, or "auto" for the one on this machine; ``None`` starts one.
        workers: of a cluster that is started; default: one per core.
    """
    try:
        import ray
    except ImportError as cause:
        raise ConfigError('The ray executor needs Ray: pip install "asgnn[ray]".') from cause
    if address is not None:
        _check_address(address)
        settings: dict[str, Any] = {"address": address}
    else:
        # No usage statistics; and workers with normal priority, because Ray's default starves them on a busy machine.
        os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"} | os.environ
        # a batch and its outcomes are a few kilobytes
        settings = {"address": "local", "num_cpus": workers, "object_store_memory": 2**27, "include_dashboard": False}
    try:
        ray.init(**settings, log_to_driver=False, logging_level="error")
    except (ConnectionError, RuntimeError, TimeoutError, ValueError) as cause:
        ray.shutdown()
        what = "Ray could not be started here" if address is None else f"The Ray cluster {address} cannot be joined"
        raise ConfigError(f"{what}: {' '.join(str(cause).split()).rstrip('.')}.") from cause
    try:
        yield ray.cluster_resources().get("GPU", 0) > 0
    finally:
        ray.shutdown()


def _check_address(address: str) -> None:
    """Raises at once if nothing answers; Ray itself would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdecimal():
        return  # a name like "auto", which Ray resolves
    try:
        socket.create_connection((host, int(port)), timeout=PATIENCE).close()
    except (OSError, OverflowError) as cause:
        raise ConfigError(f"No Ray cluster answers at {address} ({cause}); check that it is running.") from cause


def on_ray(device: str, root: str | Path | None = None, gpus: float = 1) -> Executor:
    """Runs batches on the joined cluster; a batch whose worker dies is run again.

    Args:
        device: "cuda" runs as many batches at a time as the cluster has GPUs for; Ray shows each worker its own only.
        root: the folder of the data files.
        gpus: the GPUs for each batch, at most 1, because a batch uses one; with 0.5, two batches share a GPU.
    """
    check_number("gpus", gpus, 0, 1, "(]")
    import ray
    from ray.exceptions import RayError, RayTaskError

    remote = ray.remote(num_cpus=1, num_gpus=gpus if device == "cuda" else 0, max_retries=RETRIES)(run_batch)

    def run(batches: Sequence[Batch]) -> Iterator[tuple[Batch, list[Outcome]]]:
        waiting = {remote.remote(batch, device, root): batch for batch in batches}
        while waiting:
            (done, *_), _ = ray.wait(list(waiting))
            batch = waiting.pop(done)
            try:
                outcomes = ray.get(done)
            except RayTaskError as failed:  # raise the worker's own error
                raise failed.cause from None
            except RayError as lost:
                model, case = batch.trainings[0].model, batch.trainings[0].case
                raise DataUnavailable(
                    f"The cluster lost the batch for {model} on {case.dataset}, tried {RETRIES + 1} times "
                    f"({type(lost).__name__}); finished batches are stored."
                ) from lost
            yield batch, outcomes

    return run
