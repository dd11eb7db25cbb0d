"""Fuzzing of the library."""

from __future__ import annotations

import contextlib
import functools
import io
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import GCN as PyGGCN

import asgnn
from asgnn import attacks
from asgnn.attacks.checkpoint import FileCheckpoint
from asgnn.attacks.inner import InnerTraining
from asgnn.audit import clean
from asgnn.graphs import (
    Perturbation,
    Split,
    check_split,
    describe,
    from_edges,
    from_networkx,
    from_scipy,
    labels_of,
    largest_component,
    num_classes,
    random_split,
    split_of,
    to_scipy,
    undirected,
    validate,
)
from asgnn.training import RECIPES, TrainConfig, accuracy, fit, predict, recipe
from tests.fuzz.draw import INF, MUTATIONS, NAN, Draw, finite, must

# --- graphs ---------------------------------------------------------------------------------------------------------


def case_validate(draw: Draw) -> None:
    data = draw.odd_graph()
    validate(data, need_labels=draw.chance(0.5), need_split=draw.chance(0.2))
    n = data.x.size(0)
    must(
        set(map(tuple, data.edge_index.t().tolist())) == set(map(tuple, data.edge_index.flip(0).t().tolist())), "edges"
    )
    must(to_scipy(data).shape == (n, n), "to_scipy")
    part = largest_component(data)
    validate(part, need_labels=False)
    must(0 < part.x.size(0) <= n, "largest_component")
    describe(data)
    if data.y is not None:
        raw = data.y.double().view(-1).numpy()
        must(np.array_equal(labels_of(data).numpy(), np.where(np.isnan(raw), -1, raw)), "labels")
        must(num_classes(data) == np.nanmax(raw) + 1, "num_classes")


def case_from_edges(draw: Draw) -> None:
    n = draw.count(1, 12)
    pairs = draw.rng.integers(0, n, size=(draw.count(0, 20), 2))
    if draw.chance(0.3):
        pairs = pairs + draw.one(1, -1, n, 2**40)
    values = draw.rng.normal(size=(n, 3)) if draw.chance(0.7) else draw.rng.integers(0, 2, size=(n, 3)).astype(float)
    labels = draw.rng.integers(-1, 3, size=n)
    edges = draw.mostly(
        pairs, pairs.tolist(), [tuple(pair) for pair in pairs.tolist()], torch.from_numpy(pairs), pairs.astype("u8"),
        pairs.astype(">i4"), pairs[::-1, ::-1], np.asfortranarray(pairs), pairs.astype("f8"), pairs.astype(str),
        pairs.astype(object), pairs > 0, pairs + 0j, pairs.T, pairs[:, :1], pairs.reshape(-1), np.ma.array(pairs),
        np.ma.array(pairs, mask=pairs == 0), torch.from_numpy(pairs).t(), torch.from_numpy(pairs).bfloat16(),
        torch.from_numpy(pairs).to_sparse(), torch.from_numpy(pairs).int(), iter(pairs.tolist()), None, 7, "edges",
        {0: 1}, {(0, 0)}, [(0, None)], [(0, True)], [(0, NAN)], [(0,)], [()], [[]], [(0, 1), (1,)], [(0, 2**70)],
        sp.csr_array(pairs), np.array(3), np.zeros((0, 2)), np.zeros((3, 0)), [b"01"], [("0", "0")], [{0, 1}],
    )  # fmt: skip
    x = draw.mostly(
        values, values.tolist(), torch.from_numpy(values), torch.from_numpy(values).float(), values.astype("f2"),
        values.astype(">f8"), values[::-1], np.asfortranarray(values), values.astype(np.longdouble), values + 1j,
        torch.from_numpy(values) + 1j, values.astype(str), values.astype(object), values.astype("M8[s]"),
        sp.csr_array(values), sp.coo_matrix(values), torch.from_numpy(values).to_sparse(), values > 0,
        torch.from_numpy(values).half(), values * 1e300, np.where(values > 1, NAN, values), values * INF, values[:0],
        values[:, :0], values[0], values[None], np.ma.masked_less(values, 0), None, "x", 3.0, [[1.0], [1.0, 2.0]],
        [["1"]], torch.from_numpy(values).to("meta"), values.view(np.matrix), np.broadcast_to(values[:, :1], (n, 4)),
    )  # fmt: skip
    y = draw.mostly(
        labels, labels.tolist(), torch.from_numpy(labels), labels.astype("f4"), labels.astype("i1"), labels[::-1],
        [None if label < 0 else int(label) for label in labels], np.where(labels < 0, NAN, labels), labels[:, None],
        np.ma.masked_less(labels, 0), labels + 0.5, labels - 5, labels.astype(str), labels > 0, labels + 0j, None,
        labels[:-1], "y", 3, [[]], labels.astype(object), labels.astype("u8"), torch.from_numpy(labels).double(),
    )  # fmt: skip
    data = from_edges(x, edges, y)
    validate(data, need_labels=False)
    finite(data.x, "x")
    if isinstance(edges, np.ndarray | list) and np.shape(edges) == pairs.shape and len(pairs):
        true = {(int(u), int(v)) for u, v in np.asarray(edges) if u != v}
        found = set(map(tuple, data.edge_index.t().tolist()))
        must(found == true | {(v, u) for u, v in true}, "edges")
    if isinstance(x, np.ndarray) and x.dtype.kind in "fiub":
        must(np.allclose(data.x.numpy(), np.asarray(x, float), rtol=1e-3, atol=1e-3), "x")
    if y is labels or (isinstance(y, list) and len(y) == n):
        must(np.array_equal(data.y.numpy(), labels), "y")


