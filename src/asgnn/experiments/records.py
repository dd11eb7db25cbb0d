"""Tables of measurements that belong to no single training, such as how well false edges are found.

A script writes them as JSON, ``asgnn store record`` keeps them in a store, and the report shows them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asgnn.errors import ConfigError, DataCorrupt, DataUnavailable
from asgnn.experiments.store import Store
from asgnn.experiments.values import Series, regular_file

NO_TRAINING = ""  # the training of a series that belongs to none
GRAPH = "graph"  # the column of the names in "graphs"
REMEMBERS = "remembers the clean graph"  # the control of challenges that evasion cannot touch, and which is no floor

Rows = tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class Shape:
    """What is kept of each row of a record; everything else in its file is left out.

    Attributes:
        texts: columns of text.
        numbers: column of numbers, which may be null → its place in a row of the file, such as "before.width", or
            "certified.0" for the first entry of a list.
        flags: columns of truth values; where a row has none, it is false.
    """

    texts: tuple[str, ...]
    numbers: Mapping[str, str]
    flags: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.texts, *self.numbers, *self.flags)


def _same(*names: str) -> dict[str, str]:
    return dict(zip(names, names, strict=True))


CERTIFIED_AT = (0, 1, 2, 5, 10, 20)  # flips
SHARES = (*(f"{flips} flips" for flips in CERTIFIED_AT), "edge_free", "mlp")  # certified, and the floors

# By name, which is that of the file.
RECORDS = {
    "edges": Shape(
        ("graph", "attack", "score"),
        _same("rate", "auc", "precision_1", "precision_5", "precision_10"),
        flags=("design",),  # whether the graph took part in the design of a score
    ),
    "calibration": Shape(
        (GRAPH,),
        _same("test", "confidence", "temperature") | {"error_before": "before.width", "error_after": "after.width"},
    ),
    "challenge": Shape(
        ("graph", "kind", "model", "worst"),  # kind: evasion, poisoning or single nodes; worst: an attack
        _same("budget", "accuracy"),
        flags=("control",),
    ),
    "certificates": Shape(
        ("dataset", "by"),  # by: the voters
        _same("parts", "anchor", "seconds")
        | {"chosen_for": "chosen_for.0"}  # the least number of flips that the anchor was chosen for
        | dict(zip(SHARES, (*(f"test.certified.{i}" for i in range(6)), "test.edge_free", "test.mlp"), strict=True)),
    ),
    "cleaning": Shape(("graph", "attack", "model"), _same("rate", "before", "after", "removed")),
}


def read_record(path: Path) -> Series:
    """The record in a JSON file, whose name says which it is.

    Its rows are in ``{"rows": [{column: value, …}, …]}`` or, by graph, in ``{"graphs": {graph: {column: value, …}}}``.
    """
    if path.stem not in RECORDS:
        names = ", ".join(f"{name}.json" for name in RECORDS)
        raise ConfigError(f"{path} is not a record that a report shows; such files are named {names}.")
    try:
        content = json.loads(regular_file(path).read_text(encoding="utf-8"))
    except OSError as cause:
        raise DataUnavailable(f"{path} could not be read: {cause.strerror or cause}.") from cause
    except (ValueError, RecursionError) as cause:
        raise DataCorrupt(f"{path} is not JSON: {cause}.") from cause
    try:
        rows = list(_kept_rows(content, RECORDS[path.stem]))
    except ValueError as problem:
        raise DataCorrupt(f"{path}: {problem}.") from problem
    return Series(NO_TRAINING, path.stem, {"rows": rows})


def record_of(store: Store, kind: str) -> Rows:
    """The rows of a record in a store; none if the store lacks it."""
    found = [one.content for one in store.series(kind) if one.training == NO_TRAINING]
    return tuple(found[0]["rows"]) if found else ()


def _kept_rows(content: Any, shape: Shape) -> Iterator[dict[str, Any]]:
    found = content if isinstance(content, dict) else {}
    graphs = found.get("graphs")
    if isinstance(graphs, dict):
        rows: Any = [{GRAPH: name, **row} if isinstance(row, dict) else row for name, row in graphs.items()]
    else:
        rows = found.get("rows")
    if not isinstance(rows, list) or not rows:
        raise ValueError('it has no "rows", a list of objects')
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise ValueError(f"row {number} is not an object")
        values = {column: _at(row, place) for column, place in shape.numbers.items()}
        values = {name: row.get(name) for name in shape.texts} | values
        values |= {name: row.get(name, False) for name in shape.flags}
        for name, value in values.items():
            kind = "text" if name in shape.texts else "truth value" if name in shape.flags else "number"
            if not _is(kind, value):
                raise ValueError(f"in row {number}, {name!r} is {value!r}, not a {kind}")
        yield values


def _at(row: Mapping[str, Any], place: str) -> Any:
    value: Any = row
    for name in place.split("."):
        if isinstance(value, list) and name.isdigit():
            value = dict(enumerate(value)).get(int(name), "missing")
            continue
        if not isinstance(value, dict) or name not in value:
            return "missing"
        value = value[name]
    return value


def _is(kind: str, value: Any) -> bool:
    if kind == "text":
        return isinstance(value, str)
    if kind == "truth value":
        return isinstance(value, bool)
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return value is None or number
