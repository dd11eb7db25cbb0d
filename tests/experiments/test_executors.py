"""Executors: this process, two worker processes, and a Ray cluster whose workers are killed."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from asgnn.errors import ConfigError, DataUnavailable
from asgnn.experiments import executors, parse_case
from asgnn.experiments.engine import Engine
from asgnn.experiments.executors import Batch, cluster, local, on_ray, processes
from asgnn.experiments.questions import plan
from asgnn.experiments.store import Store
from asgnn.experiments.values import Attack, Outcome, Training, as_settings
from asgnn.graphs import load_own
from tests.processes import HANG, command

CASE = parse_case("cora", "own-metattack", 0.25)
NO_FILE = replace(CASE, attacks=(Attack("flips", "file", path="/nowhere/flips.npz"),))
FEW = as_settings({"epochs": 2})


def batches() -> list[Batch]:
    """Three kinds of models, one of them with the flips beside it."""
    made = [Batch(tuple(Training(CASE, model, FEW, seed) for seed in range(2))) for model in ("gcn", "mlp")]
    made.append(Batch((Training(CASE, "appnp", FEW),), load_own("cora", "metattack", 0.1)))
    return made


def figures(done: Iterator[tuple[Batch, list[Outcome]]]) -> dict[str, tuple[object, object]]:
    found: dict[str, tuple[object, object]] = {}
    for batch, outcomes in done:
        assert [one.training for one in outcomes] == list(batch.trainings)
        assert not found.keys() & batch.keys  # nothing twice
        found |= {one.training.key: (one.figures, one.scalars) for one in outcomes}
    return found


def test_here() -> None:
    found = figures(local("cpu")(batches()))
    assert len(found) == 5
    missing = Batch((Training(NO_FILE, "gcn", FEW),))
    with pytest.raises(DataUnavailable):
        list(local("cpu")([missing]))


# --- processes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 257, 10**9])
def test_the_number_of_processes_is_bounded(workers: int) -> None:
    with (
        pytest.raises(ConfigError, match=f"workers must be a whole number from 1 to 256; it is {workers}"),
        processes(workers, "cpu"),
    ):
        pass


def test_processes_give_what_this_one_gives() -> None:
    before = psutil.Process().children()
    with processes(2, "cpu") as run:
        assert figures(run(batches())) == figures(local("cpu")(batches()))
        wrong = Batch((Training(CASE, "gcn", as_settings({"depth": 2})),))
        with pytest.raises(ConfigError, match=r"^GCN has no setting depth; its settings are [a-z_, ]*\.$"):
            list(run([wrong]))
        assert figures(run(batches()[:1]))  # the pool still works
        workers = [
            one for one in psutil.Process().children() if one not in before and "spawn_main" in str(one.cmdline())
        ]
        assert len(workers) == 2
        workers[0].kill()
        with pytest.raises(DataUnavailable, match="A worker process was killed"):
            list(run(batches()))
    assert gone(workers)


@pytest.mark.parametrize("way", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_run_leaves_no_process_and_loses_nothing(way: signal.Signals, tmp_path: Path) -> None:
    with command(*SMALL, "--store", str(tmp_path / "workers.sqlite"), "--workers", "2") as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert "trainings," in line
        everyone = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(way)
        _, said = process.communicate(timeout=HANG)
    assert process.returncode == (130 if way is signal.SIGINT else -way), said
    assert "Traceback" not in said
    assert gone(everyone)
    with Store.open(tmp_path / "workers.sqlite", create=False) as found:
        assert found.summary().trainings >= int(line.split("/")[0])
    assert undisturbed(tmp_path / "workers.sqlite") == undisturbed(tmp_path / "local.sqlite")


# --- no cluster -----------------------------------------------------------------------------------------------------


def test_without_ray_a_sentence_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r'The ray executor needs Ray: pip install "asgnn\[ray\]"\.'), cluster():
        pass


def test_a_cluster_that_does_not_answer() -> None:
    pytest.importorskip("ray")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for address in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}", "127.0.0.1:99999"):
        with pytest.raises(ConfigError, match=f"No Ray cluster answers at {address} .*check that it is running"):
            cluster(address).__enter__()
    with pytest.raises(ConfigError, match=r"The Ray cluster nonsense cannot be joined: .*\.$"):
        cluster("nonsense").__enter__()


@pytest.mark.parametrize(("device", "gpus", "asked"), [("cpu", 0.5, 0), ("cuda", 1, 1), ("cuda", 0.5, 0.5)])
def test_a_batch_asks_for_its_share_of_a_gpu(
    device: str, gpus: float, asked: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pytest.importorskip("ray")
    seen = []
    monkeypatch.setattr(ray, "remote", lambda **settings: seen.append(settings) or (lambda task: task))
    on_ray(device, gpus=gpus)
    assert [(one["num_cpus"], one["num_gpus"]) for one in seen] == [(1, asked)]
    with pytest.raises(ConfigError, match=r"gpus must be a number in \(0, 1\]"):
        on_ray(device, gpus=2)


# --- two workers, in the process of the tests -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two_workers() -> Iterator[None]:
    pytest.importorskip("ray", reason="the extra ray is not installed")
    with cluster(workers=2) as has_gpu:
        assert isinstance(has_gpu, bool)
        yield
    assert not sys.modules["ray"].is_initialized()


@pytest.mark.usefixtures("two_workers")
def test_a_cluster_gives_what_this_process_gives() -> None:
    assert figures(on_ray("cpu")(batches())) == figures(local("cpu")(batches()))


@pytest.mark.usefixtures("two_workers")
def test_an_error_in_a_worker_is_raised_here_as_it_was_there() -> None:
    missing = Batch((Training(NO_FILE, "gcn", FEW),))
    with pytest.raises(DataUnavailable) as here:
        list(local("cpu")([missing]))
    with pytest.raises(DataUnavailable) as there:
        list(on_ray("cpu")([missing]))
    assert str(there.value) == str(here.value)
    assert type(there.value) is DataUnavailable
    wrong = Batch((Training(CASE, "gcn", as_settings({"depth": 2})),))
    with pytest.raises(ConfigError, match=r"^GCN has no setting depth; its settings are [a-z_, ]*\.$"):
        list(on_ray("cpu")([wrong]))


@pytest.mark.usefixtures("two_workers")
def test_a_batch_that_kills_every_worker_ends_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(batch: Batch, device: str, root: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(executors, "run_batch", dies)
    monkeypatch.setattr(executors, "RETRIES", 1)
    with pytest.raises(DataUnavailable, match=r"for gcn on cora, tried 2 times \(WorkerCrashedError\)"):
        list(on_ray("cpu")(batches()[:1]))


# --- the command ------------------------------------------------------------------------------------------------------


def undisturbed(store: Path) -> object:
    """The content of a store after the same plan runs in this process; resumes if the store has a part of it."""
    asked = plan("small", models=["gcn"], search="small", trials=3)
    with Store.open(store) as found:
        for _ in Engine(found, local("cpu"), largest=2).run(asked):
            pass
        return found.content()


SMALL = ["reproduce", "small", "--models", "gcn", "--search", "small", "--trials", "3", "--batch", "2"]
SMALL += ["--device", "cpu"]


def at_work(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Waits for a worker that is running a batch."""
    end = time.monotonic() + HANG
    while time.monotonic() < end:
        assert process.poll() is None, process.communicate()
        for one in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):  # the process has ended
                if one.cmdline()[:1] == ["ray::run_batch"]:
                    return [one]
        time.sleep(0.1)
    raise AssertionError("no worker was at work in time")


