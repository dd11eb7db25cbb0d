"""Node classification in the manner of scikit-learn, for a graph of your own."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import sklearn.exceptions
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from torch import Tensor
from torch_geometric.data import Data

from asgnn.errors import AsgnnError, ConfigError, GraphError, StructureWarning
from asgnn.graphs import Split, labels_of, prepare
from asgnn.graphs.named import NamedGraph, named_graph
from asgnn.graphs.scaling import Scaling
from asgnn.models import Ensemble
from asgnn.progress import Progress
from asgnn.settings import check_count, check_number
from asgnn.training.calibrate import log_grid, succession, temperature_of
from asgnn.training.fit import Fit, fit_many
from asgnn.training.recipes import recipe
from asgnn.training.space import Budget, candidates
from asgnn.training.tune import BASELINES, Tuned, tune

if TYPE_CHECKING:
    from asgnn.audit import Audit

TRIALS = 3  # seeds with which the last settings of the search are compared
TEMPERATURES = log_grid(0.05, 20, 241)
# On a CPU, a graph with more than this many values in a pass over its edges (entries · classes; Cora has 10⁵) is large:
# the whole portfolio would take more than ten minutes on two cores, and a witness as long as everything else.
LARGE = 2**20
LARGE_SETTINGS, LARGE_EPOCHS, LARGE_PATIENCE, LARGE_MODELS = 4, 100, 20, 3
VAGUE = 5.0  # with a higher temperature, all confidences are about the same, and lower than they should be
# What tune takes as arguments of its own.
TRAINING = ("epochs", "patience", "metric")


class NotFittedError(AsgnnError, sklearn.exceptions.NotFittedError):
    """The classifier is used before it was fitted."""


class NodeSamples:
    """Nodes of one graph as samples, for scikit-learn's tools: the graph is given once, and indexing selects nodes.

    ``cross_val_score(clf, NodeSamples(graph), y)`` and ``GridSearchCV`` work over the nodes. In each fold the
    classifier sees the whole graph, and the labels of the fold's training nodes only. If labels are missing, take the
    nodes that have one: ``X, y = NodeSamples(graph, labels).labelled()``.

    Args:
        graph: whatever :meth:`RobustNodeClassifier.fit` takes.
        labels: the labels, if they are not part of the graph.
    """

    def __init__(self, graph: Any, labels: Any = None) -> None:
        self.graph: NamedGraph = named_graph(graph, labels)
        self.nodes: NDArray[np.int64] = np.arange(len(self.graph.ids), dtype=np.int64)

    @property
    def shape(self) -> tuple[int]:
        return (len(self.nodes),)

    @property
    def ids(self) -> NDArray[Any]:
        """The ids of these nodes."""
        return self.graph.ids[self.nodes]

    def labelled(self) -> tuple[NodeSamples, NDArray[Any]]:
        """The nodes of these that have a label in the graph, and their labels."""
        codes = _codes(self.graph)[self.nodes]
        return self[codes >= 0], self.graph.classes[codes[codes >= 0]]

    def __len__(self) -> int:
        return len(self.nodes)

    def __getitem__(self, key: Any) -> NodeSamples:
        """The selected nodes of the same graph; ``key`` is a number, a slice, numbers or a mask."""
        if isinstance(key, tuple):  # scikit-learn asks for X[key, ...]
            key = key[0]
        out = object.__new__(NodeSamples)
        out.graph, out.nodes = self.graph, np.atleast_1d(self.nodes[np.asarray(key) if isinstance(key, list) else key])
        return out

    def __repr__(self) -> str:
        return f"NodeSamples({len(self.nodes):,} of {len(self.graph.ids):,} nodes)"


class RobustNodeClassifier(ClassifierMixin, BaseEstimator):
    """Classifies the nodes of a graph whose edges cannot be trusted.

    ``fit`` holds out a part of the labelled nodes, chooses settings for the graph on it, trains several models, and
    calibrates the mean of their probabilities on it.

    Args:
        model: a name of :data:`~asgnn.training.RECIPES`, or ``package.module:Class``.
        settings: settings of the model or of its training that are not tuned.
        budget: the settings that are tried: their number, "portfolio" for a short list, or ``None`` for only the
            recipe with ``settings``. On a large graph without a GPU, "portfolio" is shortened, and at most three models
            are trained; ``notes_`` says so.
        models: the number of models whose mean probability is used; they differ in their seeds.
        validation: the share of the labelled nodes that is held out, the same of every class; or the held-out nodes,
            as ids or as a mask over all nodes. A class with one labelled node is used for training.
        scale: whether columns of features that are very large or very small are scaled; see
            :class:`~asgnn.graphs.scaling.Scaling`. ``notes_`` names them.
        device: "auto" is a GPU if there is one.
        progress: "auto" shows a bar in a terminal or notebook; ``True``, ``False``, or a function that is called with
            the number of finished steps and of all steps.
        verbose: print what was understood and chosen, and how an MLP and a GCN do on the same validation nodes.
        random_state: a whole number, a ``numpy.random.RandomState``, or ``None``.

    Attributes:
        classes_: (C,) the labels, sorted.
        graph_: the :class:`~asgnn.graphs.named.NamedGraph` it was fitted on; not part of a saved model.
        ensemble_: the calibrated :class:`~asgnn.models.Ensemble`.
        temperature_: that of the ensemble; above 1 the models were too confident.
        tuned_: the :class:`~asgnn.training.Tuned` with all settings that were tried; not part of a saved model.
        settings_: the chosen settings, what differs from the recipe.
        advice_: sentences on what the validation scores say about the graph.
        notes_: sentences on what was understood and done.
        comparison_: the validation scores of the chosen settings ("model"), of an MLP and of a GCN.
        validation_score_: the accuracy of the ensemble on the validation nodes. Optimistic, because settings and epochs
            were chosen on the same nodes.
        validation_ids_: the ids of the validation nodes; not part of a saved model.
        scaling_: how the features are scaled before the models see them.
        n_features_in_, feature_names_in_: the features; names only where the graph has them.
        nodes_in_: the ids of the nodes if there were no features, because it then knows these nodes only; else None.
    """

    def __init__(
        self,
        model: str = "asgnn",
        *,
        settings: Mapping[str, Any] | None = None,
        budget: Budget | None = "portfolio",
        models: int = 5,
        validation: Any = 0.2,
        scale: bool = True,
        device: str = "auto",
        progress: Literal["auto"] | bool | Progress = "auto",
        verbose: bool = False,
        random_state: Any = 0,
    ) -> None:
        self.model = model
        self.settings = settings
        self.budget = budget
        self.models = models
        self.validation = validation
        self.scale = scale
        self.device = device
        self.progress = progress
        self.verbose = verbose
        self.random_state = random_state

    def fit(self, graph: Any, labels: Any = None) -> RobustNodeClassifier:
        """Choose settings, train and calibrate.

        Args:
            graph: a PyG ``Data``, a SciPy matrix, a NetworkX graph, a pandas edge list, paths of files, a
                :class:`~asgnn.graphs.named.NamedGraph`, or :class:`NodeSamples`; see
                :func:`~asgnn.graphs.named.named_graph`.
            labels: an array in the order of the nodes, a dict or Series from ids to labels, or the name of a column;
                missing ones are ``None``, NaN, "" or −1. By default those of the graph, without those of the nodes in
                the ``test_mask`` of a ``Data``.
        """
        check_count("models", self.models, 1, 1000)
        seed = _seed(self.random_state)
        recipe(self.model).with_settings(self.settings or {})  # raises before the graph is read
        device = find_device(self.device)
        named, codes = _labelled(graph, labels)
        present, y = np.unique(codes[codes >= 0], return_inverse=True)
        if len(present) < 2:
            found = f"all are {named.classes[present[0]]}" if len(present) else "there are none"
            raise GraphError(f"Classification needs labels of at least two classes; {found}.")
        classes = named.classes[present]
        codes = codes.copy()
        codes[codes >= 0] = y
        split, notes = _split(named, codes, classes, self.validation, seed)
        scaling = Scaling.of(named.data.x) if self.scale else Scaling.none(named.data.num_features)
        notes += _scaling_notes(named, scaling)
        data = _model_data(named, scaling)
        data.y = torch.from_numpy(codes)
        large = device.type == "cpu" and (data.num_edges + data.num_nodes) * len(classes) > LARGE
        plan = _plan(self, large)
        tuned, fits = self._train(plan, data, split, seed, device)
        self.ensemble_ = _calibrated(fits, codes, split.val)
        self.temperature_ = self.ensemble_.temperature
        self.classes_ = classes
        own_data = named.data.__copy__()
        own_data.y = data.y
        self.graph_ = replace(named, data=own_data, classes=classes)
        self.scaling_ = scaling
        self._data = data  # what was prepared from it is kept
        self.tuned_ = replace(tuned, _train=list, _fits=fits)  # list: a Tuned without the search, which holds locks
        self.settings_ = dict(tuned.settings)
        self.advice_ = tuned.advice
        if self.ensemble_.confidence is not None:
            notes.append(
                "The confidences say nothing about single nodes: on the validation nodes the models are often sure and "
                f"wrong. All nodes get about the same confidence, the share of validation nodes that are right, "
                f"{self.ensemble_.confidence:.0%}."
            )
        self.notes_ = (*named.notes, *notes, *plan.notes)
        self.comparison_ = {
            "model": tuned.val_score,
            **{name: one.val_score for name, one in tuned.comparison.items()},
        }
        self.n_features_in_ = int(data.x.size(1))
        self.feature_names_in_ = np.array(named.feature_names, dtype=object)  # empty if there are no features
        self.nodes_in_ = None if named.has_features else named.ids
        self.validation_ids_ = named.ids[split.val.numpy()]
        hits = self._probabilities(self.graph_).argmax(1)[split.val.numpy()] == codes[split.val.numpy()]
        self.validation_score_ = float(hits.mean())
        self._tell()
        return self

    def predict(self, graph: Any = None) -> NDArray[Any]:
        """The class of every node of the training graph, of another graph, or of the nodes of :class:`NodeSamples`."""
        best = self.predict_proba(graph).argmax(1)
        found: NDArray[Any] = self.classes_[best]
        return found

    def predict_proba(self, graph: Any = None) -> NDArray[np.float64]:
        """(N, C) the calibrated probabilities, columns in the order of ``classes_``.

        Args:
            graph: the training graph by default; another graph must have the same features.
        """
        named, nodes = self._target(graph)
        return self._probabilities(named)[nodes]

    def spread(self, graph: Any = None) -> NDArray[np.float64]:
        """(N,) the standard deviation over the models of the probability of the predicted class.

        A second sign of doubt beside the confidence: 0 if all models agree.
        """
        named, nodes = self._target(graph)
        logits = self._logits(named) / self.ensemble_.temperature
        p = logits.softmax(-1)
        best = p.mean(0).argmax(-1)
        return _numpy(p[:, torch.arange(len(best)), best].std(0, correction=0))[nodes]

    def score(self, graph: Any = None, labels: Any = None, sample_weight: Any = None) -> float:
        """The accuracy on the nodes that have a label; on the training graph these include the training nodes."""
        named, nodes = self._target(graph)
        if graph is None and labels is None:
            given, codes = self.graph_, _codes(self.graph_)
        else:
            given, codes = _labelled(self.graph_ if graph is None else graph, labels, hide=False)
        truth = codes[nodes]
        known = truth >= 0
        if not known.any():
            raise GraphError("None of the nodes has a label, so the accuracy is undefined.")
        right = self.classes_[self._probabilities(named)[nodes].argmax(1)][known] == given.classes[truth[known]]
        weight = None if sample_weight is None else np.asarray(sample_weight)[known]
        return float(np.average(right, weights=weight))

    def audit(self, graph: Any = None, **options: Any) -> Audit:
        """Every edge of the graph with its suspicion, and missing edges; see :func:`asgnn.audit.audit_graph`.

        Args:
            graph: the training graph by default.
            options: ``missing``, ``score`` and further arguments of :func:`~asgnn.audit.audit_graph`.
        """
        named, _ = self._target(graph)
        from asgnn.audit import audit_graph

        data = self._seen(named).__copy__()
        data.y = torch.from_numpy(_codes(named))
        return audit_graph(_with_classes(replace(named, data=data), self.classes_), self.ensemble_, **options)

    def clean(
        self,
        graph: Any = None,
        *,
        number: int | None = None,
        share: float | None = None,
        threshold: float | None = None,
        precision: float | None = None,
        **options: Any,
    ) -> Any:
        """The graph without its most suspicious edges, of the kind that is given; see :func:`asgnn.audit.clean`.

        Args:
            graph: the training graph by default; this one, and the graph of files, is returned as a
                :class:`~asgnn.graphs.named.NamedGraph`.
            number, share, threshold, precision: one of them says how many edges to remove.
            options: arguments of :meth:`audit`.
        """
        named, _ = self._target(graph)
        seen = self.audit(named, **{"missing": 0, **options})
        from asgnn.audit import clean

        converted = graph is None or isinstance(graph, NodeSamples | str | PathLike | tuple | list)
        given = named if converted else graph
        return clean(given, seen, number=number, share=share, threshold=threshold, precision=precision)

    def save(self, path: str | Path) -> None:
        """Write the classifier to a folder, without the graph; see :mod:`asgnn.saved`."""
        from asgnn.saved import save_classifier

        self._check_fitted()
        save_classifier(self, path)

    @classmethod
    def load(cls, path: str | Path, *, device: str = "auto") -> RobustNodeClassifier:
        """Read a classifier that was saved; its predictions are the same bits on the same machine."""
        from asgnn.saved import load_classifier

        return load_classifier(path, device=device)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "ensemble_")

    def _check_fitted(self) -> None:
        if not hasattr(self, "ensemble_"):
            raise NotFittedError("This RobustNodeClassifier is not fitted yet; call fit with a graph and labels first.")

    def _target(self, graph: Any) -> tuple[NamedGraph, Any]:
        """The graph to predict and the nodes of it that are asked for."""
        self._check_fitted()
        if graph is None:
            if not hasattr(self, "graph_"):
                raise NotFittedError("A saved model does not contain the graph it was fitted on; give a graph.")
            return self.graph_, slice(None)
        nodes = graph.nodes if isinstance(graph, NodeSamples) else slice(None)
        named = graph.graph if isinstance(graph, NodeSamples) else named_graph(graph)
        if self.nodes_in_ is not None:
            return _with_nodes(named, self.nodes_in_), nodes
        return _with_features(named, tuple(self.feature_names_in_), self.n_features_in_), nodes

    def _seen(self, named: NamedGraph) -> Data:
        """The graph as the models see it."""
        return self._data if named is getattr(self, "graph_", None) else _model_data(named, self.scaling_)

    @torch.no_grad()
    def _logits(self, named: NamedGraph) -> Tensor:
        """(M, N, C) the scores of each model, in double precision on the CPU."""
        features, adj = prepare(self._seen(named), next(self.ensemble_.parameters()).device)
        logits = self.ensemble_.member_logits(features, adj).double().cpu()
        if not bool(logits.isfinite().all()):
            raise GraphError("The model's scores are not finite; the features of this graph are far too large.")
        return logits

    def _probabilities(self, named: NamedGraph) -> NDArray[np.float64]:
        return _numpy(self.ensemble_.combined(self._logits(named)).exp())

    def _train(self, plan: _Plan, data: Data, split: Split, seed: int, device: torch.device) -> tuple[Tuned, list[Fit]]:
        """Choose settings, and train the models that the choice has not trained."""
        extra = max(0, plan.models - plan.trials)
        epochs = plan.training.get("epochs", recipe(self.model).config.epochs)
        report = _Report(self.progress, epochs * extra)
        try:
            tuned = tune(
                self.model,
                data,
                split,
                budget=plan.budget,
                trials=plan.trials,
                seed=seed,
                fixed=plan.fixed,
                device=device,
                progress=report.search,
                **plan.training,
            )
            fits = tuned.fits[: plan.models]
            if extra:
                more = [tuned.recipe.trial(data, split, seed + plan.trials + i) for i in range(extra)]
                fits = fits + fit_many(more, data, device=device, batch_size=plan.batch_size, progress=report.models)
        finally:
            report.close()
        return tuned, fits

    def _tell(self) -> None:
        if self.verbose:
            print("\n".join([*self.notes_, str(self.tuned_)]))
            print(f"the mean of {len(self.tuned_.fits)} models: {100 * self.validation_score_:.2f} on the same nodes")
        mlp = self.comparison_.get("mlp")
        if mlp is not None and self.comparison_["model"] <= mlp:
            warnings.warn(
                f"The edges do not help: on the validation nodes {BASELINES['mlp']} reaches {mlp:.1%}, the chosen "
                f"model {self.comparison_['model']:.1%}.",
                StructureWarning,
                stacklevel=3,
            )


def _numpy(value: Tensor) -> NDArray[np.float64]:
    found: NDArray[np.float64] = value.numpy()
    return found


def _model_data(named: NamedGraph, scaling: Scaling) -> Data:
    """Scaled features, edges and weights in single precision, which the models have."""
    out = Data(x=scaling(named.data.x).float(), edge_index=named.data.edge_index)
    if named.data.get("edge_weight") is not None:
        out.edge_weight = named.data.edge_weight.float()
    return out


def _codes(named: NamedGraph) -> NDArray[np.int64]:
    """(N,) the position of each label in the graph's classes, −1 if it is missing."""
    if named.data.get("y") is None:
        return np.full(len(named.ids), -1, dtype=np.int64)
    found: NDArray[np.int64] = labels_of(named.data).cpu().numpy()
    return found


