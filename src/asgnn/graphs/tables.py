"""Node ids, features and labels from tables: what the columns of a DataFrame mean for a graph."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asgnn.errors import GraphError
from asgnn.graphs.checks import MAX_CLASSES

# Column names, compared in lower case, that are recognised without being named.
ID_NAMES = ("id", "node", "node_id", "nodeid", "ids")
END_NAMES = (
    ("source", "target"),
    ("src", "dst"),
    ("from", "to"),
    ("u", "v"),
    ("node1", "node2"),
    ("node_1", "node_2"),
    ("id1", "id2"),
    ("id_1", "id_2"),
    ("fromnodeid", "tonodeid"),
)
WEIGHT_NAMES = ("weight", "edge_weight", "weights")
# A text column with at most this many different values, and at most one per two rows, becomes 0/1 columns.
MAX_CATEGORIES = 50
INTEGER = r"-?(?:0|[1-9][0-9]{0,17})"
WHOLE = r"-?(?:0|[1-9][0-9]{0,14})\.0+"
DECIMAL = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?"
SHOWN = 60  # characters of a value in an error message


@dataclass(frozen=True, eq=False)
class Table:
    """A DataFrame and the words for its rows in error messages.

    Args:
        frame: The DataFrame.
        name: Of the file, or "features".
        place: The words for the row with a position, such as "line 5".
        text: Whether ids and labels are texts because they come from a text file.
        file: Whether the first column holds the ids if none has a usual name; else it is the index.
        id: The name of the column with the ids, if it was given.
        ignore: Columns that are not used.
        features: The names of the features to make, such as "age" and "color=red"; ``None`` makes all.
        notes: What was understood when it was read.
    """

    frame: Any
    name: str
    place: Callable[[int], str]
    text: bool = False
    file: bool = False
    id: Any = None
    ignore: tuple[Any, ...] = ()
    features: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()

    def categories(self, column: Any) -> list[str]:
        """Returns the texts of a column that become features, if the features are given."""
        start = f"{column}="
        return [name.removeprefix(start) for name in self.features or () if name.startswith(start)]

    def where(self, row: int, column: Any = None) -> str:
        """Returns file, line and column: the beginning of an error message."""
        named = "" if column is None else f", column {str(column)!r}"
        return f"{self.name}, {self.place(row)}{named}"

    def column(self, name: Any) -> Any:
        """Returns one column; raises if there is none, or more than one."""
        columns = self.frame.columns
        if name not in columns:
            listed = ", ".join(map(repr, map(str, columns[:20]))) + (", …" if len(columns) > 20 else "")
            raise GraphError(f"{self.name} has no column {str(name)!r}; its columns are {listed}.")
        found = self.frame[name]
        if found.ndim != 1:
            raise GraphError(f"{self.name} has more than one column {str(name)!r}; rename one of them.")
        return found


def table_of(frame: Any, name: str) -> Table:
    """Returns a DataFrame in memory as a table, with rows counted from 0 as pandas does."""
    return Table(frame, name, lambda row: f"row {row}")


def shown(value: Any) -> str:
    """Returns a value as it is shown in messages, shortened."""
    text = repr(str(value)) if isinstance(value, str | np.str_) else str(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"


def some(values: Sequence[Any] | NDArray[Any], count: int = 3) -> str:
    """Returns the first few values in words."""
    return ", ".join(shown(value) for value in values[:count]) + (", …" if len(values) > count else "")


def counted(count: int, thing: str) -> str:
    """Returns a number and a noun: "1 edge", "2,000 edges"."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


# --- ids ------------------------------------------------------------------------------------------------------------


def id_column(table: Table) -> Any:
    """Returns the name of the column with the ids; ``None`` for the index of a DataFrame."""
    if table.id is not None:
        table.column(table.id)
        return table.id
    columns = list(table.frame.columns)
    for known in ID_NAMES:
        for column in columns:
            if str(column).strip().lower() == known:
                return column
    return columns[0] if table.file else None


