"""Graphs from files: CSV, TSV and other text, Parquet, NumPy and SciPy archives, GraphML."""

from __future__ import annotations

import csv
import gzip
import io
import re
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from torch_geometric.data import Data

from asgnn.errors import ConfigError, DataCorrupt, DataUnavailable, GraphError
from asgnn.graphs.convert import import_networkx
from asgnn.graphs.named import NamedGraph, named_graph, of_tables
from asgnn.graphs.sources import MAX_UNPACKED, read_npz
from asgnn.graphs.tables import END_NAMES, ID_NAMES, INTEGER, Table, as_numbers, clean_ids, end_columns, shown

MAX_TEXT = 8 << 30  # bytes of one text file
HEAD = 16 << 20  # characters that contain the first row
SAMPLE = 200  # lines from which separator and decimal sign are recognised
SEPARATORS = {"\t": "tabs", ";": "semicolons", ",": "commas", "|": "vertical bars"}
SPACES = r"\s+"
ARCHIVES = (".npz", ".graphml", ".xml")  # files that are not tables
COMMENTS = ("#", "%")
# What counts as a missing number or label in a text file: the words of pandas, and the ? of the UCI repository.
MISSING = (
    "", "?", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA",
    "NULL", "NaN", "None", "n/a", "nan", "null",
)  # fmt: skip
NUMBER = re.compile(r"\s*[-+]?(?:[0-9]+(?:[.,][0-9]*)?|[.,][0-9]+)(?:[eE][-+]?[0-9]+)?\s*")
DECIMAL_COMMA, DECIMAL_POINT = re.compile(r"\s*-?[0-9]+,[0-9]+\s*"), re.compile(r"\s*-?[0-9]+\.[0-9]+\s*")

PathOrStr = str | PathLike[str]


def read_graph(
    edges: PathOrStr,
    features: PathOrStr | None = None,
    *,
    label: str | None = None,
    id: str | None = None,
    source: str | None = None,
    target: str | None = None,
    weight: str | None = None,
    ignore: Sequence[str] = (),
    feature_names: Sequence[str] | None = None,
    header: bool | None = None,
    separator: str | None = None,
    encoding: str | None = None,
) -> NamedGraph:
    """Returns the graph of one or two files; its ``notes`` say what was understood, dropped and filled.

    The kind of a file follows from its ending: ``.parquet``, ``.npz``, ``.graphml``; everything else is text, of which
    the separator, the encoding and the header are recognised. Text may be compressed (``.gz``). Nothing is unpickled.
    ``docs/own-data.md`` describes the formats and the choices made for unusual input.

    Args:
        edges: The file of edges: a table with the two ends of each edge; or an archive or GraphML file, which may hold
            features and labels, too.
        features: The file of nodes: a table with ids, features and, if wanted, labels.
        label: The column of the features, or the attribute of the nodes, with the classes. Default: no labels; for an
            archive, its labels.
        id: The column of the features with the ids. Default: a column "id" or "node", else the first.
        source, target: The columns of the edges with the two ends. Default: "source" and "target" or similar names,
            else the first two.
        weight: The column of the edges with the weights. Default: "weight", or the third column of three without names.
        ignore: Columns of the features that are not used.
        feature_names: The features to read, as a model knows them (``NamedGraph.feature_names``); other columns are
            not used. Default: all.
        header: Whether the first line of a text file has the names of the columns. Default: recognised.
        separator: Of text files. Default: recognised.
        encoding: Of text files. Default: UTF-8 or UTF-16 if it is that, else Windows-1252.
    """
    path = Path(edges)
    options = _Options(header, separator, encoding)
    nodes = None if features is None else read_table(features, label=label, id=id, options=options)
    if isinstance(nodes, Table):
        names = None if feature_names is None else tuple(feature_names)
        nodes = replace(nodes, ignore=tuple(ignore), features=names)
    kind = path.suffix.lower()
    if kind == ".npz":
        graph, kept = _read_archive(path)
        if nodes is not None:
            found = named_graph(graph, label, features=nodes)
        elif label is not None:
            raise ConfigError(f"{path} is an archive: its labels are taken as they are; leave out the label.")
        else:
            found = named_graph(graph)
        found = _with_names(found, kept, path) if nodes is None else found
    elif kind in ARCHIVES:
        found = named_graph(_read_graphml(path), label, features=nodes)
    else:
        table, headless = _read_edges(path, options, (source, target, weight))
        if label is not None and nodes is None:
            raise ConfigError(f"The label {label!r} is a column of the features, but no file of features was given.")
        ends = {"source": source, "target": target, "weight": weight}
        found = of_tables(table, nodes, label, headless=headless, **ends)
    if feature_names and isinstance(nodes, Table):
        found = found.with_features(feature_names)
    if label is not None:
        _check_classes(found, str(path if features is None else features), label)
    return found


