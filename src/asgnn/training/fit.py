"""Training: one trial, or many as one batch; the weights that were best on validation are the ones kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from numbers import Integral

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data

from asgnn.errors import ConfigError, GraphError
from asgnn.graphs import Split, check_split, validate
from asgnn.graphs.adjacency import Adjacency
from asgnn.graphs.features import Features
from asgnn.models.base import NodeClassifier, stack, unstack
from asgnn.models.layers import Streams
from asgnn.progress import Progress
from asgnn.threads import one_thread
from asgnn.training.evaluate import graph_inputs
from asgnn.training.optimizer import TrialAdam

DROPOUT_STREAM = 2**40
# Entries of one pass over the edges of all trials below which one CPU thread does the work. Two do it in two thirds of
# the time where the cores are free, but in many times the time where they are shared: threads wait by spinning.
ONE_THREAD_BELOW = 2**22


@dataclass(frozen=True)
class TrainConfig:
    """How one trial is trained; the defaults are those chosen for ASGNN.

    Args:
        epochs: full-graph steps; the validation accuracy is taken after each.
        lr: Adam's learning rate for the weights.
        weight_decay: L2 on the weights, not on learned scalars.
        scalar_lr: the learning rate of a model's learned scalars (ASGNN's six).
        seed: of this trial's dropout; a model's start is drawn where the model is made.
    """

    epochs: int = 200
    lr: float = 0.02
    weight_decay: float = 1.2e-3
    scalar_lr: float = 0.01
    seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.epochs, Integral):
            raise ConfigError(f"epochs must be a whole number; it is {self.epochs!r}.")
        if self.epochs < 1:
            raise ConfigError(f"A model is trained for at least one epoch; epochs is {self.epochs}.")
        for name in ("lr", "weight_decay", "scalar_lr"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"{name} must be 0 or more; it is {getattr(self, name)}.")


@dataclass(frozen=True)
class Trial:
    """One training: a model at its start, how to train it, and which nodes are for what."""

    model: NodeClassifier
    config: TrainConfig
    split: Split


@dataclass(frozen=True)
class History:
    """One value an epoch, each (epochs,)."""

    train_loss: Tensor
    val_loss: Tensor
    val_accuracy: Tensor


@dataclass(frozen=True)
class Fit:
    """A trained model and how it came about.

    Attributes:
        model: holds the weights of ``best_epoch``.
        best_epoch: counted from 1: highest validation accuracy, then lowest validation loss; 0 if none was finite.
        val_accuracy: at that epoch, in [0, 1]; −1 if there was none.
        logits: (N, C) the scores of every node at that epoch, without dropout, and those on each of the graphs given
            as ``also_on``; on the CPU.
        history: every epoch.
        seconds: wall time of the batch this trial was part of, divided by the number of its trials.
        batch: how many trials were trained side by side.
    """

    model: nn.Module
    config: TrainConfig
    split: Split
    best_epoch: int
    val_accuracy: float
    logits: tuple[Tensor, ...]
    history: History
    seconds: float
    batch: int


def fit(
    model: nn.Module,
    data: Data,
    config: TrainConfig | None = None,
    *,
    split: Split | None = None,
    device: torch.device | str | None = None,
    progress: Progress | None = None,
) -> Fit:
    """Train one model on one graph; the split is ``data``'s own masks where none is given.

    Any module that maps ``(x, edge_index)`` to (N, C) scores can be trained, without the edges' weights; a model of
    this library is trained by the same code as a batch of many.
    """
    config = config or TrainConfig()
    split = split or _split_of(data)
    if isinstance(model, NodeClassifier):
        return fit_many([Trial(model, config, split)], data, device=device, progress=progress)[0]
    _check(data, [split])
    place = torch.device(device or data.x.device)
    model.to(place)
    inputs = graph_inputs(model, data, place)

    def forward(rng: Streams) -> Tensor:
        # A foreign module draws its dropout from torch's global generator; fork it so that the seed decides.
        with torch.random.fork_rng(devices=[place] if place.type == "cuda" else []):
            torch.manual_seed(int(rng.bits(1)))
            out: Tensor = model(*inputs)
        return out.unsqueeze(0)

    runner = _Runner(model, forward, data.y.to(place), [Trial(model, config, split)], place)  # type: ignore[arg-type]
    return runner.run([model], lambda done: progress and progress(done, config.epochs))[0]


def fit_many(
    trials: Sequence[Trial],
    data: Data,
    *,
    device: torch.device | str | None = None,
    batch_size: int | None = None,
    also_on: Sequence[Data] = (),
    progress: Progress | None = None,
) -> list[Fit]:
    """Train a list of trials; those whose models can be stacked are trained as one batch.

    Each trial has its own learning rates, weight decay, dropout, start, scalars, seed and split, and gets, within
    float noise, what it would get alone. Results come in the order of the trials; the models given are the ones
    trained.

    Args:
        trials: what to train.
        data: one graph, with x, edge_index and y.
        device: where to train; where ``data`` is by default.
        batch_size: how many trials side by side at the most; by default, and at the most, as many as memory allows.
        also_on: other graphs on the same nodes, which the trained models are run on once.
        progress: called after each epoch.

    Time O(trials · epochs · one forward and backward pass); memory O(batch · (F H + N H + K E)).
    """
    if not trials:
        return []
    if batch_size is not None and batch_size < 1:
        raise ConfigError(f"batch_size must be 1 or more; it is {batch_size}.")
    if len({id(trial.model) for trial in trials}) < len(trials):
        raise ConfigError("Two trials share one model, which can hold one result only; build a model for each.")
    _check(data, [trial.split for trial in trials])
    place = torch.device(device or data.x.device)
    features, adj = _inputs(data, place)
    elsewhere = [_inputs(other, place) for other in also_on]
    y = data.y.to(place)
    batches = list(_batches(trials, features, adj, place, batch_size))
    total, done = sum(trials[batch[0]].config.epochs for batch in batches), 0
    results: dict[int, Fit] = {}
    for batch in batches:
        members = [trials[i] for i in batch]
        for member in members:
            member.model.to(place).begin(features, adj)
        model = stack([member.model for member in members])

        def forward(rng: Streams, model: NodeClassifier = model) -> Tensor:
            out: Tensor = model(features, adj, rng=rng)
            return out

        def report(epoch: int, before: int = done) -> None:
            if progress is not None:
                progress(before + epoch, total)

        def penalty(model: NodeClassifier = model) -> Tensor | None:
            return model.penalty(features, adj)

        def final(model: NodeClassifier = model) -> list[Tensor]:
            return [model(*inputs) for inputs in ((features, adj), *elsewhere)]

        runner = _Runner(model, forward, y, members, place, penalty, final)
        work = adj.row.numel() * int(y.max() + 1) * len(members)
        work += model.dense_matrices * features.num_nodes**2 * len(members)
        # streams, graphs and kernels are made on the current GPU, which may be another than the one asked for
        current = torch.cuda.device(place) if place.type == "cuda" else nullcontext()
        with one_thread(place.type == "cpu" and work < ONE_THREAD_BELOW), current:
            fits = runner.run([member.model for member in members], report)
        results.update(zip(batch, fits, strict=True))
        done += members[0].config.epochs
    return [results[i] for i in range(len(trials))]


def _inputs(data: Data, place: torch.device) -> tuple[Features, Adjacency]:
    features = Features.of(data.x).to(place)
    return features, Adjacency.of(data.edge_index, features.num_nodes, data.get("edge_weight")).to(place)


class _Runner:
    """One batch in flight: a model with T trials (or a foreign module, T = 1), its optimiser and its best weights."""

    def __init__(
        self,
        model: nn.Module,
        forward: Callable[[Streams], Tensor],
        y: Tensor,
        trials: Sequence[Trial],
        device: torch.device,
        penalty: Callable[[], Tensor | None] = lambda: None,
        final: Callable[[], list[Tensor]] | None = None,
    ) -> None:
        self.model, self.forward, self.y, self.trials, self.penalty = model, forward, y, trials, penalty
        self.final = final or (lambda: [self.forward(self.rng)])
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        # A foreign module may also change its buffers in training, such as running means.
        self.state = [*model.parameters(), *([] if isinstance(model, NodeClassifier) else model.buffers())]
        if not self.parameters:
            raise ConfigError(f"{type(model).__name__} has no parameter that can be trained.")
        dtype = self.parameters[0].dtype
        of_stack = isinstance(model, NodeClassifier)
        special = {id(p) for p in model.scalars()} if isinstance(model, NodeClassifier) else set()

        def per_trial(values: Iterable[float]) -> Tensor:
            tensor = torch.tensor(list(values), dtype=dtype, device=device)
            return tensor if of_stack else tensor[0]

        configs = [trial.config for trial in trials]
        self.is_scalar = [id(p) in special for p in self.parameters]
        weights = [p for p, scalar in zip(self.parameters, self.is_scalar, strict=True) if not scalar]
        scalars = [p for p, scalar in zip(self.parameters, self.is_scalar, strict=True) if scalar]
        self.for_weights = TrialAdam(
            weights, per_trial(c.lr for c in configs), per_trial(c.weight_decay for c in configs)
        )
        self.for_scalars = TrialAdam(scalars, per_trial(c.scalar_lr for c in configs), per_trial(0 for _ in configs))
        # apart from the seed itself, from which a recipe draws the start: the two must not be the same numbers
        self.rng = Streams([DROPOUT_STREAM + c.seed for c in configs], device)
        self.train = _Nodes([t.split.train for t in trials], y, dtype)
        self.val = _Nodes([t.split.val for t in trials], y, dtype)
        self.highest = max(int(self.train.y.max()), int(self.val.y.max()))

    def run(self, models: Sequence[nn.Module], report: Callable[[int], object]) -> list[Fit]:
        began = time.perf_counter()
        count, epochs = len(self.trials), self.trials[0].config.epochs
        best = _Best(self.state, self.val, isinstance(self.model, NodeClassifier))

        def one() -> Tensor:
            """(3, T) of the losses and the accuracy; what it changes, it changes in place."""
            train_loss = self._step()
            found = self._validate()
            best.update(self.state, *found)
            return torch.stack([train_loss, *found])

        again = one
        if self.y.is_cuda and isinstance(self.model, NodeClassifier) and self.model.repeatable:
            again = _Repeated(one)
        rows: list[Tensor] = []
        for epoch in range(1, epochs + 1):
            rows.append(again())
            report(epoch)
        with torch.no_grad():
            for place, value in zip(self.state, best.state, strict=True):
                place.copy_(value)
            self.model.eval()
            logits = [out.cpu() for out in self.final()]  # each (T, N, C)
        if isinstance(self.model, NodeClassifier):
            unstack(self.model, [m for m in models if isinstance(m, NodeClassifier)])
        for model in models:
            model.eval()
        history = torch.stack(rows).cpu()  # (epochs, 3, T)
        seconds = (time.perf_counter() - began) / count
        return [
            Fit(
                model,
                trial.config,
                trial.split,
                int(best_epoch),
                float(best_accuracy),
                tuple(out[i] for out in logits),
                History(*history[:, :, i].unbind(1)),
                seconds,
                count,
            )
            for i, (model, trial, best_epoch, best_accuracy) in enumerate(
                zip(models, self.trials, best.epoch.tolist(), best.accuracy.tolist(), strict=True)
            )
        ]

    def _losses(self) -> Tensor:
        """(T,) the training losses of the parameters as they are, with what a model adds."""
        logits = self.forward(self.rng)
        if self.highest >= logits.size(-1):
            raise GraphError(
                f"The model tells {logits.size(-1)} classes apart, and there is a label {self.highest} among the "
                "nodes for training and validation."
            )
        losses = self.train.losses(self.train.of(logits))
        penalty = self.penalty()
        return losses if penalty is None else losses + penalty

    def _step(self) -> Tensor:
        self.model.train()
        losses = self._losses()
        # Trials do not touch each other, so the gradient of the sum is each one's own gradient.
        grads = torch.autograd.grad(losses.sum(), self.parameters, allow_unused=True)
        pairs = list(zip(grads, self.is_scalar, strict=True))
        self.for_weights.step(grad for grad, scalar in pairs if not scalar)
        self.for_scalars.step(grad for grad, scalar in pairs if scalar)
        if isinstance(self.model, NodeClassifier):
            self.model.after_step(self._losses)
        return losses.detach()

    @torch.no_grad()
    def _validate(self) -> tuple[Tensor, Tensor]:
        self.model.eval()
        logits = self.val.of(self.forward(self.rng))
        return self.val.losses(logits), self.val.accuracy(logits)


class _Best:
    """For each trial the weights of its best epoch so far, all changed in place."""

    def __init__(self, state: Sequence[Tensor], val: _Nodes, of_stack: bool) -> None:
        self.state = [p.detach().clone() for p in state]
        self.of_stack = of_stack
        self.accuracy = torch.full_like(val.size, -1.0)
        self.loss = torch.full_like(val.size, torch.inf)
        self.epoch = torch.zeros_like(val.size, dtype=torch.int64)
        self.now = torch.zeros_like(self.epoch[0])

    @torch.no_grad()
    def update(self, state: Sequence[Tensor], loss: Tensor, accuracy: Tensor) -> None:
        self.now += 1
        better = (accuracy > self.accuracy) | ((accuracy == self.accuracy) & (loss < self.loss))
        better &= loss.isfinite()
        for kept, value in ((self.accuracy, accuracy), (self.loss, loss), (self.epoch, self.now)):
            torch.where(better, value, kept, out=kept)
        for kept, value in zip(self.state, state, strict=True):
            flags = better.view(-1, *(1,) * (kept.dim() - 1)) if self.of_stack else better[0]
            torch.where(flags, value, kept, out=kept)


class _Repeated:
    """An epoch as one CUDA graph: it is launched as a whole, where one by one its kernels would keep the GPU waiting.

    It is run as it is at first, while the libraries set themselves up and the kernels are compiled.
    """

    AS_IT_IS = 2

    def __init__(self, epoch: Callable[[], Tensor]) -> None:
        self.epoch, self.calls, self.graph = epoch, 0, torch.cuda.CUDAGraph()
        self.stream = torch.cuda.Stream()

    def __call__(self) -> Tensor:
        self.calls += 1
        if self.calls <= self.AS_IT_IS:
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                out = self.epoch()
            torch.cuda.current_stream().wait_stream(self.stream)
            return out
        if self.calls == self.AS_IT_IS + 1:
            with torch.cuda.graph(self.graph, stream=self.stream):
                self.out = self.epoch()
        self.graph.replay()
        return self.out.clone()


class _Nodes:
    """One set of nodes a trial, padded to one length: numbers, classes, and 1/size on each but 0 on padding."""

    def __init__(self, sets: Sequence[Tensor], y: Tensor, dtype: torch.dtype) -> None:
        longest = max(nodes.numel() for nodes in sets)
        self.index = torch.zeros(len(sets), longest, dtype=torch.int64, device=y.device)
        self.weight = torch.zeros(len(sets), longest, dtype=dtype, device=y.device)
        for trial, nodes in enumerate(sets):
            self.index[trial, : nodes.numel()] = nodes.to(y.device)
            self.weight[trial, : nodes.numel()] = 1 / nodes.numel()
        self.size = torch.tensor([nodes.numel() for nodes in sets], dtype=dtype, device=y.device)
        self.y = y[self.index]

    def of(self, logits: Tensor) -> Tensor:
        """(T, N, C) → (T, size, C)."""
        return logits.gather(1, self.index.unsqueeze(-1).expand(-1, -1, logits.size(-1)))

    def losses(self, logits: Tensor) -> Tensor:
        """(T,) the mean cross-entropy over each trial's own nodes."""
        return (F.cross_entropy(logits.transpose(1, 2), self.y, reduction="none") * self.weight).sum(-1)

    def accuracy(self, logits: Tensor) -> Tensor:
        """(T,) hits over size; counted, so that equal counts are equal numbers wherever the hits lie."""
        hits = (logits.argmax(-1) == self.y) & (self.weight > 0)
        return hits.sum(-1).to(self.weight.dtype) / self.size


