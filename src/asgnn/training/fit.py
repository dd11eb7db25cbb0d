"""Training of one trial or of many trials as one batch; the weights of the best validation epoch are kept."""

from __future__ import annotations

import copy
import math
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data

from asgnn.errors import ConfigError, DivergedWarning, GraphError
from asgnn.graphs import Split, labels_of, prepare, split_of
from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.features import Features
from asgnn.models.base import NodeClassifier, stack, unstack
from asgnn.models.foreign import as_model
from asgnn.models.layers import Streams
from asgnn.models.memory import Saving
from asgnn.progress import Progress
from asgnn.settings import check_count
from asgnn.threads import one_thread
from asgnn.training.clusters import Clusters
from asgnn.training.config import MAX_EPOCHS, TrainConfig, Trial
from asgnn.training.memory import plan_of_graph
from asgnn.training.optimizer import TrialAdam
from asgnn.training.recipes import training_of
from asgnn.training.witness import add_witnesses

DROPOUT_STREAM = 2**40
# Below this number of values per pass over the edges of all trials, one CPU thread is used. Two threads take two thirds
# of the time on free cores, but many times as long on shared cores, because threads wait by spinning.
ONE_THREAD_BELOW = 2**22
# Training diverged if a loss is not finite, if the training loss ends above MAX_RISE times, or peaks above MAX_PEAK
# times, both the initial loss and the loss of a uniform guess, or if it peaks above MAX_LOSS times the latter. On Cora
# every recipe stays below a peak of 1.1 at its own learning rate; GCN, APPNP and MLP that pass 10 have lost most of
# their accuracy.
MAX_RISE, MAX_PEAK, MAX_LOSS = 2, 10, 1e6
# Epochs between two checks whether all trials of a batch have stopped, else 10: on a GPU a check waits for the device.
CHECK_EVERY = {"cpu": 1}


@dataclass(frozen=True)
class History:
    """One value per epoch, each (epochs,); shorter if the trial stopped before."""

    train_loss: Tensor
    val_loss: Tensor
    val_score: Tensor


@dataclass(frozen=True)
class Epoch:
    """What is known after an epoch of a batch of T trials; the values are (T,) tensors on the device of the training.

    Attributes:
        trials: the positions of the trials of the batch in the list that was given; ``(0,)`` for :func:`fit`.
        number: the epoch, counted from 1.
        train_loss: the training loss before the step of this epoch; with mini-batches, each node's before its step.
        val_loss: the validation loss after it.
        val_score: the validation score after it, the accuracy or the ROC-AUC (``TrainConfig.metric``), in [0, 1].
    """

    trials: tuple[int, ...]
    number: int
    train_loss: Tensor
    val_loss: Tensor
    val_score: Tensor


@dataclass(frozen=True, repr=False)
class Fit:
    """The result of training one trial.

    Attributes:
        model: the trained model, with the weights of ``best_epoch``.
        config: the training settings.
        split: the split.
        best_epoch: the epoch, counted from 1, with the highest validation score, then the lowest validation loss; 0
            if no loss was finite.
        val_score: the validation score at that epoch, the accuracy or the ROC-AUC (``config.metric``), in [0, 1]; −1
            if there is none.
        diverged: whether the loss became infinite or NaN, or ended far above the loss of a uniform guess. The results
            then say nothing about the model.
        logits: (N, C) the scores at that epoch without dropout, on ``data`` and on each graph in ``also_on``; on the
            CPU.
        history: losses and validation score of every epoch.
        seconds: wall time of the batch divided by its number of trials.
        batch: the number of trials in the batch.
    """

    model: nn.Module
    config: TrainConfig
    split: Split
    best_epoch: int
    val_score: float
    diverged: bool
    logits: tuple[Tensor, ...]
    history: History
    seconds: float
    batch: int

    def __repr__(self) -> str:
        score = f"{self.val_score:.1%}" if self.config.metric == "accuracy" else f"ROC-AUC {self.val_score:.3f}"
        result = "diverged" if self.diverged else f"{score} on validation"
        return (
            f"Fit({type(self.model).__name__}, {result}, epoch {self.best_epoch} of {self.config.epochs}, "
            f"{self.seconds:.1f} s)"
        )


OnEpoch = Callable[[Epoch], object]


