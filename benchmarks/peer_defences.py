"""Train a defence of DeepRobust, or PyG's MLP, on a graph from a file, in the environment of peers.py.

    .venv-peers/bin/python benchmarks/peer_defences.py gcn 40 TASK.npz START.npz SCORES.npz

Reads the settings and the initial weights from START, writes the scores of these weights to SCORES, and then trains
once for every line on stdin; see worker.py. The code is DeepRobust's own, with these adaptations:

- all: only the file of the defence is imported, because the ``__init__`` of its folder needs packages that are not
  used here (``peer_deeprobust.module``). Patience equals the number of epochs, so that no training stops early.
- ``gcn``, ``gcn-jaccard``, ``gcn-svd``: sparse matrices, as in its docstrings. The last two import ``GCN`` from the
  ``__init__`` of their folder, so it is added there. Numba compiles the loop of ``gcn-jaccard`` before the timing.
- ``gat``, ``sgc``, ``appnp``: PyG's layers in DeepRobust's training loop, not patched. They take a ``Data`` object, the
  first two in a list.
- ``airgnn``: needs torch_sparse, which is not published for this version of torch. A replacement module creates
  torch's sparse matrices, which PyG's layers also accept. For these, PyG's ``gcn_norm`` returns a pair, of which the
  first element is used. ``Tensor``, with which the file rejects edge lists, is replaced by an unused class, because
  torch's sparse matrices are tensors.
- ``prognn``, ``prognn-fs``: not patched; takes its backbone and its settings as objects. One of its epochs is two steps
  of the weights; here each step counts as an epoch, as in asgnn.
- ``mlp``: not in DeepRobust; PyG's ``MLP`` without normalisation, with dropout on its input, in a similar loop.
"""

from __future__ import annotations

import copy
import importlib.metadata
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from peer_deeprobust import matrix, module
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.optimizer import register_optimizer_step_post_hook
from worker import Tick, Training, read, serve


@dataclass(frozen=True)
class Peer:
    """A model, a function that trains it for some epochs, and its scores (N, C) before and after training."""

    model: nn.Module
    train: Callable[[int], object]
    scores: Callable[[], Tensor]
    trained_scores: Callable[[], Tensor]
    extra: Callable[[], Mapping[str, Any]] = dict


def main(name: str, epochs: str, task: str, start: str, scores: str) -> None:
    serve(lambda: begin(name, int(epochs), read(task), read(start), scores))


def begin(
    name: str, epochs: int, task: Mapping[str, Any], start: Mapping[str, Any], path: str
) -> tuple[Mapping[str, Any], Training]:
    torch.manual_seed(0)  # DeepRobust uses the global generator
    settings = SimpleNamespace(**{key: value.item() for key, value in start.items() if not key.startswith("start_")})
    weights = [torch.from_numpy(start[key]) for key in sorted(start) if key.startswith("start_")]
    sizes = int(task["features_shape"][1]), weights[0].shape[1], int(task["labels"].max()) + 1
    peer = PEERS[name](task, settings, sizes)
    set_weights(name, peer.model, weights)
    peer.model.eval()
    with torch.no_grad():
        np.savez(path, scores=peer.scores().numpy(), **peer.extra())
    if not name.startswith("prognn"):  # Pro-GNN is slow, and peer.extra() has warmed it up
        peer.train(2)
    ticks: list[Tick] = []

    def tick(optimizer: torch.optim.Optimizer, *rest: object) -> None:
        if ticks and isinstance(optimizer, torch.optim.Adam):  # Pro-GNN has other optimizers for its structure
            ticks[-1]()

    register_optimizer_step_post_hook(tick)

    def train(tick: Tick) -> Callable[[], Mapping[str, Any]]:
        set_weights(name, peer.model, weights)
        ticks.append(tick)
        peer.train(epochs)
        return lambda: {"accuracy": accuracy(peer.trained_scores(), task)}

    versions = {part: importlib.metadata.version(part) for part in ("deeprobust", "torch", "torch_geometric", "numpy")}
    return {"versions": versions}, train


def set_weights(name: str, model: nn.Module, weights: list[Tensor]) -> None:
    """Reset the model, including cached values such as ÂᴷX of SGC, and set our initial weights.

    Our weights are (in, out), those of torch's linear layers (out, in); no layer here is square, so the shape decides.
    """
    for part in model.modules():
        if callable(reset := getattr(part, "reset_parameters", None)):
            reset()
    named = dict(model.named_parameters())
    parameters = [named[key] for key in ORDER[name]] if name in ORDER else list(named.values())
    with torch.no_grad():
        for parameter, ours in zip(parameters, weights, strict=True):
            parameter.copy_((ours.t() if parameter.shape == ours.t().shape else ours).reshape(parameter.shape))