def _with_classes(named: NamedGraph, classes: NDArray[Any]) -> NamedGraph:
    """The graph with the classes of the fit; a label that the fit did not know is missing."""
    codes = _codes(named)
    place = {one: at for at, one in enumerate(classes.tolist())}
    new = np.array([place.get(one, -1) for one in named.classes.tolist()] + [-1], dtype=np.int64)  # −1 stays −1
    data = named.data.__copy__()
    data.y = torch.from_numpy(new[codes])
    return replace(named, data=data, classes=classes)


def _labelled(graph: Any, labels: Any, *, hide: bool = True) -> tuple[NamedGraph, NDArray[np.int64]]:
    """The graph and the codes of the labels that may be used, −1 elsewhere; ``hide`` those of test nodes."""
    if isinstance(graph, NodeSamples):
        named = graph.graph
        if labels is not None:
            given = np.asarray(labels, dtype=object)
            if given.shape != graph.shape:
                raise GraphError(f"There are {len(graph)} nodes, but the labels have shape {given.shape}.")
            everywhere = np.full(len(named.ids), None, dtype=object)
            everywhere[graph.nodes] = given
            named = named_graph(named, everywhere)
        codes = np.full(len(named.ids), -1, dtype=np.int64)
        codes[graph.nodes] = _codes(named)[graph.nodes]
        return named, codes
    named = named_graph(graph, labels)
    codes = _codes(named)
    hidden = named.data.get("test_mask") if labels is None and hide else None
    if hidden is not None:
        if hidden.shape != (len(codes),):
            raise GraphError("The masks of the graph hold several splits; give the labels that may be used as labels.")
        hidden = hidden.cpu().numpy() & (codes >= 0)
        note = f"The labels of the {hidden.sum():,} nodes in test_mask are not used."
        named, codes = replace(named, notes=(*named.notes, note)), np.where(hidden, -1, codes)
    return named, codes


