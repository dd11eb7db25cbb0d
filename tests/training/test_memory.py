"""The plan of a training's memory: its numbers, what it chooses, and that what it chooses changes no result."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from asgnn.errors import ConfigError
from asgnn.graphs import Gaussian, Split, planted_graph, prepare, random_split
from asgnn.graphs.adjacency import pattern_of
from asgnn.models import APPNP, ASGNN, GCN, MLP, NodeClassifier
from asgnn.models.memory import Saving, Sizes
from asgnn.training import Fit, TrainConfig, Trial, fit, fit_many, memory, memory_plan

DATA = planted_graph(500, classes=3, degree=6, features=Gaussian(20))
SPLIT: Split = random_split(DATA, 0)


def asgnn() -> ASGNN:
    torch.manual_seed(0)
    return ASGNN(20, 16, 3, num_layers=8)


def free(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda device: count)


def test_bytes_of_the_graph_are_those_of_its_tensors() -> None:
    plan = memory_plan(asgnn(), DATA)
    features, adj = prepare(DATA)
    _, place = pattern_of(DATA.edge_index, 500)
    short_copy = 8 * DATA.edge_index.size(1)
    held = [adj.row, adj.col, adj.reverse, adj.weight, adj.loops, adj.crow, adj.blocks(1)[0], place]
    assert plan.graph == pytest.approx(sum(part.nbytes for part in held) + short_copy, rel=0.01)
    assert plan.features == 0  # dense, and where it is used
    assert features.dense is DATA.x
    assert plan.weights == 6 * 4 * sum(p.numel() for p in asgnn().parameters())


def test_sparse_features_are_counted() -> None:
    data = Data(x=torch.eye(500), edge_index=DATA.edge_index, y=DATA.y)
    rows = [part for part in (prepare(data)[0].by_row, prepare(data)[0].by_column) if part is not None]
    held = sum(part.nbytes for one in rows for part in (one.crow, one.col, one.value)) + 8 * 500
    assert memory_plan(GCN(500, 4, 3), data).features == pytest.approx(held, rel=0.05)


def chosen(model: NodeClassifier, monkeypatch: pytest.MonkeyPatch, count: float) -> tuple[Saving, bool]:
    free(monkeypatch, int(count))
    plan = memory_plan(model, DATA)
    return plan.saving, plan.fits


def test_the_fastest_that_fits_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asgnn.models.asgnn.ROWS", 64)
    needed = []
    for saving in asgnn().savings():
        monkeypatch.setattr(ASGNN, "savings", lambda self, saving=saving: (saving,))
        needed.append(memory_plan(asgnn(), DATA).needed)
    monkeypatch.undo()
    monkeypatch.setattr("asgnn.models.asgnn.ROWS", 64)
    assert needed == sorted(needed, reverse=True)
    assert len(set(needed)) == 3
    enough = [count / memory.SHARE + 1 for count in needed]
    assert chosen(asgnn(), monkeypatch, enough[0]) == (Saving(), True)
    assert chosen(asgnn(), monkeypatch, enough[0] - 99) == (Saving(64), True)
    assert chosen(asgnn(), monkeypatch, enough[1] - 99) == (Saving(64, recompute=True), True)
    assert chosen(asgnn(), monkeypatch, enough[2] - 99) == (Saving(64, recompute=True), False)
    # without an estimate of its own, nothing is refused
    assert chosen(GCN(20, 16, 3), monkeypatch, 1000) == (Saving(), True)


@pytest.mark.parametrize("layers", [0, 1, 2])
def test_few_layers_have_a_plan(layers: int) -> None:
    model = ASGNN(20, 16, 3, num_layers=layers)
    assert [
        model.activations(Sizes(500, 20, 3500, 10_000, True, 4, gpu), saving) is not None
        for gpu in (False, True)
        for saving in model.savings()
    ] == [True] * 6


def trained(model: NodeClassifier, data: Data = DATA) -> Fit:
    return fit(model, data, TrainConfig(epochs=6, seed=2), split=SPLIT)


@pytest.mark.parametrize("kind", [ASGNN, APPNP, MLP])
def test_saving_memory_changes_no_result(kind: type[NodeClassifier], monkeypatch: pytest.MonkeyPatch) -> None:
    def model() -> NodeClassifier:
        torch.manual_seed(0)
        return kind(20, 16, 3).double()  # type: ignore[call-arg]

    data = Data(x=DATA.x.double(), edge_index=DATA.edge_index, y=DATA.y)
    plain = trained(model(), data)
    last = model().savings()[-1]
    monkeypatch.setattr(kind, "savings", lambda self: (Saving(66, last.recompute),))
    saved = trained(model(), data)
    torch.testing.assert_close(saved.history.train_loss, plain.history.train_loss, rtol=1e-9, atol=0)
    torch.testing.assert_close(saved.logits[0], plain.logits[0], rtol=1e-6, atol=1e-8)


def test_what_does_not_fit_is_refused_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    free(monkeypatch, 1000)
    with pytest.raises(ConfigError, match=r"This ASGNN does not fit into memory: training needs about .* MB of memory"):
        fit(asgnn(), DATA, TrainConfig(epochs=1), split=SPLIT, progress=lambda done, total: pytest.fail("trained"))


def test_batches_fit_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = memory_plan(asgnn(), DATA)
    monkeypatch.setattr(memory, "ON_CPU", int(2.5 * (plan.weights + plan.activations)))
    fits = fit_many([Trial(asgnn(), TrainConfig(epochs=1), SPLIT) for _ in range(5)], DATA)
    assert [result.batch for result in fits] == [2, 2, 2, 2, 1]
    assert memory_plan(asgnn(), DATA, trials=5).activations == 5 * plan.activations


def test_the_plan_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    free(monkeypatch, 2 * 10**9)
    text = str(memory_plan(asgnn(), DATA))
    assert text.startswith("training needs about ")
    assert text.endswith("2.0 GB are free")
    monkeypatch.setattr(ASGNN, "savings", lambda self: (Saving(4096, recompute=True),))
    assert str(memory_plan(asgnn(), DATA)).endswith(
        "the MLP takes 4,096 rows at a time; layers are computed again in the backward pass"
    )
    assert "at most about" in str(memory_plan(GCN(20, 4, 3), DATA))


def test_features_mapped_from_a_file_are_not_copied(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", DATA.x.numpy())
    mapped = np.load(tmp_path / "x.npy", mmap_mode="c")
    data = Data(x=torch.from_numpy(mapped), edge_index=DATA.edge_index, y=DATA.y)
    features, _ = prepare(data)
    assert features.dense is not None
    assert features.dense.data_ptr() == mapped.ctypes.data
    assert torch.equal(trained(asgnn(), data).logits[0], trained(asgnn()).logits[0])


# Counts what malloc gives out in blocks of 64 kB and more. The resident memory would not do: it has what malloc keeps
# for later, and the system may take pages of a process away, or give it larger ones, whenever it likes.
MEASURED = """
import ctypes, json, torch
from asgnn.graphs import Split
from asgnn.models import ASGNN
from asgnn.training import TrainConfig, fit, memory_plan
from torch_geometric.data import Data

