"""Fuzzing of the command line: commands, stores and files."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import asgnn
from asgnn import attacks
from asgnn.errors import AsgnnError
from tests.fuzz.draw import LIMIT, Draw, Wrong, must

DEFECT = ("defect of asgnn", "Traceback")
# A short training that needs no downloaded files.
SHORT = ["--dataset", "cora", "--split", "random", "--set", "epochs=1", "--trials", "1"]


def environment() -> dict[str, str]:
    """Returns environment variables that disable the network, the mirror and the user's cache."""
    return {"ASGNN_CACHE": str(Path.cwd() / "cache"), "ASGNN_MIRROR": "", "https_proxy": "http://127.0.0.1:9"}


def command(*words: str) -> tuple[int, str, str]:
    """Runs the command line in this process and returns exit code, standard output and standard error."""
    code: Any = 0
    texts = []
    with (
        tempfile.TemporaryFile("w+", errors="replace") as out,
        tempfile.TemporaryFile("w+", errors="replace") as err,
        mock.patch.object(sys, "argv", ["asgnn", *words]),
        mock.patch.dict(os.environ, environment() | {"COLUMNS": "200"}),
    ):
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                from asgnn.cli import run

                run()
            except SystemExit as leave:
                code = leave.code
        for file in (out, err):
            file.seek(0)
            texts.append(file.read())
    return int(code or 0), texts[0], texts[1]


def check_result(code: int, out: str, err: str) -> None:
    """Checks the result of a command: raises AsgnnError for a proper error message, Wrong for a defect."""
    for words in DEFECT:
        if words in err:
            raise Wrong(" ".join(err.split())[-300:])
    if code == 0:
        must("nan" not in out.lower().split(), "the output contains nan")
        return
    must(code in (1, 2, 3, 130), f"exit code {code}")
    # A command without arguments prints its help.
    must(bool(err.strip()) or "Usage:" in out, f"exit code {code} without a message")
    raise AsgnnError("The command line printed: " + " ".join(err.split()).rstrip(".") + ".")


def odd_word(draw: Draw) -> str:
    return str(
        draw.one(
            "0", "1", "-1", "2", "1e9", "99999999999999999999", "nan", "inf", "-inf", "1.5", "", " ", "a", "None",
            "true", "random", "random:0", "random:-1", "random:x", "random:99999999999999999999", "published", "cora",
            "gcn", "é", "\ud800", "a=b", "=", "lr=", "lr=nan", "lr=1e300", "dropout=2", "epochs=0",
            "hidden_channels=99999999999", "num_layers=-3", "[red]x[/red]", "{}", "[" * 2000, "x" * 5000, "--help",
            "torch.nn:Linear", "os:system", "asgnn.nowhere:X", ":", "torch_geometric.nn:GCN", lambda d: d.path(),
        )
    )  # fmt: skip


OPTIONS = {
    "train": ["--dataset", "--model", "--set", "--poisoned", "--rate", "--split", "--trials", "--store", "--device"],
    "attack": ["--dataset", "--method", "--rate", "--per-target", "--split", "--trial", "--seed", "--set", "--device"],
    "reproduce": ["--dataset", "--models", "--rates", "--trials", "--search", "--splits", "--store", "--executor",
                  "--workers", "--batch", "--device"],
    "demo": ["--trials", "--device"],
    "report": ["--format"],
    "look": ["--features", "--label", "--id", "--source", "--weight", "--ignore", "--separator", "--encoding"],
    "predict": ["--features", "--device", "-o"],
    "datasets": [],
}  # fmt: skip


def case_command(draw: Draw) -> None:
    """Runs a command with up to two unusual options; the other options keep it short."""
    Path("edges.csv").write_text("source,target,weight\na,b,1\nb,c,2\nc,a,1\n")
    name = draw.one(
        "train", "train", "attack", "attack", "reproduce", "report", "demo", "datasets", "store", "look", "predict",
        "nothing",
    )  # fmt: skip
    output = str(draw.folder / "out")
    words: list[str] = {
        "train": [*SHORT, "--model", draw.one("mlp", "sgc")],
        "attack": ["--dataset", "cora", "--method", draw.one("random", "dice"), "--rate", "0.001", "--split", "random",
                   "-o", "out.npz"],
        # A valid run would take long, so one option is always invalid.
        "reproduce": ["small", "--store", "out.sqlite", "--trials", draw.one("0", "-1"), "--device", "cpu"],
        "demo": ["--trials", draw.one("0", "-1", "x"), "-o", output],
        "report": [draw.path(), "-o", output],
        "look": [draw.mostly("edges.csv", draw.path()), *draw.one([], ["--json"])],
        "predict": [draw.path(), "edges.csv", "-o", "out.csv"],
        "datasets": draw.one([], ["--json"]),
        "store": draw.one(["show", draw.path()], ["merge", "out.sqlite", draw.path()], [], ["nothing"]),
        "nothing": [odd_word(draw)],
    }[name]  # fmt: skip
    words = [*words]
    for _ in range(draw.count(0, 2)):
        if OPTIONS.get(name) and name != "demo":
            option = draw.one(*OPTIONS[name])
            if name == "reproduce" and option == "--trials":
                continue
            words += [option, odd_word(draw)]
    check_result(*command(*([] if name == "nothing" else [name]), *words))


