"""Training of one model by several processes, each with the rows of some nodes."""

from __future__ import annotations

import os
import warnings
from contextlib import nullcontext
from dataclasses import dataclass, fields

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch_geometric.data import Data

from asgnn.distributed.group import Group, HaloExchange
from asgnn.errors import ConfigError, DivergedWarning, GraphError
from asgnn.graphs import Split, labels_of, partition_nodes, prepare, split_of
from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.features import Features
from asgnn.graphs.partition import METHODS, Method
from asgnn.graphs.piece import Piece, cut
from asgnn.models import APPNP, ASGNN, GCN, MLP, SGC
from asgnn.models.base import NodeClassifier
from asgnn.models.layers import RowStreams
from asgnn.models.memory import Saving
from asgnn.progress import Progress
from asgnn.settings import check_choice
from asgnn.threads import one_thread
from asgnn.training.config import TrainConfig, Trial
from asgnn.training.fit import DROPOUT_STREAM, ONE_THREAD_BELOW, Epoch, Fit, OnEpoch, _Nodes, _Runner
from asgnn.training.recipes import training_of

MODELS = (ASGNN, APPNP, GCN, MLP, SGC)
"""The models whose layers need the rows of neighbours only."""


@dataclass(frozen=True, repr=False)
class DistributedFit(Fit):
    """The result of a training by several processes, equal in all of them.

    Attributes:
        nodes: the number of nodes of each process.
        borrowed: the number of rows that each process borrows from others in every layer.
        row_bytes: the bytes of rows that all processes sent to each other, over all epochs.
        sum_bytes: the size of what was summed over the processes, gradients, losses and counts, over all epochs.
    """

    nodes: tuple[int, ...]
    borrowed: tuple[int, ...]
    row_bytes: int
    sum_bytes: int


def fit(
    model: nn.Module,
    data: Data,
    config: TrainConfig | None = None,
    *,
    split: Split | None = None,
    device: torch.device | str | None = None,
    partition: Method | Tensor = "auto",
    progress: Progress | None = None,
    on_epoch: OnEpoch | None = None,
) -> DistributedFit:
    """Train one model on one graph by all processes of torch's default group; every process must call it.

    The result is that of :func:`asgnn.training.fit` in one process, up to rounding: each process computes the rows of
    its own nodes, with the dropout that they have in one process, and borrows those of their neighbours before each
    layer. Gradients, losses and hits are summed over the processes, so that all keep equal weights and choose the same
    epoch. The initial weights are those of the first process.

    Args:
        model: an ASGNN without ``hops``, an APPNP, GCN, SGC or MLP, without a witness; with equal settings everywhere.
        data: the whole graph, the same in every process, which cuts out the features and edges of its own nodes.
        config, split, progress, on_epoch: see :func:`asgnn.training.fit`.
        device: the device of this process. By default that of ``data``, and for NCCL the GPU with the number
            ``LOCAL_RANK``, which torchrun sets.
        partition: how nodes are assigned to processes, a method of :func:`~asgnn.graphs.partition_nodes`; or (N,) the
            number of the process of every node.

    Time of an epoch: that of the largest part, and 3K exchanges of borrowed rows for K layers: forward, backward and
    for validation. Memory: the whole graph, and of everything that training adds (activations, S of each layer) the
    share of the own nodes.
    """
    here = torch.device(device or _default_device(data))
    group = Group.of_all(here)
    classifier = _supported(model)
    trial = Trial(model, config or training_of(model), split_of(data, split))
    if trial.config.parts > 1:
        raise ConfigError("Several processes train on the whole graph in every step; set parts=1.")
    features, adj = prepare(data, need_labels=True)
    y = labels_of(data)
    _check_equal(group, classifier, trial, features, adj)
    if features.num_nodes < group.size:
        raise ConfigError(
            f"The graph has {features.num_nodes} nodes for {group.size} processes; use at most one process per node."
        )
    classifier.to(here)
    with torch.no_grad():
        for tensor in classifier.parameters():
            tensor.copy_(group.from_first(tensor))
    seen = classifier.informed(features, adj)
    piece, borders = cut(
        seen, _parts(group, seen, partition), group.rank, lambda borders: HaloExchange(group, borders, here)
    )
    entries = None if features.by_row is None else features.by_row.crow
    rng = RowStreams([DROPOUT_STREAM + trial.config.seed], borders.nodes, entries, here)
    graph = features.rows(borders.nodes).to(here), piece.to(here)
    sizes = group.gather((borders.nodes.numel(), borders.borrowed.numel()))
    runner = _PieceRunner(classifier, trial, y.to(here), graph, rng, borders.nodes.to(here), group)
    epochs = trial.config.epochs
    del features, adj, seen, piece

    before, after = (group.traffic.rows, group.traffic.sums), (0, 0)

    def report(epoch: int, values: Tensor | None) -> None:
        nonlocal after
        after = group.traffic.rows, group.traffic.sums
        if on_epoch is not None and values is not None:
            on_epoch(Epoch((0,), epoch, *values.unbind()))
        if progress is not None:
            progress(epoch, epochs)

    small = graph[1].row.numel() * int(y.max() + 1) < ONE_THREAD_BELOW
    current = torch.cuda.device(here) if here.type == "cuda" else nullcontext()
    with one_thread(here.type == "cpu" and small), current:
        (result,) = runner.run(report)
    sent = group.gather(after[0] - before[0])
    if result.diverged and group.rank == 0:
        warnings.warn(
            "The training diverged: the loss became infinite or far larger than that of a uniform guess. Scale the "
            "features or lower lr.",
            DivergedWarning,
            stacklevel=2,
        )
    return DistributedFit(
        **{one.name: getattr(result, one.name) for one in fields(Fit)},
        nodes=tuple(nodes for nodes, _ in sizes),
        borrowed=tuple(borrowed for _, borrowed in sizes),
        row_bytes=sum(sent),
        sum_bytes=after[1] - before[1],
    )


