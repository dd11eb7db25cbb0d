"""A saved classifier is the same in another process; a folder is complete or not there; damage gets a sentence."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch_geometric.data import Data

from asgnn import saved
from asgnn.errors import AsgnnError, ConfigError, DataCorrupt
from asgnn.estimator import RobustNodeClassifier
from asgnn.graphs import Gaussian, planted_graph
from asgnn.models import Ensemble
from asgnn.training import RECIPES
from tests.processes import HANG

DATA = planted_graph(60, 3, 6, 0.1, features=Gaussian(8, 2.0), seed=3)
NEW = planted_graph(50, 3, 6, 0.3, features=Gaussian(8, 2.0), seed=3)


def fit(model: str = "gcn", labels: Any = None, **settings: Any) -> RobustNodeClassifier:
    clf = RobustNodeClassifier(model, budget=None, models=2, settings={"epochs": 3, **settings})
    return clf.fit(DATA, labels)


@pytest.fixture(autouse=True)
def no_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three epochs are not enough to beat an MLP; what is said about it is tested elsewhere."""
    monkeypatch.setattr(RobustNodeClassifier, "_tell", lambda self: None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "model"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RobustNodeClassifier, "_tell", lambda self: None)
        fit().save(path)
    return path


@pytest.fixture
def mine(folder: Path, tmp_path: Path) -> Path:
    """A copy that may be damaged."""
    return Path(shutil.copytree(folder, tmp_path / "model"))


# --- the same bits --------------------------------------------------------------------------------------------------

READ = """
import sys, numpy as np, torch
from asgnn.estimator import RobustNodeClassifier
from torch_geometric.data import Data
torch.set_num_threads(1)
given = np.load(sys.argv[2])
clf = RobustNodeClassifier.load(sys.argv[1], device="cpu")
data = Data(x=torch.from_numpy(given["x"]), edge_index=torch.from_numpy(given["edge_index"]))
np.savez(sys.argv[3], p=clf.predict_proba(data), spread=clf.spread(data), predicted=clf.predict(data).astype(str))
"""


def test_another_process_predicts_the_same_bits(tmp_path: Path) -> None:
    """With a witness and a prior, which are part of the model."""
    names = np.array(["a", "b", "c"])[DATA.y.numpy()]
    clf = fit(
        "asgnn", names, witness_floor=0.1, witness_models=1, witness_voice=0.3, witness_bound=1.0, prior_neighbors=3
    )
    assert clf.ensemble_.members[0].testimony.model is not None
    clf.save(tmp_path / "model")
    np.savez(tmp_path / "graph.npz", x=NEW.x.numpy(), edge_index=NEW.edge_index.numpy())
    arguments = [str(tmp_path / name) for name in ("model", "graph.npz", "out.npz")]
    subprocess.run([sys.executable, "-W", "ignore", "-c", READ, *arguments], check=True, timeout=HANG)
    with np.load(tmp_path / "out.npz") as found:
        assert (found["p"] == clf.predict_proba(NEW)).all()
        assert (found["spread"] == clf.spread(NEW)).all()
        assert (found["predicted"] == clf.predict(NEW)).all()


ODD: dict[str, dict[str, Any]] = {
    "asgnn": {"penalty": "mcp", "hops": 1, "learn": ["lam"]},
    "asgnn-paper": {"support": "dense"},
    "gcn": {"prior_threshold": 0.1},
    "elastic": {"lambda1": 2.0, "lambda2": 1.0},
    "gcn-svd": {"rank": 5},
}


@pytest.mark.parametrize("model", RECIPES)
def test_every_recipe_comes_back(model: str, tmp_path: Path) -> None:
    clf = fit(model, **ODD.get(model, {}))
    clf.save(tmp_path / "model")
    again = RobustNodeClassifier.load(tmp_path / "model")
    assert (again.predict_proba(DATA) == clf.predict_proba()).all()
    assert again.get_params() == clf.get_params()
    for name in (
        "temperature_",
        "settings_",
        "advice_",
        "notes_",
        "comparison_",
        "validation_score_",
        "n_features_in_",
    ):
        assert getattr(again, name) == getattr(clf, name), name
    again.save(tmp_path / "again")
    for file in ("model.safetensors", "model.json"):
        assert (tmp_path / "again" / file).read_bytes() == (tmp_path / "model" / file).read_bytes()


