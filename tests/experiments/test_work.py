"""Where batches are run: here, and on a Ray cluster of two workers on this machine, of which some die."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from asgnn.errors import ConfigError, DataUnavailable
from asgnn.experiments import work
from asgnn.experiments.store import Store
from asgnn.experiments.trainings import Case, Outcome, Training, settings_of
from asgnn.experiments.work import Batch, cluster, local, on_ray
from asgnn.graphs import load_own

CASE = Case("cora", "own-metattack", 0.25, "random:0")
FEW = settings_of({"epochs": 2})


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
    missing = Batch((Training(Case("citeseer", "dice", 0.1, "random:0"), "gcn", FEW),))
    with pytest.raises(DataUnavailable):
        list(local("cpu", root="/nowhere")([missing]))


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
        with pytest.raises(ConfigError, match=f"No Ray cluster answers at {address} .*see whether it runs"):
            cluster(address).__enter__()
    with pytest.raises(ConfigError, match=r"The Ray cluster nonsense cannot be joined: .*\.$"):
        cluster("nonsense").__enter__()


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
    missing = Batch((Training(Case("citeseer", "dice", 0.1, "random:0"), "gcn", FEW),))
    with pytest.raises(DataUnavailable) as here:
        list(local("cpu", root="/nowhere")([missing]))
    with pytest.raises(DataUnavailable) as there:
        list(on_ray("cpu", root="/nowhere")([missing]))
    assert str(there.value) == str(here.value)
    assert type(there.value) is DataUnavailable
    wrong = Batch((Training(CASE, "gcn", settings_of({"depth": 2})),))
    with pytest.raises(ConfigError, match=r"^There is no setting depth here; there are [a-z_, ]*\.$"):
        list(on_ray("cpu")([wrong]))


@pytest.mark.usefixtures("two_workers")
def test_a_batch_that_kills_every_worker_ends_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(batch: Batch, device: str, root: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(work, "run_batch", dies)
    monkeypatch.setattr(work, "RETRIES", 1)
    with pytest.raises(DataUnavailable, match=r"for gcn on cora, tried 2 times \(WorkerCrashedError\)"):
        list(on_ray("cpu")(batches()[:1]))


# --- the command ------------------------------------------------------------------------------------------------------


def start(store: Path, *more: str) -> subprocess.Popen[str]:
    words = ["reproduce", "small", "--models", "gcn", "--search", "small", "--trials", "3", "--batch", "2"]
    return subprocess.Popen(
        [sys.executable, "-m", "asgnn", *words, "--device", "cpu", "--store", str(store), *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def family(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def at_work(process: subprocess.Popen[str], seconds: float = 60) -> list[psutil.Process]:
    """The workers that are in the middle of a batch, as soon as there are any."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert process.poll() is None, process.communicate()
        found = []
        for one in family(process):
            try:
                if one.cmdline()[:1] == ["ray::run_batch"]:
                    found.append(one)
            except psutil.Error:
                continue
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError("no worker was at work in time")


def content(store: Path) -> object:
    with Store.open(store, create=False) as found:
        return found.content()


def gone(processes: Sequence[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=20)
    return not [one for one in alive if one.status() != psutil.STATUS_ZOMBIE]


def test_a_killed_worker_and_ctrl_c_change_nothing(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="the extra ray is not installed")
    undisturbed, disturbed = tmp_path / "local.sqlite", tmp_path / "ray.sqlite"
    process = start(undisturbed)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said

    process = start(disturbed, "--executor", "ray")  # stopped as soon as there is something in the store
    at_work(process)
    assert process.stderr is not None
    assert "trainings" in process.stderr.readline()
    everyone = family(process)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert said.splitlines()[-1] == "asgnn: Interrupted; whatever was already written is kept."
    assert "Traceback" not in said
    assert gone(everyone)

    process = start(disturbed, "--executor", "ray")  # of which a worker is killed in the middle of a batch
    for victim in at_work(process)[:1]:
        victim.kill()
    printed, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert "Traceback" not in said
    assert "Kept in" in printed
    assert all("trainings," in line for line in said.splitlines()), said  # nothing but the progress
    assert content(disturbed) == content(undisturbed)