def _split(
    named: NamedGraph, codes: NDArray[np.int64], classes: NDArray[Any], validation: Any, seed: int
) -> tuple[Split, list[str]]:
    """The training and validation nodes, and what there is to say about them."""
    labelled = np.flatnonzero(codes >= 0)
    if isinstance(validation, Real) and not isinstance(validation, bool):
        check_number("validation", validation, 0, 1, "()")
        held, notes = _hold_out(codes, classes, float(validation), seed)
    else:
        held, notes = _given(named, codes, validation), []
    train = np.setdiff1d(labelled, held)
    if len(train) == 0:
        raise GraphError("Every labelled node is a validation node; none is left to train on.")
    untrained = np.setdiff1d(codes[held], codes[train])
    if len(untrained):
        notes.append(f"No training node has the class {_names(classes[untrained])}; it cannot be learned.")
    none = torch.empty(0, dtype=torch.int64)
    return Split(torch.from_numpy(train), torch.from_numpy(held), none), notes


def _hold_out(
    codes: NDArray[np.int64], classes: NDArray[Any], share: float, seed: int
) -> tuple[NDArray[np.int64], list[str]]:
    """A share of the nodes of every class: at least one, and at most all but one, which is for training."""
    rng = np.random.default_rng(seed)
    held, single = [], []
    for code in range(len(classes)):
        nodes = np.flatnonzero(codes == code)
        count = min(len(nodes) - 1, max(1, round(share * len(nodes))))
        if count == 0:
            single.append(code)
        held.append(rng.permutation(nodes)[:count])
    found = np.sort(np.concatenate(held))
    if len(found) == 0:
        raise GraphError("Every class has a single labelled node, so none is left for validation; label more nodes.")
    notes = []
    if single:
        notes.append(
            f"The class {_names(classes[single])} has one labelled node: it is used for training and not validated."
            if len(single) == 1
            else f"The classes {_names(classes[single])} have one labelled node each: they are used for training and "
            "not validated."
        )
    return found, notes


