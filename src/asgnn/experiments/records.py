"""Tables of measurements that belong to no single training, such as how well false edges are found.

A script writes them as JSON, ``asgnn store record`` keeps them in a store, and the report shows them.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asgnn.errors import ConfigError, DataCorrupt, DataUnavailable
from asgnn.experiments.store import Store
from asgnn.experiments.values import Series, regular_file

NO_TRAINING = ""  # the training of a series that belongs to none
# Name of a record, which is that of its file → columns that every row must have: texts, then numbers.
RECORDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "edges": (("graph", "attack", "score"), ("rate", "auc", "precision_1", "precision_5", "precision_10")),
    "calibration": (("graph",), ()),
    "cleaning": (("graph",), ()),
}

Rows = tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class Record:
    """``columns`` are in the order of the file; a row may lack some of them."""

    columns: tuple[str, ...]
    rows: Rows


def read_record(path: Path) -> Series:
    """The record in a JSON file ``{"rows": [{column: text, number or null}, …]}``, whose name says which it is."""
    if path.stem not in RECORDS:
        names = ", ".join(f"{name}.json" for name in RECORDS)
        raise ConfigError(f"{path} is not a record that a report shows; such files are named {names}.")
    try:
        content = json.loads(regular_file(path).read_text(encoding="utf-8"))
    except OSError as cause:
        raise DataUnavailable(f"{path} could not be read: {cause.strerror or cause}.") from cause
    except (ValueError, RecursionError) as cause:
        raise DataCorrupt(f"{path} is not JSON: {cause}.") from cause
    rows = content.get("rows") if isinstance(content, dict) else None
    if not isinstance(rows, list) or not rows:
        raise DataCorrupt(f'{path} has no "rows", a list of objects.')
    for number, row in enumerate(rows, 1):
        if problem := _problem(row, *RECORDS[path.stem]):
            raise DataCorrupt(f"{path}, row {number}: {problem}.")
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return Series(NO_TRAINING, path.stem, {"columns": columns, "rows": rows})


def record_of(store: Store, kind: str) -> Record | None:
    """A record of a store; ``None`` if the store lacks it."""
    found = [one.content for one in store.series(kind) if one.training == NO_TRAINING]
    return Record(tuple(found[0]["columns"]), tuple(found[0]["rows"])) if found else None


def _problem(row: Any, texts: tuple[str, ...], numbers: tuple[str, ...]) -> str | None:
    if not isinstance(row, dict):
        return "it is not an object"
    for name in texts:
        if not isinstance(row.get(name), str):
            return f"{name!r} must be a text"
    for name in numbers:
        if name not in row or not (row[name] is None or _is_number(row[name])):
            return f"{name!r} must be a number or null"
    for name, value in row.items():
        if not (value is None or isinstance(value, str) or _is_number(value)):
            return f"{name!r} must be a text, a finite number or null"
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