class _PieceRunner(_Runner):
    """The training of one trial on the rows of one process."""

    def __init__(
        self,
        model: NodeClassifier,
        trial: Trial,
        y: Tensor,
        graph: tuple[Features, Piece],
        rng: RowStreams,
        nodes: Tensor,
        group: Group,
    ) -> None:
        super().__init__([model], [trial], y, [graph], Saving())
        self.rng, self.nodes, self.group = rng, nodes, group
        self.model.repeatable = False  # an exchange cannot be part of a CUDA graph
        self.all_val, self.own_val = self.val, _OwnNodes(self.val, nodes, y)
        self.train, self.val = _OwnNodes(self.train, nodes, y), self.own_val

    def _epoch(self) -> Tensor:
        self.model.train()
        return self._step(*self.graphs[0], self.train)

    def _evaluate(self, graph: tuple[Features, Adjacency]) -> Tensor:
        self.model.eval()
        own = self.model.logits(*graph, self.rng)
        whole = own.new_zeros(1, self.y.numel(), own.size(-1))
        whole[:, self.nodes] = own
        return self.group.sum(whole)

    def _gradients(self, features: Features, adj: Adjacency, train: _Nodes) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        losses, grads = super()._gradients(features, adj, train)
        found = [grad for grad in grads if grad is not None]
        flat = self.group.sum(torch.cat([losses, *(grad.reshape(-1) for grad in found)]))
        losses, *sums = flat.split([losses.numel(), *(grad.numel() for grad in found)])
        each = iter(sums)
        return losses, tuple(None if grad is None else next(each).view_as(grad) for grad in grads)

    @torch.no_grad()
    def _validate(self) -> tuple[Tensor, Tensor]:
        self.model.eval()
        logits = self.val.of(self.model.logits(*self.graphs[0], self.rng))
        if self.by_auc:
            whole = logits.new_zeros(1, self.all_val.y.size(1), logits.size(-1))
            whole[:, self.own_val.place] = logits
            whole = self.group.sum(whole)
            return self.all_val.losses(whole), self.all_val.roc_auc(whole)
        # hits are counted, so that equal counts give exactly equal accuracies
        loss, hits = self.group.sum(torch.stack([self.val.losses(logits), self.own_val.hits(logits)]).double())
        return loss.to(logits.dtype), (hits / self.val.size).to(logits.dtype)