def end_columns(table: Table, source: Any = None, target: Any = None) -> tuple[Any, Any]:
    """Returns the names of the columns with the two ends of each edge."""
    columns = list(table.frame.columns)
    if len(columns) < 2:
        hint = "; name the separator if it is an unusual one" if table.text else ""
        raise GraphError(f"{table.name} has {len(columns)} column; a list of edges has two or more{hint}.")
    lower = {str(column).strip().lower(): column for column in reversed(columns)}
    usual = next((pair for pair in END_NAMES if pair[0] in lower and pair[1] in lower), None)
    first, second = columns[:2] if usual is None else (lower[usual[0]], lower[usual[1]])
    first, second = first if source is None else source, second if target is None else target
    if first == second:
        raise GraphError(f"{table.name}: source and target are the same column {str(first)!r}; name two columns.")
    table.column(first), table.column(second)
    return first, second


def weight_column(table: Table, name: Any, ends: Collection[Any], headless: bool = False) -> Any:
    """Returns the name of the column with the weights of edges, or ``None``."""
    if name is not None:
        table.column(name)
        return name
    for column in table.frame.columns:
        if column not in ends and str(column).strip().lower() in WEIGHT_NAMES:
            return column
    columns = list(table.frame.columns)
    # "u v 0.5" is the usual weighted edge list without a header.
    return columns[2] if headless and len(columns) == 3 else None


def clean_ids(table: Table, columns: Sequence[Any]) -> list[Any]:
    """Returns the id columns as Series; ``None`` stands for the index. Raises if an id is missing."""
    import pandas as pd

    found = []
    for column in columns:
        series = table.frame.index.to_series() if column is None else table.column(column)
        series = series.reset_index(drop=True)
        if table.text:
            series = series.str.strip()
            missing = series.isna() | (series == "")
        else:
            missing = series.isna()
            if pd.api.types.is_float_dtype(series) and not missing.any() and bool((series % 1 == 0).all()):
                series = series.astype(np.int64)
        if bool(missing.any()):
            raise GraphError(f"{table.where(int(missing.to_numpy().argmax()), column)}: the id is empty.")
        found.append(series)
    return found


def as_numbers(columns: Sequence[Any]) -> list[Any]:
    """Returns columns of texts as integers if all of them are whole numbers without leading zeros, else unchanged.

    "1.0", which spreadsheets and pandas make of 1, counts as 1.
    """
    out = []
    for series in columns:
        if bool(series.str.fullmatch(INTEGER).all()):
            out.append(series.astype(np.int64))
        elif bool(series.str.fullmatch(f"{INTEGER}|{WHOLE}").all()):
            out.append(series.astype(np.float64).astype(np.int64))
        else:
            return list(columns)
    return out


def like_ids(columns: Sequence[Any], ids: NDArray[Any]) -> list[Any]:
    """Returns columns of ids as the kind that the ids of a graph have: numbers, or texts if all of them are texts."""
    if ids.dtype.kind == "i":
        return [one if one.dtype.kind in "iu" else as_numbers([one.astype(str)])[0] for one in columns]
    if all(isinstance(one, str) for one in ids):
        return [one.astype(str) for one in columns]
    return list(columns)


def as_ids(values: Any) -> NDArray[Any]:
    """Returns ids as an array: int64, or objects."""
    array: NDArray[Any] = np.asarray(values)
    if array.dtype.kind in "iu" and array.dtype != np.uint64:
        return array.astype(np.int64)
    if array.dtype.kind in "US":
        return array.astype(object)
    return array


def sorted_ids(values: Any) -> NDArray[Any]:
    """Returns the different ids in order; ids of kinds that cannot be compared are ordered as text."""
    import pandas as pd

    different = pd.unique(values)
    array = as_ids(different)
    try:
        return np.sort(array)
    except TypeError:
        return array[np.argsort(np.array([f"{type(one).__name__} {one}" for one in array]), kind="stable")]


def check_different(table: Table, ids: Any, column: Any) -> NDArray[np.bool_]:
    """Returns the rows to keep: repetitions of a whole row are dropped; raises if one id has two different rows."""
    again: NDArray[np.bool_] = ids.duplicated().to_numpy()
    if again.any():
        frame = table.frame.reset_index(drop=column is not None).astype(str)
        differs = again & ~frame.duplicated().to_numpy()
        if differs.any():
            row = int(differs.argmax())
            first = int((ids == ids.iloc[row]).to_numpy().argmax())
            raise GraphError(
                f"{table.where(row, column)}: the id {shown(ids.iloc[row])} has another row with other values, "
                f"{table.place(first)}; keep one of them."
            )
    return ~again