@functools.cache
def small_store() -> bytes:
    """Returns the bytes of a store with two short trainings."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.sqlite"
        for model in ("mlp", "sgc"):
            code, _, err = command("train", *SHORT, "--model", model, "--store", str(path))
            if code:
                raise Wrong(f"cannot create a store: {err}")
        return path.read_bytes()


def counts_and_figure(path: Path) -> tuple[Any, Any]:
    """Returns the counts of a store and the accuracy that it has for one training."""
    shown = command("store", "show", str(path), "--json")
    check_result(*shown)
    trained = command("train", *SHORT, "--model", "mlp", "--store", str(path), "--json")
    check_result(*trained)
    counts = {name: json.loads(shown[1])[name] for name in ("trainings", "choices", "series", "attacks")}
    return counts, json.loads(trained[1])["test_mean"]


@functools.cache
def expected_of_store() -> tuple[Any, Any]:
    """Returns :func:`counts_and_figure` of the undamaged store."""
    path = Path("whole.sqlite")
    path.write_bytes(small_store())
    return counts_and_figure(path)


def case_store(draw: Draw) -> None:
    """Reads a damaged store; it must be rejected or give the original figures."""
    path, expected = Path("a.sqlite"), expected_of_store()
    path.write_bytes(small_store())
    if draw.chance(0.6):
        path.write_bytes(draw.damage(small_store()))
    else:
        tamper_with_store(draw, path)
    match draw.count(0, 3):
        case 0:
            check_result(*command("store", "merge", "b.sqlite", str(path)))
        case 1:
            check_result(*command("report", str(path), "-o", "report", "--format", "markdown"))
        case _:
            found = counts_and_figure(path)
            must(found == expected, f"{found} from a damaged store instead of {expected}")


def tamper_with_store(draw: Draw, path: Path) -> None:
    """Changes one column of one table, as a database editor would."""
    with contextlib.closing(sqlite3.connect(path)) as connection, contextlib.suppress(sqlite3.Error):
        tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        table = draw.one(*tables)
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        value = draw.one(
            0,
            -1,
            2**62,
            0.5,
            "x",
            "",
            b"",
            b"\xff\x00",
            None,
            "{}",
            "[]",
            '{"test": 2.0}',
            '{"test": "nan"}',
            "[" * 9999,
        )
        with connection:
            connection.execute(f"UPDATE {table} SET {draw.one(*columns)} = ?", (value,))


def case_poisoned_file(draw: Draw) -> None:
    """Trains on flips from a damaged file."""
    clean = asgnn.load_dataset("cora")
    path = draw.folder / "flips.npz"
    attacks.random_flips(clean, 3, draw.generator()).save(path)
    if draw.chance(0.8):
        path.write_bytes(draw.damage(path.read_bytes()))
    check_result(*command("train", *SHORT, "--model", "sgc", "--poisoned", str(path)))


def case_process(draw: Draw) -> None:
    """Runs a command as a separate process in an unusual environment."""
    words = draw.one(
        ["datasets"], ["--version"], ["store", "show", "nowhere"], ["report", "."], ["train", "--dataset", "x"],
        ["attack", "--dataset", "cora", "--method", "random", "--rate", "inf", "-o", "out.npz"],
    )  # fmt: skip
    odd = draw.one(
        {"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}, {"HOME": "/nonexistent"}, {"COLUMNS": "1"},
        {"TERM": "dumb"}, {"ASGNN_MIRROR": "/nonexistent"}, {"ASGNN_CACHE": ""}, {"PYTHONOPTIMIZE": "2"},
    )  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "asgnn", *words],
        capture_output=True,
        env={**os.environ, **environment(), **odd},
        timeout=LIMIT,
        check=False,
    )
    check_result(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))