def _stackable(trials: Sequence[Trial]) -> list[list[int]]:
    """Positions of the trials, those together that can be trained as one batch."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for i, trial in enumerate(trials):
        dtype = next(trial.model.parameters()).dtype
        groups.setdefault((type(trial.model), trial.model.signature, trial.config.epochs, dtype), []).append(i)
    return list(groups.values())


def _batches(
    trials: Sequence[Trial], features: Features, adj: Adjacency, device: torch.device, batch_size: int | None
) -> Iterable[list[int]]:
    """What can be stacked, cut to what fits in memory."""
    for group in _stackable(trials):
        size = max(1, _memory(device) // _bytes_per_trial(trials[group[0]].model, features, adj))
        size = min(size, batch_size or size)
        for start in range(0, len(group), size):
            yield group[start : start + size]


def _bytes_per_trial(model: NodeClassifier, features: Features, adj: Adjacency) -> int:
    """A generous guess: weights with gradient, two moments, best copy; activations; the edges; N × N matrices."""
    weights = sum(p.numel() for p in model.parameters())
    widest = max(p.size(-1) for p in model.parameters() if p.dim())
    mask = features.size_of_mask[0] * (1 if len(features.size_of_mask) == 1 else features.num_features)
    dense = model.dense_matrices * features.num_nodes**2
    return 4 * (6 * weights + 8 * features.num_nodes * widest + 8 * mask + 24 * adj.row.numel() * 8 + dense)


def _memory(device: torch.device) -> int:
    """Bytes a batch may take: most of what is free on a GPU, a fixed gigabyte and a half elsewhere."""
    if device.type == "cuda":
        return int(0.6 * torch.cuda.mem_get_info(device)[0])
    return 3 * 2**29


def _split_of(data: Data) -> Split:
    validate(data)
    masks = [data.get(name) for name in ("train_mask", "val_mask", "test_mask")]
    if any(mask is None for mask in masks):
        raise GraphError(
            "The graph has no train_mask, val_mask and test_mask; give a split, such as random_split(data, trial=0)."
        )
    if any(mask.dim() != 1 for mask in masks):
        raise GraphError(
            "The graph carries several splits; choose one of its mask columns and give it to fit as split."
        )
    return Split(*(mask.nonzero().view(-1) for mask in masks))


def _check(data: Data, splits: Sequence[Split]) -> None:
    validate(data)
    for split in splits:
        check_split(split, data.num_nodes)