# --- features -------------------------------------------------------------------------------------------------------


def feature_columns(table: Table, *others: Any) -> list[Any]:
    """Returns the columns with features: all except those that are ignored, ``others``, and those not asked for."""
    for name in table.ignore:
        table.column(name)
    columns = [column for column in table.frame.columns if column not in table.ignore and column not in others]
    if table.features is not None:
        columns = [column for column in columns if str(column) in table.features or table.categories(column)]
    return columns


def feature_matrix(table: Table, columns: Sequence[Any]) -> tuple[NDArray[np.float64], list[str], list[str]]:
    """Returns the features (rows, F), their names, and notes on what was filled, encoded or left out.

    Numbers and booleans are taken as they are. A column of texts becomes one 0/1 column per value if it has few values,
    and is left out if it has many. A column of numbers with some text is an error. Missing numbers become the mean of
    their column, or 0 in columns of 0 and 1; a row without any number becomes zeros.
    """
    import pandas as pd

    blocks: list[NDArray[np.float64]] = []
    names: list[str] = []
    notes: list[str] = []
    rows = len(table.frame)
    missing = np.ones(rows, dtype=bool)  # rows without any value
    filled: list[str] = []
    cells = 0
    for column in columns:
        series = table.column(column)
        number = pd.api.types.is_numeric_dtype(series) and not pd.api.types.is_complex_dtype(series)
        if number and not table.categories(column):
            values = series.to_numpy(dtype=np.float64, na_value=np.nan)
        else:
            found = _text_column(table, column, series, notes)
            if found is None:
                continue
            if isinstance(found, dict):
                missing &= series.isna().to_numpy()
                names += list(found)
                blocks += list(found.values())
                continue
            values = found
        infinite = np.isinf(values) | (np.abs(values) > np.finfo(np.float32).max)
        if infinite.any():
            row = int(infinite.argmax())
            raise GraphError(f"{table.where(row, column)}: {values[row]} is too large; every feature must be finite.")
        unknown = np.isnan(values)
        if unknown.all():
            notes.append(f"The column {str(column)!r} is empty and was left out.")
            continue
        missing &= unknown
        if unknown.any():
            present = values[~unknown]
            binary = bool(((present == 0) | (present == 1)).all())
            values = np.where(unknown, 0.0 if binary else present.mean(), values)
            cells += int(unknown.sum())
            filled.append(str(column))
        names.append(str(column))
        blocks.append(values)
    matrix = np.stack(blocks, axis=1) if blocks else np.empty((rows, 0))
    if blocks and missing.any():
        matrix[missing] = 0.0
        notes.append(f"{counted(int(missing.sum()), 'node')} without any value: the features are zeros.")
    if filled:
        notes.append(
            f"{counted(cells, 'missing value')} in {counted(len(filled), 'column')} ({some(filled)}) filled with the "
            "mean of the column, or with 0 in columns of 0 and 1."
        )
    repeated = {name for name in names if names.count(name) > 1} if len(set(names)) < len(names) else set()
    if repeated:
        raise GraphError(f"{table.name} gives two features the name {min(repeated)!r}; rename a column.")
    return matrix, names, notes


