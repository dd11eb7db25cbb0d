"""The benchmark cases: one function per case, and a table of all cases."""

from __future__ import annotations

import copy
import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from measure import Case, Run, Side, Values
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.nn import APPNP, GCNConv
from torch_geometric.utils import to_torch_csr_tensor

import asgnn.kernels
from asgnn.asmp import ASMPParams, Scheme, propagate
from asgnn.asmp.params import Objective
from asgnn.asmp.propagate import Backend
from asgnn.graphs import load_dataset, random_split
from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.features import Features
from asgnn.models import APPNP as OurAPPNP
from asgnn.models import ASGNN, GCN
from asgnn.models.base import NodeClassifier
from asgnn.models.layers import Dropout
from asgnn.training import TrainConfig, fit, fit_many, recipe

# Tolerances for float32 sums of a few thousand terms in another order; training accumulates the differences.
CLOSE, CLOSE_TRAINED = 1e-4, 1e-3
CLASSES, LAYERS = 7, 4


@dataclass(frozen=True)
class Setting:
    device: torch.device
    quick: bool


@functools.cache
def cora() -> Data:
    return load_dataset("cora")


def normal(*shape: int, device: torch.device, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device)


def forward_backward(x: Tensor, apply: Callable[[Tensor], Tensor]) -> Values:
    """Return the output of ``apply`` and its gradient in x for a fixed direction."""
    x = x.detach().requires_grad_()
    out = apply(x)
    direction = torch.linspace(-1, 1, out.numel(), device=out.device).view_as(out)
    (grad,) = torch.autograd.grad(out, x, direction)
    return {"output": out.detach(), "gradient": grad}


def run_asmp(x: Tensor, adj: Adjacency, objective: Objective, backend: Backend, layers: int = LAYERS) -> Values:
    """Run ASMP forward and backward as in training, with gradients of the features and of the six scalars."""
    x = x.detach().requires_grad_()
    scalars = [torch.tensor(float(value), device=x.device, requires_grad=True) for value in ASMPParams().resolved()]
    scheme = Scheme(objective=objective)
    out = propagate(x, adj, ASMPParams(*scalars), scheme, layers=layers, backend=backend, weights=False).h
    # The direction does not depend on the order of the nodes, so that copies of a graph can be compared.
    grads = torch.autograd.grad((out * torch.linspace(-1, 1, CLASSES, device=x.device)).sum(), [x, *scalars])
    return {"output": out.detach(), "gradient": grads[0], "scalars": torch.stack(grads[1:])}


def asmp_on_cora(objective: Objective, setting: Setting) -> Case:
    data, layers = cora(), 2 if setting.quick else LAYERS
    x = F.normalize(normal(data.num_nodes, CLASSES, device=setting.device))
    adj = Adjacency.of(data.edge_index, data.num_nodes).to(setting.device)
    return Case(
        f"ASMP, objective {objective}, on Cora ({CLASSES} columns, {layers} layers), forward and backward",
        {
            "auto": Side(lambda: run_asmp(x, adj, objective, "auto", layers)),
            "edges": Side(lambda: run_asmp(x, adj, objective, "edges", layers)),
            "dense": Side(lambda: run_asmp(x, adj, objective, "dense", layers)),
        },
        CLOSE,
    )


def against_appnp(setting: Setting) -> Case:
    data, device = cora(), setting.device
    x = normal(data.num_nodes, CLASSES, device=device)
    adj = Adjacency.of(data.edge_index, data.num_nodes).to(device)
    edge_index = data.edge_index.to(device)
    # otherwise torch warns when PyG builds the matrix
    torch.sparse.check_sparse_tensor_invariants.disable()  # type: ignore[no-untyped-call]
    csr = to_torch_csr_tensor(edge_index, size=(data.num_nodes, data.num_nodes))
    alpha, layers = 0.1, 10
    params, scheme = ASMPParams(lam=1 / alpha - 1), Scheme(structure="frozen", normalization="sym")
    # cached as in PyG's example, so that the matrix is normalised only once
    on_edges, on_csr = APPNP(layers, alpha, cached=True).to(device), APPNP(layers, alpha, cached=True).to(device)

    def ours(x: Tensor) -> Tensor:
        return propagate(x, adj, params, scheme, layers=layers, weights=False).h

    return Case(
        f"frozen ASMP and PyG's APPNP on Cora ({CLASSES} columns, {layers} layers), forward and backward",
        {
            "frozen ASMP": Side(lambda: forward_backward(x, ours)),
            "PyG edge_index": Side(lambda: forward_backward(x, lambda x: on_edges(x, edge_index))),
            "PyG sparse CSR": Side(lambda: forward_backward(x, lambda x: on_csr(x, csr))),
        },
        CLOSE,
    )


