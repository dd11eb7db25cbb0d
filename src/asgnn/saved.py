"""Fitted classifiers in a folder: weights as safetensors, everything else as JSON; nothing is ever unpickled.

A folder has two files:

- ``model.safetensors``: the parameters and buffers of the models and of their witnesses, stacked over the models;
- ``model.json``: settings, classes, names of the features, temperature, scores, versions, and the SHA-256 of the
  weights and of the description itself.

Only classes of :data:`~asgnn.training.RECIPES` can be saved and loaded: a file never decides what is imported.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import math
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from asgnn.errors import AsgnnError, ConfigError, DataCorrupt
from asgnn.graphs.scaling import Scaling
from asgnn.graphs.sources import check_place
from asgnn.models import Ensemble, NodeClassifier
from asgnn.models.witness import Testimony
from asgnn.settings import arguments_for, settings_of
from asgnn.training.recipes import RECIPES
from asgnn.version import __version__

if TYPE_CHECKING:
    from asgnn.estimator import RobustNodeClassifier

WEIGHTS, DESCRIPTION = "model.safetensors", "model.json"
FORMAT, VERSION = "asgnn model", 1
MAX_DESCRIPTION = 2**28  # bytes; the names of a million features take a tenth of this
KINDS: dict[str, type[NodeClassifier]] = {
    one.kind.__name__: one.kind for one in RECIPES.values() if issubclass(one.kind, NodeClassifier)
}
PACKAGES = ("torch", "torch_geometric", "numpy", "scipy", "scikit-learn", "safetensors")
# The types that classes may have; text is fixed-width or objects, as in NumPy.
NUMBERS = ("bool", *(f"{u}int{bits}" for u in ("", "u") for bits in (8, 16, 32, 64)), "float16", "float32", "float64")
Json = dict[str, Any]


class _Unusable(Exception):
    """Why a description cannot be used, as the end of a sentence."""


def save_classifier(clf: RobustNodeClassifier, path: str | Path) -> None:
    """Write a fitted classifier to the folder ``path``.

    The folder is complete or not there. One that holds a saved model is replaced when the new one is complete; any
    other folder with contents is refused.
    """
    target = Path(path)
    check_replaceable(target)
    tensors: dict[str, Tensor] = {"scaling.mean": clf.scaling_.mean, "scaling.size": clf.scaling_.size}
    description: Json = {
        "format": FORMAT,
        "version": VERSION,
        "made_with": {"asgnn": __version__, **{name: _installed(name) for name in PACKAGES}},
        "classifier": _parameters_of(clf),
        "classes": _names_to_json(clf.classes_, "Classes"),
        "nodes": None if clf.nodes_in_ is None else _names_to_json(clf.nodes_in_, "Ids"),
        "features": {"number": clf.n_features_in_, "names": _names(clf)},
        "settings": _plain(clf.settings_),
        "validation": {"score": clf.validation_score_, "comparison": clf.comparison_},
        "advice": list(clf.advice_),
        "notes": list(clf.notes_),
        "ensemble": _ensemble_to_json(clf.ensemble_, tensors, "models."),
    }
    half = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        half.mkdir(parents=True)
        _write(half, description, tensors)
        _replace(target, half)
    except OSError as cause:
        raise ConfigError(f"The model cannot be written to {target}: {cause.strerror or cause}.") from cause
    finally:
        shutil.rmtree(half, ignore_errors=True)


def load_classifier(path: str | Path, *, device: str = "auto") -> RobustNodeClassifier:
    """Read a classifier from the folder ``path``.

    Args:
        path: what :func:`save_classifier` wrote.
        device: "auto" is a GPU if there is one.
    """
    from asgnn.estimator import RobustNodeClassifier, find_device

    folder, place = Path(path), find_device(device)
    description = _read_description(folder)
    tensors = _read_weights(folder, description)
    try:
        clf = RobustNodeClassifier(**description["classifier"])
        clf.device = device
        clf.classes_ = _names_from_json(description["classes"])
        clf.nodes_in_ = None if description["nodes"] is None else _names_from_json(description["nodes"])
        clf.n_features_in_ = int(description["features"]["number"])
        if description["features"]["names"] is not None:
            clf.feature_names_in_ = np.array(description["features"]["names"], dtype=object)
        clf.scaling_ = Scaling(tensors["scaling.mean"], tensors["scaling.size"])
        clf.settings_ = dict(description["settings"])
        clf.validation_score_ = float(description["validation"]["score"])
        clf.comparison_ = dict(description["validation"]["comparison"])
        clf.advice_ = tuple(description["advice"])
        clf.notes_ = tuple(description["notes"])
        clf.ensemble_ = _ensemble_from_json(description["ensemble"], tensors).to(place).requires_grad_(False)
        clf.temperature_ = clf.ensemble_.temperature
        _check_sizes(clf)
    except (AsgnnError, _Unusable) as cause:
        raise DataCorrupt(f"The model in {folder} cannot be built: {_line(cause)}.") from cause
    except (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError) as cause:
        raise DataCorrupt(f"The model in {folder} cannot be built: its description is incomplete or wrong.") from cause
    return clf


# --- files ----------------------------------------------------------------------------------------------------------


def check_replaceable(target: Path) -> None:
    """Raise if a model cannot be written to a folder because something else is there."""
    if not target.name:
        raise ConfigError(f"{target} is not the name of a folder for a model.")
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise ConfigError(f"{target} exists and is not a folder; choose another name for the model.")
    check_place(target)
    if not target.is_dir():
        return
    names = {one.name for one in target.iterdir()}
    if names and (names - {WEIGHTS, DESCRIPTION} or not _is_ours(target)):
        raise ConfigError(f"{target} is not the folder of a saved model and is not replaced; choose another name.")


def _is_ours(folder: Path) -> bool:
    """Whether the folder has the description of a saved model, readable or damaged in other parts."""
    try:
        with (folder / DESCRIPTION).open("rb") as file:
            return f'"format": "{FORMAT}"' in file.read(200).decode(errors="replace")
    except OSError:
        return False


def _write(folder: Path, description: Json, tensors: Mapping[str, Tensor]) -> None:
    from safetensors.torch import save

    weights = save({name: value.detach().cpu().contiguous() for name, value in tensors.items()})
    description["weights"] = {"file": WEIGHTS, "bytes": len(weights), "sha256": hashlib.sha256(weights).hexdigest()}
    description["sha256"] = _digest(description)
    text = json.dumps(description, indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    for name, content in ((WEIGHTS, weights), (DESCRIPTION, text.encode())):
        with (folder / name).open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())


def _replace(target: Path, half: Path) -> None:
    """Move the complete folder to its place; an old one is moved aside first and put back if that fails."""
    if not target.is_dir():
        half.rename(target)
        return
    old = half.with_suffix(".old")
    target.rename(old)
    try:
        half.rename(target)
    except OSError:
        old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _read(path: Path, most: int | None = None) -> bytes:
    try:
        if most is not None and path.stat().st_size > most:
            raise DataCorrupt(f"{path} has {path.stat().st_size:,} bytes, more than a description of a model can have.")
        return path.read_bytes()
    except FileNotFoundError:
        what = "does not exist" if not path.parent.is_dir() else f"is not a saved model: it has no {path.name}"
        raise ConfigError(f"{path.parent} {what}.") from None
    except OSError as cause:
        raise ConfigError(f"{path} cannot be read: {cause.strerror or cause}.") from cause


def _read_description(folder: Path) -> Json:
    path = folder / DESCRIPTION
    content = _read(path, MAX_DESCRIPTION)
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        raise DataCorrupt(f"{path} is damaged: it is not JSON.") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise DataCorrupt(f"{path} is not the description of a saved model.")
    version = found.get("version")
    if isinstance(version, int) and version > VERSION:
        made = found.get("made_with")
        by = f" by asgnn {made['asgnn']}" if isinstance(made, dict) and "asgnn" in made else ""
        raise DataCorrupt(
            f"{folder} was written{by} in version {version} of the format, and asgnn {__version__} reads up to "
            f"version {VERSION}; install a newer asgnn."
        )
    if version != VERSION or found.get("sha256") != _digest(found):
        raise DataCorrupt(f"{path} is damaged: its content does not have the SHA-256 that it states.")
    return found


def _read_weights(folder: Path, description: Json) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    path = folder / WEIGHTS
    content = _read(path)
    try:
        if hashlib.sha256(content).hexdigest() != description["weights"]["sha256"]:
            raise DataCorrupt(f"{path} is damaged, or belongs to another model: its SHA-256 is not the stated one.")
        return load(content)
    except (SafetensorError, KeyError, TypeError, ValueError):
        raise DataCorrupt(f"{path} is not a file of weights.") from None


def _digest(description: Json) -> str:
    """The SHA-256 of everything but itself, independent of white space and order."""
    rest = {name: value for name, value in description.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _line(cause: Exception) -> str:
    return " ".join(str(cause).split()).rstrip(".") or type(cause).__name__


# --- the classifier -------------------------------------------------------------------------------------------------


def _parameters_of(clf: RobustNodeClassifier) -> Json:
    """The constructor's settings; the default of one that is not plain, as a RandomState or a function."""
    defaults = type(clf)().get_params()
    found = {}
    for name, value in clf.get_params().items():
        try:
            found[name] = json.loads(json.dumps(_plain(value), allow_nan=False))
        except (TypeError, ValueError):
            found[name] = defaults[name]
    return found


