"""Choice of settings on validation: many short trainings, the better ones longer, the best with several seeds."""

from __future__ import annotations

import copy
import importlib
import json
import math
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch_geometric.data import Data

from asgnn.errors import ConfigError, DivergedWarning, FeaturesWarning, GraphError
from asgnn.graphs import Split, labels_of, num_classes, prepare, split_of
from asgnn.graphs.neighbors import uninformative
from asgnn.models import Ensemble
from asgnn.models.foreign import as_model
from asgnn.progress import Progress
from asgnn.settings import check_count
from asgnn.training.calibrate import temperature_of
from asgnn.training.config import MAX_SEED, Metric
from asgnn.training.fit import ONE_THREAD_BELOW, Fit, fit_many
from asgnn.training.recipes import Recipe, recipe
from asgnn.training.space import PORTFOLIO, Budget, Values, candidates, load_portfolio
from asgnn.training.tuning_file import Score, TuningFile

__all__ = ["PORTFOLIO", "Scored", "Table", "Tried", "Tuned", "candidates", "load_portfolio", "tune", "words"]

PATIENCE = 50
MAX_TRIALS = 1000
# Successive halving: a rung keeps a quarter of the settings and doubles the epochs.
QUARTER = 4
LEAST = (QUARTER, 2)  # the fewest settings in the second and in the last rung
# Scores that differ by less than this many standard errors are taken for equal, and the loss decides: it is less noisy
# than a count of hits. It is calibrated first, because a plain loss prefers unsure models.
TIE = 1.0
TEMPERATURES = torch.logspace(-1.3, 0.7, 21).tolist()  # the scores are divided by the best of these before the loss
LARGEST_BATCH = {"cpu": 4, "cuda": 1024}  # on a CPU larger batches gain little, and small ones can run side by side
BASELINES = {"mlp": "an MLP (features alone)", "gcn": "a GCN (the given edges)"}
FEW_NODES = 100


@dataclass(frozen=True)
class Tried:
    """One setting in one rung; scores and losses are means over the trials.

    Attributes:
        settings: what differs from the recipe.
        rung: counted from 1; only the best settings of a rung are in the next one.
        epochs: the limit of epochs.
        trials: the number of seeds.
        val_score, val_loss: at the best epochs, the loss after calibration by one temperature; −1 and infinity for a
            training that diverged.
        seconds: of all trials.
    """

    settings: Mapping[str, Any]
    rung: int
    epochs: int
    trials: int
    val_score: float
    val_loss: float
    seconds: float


@dataclass(frozen=True)
class Table(Sequence[Tried]):
    """What was tried, best first: the last rung, then what was left behind in each rung before."""

    rows: tuple[Tried, ...]

    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)

    def best(self, count: int | None = None) -> list[Tried]:
        """The first rows, each setting once, by its last rung."""
        found: dict[str, Tried] = {}
        for row in self.rows:
            found.setdefault(words(row.settings), row)
        return list(found.values())[:count]

    def to_pandas(self) -> Any:
        """A ``pandas.DataFrame`` with one row for each setting and rung, and one column for each setting."""
        try:
            pandas = importlib.import_module("pandas")
        except ImportError:
            raise ConfigError("to_pandas needs pandas, which is not installed; install it with pip.") from None
        return pandas.DataFrame([{**vars(row), "settings": words(row.settings), **row.settings} for row in self.rows])

    def __str__(self) -> str:
        head = ("rung", "epochs", "trials", "score", "loss", "seconds", "settings")
        lines = [(*head,), *(_cells(row) for row in self.best())]
        widths = [max(len(line[i]) for line in lines) for i in range(len(head) - 1)]
        return "\n".join("  ".join((*map(str.rjust, line, widths), line[-1])) for line in lines)


def _cells(row: Tried) -> tuple[str, ...]:
    numbers = (f"{100 * row.val_score:.2f}", f"{row.val_loss:.4f}") if row.val_score >= 0 else ("–", "–")
    return (f"{row.rung}", f"{row.epochs}", f"{row.trials}", *numbers, f"{row.seconds:.1f}", words(row.settings))


def words(settings: Values) -> str:
    """The settings as ``name=value``, or "the recipe" if there are none."""
    return " ".join(f"{name}={value}" for name, value in settings.items()) or "the recipe"