def _check_classes(graph: NamedGraph, name: str, label: str) -> None:
    if len(graph.classes) == 0:
        raise GraphError(f"{name}, column {label!r}: every label is missing.")
    if len(graph.classes) == 1:
        raise GraphError(
            f"{name}, column {label!r}: every label is {shown(graph.classes[0])}; classification needs two classes or "
            "more."
        )
    labelled = int((graph.data.y >= 0).sum())
    if labelled > 2 and len(graph.classes) == labelled:
        raise GraphError(
            f"{name}, column {label!r}: each of the {labelled:,} labels is different, so they are not classes."
        )


@dataclass(frozen=True)
class _Options:
    """How to read text; ``None`` is recognised from the content."""

    header: bool | None = None
    separator: str | None = None
    encoding: str | None = None


@dataclass(frozen=True, eq=False)
class EdgeRows:
    """The rows of a table of edges as they are in the file, and the nodes that they join.

    Attributes:
        frame: The DataFrame with all columns.
        source, target: (rows,) the positions of both ends in the graph.
        header: Whether the columns have names in the file.
    """

    frame: Any
    source: NDArray[np.int64]
    target: NDArray[np.int64]
    header: bool


def read_rows(
    graph: NamedGraph,
    edges: PathOrStr,
    *,
    source: str | None = None,
    target: str | None = None,
    header: bool | None = None,
    separator: str | None = None,
    encoding: str | None = None,
    **_: Any,
) -> EdgeRows | None:
    """Returns the rows of the file of edges that ``graph`` was read from; ``None`` if it is not a table.

    The arguments are those of :func:`read_graph`; the ones that concern the features are not used.
    """
    path = Path(edges)
    if path.suffix.lower() in ARCHIVES:
        return None
    table, headless = _read_edges(path, _Options(header, separator, encoding), (source, target, None))
    ends = clean_ids(table, end_columns(table, source, target))
    if graph.ids.dtype.kind == "i" and table.text:
        ends = as_numbers(ends)
    elif graph.ids.dtype.kind != "i":
        ends = [one.astype(str) for one in ends]
    first, second = (graph.numbers(one) for one in ends)
    return EdgeRows(table.frame, first, second, not headless)


