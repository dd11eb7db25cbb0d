"""Random inputs, valid and invalid: graphs, numbers, node sets, paths, damaged bytes; and the kinds of failure."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

LIMIT = 60  # seconds
NAN, INF = math.nan, math.inf


class Nan(Exception):
    """A result contains NaN or infinity without an error."""


class Wrong(Exception):
    """A result differs from the oracle's."""


class Hang(BaseException):
    """The case took longer than :data:`LIMIT`."""


def finite(tensor: Tensor, what: str, shape: Sequence[int] | None = None) -> Tensor:
    if shape is not None and tuple(tensor.shape) != tuple(shape):
        raise Wrong(f"{what} has shape {tuple(tensor.shape)} instead of {tuple(shape)}")
    if not bool(tensor.isfinite().all()):
        raise Nan(f"{what} is not finite")
    return tensor


def must(truth: bool, what: str) -> None:
    if not truth:
        raise Wrong(what)


class Draw:
    """A generator of random inputs."""

    folder: Path

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def one(self, *choices: Any) -> Any:
        """Returns one of the choices; calls it with this generator if it is a function."""
        found = choices[int(self.rng.integers(len(choices)))]
        return found(self) if callable(found) and not isinstance(found, type) else found

    def mostly(self, right: Any, *odd: Any) -> Any:
        """Returns ``right``, or with probability 0.3 one of the odd choices."""
        return right if self.chance(0.7) else self.one(*odd)

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(int(self.rng.integers(2**31)))

    def normal(self, *shape: int) -> Tensor:
        return torch.from_numpy(self.rng.normal(size=shape)).float()

    def count(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def graph(self, low: int = 15, high: int = 40) -> Data:
        """Returns a valid graph: connected or not, weighted or not, fully or partly labelled."""
        n = self.count(low, high)
        dense = np.triu(self.rng.random((n, n)) < self.rng.choice([0.05, 0.15, 0.4]), 1)
        edge_index = torch.from_numpy(np.stack(np.nonzero(dense | dense.T)))
        features = self.count(1, 12)
        x = self.normal(n, features) if self.chance(0.5) else (self.normal(n, features) > 0.5).float()
        y = torch.from_numpy(np.resize(np.arange(3), n))
        data = Data(x=x, edge_index=edge_index, y=y)
        if self.chance(0.3):
            weight = torch.from_numpy(self.rng.random((n, n))).float()
            data.edge_weight = torch.maximum(weight, weight.t())[tuple(edge_index)]
        if self.chance(0.3):
            data.y = torch.where(torch.from_numpy(self.rng.random(n)) < 0.3, -1, y)
        return data

    def odd_graph(self) -> Any:
        """Returns a graph with up to two mutations."""
        data = self.graph()
        for _ in range(self.count(0, 2)):
            name = self.one(*MUTATIONS)
            if isinstance(data, Data):
                data = MUTATIONS[name](self, data)
        return data

    def odd_number(self) -> Any:
        return self.one(
            0, 1, -1, 2, 3, 10**6, 2**31, 2**63, -(2**63), 10**30, 0.0, -0.0, 0.5, 1.0, 1.5, -0.5, 1e-300, 1e300, NAN,
            INF, -INF, True, False, None, "1", "", "a", "nan", 1j, [1], (1, 2), {}, np.float32(0.5), np.int64(2),
            np.array([1.0]), np.bool_(True), torch.tensor(1.0), torch.tensor([0.5, 0.5]), torch.tensor(NAN), b"1",
        )  # fmt: skip

    def odd_count(self) -> Any:
        """Returns an odd number of layers or steps, but no valid one that takes long."""
        found = self.odd_number()
        return 4 if isinstance(found, int) and 100 < found < 2**31 else found

    def near(self, low: float, high: float) -> float:
        return float(self.rng.uniform(low, high))

    def nodes(self, num_nodes: int) -> Any:
        """Returns a set of nodes, often a valid one."""
        some = torch.from_numpy(self.rng.permutation(num_nodes)[: max(1, num_nodes // 3)])
        return self.one(
            some, some, some, some.sort().values, torch.zeros(num_nodes, dtype=torch.bool).index_fill(0, some, True),
            some[:0], torch.zeros(num_nodes, dtype=torch.bool), some.int(), some.float(), -some, some + num_nodes,
            torch.cat([some, some]), some.tolist(), some.numpy(), some.view(1, -1), None, 3, "all",
            torch.ones(num_nodes + 1, dtype=torch.bool), torch.tensor(0), torch.tensor([-1]), torch.arange(num_nodes),
        )  # fmt: skip

    def path(self) -> str:
        """Returns an unusual path inside the folder of this case, since commands may write to it."""
        name = str(
            self.one(
                "", ".", "nowhere/at/all.npz", "\0", "a b", "x" * 300, "\ud800", "fifo", "folder", "empty", "text",
                "~", "%s", "[red]", "-", "--", "ü.npz", "a.npz/b.npz", "fifo/b.npz",
            )
        )  # fmt: skip
        pipe = self.folder / "fifo"
        if name.startswith("fifo") and not pipe.exists():
            os.mkfifo(pipe)
        if name == "folder":
            (self.folder / name).mkdir(exist_ok=True)
        if name in ("empty", "text"):
            (self.folder / name).write_text("" if name == "empty" else "no numbers here\n" * 9)
        return name

    def damage(self, content: bytes) -> bytes:
        """Returns the content with bytes changed, removed or inserted."""
        changed = bytearray(content)
        for _ in range(self.count(1, 4)):
            at = self.count(0, max(0, len(changed) - 1))
            length = min(self.count(1, 64), len(changed) - at)
            match self.count(0, 5):
                case 0 | 1 if changed:
                    changed[at] ^= 1 << self.count(0, 7)
                case 2:
                    changed[at : at + length] = self.rng.bytes(length)
                case 3:
                    del changed[at:]
                case 4:
                    changed[at:at] = self.rng.bytes(length)
                case _:
                    del changed[at : at + length]
        return bytes(changed)


def _set(name: str, value: Callable[[Draw, Data], Any]) -> Callable[[Draw, Data], Data]:
    def mutate(draw: Draw, data: Data) -> Data:
        data = copy.copy(data)
        try:
            old = data.get(name)
            data[name] = value(draw, data)
        except (
            TypeError,
            AttributeError,
            IndexError,
            ValueError,
            RuntimeError,
        ):  # not applicable after an earlier mutation
            data[name] = old
        return data

    return mutate


def _entry(tensor: Tensor, draw: Draw, value: float) -> Tensor:
    changed = tensor.clone()
    changed.view(-1)[draw.count(0, changed.numel() - 1)] = value
    return changed


def _rows(data: Data) -> int:
    return int(data.x.size(0))


def _columns(data: Data) -> int:
    return int(data.edge_index.size(1))


def _mask(draw: Draw, data: Data, *more: int) -> Tensor:
    return torch.from_numpy(draw.rng.random((_rows(data), *more)) < 0.3)


X: dict[str, Callable[[Draw, Data], Any]] = {
    "nan": lambda d, g: _entry(g.x, d, NAN),
    "inf": lambda d, g: _entry(g.x, d, d.one(INF, -INF)),
    "half": lambda d, g: g.x.half(),
    "bfloat16": lambda d, g: g.x.bfloat16(),
    "double": lambda d, g: g.x.double(),
    "int": lambda d, g: g.x.long(),
    "bool": lambda d, g: g.x > 0,
    "complex": lambda d, g: g.x + 1j,
    "sparse": lambda d, g: g.x.to_sparse(),
    "csr": lambda d, g: g.x.to_sparse_csr(),
    "flat": lambda d, g: g.x[:, 0],
    "cube": lambda d, g: g.x.unsqueeze(0),
    "no features": lambda d, g: g.x[:, :0],
    "no nodes": lambda d, g: g.x[:0],
    "fewer nodes": lambda d, g: g.x[:-1],
    "none": lambda d, g: None,
    "array": lambda d, g: g.x.numpy(),
    "list": lambda d, g: g.x.tolist(),
    "zeros": lambda d, g: torch.zeros_like(g.x),
    "same": lambda d, g: torch.ones_like(g.x),
    "tiny": lambda d, g: g.x * 1e-40,
    "column-major": lambda d, g: g.x.t().contiguous().t(),
    "strided": lambda d, g: g.x.repeat(1, 2)[:, ::2],
    "expanded": lambda d, g: g.x[:, :1].expand(-1, 5),
    "leaf": lambda d, g: g.x.clone().requires_grad_(),
    "meta": lambda d, g: g.x.to("meta"),
}
EDGES: dict[str, Callable[[Draw, Data], Any]] = {
    "none": lambda d, g: None,
    "int32": lambda d, g: g.edge_index.int(),
    "float": lambda d, g: g.edge_index.float(),
    "transposed": lambda d, g: g.edge_index.t(),
    "outside": lambda d, g: _entry(g.edge_index, d, d.one(10**9, -1, 2**62)),
    "changed": lambda d, g: _entry(g.edge_index, d, 0),
    "loop": lambda d, g: torch.cat([g.edge_index, torch.zeros(2, 1, dtype=torch.int64)], 1),
    "repeated": lambda d, g: torch.cat([g.edge_index, g.edge_index[:, :2]], 1),
    "directed": lambda d, g: g.edge_index[:, g.edge_index[0] < g.edge_index[1]],
    "empty": lambda d, g: g.edge_index[:, :0],
    "shuffled": lambda d, g: g.edge_index[:, torch.from_numpy(d.rng.permutation(_columns(g)))],
    "list": lambda d, g: g.edge_index.tolist(),
    "array": lambda d, g: g.edge_index.numpy(),
    "strided": lambda d, g: g.edge_index.repeat_interleave(2, 1)[:, ::2],
    "cube": lambda d, g: g.edge_index.unsqueeze(0),
}
WEIGHTS: dict[str, Callable[[Draw, Data], Any]] = {
    "ones": lambda d, g: torch.ones(_columns(g)),
    "zeros": lambda d, g: torch.zeros(_columns(g)),
    "some zero": lambda d, g: (g.edge_index.sum(0) % 3 > 0).float(),
    "one-sided": lambda d, g: torch.from_numpy(d.rng.random(_columns(g))).float(),
    "nan": lambda d, g: _entry(torch.ones(_columns(g)), d, NAN),
    "negative": lambda d, g: _entry(torch.ones(_columns(g)), d, -0.5),
    "above": lambda d, g: _entry(torch.ones(_columns(g)), d, 1.5),
    "short": lambda d, g: torch.ones(_columns(g) - 1),
    "column": lambda d, g: torch.ones(_columns(g), 1),
    "int": lambda d, g: torch.ones(_columns(g), dtype=torch.int64),
    "half": lambda d, g: torch.ones(_columns(g)).half(),
    "double": lambda d, g: torch.ones(_columns(g)).double(),
    "list": lambda d, g: [1.0] * _columns(g),
    "leaf": lambda d, g: torch.ones(_columns(g)).requires_grad_(),
    "none": lambda d, g: None,
}
LABELS: dict[str, Callable[[Draw, Data], Any]] = {
    "none": lambda d, g: None,
    "missing": lambda d, g: torch.where(_mask(d, g), -1, g.y),
    "nan": lambda d, g: torch.where(_mask(d, g), NAN, g.y.double()),
    "float": lambda d, g: g.y.float(),
    "column": lambda d, g: g.y.view(-1, 1),
    "float column": lambda d, g: torch.where(_mask(d, g), NAN, g.y.float()).view(-1, 1),
    "half a class": lambda d, g: _entry(g.y.float(), d, 1.5),
    "-2": lambda d, g: _entry(g.y, d, -2),
    "inf": lambda d, g: _entry(g.y.float(), d, INF),
    "huge": lambda d, g: _entry(g.y, d, 10**9),
    "many classes": lambda d, g: _entry(g.y, d, 60_000),
    "gap": lambda d, g: g.y * 5,
    "one class": lambda d, g: torch.zeros_like(g.y),
    "all missing": lambda d, g: torch.full_like(g.y, -1),
    "two labelled": lambda d, g: torch.full_like(g.y, -1).index_put((torch.tensor([0, 1]),), torch.tensor([0, 1])),
    "bool": lambda d, g: g.y > 0,
    "complex": lambda d, g: g.y + 0j,
    "short": lambda d, g: g.y[:-1],
    "wide": lambda d, g: g.y.view(-1, 1).repeat(1, 2),
    "uint8": lambda d, g: g.y.clamp(min=0).to(torch.uint8),
    "int32": lambda d, g: g.y.int(),
    "list": lambda d, g: g.y.tolist(),
    "array": lambda d, g: g.y.numpy(),
}
MASKS: dict[str, Callable[[Draw, Data], Any]] = {
    "mask": lambda d, g: _mask(d, g),
    "empty": lambda d, g: torch.zeros(_rows(g), dtype=torch.bool),
    "all": lambda d, g: torch.ones(_rows(g), dtype=torch.bool),
    "columns": lambda d, g: _mask(d, g, 3),
    "bytes": lambda d, g: _mask(d, g).byte(),
    "short": lambda d, g: _mask(d, g)[1:],
    "list": lambda d, g: _mask(d, g).tolist(),
    "numbers": lambda d, g: torch.arange(3),
}
SIZES: dict[str, Callable[[Draw, Data], Any]] = {
    "one more": lambda d, g: _rows(g) + 1,
    "right": lambda d, g: _rows(g),
    "float": lambda d, g: float(_rows(g)),
    "text": lambda d, g: "10",
    "negative": lambda d, g: -1,
    "huge": lambda d, g: 2**40,
    "tensor": lambda d, g: torch.tensor(_rows(g)),
}
MUTATIONS: dict[str, Callable[[Draw, Data], Any]] = {
    f"{name} {kind}": _set(name, change)
    for name, table in {
        "x": X, "edge_index": EDGES, "edge_weight": WEIGHTS, "y": LABELS, "num_nodes": SIZES,
        "train_mask": MASKS, "val_mask": MASKS, "test_mask": MASKS,
    }.items()
    for kind, change in table.items()
} | {
    "not a graph": lambda d, g: d.one(None, {}, "cora", 3, HeteroData(), [g.x, g.edge_index], Data()),
}  # fmt: skip
