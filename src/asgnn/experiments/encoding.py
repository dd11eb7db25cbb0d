"""Records of the store as rows of text, numbers and bytes, and back; damaged rows raise one of ``DAMAGED``."""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from asgnn.errors import AsgnnError
from asgnn.experiments.values import Case, Choice, Outcome, Series, Training, key_of
from asgnn.graphs import Perturbation

Row = Sequence[Any]
DAMAGED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)  # raised by reading a damaged row
NOT_FINITE = ("nan", "inf", "-inf")  # JSON has no such numbers, but a diverged training has: stored as strings


def as_text(value: Any) -> str:
    """Canonical JSON: equal values have equal texts."""
    plain = _mapped(value, lambda one: str(one) if isinstance(one, float) and not math.isfinite(one) else one)
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)


def from_text(text: str) -> Any:
    try:
        return _mapped(json.loads(text), lambda one: float(one) if one in NOT_FINITE else one)
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, Mapping):
        return {name: _mapped(one, change) for name, one in value.items()}
    return [_mapped(one, change) for one in value] if isinstance(value, list | tuple) else change(value)


def checksum(row: Row) -> bytes:
    """Of a row without its key, which is a checksum itself."""
    return hashlib.blake2b(repr(tuple(row)).encode(errors="surrogatepass"), digest_size=8).digest()


def require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


def require_key(key: bytes, wanted: str) -> None:
    require(key.hex() == wanted, "its key does not match its content")


# --- trainings: texts that many rows share are stored once ------------------------------------------------------------


def outcome_row(outcome: Outcome) -> list[Any]:
    asked = outcome.training.as_dict()
    seed = asked.pop("seed")
    parts = [(sorted(part), part) for part in (outcome.figures, outcome.scalars)]
    numbers = as_text([part[name] for names, part in parts for name in names])
    names, place = as_text([names for names, _ in parts]), as_text([outcome.machine, outcome.version])
    key, seconds = bytes.fromhex(outcome.training.key), float(outcome.seconds)
    return [key, as_text(asked), seed, names, numbers, seconds, outcome.batch, place]


def outcome_of(row: Row) -> Outcome:
    key, asked, seed, names, numbers, seconds, batch, place = row
    training = Training.of_dict({**_shared(asked), "seed": seed})
    require_key(key, training.key)
    figure_names, scalar_names = _shared(names)
    found = from_text(numbers)
    require(all(type(one) in (int, float) for one in found), "its figures are not numbers")
    require(len(found) == len(figure_names) + len(scalar_names), "a figure is missing")
    figures = dict(zip(figure_names, found, strict=False))
    scalars = dict(zip(scalar_names, found[len(figure_names) :], strict=True))
    machine, version = _shared(place)
    return Outcome(training, figures, seconds, batch, machine, version, scalars)


@lru_cache(maxsize=1024)
def _shared(text: str) -> Any:
    return from_text(text)


# --- choices and series -----------------------------------------------------------------------------------------------


def choice_row(choice: Choice) -> list[Any]:
    content = choice.as_dict()
    trainings = b"".join(map(bytes.fromhex, content.pop("trainings")))
    return [bytes.fromhex(choice.key), as_text(content), trainings]


def choice_of(row: Row) -> Choice:
    key, content, trainings = row
    keys = [trainings[i : i + 32].hex() for i in range(0, len(trainings), 32)]
    choice = Choice.of_dict({**from_text(content), "trainings": keys})
    require_key(key, choice.key)
    return choice


def series_row(series: Series) -> list[Any]:
    key = key_of({"training": series.training, "kind": series.kind})
    return [bytes.fromhex(key), bytes.fromhex(series.training), series.kind, as_text(series.content)]


def series_of_row(row: Row) -> Series:
    key, training, kind, content = row
    series = Series(training.hex(), kind, from_text(content))
    require_key(key, series_row(series)[0].hex())
    return series


# --- attacks ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class MadeAttack:
    """The flips of a case whose attack was made; ``archive`` holds them as a NumPy archive."""

    case: Case
    flips: Perturbation
    archive: bytes
    seconds: float
    machine: str

    @classmethod
    def pack(cls, case: Case, flips: Perturbation, seconds: float, machine: str) -> MadeAttack:
        with tempfile.TemporaryDirectory() as folder:  # the code that writes and reads flips works on files
            file = Path(folder) / "flips.npz"
            flips.save(file)
            return cls(case, flips, file.read_bytes(), seconds, machine)

    @classmethod
    def unpack(cls, case: Case, archive: bytes, seconds: float, machine: str) -> MadeAttack:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "flips.npz"
            file.write_bytes(archive)
            try:
                return cls(case, Perturbation.load(file), archive, seconds, machine)
            except (AsgnnError, RecursionError):  # its message names the temporary file
                raise ValueError("its flips cannot be read") from None


def attack_row(attack: MadeAttack) -> list[Any]:
    asked = attack.case.as_dict()
    return [bytes.fromhex(key_of(asked)), as_text(asked), attack.archive, float(attack.seconds), attack.machine]


def attack_of(row: Row) -> MadeAttack:
    key, asked, *rest = row
    case = Case.of_dict(from_text(asked))
    require_key(key, key_of(case.as_dict()))
    return MadeAttack.unpack(case, *rest)


def same_flips(attack: MadeAttack) -> str:
    """Equal for equal flips; their metadata and their archive may differ between machines."""
    found = attack.flips
    lists = [None if one is None else one.tolist() for one in (found.flips, found.targets, found.feature_flips)]
    return hashlib.sha256(as_text([found.num_nodes, *lists]).encode()).hexdigest()


class Kind(NamedTuple):
    """How records of one kind are written, read and compared.

    Attributes:
        row, of_row: from a record to a row, whose first entry is the key, and back.
        content: the result without provenance; equal for equal results.
        texts: columns whose texts are stored in the table ``texts``.
        replaces: whether a new record replaces an old one with the same key.
    """

    row: Callable[[Any], list[Any]]
    of_row: Callable[[Any], Any]
    content: Callable[[Any], object]
    texts: tuple[int, ...] = ()
    replaces: bool = False


KINDS = {
    "trainings": Kind(outcome_row, outcome_of, lambda one: (as_text(one.figures), as_text(one.scalars)), (1, 3, 7)),
    "choices": Kind(choice_row, choice_of, lambda one: as_text(one.as_dict()), replaces=True),
    "series": Kind(series_row, series_of_row, lambda one: as_text(one.content), replaces=True),
    "attacks": Kind(attack_row, attack_of, same_flips),
}
