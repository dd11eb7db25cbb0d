"""Several processes find what one finds: every loss, the best epoch and the scores, dropout included."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch_geometric.data import Data

from asgnn import kernels
from asgnn.asmp import SCALARS, ASMPParams, Scheme
from asgnn.distributed import __main__ as command
from asgnn.distributed import fit as fit_together
from asgnn.errors import AsgnnError, ConfigError
from asgnn.graphs import FeaturePrior, Split, undirected
from asgnn.models import APPNP, ASGNN, GAT, GCN, MLP, SGC, NodeClassifier, Witness
from asgnn.training import Fit, TrainConfig, fit

NODES, FEATURES, CLASSES = 41, 12, 3
CONFIG = TrainConfig(epochs=6, lr=0.05, seed=3)
# 0 and 1 of unequal sizes, in no order
MIXED = (torch.arange(NODES) % 3 == 0).long()


def graph(*, sparse: bool = False, weighted: bool = False, classes: int = CLASSES, edges: float = 0.1) -> Data:
    """A random graph; its last two nodes have no edges."""
    rng = torch.Generator().manual_seed(0)
    upper = torch.rand(NODES, NODES, generator=rng).triu(1)
    upper[:, -2:] = 0
    edge_index = undirected((upper > 1 - edges).nonzero().t(), NODES)
    x = torch.randn(NODES, FEATURES, generator=rng, dtype=torch.float64)
    if sparse:
        x = x * (torch.rand(x.shape, generator=rng) < 0.08)
    data = Data(x=x, edge_index=edge_index, y=torch.arange(NODES) % classes)
    if weighted:
        weight = torch.rand(NODES, NODES, generator=rng, dtype=torch.float64)
        data.edge_weight = (weight + weight.t())[edge_index[0], edge_index[1]] / 2
    return data


def asgnn(**settings: Any) -> NodeClassifier:
    return ASGNN(FEATURES, 7, CLASSES, num_layers=3, dropout=0.4, **settings)


@dataclass(frozen=True)
class Case:
    """A model and a graph to train it on; nodes divided by order unless ``partition`` says otherwise."""

    model: Callable[[], NodeClassifier]
    data: Mapping[str, Any] = field(default_factory=dict)
    config: TrainConfig = CONFIG
    partition: str | torch.Tensor = "order"
    train: range = range(0, NODES, 3)
    numba: bool = True
    ranks: int = 2

    def arguments(self) -> tuple[NodeClassifier, Data, TrainConfig, Split]:
        torch.manual_seed(0)
        val = torch.tensor([node for node in range(NODES) if node not in self.train][::2])
        split = Split(torch.tensor(self.train), val, torch.tensor([], dtype=torch.int64))
        return self.model().double(), graph(**self.data), self.config, split


CASES = {
    "asgnn": Case(asgnn),
    "asgnn, sparse features": Case(asgnn, {"sparse": True}, partition=MIXED),
    "asgnn in torch": Case(asgnn, {"sparse": True}, partition=MIXED, numba=False),
    "asgnn, weights": Case(asgnn, {"weighted": True}, partition=MIXED),
    "exact, mcp": Case(lambda: asgnn(scheme=Scheme(structure="exact", penalty="mcp"))),
    "mcp in torch": Case(lambda: asgnn(scheme=Scheme(penalty="mcp")), numba=False),
    "frozen": Case(lambda: asgnn(scheme=Scheme(structure="frozen")), {"weighted": True}, partition=MIXED),
    "frozen in torch": Case(lambda: asgnn(scheme=Scheme(structure="frozen")), {"weighted": True}, numba=False),
    "two steps each": Case(lambda: asgnn(scheme=Scheme(h_steps=2, s_steps=2))),
    "paper": Case(lambda: asgnn(scheme=Scheme("paper")), {"weighted": True}, partition=MIXED),
    "joint, unit norm": Case(lambda: asgnn(scheme=Scheme(update="joint", unit_norm=True))),
    "no layers": Case(lambda: ASGNN(FEATURES, 7, CLASSES, num_layers=0)),
    "wide": Case(lambda: ASGNN(FEATURES, 7, 11, num_layers=2, params=ASMPParams(eta1=0.1)), partition=MIXED),
    "prior": Case(lambda: asgnn(prior=FeaturePrior(neighbors=3))),
    "gcn": Case(lambda: GCN(FEATURES, 7, CLASSES, num_layers=3), {"weighted": True}, partition=MIXED),
    "appnp": Case(lambda: APPNP(FEATURES, 7, CLASSES, num_layers=3), {"weighted": True}, partition=MIXED),
    "appnp in torch": Case(lambda: APPNP(FEATURES, 7, CLASSES, num_layers=3), {"weighted": True}, numba=False),
    "sgc": Case(lambda: SGC(FEATURES, CLASSES), {"sparse": True}),
    "mlp": Case(lambda: MLP(FEATURES, 7, CLASSES), {"sparse": True}, partition=MIXED),
    "no edges": Case(asgnn, {"edges": 0.0}),
    "no training nodes in the second": Case(asgnn, train=range(0, NODES // 2, 2)),
    "early stop": Case(asgnn, config=replace(CONFIG, epochs=60, patience=4)),
    "roc auc": Case(lambda: GCN(FEATURES, 7, 2), {"classes": 2}, replace(CONFIG, metric="roc_auc"), partition=MIXED),
    "three": Case(asgnn, ranks=3),
    "one node each but one": Case(asgnn, partition=torch.arange(NODES).clamp(max=2), ranks=3),
    "gcn of three": Case(lambda: GCN(FEATURES, 7, CLASSES), ranks=3),
}

ERRORS: dict[str, tuple[Callable[[int], Any], str]] = {
    "another model": (
        lambda rank: fit_together(GAT(FEATURES, 4, CLASSES).double(), graph(), CONFIG, split=any_split()),
        "GAT cannot be trained by several processes",
    ),
    "hops": (
        lambda rank: fit_together(asgnn(hops=1).double(), graph(), CONFIG, split=any_split()),
        "only with hops=0",
    ),
    "witness": (
        lambda rank: fit_together(asgnn(witness=Witness()).double(), graph(), CONFIG, split=any_split()),
        "A model with a witness cannot be trained by several processes",
    ),
    "different settings": (
        lambda rank: fit_together(asgnn().double(), graph(), replace(CONFIG, seed=rank), split=any_split()),
        "the config is not the same in all of them",
    ),
    "mini-batches": (
        lambda rank: fit_together(asgnn().double(), graph(), replace(CONFIG, parts=2), split=any_split()),
        "set parts=1.",
    ),
    "more processes than nodes": (
        lambda rank: fit_together(
            MLP(1, 2, 2),
            two_nodes(),
            CONFIG,
            split=Split(torch.tensor([0]), torch.tensor([1]), torch.tensor([]).long()),
        ),
        "The graph has 2 nodes for 3 processes; use at most one process per node.",
    ),
    "an empty part": (
        lambda rank: fit_together(asgnn().double(), graph(), CONFIG, split=any_split(), partition=MIXED),
        "partition must give nodes to each of the processes 0 to 2",
    ),
    "a short partition": (
        lambda rank: fit_together(asgnn().double(), graph(), CONFIG, split=any_split(), partition=MIXED[:5]),
        "partition must be one int64 number for each of the 41 nodes.",
    ),
    "another partition": (
        lambda rank: fit_together(asgnn().double(), graph(), CONFIG, split=any_split(), partition="random"),
        "partition must be one of auto, metis, order",
    ),
}


def any_split() -> Split:
    return Split(torch.arange(0, 20), torch.arange(20, 30), torch.arange(30, NODES))


def two_nodes() -> Data:
    return Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0, 1], [1, 0]]), y=torch.tensor([0, 1]))


def work(rank: int, folder: str) -> None:
    """One of the processes: all cases, first of three processes and then of two."""
    torch.set_num_threads(1)
    errors, results = {}, {}
    for size in (3, 2):
        if rank >= size:
            return
        dist.init_process_group("gloo", init_method=f"file://{folder}/meeting-{size}", rank=rank, world_size=size)
        for name, (call, _) in ERRORS.items() if size == 3 else ():
            try:
                call(rank)
            except AsgnnError as error:
                errors[name] = str(error)
        for name, case in CASES.items():
            if case.ranks == size:
                kernels.USE_NUMBA = case.numba
                model, data, config, split = case.arguments()
                if rank:
                    model.reset_parameters()  # the first process's weights are used
                found = fit_together(model, data, config, split=split, partition=case.partition)
                results[name] = summary(found) | {
                    name: getattr(found, name) for name in ("nodes", "borrowed", "row_bytes", "sum_bytes")
                }
        printed = io.StringIO()
        if size == 2:
            sys.argv = ["asgnn.distributed", "--epochs", "2", "--set", "num_layers=2", "--compare", "--double"]
            with contextlib.redirect_stdout(printed):
                command.train(command.arguments(), torch.device("cpu"))
        torch.save((errors, results, printed.getvalue()), Path(folder) / f"{rank}-{size}")
        dist.destroy_process_group()


def summary(found: Fit) -> dict[str, Any]:
    curves = torch.stack([found.history.train_loss, found.history.val_loss, found.history.val_score])
    weights = torch.cat([p.detach().view(-1) for p in found.model.parameters()])
    return {
        "curves": curves,
        "logits": found.logits[0],
        "best": (found.best_epoch, found.val_score),
        "weights": weights,
    }


Found = list[tuple[dict[str, str], dict[str, dict[str, Any]], str]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What each of the processes found."""
    folder = tmp_path_factory.mktemp("processes")
    # torch and asgnn are imported once, by the process that forks the three
    multiprocessing.set_forkserver_preload(["asgnn.distributed"])
    mp.start_processes(work, (str(folder),), 3, start_method="forkserver")  # type: ignore[no-untyped-call]
    return [torch.load(folder / f"{rank}-{2 if rank < 2 else 3}") for rank in range(3)]


