"""Records of the store as rows of text, numbers and bytes, and back; whatever cannot be read is a ValueError."""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from asgnn.errors import AsgnnError
from asgnn.experiments.values import Case, Choice, Outcome, Series, Training, key_of
from asgnn.graphs import Perturbation

Row = Sequence[Any]
DAMAGED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)  # what reading a damaged row raises


def as_text(value: Any) -> str:
    """Canonical JSON: equal values have equal texts."""
    return json.dumps(_without_nan(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def from_text(text: str) -> Any:
    try:
        return _with_nan(json.loads(text))
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None


def _without_nan(value: Any) -> Any:
    """JSON has no NaN and no infinity, which a training that diverged ends with: they are written as words."""
    if isinstance(value, Mapping):
        return {name: _without_nan(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _with_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _with_nan(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_with_nan(one) for one in value]
    return float(value) if isinstance(value, str) and value in ("nan", "inf", "-inf") else value


def checksum(row: Row) -> bytes:
    """Of everything in a row but its key, which is a checksum of the question already."""
    return hashlib.blake2b(repr(tuple(row)).encode(errors="surrogatepass"), digest_size=8).digest()


def shown_key(key: Any) -> str:
    return key.hex() if isinstance(key, bytes) else repr(key)


def require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


# --- trainings: what many rows share is a text of its own -----------------------------------------------------------


def outcome_row(outcome: Outcome) -> list[Any]:
    asked = outcome.training.as_dict()
    seed = asked.pop("seed")
    parts = [(sorted(part), part) for part in (outcome.figures, outcome.scalars)]
    numbers = [part[name] for names, part in parts for name in names]
    names, place = as_text([names for names, _ in parts]), as_text([outcome.machine, outcome.version])
    return [
        bytes.fromhex(outcome.training.key),
        as_text(asked),
        seed,
        names,
        as_text(numbers),
        float(outcome.seconds),
        outcome.batch,
        place,
    ]


def outcome_of(row: Row) -> Outcome:
    key, asked, seed, names, numbers, seconds, batch, place = row
    training = Training.of_dict({**_shared(asked), "seed": seed})
    require(training.key == key.hex(), "its question has another key")
    figure_names, scalar_names = _shared(names)
    found = from_text(numbers)
    require(all(type(one) in (int, float) for one in found), "its figures are not numbers")
    require(len(found) == len(figure_names) + len(scalar_names), "a figure is missing")
    figures = dict(zip(figure_names, found[: len(figure_names)], strict=True))
    scalars = dict(zip(scalar_names, found[len(figure_names) :], strict=True))
    machine, version = _shared(place)
    return Outcome(training, figures, seconds, batch, machine, version, scalars)


@lru_cache(maxsize=1024)
def _shared(text: str) -> Any:
    return from_text(text)


# --- choices and series ---------------------------------------------------------------------------------------------


def choice_row(choice: Choice) -> list[Any]:
    content = choice.as_dict()
    trainings = b"".join(map(bytes.fromhex, content.pop("trainings")))
    return [bytes.fromhex(choice.key), as_text(content), trainings]


def choice_of(row: Row) -> Choice:
    key, content, trainings = row
    keys = [trainings[i : i + 32].hex() for i in range(0, len(trainings), 32)]
    choice = Choice.of_dict({**from_text(content), "trainings": keys})
    require(choice.key == key.hex(), "its question has another key")
    return choice


def series_key(training: str, kind: str) -> str:
    return key_of({"training": training, "kind": kind})


def series_row(series: Series) -> list[Any]:
    key = bytes.fromhex(series_key(series.training, series.kind))
    return [key, bytes.fromhex(series.training), series.kind, as_text(series.content)]


def series_of_row(row: Row) -> Series:
    key, training, kind, content = row
    require(series_key(training.hex(), kind) == key.hex(), "its question has another key")
    return Series(training.hex(), kind, from_text(content))


# --- attacks --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class MadeAttack:
    """The flips of a case with an attack that was made, also as the bytes of their archive."""

    case: Case
    flips: Perturbation
    archive: bytes
    seconds: float
    machine: str

    @classmethod
    def pack(cls, case: Case, flips: Perturbation, seconds: float, machine: str) -> MadeAttack:
        with tempfile.TemporaryDirectory() as folder:  # flips are written and read as files, in one place
            file = Path(folder) / "flips.npz"
            flips.save(file)
            return cls(case, flips, file.read_bytes(), seconds, machine)


def attack_row(attack: MadeAttack) -> list[Any]:
    asked = attack.case.as_dict()
    return [bytes.fromhex(key_of(asked)), as_text(asked), attack.archive, float(attack.seconds), attack.machine]


def attack_of(row: Row) -> MadeAttack:
    key, asked, archive, seconds, machine = row
    case = Case.of_dict(from_text(asked))
    require(key_of(case.as_dict()) == key.hex(), "its question has another key")
    return MadeAttack(case, unpack(archive), archive, seconds, machine)


def unpack(archive: bytes) -> Perturbation:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "flips.npz"
        file.write_bytes(archive)
        try:
            return Perturbation.load(file)
        except (AsgnnError, RecursionError):  # its sentence names a file that is gone by now
            raise ValueError("its flips cannot be read") from None


def same_flips(attack: MadeAttack) -> str:
    """Equal for equal flips: how they were made, and how their archive was packed, may differ between machines."""
    found = attack.flips
    lists = [None if one is None else one.tolist() for one in (found.flips, found.targets, found.feature_flips)]
    return hashlib.sha256(as_text([found.num_nodes, *lists]).encode()).hexdigest()