def _names(clf: RobustNodeClassifier) -> list[str] | None:
    names = getattr(clf, "feature_names_in_", None)
    return None if names is None else [str(name) for name in names]


def _names_to_json(names: NDArray[Any], what: str) -> Json:
    """The values with their type, which a loaded classifier has again."""
    kind = {"U": "str", "O": "object"}.get(names.dtype.kind, names.dtype.name)
    plain = all(isinstance(one, str) for one in names.tolist()) if kind in ("str", "object") else kind in NUMBERS
    if not plain:
        raise ConfigError(f"{what} of type {names.dtype} cannot be saved; use text or numbers.")
    return {"type": kind, "values": names.tolist()}


def _names_from_json(found: Json) -> NDArray[Any]:
    kind = found["type"]
    if kind not in ("str", "object", *NUMBERS):
        raise _Unusable(f"names of type {kind!r} are not known")
    return np.array(found["values"], dtype=kind)


def _check_sizes(clf: RobustNodeClassifier) -> None:
    """Raise unless all models have the classifier's numbers of features and classes."""
    names = getattr(clf, "feature_names_in_", None)
    if names is not None and len(names) not in (0, clf.n_features_in_):
        raise _Unusable(f"{len(names)} features have names, but there are {clf.n_features_in_}")
    if not clf.scaling_.mean.shape == clf.scaling_.size.shape == (clf.n_features_in_,):
        raise _Unusable(f"the scaling is not that of {clf.n_features_in_} features")
    expected = {"in_channels": clf.n_features_in_, "out_channels": len(clf.classes_)}
    for model in clf.ensemble_.members:
        for name, value in expected.items():
            if cast(NodeClassifier, model).settings[name] != value:
                raise _Unusable(f"it has {name}={cast(NodeClassifier, model).settings[name]}, not {value}")