def asmp_against_appnp(setting: Setting) -> Case:
    data, device, layers = cora(), setting.device, 10
    x = F.normalize(normal(data.num_nodes, CLASSES, device=device))
    adj, edge_index = Adjacency.of(data.edge_index, data.num_nodes).to(device), data.edge_index.to(device)
    peer = APPNP(layers, 0.1, cached=True).to(device)
    sides = {
        "auto": Side(lambda: run_asmp(x, adj, "degree", "auto", layers)),
        "edges": Side(lambda: run_asmp(x, adj, "degree", "edges", layers)),
        "PyG APPNP": Side(lambda: forward_backward(x, lambda x: peer(x, edge_index))),
    }
    return Case(
        f"ASMP and PyG's APPNP on Cora ({CLASSES} columns, {layers} layers), forward and backward; ASMP also computes "
        "the gradients of its scalars; its two backends are compared",
        sides,
        CLOSE,
        pairs=((sides["auto"].run, sides["edges"].run),),
    )


def asmp_and_bytes(setting: Setting) -> Case:
    """Two floors, in float32 with int32 columns, as copies between two tensors beyond the caches.

    "each once": what any implementation reads or writes at least once per layer. Forward: the columns, S before and
    after, H before and after, X. Backward: the columns, S, the gradient in S before and after, H, X, the gradient in H
    before and after. "neighbours": the rows of H forward, and of H and its gradient backward, are read for each entry,
    because the neighbours of a node lie anywhere.
    """
    count = 10 if setting.quick else 100
    x, adj, _ = graph_of_copies(count, setting.device)
    entries = adj.row.numel()
    once = LAYERS * 28 * (entries + x.numel())
    neighbours = LAYERS * (4 * 3 * CLASSES * entries + 28 * entries + 16 * x.numel())
    source = torch.ones(2**24, device=setting.device)
    target = torch.empty_like(source)

    def copy_bytes(size: int) -> Values:
        for _ in range(max(1, round(size / (8 * source.numel())))):
            target.copy_(source)
        return {"copy": target[:1]}

    sides = {
        "auto": Side(lambda: run_asmp(x, adj, "degree", "auto")),
        "edges": Side(lambda: run_asmp(x, adj, "degree", "edges")),
        "each once": Side(lambda: copy_bytes(once)),
        "neighbours": Side(lambda: copy_bytes(neighbours)),
    }
    return Case(
        f"ASMP on {count * EDGES:,} edges ({CLASSES} columns, {LAYERS} layers), forward and backward, and copies of "
        f"{once / 1e6:.0f} MB, each value once, and {neighbours / 1e6:.0f} MB, the rows of neighbours for each entry",
        sides,
        CLOSE,
        pairs=((sides["auto"].run, sides["edges"].run),),
        memory=not setting.quick,
    )


@contextmanager
def without_numba() -> Iterator[None]:
    """Run the block as if Numba were not installed."""
    asgnn.kernels.USE_NUMBA = False
    try:
        yield
    finally:
        asgnn.kernels.USE_NUMBA = True