def fit(
    model: nn.Module,
    data: Data,
    config: TrainConfig | None = None,
    *,
    split: Split | None = None,
    device: torch.device | str | None = None,
    progress: Progress | None = None,
    on_epoch: OnEpoch | None = None,
) -> Fit:
    """Train one model on one graph.

    Args:
        model: a model of this library, or any module that maps ``(x, edge_index)`` to (N, C) scores. Edge weights are
            passed to a module that takes ``edge_weight`` and raise an error with any other module.
        data: the graph. Nodes without a label (−1 or NaN in y) take part in message passing only.
        config: the training settings; those of the model's recipe by default.
        split: the train, validation and test nodes; the masks of ``data`` by default.
        device: the device to train on; that of ``data`` by default.
        progress: called after each epoch with the number of epochs done and of all epochs.
        on_epoch: called after each epoch with its losses and its validation score, as an :class:`Epoch`. An error that
            it raises ends the training, for example ``optuna.TrialPruned``; ``model`` is then not trained.
    """
    trial = Trial(model, config or training_of(model), split or split_of(data))
    return fit_many([trial], data, device=device, progress=progress, on_epoch=on_epoch)[0]


def fit_many(
    trials: Sequence[Trial],
    data: Data,
    *,
    device: torch.device | str | None = None,
    batch_size: int | None = None,
    also_on: Sequence[Data] = (),
    progress: Progress | None = None,
    on_epoch: OnEpoch | None = None,
) -> list[Fit]:
    """Train many trials on one graph; trials whose models can share a batch are trained together.

    Each trial has its own learning rates, weight decay, dropout, initial weights, scalars, seed and split, and may have
    its own edge weights. Its result is the one it would get alone, up to rounding. Results have the order of the
    trials, and the models are trained in place. A trial with ``patience`` stops for itself, and the batch ends when all
    its trials have stopped. If trials diverge, one :class:`~asgnn.errors.DivergedWarning` says how many.

    With mini-batches (``TrainConfig.parts``) the graph stays on the device of ``data``. Each step moves its part of the
    graph to ``device``; validation and the scores of the result use the whole graph, without gradients, where it is.
    The feature prior and the witness see the whole graph, too. Which parts come together is the same for all trials.

    A batch has as many trials as fit into memory. If not even one does, some layers are computed in parts or a second
    time; if that is not enough, a :class:`~asgnn.errors.ConfigError` says what is needed, before anything is trained.
    See :func:`~asgnn.training.memory_plan`.

    Args:
        trials: the trials to train.
        data: the graph, with x, edge_index and y.
        device: the device to train on; that of ``data`` by default.
        batch_size: the largest number of trials in a batch. By default, and at most, as many as fit in memory.
        also_on: other graphs on the same nodes; each trained model is evaluated once on each.
        progress: called after each epoch with the number of epochs done and of all epochs.
        on_epoch: called after each epoch of each batch with an :class:`Epoch`. On a GPU, reading its values waits for
            the device. An error that it raises ends all trainings that are not finished.

    Time O(trials · epochs · one forward and backward pass); memory O(batch · (F H + N H + K E)). With mini-batches, N
    and E are those of a step, and validation takes O(batch · N H + E).
    """
    if not trials:
        return []
    if batch_size is not None:
        check_count("batch_size", batch_size)
    if len({id(trial.model) for trial in trials}) < len(trials):
        raise ConfigError("Two trials share one model; build a separate model for each trial.")
    device = torch.device(device or data.x.device)
    home = _home(trials, data, device)
    features, adj = prepare(data, home, need_labels=True)
    graphs = [prepare(graph, home) for graph in also_on]
    y = labels_of(data).to(device)
    splits = {id(trial.split): split_of(data, trial.split) for trial in trials}
    trials = [replace(trial, split=splits[id(trial.split)]) for trial in trials]
    models = [as_model(trial.model) for trial in trials]
    for model, trial in zip(models, trials, strict=True):
        if trial.edge_weight is not None and not model.own_weights:
            raise ConfigError(
                f"{type(trial.model).__name__} cannot have edge weights of its own for a trial with these settings; "
                "train it on a graph that has these edges."
            )
        if trial.config.parts > 1 and model.whole_graph:
            raise ConfigError(
                f"{type(trial.model).__name__} needs the whole graph in every step; train it with parts=1."
            )
        model.to(home).init_lazy(features, adj)
        model.to(device)
    add_witnesses(models, trials, data, features, device, fit_many)
    batches = list(_batches(models, trials, features, adj, device, batch_size))
    total, done = sum(trials[batch[0]].config.epochs for batch, _ in batches), 0
    results: dict[int, Fit] = {}
    for batch, saving in batches:
        members = [models[i] for i in batch]
        seen = _with_own_weights(adj, data, [trials[i] for i in batch])
        if seen is adj:
            for member in members:
                member.begin(features, member.informed(features, adj))

        def report(epoch: int, values: Tensor | None, batch: list[int] = batch, before: int = done) -> None:
            if on_epoch is not None and values is not None:
                on_epoch(Epoch(tuple(batch), epoch, *values.unbind()))
            if progress is not None:
                progress(before + epoch, total)

        runner = _Runner(members, [trials[i] for i in batch], y, [(features, seen), *graphs], saving)
        work = members[0].informed(features, adj).row.numel() * int(y.max() + 1) * len(members)
        work += members[0].dense_matrices * features.num_nodes**2 * len(members)
        work //= trials[batch[0]].config.steps
        # CUDA streams, graphs and kernels are created on the current GPU, which may not be ``device``
        current = torch.cuda.device(device) if device.type == "cuda" else nullcontext()
        with one_thread(device.type == "cpu" and work < ONE_THREAD_BELOW), current:
            results.update(zip(batch, runner.run(report), strict=True))
        done += trials[batch[0]].config.epochs
    fits = [results[i] for i in range(len(trials))]
    if diverged := sum(result.diverged for result in fits):
        warnings.warn(
            f"{diverged} of {len(fits)} trials diverged: the loss became infinite or far larger than that of a uniform "
            "guess. Their results say nothing about the model; scale the features or lower lr.",
            DivergedWarning,
            stacklevel=2,
        )
    return fits