@dataclass(frozen=True)
class Scored:
    """A model with its default recipe on the same validation nodes; means over the trials."""

    val_score: float
    val_loss: float
    trials: int


@dataclass(frozen=True, repr=False)
class Tuned:
    """The result of :func:`tune`.

    Attributes:
        recipe: the chosen model and training settings.
        settings: what differs from the model's own recipe.
        val_score, val_loss: the means over the trials of the chosen recipe, at their best epochs.
        scalars: the learned scalars by name, means over these trials.
        tried: all settings with their scores.
        comparison: how an MLP and a GCN with their default recipes do.
        advice: sentences on what the scores say about the graph.
        seconds: wall time.
    """

    recipe: Recipe
    settings: Mapping[str, Any]
    val_score: float
    val_loss: float
    scalars: Mapping[str, float]
    tried: Table
    comparison: Mapping[str, Scored]
    advice: tuple[str, ...]
    seconds: float
    _train: Callable[[], list[Fit]] = field(repr=False)
    _fits: list[Fit] = field(default_factory=list, repr=False)

    @property
    def fits(self) -> list[Fit]:
        """The trials of the chosen recipe; trained now if they come from the file of an earlier run."""
        if not self._fits:
            self._fits.extend(self._train())
        return self._fits

    def ensemble(self) -> Ensemble:
        """The mean probability of the trials as one model."""
        return Ensemble([fit.model for fit in self.fits])

    def __repr__(self) -> str:
        return f"Tuned({self.recipe.kind.__name__}, {self.val_score:.1%} on validation, {words(self.settings)})"

    def __str__(self) -> str:
        lines = [
            f"chosen: {words(self.settings)}",
            f"validation score {100 * self.val_score:.2f}, loss {self.val_loss:.4f}; {len(self.tried.best())} settings "
            f"in {self.seconds:.1f} s",
            *(f"{BASELINES[name]}: {100 * one.val_score:.2f}" for name, one in self.comparison.items()),
        ]
        return "\n".join([*lines, *self.advice])