def case_from_matrix(draw: Draw) -> None:
    n = draw.count(1, 12)
    matrix = (draw.rng.random((n, n)) < 0.3) * draw.rng.normal(size=(n, n))
    x = np.eye(draw.one(n, n, n, n + 1))
    if draw.chance(0.3):
        graph = nx.gnp_random_graph(n, 0.3, seed=n)
        made = draw.one(graph, graph.to_directed(), nx.MultiGraph(graph), nx.Graph(), None, "graph", [(0, 1)], matrix)
        data = from_networkx(made, x)
        must(data.num_edges == 2 * nx.Graph(graph).number_of_edges(), "number of edges")
        return
    adj = draw.one(
        matrix, sp.csr_array(matrix), sp.coo_matrix(matrix), sp.dia_array(matrix), sp.lil_array(matrix), matrix > 0,
        matrix.astype("f2"), matrix.astype(">f8"), matrix[::-1], matrix + 1j, matrix.astype(object), matrix.astype(str),
        np.where(matrix > 0, NAN, 0), np.where(matrix > 0, INF, 0), matrix[:-1], matrix[0], matrix[None], None, "adj",
        3.0, torch.from_numpy(matrix), torch.from_numpy(matrix).to_sparse(), np.ma.masked_greater(matrix, 0),
        matrix.tolist(), [[0, 1], [1]], sp.csr_array(matrix + 1j), {}, matrix.view(np.matrix), sp.csr_array((n, n)),
    )  # fmt: skip
    data = from_scipy(adj, x)
    validate(data, need_labels=False)
    if adj is matrix or (isinstance(adj, sp.coo_matrix | sp.csr_array) and adj.dtype == float and adj.nnz):
        true = (matrix != 0) | (matrix != 0).T
        np.fill_diagonal(true, False)
        must(np.array_equal(to_scipy(data).toarray() > 0, true), "edges")


def case_splits(draw: Draw) -> None:
    data = draw.odd_graph() if draw.chance(0.5) else draw.graph()
    if draw.chance(0.5):
        trial = draw.one(0, 3, Draw.odd_number)
        shares = {name: draw.one(0.1, 0.3, Draw.odd_number) for name in ("train", "val") if draw.chance(0.3)}
        split = random_split(data, trial, **shares)
        labelled = torch.arange(data.x.size(0)) if data.y is None else (labels_of(data) >= 0).nonzero().view(-1)
        together = torch.cat([split.train, split.val, split.test]).sort().values
        must(torch.equal(together, labelled), "parts of the split")
        again = random_split(data, trial, **shares)
        must(torch.equal(split.val, again.val), "the same trial, another split")
        if data.y is not None:
            check_split(split, data)
        return
    n = data.x.size(0) if isinstance(data, Data) and isinstance(data.x, Tensor) and data.x.dim() else 5
    given = draw.one(
        None, None, (), "split",
        lambda d: Split(d.nodes(n), d.nodes(n), d.nodes(n)), lambda d: random_split(d.graph(40, 40), 0),
    )  # fmt: skip
    split = split_of(data, given)
    check_split(split, data)
    must(bool((labels_of(data)[split.test] >= 0).all()), "a test node without a label")


