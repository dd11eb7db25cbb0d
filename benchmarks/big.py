"""Training on big graphs: time of an epoch, memory and the plan's estimate, beside PyG's APPNP and GCN.

    python benchmarks/big.py -o docs/records/bench-big-cpu.json
    python benchmarks/big.py --device cuda --nodes 1e7 --edges 1e8 --epochs 200 -o big-gpu.json
    python benchmarks/big.py --device cuda --layer --gather --sizes 1e4,1e5,1e6,1e7,1e8 -o big-layer-gpu.json
    python benchmarks/big.py --device cuda --repeat 2000 -o big-repeat-gpu.json

The graph is random with planted classes and is made on the device. Edges are undirected: 1e8 edges are 2e8 entries of
the adjacency, and one more for each node. Each model runs in a process of its own, so that its peak memory is its own,
and the record is written after each. Needs only torch, torch_geometric, numpy and scipy; Numba on a CPU and Triton on a
GPU.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import resident
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data

from asgnn.asmp import ASMPParams, Scheme, propagate
from asgnn.experiments.machine import origin
from asgnn.graphs import Split
from asgnn.graphs.adjacency import Adjacency
from asgnn.models import ASGNN
from asgnn.training import TrainConfig, fit, memory_plan

CHUNK = 2**24  # values that are drawn at a time
ALIKE = 0.7  # the share of edges that join nodes of one class
GATHERED = "32x1,16x1"  # entries and warps per program of the bare gather


# --- graphs ---------------------------------------------------------------------------------------------------------


def random_edges(nodes: int, edges: int, y: Tensor, generator: torch.Generator) -> Tensor:
    """(2, 2·edges) at most: random pairs, of one class with probability ALIKE; loops and duplicates are dropped."""
    device, order = y.device, torch.argsort(y)
    count = torch.bincount(y)
    start = count.cumsum(0) - count
    keys = []
    for begin in range(0, edges, CHUNK):
        size = min(CHUNK, edges - begin)
        u, other = (torch.randint(nodes, (size,), generator=generator, device=device) for _ in range(2))
        of_u = y[u]
        within = (torch.rand(size, generator=generator, device=device) * count[of_u]).long()
        same = order[start[of_u] + torch.minimum(within, count[of_u] - 1)]
        v = torch.where(torch.rand(size, generator=generator, device=device) < ALIKE, same, other)
        keys.append((torch.minimum(u, v) * nodes + torch.maximum(u, v))[u != v])
    key = torch.cat(keys).sort().values
    del keys
    first = torch.ones_like(key, dtype=torch.bool)
    first[1:] = key[1:] != key[:-1]
    key = key[first]
    out = torch.empty(2, 2 * key.numel(), dtype=torch.int64, device=device)
    half = key.numel()
    out[0, :half] = torch.div(key, nodes, rounding_mode="floor")
    out[1, :half] = key - out[0, :half] * nodes
    out[0, half:], out[1, half:] = out[1, :half], out[0, :half]
    return out


def make(settings: argparse.Namespace, folder: str | None) -> tuple[Data, Split]:
    """The graph and its split, 10/10/80; with a folder, the features are a file that is mapped into memory."""
    n, f, device = settings.nodes, settings.features, settings.device
    generator = torch.Generator(device).manual_seed(0)
    y = torch.randint(settings.classes, (n,), generator=generator, device=device)
    edge_index = random_edges(n, settings.edges, y, generator)
    means = torch.randn(settings.classes, f, generator=generator, device=device) / 4
    if folder is None:
        x = torch.empty(n, f, device=device)
    else:
        x = torch.from_numpy(np.memmap(Path(folder) / "x", dtype=np.float32, mode="w+", shape=(n, f)))
    rows = max(1, CHUNK // f)
    for begin in range(0, n, rows):
        part = x[begin : begin + rows]
        part.normal_(generator=generator)
        part += means[y[begin : begin + rows]]
    nodes = torch.randperm(n, generator=generator, device=device).cpu()
    tenth = max(1, n // 10)
    split = Split(*(part.sort().values for part in (nodes[:tenth], nodes[tenth : 2 * tenth], nodes[2 * tenth :])))
    return Data(x=x, edge_index=edge_index, y=y), split


# --- one model in a process of its own ------------------------------------------------------------------------------


class Memory:
    """The growth of the memory since this object was made; of the device on a GPU, of the process on a CPU."""

    def __init__(self, device: str) -> None:
        self.cuda = device != "cpu"
        gc.collect()
        if self.cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            self.before: int | None = torch.cuda.memory_allocated()
            return
        try:
            Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        except OSError:
            say("the peak of making the graph cannot be reset and is part of the peak below")
        self.before = resident("VmRSS")

    def record(self) -> dict[str, Any]:
        peak = torch.cuda.max_memory_allocated() if self.cuda else resident("VmHWM")
        if peak is None or self.before is None:
            return {}
        out = {"peak_bytes": peak, "graph_bytes_before": self.before, "growth_bytes": peak - self.before}
        return out | ({"reserved_bytes": torch.cuda.max_memory_reserved()} if self.cuda else {})


def wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def run_asgnn(settings: argparse.Namespace, data: Data, split: Split) -> dict[str, Any]:
    torch.manual_seed(0)
    model = ASGNN(settings.features, settings.hidden, settings.classes, num_layers=settings.layers)
    plan = memory_plan(model, data)
    say(str(plan))
    memory, times = Memory(settings.device), [time.perf_counter()]

    def note(epoch: int, epochs: int) -> None:
        wait(settings.device)
        times.append(time.perf_counter())
        if epoch <= 5 or epoch % 20 == 0:
            say(f"epoch {epoch} of {epochs}: {times[-1] - times[-2]:.3f} s, {memory.record()}")

    done = fit(model, data, TrainConfig(epochs=settings.epochs), split=split, progress=note)
    each = [after - before for before, after in itertools.pairwise(times)]
    test = split.test
    return {
        "model": f"ASGNN, {settings.hidden} hidden, {settings.layers} layers",
        "first_epoch_with_preparation": each[0],
        "seconds_per_epoch": statistics.median(each[min(4, len(each) - 1) :]),
        "seconds_of_all": times[-1] - times[0],
        "epochs": len(each),
        "losses": [float(done.history.train_loss[i]) for i in (0, -1)],
        "test_accuracy": float((done.logits[0][test].argmax(1) == data.y.cpu()[test]).float().mean()),
        "planned_bytes": plan.needed,
        "plan": str(plan),
        **memory.record(),
    }


class PygNet(nn.Module):
    """PyG's APPNP after an MLP, or its GCN, with dropout."""

    def __init__(self, name: str, settings: argparse.Namespace) -> None:
        from torch_geometric.nn import APPNP, GCNConv

        super().__init__()
        self.name = name
        sizes = (settings.features, settings.hidden), (settings.hidden, settings.classes)
        self.first, self.last = (GCNConv(*size) if name == "gcn" else nn.Linear(*size) for size in sizes)
        self.spread = APPNP(10, 0.1)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        edges = (edge_index,) if self.name == "gcn" else ()
        h = self.first(F.dropout(x, 0.5, self.training), *edges).relu()
        out: Tensor = self.last(F.dropout(h, 0.5, self.training), *edges)
        return out if self.name == "gcn" else self.spread(out, edge_index)


