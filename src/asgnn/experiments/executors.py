"""Batches of trainings, and where they are run: in this process, in several here, or on a Ray cluster."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import torch

from asgnn.errors import ConfigError, DataUnavailable
from asgnn.experiments.measure import Graph, load_graph, train
from asgnn.experiments.values import Case, Outcome, Training
from asgnn.graphs import Perturbation
from asgnn.progress import Progress

RETRIES = 5  # of a batch whose worker died; one that kills every worker must end, too
MOST_WORKERS = 256
PATIENCE = 10.0  # seconds for a cluster to answer


@dataclass(frozen=True, eq=False)
class Batch:
    """Trainings on one graph that can be run side by side.

    Attributes:
        trainings: which.
        flips: those of an attack that was made; every other one is found by the case.
        edge_aucs: whether "edge_auc" is measured, too.
    """

    trainings: tuple[Training, ...]
    flips: Perturbation | None = None
    edge_aucs: bool = False

    @cached_property
    def keys(self) -> set[str]:
        return {training.key for training in self.trainings}


Executor = Callable[[Sequence[Batch]], Iterator[tuple[Batch, list[Outcome]]]]
"""Runs batches and gives back each with its outcomes, in whatever order they are done."""


def run_batch(
    batch: Batch, device: str, root: str | Path | None = None, progress: Progress | None = None
) -> list[Outcome]:
    case = batch.trainings[0].case
    graph = load_graph(case, root, batch.flips) if batch.flips is not None else _named_graph(case, root)
    options = {"root": root, "device": device, "edge_aucs": batch.edge_aucs, "progress": progress}
    return [one.outcome for one in train(graph, batch.trainings, **options)]  # type: ignore[arg-type]


@lru_cache(maxsize=4)
def _named_graph(case: Case, root: str | Path | None) -> Graph:
    return load_graph(case, root)


def local(device: str, root: str | Path | None = None, progress: Progress | None = None) -> Executor:
    """An executor that runs one batch after the other in this process; ``progress`` counts the epochs of all."""

    def run(batches: Sequence[Batch]) -> Iterator[tuple[Batch, list[Outcome]]]:
        for done, batch in enumerate(batches):

            def report(epoch: int, epochs: int, done: int = done) -> None:
                if progress is not None:
                    progress(done * epochs + epoch, len(batches) * epochs)

            yield batch, run_batch(batch, device, root, report)

    return run


@contextmanager
def processes(workers: int, device: str, root: str | Path | None = None) -> Iterator[Executor]:
    """An executor that runs batches in several processes of this machine, which end with it.

    They share its GPU, if that is the device: a batch of a search has too little work at a time to fill a large one.
    """
    if not 1 <= workers <= MOST_WORKERS:
        raise ConfigError(f"There can be 1 to {MOST_WORKERS} worker processes; {workers} were asked for.")
    others = multiprocessing.active_children()
    # a forked process could not use CUDA
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=_begin_worker)

    def run(batches: Sequence[Batch]) -> Iterator[tuple[Batch, list[Outcome]]]:
        waiting = {pool.submit(run_batch, batch, device, root): batch for batch in batches}
        try:
            for done in as_completed(waiting):
                yield waiting[done], done.result()
        except BrokenProcessPool as lost:
            raise DataUnavailable(
                "One of the worker processes was killed, perhaps for lack of memory; what was finished before is kept, "
                "and the same command resumes. Fewer workers, or a smaller batch, need less."
            ) from lost

    try:
        yield run
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for child in multiprocessing.active_children():
            if child not in others:
                child.terminate()  # what is in flight is lost anyway


def _begin_worker() -> None:
    """A worker leaves Ctrl-C to the process that started it, and ends when that one does, however it does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: _leave())
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        _leave()

    threading.Thread(target=watch, daemon=True).start()


def _leave() -> None:
    """At once, but not in the middle of a kernel: MPS would then refuse whoever comes next."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    os._exit(1)


@contextmanager
def cluster(address: str | None = None, workers: int | None = None) -> Iterator[bool]:
    """Joins a Ray cluster, or starts one here, and leaves it at the end; says whether it has a GPU.

    Args:
        address: of a running cluster, as HOST:PORT, or "auto" for the one on this machine; ``None`` starts one here.
        workers: how many the one started here has; as many as there are cores by default.
    """
    try:
        import ray
    except ImportError as cause:
        raise ConfigError('The ray executor needs Ray: pip install "asgnn[ray]".') from cause
    if address is not None:
        _check_address(address)
        settings: dict[str, Any] = {"address": address}
    else:
        # No usage statistics; and workers have this process's priority: by default they give way to everything else on
        # the machine, and on a busy one they hardly move.
        os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"} | os.environ
        # what we send and get back is a few kilobytes a batch
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
    """Raises at once where nothing answers: Ray itself tries for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdecimal():
        return  # a name such as "auto", which Ray looks up itself
    try:
        socket.create_connection((host, int(port)), timeout=PATIENCE).close()
    except (OSError, OverflowError) as cause:
        raise ConfigError(f"No Ray cluster answers at {address} ({cause}); see whether it runs.") from cause


def on_ray(device: str, root: str | Path | None = None) -> Executor:
    """An executor that hands batches to the cluster that was joined; a batch whose worker dies is run again."""
    import ray
    from ray.exceptions import RayError, RayTaskError

    # one core, or one GPU, a batch: a batch is as wide as a worker can use already
    remote = ray.remote(num_cpus=1, num_gpus=1 if device == "cuda" else 0, max_retries=RETRIES)(run_batch)

    def run(batches: Sequence[Batch]) -> Iterator[tuple[Batch, list[Outcome]]]:
        waiting = {remote.remote(batch, device, root): batch for batch in batches}
        while waiting:
            (done, *_), _ = ray.wait(list(waiting))
            batch = waiting.pop(done)
            try:
                outcomes = ray.get(done)
            except RayTaskError as failed:  # what was raised there is raised here, as it is on one machine
                raise failed.cause from None
            except RayError as lost:
                model, case = batch.trainings[0].model, batch.trainings[0].case
                raise DataUnavailable(
                    f"Nothing came back from the cluster for {model} on {case.dataset}, tried {RETRIES + 1} times "
                    f"({type(lost).__name__}); what was finished before is kept."
                ) from lost
            yield batch, outcomes

    return run