def _text_column(
    table: Table, column: Any, series: Any, notes: list[str]
) -> NDArray[np.float64] | dict[str, NDArray[np.float64]] | None:
    """Returns a column that is not numeric: as numbers, as 0/1 columns by name, or ``None`` if it is left out."""
    import pandas as pd

    if pd.api.types.is_datetime64_any_dtype(series) or pd.api.types.is_timedelta64_dtype(series):
        notes.append(f"The column {str(column)!r} has dates and was left out; turn them into numbers to use them.")
        return None
    given = series.notna()
    # True and False beside missing values or numbers
    plain = series[given].map(lambda value: int(value) if isinstance(value, bool | np.bool_) else value)
    texts = plain.astype(str).str.strip()
    if wanted := table.categories(column):
        return _zeros_and_ones(column, given.to_numpy(), texts, wanted)
    numbers = pd.to_numeric(texts, errors="coerce")
    if bool(numbers.notna().all()):
        values = np.full(len(series), np.nan)
        values[given.to_numpy()] = numbers.to_numpy(dtype=np.float64)
        return values
    if 2 * int(numbers.notna().sum()) >= len(texts):
        row = int(np.flatnonzero(given.to_numpy())[numbers.isna().to_numpy().argmax()])
        raise GraphError(f"{table.where(row, column)}: {shown(series.iloc[row])} is not a number.")
    categories = sorted(texts.unique())
    if len(categories) > MAX_CATEGORIES or 2 * len(categories) > max(len(series), 4):
        notes.append(
            f"The column {str(column)!r} has {len(categories):,} different texts, too many for 0/1 columns, and was "
            "left out."
        )
        return None
    notes.append(
        f"The column {str(column)!r} of texts became {len(categories)} columns of 0 and 1 ({some(categories)})."
    )
    return _zeros_and_ones(column, given.to_numpy(), texts, categories)


def _zeros_and_ones(
    column: Any, given: NDArray[np.bool_], texts: Any, categories: Sequence[str]
) -> dict[str, NDArray[np.float64]]:
    values = np.full(len(given), None, dtype=object)
    values[given] = texts.to_numpy(dtype=object)
    return {f"{column}={category}": (values == category).astype(np.float64) for category in categories}


# --- labels ---------------------------------------------------------------------------------------------------------


def label_column(table: Table, name: Any) -> NDArray[Any]:
    """Returns the labels of a table; whole numbers in a text file become numbers."""
    import pandas as pd

    series = table.column(name)
    if not table.text:
        labels: NDArray[Any] = series.to_numpy(dtype=object)
        return labels
    out = np.full(len(series), None, dtype=object)
    texts = series.str.strip()
    given = (texts.notna() & (texts != "")).to_numpy(dtype=bool)
    (values,) = as_numbers([texts[given]])
    if values.dtype.kind not in "iu" and bool(values.str.fullmatch(DECIMAL).all()):
        values = pd.to_numeric(values)
        wrong = (values % 1 != 0).to_numpy()
        if wrong.any():
            row = int(np.flatnonzero(given)[wrong.argmax()])
            found = shown(texts.iloc[row])
            raise GraphError(f"{table.where(row, name)}: the label {found} is neither a text nor a whole number.")
    out[given] = values.to_numpy(dtype=object)
    return out


def class_positions(values: Any, where: Callable[[int], str]) -> tuple[NDArray[np.int64], NDArray[Any], list[str]]:
    """Returns for each label its position in the sorted classes (−1 if missing), the classes, and notes.

    None, NaN, "" and −1 are missing; −1 is a class if the only other label is 1. Labels are texts or whole numbers;
    if both occur, all are texts.

    Args:
        values: N labels: an array, Series, tensor or list.
        where: Returns the words for a position, for error messages.
    """
    import pandas as pd

    if isinstance(values, Tensor):
        values = values.detach().cpu().to(torch.float64 if values.is_floating_point() else torch.int64).numpy()
    if np.ma.isMaskedArray(values):
        values = values.tolist()
    array: Any = values.to_numpy(dtype=object) if isinstance(values, pd.Series) else np.asarray(values, dtype=object)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise GraphError(f"labels must be one label per node; their shape is {array.shape}.")
    series = pd.Series(array, dtype=object)
    known = ~(series.isna() | (series == "")).to_numpy(dtype=bool)
    kinds = {type(value) for value in series[known]}
    notes: list[str] = []
    if kinds and all(issubclass(kind, bool | np.bool_) for kind in kinds):
        usable = series[known].astype(bool).to_numpy()
    elif kinds and all(_is_number(kind) for kind in kinds):
        numbers = series[known].astype(np.float64).to_numpy()
        wrong = ~np.isfinite(numbers) | (numbers % 1 != 0) | (np.abs(numbers) > 2**53)
        if wrong.any():
            at = int(np.flatnonzero(known)[wrong.argmax()])
            raise GraphError(f"{where(at)}: the label {shown(array[at])} is neither a text nor a whole number.")
        usable = numbers.astype(np.int64)
        if (usable == -1).any() and set(usable.tolist()) != {-1, 1}:
            known[known] = usable != -1
            usable = usable[usable != -1]
            notes.append("The label -1 counts as missing.")
    elif all(issubclass(kind, str | int | float | np.number | np.bool_) for kind in kinds):
        usable = series[known].astype(str).to_numpy(dtype=object)
    else:
        kind = next(kind for kind in kinds if not issubclass(kind, str | int | float | np.number | np.bool_))
        raise GraphError(f"A label is a {kind.__name__}; labels are texts or whole numbers.")
    positions = np.full(len(array), -1, dtype=np.int64)
    if len(usable) == 0:
        return positions, np.empty(0, dtype=object), notes
    codes, classes = pd.factorize(usable, sort=True)
    positions[known] = codes
    found = as_ids(classes)
    if len(found) > MAX_CLASSES:
        raise GraphError(f"There are {len(found):,} different labels; at most {MAX_CLASSES:,} classes are supported.")
    return positions, found, notes