def running(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def gone(processes: list[psutil.Process]) -> bool:
    """Waits until all have ended; a zombie has, even if nobody asks for its exit code."""
    end = time.monotonic() + HANG
    while (alive := any(map(running, processes))) and time.monotonic() < end:
        time.sleep(0.1)
    return not alive


@pytest.mark.usefixtures("two_workers")
def test_a_worker_killed_in_the_middle_of_a_batch_changes_nothing(tmp_path: Path) -> None:
    """Also, a cluster that runs already is joined, and still runs afterwards."""
    ray = sys.modules["ray"]
    address = ray.get_runtime_context().gcs_address
    words = [*SMALL, "--store", str(tmp_path / "ray.sqlite"), "--executor", "ray", "--address", address]
    with command(*words) as process:
        victims = at_work(process)
        victims[0].kill()
        printed, said = process.communicate(timeout=HANG)
    assert process.returncode == 0, said
    assert gone(victims)
    assert "Results are stored in" in printed
    assert all("trainings," in line for line in said.splitlines()), said  # nothing but the progress
    with Store.open(tmp_path / "ray.sqlite", create=False) as found:
        assert found.content() == undisturbed(tmp_path / "local.sqlite")
    assert ray.cluster_resources()["CPU"] == 2


def test_ctrl_c_leaves_no_cluster_behind_and_loses_nothing(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="the extra ray is not installed")
    with command(*SMALL, "--store", str(tmp_path / "ray.sqlite"), "--executor", "ray") as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert "trainings," in line
        everyone = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=HANG)
    assert process.returncode == 130, said
    assert said.splitlines()[-1] == "asgnn: Interrupted; finished results are stored."
    assert "Traceback" not in said
    assert gone(everyone)
    with Store.open(tmp_path / "ray.sqlite", create=False) as found:
        assert found.summary().trainings >= int(line.split("/")[0])
    assert undisturbed(tmp_path / "ray.sqlite") == undisturbed(tmp_path / "local.sqlite")