def _given(named: NamedGraph, codes: NDArray[np.int64], validation: Any) -> NDArray[np.int64]:
    """The validation nodes that the user names, as far as they have a label."""
    asked = np.asarray(validation)
    if asked.ndim != 1:
        raise ConfigError("validation must be a share between 0 and 1, ids of nodes, or a mask over the nodes.")
    if asked.dtype == bool:
        if asked.shape != codes.shape:
            raise GraphError(f"The validation mask has {len(asked)} entries, but there are {len(codes)} nodes.")
        nodes = np.flatnonzero(asked)
    else:
        nodes = np.unique(named.numbers(validation))
    nodes = nodes[codes[nodes] >= 0].astype(np.int64)
    if len(nodes) == 0:
        raise GraphError("None of the validation nodes has a label.")
    return nodes


@dataclass(frozen=True)
class _Plan:
    """What is tried and trained.

    Attributes:
        budget, trials, fixed, training: arguments of tune.
        models: the number of models.
        batch_size: of the models that the choice has not trained.
        notes: what there is to say about it.
    """

    budget: Budget
    trials: int
    fixed: dict[str, Any]
    training: dict[str, Any]
    models: int
    batch_size: int | None = None
    notes: tuple[str, ...] = ()


def _plan(clf: RobustNodeClassifier, large: bool) -> _Plan:
    given = dict(clf.settings or {})
    training = {name: given.pop(name) for name in TRAINING if name in given}
    if clf.budget is None:
        return _Plan(1, clf.models, given, training, clf.models)
    if not large:
        return _Plan(clf.budget, TRIALS, given, training, clf.models)
    if clf.budget != "portfolio":
        return _Plan(clf.budget, TRIALS, given, training, clf.models, batch_size=1)
    listed, models = _short_list(clf.model, given), min(clf.models, LARGE_MODELS)
    training = {"epochs": LARGE_EPOCHS, "patience": LARGE_PATIENCE, **training}
    note = (
        f"The graph is large for a CPU: {len(listed)} settings without a witness were tried with one seed and at most "
        f"{training['epochs']} epochs, and {models} models trained; a number as budget, or a GPU, does more."
    )
    # on a CPU, a batch gains nothing on a large graph
    return _Plan(listed, 1, given, training, models, batch_size=1, notes=(note,))


