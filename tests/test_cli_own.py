"""The commands on own files: from CSV to a cleaned CSV; bad input gets one sentence and writes nothing."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from asgnn.__main__ import main
from asgnn.estimator import RobustNodeClassifier
from asgnn.experiments import executors
from asgnn.graphs import DATASETS, named_graph, planted_graph, read_graph
from tests.processes import HANG, PAUSE, command
from tests.test_cli import Done

Run = Callable[..., Done]
QUICK = ["--model", "gcn", "--budget", "none", "--models", "2", "--set", "epochs=40"]
GRAPH = ["edges.csv", "--features", "nodes.csv"]
NAMES = np.array(["ant", "bee", "cat"])


def write_graph(folder: Path) -> None:
    """A planted graph of 150 nodes: texts as ids, a third of the labels missing, an extra column and a self-loop."""
    data = planted_graph(150, 3, 6, 0.15, seed=11)
    ids = np.array([f"user {i}" for i in range(150)])
    rng = np.random.default_rng(0)
    row, col = data.edge_index.numpy()[:, data.edge_index[0] < data.edge_index[1]]
    edges = pd.DataFrame({"source": ids[row], "target": ids[col], "since": rng.integers(1990, 2020, len(row))})
    edges = pd.concat([edges, pd.DataFrame({"source": ["user 3"], "target": ["user 3"], "since": [2000]})])
    edges.to_csv(folder / "edges.csv", index=False)
    nodes = pd.DataFrame(data.x.numpy().round(3), columns=[f"f{i}" for i in range(30)])
    nodes.insert(0, "id", ids)
    nodes["color"] = np.where(rng.random(150) < 0.5, "red", "blue")
    nodes["class"] = np.where(rng.random(150) < 2 / 3, NAMES[data.y.numpy()].astype(object), None)
    nodes.to_csv(folder / "nodes.csv", index=False)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of a graph and a model."""
    folder = tmp_path_factory.mktemp("own")
    write_graph(folder)
    done = subprocess.run(
        [sys.executable, "-m", "asgnn", "fit", *GRAPH, "--label", "class", "-o", "model", *QUICK],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "accuracy on held-out nodes" in done.stdout
    return folder


@pytest.fixture
def asgnn(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, fitted: Path) -> Run:
    """Runs the program in this process, in a folder with a copy of the files and the model."""
    shutil.copytree(fitted, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    executors.cached_graph.cache_clear()

    def call(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["asgnn", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        said = capsys.readouterr()
        return Done(int(left.value.code or 0), said.out, said.err)

    return call


def test_look_says_what_was_understood(asgnn: Run) -> None:
    done = asgnn("look", *GRAPH, "--label", "class")
    assert done.returncode == 0, done.stderr
    table = pd.read_csv("nodes.csv")
    known = table["class"].notna().sum()
    for words in ("150", f"{known} of 150", "1 self-loop dropped", "'since'", "'color' of texts became 2 columns"):
        assert words in done.stdout, words
    found = json.loads(asgnn("look", *GRAPH, "--label", "class", "--json").stdout)
    edges = pd.read_csv("edges.csv").query("source != target")
    assert (found["nodes"], found["edges"], found["labelled"]) == (150, len(edges), known)
    assert found["classes"] == table["class"].value_counts().to_dict()
    kind = table.set_index("id")["class"]
    both = edges[edges["source"].map(kind).notna() & edges["target"].map(kind).notna()]
    same = (both["source"].map(kind) == both["target"].map(kind)).mean()
    assert found["same_class"] == pytest.approx(same)
    assert found["isolated"] == 150 - len({*edges["source"], *edges["target"]})
    assert len(found["features"]) == 32


def test_predictions_are_those_of_the_classifier(asgnn: Run) -> None:
    done = asgnn("predict", "model", *GRAPH, "-o", "p.csv")
    assert done.returncode == 0, done.stderr
    found = pd.read_csv("p.csv")
    clf = RobustNodeClassifier.load("model")
    graph = read_graph("edges.csv", "nodes.csv", label="class")
    truth = clf.predict_proba(graph)
    assert found["id"].tolist() == graph.ids.tolist()
    assert found["class"].tolist() == clf.predict(graph).tolist()
    np.testing.assert_allclose(found[[f"probability_{name}" for name in NAMES]], truth, rtol=1e-12)
    np.testing.assert_allclose(found["confidence"], truth.max(1))
    np.testing.assert_allclose(found["spread"], clf.spread(graph))
    known = graph.data.y.numpy() >= 0
    # better than chance by far, so that ids and rows belong together
    assert (found["class"].to_numpy() == graph.labels())[known].mean() > 0.7
    for name in ("p.tsv", "p.parquet", "p.json"):
        assert asgnn("predict", "model", *GRAPH, "-o", name).returncode == 0
    again = {
        ".tsv": pd.read_csv("p.tsv", sep="\t"),
        ".parquet": pd.read_parquet("p.parquet"),
        ".json": pd.read_json("p.json", precise_float=True),
    }
    for kind, table in again.items():
        assert table["class"].tolist() == found["class"].tolist(), kind
        np.testing.assert_allclose(table["confidence"], found["confidence"], rtol=1e-9)


def test_a_new_graph_with_other_columns_is_predicted(asgnn: Run) -> None:
    """Columns in another order, one more column, a new colour, labels in it or not: the same features."""
    assert asgnn("predict", "model", *GRAPH, "-o", "p.csv").returncode == 0
    table = pd.read_csv("nodes.csv").drop(columns="class")
    table = table[["color", *reversed([f"f{i}" for i in range(30)]), "id"]].assign(extra="text " + table["id"])
    table.to_csv("other.csv", index=False)
    done = asgnn("predict", "model", "edges.csv", "--features", "other.csv", "-o", "q.csv")
    assert done.returncode == 0, done.stderr
    assert Path("p.csv").read_bytes() == Path("q.csv").read_bytes()
    table.assign(color="green").to_csv("other.csv", index=False)
    assert asgnn("predict", "model", "edges.csv", "--features", "other.csv", "-o", "q.csv").returncode == 0
    assert pd.read_csv("q.csv")["id"].tolist() == pd.read_csv("p.csv")["id"].tolist()
    table.drop(columns="f7").to_csv("other.csv", index=False)
    done = asgnn("predict", "model", "edges.csv", "--features", "other.csv", "-o", "r.csv")
    assert (done.returncode, done.stderr) == (3, "asgnn: The graph lacks 1 of the model's features: 'f7'.\n")
    assert not Path("r.csv").exists()


def test_audit_ranks_every_edge(asgnn: Run) -> None:
    done = asgnn("audit", "model", *GRAPH, "-o", "a.html", "-o", "a.csv", "-o", "a.json", "--missing", "7")
    assert done.returncode == 0, done.stderr
    assert "Written: a.html, a.csv, a-missing.csv, a.json" in done.stdout
    found = pd.read_csv("a.csv")
    edges = pd.read_csv("edges.csv").query("source != target")
    assert {frozenset(pair) for pair in zip(found["source"], found["target"], strict=True)} == {
        frozenset(pair) for pair in zip(edges["source"], edges["target"], strict=True)
    }
    assert found["rank"].tolist() == list(range(1, len(edges) + 1))
    assert found["suspicion"].is_monotonic_decreasing
    assert len(pd.read_csv("a-missing.csv")) == 7
    whole = json.loads(Path("a.json").read_text())
    assert [row["target"] for row in whole["edges"]] == found["target"].tolist()
    assert len(whole["missing"]) == 7
    page = Path("a.html").read_text()
    assert page.lstrip().lower().startswith("<!doctype html>")
    shown = json.loads(asgnn("audit", "model", *GRAPH, "-o", "b.csv", "--json").stdout)
    assert shown["edges"] == len(edges)
    assert shown["most_suspicious"][0]["source"] == found["source"][0]


@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet", "graphml", "npz", "txt"])
def test_clean_removes_the_most_suspicious_edges(kind: str, asgnn: Run) -> None:
    assert asgnn("audit", "model", *GRAPH, "-o", "a.csv").returncode == 0
    done = asgnn("clean", "model", *GRAPH, "--number", "9", "-o", f"c.{kind}", "--removed", "gone.csv")
    assert done.returncode == 0, done.stderr
    assert "Removed 9 of" in done.stdout
    ranked = pd.read_csv("a.csv")
    gone = pd.read_csv("gone.csv")
    assert gone[["source", "target", "rank"]].equals(ranked[["source", "target", "rank"]].head(9))
    left = {frozenset(pair) for pair in zip(ranked["source"][9:], ranked["target"][9:], strict=True)}
    again = read_graph(f"c.{kind}").edge_list()
    assert list(again) == ["source", "target"]
    assert {frozenset(pair) for pair in zip(again["source"], again["target"], strict=True)} == left
    if kind == "csv":  # the same rows and columns as in the file, without these
        before, after = pd.read_csv("edges.csv"), pd.read_csv("c.csv")
        removed = {frozenset(pair) for pair in zip(gone["source"], gone["target"], strict=True)}
        stay = [frozenset(pair) not in removed for pair in zip(before["source"], before["target"], strict=True)]
        assert after.equals(before[stay].reset_index(drop=True))
        assert len(after) == len(before) - 9


def test_a_list_without_a_header_keeps_its_columns(asgnn: Run) -> None:
    table = pd.read_csv("edges.csv").replace(" ", "_", regex=True)
    table.to_csv("edges.txt", index=False, header=False, sep=" ")
    nodes = pd.read_csv("nodes.csv")
    nodes.assign(id=nodes["id"].str.replace(" ", "_")).to_csv("nodes.csv", index=False)
    done = asgnn("clean", "model", "edges.txt", *GRAPH[1:], "--number", "9", "-o", "c.txt")
    assert done.returncode == 0, done.stderr
    left = pd.read_csv("c.txt", header=None, sep="\t")
    assert left.shape == (len(table) - 9, 3)
    assert set(left.itertuples(index=False, name=None)) < set(table.itertuples(index=False, name=None))


def test_cleaning_by_share(asgnn: Run) -> None:
    count = len(pd.read_csv("edges.csv")) - 1
    found = json.loads(asgnn("clean", "model", *GRAPH, "--share", "0.1", "-o", "c.csv", "--json").stdout)
    assert found == {
        "edges": count,
        "removed": round(0.1 * count),
        "kept": count - round(0.1 * count),
        "output": "c.csv",
    }


def test_the_same_data_in_other_files_gets_the_same_predictions(asgnn: Run) -> None:
    asgnn("predict", "model", *GRAPH, "-o", "p.csv")
    truth = Path("p.csv").read_bytes()
    edges, nodes = pd.read_csv("edges.csv"), pd.read_csv("nodes.csv")
    edges.to_parquet("e.parquet")
    nodes.to_parquet("n.parquet")
    edges.to_csv("e.tsv", sep="\t", index=False)
    nodes.to_csv("n.tsv", sep=";", index=False, encoding="utf-16")
    for one in (["e.parquet", "--features", "n.parquet"], ["e.tsv", "--features", "n.tsv"]):
        done = asgnn("predict", "model", *one, "-o", "q.csv")
        assert done.returncode == 0, done.stderr
        assert Path("q.csv").read_bytes() == truth


def test_a_graph_without_features(asgnn: Run) -> None:
    pd.read_csv("nodes.csv")[["id", "class"]].to_csv("labels.csv", index=False)
    files = ["edges.csv", "--features", "labels.csv"]
    done = asgnn("fit", *files, "--label", "class", "-o", "plain", *QUICK)
    assert done.returncode == 0, done.stderr
    assert "There are no features" in done.stdout
    for label in ([], ["--label", "class"]):
        done = asgnn("predict", "plain", *files, *label, "-o", "p.csv")
        assert done.returncode == 0, done.stderr
        assert len(pd.read_csv("p.csv")) == 150
    assert asgnn("audit", "plain", *files, "-o", "a.csv").returncode == 0


def test_fit_prints_json(asgnn: Run) -> None:
    done = asgnn("fit", *GRAPH, "--label", "class", "-o", "again", *QUICK, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["classes"] == NAMES.tolist()
    assert 0.5 < found["validation_score"] <= 1
    weights = "model.safetensors"
    assert (Path("again") / weights).read_bytes() == (Path("model") / weights).read_bytes()  # the same seed
    assert found["settings"]["epochs"] == 40 if "epochs" in found["settings"] else True


def test_train_takes_files_and_stores_results_by_content(asgnn: Run) -> None:
    words = ["train", "--dataset", "edges.csv", "--features", "nodes.csv", "--label", "class", "--model", "gcn"]
    words += ["--trials", "2", "--set", "epochs=5", "--store", "r.sqlite", "--json"]
    known = set(DATASETS)
    try:
        first = asgnn(*words)
        assert first.returncode == 0, first.stderr
        found = json.loads(first.stdout)
        assert found["file"] == "edges.csv"
        nodes = pd.read_csv("nodes.csv")
        nodes.to_csv("nodes.csv", sep=";", index=False)  # another file, the same graph
        again = json.loads(asgnn(*words).stdout)
        assert again == found, "the result of the store, with the seconds of the first run"
        nodes.assign(f0=nodes["f0"] + 1).to_csv("nodes.csv", index=False)
        other = json.loads(asgnn(*words).stdout)
        assert other["dataset"] != found["dataset"]
        assert json.loads(asgnn("store", "show", "r.sqlite", "--json").stdout)["trainings"] == 4
    finally:
        for name in set(DATASETS) - known:
            del DATASETS[name]


# arguments → exit code, words of the sentence
FAILURES: dict[str, tuple[list[str], int, str]] = {
    "no file": (["look", "none.csv"], 3, "There is no file none.csv."),
    "no features": (["look", "edges.csv", "--features", "none.csv"], 3, "There is no file none.csv."),
    "a folder": (["look", "."], 3, "is a folder, not a file"),
    "no such label": (["look", *GRAPH, "--label", "kind"], 3, "nodes.csv has no column 'kind'"),
    "text in a number column": (["look", "edges.csv", "--features", "bad.csv"], 3, "bad.csv, line 3, column 'f0': 'x'"),
    "label of a file without features": (["look", "edges.csv", "--label", "class"], 2, "no file of features"),
    "no label": (["fit", *GRAPH, "-o", "new", *QUICK], 2, "add --label COLUMN"),
    "output that is a file": (["fit", *GRAPH, "--label", "class", "-o", "edges.csv", *QUICK], 2, "is not a folder"),
    "output within a file": (["fit", *GRAPH, "--label", "class", "-o", "edges.csv/new"], 2, "is not a fo"),
    "output that is another folder": (["fit", *GRAPH, "--label", "class", "-o", ".", *QUICK], 2, "folder"),
    "unknown model": (["fit", *GRAPH, "--label", "class", "-o", "new", "--model", "gnc"], 2, "There is no model 'gnc'"),
    "unknown setting": (["fit", *GRAPH, "--label", "class", "-o", "new", "--set", "x=1"], 2, "has no setting 'x'"),
    "no budget": (["fit", *GRAPH, "--label", "class", "-o", "new", "--budget", "0"], 2, "--budget must be portfolio"),
    "no models": (["fit", *GRAPH, "--label", "class", "-o", "new", *QUICK, "--models", "0"], 2, "models must be"),
    "one class": (["fit", "edges.csv", "--features", "one.csv", "--label", "class", "-o", "new"], 3, "label is 'a'"),
    "no saved model": (["predict", "nowhere", *GRAPH, "-o", "new.csv"], 2, "nowhere"),
    "a model that is a file": (["predict", "edges.csv", *GRAPH, "-o", "new.csv"], 2, "edges.csv"),
    "another ending": (["predict", "model", *GRAPH, "-o", "new.xls"], 2, "must end in .csv, .tsv, .parquet or .json"),
    "output in a file": (["predict", "model", *GRAPH, "-o", "edges.csv/new.csv"], 2, "edges.csv is not a folder"),
    "output is a folder": (["predict", "model", *GRAPH, "-o", "folder.csv"], 2, "folder.csv is a folder"),
    "output is a device": (["audit", "model", *GRAPH, "-o", "null.csv"], 2, "is a device or a pipe"),
    "no features for the model": (["predict", "model", "edges.csv", "-o", "new.csv"], 3, "features"),
    "unknown score": (["audit", "model", *GRAPH, "-o", "new.csv", "--score", "luck"], 2, "luck"),
    "no amount": (["clean", "model", *GRAPH, "-o", "new.csv"], 2, "one of --number, --share"),
    "two amounts": (["clean", "model", *GRAPH, "-o", "new.csv", "--number", "1", "--share", "0.1"], 2, "one of --nu"),
    "too large a share": (["clean", "model", *GRAPH, "-o", "new.csv", "--share", "2"], 2, "share"),
    "no edges": (["audit"], 2, "MODEL"),
    "files for a benchmark": (["train", "--dataset", "cora", "--label", "class"], 2, "belong to a file of edges"),
    "train without labels": (["train", "--dataset", "edges.csv"], 2, "add --label COLUMN"),
    "train on no file": (["train", "--dataset", "none.csv"], 3, "There is no file none.csv."),
}  # fmt: skip


@pytest.mark.parametrize(("words", "code", "sentence"), FAILURES.values(), ids=FAILURES.keys())
def test_failures_are_one_sentence_and_write_nothing(words: list[str], code: int, sentence: str, asgnn: Run) -> None:
    nodes = pd.read_csv("nodes.csv", dtype=str)
    nodes.loc[1, "f0"] = "x"
    nodes.to_csv("bad.csv", index=False)
    nodes.assign(**{"f0": "1", "class": "a"}).to_csv("one.csv", index=False)
    Path("folder.csv").mkdir()
    Path("null.csv").symlink_to("/dev/null")
    before = {path: path.read_bytes() for path in Path.cwd().rglob("*") if path.is_file()}
    done = asgnn(*words)
    assert done.returncode == code, done.stderr
    assert sentence in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert "defect" not in done.stderr
    if not done.stderr.startswith(("Usage", " ")):
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert {path: path.read_bytes() for path in Path.cwd().rglob("*") if path.is_file()} == before


FIRST_EPOCH = f"""
{PAUSE}
from contextlib import contextmanager
from asgnn.cli import own

@contextmanager
def bar(what):
    yield lambda done, total: pause("training")

own.bar = bar  # what it yields is called after each epoch
"""


def test_interrupted_fit_writes_nothing(tmp_path: Path) -> None:
    write_graph(tmp_path)
    words = ["fit", *GRAPH, "--label", "class", "-o", "model", *QUICK]
    with command(*words, before=FIRST_EPOCH, cwd=tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "training\n"
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=HANG)
    assert process.returncode == 130, stderr
    assert stderr.splitlines()[-1] == "asgnn: Interrupted; nothing was written."
    assert sorted(path.name for path in tmp_path.iterdir()) == ["edges.csv", "nodes.csv"]


def test_every_form_of_the_graph_gets_the_same_predictions(fitted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(fitted)
    clf = RobustNodeClassifier.load("model")
    graph = read_graph("edges.csv", "nodes.csv", label="class")
    truth = clf.predict_proba(graph)
    edges, nodes = graph.to_pandas()
    nodes = nodes.drop(columns="label")
    forms = {
        "paths": ("edges.csv", "nodes.csv"),
        "Data": graph.data,
        "pandas": named_graph(edges, features=nodes),
        "SciPy": named_graph(graph.to_scipy(), features=nodes.reset_index(drop=True)),
        "NetworkX": named_graph(graph.to_networkx(), "label"),
    }
    for name, form in forms.items():
        assert np.array_equal(clf.predict_proba(form), truth), name
    assert torch.is_tensor(graph.data.x)