def test_models_with_different_settings_in_one_batch_come_back(tmp_path: Path) -> None:
    """Settings of each trial are buffers that a state_dict does not have."""
    clf, other = fit("elastic", lambda1=1.0), fit("elastic", lambda1=5.0)
    clf.ensemble_ = Ensemble([one.tuned_.fits[0].model for one in (clf, other)], 1.5)
    assert len(clf.ensemble_.members) == 1
    clf.save(tmp_path / "model")
    assert (RobustNodeClassifier.load(tmp_path / "model").predict_proba(DATA) == clf.predict_proba()).all()


def test_one_confidence_for_all_nodes_comes_back(tmp_path: Path) -> None:
    clf = fit("gcn")
    clf.ensemble_ = Ensemble([one.model for one in clf.tuned_.fits], 9.0, 0.5)
    assert np.ptp(clf.predict_proba().max(1)) < 0.2
    clf.save(tmp_path / "model")
    again = RobustNodeClassifier.load(tmp_path / "model")
    assert again.ensemble_.confidence == 0.5
    assert (again.predict_proba(DATA) == clf.predict_proba()).all()


def test_the_scales_of_features_come_back(tmp_path: Path) -> None:
    large = Data(x=1e4 * DATA.x + 5e4, edge_index=DATA.edge_index, y=DATA.y)
    clf = RobustNodeClassifier("gcn", budget=None, models=2, settings={"epochs": 3}).fit(large)
    clf.save(tmp_path / "model")
    again = RobustNodeClassifier.load(tmp_path / "model")
    assert len(again.scaling_.columns) == 8
    assert (again.predict_proba(large) == clf.predict_proba()).all()


@pytest.mark.parametrize(
    "values",
    [["a", "ü", "c d"], [10, 20, 30], [True, False, True], np.array([3, 5, 7], dtype=np.int16)],
    ids=["text", "whole", "truth", "small"],
)
def test_classes_keep_their_type(values: Any, tmp_path: Path) -> None:
    clf = fit(labels=np.asarray(values)[DATA.y.numpy()])
    clf.save(tmp_path / "model")
    again = RobustNodeClassifier.load(tmp_path / "model")
    assert again.classes_.dtype == clf.classes_.dtype
    assert again.classes_.tolist() == clf.classes_.tolist()
    assert type(again.predict(DATA)[0]) is type(clf.predict()[0])


def test_the_folder_says_what_is_in_it(folder: Path) -> None:
    assert sorted(one.name for one in folder.iterdir()) == ["model.json", "model.safetensors"]
    found = json.loads((folder / "model.json").read_text())
    weights = (folder / "model.safetensors").read_bytes()
    assert found["weights"]["sha256"] == hashlib.sha256(weights).hexdigest()
    assert found["made_with"]["torch"] == torch.__version__
    assert found["features"]["names"] == [f"x{i}" for i in range(8)]
    assert found["classes"]["values"] == [0, 1, 2]
    assert found["ensemble"]["groups"][0]["class"] == "GCN"


def test_a_loaded_classifier_has_no_graph(folder: Path) -> None:
    with pytest.raises(AsgnnError, match="give a graph"):
        RobustNodeClassifier.load(folder).predict()


# --- damage ---------------------------------------------------------------------------------------------------------


def sentence(path: Path, match: str, kind: type[AsgnnError] = DataCorrupt) -> None:
    with pytest.raises(kind, match=match) as seen:
        RobustNodeClassifier.load(path)
    assert "\n" not in str(seen.value)


@pytest.mark.parametrize("file", ["model.json", "model.safetensors"])
@pytest.mark.parametrize("share", [0, 0.01, 0.5, 0.99])
def test_a_truncated_file(mine: Path, file: str, share: float) -> None:
    content = (mine / file).read_bytes()
    (mine / file).write_bytes(content[: int(share * len(content))])
    sentence(mine, f"{file} is damaged")