def test_processes_find_what_one_finds(found: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, case in CASES.items():
        monkeypatch.setattr(kernels, "USE_NUMBA", case.numba)
        model, data, config, split = case.arguments()
        alone = summary(fit(model, data, config, split=split))
        assert alone["curves"].isfinite().all(), name
        for rank in range(case.ranks):
            ours = found[rank][1][name]
            assert ours["best"] == alone["best"], name
            for what in ("curves", "logits", "weights"):
                # Adam divides by the size of a gradient, so that a weight without one moves with its rounding
                assert (ours[what] - alone[what]).abs().max() < (1e-8 if what == "weights" else 1e-11), (name, what)


def test_only_rows_of_neighbours_are_exchanged(found: Found) -> None:
    """Of each layer: H and e forward, the same for validation, as much backward; X instead of the last H and e."""
    one = found[0][1]["asgnn"]
    lent = sum(one["borrowed"])
    assert one["nodes"] == (21, 20)
    layers, epochs, width = 3, CONFIG.epochs, 8
    forward = (CLASSES + (layers - 1) * (CLASSES + 1)) * width * lent
    backward = layers * (CLASSES + 1) * width * lent
    assert one["row_bytes"] == epochs * (2 * forward + backward)
    weights = FEATURES * 7 + 7 + 7 * CLASSES + CLASSES + len(SCALARS)
    assert one["sum_bytes"] == epochs * width * (1 + weights + 2)  # a loss and the gradients; a loss and hits
    edge_index = graph().edge_index
    part = torch.arange(NODES) * 2 // NODES
    between = part[edge_index[0]] != part[edge_index[1]]
    assert lent == len({(int(part[i]), int(j)) for i, j in edge_index[:, between].t()})
    assert found[0][1]["no edges"]["row_bytes"] == found[0][1]["mlp"]["row_bytes"] == 0


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_sentences_in_every_process(found: Found, name: str) -> None:
    for errors, *_ in found:
        assert ERRORS[name][1] in errors[name]


def test_without_a_process_group_the_error_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match="init_process_group"):
        fit_together(asgnn().double(), graph(), CONFIG, split=any_split())


def test_the_command_compares_with_one_process(found: Found) -> None:
    first, second, _ = (printed for *_, printed in found)
    assert "Processes: 2, with " in first
    assert second == ""
    assert float(first.partition("training loss ")[2].partition(",")[0]) < 1e-12


def test_the_command_asks_for_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["asgnn.distributed", "--device", "cpu"])
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(SystemExit, match="torchrun --nproc-per-node 2"):
        command.main()