def accuracy(scores: Tensor, task: Mapping[str, Any]) -> float:
    test = task["test"]
    return float((scores.argmax(1).numpy()[test] == task["labels"][test]).mean())


def gcn(task: Mapping[str, Any], settings: Any, sizes: tuple[int, int, int]) -> Peer:
    return on_matrices(module("defense.gcn").GCN, task, settings, sizes)


def jaccard(task: Mapping[str, Any], settings: Any, sizes: tuple[int, int, int]) -> Peer:
    return on_matrices(preprocessing().GCNJaccard, task, settings, sizes, threshold=settings.threshold)


def svd(task: Mapping[str, Any], settings: Any, sizes: tuple[int, int, int]) -> Peer:
    return on_matrices(preprocessing().GCNSVD, task, settings, sizes, k=settings.rank)


def preprocessing() -> Any:
    sys.modules["deeprobust.graph.defense"].GCN = module("defense.gcn").GCN  # type: ignore[attr-defined]
    return module("defense.gcn_preprocess")


def on_matrices(
    kind: Any, task: Mapping[str, Any], settings: Any, sizes: tuple[int, int, int], **of_fit: float
) -> Peer:
    model = kind(*sizes, dropout=settings.dropout, lr=settings.lr, weight_decay=settings.weight_decay, device="cpu")
    features, adjacency = matrix(task, "features"), matrix(task, "adjacency")
    for name, value in of_fit.items():  # predict needs them, but only fit sets them
        setattr(model, name, value)

    def train(epochs: int) -> None:
        model.fit(
            features, adjacency, task["labels"], task["train"], task["val"], train_iters=epochs, initialize=False,
            verbose=False, **of_fit,
        )  # fmt: skip

    return Peer(model, train, lambda: model.predict(features, adjacency), model.predict)


def gat(task: Mapping[str, Any], settings: Any, sizes: tuple[int, int, int]) -> Peer:
    features, hidden, classes = sizes
    model = module("defense.gat").GAT(
        features, hidden // settings.heads, classes, heads=settings.heads, dropout=settings.dropout, lr=settings.lr,
        weight_decay=settings.weight_decay, device="cpu",
    )  # fmt: skip
    return on_data(model, task, as_list=True)


def sgc(task: Mapping[str, Any], settings: Any, sizes: tuple[int, int, int]) -> Peer:
    features, _, classes = sizes
    kind = module("defense.sgc").SGC
    model = kind(
        features, classes, K=settings.num_layers, lr=settings.lr, weight_decay=settings.weight_decay, device="cpu"
    )
    return on_data(model, task, as_list=True)


def appnp(task: Mapping[str, Any], settings: Any, sizes: tuple[int, int, int]) -> Peer:
    model = module("defense_pyg.appnp").APPNP(
        *sizes, K=settings.num_layers, alpha=settings.alpha, dropout=settings.dropout, lr=settings.lr,
        weight_decay=settings.weight_decay, device="cpu",
    )  # fmt: skip
    return on_data(model, task)


def airgnn(task: Mapping[str, Any], settings: Any, sizes: tuple[int, int, int]) -> Peer:
    replace_torch_sparse()
    file = module("defense_pyg.airgnn")
    gcn_norm = file.gcn_norm
    file.gcn_norm = lambda *args, **options: gcn_norm(*args, **options)[0]
    file.Tensor = type("Unused", (), {})
    model = file.AirGNN(
        *sizes, K=settings.num_layers, dropout=settings.dropout, lr=settings.lr, weight_decay=settings.weight_decay,
        device="cpu", args=SimpleNamespace(alpha=None, model="AirGNN", lambda_amp=settings.lam),
    )  # fmt: skip
    return on_data(model, task)