class _OwnNodes(_Nodes):
    """Those of the training or validation nodes of one trial that a process owns, perhaps none."""

    def __init__(self, whole: _Nodes, nodes: Tensor, y: Tensor) -> None:
        position = torch.full_like(y, -1)
        position[nodes] = torch.arange(nodes.numel(), device=y.device)
        position = position[whole.index[0]]
        self.place = (position >= 0).nonzero().view(-1)
        """Their positions among all training or validation nodes."""
        self.index = position[self.place].unsqueeze(0)
        self.weight, self.y, self.size = whole.weight[:, self.place], whole.y[:, self.place], whole.size


def _default_device(data: Data) -> torch.device:
    if dist.is_available() and dist.is_initialized() and dist.get_backend() == "nccl":
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
    device: torch.device = data.x.device
    return device


def _supported(model: nn.Module) -> NodeClassifier:
    """Return the model; raise unless its layers need the rows of neighbours only."""
    if not isinstance(model, NodeClassifier) or type(model) not in MODELS:
        names = ", ".join(kind.__name__ for kind in MODELS)
        raise ConfigError(
            f"{type(model).__name__} cannot be trained by several processes, because it may need more than the rows of "
            f"neighbours; these can: {names}."
        )
    if isinstance(model, ASGNN) and (model.hops or model.asmp.scheme.support == "dense"):
        raise ConfigError('An ASGNN can be trained by several processes only with hops=0 and support="edges".')
    if model.witness is not None and (model.witness.active or model.witness.speaks):
        raise ConfigError("A model with a witness cannot be trained by several processes; train it in one.")
    return model


def _check_equal(group: Group, model: NodeClassifier, trial: Trial, features: Features, adj: Adjacency) -> None:
    """Raise unless all processes were given the same; they would else wait for each other forever."""
    split = [(nodes.numel(), int(nodes.sum())) for nodes in (trial.split.train, trial.split.val)]
    graph = features.num_nodes, features.num_features, adj.row.numel(), float(adj.weight.double().sum())
    asked = type(model).__name__, repr(model.settings), repr(trial.config), graph, split
    everyone = group.gather(asked)
    for what, mine in zip(("model", "settings", "config", "graph", "split"), zip(*everyone, strict=True), strict=True):
        if any(one != mine[0] for one in mine):
            raise GraphError(
                f"The processes were given different arguments; the {what} is not the same in all of them."
            )


def _parts(group: Group, adj: Adjacency, partition: Method | Tensor) -> Tensor:
    """(N,) the process of every node."""
    if isinstance(partition, Tensor):
        part = partition.to(adj.row.device)
        if part.dtype != torch.int64 or part.shape != (adj.num_nodes,):
            raise ConfigError(f"partition must be one int64 number for each of the {adj.num_nodes} nodes.")
        if not torch.equal(part.unique(), torch.arange(group.size, device=part.device)):
            raise ConfigError(f"partition must give nodes to each of the processes 0 to {group.size - 1}, to no other.")
        return part
    check_choice("partition", partition, METHODS)
    part = torch.zeros(adj.num_nodes, dtype=torch.int64)
    if group.rank == 0:  # METIS may differ between machines
        part = partition_nodes(adj.edge_index[:, ~adj.loops], adj.num_nodes, group.size, partition)
    return group.from_first(part).to(adj.row.device)
