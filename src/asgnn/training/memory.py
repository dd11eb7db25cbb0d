"""What a training needs of memory, known before it begins, and what is saved so that it fits."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn
from torch_geometric.data import Data

from asgnn.errors import ConfigError
from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.checks import check_floats, check_pairs, nodes_of
from asgnn.graphs.features import Features, is_sparse
from asgnn.graphs.keys import index_dtype
from asgnn.models.base import NodeClassifier
from asgnn.models.foreign import as_model
from asgnn.models.memory import Saving, Sizes
from asgnn.settings import check_count

# A batch of several trials gets this share of a GPU, or this many bytes on a CPU, where more trials are not faster.
SHARE_OF_GPU, ON_CPU = 0.6, 3 * 2**29
SHARE = 0.9  # of the free memory that a training may plan with
MARGIN = 1.1  # small tensors, and gaps between large ones
SORTING = 45  # bytes per entry, in addition to the adjacency that results
LARGE = 2**20  # entries; programs say for such graphs what they need


@dataclass(frozen=True)
class MemoryPlan:
    """The memory that training needs, in bytes, and what the model does to need no more.

    Attributes:
        graph: the adjacency, and the copy of the edges by which a change is noticed.
        features: the features in the form in which models read them.
        weights: the weights of all trials, their gradients, the moments of Adam and the best weights.
        activations: what the forward pass keeps, and what the backward pass needs in addition, of all trials.
        preparation: what is needed while the edges are sorted, before anything is trained; 0 if they are.
        free: the memory that is free for all of this.
        trials: the number of trials that are trained as one batch.
        saving: what is computed in parts or a second time.
        upper: whether the model has no estimate of its own, so that ``activations`` is a rough upper one.
    """

    graph: int
    features: int
    weights: int
    activations: int
    preparation: int
    free: int
    trials: int
    saving: Saving
    upper: bool

    @property
    def needed(self) -> int:
        """The bytes at the peak."""
        return self.graph + self.features + max(self.weights + self.activations, self.preparation)

    @property
    def fits(self) -> bool:
        """Whether the free memory suffices, as far as is known; a rough upper estimate refuses nothing."""
        return self.upper or self.needed <= SHARE * self.free

    def __str__(self) -> str:
        """One sentence, without the full stop."""
        names = ("graph", "features", "weights", "activations")
        parts = ", ".join(f"{name} {_size(getattr(self, name))}" for name in names)
        how = []
        if self.saving.rows is not None:
            how.append(f"the MLP takes {self.saving.rows:,} rows at a time")
        if self.saving.recompute:
            how.append("layers are computed again in the backward pass")
        at_most = "at most " if self.upper else ""
        told = f"training needs {at_most}about {_size(self.needed)} of memory ({parts}); {_size(self.free)} are free"
        return "; ".join([told, *how])


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"


def memory_plan(
    model: nn.Module, data: Data, *, trials: int = 1, device: torch.device | str | None = None
) -> MemoryPlan:
    """Return what training ``model`` on ``data`` would need, and what :func:`~asgnn.training.fit` would choose.

    Looks at sizes and, if x is dense, at how many of its entries are 0; prepares nothing. Edges that a feature prior
    would add are not counted. Time O(N F), memory O(1).

    Args:
        model: the model.
        data: the graph, with x and edge_index.
        trials: the number of trials that are trained as one batch.
        device: the device to train on; that of ``data`` by default.
    """
    check_count("trials", trials)
    x, place = check_floats(getattr(data, "x", None), sparse=True), torch.device(device or data.x.device)
    nodes, edges = nodes_of(data), check_pairs(getattr(data, "edge_index", None), None).size(1)
    sparse, stored = is_sparse(x)
    sizes = Sizes(nodes, x.size(1), edges + nodes, stored, not sparse, x.element_size(), place.type == "cuda")
    index = 4 if index_dtype(max(nodes, sizes.entries)) == torch.int32 else 8
    # row, col, transposed order, place in edge_index; weight and loops; a copy of edge_index; the starts of the rows
    graph = sizes.entries * (4 * index + 5) + 2 * edges * index + 12 * nodes
    if sparse:
        features = stored * (24 + 2 * x.element_size()) + 8 * (nodes + x.size(1))
    else:
        features = 0 if place == x.device else stored * x.element_size()
    held = graph, features, SORTING * sizes.entries
    return plan_of_sizes(as_model(model), sizes, held, free_memory(place), limit=trials, fewest=trials)


def plan_of_graph(
    model: NodeClassifier,
    features: Features,
    adj: Adjacency,
    device: torch.device,
    limit: int,
    *,
    own_weights: bool,
    steps: int,
) -> MemoryPlan:
    """The plan for at most ``limit`` trials on a prepared graph; raises if not even one fits.

    With ``own_weights`` each trial has edge weights of its own, for which models have no estimate. A step of training
    sees one of ``steps`` parts of the graph.
    """
    value, b = features.dense, torch.empty((), dtype=features.dtype).element_size()
    stored = value.numel() if value is not None else features.size_of_mask[0]
    entries = adj.row.numel()
    sizes = Sizes(
        features.num_nodes, features.num_features, entries, stored, value is not None, b, device.type == "cuda"
    )
    held = [adj.row, adj.col, adj.reverse, adj.loops, adj.weight, adj.crow]
    graph = sum(part.numel() * part.element_size() for part in held)
    of_features = stored * b if value is not None else stored * (24 + 2 * b)
    if adj.row.device == device:
        free = free_memory(device) + graph + of_features  # both are held already
    else:  # the device gets one part at a time
        graph, of_features, free = graph // steps, of_features // steps, free_memory(device)
    plan = plan_of_sizes(model, sizes, (graph, of_features, 0), free, limit, 1, own_weights, steps)
    if not plan.fits:
        raise ConfigError(
            f"This {type(model).__name__} does not fit into memory: {plan}; use fewer layers or hidden channels, "
            "mini-batches (TrainConfig.parts), or a device with more memory."
        )
    return plan


def plan_of_sizes(
    model: NodeClassifier,
    sizes: Sizes,
    held: tuple[int, int, int],
    free: int,
    limit: int,
    fewest: int,
    own_weights: bool = False,
    steps: int = 1,
) -> MemoryPlan:
    """Choose the number of trials of a batch, ``fewest`` to ``limit``, and the first saving with which they fit.

    ``held`` are the bytes of the graph, of the features and of the preparation.
    """
    graph, features, preparation = held
    budget = int(SHARE_OF_GPU * (free - graph - features)) if sizes.gpu else ON_CPU
    weights = 6 * sizes.bytes * sum(p.numel() for p in model.parameters())
    part = replace(
        sizes, nodes=-(-sizes.nodes // steps), entries=-(-sizes.entries // steps), stored=-(-sizes.stored // steps)
    )
    for saving in model.savings():
        own = None if own_weights else model.activations(part, saving)
        each = _upper(model, part) if own is None else int(MARGIN * (own.kept + own.backward))
        if steps > 1:  # validation sees the whole graph, and keeps the input and the output of a layer
            each = max(each, sizes.bytes * (2 * sizes.nodes * _widest(model) + 4 * sizes.entries))
        trials = min(limit, max(fewest, budget // max(1, weights + each)))
        plan = MemoryPlan(
            graph, features, weights * trials, each * trials, preparation, free, trials, saving, own is None
        )
        if plan.fits:
            break
    return plan


def _upper(model: NodeClassifier, sizes: Sizes) -> int:
    """An upper estimate for any model: activations, dropout, values of entries, N × N matrices."""
    dense = model.dense_matrices * sizes.nodes**2
    return 4 * (8 * sizes.nodes * _widest(model) + 8 * sizes.stored + 24 * sizes.entries * 8 + dense)


def _widest(model: NodeClassifier) -> int:
    return max((p.size(-1) for p in model.parameters() if p.dim()), default=1)


def free_memory(device: torch.device) -> int:
    """The free memory of a device in bytes: of a GPU with what torch holds unused, of a CPU within its control group.

    A very large number if the system does not say.
    """
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    found = [2**62]
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found.append(1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]))
    with contextlib.suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text())
        used = int((group / "memory.current").read_text())
        cached = [line for line in (group / "memory.stat").read_text().splitlines() if line.startswith("file ")]
        found.append(limit - used + sum(int(line.split()[1]) for line in cached))
    if len(found) == 1:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES"))
    return max(0, min(found))