def replace_torch_sparse() -> None:
    from torch_geometric.utils import to_torch_csc_tensor

    class AnySparse(type):
        def __instancecheck__(cls, thing: object) -> bool:
            return isinstance(thing, torch.Tensor) and thing.layout != torch.strided

    class SparseTensor(metaclass=AnySparse):
        @staticmethod
        def from_edge_index(edge_index: Tensor, values: Tensor | None, sparse_sizes: tuple[int, int]) -> Any:
            return to_torch_csc_tensor(edge_index, values, size=sparse_sizes)  # it is transposed next, which gives CSR

    replacement = ModuleType("torch_sparse")
    vars(replacement).update(SparseTensor=SparseTensor, matmul=lambda matrix, x, reduce: matrix @ x)
    sys.modules["torch_sparse"] = replacement


def on_data(model: Any, task: Mapping[str, Any], as_list: bool = False) -> Peer:
    model.data = data = graph(task)

    def train(epochs: int) -> None:
        model.fit([data] if as_list else data, train_iters=epochs, initialize=False, patience=epochs)

    return Peer(model, train, model.predict, model.predict)


def graph(task: Mapping[str, Any]) -> Any:
    from torch_geometric.data import Data

    adjacency = sp.coo_matrix(matrix(task, "adjacency"))
    data = Data(
        x=torch.from_numpy(matrix(task, "features").toarray()).float(),
        edge_index=torch.from_numpy(np.stack([adjacency.row, adjacency.col])).long(),
        y=torch.from_numpy(task["labels"]),
    )
    for part in ("train", "val", "test"):
        mask = torch.zeros(data.num_nodes, dtype=torch.bool)
        mask[task[part]] = True
        data[f"{part}_mask"] = mask
    return data


def mlp(task: Mapping[str, Any], settings: Any, sizes: tuple[int, int, int]) -> Peer:
    from torch_geometric.nn import MLP

    data, model = graph(task), MLP(list(sizes), dropout=settings.dropout, norm=None)

    def scores() -> Tensor:
        out: Tensor = model(F.dropout(data.x, settings.dropout, model.training)).log_softmax(1)
        return out

    def train(epochs: int) -> None:
        optimizer = torch.optim.Adam(model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay)
        highest, best = -1.0, copy.deepcopy(model.state_dict())
        for _ in range(epochs):
            model.train()
            optimizer.zero_grad()
            F.nll_loss(scores()[data.train_mask], data.y[data.train_mask]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            model.eval()
            with torch.no_grad():
                hits = scores()[data.val_mask].argmax(1) == data.y[data.val_mask]
            if float(hits.float().mean()) > highest:
                highest, best = float(hits.float().mean()), copy.deepcopy(model.state_dict())
        model.load_state_dict(best)

    return Peer(model, train, scores, scores)


def prognn(task: Mapping[str, Any], settings: Any, sizes: tuple[int, int, int]) -> Peer:
    defence = module("defense.prognn")
    model = module("defense.gcn").GCN(*sizes, dropout=settings.dropout, device="cpu")
    features = torch.from_numpy(matrix(task, "features").toarray()).float()
    adjacency = torch.from_numpy(matrix(task, "adjacency").toarray()).float()
    args = SimpleNamespace(
        alpha=settings.alpha, beta=settings.beta, gamma=settings.gamma, lambda_=settings.lam, lr=settings.lr,
        lr_adj=settings.structure_lr, weight_decay=settings.weight_decay, inner_steps=settings.inner_steps,
        outer_steps=1, phi=0, symmetric=False, only_gcn=False, debug=False,
    )  # fmt: skip
    fitted: list[Any] = []

    def train(epochs: int) -> None:
        args.epochs = epochs // args.inner_steps
        fitted[:] = [defence.ProGNN(model, args, "cpu")]
        fitted[0].fit(features, adjacency, torch.from_numpy(task["labels"]), task["train"], task["val"])

    def shrunk() -> Mapping[str, Any]:
        return {"shrunk": defence.prox_operators.prox_nuclear(adjacency, args.lr_adj * args.beta).numpy()}

    return Peer(
        model, train, lambda: model.predict(features, adjacency), lambda: model(features, fitted[0].best_graph), shrunk
    )


PEERS = {
    "gcn": gcn, "gcn-jaccard": jaccard, "gcn-svd": svd, "sgc": sgc, "gat": gat, "appnp": appnp, "mlp": mlp,
    "airgnn": airgnn, "prognn": prognn, "prognn-fs": prognn,
}  # fmt: skip
ORDER = {
    "gat": [f"conv{n}.{part}" for n in (1, 2) for part in ("lin.weight", "att_dst", "att_src", "bias")],
}
"""The parameters in the order of ours, for models with another order."""

if __name__ == "__main__":
    main(*sys.argv[1:])