@pytest.mark.parametrize("file", ["model.json", "model.safetensors"])
def test_a_changed_character(mine: Path, file: str) -> None:
    content = bytearray((mine / file).read_bytes())
    at = content.rindex(b"0.") if file == "model.json" else len(content) // 2
    content[at] = ord("7") if content[at] != ord("7") else ord("8")
    (mine / file).write_bytes(content)
    sentence(mine, f"{file} is damaged")


def edited(path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """A description with a valid checksum but other contents."""
    found = json.loads((path / "model.json").read_text())
    change(found)
    found["sha256"] = saved._digest(found)
    (path / "model.json").write_text(json.dumps(found, indent=1))
    return path


GROUP = ("ensemble", "groups", 0)


def put(*path: Any, value: Any) -> Callable[[dict[str, Any]], object]:
    def change(found: Any) -> None:
        for key in path[:-1]:
            found = found[key]
        found[path[-1]] = value

    return change


EDITS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "newer": (put("version", value=2), "install a newer asgnn"),
    "no version": (put("version", value=None), "is damaged"),
    "foreign class": (put(*GROUP, "class", value="os.system"), "there is no model 'os.system'"),
    "not a recipe": (put(*GROUP, "class", value="Ensemble"), "there is no model 'Ensemble'"),
    "no class": (put(*GROUP, value={}), "cannot be built"),
    "unknown setting": (put(*GROUP, "settings", "colour", value=1), "no setting colour"),
    "other width": (put(*GROUP, "settings", "hidden_channels", value=3), "shape"),
    "huge": (put(*GROUP, "settings", "hidden_channels", value=10**9), "shape"),
    "infinite": (put("ensemble", "temperature", value=10**400), "incomplete or wrong"),
    "other number": (put(*GROUP, "models", value=3), "not those of 3 models"),
    "other tensors": (put(*GROUP, "tensors", value="nothing."), "names of the model's parameters"),
    "temperature": (put("ensemble", "temperature", value=-1), "temperature"),
    "confidence": (put("ensemble", "confidence", value=2), "confidence"),
    "no temperature": (put("ensemble", "temperature", value="hot"), "cannot be built"),
    "type of classes": (put("classes", "type", value="V8"), "not known"),
    "classes": (put("classes", "values", value={"a": 1}), "cannot be built"),
    "no classifier": (put("classifier", value={"modle": 1}), "cannot be built"),
    "no features": (put("features", value=None), "cannot be built"),
    "no weights": (put("weights", value=None), "not a file of weights"),
    "no ensemble": (put("ensemble", value=[]), "cannot be built"),
    "too few classes": (put("classes", "values", value=[1]), "out_channels=3, not 1"),
    "too few features": (put("features", value={"number": 7, "names": None}), "not that of 7 features"),
    "too many names": (put("features", "names", value=["a"] * 9), "9 features have names"),
}


@pytest.mark.parametrize("case", EDITS)
def test_a_description_that_cannot_be_used(mine: Path, case: str) -> None:
    change, message = EDITS[case]
    sentence(edited(mine, change), message)


def test_weights_of_another_model(mine: Path, tmp_path: Path) -> None:
    fit("mlp").save(tmp_path / "other")
    shutil.copy(tmp_path / "other" / "model.safetensors", mine)
    sentence(mine, "belongs to another model")


def test_a_file_that_is_not_of_weights(mine: Path) -> None:
    (mine / "model.safetensors").write_bytes(b"hello")
    edited(mine, put("weights", "sha256", value=hashlib.sha256(b"hello").hexdigest()))
    sentence(mine, "not a file of weights")


FOREIGN = {
    "not an object": b"[1, 2]",
    "another program": b'{"format": "keras"}',
    "not text": b"\xff\xfe\x00",
    "deep": b"[" * 10**5,
}


