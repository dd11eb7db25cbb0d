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
from asgnn.audit.page import write_audit_page


def core() -> None:
    """The library alone: fit, predict, save and load a classifier, audit and clean its graph."""
    assert "site-packages" in str(asgnn.__file__), f"asgnn is imported from {asgnn.__file__}"
    assert asgnn.__version__ == version("asgnn")
    data = asgnn.graphs.planted_graph(200, 3, features=asgnn.graphs.Gaussian(16, 2.0))
    labels = [None if node % 3 else f"class {label}" for node, label in enumerate(data.y.tolist())]
    classifier = asgnn.RobustNodeClassifier(budget=None, models=2, settings={"epochs": 40}).fit(data, labels)
    hits = [found == f"class {label}" for found, label in zip(classifier.predict(), data.y.tolist(), strict=True)]
    assert sum(hits) > 0.8 * len(hits)
    classifier.save("model")
    again = asgnn.RobustNodeClassifier.load("model")
    assert (again.predict_proba(data) == classifier.predict_proba()).all()
    cleaned = classifier.clean(data, share=0.1)
    assert cleaned.num_edges == data.num_edges - 2 * round(0.05 * data.num_edges)
    write_audit_page(classifier.audit(), "audit.html")
    assert "<html" in Path("audit.html").read_text()
    assert asgnn.load_dataset("cora").num_nodes == 2485


def command() -> None:
    """The command line."""
    said = run("--version")
    assert said.strip() == asgnn.__version__, said
    assert "cora" in run("datasets")


def parquet() -> None:
    """A table in a Parquet file."""
    import pandas as pd

    edges = pd.DataFrame({"source": ["a", "b"], "target": ["b", "c"]})
    try:
        edges.to_parquet("edges.parquet")
    except ImportError:
        Path("edges.parquet").write_bytes(b"PAR1")
    assert asgnn.read_graph("edges.parquet").num_edges == 2


def fast() -> None:
    """ASMP with compiled loops."""
    import torch

    from asgnn.asmp import ASMPParams, asmp

    data = asgnn.graphs.planted_graph(50, 2, features=asgnn.graphs.Gaussian(4))
    found = asmp(data.x, data.edge_index, ASMPParams(), layers=2, backend="cpu")
    torch.testing.assert_close(found.h, asmp(data.x, data.edge_index, ASMPParams(), layers=2, backend="edges").h)


def neighbors() -> None:
    """Nearest neighbours as of more than 50,000 nodes."""
    import torch

    from asgnn.graphs import neighbors as module

    module.EXACT_UP_TO = 100  # the search itself would take a minute
    x = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))
    assert asgnn.graphs.build_graph(x, neighbors=2).num_edges >= 600


def partition() -> None:
    """Parts of a graph by METIS."""
    data = asgnn.graphs.planted_graph(200, 3, features=asgnn.graphs.Gaussian(4))
    assert set(asgnn.graphs.partition_nodes(data.edge_index, 200, 4, "metis").tolist()) == {0, 1, 2, 3}


def ray() -> None:
    """A cluster on this machine."""
    from asgnn.experiments.executors import cluster

    with cluster(workers=1):
        pass


CHECKS: dict[str, tuple[Callable[[], None], str | None]] = {
    "core": (core, None),
    "command": (command, "asgnn[cli]"),
    "parquet": (parquet, "asgnn[parquet]"),
    "fast": (fast, "asgnn[fast]"),
    "neighbors": (neighbors, "asgnn[neighbors]"),
    "partition": (partition, "asgnn[partition]"),
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