def case_flips(draw: Draw) -> None:
    data = draw.odd_graph() if draw.chance(0.4) else draw.graph()
    n = data.x.size(0) if isinstance(data, Data) and isinstance(data.x, Tensor) and data.x.dim() else 20
    keys = draw.rng.permutation(n * n)[: draw.count(0, 5)]
    pairs = torch.from_numpy(np.stack([keys // max(n, 1), keys % max(n, 1)]))
    odd: dict[str, list[Any]] = {
        "flips": [pairs.int(), pairs.t(), pairs + 1, -pairs, pairs.tolist(), None, pairs.float()],
        "num_nodes": [n + 1, Draw.odd_number],
        "targets": [lambda d: d.nodes(n)],
        "meta": [{}, None, "meta", {1: 2}, {"a": "\ud800"}],
        "feature_flips": [pairs, pairs + 10**12, pairs % 2],
    }
    arguments: dict[str, Any] = {"flips": pairs[:, pairs[0] != pairs[1]], "num_nodes": n}
    if draw.chance(0.5):
        name = draw.one(*odd)
        arguments[name] = draw.one(*odd[name])
    flips = Perturbation(**arguments)
    path = draw.folder / "flips.npz"
    if draw.chance(0.4):
        flips.save(path)
        loaded = Perturbation.load(path)
        must(torch.equal(loaded.flips, flips.flips) and loaded.meta == flips.meta, "what was loaded")
        path.write_bytes(draw.damage(path.read_bytes()))
        damaged = Perturbation.load(path)
        must(
            torch.equal(damaged.flips, flips.flips) and damaged.num_nodes == flips.num_nodes, "damage was not detected"
        )
        return
    if draw.chance(0.2):
        flips.save(draw.path())
        Perturbation.load(draw.path())
        return
    flips.check(data, draw.one(None, 3, Draw.odd_number))
    if draw.chance(0.2):
        flips = flips.first(draw.one(0, 1, Draw.odd_number))
    poisoned = flips.apply(data)
    check_back = flips.apply(poisoned)
    before, after = (set(map(tuple, one.edge_index.t().tolist())) for one in (data, check_back))
    must(before == after, "flips applied twice")
    must(asgnn.diff(data, poisoned).flips.size(1) == flips.flips.size(1), "diff")


def case_undirected(draw: Draw) -> None:
    n = draw.one(9, 9, 9, 5, Draw.odd_number)
    pairs = torch.from_numpy(draw.rng.integers(-1 if draw.chance(0.2) else 0, 9, size=(2, 6)))
    found = undirected(draw.mostly(pairs, pairs.int(), pairs.t(), pairs.tolist(), None, pairs[0], pairs[:, :0]), n)
    true = {(u, v) for u, v in pairs.t().tolist() if u != v}
    must(found.numel() == 0 or set(map(tuple, found.t().tolist())) == true | {(v, u) for u, v in true}, "edges")


# --- operator and models --------------------------------------------------------------------------------------------


def case_asmp(draw: Draw) -> None:
    data = draw.odd_graph() if draw.chance(0.4) else draw.graph()
    if not isinstance(data, Data):
        return
    scalars = {name: draw.near(0.0, 3.0) for name in ("lam", "gamma", "mu1", "mu2")}
    scalars |= {"eta1": draw.one(None, 0.1), "eta2": draw.one(None, 0.02)}
    if draw.chance(0.4):
        scalars[draw.one(*scalars)] = draw.odd_number()
    options: dict[str, Any] = {"layers": draw.one(0, 1, 3, 5)}
    odd = {
        "layers": draw.odd_count, "objective": "paper", "support": "dense", "update": "joint",
        "structure": draw.one("exact", "frozen", "x"),
        "normalization": "sym", "h_steps": draw.odd_count, "s_steps": 2, "unit_norm": True,
        "penalty": draw.one("mcp", "x"),
        "backend": draw.one("dense", "edges", "cpu", "gpu", "nowhere", 1), "trace": True,
    }  # fmt: skip
    for name in draw.rng.choice(list(odd), size=draw.count(0, 2), replace=False):
        options[str(name)] = odd[str(name)]() if callable(odd[str(name)]) else odd[str(name)]
    found = asgnn.asmp(
        data.x, data.edge_index, asgnn.ASMPParams(**scalars), edge_weight=data.get("edge_weight"), **options
    )
    finite(found.h, "h", data.x.shape)
    for weight in found.weights:
        finite(weight, "weights")
    # With a larger scalar, rounding errors decide which entries of S are 0 and which are 1.
    moderate = all(value is None or np.max(np.asarray(value, float)) < 1e3 for value in scalars.values())
    if "backend" not in options and found.backend != "dense" and moderate:
        peer = asgnn.asmp(
            data.x, data.edge_index, asgnn.ASMPParams(**scalars), edge_weight=data.get("edge_weight"),
            **(options | {"backend": "dense"}),
        )  # fmt: skip
        scale = float(peer.h.abs().max()) + 1e-6
        must(float((found.h - peer.h).abs().max()) <= 1e-3 * scale, "edges and dense differ")


def built(draw: Draw, data: Data, **settings: Any) -> tuple[str, torch.nn.Module]:
    """Returns the name of a random recipe and its untrained model."""
    name = draw.one(*RECIPES)
    split = random_split(data, 0, train=0.3, val=0.3)
    return name, recipe(name, **settings).trial(data, split, draw.count(0, 9)).model


def case_forward(draw: Draw) -> None:
    data = draw.graph()
    name, model = built(draw, data)
    model.eval()
    if draw.chance(0.6):
        odd = MUTATIONS[draw.one(*(key for key in MUTATIONS if key.split()[0] in ("x", "edge_index", "edge_weight")))]
        data = odd(draw, data)
    weight = data.get("edge_weight")
    found = model(data.x, data.edge_index, weight).detach()
    finite(found, f"{name}'s logits", (data.x.size(0), 3))
    if data.x.layout != torch.strided:
        return
    order = torch.from_numpy(draw.rng.permutation(data.x.size(0)))
    place = torch.empty_like(order).index_put((order,), torch.arange(len(order)))
    other = model(data.x.detach()[order], place[data.edge_index], weight).detach()
    scale = float(found.abs().max()) + 1e-3
    must(float((other - found[order]).abs().max()) <= 1e-2 * scale, f"{name} on the same graph in another order")


def case_settings(draw: Draw) -> None:
    data = draw.graph()
    name = draw.one(*RECIPES)
    known = RECIPES[name].settings
    settings: dict[str, Any] = {}
    for _ in range(draw.count(1, 2)):
        key = draw.one(*known, "nothing") if draw.chance(0.9) else "nothing"
        usual = {int: draw.count(1, 3), float: draw.near(0, 1), bool: draw.chance(0.5)}
        kind = known[key].kind if key in known else None
        settings[key] = usual[kind] if kind in usual and draw.chance(0.5) else draw.odd_count()
    split = random_split(data, 0, train=0.3, val=0.3)
    made = recipe(name, **settings)
    if made.config.epochs > 3:
        made = made.with_settings({"epochs": 2})
    trial = made.trial(data, split, draw.one(0, Draw.odd_number))
    found = fit(trial.model, data, trial.config, split=split)
    checked(found, data)


def checked(found: Any, data: Data) -> None:
    """Checks the figures of a Fit, unless it diverged."""
    logits = found.logits[0]
    must(tuple(logits.shape) == (data.x.size(0), num_classes(data)), f"logits have shape {tuple(logits.shape)}")
    if found.diverged:
        return
    finite(logits, "logits")
    finite(found.history.train_loss, "train_loss")
    y = labels_of(data).numpy()
    val = found.split.val.numpy()
    must(bool((y[val] >= 0).all()), "validation on a node without a label")
    share = float((logits.numpy().argmax(1) == y)[val].mean())
    must(abs(share - found.val_score) < 1e-4, f"val_score {found.val_score} instead of {share}")


def case_fit(draw: Draw) -> None:
    data = draw.odd_graph() if draw.chance(0.7) else draw.graph()
    usable = isinstance(data, Data) and isinstance(data.x, Tensor) and data.x.dim() == 2
    clean = data if usable else draw.graph()
    split = None if draw.chance(0.3) else random_split(clean, 0, train=0.3, val=0.3)
    if draw.chance(0.2):
        width = int(clean.x.size(1))
        model: Any = draw.one(
            lambda d: PyGGCN(width, 4, 2, out_channels=3, dropout=0.5), lambda d: PyGGCN(-1, 4, 2, out_channels=3),
            lambda d: torch.nn.Linear(width, 3), None, "gcn", torch.nn.Identity, lambda d: torch.nn.Identity(),
        )  # fmt: skip
    else:
        _, model = built(draw, clean)
    config = TrainConfig(
        epochs=draw.one(1, 2, 3), lr=draw.one(0.01, 0.01, 1e5, Draw.odd_number), seed=draw.one(0, 1, Draw.odd_number)
    )
    if draw.chance(0.1) and isinstance(data, Data) and isinstance(data.x, Tensor):
        data.x = data.x * draw.one(1e20, 1e38, 1e-30)
    found = fit(model, data, config, split=split)
    checked(found, data)


def case_accuracy(draw: Draw) -> None:
    data = draw.graph()
    name, model = built(draw, data)
    if draw.chance(0.5):
        data = MUTATIONS[draw.one(*MUTATIONS)](draw, data)
    elif draw.chance(0.3):
        data.x = data.x * draw.one(1e10, 1e20, 1e38)
    n = data.x.size(0) if isinstance(data, Data) and isinstance(data.x, Tensor) and data.x.dim() else 20
    nodes = draw.nodes(n)
    found = accuracy(model, data, nodes)
    classes = predict(model, data)
    must(tuple(classes.shape) == (n,) and int(classes.min()) >= 0, f"{name}: classes of shape {tuple(classes.shape)}")
    y = labels_of(data).numpy()
    # A repeated node may count once or twice, so compare only sets.
    numbers = np.unique(np.arange(n)[nodes.numpy()])
    numbers = numbers[y[numbers] >= 0]
    if nodes.dtype == torch.bool or len(nodes.unique()) == len(nodes):
        must(abs(found - float((classes.numpy() == y)[numbers].mean())) < 1e-6, f"{name}: accuracy {found}")


def case_clean(draw: Draw) -> None:
    data = draw.odd_graph() if draw.chance(0.6) else draw.graph()
    score = draw.one("jaccard", "svd", "cosine", "gnnguard", "combined", "weights", "disagreement", "x", None)
    how = draw.one("number", "share", "threshold", "precision")
    options: dict[str, Any] = {how: draw.odd_number() if draw.chance(0.3) else draw.one(0, 1)}
    if score in ("weights", "disagreement") and isinstance(data, Data):
        split = random_split(data, 0, train=0.3, val=0.3)
        options["model"] = recipe("asgnn").trial(data, split, 0).model
    out = clean(data, score, **options)
    given = set(map(tuple, data.edge_index.t().tolist()))
    left = set(map(tuple, out.edge_index.t().tolist()))
    must(left <= given, "an edge was added")
    must(all((v, u) in left for u, v in left) or not all((v, u) in given for u, v in given), "one direction was left")


# --- attacks --------------------------------------------------------------------------------------------------------

ATTACKS: dict[str, dict[str, Any]] = {
    "random_flips": {},
    "dice": {},
    "metattack": {"inner": InnerTraining(steps=2)},
    "nettack": {},
    "pgd": {"steps": 2, "samples": 2},
    "minmax": {"steps": 2, "samples": 2},
    "prbcd": {"steps": 2, "fine_tune": 1, "samples": 2, "block_size": 50},
    "grbcd": {"steps": 2, "block_size": 50},
}


def attack(name: str, data: Any, budget: Any, train: Any, rng: Any, **options: Any) -> Perturbation:
    """Runs an attack by its name."""
    options = ATTACKS[name] | options
    method: Callable[..., Perturbation] = getattr(attacks, name)
    if name in ("random_flips", "dice"):
        return method(data, budget, rng, **options)
    if name == "nettack":
        targets = options.pop("targets", torch.tensor([0, 1]))
        return method(data, budget, train, targets, rng, **options)
    return method(data, budget, train, rng, **options)


def case_attacks(draw: Draw) -> None:
    data = draw.odd_graph() if draw.chance(0.4) else draw.graph()
    n = data.x.size(0) if isinstance(data, Data) and isinstance(data.x, Tensor) and data.x.dim() else 20
    name = draw.one(*ATTACKS)
    budget = draw.one(0, 1, 2, 3, Draw.odd_number)
    usable = isinstance(data, Data) and draw.chance(0.7)
    train = random_split(data, 0, train=0.4, val=0.2).train if usable else draw.nodes(n)
    rng = draw.generator() if draw.chance(0.9) else draw.one(None, 0, "rng", np.random.default_rng(0))
    options: dict[str, Any] = {}
    if name not in ("random_flips", "dice") and draw.chance(0.2):
        options = {draw.one(*(key for key in ATTACKS[name] if key != "inner"), "allow_isolated"): draw.odd_count()}
    if name == "nettack" and draw.chance(0.3):
        options["targets"] = draw.nodes(n)
    if "surrogate" in getattr(attacks, name).__kwdefaults__ and name != "minmax" and draw.chance(0.3):
        options["surrogate"] = built(draw, data)[1]
    found = attack(name, data, budget, train, rng, **options)
    found.check(data)
    most = budget * (found.targets.numel() if found.targets is not None else 1)
    must(len(found) <= most, f"{name} made {len(found)} flips of {most}")
    validate(found.apply(data), need_labels=False)


class Stop(Exception):
    """Interrupts an attack."""


@functools.cache
def half_done(name: str) -> tuple[Data, Tensor, Perturbation, bytes]:
    """Returns a small graph, its training nodes, an attack of four flips, and the checkpoint of an interrupted run."""
    draw = Draw(np.random.default_rng(5))
    data = Data(**{key: value for key, value in draw.graph(30, 30).items() if key != "edge_weight"})
    data.y = torch.arange(30) % 3
    data.x = (data.x > 0).float()
    train = torch.arange(0, 30, 2)

    def after_two(done: int, *_: int) -> None:
        if done >= 2:
            raise Stop

    whole = attack(name, data, 4, train, torch.Generator().manual_seed(1))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.partial"
        with contextlib.suppress(Stop), FileCheckpoint(path, {"attack": name}) as checkpoint:
            attack(name, data, 4, train, torch.Generator().manual_seed(1), checkpoint=checkpoint, progress=after_two)
        return data, train, whole, path.read_bytes()


def case_checkpoints(draw: Draw) -> None:
    name = draw.one("metattack", "nettack", "grbcd", "pgd", "prbcd", "minmax")
    data, train, whole, content = half_done(name)
    path = draw.folder / "a.partial"
    path.write_bytes(content)
    if draw.chance(0.5):
        path.write_bytes(draw.damage(content))
    elif draw.chance(0.9):
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            arrays = dict(archive)
        key = draw.one(*arrays)
        arrays[key] = tampered(draw, arrays[key])
        np.savez(path.open("wb"), **arrays)
    with FileCheckpoint(path, {"attack": name}) as checkpoint:
        found = attack(name, data, 4, train, torch.Generator().manual_seed(1), checkpoint=checkpoint)
    must(torch.equal(found.flips, whole.flips), f"{name} resumed from a damaged file gives other flips")


def tampered(draw: Draw, array: NDArray[Any]) -> NDArray[Any]:
    array = array.copy()
    match draw.count(0, 5):
        case 0:
            return array.astype(draw.one("f4", "i4", "u1", "U8", "c8"))
        case 1:
            return array[..., :-1] if array.ndim else array[None]
        case 2:
            return np.concatenate([array.reshape(-1), array.reshape(-1)])
        case 3:
            return np.zeros((0,), array.dtype)
        case _ if array.size:
            flat = array.reshape(-1)
            flat[draw.count(0, flat.size - 1)] = draw.one(0, 1, 5, 77, 200)
            return array
    return array