@pytest.mark.parametrize("case", FOREIGN)
def test_a_foreign_description(mine: Path, case: str) -> None:
    (mine / "model.json").write_bytes(FOREIGN[case])
    sentence(mine, "not the description of a saved model|is damaged: it is not JSON")


@pytest.mark.parametrize("missing", ["model.json", "model.safetensors"])
def test_a_missing_file(mine: Path, missing: str) -> None:
    (mine / missing).unlink()
    sentence(mine, f"has no {missing}", ConfigError)


def test_no_folder(tmp_path: Path) -> None:
    sentence(tmp_path / "nowhere", "does not exist", ConfigError)


# --- writing --------------------------------------------------------------------------------------------------------


def contents(path: Path) -> dict[str, bytes]:
    return {str(one.relative_to(path)): one.read_bytes() for one in path.rglob("*") if one.is_file()}


def test_an_existing_model_is_replaced(mine: Path) -> None:
    other = fit("mlp")
    other.save(mine)
    assert (RobustNodeClassifier.load(mine).predict_proba(DATA) == other.predict_proba()).all()
    assert [one.name for one in mine.parent.iterdir()] == ["model"]


def test_a_damaged_model_can_be_replaced(mine: Path) -> None:
    (mine / "model.safetensors").write_bytes(b"")
    fit("mlp").save(mine)
    assert RobustNodeClassifier.load(mine).model == "mlp"


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("when", ["weights", "description"])
def test_an_interrupted_save_leaves_the_old_model(
    mine: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, when: str
) -> None:
    before = contents(mine.parent)

    def fail(*_: Any, **__: Any) -> Any:
        raise error

    clf = fit("mlp")
    if when == "weights":
        monkeypatch.setattr(safetensors.torch, "save", fail)
    else:
        monkeypatch.setattr(saved.os, "fsync", fail)
    expected = ConfigError if isinstance(error, OSError) else KeyboardInterrupt
    for target in (mine, mine.parent / "fresh"):
        with pytest.raises(expected):
            clf.save(target)
    assert contents(mine.parent) == before
    assert not (mine.parent / "fresh").exists()


def test_the_old_model_returns_if_the_new_one_cannot_be_moved(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, rename = contents(mine.parent), Path.rename

    def fail_once(self: Path, target: Path) -> Path:
        if self.suffix == ".part":
            raise OSError(5, "Input/output error")
        return rename(self, target)

    clf = fit("mlp")
    monkeypatch.setattr(Path, "rename", fail_once)
    with pytest.raises(ConfigError, match="Input/output error"):
        clf.save(mine)
    assert contents(mine.parent) == before


def test_other_folders_are_not_replaced(mine: Path, tmp_path: Path) -> None:
    clf = fit("mlp")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"miaow")
    (mine / "notes.txt").write_text("my notes")
    (tmp_path / "file").write_text("text")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "model.json").write_text('{"format": "keras"}')
    before = contents(tmp_path)
    for name, message in (
        ("photos", "not replaced"),
        ("model", "not replaced"),
        ("file", "not a folder"),
        ("other", "not"),
    ):
        with pytest.raises(ConfigError, match=message):
            clf.save(tmp_path / name)
    assert contents(tmp_path) == before
    (tmp_path / "empty").mkdir()
    clf.save(tmp_path / "empty")
    clf.save(tmp_path / "new" / "place")
    assert (
        RobustNodeClassifier.load(tmp_path / "empty").model == RobustNodeClassifier.load(tmp_path / "new/place").model
    )


def test_modules_of_other_packages_cannot_be_saved(tmp_path: Path) -> None:
    clf = fit("torch_geometric.nn:GCN", hidden_channels=4, num_layers=2)
    with pytest.raises(ConfigError, match="another package"):
        clf.save(tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_what_is_not_plain_is_saved_as_its_default(tmp_path: Path) -> None:
    clf = fit().set_params(progress=print, random_state=np.random.RandomState(0), validation=np.arange(5))
    clf.save(tmp_path / "model")
    again = RobustNodeClassifier.load(tmp_path / "model").get_params()
    assert (again["progress"], again["random_state"], again["validation"]) == ("auto", 0, 0.2)
