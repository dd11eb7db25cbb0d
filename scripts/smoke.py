"""What an installed asgnn must do, in a few seconds; scripts/check_wheel.py runs it in an empty environment.

    python -I scripts/smoke.py core without:command …

Imports nothing but asgnn and what asgnn installs. A check that needs an extra is also tried without it, as
``without:NAME``: it must then fail with a sentence that names the extra.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import asgnn


def core() -> None:
    """The library alone: a planted graph, a training, a prediction."""
    assert "site-packages" in str(asgnn.__file__), f"asgnn is imported from {asgnn.__file__}"
    assert asgnn.__version__ == version("asgnn")
    data = asgnn.graphs.planted_graph(300, 3, features=asgnn.graphs.Gaussian(16, 2.0))
    split = asgnn.random_split(data, trial=0)
    found = asgnn.recipe("asgnn", epochs=30).trial(data, split, 0)
    asgnn.fit(found.model, data, found.config, split=split)
    assert asgnn.accuracy(found.model, data, split.test) > 0.8
    assert asgnn.load_dataset("cora").num_nodes == 2485


def command() -> None:
    """The command line."""
    said = run("--version")
    assert said.strip() == asgnn.__version__, said
    assert "cora" in run("datasets")


def neighbors() -> None:
    """Nearest neighbours as of more than 50,000 nodes."""
    import torch

    from asgnn.graphs import neighbors as module

    module.EXACT_UP_TO = 100  # the search itself would take a minute
    x = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))
    assert asgnn.graphs.build_graph(x, neighbors=2).num_edges >= 600


def ray() -> None:
    """A cluster on this machine."""
    from asgnn.experiments.executors import cluster

    with cluster(workers=1):
        pass


CHECKS: dict[str, tuple[Callable[[], None], str | None]] = {
    "core": (core, None),
    "command": (command, "asgnn[cli]"),
    "neighbors": (neighbors, "asgnn[neighbors]"),
    "ray": (ray, "asgnn[ray]"),
}


def run(*arguments: str) -> str:
    """Runs the command line of this environment; returns what it prints, or raises what it says."""
    program = Path(sys.executable).with_name("asgnn")
    around = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([str(program), *arguments], capture_output=True, text=True, env=around)
    if done.returncode != 0:
        raise asgnn.AsgnnError(done.stderr.strip())
    return done.stdout


def main() -> None:
    for name in sys.argv[1:]:
        kind, _, rest = name.rpartition(":")
        check, extra = CHECKS[rest]
        if kind != "without":
            check()
            continue
        said = refusal(check)
        if extra is None or f"pip install {extra}" not in said.replace('"', "") or "\n" in said:
            sys.exit(f"{rest} without {extra}: {said}")


def refusal(check: Callable[[], None]) -> str:
    """Returns the message of the error that a check ends with."""
    try:
        check()
    except asgnn.AsgnnError as refused:
        return str(refused)
    return "it works"


if __name__ == "__main__":
    main()