class _Runner:
    """The training of one batch: a model of T trials and its optimisers."""

    def __init__(
        self,
        models: Sequence[NodeClassifier],
        trials: Sequence[Trial],
        y: Tensor,
        graphs: Sequence[tuple[Features, Adjacency]],
        saving: Saving,
    ) -> None:
        self.models, self.trials, self.y, self.graphs = models, trials, y, graphs
        self.model = model = stack(models)
        model.saving = saving
        features, adj = graphs[0]
        self.home = adj.row.device
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        if not self.parameters:
            raise ConfigError(f"{type(trials[0].model).__name__} has no trainable parameters.")
        dtype, device = self.parameters[0].dtype, y.device
        scalar_ids = {id(p) for p in model.scalars()}

        def per_trial(values: Iterable[float]) -> Tensor:
            return torch.tensor(list(values), dtype=dtype, device=device)

        configs = [trial.config for trial in trials]
        self.clusters: Clusters | None = None
        if configs[0].parts > 1:
            first, seen = configs[0], model.informed(features, adj)
            self.clusters = Clusters(features, seen, first.parts, first.parts_per_step, first.partition)
            self.train_sets = [trial.split.train.to(self.home) for trial in trials]
            self.order = torch.Generator().manual_seed(0)  # the same for every trial, so that they can share a batch
        self.is_scalar = [id(p) in scalar_ids for p in self.parameters]
        weights = [p for p, scalar in zip(self.parameters, self.is_scalar, strict=True) if not scalar]
        scalars = [p for p, scalar in zip(self.parameters, self.is_scalar, strict=True) if scalar]
        self.for_weights = TrialAdam(
            weights, per_trial(c.lr for c in configs), per_trial(c.weight_decay for c in configs)
        )
        self.for_scalars = TrialAdam(scalars, per_trial(c.scalar_lr for c in configs), per_trial(0 for _ in configs))
        # recipes draw the initial weights from the seed itself, so dropout must use other random numbers
        self.rng = Streams([DROPOUT_STREAM + c.seed for c in configs], device)
        self.train = _Nodes([t.split.train for t in trials], y, dtype)
        self.val = _Nodes([t.split.val for t in trials], y, dtype)
        self.max_label = max(int(self.train.y.max()), int(self.val.y.max()))
        self.by_auc = configs[0].metric == "roc_auc"
        if self.by_auc:
            self.val.check_two_classes()

    def run(self, report: Callable[[int, Tensor | None], object]) -> list[Fit]:
        start = time.perf_counter()
        model, count, epochs = self.model, len(self.trials), self.trials[0].config.epochs
        best = _Best(model.trained_tensors(), self.val, [trial.config.patience for trial in self.trials])
        check_every = CHECK_EVERY.get(self.y.device.type, 10)

        def run_epoch() -> Tensor:
            """(3, T) training loss, validation loss and validation score; updates all state in place."""
            train_loss = self._epoch()
            val_loss, val_score = self._validate()
            best.update(model.trained_tensors(), val_loss, val_score)
            return torch.stack([train_loss, val_loss, val_score])

        repeatable = self.y.is_cuda and model.repeatable and self.clusters is None
        next_epoch = _CudaGraph(run_epoch) if repeatable else run_epoch
        rows: list[Tensor] = []
        for epoch in range(1, epochs + 1):
            rows.append(next_epoch())
            report(epoch, rows[-1])
            if epoch < epochs and epoch % check_every == 0 and best.all_stopped():
                report(epochs, None)
                break
        with torch.no_grad():
            for tensor, value in zip(model.trained_tensors(), best.state, strict=True):
                tensor.copy_(value)
            logits = [self._evaluate(graph).cpu() for graph in self.graphs]  # each (T, N, C)
        unstack(model, self.models)
        for single in self.models:
            single.eval()
        history = torch.stack(rows).cpu()  # (epochs, 3, T)
        seconds = (time.perf_counter() - start) / count
        results = zip(self.trials, best.epoch.tolist(), best.score.tolist(), best.ends(), strict=True)
        return [
            Fit(
                trial.model,
                trial.config,
                trial.split,
                int(epoch),
                float(score),
                epoch == 0 or _diverged(history[:last, :2, i], logits[0].size(-1)),
                tuple(out[i] for out in logits),
                History(*history[:last, :, i].unbind(1)),
                seconds,
                count,
            )
            for i, (trial, epoch, score, last) in enumerate(results)
        ]

    def _losses(self, features: Features, adj: Adjacency, train: _Nodes) -> Tensor:
        """(T,) the training losses at the current parameters; ``adj`` holds the edges that the model sees."""
        logits = self.model.logits(features, adj, self.rng)
        if self.max_label >= logits.size(-1):
            raise GraphError(
                f"The model has {logits.size(-1)} classes, but a training or validation node has label "
                f"{self.max_label}; labels must be below the number of classes."
            )
        if self.by_auc and logits.size(-1) != 2:
            raise ConfigError(f'metric="roc_auc" needs two classes; the model has {logits.size(-1)}.')
        return train.losses(train.of(logits))

    def _epoch(self) -> Tensor:
        """(T,) the training losses of an epoch, which takes one step on the whole graph or one for each mini-batch."""
        self.model.train()
        if self.clusters is None:
            features, adj = self.graphs[0]
            return self._step(features, self.model.informed(features, adj), self.train)
        losses = []
        for nodes in self.clusters.draw(self.order):
            sets = self.clusters.among(nodes, self.train_sets)
            # weighted so that the mean over the steps is the mean over the training nodes
            weights = [self.clusters.steps * (1 / whole.numel()) for whole in self.train_sets]
            train = _Nodes(sets, self.y[nodes.to(self.y.device)], self.train.weight.dtype, weights)
            losses.append(self._step(*self.clusters.cut(nodes, self.y.device), train))
        return torch.stack(losses).mean(0)

    def _step(self, features: Features, adj: Adjacency, train: _Nodes) -> Tensor:
        losses, grads = self._gradients(features, adj, train)
        pairs = list(zip(grads, self.is_scalar, strict=True))
        self.for_weights.step(grad for grad, scalar in pairs if not scalar)
        self.for_scalars.step(grad for grad, scalar in pairs if scalar)
        self.model.after_step(lambda: self._losses(features, adj, train))
        return losses

    def _gradients(self, features: Features, adj: Adjacency, train: _Nodes) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        """The training losses (T,) and their gradients in the parameters."""
        losses = self._losses(features, adj, train)
        # trials are independent, so the gradient of the sum holds the gradient of each trial
        return losses.detach(), torch.autograd.grad(losses.sum(), self.parameters, allow_unused=True)

    @torch.no_grad()
    def _evaluate(self, graph: tuple[Features, Adjacency]) -> Tensor:
        """(T, N, C) the scores on a whole graph, without dropout, computed where the graph is."""
        model = self.model if self.home == self.y.device else copy.deepcopy(self.model).to(self.home)
        model.eval()
        out: Tensor = model(*graph, rng=self.rng)
        return out

    def _validate(self) -> tuple[Tensor, Tensor]:
        logits = self.val.of(self._evaluate(self.graphs[0]))
        return self.val.losses(logits), self.val.roc_auc(logits) if self.by_auc else self.val.accuracy(logits)