def _is_number(kind: type) -> bool:
    return issubclass(kind, int | float | np.integer | np.floating) and not issubclass(kind, bool | np.bool_)


def labels_by_id(labels: Any, ids: NDArray[Any], number: Callable[[Any], NDArray[np.int64]]) -> Any:
    """Returns labels in the order of the nodes: from a mapping or Series by id, or anything else as it is given.

    Args:
        labels: A dict or Series from id to label; or one label per node, in order.
        ids: The ids of the nodes.
        number: Returns the positions of ids, and raises for an unknown one.
    """
    import pandas as pd

    if isinstance(labels, pd.Series):
        if ids.dtype.kind != "i" and labels.index.equals(pd.RangeIndex(len(ids))):
            return labels  # the default index says nothing about ids that are not numbers
        keys, values = labels.index, labels.to_numpy(dtype=object)
        if bool(keys.has_duplicates):
            raise GraphError(f"labels has two values for the node {shown(keys[keys.duplicated()][0])}.")
    elif isinstance(labels, Mapping):
        keys, values = list(labels), np.array([*labels.values(), None], dtype=object)[:-1]
    else:
        return labels
    out = np.full(len(ids), None, dtype=object)
    out[number(keys)] = values
    return out


# --- nodes ----------------------------------------------------------------------------------------------------------


def is_a(value: Any, module: str, name: str) -> bool:
    """Whether a value is an instance of a class of a package, without importing the package."""
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(value, getattr(loaded, name))


def numbered(count: int) -> tuple[str, ...]:
    """Returns names for features without names."""
    return tuple(f"x{i}" for i in range(count))


def node_words(ids: NDArray[Any]) -> Callable[[int], str]:
    """Returns the words for a node in error messages."""
    return lambda at: f"Node {shown(ids[at])}"


def checked_length(labels: Any, count: int) -> Any:
    """Returns labels; raises unless there is one per node."""
    labels = list(labels) if isinstance(labels, Iterable) and not hasattr(labels, "__len__") else labels
    if not hasattr(labels, "__len__") or isinstance(labels, str | bytes):
        raise GraphError(f"labels must be one label per node or a dict by id; it is a {type(labels).__name__}.")
    if len(labels) != count:
        raise GraphError(f"labels has {len(labels)} entries, but the graph has {count} nodes.")
    return labels


def positions_of(index: Any, ids: Any, where: str) -> NDArray[np.int64]:
    """Returns the positions of ids in a pandas index; raises for an unknown one. ``where`` says what it is."""
    import pandas as pd

    if isinstance(ids, Tensor):
        ids = ids.detach().cpu().numpy()
    wanted = ids if isinstance(ids, pd.Index | pd.Series | np.ndarray) else pd.Index(list(ids), tupleize_cols=False)
    found: NDArray[np.int64] = index.get_indexer(pd.Index(wanted, tupleize_cols=False))
    if (found < 0).any():
        unknown = np.asarray(wanted, dtype=object)[found < 0][0]
        raise GraphError(f"There is no node {shown(unknown)} in {where}; its first ids are {some(index[:3])}.")
    return found.astype(np.int64)