def _short_list(model: str, fixed: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The first settings of the portfolio that need no neighbours of the features and no models trained before."""
    asked = candidates(model, "portfolio", fixed=fixed)
    light = [one for one in asked if one.get("witness_floor", 1.0) == 1 and not one.get("prior_neighbors")]
    return (light or asked)[:LARGE_SETTINGS]


def _scaling_notes(named: NamedGraph, scaling: Scaling) -> list[str]:
    columns = scaling.columns.tolist()
    if not columns:
        return []
    names = np.array([named.feature_names[at] for at in columns], dtype=object)
    which = f"The feature {_names(names)} was" if len(names) == 1 else f"{len(names)} features ({_names(names)}) were"
    return [f"{which} scaled, because of very large or very small values."]


def _names(classes: NDArray[Any]) -> str:
    shown = ", ".join(repr(one) for one in classes[:5].tolist())
    return shown if len(classes) <= 5 else f"{shown} and {len(classes) - 5} more"


def _calibrated(fits: list[Fit], codes: NDArray[np.int64], val: Tensor) -> Ensemble:
    """The mean probability of the models, with the temperature that suits the validation nodes best.

    If that is so high that nothing is left of the confidences, all nodes get the same one: the share of validation
    nodes that are right, by Laplace's rule.
    """
    kept = [fit for fit in fits if not fit.diverged]
    logits, y = torch.stack([fit.logits[0][val] for fit in kept]), torch.from_numpy(codes)[val]
    temperature, _ = temperature_of(logits, y, TEMPERATURES, succession(len(val)))
    confidence = None
    if temperature > VAGUE:
        right = (logits / temperature).softmax(-1).mean(0).argmax(-1) == y
        confidence = (int(right.sum()) + 1) / (len(val) + 2)
    return Ensemble([fit.model for fit in kept], temperature, confidence).requires_grad_(False)


def _with_nodes(named: NamedGraph, ids: NDArray[Any]) -> NamedGraph:
    """The graph, if it has the very nodes of the fit: without features the models know nodes by their numbers."""
    if named.has_features:
        raise GraphError("The classifier was fitted without features, and this graph has features.")
    if len(named.ids) != len(ids) or not bool((named.ids == ids).all()):
        raise GraphError(
            f"The classifier was fitted on {len(ids)} nodes without features, so it knows these nodes only, in this "
            f"order; this graph has {len(named.ids)} nodes{'' if len(named.ids) != len(ids) else ' with other ids'}."
        )
    return named


def _with_features(named: NamedGraph, names: tuple[str, ...], number: int) -> NamedGraph:
    """The graph with its features in the order of the fit. Columns without names are taken in the order they have."""
    given = named.data.num_features
    no_names = _numbered(given) == named.feature_names
    no_names |= _numbered(len(names)) == names and not set(names) <= set(named.feature_names)
    if names and named.has_features and no_names:
        if given != number:
            raise GraphError(f"The graph has {given} features, but the classifier was fitted with {number}.")
        return named
    return named.with_features(names)


def _numbered(count: int) -> tuple[str, ...]:
    """The names of features that were given without names."""
    return tuple(f"x{i}" for i in range(count))


def _seed(random_state: Any) -> int:
    if isinstance(random_state, Integral) and not isinstance(random_state, bool):
        check_count("random_state", random_state, 0, 2**32 - 1)
        return int(random_state)
    try:
        return int(check_random_state(random_state).randint(2**31 - 1))
    except ValueError:
        raise ConfigError(
            f"random_state must be a whole number, a RandomState or None; it is {random_state!r}."
        ) from None


def find_device(name: str) -> torch.device:
    """The device of a name; "auto" is a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise ConfigError(f'device must be "auto" or a name such as "cpu" or "cuda:0"; it is {name!r}.') from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f'device={name!r} needs a GPU that torch can see, and there is none; use device="cpu".')
    return device


class _Report:
    """Progress over the search and the further models as one count of epochs."""

    def __init__(self, progress: Literal["auto"] | bool | Progress, extra: int) -> None:
        self.extra, self.searched = extra, 0
        self.bar: Any = None
        self.call: Progress | None = progress if callable(progress) else None
        if self.call is None and (_interactive() if progress == "auto" else progress):
            from tqdm.auto import tqdm  # type: ignore[import-untyped]

            self.bar = tqdm(desc="choosing settings", unit="epoch", leave=False)

    def search(self, done: int, total: int) -> None:
        self.searched = total
        self._show(done, total + self.extra)

    def models(self, done: int, total: int) -> None:
        if self.bar is not None:
            self.bar.set_description("training models", refresh=False)
        self._show(self.searched + self.extra * done // total, self.searched + self.extra)

    def _show(self, done: int, total: int) -> None:
        if self.call is not None:
            self.call(done, total)
        elif self.bar is not None:
            self.bar.total = total
            self.bar.update(done - self.bar.n)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()


def _interactive() -> bool:
    return sys.stderr.isatty() or "ipykernel" in sys.modules