def _home(trials: Sequence[Trial], data: Data, device: torch.device) -> torch.device:
    """The device of the whole graph: that of ``data`` for mini-batches, else that of the training."""
    in_parts = [trial.config.parts > 1 for trial in trials]
    if not any(in_parts) or data.x.device == device:
        return device
    if not all(in_parts):
        raise ConfigError(
            "Trials with parts=1 and with more parts can be trained in one call only on the device of the graph; move "
            "the graph to it, or train them in two calls."
        )
    return torch.device(data.x.device)


def _with_own_weights(adj: Adjacency, data: Data, trials: Sequence[Trial]) -> Adjacency:
    """The adjacency with one column of weights for each trial, if the trials of the batch have weights of their own."""
    weights = [trial.edge_weight for trial in trials if trial.edge_weight is not None]
    if not weights:
        return adj
    weight = torch.stack([one.to(data.edge_index.device) for one in weights], dim=1)
    return Adjacency.of(data.edge_index, adj.num_nodes, weight).to(adj.row.device)


def _diverged(losses: Tensor, classes: int) -> bool:
    """Whether a trial diverged, from its training and validation losses (epochs, 2)."""
    if not bool(losses.isfinite().all()):
        return True
    first, peak = float(losses[0, 0]), float(losses[:, 0].max())
    last = float(losses[-max(1, len(losses) // 10) :, 0].median())
    guess = math.log(max(classes, 2))
    base = max(first, guess)
    return last > MAX_RISE * base or peak > MAX_PEAK * base or peak > MAX_LOSS * guess


class _Best:
    """The weights of the best epoch so far for each trial, updated in place."""

    def __init__(self, state: Sequence[Tensor], val: _Nodes, patience: Sequence[int | None]) -> None:
        self.state = [p.detach().clone() for p in state]
        self.score = torch.full_like(val.size, -1.0)
        self.loss = torch.full_like(val.size, torch.inf)
        self.epoch = torch.zeros_like(val.size, dtype=torch.int64)
        self.now = torch.zeros_like(self.epoch[0])
        # A trial that has stopped is still computed with its batch, but what it kept does not change any more.
        self.stops = any(epochs is not None for epochs in patience)
        self.patience = self.epoch.new_tensor([MAX_EPOCHS + 1 if epochs is None else epochs for epochs in patience])
        self.stopped = torch.zeros_like(self.epoch, dtype=torch.bool)
        self.last = torch.zeros_like(self.epoch)  # the last epoch before a trial stopped

    @torch.no_grad()
    def update(self, state: Sequence[Tensor], loss: Tensor, score: Tensor) -> None:
        self.now += 1
        better = (score > self.score) | ((score == self.score) & (loss < self.loss))
        better &= loss.isfinite()
        if self.stops:
            better &= ~self.stopped
            torch.where(self.stopped, self.last, self.now, out=self.last)
        if not better.is_cuda and not bool(better.any()):  # a GPU is not asked, because the answer takes longer
            self._stop()
            return
        for kept, value in ((self.score, score), (self.loss, loss), (self.epoch, self.now)):
            torch.where(better, value, kept, out=kept)
        for kept, value in zip(self.state, state, strict=True):
            torch.where(better.view(-1, *(1,) * (kept.dim() - 1)), value, kept, out=kept)
        self._stop()

    def _stop(self) -> None:
        if self.stops:
            self.stopped |= self.now - self.epoch >= self.patience

    def all_stopped(self) -> bool:
        """Whether every trial has stopped; without patience the device is not asked."""
        return self.stops and bool(self.stopped.all())

    def ends(self) -> list[int]:
        """The last epoch of each trial."""
        return (self.last if self.stops else self.now.expand_as(self.last)).tolist()


class _CudaGraph:
    """Runs an epoch as one CUDA graph, because the GPU would wait between kernels that are launched one by one.

    The first epochs run without the graph, while libraries initialise and kernels are compiled.
    """

    WARM_UP = 2

    def __init__(self, epoch: Callable[[], Tensor]) -> None:
        self.epoch, self.calls, self.graph = epoch, 0, torch.cuda.CUDAGraph()
        self.stream = torch.cuda.Stream()

    def __call__(self) -> Tensor:
        self.calls += 1
        if self.calls <= self.WARM_UP:
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                out = self.epoch()
            torch.cuda.current_stream().wait_stream(self.stream)
            return out
        if self.calls == self.WARM_UP + 1:
            with torch.cuda.graph(self.graph, stream=self.stream):
                self.out = self.epoch()
        self.graph.replay()
        return self.out.clone()


class _Nodes:
    """One set of nodes per trial, padded to equal length: indices, labels, and weights (0 on padding).

    The weight of a node in the loss is 1/size, or that of its trial in ``weights``.
    """

    def __init__(
        self, sets: Sequence[Tensor], y: Tensor, dtype: torch.dtype, weights: Sequence[float] | None = None
    ) -> None:
        longest = max(nodes.numel() for nodes in sets)
        self.index = torch.zeros(len(sets), longest, dtype=torch.int64, device=y.device)
        self.weight = torch.zeros(len(sets), longest, dtype=dtype, device=y.device)
        for trial, nodes in enumerate(sets):
            self.index[trial, : nodes.numel()] = nodes.to(y.device)
            self.weight[trial, : nodes.numel()] = 1 / nodes.numel() if weights is None else weights[trial]
        self.size = torch.tensor([nodes.numel() for nodes in sets], dtype=dtype, device=y.device)
        self.y = y[self.index]

    def of(self, logits: Tensor) -> Tensor:
        """(T, N, C) → (T, size, C), on the device of the nodes."""
        index = self.index.to(logits.device).unsqueeze(-1).expand(-1, -1, logits.size(-1))
        return logits.gather(1, index).to(self.index.device)

    def losses(self, logits: Tensor) -> Tensor:
        """(T,) the weighted sum of the cross-entropies of the nodes of each trial, by default their mean."""
        return (F.cross_entropy(logits.transpose(1, 2), self.y, reduction="none") * self.weight).sum(-1)

    def accuracy(self, logits: Tensor) -> Tensor:
        """(T,) hits / size, from a count of hits, so that equal counts give exactly equal accuracies."""
        return self.hits(logits).to(self.weight.dtype) / self.size

    def hits(self, logits: Tensor) -> Tensor:
        """(T,) the number of nodes that are classified rightly."""
        return ((logits.argmax(-1) == self.y) & (self.weight > 0)).sum(-1)

    def check_two_classes(self) -> None:
        """Raise unless every trial has nodes of class 0 and of class 1, and of no other."""
        real = self.weight > 0
        if bool(((self.y > 1) & real).any()):
            raise GraphError('metric="roc_auc" needs two classes; a validation node has another label than 0 and 1.')
        for label in (0, 1):
            if not bool(((self.y == label) & real).any(-1).all()):
                raise GraphError(f'metric="roc_auc" needs validation nodes of both classes; none has label {label}.')

    def roc_auc(self, logits: Tensor) -> Tensor:
        """(T,) the share of pairs of a node of class 1 and one of class 0 that the scores order rightly; ties are half.

        From counts of pairs, so that equal counts give exactly equal values. Time O(size log size) per trial.
        """
        score = logits[..., 1] - logits[..., 0]
        real = self.weight > 0
        positive, negative = (self.y == 1) & real, (self.y == 0) & real
        # nodes that are not negative are sorted behind the others
        below = score.masked_fill(~negative, torch.inf).sort(-1).values
        negatives = negative.sum(-1, keepdim=True)
        ranks = [torch.searchsorted(below, score, right=right).minimum(negatives) for right in (False, True)]
        twice = ((ranks[0] + ranks[1]) * positive).sum(-1)
        return (twice.double() / (2 * positive.sum(-1) * negatives.squeeze(-1))).to(self.weight.dtype)


def _batches(
    models: Sequence[NodeClassifier],
    trials: Sequence[Trial],
    features: Features,
    adj: Adjacency,
    device: torch.device,
    batch_size: int | None,
) -> Iterable[tuple[list[int], Saving]]:
    """The indices of the trials of each batch, which can share it and fit into memory, and what saves memory."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for i, (model, trial) in enumerate(zip(models, trials, strict=True)):
        dtype = next((p.dtype for p in model.parameters()), None)
        own = trial.edge_weight is not None
        config = trial.config
        shared = (config.epochs, config.metric, config.parts, config.parts_per_step, config.partition)
        groups.setdefault((model.batch_key, *shared, dtype, own), []).append(i)
    for group in groups.values():
        first = models[group[0]]
        own, steps = trials[group[0]].edge_weight is not None, trials[group[0]].config.steps
        seen, limit = first.informed(features, adj), batch_size or len(group)
        plan = plan_of_graph(first, features, seen, device, limit, own_weights=own, steps=steps)
        for start in range(0, len(group), plan.trials):
            yield group[start : start + plan.trials], plan.saving