LIBC = ctypes.CDLL(None)

class Used(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"  # malloc.h
    _fields_ = [(name, ctypes.c_int) for name in names.split()]

LIBC.mallinfo.restype = Used
assert LIBC.mallopt(-3, 2**16)  # M_MMAP_THRESHOLD, fixed: from this size on a block is one of the large ones

def graph(n, e):
    rng = torch.Generator().manual_seed(0)
    u, v = torch.randint(n, (2, e), generator=rng)
    key = (torch.minimum(u, v) * n + torch.maximum(u, v))[u != v].unique()
    u, v = key // n, key % n
    edges = torch.stack([torch.cat([u, v]), torch.cat([v, u])])
    return Data(x=torch.randn(n, 64, generator=rng), edge_index=edges, y=torch.arange(n) % 5)

def train(data, save):
    n = data.num_nodes
    model, (train, val, test) = ASGNN(64, 64, 5, num_layers=10), torch.arange(n).split([n // 2, n // 4, n // 4])
    ASGNN.savings = lambda self, all=ALL: (all(self)[2 if save else 0],)
    plan = memory_plan(model, data).needed
    LIBC.malloc_stats()  # prints the largest sum of the large blocks so far
    before = LIBC.mallinfo().hblkhd  # the large blocks of now
    fit(model, data, TrainConfig(epochs=1), split=Split(train, val, test))
    LIBC.malloc_stats()
    return plan, before

ALL = ASGNN.savings
train(graph(400, 800), False), train(graph(400, 800), True)
# this peak can only grow, so the smaller training comes first
print(json.dumps([train(graph(80_000, 400_000), save) for save in (True, False)]))
"""


def test_the_estimate_is_near_the_measured_peak() -> None:
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("only the malloc of glibc says what its peak was")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "LD_PRELOAD": ""}
    done = subprocess.run([sys.executable, "-c", MEASURED], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    *_, earlier, saving_peak, later, peak = map(int, re.findall(r"max mmap bytes += +(\d+)", done.stderr))
    assert earlier < saving_peak == later < peak  # each training had a peak of its own
    (saving_plan, saving_before), (plan, before) = json.loads(done.stdout)
    measured, saving_measured = peak - before, saving_peak - saving_before
    assert 0.8 < plan / measured < 1.3
    assert 0.75 < saving_plan / saving_measured < 1.3
    assert saving_measured < 0.9 * measured
