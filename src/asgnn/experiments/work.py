"""Batches of trainings, and where they are run: here, or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from asgnn.errors import ConfigError
from asgnn.experiments.run import Graph, load_graph, train
from asgnn.experiments.trainings import Case, Outcome, Training
from asgnn.graphs import Perturbation


@dataclass(frozen=True, eq=False)
class Batch:
    """Trainings on one graph that can be run side by side; with the flips, where the graph's name does not say them."""

    trainings: tuple[Training, ...]
    flips: Perturbation | None = None

    @cached_property
    def keys(self) -> set[str]:
        return {training.key for training in self.trainings}


Executor = Callable[[Sequence[Batch]], Iterator[tuple[Batch, list[Outcome]]]]
"""Runs batches and gives back each with what came of it, in whatever order they are done."""


def run_batch(batch: Batch, device: str, root: str | Path | None = None) -> list[Outcome]:
    case = batch.trainings[0].case
    graph = load_graph(case, root, batch.flips) if batch.flips is not None else _named_graph(case, root)
    return [one.outcome for one in train(graph, batch.trainings, root=root, device=device)]


@lru_cache(maxsize=4)
def _named_graph(case: Case, root: str | Path | None) -> Graph:
    return load_graph(case, root)


def local(device: str, root: str | Path | None = None) -> Executor:
    """An executor that runs one batch after the other in this process."""

    def run(batches: Sequence[Batch]) -> Iterator[tuple[Batch, list[Outcome]]]:
        for batch in batches:
            yield batch, run_batch(batch, device, root)

    return run


def on_ray(address: str | None, device: str, root: str | Path | None = None) -> Executor:
    """An executor that hands batches to a Ray cluster; a batch whose worker dies is run again.

    Args:
        address: of a running cluster; ``None`` starts one on this machine.
    """
    try:
        import ray
    except ImportError as cause:
        raise ConfigError('The ray executor needs Ray: pip install "asgnn[ray]".') from cause
    ray.init(address=address, ignore_reinit_error=True, log_to_driver=False)
    # one core, or one GPU, a batch: a batch is as wide as a worker can use already
    remote = ray.remote(num_cpus=1, num_gpus=1 if device == "cuda" else 0, max_retries=-1)(run_batch)

    def run(batches: Sequence[Batch]) -> Iterator[tuple[Batch, list[Outcome]]]:
        waiting = {remote.remote(batch, device, root): batch for batch in batches}
        while waiting:
            (done, *_), _ = ray.wait(list(waiting))
            yield waiting.pop(done), ray.get(done)

    return run