def run_pyg(name: str, settings: argparse.Namespace, data: Data, split: Split) -> dict[str, Any]:
    """One epoch as ours: a step of Adam and a validation pass; the first one is a warm-up."""
    torch.manual_seed(0)
    model = PygNet(name, settings).to(settings.device)
    train, val = split.train.to(data.y.device), split.val.to(data.y.device)
    memory = Memory(settings.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    each = []
    for _ in range(2):
        began = time.perf_counter()
        model.train()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data.x, data.edge_index)[train], data.y[train])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        model.eval()
        with torch.no_grad():
            hits = (model(data.x, data.edge_index)[val].argmax(1) == data.y[val]).float().mean()
        value = float(loss.detach())
        each.append(time.perf_counter() - began)
        say(f"{name}: {each[-1]:.2f} s, loss {value:.3f}, validation {float(hits):.3f}")
    what = f"PyG {name.upper()}, {settings.hidden} hidden, {10 if name == 'appnp' else 2} layers"
    return {"model": what, "seconds_per_epoch": each[-1], **memory.record()}


def run_alone(settings: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() if settings.mapped else nullcontext() as folder:
        began = time.perf_counter()
        data, split = make(settings, folder)
        wait(settings.device)
        edges = data.edge_index.size(1) // 2
        say(f"{settings.nodes:,} nodes, {edges:,} edges made in {time.perf_counter() - began:.1f} s")
        run = run_asgnn(settings, data, split) if settings.run == "asgnn" else None
        found = run or run_pyg(settings.run, settings, data, split)
        return {"edges": edges, **found}


def in_new_process(name: str, arguments: list[str]) -> dict[str, Any]:
    """The result of this script with ``--run name``, or what went wrong."""
    say(f"{name}: begins")
    command = [sys.executable, __file__, *arguments, "--run", name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = list(process.stdout)
    found = json.loads(lines[-1]) if process.returncode == 0 and lines else {"failed": process.returncode}
    say(f"{name}: {json.dumps(found)}")
    return dict(found)


# --- one layer ------------------------------------------------------------------------------------------------------


def bandwidth(device: str, size: int) -> float:
    """Bytes per second of a copy of ``size`` bytes, read and written; the best of ten."""
    source = torch.zeros(size // 4, device=device)
    target = torch.empty_like(source)
    return 2 * size / min(timed(device, lambda: target.copy_(source), 10))


def timed(device: str, work: Callable[[], object], rounds: int) -> list[float]:
    taken = []
    for _ in range(rounds + 2):
        wait(device)
        began = time.perf_counter()
        work()
        wait(device)
        taken.append(time.perf_counter() - began)
    return taken[2:]


def layer_bytes(nodes: int, entries: int, columns: int) -> tuple[int, int]:
    """The bytes that a structure step, the feature step after it and their derivative must move, with 4-byte numbers.

    First with the row of a neighbour counted for each entry, because the caches cannot hold all rows; then with every
    value counted once.

    Forward, an entry reads its column, A, z, and e and H of the neighbour, and writes z; a node reads its place, H, X
    and e and writes H, D⁻¹SH, D and e. Backward, a node first reads the gradient, H, D⁻¹SH, X, D and the gradient in X,
    and writes c₁g/D, its product with the mean and both gradients. Then an entry reads its column, A, z before and
    after, the gradient in S, and of the neighbour H, c₁g/D and the product, and writes the gradient in S; a node reads
    its place, H, X, c₁g/D, the product, e and both gradients, and writes both. The sums for the coefficients, 8 per
    node, are read and written.
    """
    row = 4 * columns
    own_entries = entries * (4 * 4 + 6 * 4)
    own_nodes = nodes * ((8 + 4 * row + 3 * 4) + (8 * row + 2 * 4) + (8 + 7 * row + 2 * 4) + 16 * 4)
    gathered = entries * (3 * row + 2 * 4)
    return own_entries + own_nodes + gathered, own_entries + own_nodes


@dataclass(frozen=True, eq=False)
class LayerGraph:
    """A random graph and what its layers compute with.

    Attributes:
        edges: undirected.
        adj: the graph.
        x: (N, C) the features.
        scalars: the parameters of ASMP.
        gradient: (N, C) in the result.
        seconds, memory: of making ``adj``.
    """

    edges: int
    adj: Adjacency
    x: Tensor
    scalars: list[Tensor]
    gradient: Tensor
    seconds: float
    memory: dict[str, Any]


def layer_graph(device: str, edges: int, columns: int, degree: int) -> LayerGraph:
    nodes = max(2, 2 * edges // degree)
    generator = torch.Generator(device).manual_seed(0)
    y = torch.randint(columns, (nodes,), generator=generator, device=device)
    edge_index = random_edges(nodes, edges, y, generator)
    wait(device)
    began, memory = time.perf_counter(), Memory(device)
    adj = Adjacency.of(edge_index, nodes)
    wait(device)
    sorting, built = time.perf_counter() - began, memory.record()
    x = torch.randn(nodes, columns, generator=generator, device=device, requires_grad=True)
    values = (2.0, 1.0, 0.01, 0.1, 0.1, 0.2)
    scalars = [torch.tensor(value, device=device, requires_grad=True) for value in values]
    gradient = torch.randn(nodes, columns, generator=generator, device=device)
    return LayerGraph(edge_index.size(1) // 2, adj, x, scalars, gradient, sorting, built)


def run_layers(graph: LayerGraph, layers: int, *, back: bool = True, recompute: bool = False) -> str:
    """Compute the layers and, with ``back``, their gradients; return the backend."""
    params = ASMPParams(*graph.scalars)
    done = propagate(graph.x, graph.adj, params, Scheme(), layers=layers, weights=False, recompute=recompute)
    if back:
        torch.autograd.grad(done.h, [graph.x, *graph.scalars], graph.gradient)
    return done.backend


def layer_seconds(device: str, graph: LayerGraph, rounds: int) -> dict[str, float]:
    """The time of one layer, forward and backward: a fourth of the difference between six layers and two."""
    few, many = (statistics.median(timed(device, partial(run_layers, graph, k), rounds)) for k in (2, 6))
    ahead = [statistics.median(timed(device, partial(run_layers, graph, k, back=False), rounds)) for k in (2, 6)]
    seconds, forward = (many - few) / 4, (ahead[1] - ahead[0]) / 4
    return {
        "seconds_per_layer": seconds,
        "forward_seconds": forward,
        "backward_seconds": seconds - forward,
        "two_layers": few,
        "six_layers": many,
    }


def one_layer(device: str, graph: LayerGraph, rounds: int) -> dict[str, Any]:
    """The time and memory of one layer, and of six whose values are kept or computed again."""
    found = layer_seconds(device, graph, rounds)
    memory = Memory(device)
    backend = run_layers(graph, 6)
    kept = memory.record()
    again = statistics.median(timed(device, partial(run_layers, graph, 6, recompute=True), rounds))
    memory = Memory(device)
    run_layers(graph, 6, recompute=True)
    recomputed = memory.record()
    nodes, columns = graph.x.shape
    moved, once = layer_bytes(nodes, graph.adj.col.numel(), columns)
    seconds = found["seconds_per_layer"]
    return {
        "edges": graph.edges,
        "entries": graph.adj.col.numel(),
        "nodes": nodes,
        "columns": columns,
        "backend": backend,
        **found,
        "six_layers_recomputed": again,
        "bytes": moved,
        "bytes_each_once": once,
        "bytes_per_second": moved / seconds if seconds > 0 else None,
        "preparation_seconds": graph.seconds,
        "preparation_memory": graph.memory,
        "six_layers_memory": kept,
        "six_layers_recomputed_memory": recomputed,
    }


def tiles(texts: list[str], graph: LayerGraph, device: str, rounds: int, speed: float) -> Iterator[dict[str, Any]]:
    """One layer of a graph on a GPU with other numbers of entries and of warps per program."""
    from asgnn.kernels import asmp_layers
    from asgnn.kernels import tiles as shared

    moved, _ = layer_bytes(graph.x.size(0), graph.adj.col.numel(), graph.x.size(1))
    for text in texts:
        shared.LONG_ROW, asmp_layers.WARPS = map(int, text.split("x"))
        found = layer_seconds(device, graph, rounds)
        yield {"tile": text, **found, "share_of_copy": moved / found["seconds_per_layer"] / speed}


def gathers(texts: list[str], graph: LayerGraph, device: str, rounds: int, speed: float) -> Iterator[dict[str, Any]]:
    """The sum of the neighbours' rows and nothing else, for all columns and for one: what a gather alone reaches.

    An entry reads its column and the row of the neighbour, a node its place, and writes a row. The kernel of torch is
    ``embedding_bag``; on a GPU, our own is compared with it.
    """
    crow, col, entries = graph.adj.crow, graph.adj.col, graph.adj.col.numel()
    for h in (graph.x.detach(), graph.x.detach()[:, :1].contiguous()):
        row = 4 * h.size(1)
        moved = entries * (row + col.element_size()) + h.size(0) * (row + crow.element_size())
        library = partial(F.embedding_bag, col, h, crow, mode="sum", include_last_offset=True)
        ways: list[tuple[str, Callable[[], Tensor]]] = [("embedding_bag", library)]
        if device != "cpu":
            from gather import sums

            ways += [(text, partial(sums, crow, col, h, *map(int, text.split("x")))) for text in texts]
        expected = library()
        for name, way in ways:
            torch.testing.assert_close(way(), expected, rtol=1e-4, atol=1e-4)
            seconds = statistics.median(timed(device, way, rounds))
            found = {"kernel": name, "columns": h.size(1), "seconds": seconds, "bytes": moved}
            yield found | {"bytes_per_second": moved / seconds, "share_of_copy": moved / seconds / speed}


# --- many trainings in one process ----------------------------------------------------------------------------------


def repeat(device: str, count: int, epochs: int) -> dict[str, Any]:
    """The memory over many small trainings, each of a new model on a new graph."""
    settings = argparse.Namespace(nodes=300, edges=900, features=16, classes=3, device=device)
    rows, began = [], time.perf_counter()
    for done in range(1, count + 1):
        data, split = make(settings, None)
        fit(ASGNN(16, 16, 3, num_layers=3), data, TrainConfig(epochs=epochs), split=split)
        if done % max(1, count // 20) == 0:
            del data, split
            gc.collect()
            wait(device)
            row = {"trainings": done, "resident": resident("VmRSS")}
            if device != "cpu":
                row |= {"allocated": torch.cuda.memory_allocated(), "reserved": torch.cuda.memory_reserved()}
            rows.append(row)
            say(f"{row}, {time.perf_counter() - began:.0f} s")
    first, last = ({name: float(value or 0) for name, value in row.items()} for row in (rows[0], rows[-1]))
    growth = {name: last[name] / first[name] - 1 for name in first if name != "trainings" and first[name]}
    return {"epochs": epochs, "memory": rows, "growth_after_the_first": growth}


# --- the program ----------------------------------------------------------------------------------------------------


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def whole(text: str) -> int:
    return int(float(text))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2, help="on a CPU")
    parser.add_argument("--nodes", type=whole, default=1_000_000)
    parser.add_argument("--edges", type=whole, default=5_000_000, help="undirected")
    parser.add_argument("--features", type=int, default=100)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=8, help="of ASGNN; PyG's models get one after a warm-up")
    parser.add_argument("--models", help="asgnn, appnp and gcn, of which the last two are PyG's; all on a CPU")
    parser.add_argument("--mapped", action="store_true", help="read the features from a file mapped into memory")
    parser.add_argument("--layer", action="store_true", help="time one layer instead")
    parser.add_argument("--sizes", default="1e4,1e5,1e6,1e7", help="undirected edges of the layer's graphs")
    parser.add_argument("--columns", type=int, default=16, help="of the layer")
    parser.add_argument("--degree", type=int, default=20, help="mean number of neighbours in the layer's graphs")
    parser.add_argument("--gather", action="store_true", help="also time a bare gather on the layer's largest graph")
    parser.add_argument(
        "--tiles",
        help="entries and warps per program to try on the largest graph on a GPU, as 32x1,16x1,32x2",
    )
    parser.add_argument("--rounds", type=int, default=5, help="of the layer's timings")
    parser.add_argument("--repeat", type=int, default=0, help="train this many small models in one process instead")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--run", help=argparse.SUPPRESS)
    settings = parser.parse_args()
    torch.set_num_threads(settings.threads)
    if settings.run:
        print(json.dumps(run_alone(settings)), flush=True)
        return
    given = [text for text in sys.argv[1:] if text != str(settings.output) and text not in ("-o", "--output")]
    record: dict[str, Any] = dict(origin(f"python benchmarks/big.py {' '.join(given)}".strip(), settings.device))

    def keep(name: str, value: object) -> None:
        record[name] = value
        if settings.output:
            settings.output.write_text(json.dumps(record, indent=1) + "\n")

    if settings.repeat:
        keep("repeat", repeat(settings.device, settings.repeat, epochs=5))
        return
    if settings.layer:
        copied = 2**30 if settings.device == "cpu" else 2**32
        speed = bandwidth(settings.device, copied)
        keep("copy_bytes_per_second", speed)
        say(f"copy: {speed / 1e9:.0f} GB/s")
        rows: list[dict[str, Any]] = []
        for size in settings.sizes.split(","):
            graph = None  # frees the one before
            try:
                graph = layer_graph(settings.device, whole(size), settings.columns, settings.degree)
                row = one_layer(settings.device, graph, settings.rounds)
                row["share_of_copy"] = row["bytes_per_second"] / speed if row["bytes_per_second"] else None
            except (torch.OutOfMemoryError, MemoryError) as cause:
                row = {"edges": whole(size), "failed": str(cause)}
            rows.append(row)
            keep("layer", rows)
            say(json.dumps(row))
        parts = {"gather": (gathers, settings.gather), "tiles": (tiles, settings.tiles)}
        for name, (part, wanted) in parts.items():
            if wanted and graph is not None:
                texts = (settings.tiles or GATHERED).split(",")
                found: list[dict[str, Any]] = []
                for row in part(texts, graph, settings.device, settings.rounds, speed):
                    found.append(row)
                    keep(name, found)
                    say(json.dumps(row))
        return
    names = (settings.models or ("asgnn,appnp,gcn" if settings.device == "cpu" else "asgnn")).split(",")
    keep("graph", {name: getattr(settings, name) for name in ("nodes", "features", "classes", "mapped")})
    for name in names:
        keep(name, in_new_process(name, given))


if __name__ == "__main__":
    main()