# --- models ---------------------------------------------------------------------------------------------------------


def _ensemble_to_json(ensemble: Ensemble, tensors: dict[str, Tensor], prefix: str) -> Json:
    """The description of an ensemble; its tensors are added to ``tensors``, with names that begin with ``prefix``."""
    groups = [
        _group_to_json(cast(NodeClassifier, member), tensors, f"{prefix}{i}.")
        for i, member in enumerate(ensemble.members)
    ]
    return {"temperature": ensemble.temperature, "confidence": ensemble.confidence, "groups": groups}


def _group_to_json(model: NodeClassifier, tensors: dict[str, Tensor], prefix: str) -> Json:
    """Models that run as one: their class, settings and number; per-trial settings are among the tensors."""
    name = type(model).__name__
    if KINDS.get(name) is not type(model) or model.stacked is None:
        raise ConfigError("A module of another package cannot be saved; only the models of this library can.")
    settings = {key: _plain(value) for key, value in model.settings.items()}
    try:
        json.dumps(settings, allow_nan=False)
    except (TypeError, ValueError):
        raise ConfigError(f"The settings of this {name} are not plain values, so it cannot be saved.") from None
    for key, value in _state(model):
        tensors[f"{prefix}weights.{key}"] = value
    found: Json = {"class": name, "settings": settings, "models": model.stacked, "tensors": f"{prefix}weights."}
    if model.witness is not None and model.witness.active and model.testimony is not None:
        judge = model.testimony.model
        found["witness"] = (
            None if judge is None else _ensemble_to_json(cast(Ensemble, judge), tensors, f"{prefix}witness.")
        )
    return found