def tune(
    model: str | Recipe,
    data: Data,
    split: Split | None = None,
    *,
    budget: Budget = "portfolio",
    trials: int = 3,
    seed: int = 0,
    fixed: Values | None = None,
    epochs: int | None = None,
    patience: int | None = PATIENCE,
    metric: Metric = "accuracy",
    device: torch.device | str | None = None,
    checkpoint: str | Path | None = None,
    progress: Progress | None = None,
) -> Tuned:
    """Choose the settings of a model on the validation nodes of a graph; labels of test nodes are never read.

    Successive halving. All candidates are trained once with a quarter of the epochs. The best quarter of them, at least
    four, is trained with half of the epochs and two seeds; the best quarter of these, at least two, with all epochs and
    ``trials`` seeds. Settings are compared by the mean validation score in steps of one standard error below the best
    one; within a step the lower mean validation loss is better, each model calibrated by one temperature. The result
    depends on ``seed`` and the arguments alone, up to rounding.

    Args:
        model: a name of :data:`~asgnn.training.RECIPES`, ``package.module:Class``, or a recipe.
        data: the graph.
        split: the train and validation nodes; the masks of ``data`` by default.
        budget: the number of candidates, or a list of settings; see :func:`candidates`.
        trials: seeds of the last rung; trial i has seed ``seed + i``.
        seed: of the candidates and of the trials.
        fixed: settings that are not tuned.
        epochs: the limit of epochs; that of the recipe by default.
        patience, metric: see :class:`~asgnn.training.TrainConfig`.
        device: where to train; where ``data`` is by default.
        checkpoint: a file for finished trainings. A second run with the same file repeats none of them, so an
            interrupted run resumes.
        progress: called with the number of finished epochs of all trainings and their limit.

    Time: that of about ``budget / 4 + trials · max(2, budget / 16)`` full trainings, and of those of the MLP and GCN.
    """
    began = time.perf_counter()
    check_count("trials", trials, 1, MAX_TRIALS)
    check_count("seed", seed, 0, MAX_SEED - MAX_TRIALS)
    own = recipe(model) if isinstance(model, str) else model
    training: dict[str, Any] = {"patience": patience, "metric": metric}
    if epochs is not None:
        training["epochs"] = epochs
    base = own.with_settings({**(fixed or {}), **training})
    asked = candidates(model, budget, seed, fixed=fixed)
    for settings in asked:
        base.with_settings(settings)  # raises before any training
    split = split_of(data, split)
    search = _Search(data, split, seed, device, TuningFile(checkpoint, data, split))
    baselines = {name: recipe(name, **training) for name in BASELINES if recipe(name) != own}
    rungs = _rungs(len(asked), base.config.epochs, trials)
    search.expect(
        progress, [(base, *rung) for rung in rungs], [(one, 1, one.config.epochs, trials) for one in baselines.values()]
    )
    comparison = {}
    for name, scores in zip(baselines, search.scores(list(baselines.values()), trials), strict=True):
        comparison[name] = Scored(*_means(scores), trials)
    left, tables = list(asked), []
    for number, (count, limit, seeds) in enumerate(rungs, 1):
        left = left[:count]
        recipes = [base.with_settings({**settings, "epochs": limit}) for settings in left]
        found = search.scores(recipes, seeds, keep=number == len(rungs))
        rows = [
            Tried(settings, number, limit, seeds, *_means(scores), sum(one.seconds for one in scores))
            for settings, scores in zip(left, found, strict=True)
        ]
        order = rank([(row.val_score, row.val_loss) for row in rows], search.standard_error(metric))
        left, found = [left[i] for i in order], [found[i] for i in order]
        tables.append([rows[i] for i in order])
    best = tables[-1][0]
    if best.val_score < 0:
        raise GraphError("Every training diverged; scale the features, or fix lr at a lower value.")
    chosen = base.with_settings(best.settings)
    changed = {name: value for name, value in training.items() if value != getattr(own.config, name)}
    return Tuned(
        recipe=chosen,
        settings={**best.settings, **changed},
        val_score=best.val_score,
        val_loss=best.val_loss,
        scalars={name: fmean(one.scalars[name] for one in found[0]) for name in found[0][0].scalars},
        tried=Table(tuple(row for rows in reversed(tables) for row in rows)),
        comparison=comparison,
        advice=tuple(_advice(best, comparison, search, metric, found[0])),
        seconds=time.perf_counter() - began,
        _train=lambda: search.fits(chosen, trials),
        _fits=search.kept_fits(chosen, trials),
    )


