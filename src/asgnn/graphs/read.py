"""Graphs from files: CSV, TSV and other text, Parquet, NumPy and SciPy archives, GraphML."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asgnn.errors import ConfigError, DataCorrupt, GraphError
from asgnn.graphs.archives import read_archive, read_array, read_graphml, with_names
from asgnn.graphs.assemble import of_tables
from asgnn.graphs.named import NamedGraph, named_graph
from asgnn.graphs.tables import (
    END_NAMES,
    ID_NAMES,
    INTEGER,
    Table,
    clean_ids,
    end_columns,
    is_a,
    like_ids,
    shown,
    table_of,
)
from asgnn.graphs.text import (
    Lines,
    TextOptions,
    content_of,
    layout_of,
    read_text,
    sentence_of,
    unique_names,
)

ARCHIVES = (".npz", ".graphml", ".xml")  # files that are not tables
# What counts as a missing number or label in a text file: the words of pandas, and the ? of the UCI repository.
MISSING = (
    "", "?", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA",
    "NULL", "NaN", "None", "n/a", "nan", "null",
)  # fmt: skip
NUMBER = re.compile(r"\s*[-+]?(?:[0-9]+(?:[.,][0-9]*)?|[.,][0-9]+)(?:[eE][-+]?[0-9]+)?\s*")

PathOrStr = str | PathLike[str]


def read_graph(
    edges: PathOrStr,
    features: Any = None,
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
        features: The file of nodes: a table with ids, features and, if wanted, labels. Also a DataFrame or an array, as
            in :func:`named_graph`.
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
    options = TextOptions(header, separator, encoding)
    nodes = features
    if isinstance(features, str | PathLike):
        nodes = read_table(features, label=label, id=id, options=options)
    elif is_a(features, "pandas", "DataFrame"):
        nodes = replace(table_of(features, "features"), id=id)
    if isinstance(nodes, Table):
        names = None if feature_names is None else tuple(feature_names)
        nodes = replace(nodes, ignore=tuple(ignore), features=names)
    kind = path.suffix.lower()
    if kind == ".npz":
        graph, kept = read_archive(path)
        if nodes is not None:
            found = named_graph(graph, label, features=nodes)
        elif label is not None:
            raise ConfigError(f"{path} is an archive: its labels are taken as they are; leave out the label.")
        else:
            found = named_graph(graph)
        found = with_names(found, kept, path) if nodes is None else found
    elif kind in ARCHIVES:
        found = named_graph(read_graphml(path), label, features=nodes)
    else:
        table, headless = _read_edges(path, options, (source, target, weight))
        if label is not None and nodes is None:
            raise ConfigError(f"The label {label!r} is a column of the features, but no file of features was given.")
        ends = {"source": source, "target": target, "weight": weight}
        found = of_tables(table, nodes, label, headless=headless, **ends)
    if feature_names and isinstance(nodes, Table):
        found = found.with_features(feature_names)
    if label is not None:
        _check_classes(found, nodes.name if isinstance(nodes, Table) else str(path), label)
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
    table, headless = _read_edges(path, TextOptions(header, separator, encoding), (source, target, None))
    ends = like_ids(clean_ids(table, end_columns(table, source, target)), graph.ids)
    first, second = (graph.numbers(one) for one in ends)
    return EdgeRows(table.frame, first, second, not headless)


def _read_edges(path: Path, options: TextOptions, names: tuple[str | None, ...]) -> tuple[Table, bool]:
    """Returns the table of edges, and whether its columns have no names."""
    if path.suffix.lower() in (".parquet", ".pq"):
        return _read_parquet(path), False
    text = read_text(path, options)
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
        frame.columns = unique_names(cells, path)
    else:
        frame.columns = [str(number) for number in range(1, len(cells) + 1)]
    if text.decimal == ",":
        for column in frame.columns[2:]:
            frame[column] = frame[column].str.replace(",", ".")
    notes = (*text.notes, layout_of(text, header))
    return Table(frame, str(path), Lines(text, header), text=True, file=True, notes=notes), not header


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


def read_table(
    path: PathOrStr,
    *,
    label: str | None = None,
    id: str | None = None,
    options: TextOptions = TextOptions(),  # noqa: B008 - frozen
) -> Any:
    """Returns a file of nodes: a table, or an array if it is a .npy file or a SciPy matrix in .npz."""
    path = Path(path)
    kind = path.suffix.lower()
    if kind in (".npz", ".npy"):
        return read_array(path)
    if kind in (".parquet", ".pq"):
        return replace(_read_parquet(path), id=id)
    text = read_text(path, options)
    _, first = text.first()
    cells = [cell.strip() for cell in first]
    header = options.header
    if header is None:
        header = not any(NUMBER.fullmatch(cell) for cell in cells[1:]) or label in cells or id in cells
    names = unique_names(cells, path) if header else [str(number) for number in range(1, len(cells) + 1)]
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
    notes = (*text.notes, layout_of(text, header))
    return Table(frame, str(path), Lines(body, False), text=True, file=True, id=id, notes=notes)


def _read_parquet(path: Path) -> Table:
    import pandas as pd

    content = content_of(path)
    try:
        # a program that ends soon after threads of pyarrow were started may be aborted
        frame = pd.read_parquet(io.BytesIO(content), engine="pyarrow", use_threads=False, pre_buffer=False)
    except ImportError as cause:
        raise ConfigError('Reading Parquet needs pyarrow: pip install "asgnn[parquet]".') from cause
    except Exception as cause:  # pyarrow raises many types; the cause is always the content
        raise DataCorrupt(f"{path} is damaged or not a Parquet file: {sentence_of(cause)}.") from cause
    if not isinstance(frame.index, pd.RangeIndex):
        frame = frame.reset_index()
    if len(frame) == 0 or len(frame.columns) == 0:
        raise DataCorrupt(f"{path} is empty.")
    return Table(frame, str(path), lambda row: f"row {row}", file=True)
