"""Fuzzing of the library and the command line with invalid and unusual inputs.

A seed and a number determine a case: its family in :data:`FAMILIES` and its random inputs. The outcome is one of

- answer: a result, which agrees with an oracle if there is a cheap one;
- error: an :class:`~asgnn.errors.AsgnnError`, or a message on standard error and its exit code;
- exception, nan, wrong, hang: a failure.

``tests/test_fuzz.py`` runs a few thousand cases in the test suite, ``scripts/fuzz.py`` any number.
"""

from __future__ import annotations

import contextlib
import signal
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from asgnn.errors import AsgnnError
from tests.fuzz import command, files, library
from tests.fuzz.draw import LIMIT, Draw, Hang, Nan, Wrong

FAILURES = ("exception", "nan", "wrong", "hang")
FAMILIES: dict[str, tuple[float, Callable[[Draw], None]]] = {
    "validate": (10, library.case_validate),
    "from_edges": (10, library.case_from_edges),
    "from_matrix": (6, library.case_from_matrix),
    "read_graph": (8, files.case_read_graph),
    "archive": (4, files.case_archive),
    "named_graph": (8, files.case_named_graph),
    "splits": (8, library.case_splits),
    "flips": (10, library.case_flips),
    "undirected": (2, library.case_undirected),
    "asmp": (10, library.case_asmp),
    "forward": (10, library.case_forward),
    "settings": (10, library.case_settings),
    "fit": (8, library.case_fit),
    "accuracy": (10, library.case_accuracy),
    "clean": (5, library.case_clean),
    "attacks": (10, library.case_attacks),
    "checkpoints": (5, library.case_checkpoints),
    "command": (8, command.case_command),
    "store": (6, command.case_store),
    "poisoned file": (2, command.case_poisoned_file),
    "process": (0.3, command.case_process),
}


@dataclass(frozen=True)
class Result:
    """The outcome of one case."""

    number: int
    family: str
    outcome: str
    detail: str

    @property
    def failed(self) -> bool:
        return self.outcome in FAILURES


def run_case(seed: int, number: int, family: str | None = None) -> Result:
    """Runs one case; the same seed, number and family give the same case."""
    draw = Draw(np.random.default_rng([seed, number]))
    names = list(FAMILIES)
    weights = np.array([weight for weight, _ in FAMILIES.values()], float)
    drawn = names[int(draw.rng.choice(len(names), p=weights / weights.sum()))]
    family = family or drawn
    torch.manual_seed(int(draw.rng.integers(2**31)))
    try:
        with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), _alarm():
            warnings.simplefilter("ignore")
            draw.folder = Path(folder)
            FAMILIES[family][1](draw)
    except AsgnnError as known:
        text = str(known)
        valid = text.endswith(".") and "\n" not in text and len(text) > 10
        return Result(number, family, "error" if valid else "wrong", text if valid else f"not one sentence: {text!r}")
    except Nan as found:
        return Result(number, family, "nan", str(found))
    except Wrong as found:
        return Result(number, family, "wrong", str(found))
    except Hang:
        return Result(number, family, "hang", f"over {LIMIT} s")
    except Exception as found:
        last = traceback.extract_tb(found.__traceback__)[-1]
        place = f"{Path(last.filename).name}:{last.lineno}"
        return Result(number, family, "exception", f"{type(found).__name__}: {found} ({place})")
    return Result(number, family, "answer", "")


@contextlib.contextmanager
def _alarm() -> Iterator[None]:
    """Raises :class:`Hang` after :data:`LIMIT` seconds; only the main thread can have an alarm."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(*_: object) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(LIMIT)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