class PyGAPPNP(nn.Module):
    """The APPNP of PyG's example on dense features."""

    def __init__(self, in_channels: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(in_channels, 64), nn.Linear(64, CLASSES)
        self.propagate = APPNP(10, 0.1, cached=True)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = F.dropout(self.first(F.dropout(x, 0.5, self.training)).relu(), 0.5, self.training)
        out: Tensor = self.propagate(self.second(h), edge_index)
        return out


def epoch_of(name: str, setting: Setting) -> Case:
    """An epoch of training and validation: ours with compiled loops and without, and PyG's APPNP in a plain loop."""
    data, split = cora(), random_split(cora(), trial=0)
    epochs = 5 if setting.quick else 50
    classes: dict[str, type[NodeClassifier]] = {"ASGNN": ASGNN, "APPNP": OurAPPNP, "GCN": GCN}

    def train() -> Values:
        model = classes[name](data.num_features, 64, CLASSES)
        model.reset_parameters(torch.Generator().manual_seed(0))
        history = fit(model, data, TrainConfig(epochs=epochs), split=split, device=setting.device).history
        return {"training loss": history.train_loss, "validation loss": history.val_loss}

    def train_in_torch() -> Values:
        with without_numba():
            return train()

    x, edge_index, y = (part.to(setting.device) for part in (data.x, data.edge_index, data.y))

    def train_peer() -> Values:
        model = PyGAPPNP(data.num_features).to(setting.device)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
        for _ in range(epochs):
            model.train()
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x, edge_index)[split.train], y[split.train])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            model.eval()
            with torch.no_grad():
                right = (model(x, edge_index)[split.val].argmax(-1) == y[split.val]).float().mean()
        return {"loss": loss.detach(), "right": right}

    return Case(
        f"an epoch of {name} (64 hidden channels, dropout) on Cora, with compiled loops and in torch alone, and of "
        "PyG's APPNP (10 layers, dropout on dense features); the first two are compared",
        {
            name: Side(train, epochs),
            "torch alone": Side(train_in_torch, epochs),
            "PyG APPNP": Side(train_peer, epochs),
        },
        CLOSE_TRAINED,
        unit="epoch",
        pairs=((train, train_in_torch),),
    )


START = """
import torch
import asgnn.kernels
from asgnn.graphs import load_dataset, random_split
from asgnn.models import ASGNN
from asgnn.training import TrainConfig, fit
asgnn.kernels.USE_NUMBA = {numba}
data = load_dataset("cora")
model = ASGNN(data.num_features, 64, 7)
model.reset_parameters(torch.Generator().manual_seed(0))
print(float(fit(model, data, TrainConfig(epochs=1), split=random_split(data, 0)).history.val_loss[0]))
"""


def start_up(setting: Setting) -> Case:
    """A process that trains for one epoch: with the loops on disk, with none on disk, and without Numba."""
    del setting
    folder = tempfile.TemporaryDirectory()  # removed when the case is

    def start(cache: str, numba: bool = True) -> Values:
        around = os.environ | {"NUMBA_CACHE_DIR": cache}
        command = [sys.executable, "-c", START.format(numba=numba)]
        done = subprocess.run(command, env=around, capture_output=True, text=True, check=True)
        return {"loss": torch.tensor(float(done.stdout))}

    def anew() -> Values:
        with tempfile.TemporaryDirectory() as empty:
            return start(empty)

    return Case(
        "a process that imports asgnn and trains ASGNN on Cora for one epoch",
        {
            "loops on disk": Side(lambda: start(folder.name)),
            "compiled anew": Side(anew),
            "torch alone": Side(lambda: start(folder.name, numba=False)),
        },
        CLOSE_TRAINED,
    )


def first_layer(trials: int, setting: Setting) -> Case:
    data, device, rate, hidden = cora(), setting.device, 0.8, 64
    features, x = Features.of(data.x).to(device), data.x.to(device)
    weight = normal(trials, data.num_features, hidden, device=device)
    dropout = stacked_dropout(rate, trials).to(device)
    keep, scale = dropout.keep(features.size_of_mask, None, weight)
    by_row = features.by_row
    assert by_row is not None
    assert keep is not None
    assert scale is not None
    row = torch.arange(data.num_nodes, device=device).repeat_interleave(by_row.crow.diff())

    def same_mask_dense(weight: Tensor) -> Tensor:
        mask = x.new_zeros(trials, *x.shape)
        mask[:, row, by_row.col] = keep * scale.unsqueeze(1)
        out: Tensor = (x * mask) @ weight
        return out

    def sparse(weight: Tensor) -> Tensor:
        return features.linear(weight, *dropout.keep(features.size_of_mask, None, weight))

    def dense(weight: Tensor) -> Tensor:
        return F.dropout(x.expand(trials, -1, -1), rate) @ weight

    return Case(
        f"dropout {rate} and first linear layer on Cora's {data.num_features} features, {trials} trial(s) in a batch, "
        "forward and backward; compared with the same dropout mask",
        {
            "sparse": Side(lambda: forward_backward(weight, sparse)),
            "dense": Side(lambda: forward_backward(weight, dense)),
        },
        CLOSE,
        pairs=(
            (
                lambda: forward_backward(weight, lambda w: features.linear(w, keep, scale)),
                lambda: forward_backward(weight, same_mask_dense),
            ),
        ),
        memory=trials > 1 and not setting.quick,
    )