def _rungs(count: int, epochs: int, trials: int) -> list[tuple[int, int, int]]:
    """(settings, epochs, trials) of each rung; a rung that leaves nothing out is skipped."""
    second, last = max(LEAST[0], -(-count // QUARTER)), max(LEAST[1], -(-count // QUARTER**2))
    rungs = [
        (count, -(-epochs // QUARTER), 1),
        (second, -(-epochs // 2), min(2, trials)),
        (last, epochs, trials),
    ]
    following = [second, last, 0]
    return [(min(size, count), *rest) for (size, *rest), after in zip(rungs, following, strict=True) if count > after]  # type: ignore[misc]


def rank(scores: Sequence[tuple[float, float]], standard_error: Callable[[float], float]) -> list[int]:
    """The order of (score, loss) pairs, best first.

    Scores are taken in steps of :data:`TIE` standard errors below the best; within a step the lower loss is better.
    """
    best = max(score for score, _ in scores)
    step = TIE * standard_error(best) if best >= 0 else 1.0

    def key(i: int) -> tuple[float, float, float, int]:
        score, loss = scores[i]
        # a score on the edge of a step must not fall to either side by rounding
        return math.floor((best - score) / step + 1e-9), loss, -score, i

    return sorted(range(len(scores)), key=key)


def _means(scores: Sequence[Score]) -> tuple[float, float]:
    return fmean(one.val_score for one in scores), fmean(one.val_loss for one in scores)


@dataclass(frozen=True)
class _Training:
    recipe: Recipe
    seed: int

    @property
    def key(self) -> str:
        kind = f"{self.recipe.kind.__module__}:{self.recipe.kind.__qualname__}"
        config = {name: value for name, value in vars(self.recipe.config).items() if name != "seed"}
        asked = {"model": kind, **dict(sorted(self.recipe.arguments.items())), **config, "seed": self.seed}
        return json.dumps(asked, default=repr)


class _Search:
    """Trains on one graph; finished trainings are taken from the file."""

    def __init__(
        self, data: Data, split: Split, seed: int, device: torch.device | str | None, file: TuningFile
    ) -> None:
        self.split, self.seed, self.file = split, seed, file
        self.device = torch.device(device or data.x.device)
        self.data = copy.copy(data).to(self.device)  # once, so that what is prepared from it is kept between batches
        self.largest = LARGEST_BATCH.get(self.device.type, LARGEST_BATCH["cuda"])
        self.y = labels_of(data)[split.val.to(data.y.device)].cpu()
        features, adj = prepare(self.data, need_labels=True)
        self.uninformative = uninformative(features)
        # As many batches side by side as torch may use threads, unless a batch uses all threads itself. Candidates may
        # add 20 neighbours of each node, in both directions.
        work = (adj.row.numel() + 40 * adj.num_nodes) * num_classes(data) * self.largest
        alone = self.device.type != "cpu" or work >= ONE_THREAD_BELOW
        self.workers = 1 if alone else torch.get_num_threads()
        self.lock, self.done, self.total = threading.Lock(), 0.0, 0
        self.progress: Progress | None = None
        self.kept: dict[str, Fit] = {}

    def expect(self, progress: Progress | None, *plans: Sequence[tuple[Recipe, int, int, int]]) -> None:
        """Tell the progress how many epochs there are at most."""
        self.progress = progress
        self.total = sum(count * epochs * trials for plan in plans for _, count, epochs, trials in plan)

    def standard_error(self, metric: Metric) -> Callable[[float], float]:
        """The standard error of a score, from the number of validation nodes; of the ROC-AUC, of the rarer class."""
        nodes = len(self.y) if metric == "accuracy" else min(int((self.y == label).sum()) for label in (0, 1))

        def of(score: float) -> float:
            share = (score * nodes + 1) / (nodes + 2)  # never 0 or 1
            return math.sqrt(share * (1 - share) / nodes)

        return of

    def scores(self, recipes: Sequence[Recipe], trials: int, keep: bool = False) -> list[list[Score]]:
        """The scores of each recipe's trials."""
        asked = [[_Training(one, self.seed + i) for i in range(trials)] for one in recipes]
        batches = list(self._batches([training for each in asked for training in each]))
        missing = [batch for batch in batches if any(training.key not in self.file.scores for training in batch)]
        for batch in batches:
            if batch not in missing:
                self._report(sum(training.recipe.config.epochs for training in batch))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DivergedWarning)  # a setting that diverges has lost
            warnings.simplefilter("ignore", FeaturesWarning)  # said once, as advice
            if self.workers == 1 or len(missing) < 2:
                for batch in missing:
                    self._train(batch, keep)
            else:
                pool = ThreadPoolExecutor(self.workers)
                try:
                    for one in [pool.submit(self._train, batch, keep) for batch in _witness_first(missing)]:
                        one.result()
                finally:  # after an error or an interruption, batches that have not begun are not trained
                    pool.shutdown(cancel_futures=True)
        return [[self.file.scores[training.key] for training in each] for each in asked]

    def _batches(self, trainings: Sequence[_Training]) -> Iterator[list[_Training]]:
        """Trainings that can share a batch; a batch is trained as a whole, so that resuming repeats its arithmetic."""
        groups: dict[str, list[_Training]] = {}
        for training in trainings:
            known = training.recipe.settings
            fixed = {k: v for k, v in training.recipe.arguments.items() if k not in known or not known[k].per_trial}
            key = json.dumps(
                [str(training.recipe.kind), training.recipe.config.epochs, fixed], sort_keys=True, default=repr
            )
            groups.setdefault(key, []).append(training)
        for group in groups.values():
            for start in range(0, len(group), self.largest):
                yield group[start : start + self.largest]

    def _train(self, batch: Sequence[_Training], keep: bool) -> None:
        seen = 0.0
        weight = sum(training.recipe.config.epochs for training in batch)

        def report(done: int, total: int) -> None:
            nonlocal seen
            self._report(weight * done / total - seen)
            seen = weight * done / total

        trials = [training.recipe.trial(self.data, self.split, training.seed) for training in batch]
        fits = fit_many(trials, self.data, device=self.device, progress=report)
        with self.lock:
            self.file.add({training.key: self._score(fit) for training, fit in zip(batch, fits, strict=True)})
            if keep:
                self.kept |= {training.key: fit for training, fit in zip(batch, fits, strict=True)}

    def _score(self, fit: Fit) -> Score:
        ran = len(fit.history.val_loss)
        if fit.diverged or fit.best_epoch == 0:
            return Score(-1.0, math.inf, fit.best_epoch, ran, fit.seconds)
        _, loss = temperature_of(fit.logits[0][self.split.val.cpu()].unsqueeze(0), self.y, TEMPERATURES)
        scalars = as_model(fit.model).scalar_values()
        return Score(fit.val_score, loss, fit.best_epoch, ran, fit.seconds, scalars)

    def _report(self, epochs: float) -> None:
        with self.lock:
            self.done += epochs
            if self.progress is not None:
                self.progress(round(self.done), self.total)

    def kept_fits(self, chosen: Recipe, trials: int) -> list[Fit]:
        """The fits of a recipe, if all are kept."""
        keys = [_Training(chosen, self.seed + i).key for i in range(trials)]
        return [self.kept[key] for key in keys] if all(key in self.kept for key in keys) else []

    def fits(self, chosen: Recipe, trials: int) -> list[Fit]:
        """Train the trials of a recipe."""
        return fit_many(
            [chosen.trial(self.data, self.split, self.seed + i) for i in range(trials)], self.data, device=self.device
        )


def _witness_first(batches: Sequence[list[_Training]]) -> list[list[_Training]]:
    """One batch that has a witness, those without, the others: its training does not make another batch wait."""
    have = [batch for batch in batches if batch[0].recipe.arguments.get("witness_floor", 1.0) < 1]
    return [*have[:1], *(batch for batch in batches if batch not in have), *have[1:]]


def _advice(
    best: Tried, comparison: Mapping[str, Scored], search: _Search, metric: Metric, scores: Sequence[Score]
) -> Iterator[str]:
    """Sentences for the user, from validation scores alone."""
    error = search.standard_error(metric)(best.val_score)
    shown = {name: f"{100 * one.val_score:.1f} %" for name, one in comparison.items()}
    ours = f"{100 * best.val_score:.1f} %"
    mlp, gcn = comparison.get("mlp"), comparison.get("gcn")
    if mlp is not None and best.val_score <= mlp.val_score:
        yield (
            f"The edges do not help here: an MLP, which sees the features alone, reaches {shown['mlp']} on the "
            f"validation nodes, the chosen model {ours}."
        )
    if gcn is not None and gcn.val_score > best.val_score + error:
        yield f"A GCN with its default settings reaches {shown['gcn']}, the chosen model {ours}: prefer the GCN."
    chance = 0.5 if metric == "roc_auc" else float(torch.bincount(search.y).max()) / len(search.y)
    if mlp is not None and mlp.val_score <= chance + error:
        usual = "a random order" if metric == "roc_auc" else "always answering the most frequent class"
        yield f"The features alone hardly help: an MLP reaches {shown['mlp']}, and {usual} {100 * chance:.1f} %."
    if search.uninformative is not None:
        yield f"Edges cannot be judged by the features. {search.uninformative}"
    if best.val_score <= chance + error:
        yield f"The chosen model hardly beats chance ({100 * chance:.1f} %): its predictions say little."
    if best.settings.get("prior_edges") == 0:
        yield "The given edges were not trusted: the chosen model uses the similarity of the features instead."
    if all(one.scalars.get("lam", 1.0) < 0 for one in scores):
        learned = fmean(one.scalars["lam"] for one in scores)
        yield f"λ was learned as {learned:.2f}, below 0: neighbours tend to be of different classes."
    if len(search.y) < FEW_NODES:
        yield (
            f"There are only {len(search.y)} validation nodes, so the standard error of a score is {100 * error:.1f} "
            "points; use more of them if you can."
        )
    if all(one.best_epoch > 0.95 * best.epochs for one in scores):
        yield f"Validation was still improving at the last of the {best.epochs} epochs; raise epochs."