def _ensemble_from_json(found: Json, tensors: Mapping[str, Tensor]) -> Ensemble:
    temperature = float(found["temperature"])
    if not math.isfinite(temperature):
        raise _Unusable("the temperature is not finite")
    models = [model for group in found["groups"] for model in _group_from_json(group, tensors)]
    return Ensemble(models, temperature, found["confidence"])


def _group_from_json(found: Json, tensors: Mapping[str, Tensor]) -> list[NodeClassifier]:
    if found["class"] not in KINDS:
        raise _Unusable(f"there is no model {found['class']!r}")
    kind, prefix = KINDS[found["class"]], str(found["tensors"])
    own = {name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)}
    settings = {name: value for name, value in found["settings"].items() if name in settings_of(kind)}
    if settings.keys() != found["settings"].keys():
        raise _Unusable(f"{found['class']} has no setting {', '.join(found['settings'].keys() - settings.keys())}")
    count = int(found["models"])
    if count < 1 or any(value.dim() == 0 or value.size(0) != count for value in own.values()):
        raise _Unusable(f"the weights are not those of {count} models")
    testimony = None
    if "witness" in found:
        witness = found["witness"]
        judge = None if witness is None else _ensemble_from_json(witness, tensors).requires_grad_(False)
        testimony = Testimony(judge)
    arguments = arguments_for(kind, settings)
    with torch.device("meta"):  # without memory, so that a wrong size does not take all of it
        _check_state(kind(**arguments), own)
    models = []
    for i in range(count):
        model = kind(**arguments)
        _set_state(model, {name: value[i] for name, value in own.items()})
        model.testimony = testimony
        models.append(model.eval())
    return models


def _state(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """All parameters and buffers, also buffers that a ``state_dict`` leaves out: they hold settings of each trial."""
    yield from model.named_parameters()
    yield from model.named_buffers()


def _check_state(model: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Raise unless the stacked values have the names and shapes of the model's parameters and buffers."""
    if {name for name, _ in _state(model)} != values.keys():
        raise _Unusable("the weights do not have the names of the model's parameters")
    for name, old in _state(model):
        shape = values[name].shape[1:]
        if shape != old.shape and old.numel():  # an empty parameter has the size of the graph, as in Pro-GNN
            raise _Unusable(f"{name} has the shape {tuple(shape)}, not {tuple(old.shape)}")


def _set_state(model: nn.Module, values: Mapping[str, Tensor]) -> None:
    for path, old in list(_state(model)):
        at, _, name = path.rpartition(".")
        owner, value = model.get_submodule(at), values[path].clone()
        setattr(owner, name, nn.Parameter(value, old.requires_grad) if isinstance(old, nn.Parameter) else value)


def _plain(value: Any) -> Any:
    """Tuples and sets as lists, NumPy's numbers as Python's."""
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, set | frozenset):
        return sorted(_plain(one) for one in value)
    return value.item() if isinstance(value, np.generic) else value