def stacked_dropout(rate: float, trials: int) -> Dropout:
    dropout = Dropout(rate)
    dropout.rate = dropout.rate.expand(trials).clone()
    return dropout


def trials_as_batch(model: str, setting: Setting) -> Case:
    data, count = cora(), 10
    epochs = 2 if setting.quick else 10
    splits = [random_split(data, trial=seed) for seed in range(count)]

    def train(batch_size: int | None) -> Values:
        trials = []
        for seed, split in enumerate(splits):
            trial = recipe(model).trial(data, split, seed)
            trials.append(replace(trial, config=replace(trial.config, epochs=epochs)))
        fits = fit_many(trials, data, device=setting.device, batch_size=batch_size)
        return {
            "training loss": torch.stack([fit.history.train_loss for fit in fits]),
            "validation loss": torch.stack([fit.history.val_loss for fit in fits]),
        }

    return Case(
        f"{count} trials of {model} on Cora, {epochs} epochs each",
        {
            "one batch": Side(lambda: train(None), count * epochs),
            "one by one": Side(lambda: train(1), count * epochs),
        },
        CLOSE_TRAINED,
        unit="trial and epoch",
    )


class PyGGCN(nn.Module):
    """The GCN of PyG's example, initialised with the weights of our GCN."""

    def __init__(self, ours: GCN) -> None:
        super().__init__()
        first, second = ours.first, ours.last
        # cached as in PyG's example, so that the matrix is normalised only once
        self.first = GCNConv(first.in_channels, first.out_channels, cached=True)
        self.second = GCNConv(second.in_channels, second.out_channels, cached=True)
        self.rate = float(ours.dropout.rate)
        with torch.no_grad():
            for layer, source in ((self.first, first), (self.second, second)):
                layer.lin.weight.copy_(source.weight.t())
                layer.bias.copy_(source.bias)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = F.dropout(self.first(x, edge_index).relu(), self.rate, self.training)
        out: Tensor = self.second(h, edge_index)
        return out


def gcn_epoch(setting: Setting) -> Case:
    data, split = cora(), random_split(cora(), trial=0)
    epochs = 10 if setting.quick else 50
    config = TrainConfig(epochs=epochs, lr=0.01, weight_decay=5e-4)

    def initialised(dropout: float) -> GCN:
        model = GCN(data.num_features, 16, int(data.y.max()) + 1, dropout=dropout)
        model.reset_parameters(torch.Generator().manual_seed(0))
        return model

    models = {rate: initialised(rate) for rate in (0.0, 0.5)}

    def train(rate: float, pyg: bool) -> Values:
        model = copy.deepcopy(models[rate])
        result = fit(PyGGCN(model) if pyg else model, data, config, split=split, device=setting.device)
        return {"training loss": result.history.train_loss, "validation loss": result.history.val_loss}

    return Case(
        "GCN and PyG's GCNConv, both trained by fit on Cora; compared without dropout, timed with dropout",
        {
            "GCN": Side(lambda: train(0.5, False), epochs),
            "PyG GCNConv": Side(lambda: train(0.5, True), epochs),
        },
        CLOSE_TRAINED,
        unit="epoch",
        pairs=((lambda: train(0.0, False), lambda: train(0.0, True)),),
    )


NODES, EDGES = 2000, 10_000
"""Size of the random graph whose copies form the larger graphs."""


@functools.cache
def random_graph() -> tuple[Tensor, Tensor]:
    """Return features (N, C) and edges (2, 2 · EDGES) in both directions, without self-loops."""
    rng = torch.Generator().manual_seed(0)
    low, high = torch.triu_indices(NODES, NODES, 1)
    chosen = torch.randperm(low.numel(), generator=rng)[:EDGES]
    edges = torch.stack([low[chosen], high[chosen]])
    return F.normalize(torch.randn(NODES, CLASSES, generator=rng)), torch.cat([edges, edges.flip(0)], 1)


@functools.cache
def dense_reference(device: torch.device) -> Values:
    x, edge_index = random_graph()
    return run_asmp(x.to(device), Adjacency.of(edge_index, NODES).to(device), "degree", "dense")