# --- text -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Text:
    """The text of a file, its separator and what was recognised."""

    path: Path
    text: str
    separator: str
    decimal: str
    skipped: int
    """Lines of comments at the beginning."""
    notes: tuple[str, ...]

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yields the number of the line and the cells of each row that is not empty."""
        lines = io.StringIO(self.text)
        if self.separator == SPACES:
            for number, line in enumerate(lines, 1 + self.skipped):
                if cells := line.split():
                    yield number, cells
            return
        reader = csv.reader(lines, delimiter=self.separator)
        before = 0
        try:
            for cells in reader:
                if any(cell.strip() for cell in cells) or len(cells) > 1:
                    yield before + 1 + self.skipped, cells
                before = reader.line_num
        except csv.Error as cause:
            raise DataCorrupt(f"{self.path}, line {reader.line_num + self.skipped}: {cause}.") from cause

    def first(self) -> tuple[int, list[str]]:
        """Returns the first row; a part of the text is enough for it."""
        return next(replace(self, text=self.text[:HEAD]).rows())

    def line(self, row: int) -> int:
        """Returns the line of a row, counted without empty lines."""
        return next((number for at, (number, _) in enumerate(self.rows()) if at == row), row + 1 + self.skipped)

    def check_widths(self, width: int) -> None:
        """Raises for the first row with another number of columns."""
        for number, cells in self.rows():
            if len(cells) != width:
                raise DataCorrupt(
                    f"{self.path}, line {number}: there are {len(cells)} columns, but {width} in the first line."
                )

    def frame(self, width: int, **options: Any) -> Any:
        """Returns the content as a DataFrame of ``width`` columns; raises if a row has another number of columns."""
        import pandas as pd

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", pd.errors.ParserWarning)
                found = pd.read_csv(
                    io.StringIO(self.text),
                    sep=self.separator,
                    header=None,
                    index_col=False,
                    low_memory=False,
                    decimal=self.decimal,
                    keep_default_na=False,
                    **options,
                )
        except (pd.errors.ParserError, pd.errors.ParserWarning, ValueError, OverflowError) as cause:
            self.check_widths(width)
            raise DataCorrupt(f"{self.path} cannot be read as a table: {_sentence(cause)}.") from cause
        # A row with too few cells is filled up by pandas without a word.
        last = found.iloc[:, -1]
        if len(found.columns) != width or bool((last.isna() | (last == "")).any()):
            self.check_widths(width)
        return found


def _sentence(cause: BaseException) -> str:
    return " ".join(str(cause).split()).rstrip(".")


def _read_text(path: Path, options: _Options) -> _Text:
    text, notes = _decode(path, _content(path), options.encoding)
    skipped = 0
    while text.startswith(COMMENTS):
        if text.startswith("%%MatrixMarket"):
            raise DataCorrupt(f"{path} is a Matrix Market file; convert it with scipy.sparse.save_npz.")
        text, skipped = text.partition("\n")[2], skipped + 1
    if not text.strip():
        raise DataCorrupt(f"{path} is empty.")
    lines = [line for line in text[: 1 << 20].splitlines() if line.strip()][:SAMPLE]
    separator = options.separator or _separator(lines)
    if separator == " ":
        separator = SPACES
    if separator != SPACES and len(separator) != 1:
        raise ConfigError(f"The separator must be one character; it is {separator!r}.")
    decimal = "."
    if separator != ",":
        cells = [cell for line in lines[1:] for cell in line.split(None if separator == SPACES else separator)]
        if any(map(DECIMAL_COMMA.fullmatch, cells)) and not any(map(DECIMAL_POINT.fullmatch, cells)):
            decimal = ","
            notes.append(f"{path.name}: numbers are written with a decimal comma.")
    return _Text(path, text, separator, decimal, skipped, tuple(notes))


def _content(path: Path) -> bytes:
    """Returns the bytes of a file, unpacked if it is compressed."""
    if path.exists() and not path.is_file():
        raise DataUnavailable(f"{path} is {'a folder' if path.is_dir() else 'a device or a pipe'}, not a file.")
    try:
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            with gzip.open(io.BytesIO(content)) as file:
                content = file.read(MAX_TEXT + 1)
    except FileNotFoundError as cause:
        raise DataUnavailable(f"There is no file {path}.") from cause
    except (gzip.BadGzipFile, EOFError, zlib.error) as cause:
        raise DataCorrupt(f"{path} is a damaged gzip file: {_sentence(cause)}.") from cause
    except (OSError, ValueError) as cause:  # ValueError: a name that cannot be encoded
        raise DataUnavailable(f"{path} cannot be read: {getattr(cause, 'strerror', None) or cause}.") from cause
    if len(content) > MAX_TEXT:
        raise DataCorrupt(f"{path} is larger than the limit of {MAX_TEXT >> 30} GiB.")
    return content


def _decode(path: Path, content: bytes, encoding: str | None) -> tuple[str, list[str]]:
    """Returns the text with \\n at the end of lines, and notes."""
    notes = []
    if encoding is None:
        encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
        if encoding != "utf-16" and b"\x00" in content:
            raise DataCorrupt(f"{path} is not a text file: it contains zero bytes.")
        try:
            text = content.decode(encoding)
        except UnicodeDecodeError as cause:
            try:
                text = content.decode("cp1252")
            except UnicodeDecodeError:
                line = content.count(b"\n", 0, cause.start) + 1
                raise DataCorrupt(
                    f"{path}, line {line}: the encoding is neither UTF-8 nor Windows-1252; name the encoding."
                ) from cause
            notes.append(f"{path.name} is not UTF-8 and was read as Windows-1252; name the encoding if this is wrong.")
    else:
        try:
            text = content.decode(encoding)
        except LookupError as cause:
            raise ConfigError(f"There is no encoding {encoding!r}.") from cause
        except (UnicodeError, ValueError) as cause:
            raise DataCorrupt(f"{path} is not {encoding}: {_sentence(cause)}.") from cause
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text, notes


def _separator(lines: Sequence[str]) -> str:
    """Returns the separator that divides most lines into the same number of columns, two or more."""
    best, found = 0, ","
    for separator in (*SEPARATORS, SPACES):
        if separator == SPACES:
            widths = Counter(len(line.split()) for line in lines)
        else:
            try:
                widths = Counter(len(cells) for cells in csv.reader(lines, delimiter=separator))
            except csv.Error:
                continue
        width, count = widths.most_common(1)[0]
        # Spaces within the cells of another separator divide lines only now and then.
        if width > 1 and count > best:
            best, found = count, separator
    return found


def _read_edges(path: Path, options: _Options, names: tuple[str | None, ...]) -> tuple[Table, bool]:
    """Returns the table of edges, and whether its columns have no names."""
    if path.suffix.lower() in (".parquet", ".pq"):
        return _read_parquet(path), False
    text = _read_text(path, options)
    _, first = text.first()
    frame = text.frame(len(first), dtype=str)
    cells = [cell.strip() for cell in first]
    header = options.header
    if header is None:
        header = _is_header_of_edges(cells, frame, names)
    if header:
        frame = frame.iloc[1:].reset_index(drop=True)
        if len(frame) == 0:
            raise DataCorrupt(f"{path} has a header but no edges.")
        frame.columns = _unique(cells, path)
    else:
        frame.columns = [str(number) for number in range(1, len(cells) + 1)]
    if text.decimal == ",":
        for column in frame.columns[2:]:
            frame[column] = frame[column].str.replace(",", ".")
    notes = (*text.notes, _layout(text, header))
    return Table(frame, str(path), _lines(text, header), text=True, file=True, notes=notes), not header


def _layout(text: _Text, header: bool) -> str:
    apart = "spaces" if text.separator == SPACES else SEPARATORS.get(text.separator, repr(text.separator))
    first = "the first line is the header" if header else "there is no header"
    return f"{text.path.name}: columns are separated by {apart}, {first}."


def _is_header_of_edges(cells: list[str], frame: Any, names: tuple[str | None, ...]) -> bool:
    """Returns whether the first row of a list of edges has names instead of ids."""
    lower = [cell.lower() for cell in cells]
    if any(name is not None and name in cells for name in names):
        return True
    if any(first in lower and second in lower for first, second in END_NAMES):
        return True
    if any(NUMBER.fullmatch(cell) for cell in cells) or len(frame) == 1:
        return False
    rest = frame.iloc[1:]
    if any(bool(rest[column].str.strip().str.fullmatch(INTEGER).all()) for column in list(frame.columns)[:2]):
        return True
    # Names of nodes occur again, names of columns do not.
    ends = {*rest.iloc[:, 0].str.strip(), *rest.iloc[:, 1].str.strip()} if len(cells) > 1 else set()
    return not any(cell in ends for cell in cells[:2])


def _unique(cells: Sequence[str], path: Path) -> list[str]:
    names = [cell or f"column {at}" for at, cell in enumerate(cells, 1)]
    repeated = next((name for name, count in Counter(names).items() if count > 1), None)
    if repeated is not None:
        raise DataCorrupt(f"{path} has more than one column {repeated!r}; rename one of them.")
    return names


class _lines:
    """Words for the row of a table: its line in the file."""

    def __init__(self, text: _Text, header: bool) -> None:
        self.text, self.header = text, header

    def __call__(self, row: int) -> str:
        return f"line {self.text.line(row + self.header)}"


def read_table(
    path: PathOrStr,
    *,
    label: str | None = None,
    id: str | None = None,
    options: _Options = _Options(),  # noqa: B008 - frozen
) -> Any:
    """Returns a file of nodes: a table, or an array if it is a .npy file or a SciPy matrix in .npz."""
    path = Path(path)
    kind = path.suffix.lower()
    if kind in (".npz", ".npy"):
        return _read_array(path)
    if kind in (".parquet", ".pq"):
        return replace(_read_parquet(path), id=id)
    text = _read_text(path, options)
    _, first = text.first()
    cells = [cell.strip() for cell in first]
    header = options.header
    if header is None:
        header = not any(NUMBER.fullmatch(cell) for cell in cells[1:]) or label in cells or id in cells
    names = _unique(cells, path) if header else [str(number) for number in range(1, len(cells) + 1)]
    own = id if id in names else next((name for name in names if name.lower() in ID_NAMES), names[0])
    texts = {own, label} & set(names)
    body = text
    if header:
        # The header is cut off here and not by pandas, so that a column keeps its type.
        number, _ = text.first()
        start = sum(len(line) + 1 for line in text.text.split("\n", number - text.skipped)[: number - text.skipped])
        body = replace(text, text=text.text[start:], skipped=number)
        if not body.text.strip():
            raise DataCorrupt(f"{path} has a header but no rows.")
    frame = body.frame(
        len(names),
        names=names,
        dtype=dict.fromkeys(texts, str),
        na_values={name: list(MISSING) for name in names if name != own},
    )
    notes = (*text.notes, _layout(text, header))
    return Table(frame, str(path), _lines(body, False), text=True, file=True, id=id, notes=notes)


def _read_parquet(path: Path) -> Table:
    import pandas as pd

    content = _content(path)
    try:
        frame = pd.read_parquet(io.BytesIO(content))
    except ImportError as cause:
        raise ConfigError('Reading Parquet needs pyarrow: pip install "asgnn[parquet]".') from cause
    except Exception as cause:  # pyarrow raises many types; the cause is always the content
        raise DataCorrupt(f"{path} is damaged or not a Parquet file: {_sentence(cause)}.") from cause
    if not isinstance(frame.index, pd.RangeIndex):
        frame = frame.reset_index()
    if len(frame) == 0 or len(frame.columns) == 0:
        raise DataCorrupt(f"{path} is empty.")
    return Table(frame, str(path), lambda row: f"row {row}", file=True)


# --- archives and GraphML -------------------------------------------------------------------------------------------

SCIPY = ("data", "indices", "indptr", "shape", "format", "row", "col")
NAMES = {
    "edge_index": ("edge_index", "edges"),
    "edge_weight": ("edge_weight", "edge_weights", "weight"),
    "x": ("x", "features", "node_features"),
    "y": ("y", "labels", "node_labels"),
    "ids": ("ids", "node_ids", "names"),
    "feature_names": ("feature_names",),
    "classes": ("classes", "class_names"),
}


def _names_in(path: Path) -> list[str]:
    _content_check(path)
    try:
        with zipfile.ZipFile(path) as archive:
            return [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
    except (zipfile.BadZipFile, OSError, ValueError) as cause:
        raise DataCorrupt(f"{path} is damaged or not a NumPy archive: {_sentence(cause)}.") from cause


def _content_check(path: Path) -> None:
    if not path.exists():
        raise DataUnavailable(f"There is no file {path}.")
    if not path.is_file():
        raise DataUnavailable(f"{path} is {'a folder' if path.is_dir() else 'a device or a pipe'}, not a file.")


def _read_archive(path: Path) -> tuple[Any, dict[str, NDArray[Any]]]:
    """Returns the graph of an archive, a matrix or a Data, and the arrays with names."""
    there = _names_in(path)
    if "format" in there and "data" in there:
        return _matrix(path, ""), {}
    if "adj_data" in there:
        adj = _matrix(path, "adj_")
        found: dict[str, Any] = {"x": _matrix(path, "attr_")} if "attr_data" in there else {}
        key = next((key for key in NAMES["y"] if key in there), None)
        found |= {} if key is None else {"y": read_npz(path, [key])[key]}
        return adj, found
    chosen = {name: next((key for key in keys if key in there), None) for name, keys in NAMES.items()}
    keys = [key for key in chosen.values() if key is not None]
    if chosen["edge_index"] is None:
        raise DataCorrupt(
            f"{path} contains neither edge_index, edges nor a SciPy matrix; its arrays are "
            f"{', '.join(there) or 'none'}."
        )
    arrays = read_npz(path, keys)
    found = {name: arrays[key] for name, key in chosen.items() if key is not None}
    pairs = found.pop("edge_index")
    if pairs.ndim != 2 or 2 not in pairs.shape or pairs.dtype.kind not in "iu":
        raise DataCorrupt(
            f"{path}: {chosen['edge_index']} must be whole numbers of shape (2, E) or (E, 2); it is {pairs.dtype} of "
            f"shape {pairs.shape}."
        )
    # (2, 2) is read as PyG reads it, unless the name says pairs.
    by_row = pairs.shape[0] != 2 or (pairs.shape[1] == 2 and chosen["edge_index"] == "edges")
    pairs = (pairs if by_row else pairs.T).astype(np.int64)
    nodes = max([int(pairs.max(initial=-1)) + 1, *(len(found[key]) for key in ("x", "y", "ids") if key in found)])
    if pairs.size and pairs.min() < 0:
        raise DataCorrupt(f"{path}: {chosen['edge_index']} contains the negative number {pairs.min()}.")
    import torch

    graph = Data(edge_index=torch.from_numpy(np.ascontiguousarray(pairs.T)), num_nodes=nodes)
    if "edge_weight" in found:
        weight = found.pop("edge_weight")
        if weight.shape != (len(pairs),) or weight.dtype.kind not in "fiub":
            raise DataCorrupt(f"{path}: edge_weight must have one number per edge; its shape is {weight.shape}.")
        graph.edge_weight = torch.from_numpy(weight.astype(np.float64))
    return graph, found


def _matrix(path: Path, prefix: str) -> Any:
    """Returns a sparse matrix as ``scipy.sparse.save_npz`` writes it; the names of its arrays may have a prefix."""
    arrays = read_npz(path, [f"{prefix}data", f"{prefix}shape"], [f"{prefix}{name}" for name in SCIPY])
    get: dict[str, Any] = {name: arrays.get(f"{prefix}{name}") for name in SCIPY}
    kind = "csr" if get["format"] is None else _word(get["format"])
    shape: Any = tuple(int(size) for size in np.ravel(arrays[f"{prefix}shape"]))
    try:
        if kind == "coo":
            matrix: Any = sp.coo_array((get["data"], (get["row"], get["col"])), shape=shape)
        elif kind in ("csr", "csc"):
            build = sp.csr_array if kind == "csr" else sp.csc_array
            matrix = build((get["data"], get["indices"], get["indptr"]), shape=shape)
            matrix.check_format(full_check=True)
        else:
            raise DataCorrupt(f"{path} holds a matrix of format {kind!r}; save it as csr, csc or coo.")
    except (ValueError, TypeError, IndexError) as cause:
        raise DataCorrupt(f"{path} holds a damaged matrix: {_sentence(cause)}.") from cause
    return matrix


def _word(array: NDArray[Any]) -> str:
    value = array.item() if array.size == 1 else ""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _with_names(graph: NamedGraph, kept: dict[str, NDArray[Any]], path: Path) -> NamedGraph:
    """Returns the graph of an archive with the features, labels, ids and names that it contains."""
    if "x" in kept:
        graph = named_graph(graph, features=kept["x"])
        said = tuple(note for note in graph.notes if not note.startswith("There are no features"))
        graph = replace(graph, notes=said)
    if "y" in kept:
        graph = named_graph(graph, kept["y"])
    for name, count in (("ids", graph.num_nodes), ("feature_names", len(graph.feature_names))):
        if name in kept and kept[name].shape != (count,):
            raise DataCorrupt(f"{path}: {name} must have {count} entries; its shape is {kept[name].shape}.")
    if "ids" in kept:
        ids = kept["ids"]
        if len(np.unique(ids)) != len(ids):
            raise DataCorrupt(f"{path}: an id occurs twice in ids.")
        graph = replace(graph, ids=ids.astype(object) if ids.dtype.kind in "US" else ids)
    if "feature_names" in kept:
        graph = replace(graph, feature_names=tuple(map(str, kept["feature_names"])))
    if "classes" in kept and len(graph.classes) and graph.classes.dtype.kind == "i":
        names = kept["classes"]
        if names.ndim != 1 or int(graph.classes.max()) >= len(names) or int(graph.classes.min()) < 0:
            raise DataCorrupt(f"{path}: classes has {names.size} names, too few for the labels.")
        labels = [None if label is None else str(names[label]) for label in graph.labels()]
        graph = named_graph(graph, labels)
    return graph


def _read_array(path: Path) -> Any:
    """Returns features in the order of the nodes: a .npy array, or a SciPy matrix or the array x of an archive."""
    if path.suffix.lower() == ".npz":
        there = _names_in(path)
        if "format" in there:
            return _matrix(path, "")
        key = next((key for key in NAMES["x"] if key in there), None)
        if key is None:
            raise DataCorrupt(f"{path} contains neither x nor features; its arrays are {', '.join(there) or 'none'}.")
        return read_npz(path, [key])[key]
    try:
        return np.load(io.BytesIO(_content(path)), allow_pickle=False)
    except (ValueError, EOFError, OSError) as cause:
        raise DataCorrupt(f"{path} is damaged or not a NumPy array: {_sentence(cause)}.") from cause


def _read_graphml(path: Path) -> Any:
    networkx = import_networkx("Reading GraphML")
    content = _content(path)
    if len(content) > MAX_UNPACKED:
        raise DataCorrupt(f"{path} is larger than the limit of {MAX_UNPACKED >> 20} MiB.")
    if not content.strip():
        raise DataCorrupt(f"{path} is empty.")
    try:
        graph = networkx.read_graphml(io.BytesIO(content))
    except Exception as cause:  # the parser and networkx raise many types; the cause is always the content
        raise DataCorrupt(f"{path} is damaged or not GraphML: {_sentence(cause)}.") from cause
    if graph.number_of_nodes() == 0:
        raise DataCorrupt(f"{path} has no nodes.")
    if all(re.fullmatch(INTEGER, str(node)) for node in graph.nodes):
        graph = networkx.relabel_nodes(graph, {node: int(node) for node in graph.nodes})
    return graph