def graph_of_copies(count: int, device: torch.device) -> tuple[Tensor, Adjacency, Tensor]:
    """Return features, adjacency and the node of each node of each copy, of copies of the random graph, shuffled."""
    x, edge_index = random_graph()
    total = count * NODES
    place = torch.randperm(total, generator=torch.Generator().manual_seed(1))  # node of a copy → node of the graph
    shifts = NODES * torch.arange(count).view(-1, 1)
    edges = torch.stack([place[(end + shifts).view(-1)] for end in edge_index])
    whole = torch.empty(total, CLASSES)
    whole[place] = x.repeat(count, 1)
    adj = Adjacency.of(edges, total).to(device)
    whole, place = whole.to(device), place.to(device)
    return whole, adj, place


def copies(count: int, device: torch.device) -> tuple[Run, tuple[Run, Run]]:
    """Return a run of ASMP on ``count`` copies of the random graph with shuffled nodes, and the pair that checks it.

    This gives a graph of any size with a known result: each copy must equal the dense reference on the single graph.
    """
    whole, adj, place = graph_of_copies(count, device)

    def run() -> Values:
        return run_asmp(whole, adj, "degree", "edges")

    def by_copy() -> Values:
        values = dict(run())
        scalars = values.pop("scalars") / count  # their gradients are sums over the copies
        return {name: value[place].view(count, NODES, CLASSES) for name, value in values.items()} | {"scalars": scalars}

    def reference() -> Values:
        values = dict(dense_reference(device))
        scalars = values.pop("scalars")
        return {name: value.expand(count, -1, -1) for name, value in values.items()} | {"scalars": scalars}

    return run, (by_copy, reference)


def memory(setting: Setting) -> Case:
    x, edge_index = random_graph()
    x, adj = x.to(setting.device), Adjacency.of(edge_index, NODES).to(setting.device)
    return Case(
        f"memory of ASMP on a random graph of {NODES} nodes and {EDGES} edges, forward and backward",
        {
            "edges": Side(lambda: run_asmp(x, adj, "degree", "edges")),
            "dense": Side(lambda: run_asmp(x, adj, "degree", "dense")),
        },
        CLOSE,
        memory=True,
    )


def memory_large(setting: Setting) -> Case:
    count = 100
    run, pair = copies(count, setting.device)
    return Case(
        f"memory of ASMP on {count * NODES:,} nodes and {count * EDGES:,} edges, forward and backward (an N × N matrix "
        f"takes {4 * (count * NODES) ** 2 / 1e9:.0f} GB); each copy compared with the dense reference",
        {"edges": Side(run)},
        CLOSE,
        pairs=(pair,),
        memory=True,
    )


def scaling(setting: Setting) -> Case:
    sides, pairs = {}, []
    for count in (1, 10) if setting.quick else (1, 10, 100):
        run, pair = copies(count, setting.device)
        sides[f"{count * EDGES:,} edges"] = Side(run, count * EDGES)
        pairs.append(pair)
    return Case(
        "ASMP on graphs of increasing size, forward and backward; each copy compared with the dense reference",
        sides,
        CLOSE,
        unit="edge",
        pairs=tuple(pairs),
    )


CASES: dict[str, Callable[[Setting], Case]] = {
    "asmp-degree": functools.partial(asmp_on_cora, "degree"),
    "asmp-paper": functools.partial(asmp_on_cora, "paper"),
    "appnp": against_appnp,
    "asmp-appnp": asmp_against_appnp,
    "asmp-bytes": asmp_and_bytes,
    "epoch-asgnn": functools.partial(epoch_of, "ASGNN"),
    "epoch-appnp": functools.partial(epoch_of, "APPNP"),
    "epoch-gcn": functools.partial(epoch_of, "GCN"),
    "start-up": start_up,
    "first-layer-1": functools.partial(first_layer, 1),
    "first-layer-10": functools.partial(first_layer, 10),
    "trials-asgnn": functools.partial(trials_as_batch, "asgnn"),
    "trials-gcn": functools.partial(trials_as_batch, "gcn"),
    "gcn": gcn_epoch,
    "memory": memory,
    "memory-large": memory_large,
    "scaling": scaling,
}
NOT_QUICK = {"memory-large", "start-up"}
