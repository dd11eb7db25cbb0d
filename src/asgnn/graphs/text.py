"""Tables in text files: encoding, separator, decimal sign, and the lines of rows."""

from __future__ import annotations

import csv
import gzip
import io
import re
import warnings
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from asgnn.errors import ConfigError, DataCorrupt, DataUnavailable

MAX_TEXT = 8 << 30  # bytes of one text file
HEAD = 16 << 20  # characters that contain the first row
SAMPLE = 200  # lines from which separator and decimal sign are recognised
SEPARATORS = {"\t": "tabs", ";": "semicolons", ",": "commas", "|": "vertical bars"}
SPACES = r"\s+"
COMMENTS = ("#", "%")
JSON = re.compile(r'\s*(?:(?:\[\s*)?\{\s*"|\[\s*\[)')
DECIMAL_COMMA, DECIMAL_POINT = re.compile(r"\s*-?[0-9]+,[0-9]+\s*"), re.compile(r"\s*-?[0-9]+\.[0-9]+\s*")


@dataclass(frozen=True)
class TextOptions:
    """How to read text; ``None`` is recognised from the content."""

    header: bool | None = None
    separator: str | None = None
    encoding: str | None = None

    def __post_init__(self) -> None:
        if self.header not in (None, True, False):
            raise ConfigError(f"header must be True, False or None; it is {self.header!r}.")
        for name in ("separator", "encoding"):
            if not isinstance(getattr(self, name), str | None):
                raise ConfigError(f"{name} must be a text; it is {getattr(self, name)!r}.")


@dataclass(frozen=True, eq=False)
class Text:
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
                found = "there is 1 column" if len(cells) == 1 else f"there are {len(cells)} columns"
                raise DataCorrupt(f"{self.path}, line {number}: {found}, but {width} in the first line.")

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
            raise DataCorrupt(f"{self.path} cannot be read as a table: {sentence_of(cause)}.") from cause
        # A row with too few cells is filled up by pandas without a word.
        last = found.iloc[:, -1]
        if len(found.columns) != width or bool((last.isna() | (last == "")).any()):
            self.check_widths(width)
        if len(found.columns) != width:
            raise DataCorrupt(f"{self.path} cannot be read as a table: its rows have different numbers of columns.")
        return found


def sentence_of(cause: BaseException) -> str:
    return " ".join(str(cause).split()).rstrip(".")


def read_text(path: Path, options: TextOptions) -> Text:
    text, notes = _decode(path, content_of(path), options.encoding)
    skipped = 0
    while text.startswith(COMMENTS):
        if text.startswith("%%MatrixMarket"):
            raise DataCorrupt(f"{path} is a Matrix Market file; convert it with scipy.sparse.save_npz.")
        text, skipped = text.partition("\n")[2], skipped + 1
    if not text.strip():
        raise DataCorrupt(f"{path} is empty.")
    if JSON.match(text):
        raise DataCorrupt(f"{path} is JSON, which is not read; save the table as CSV or Parquet.")
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
    return Text(path, text, separator, decimal, skipped, tuple(notes))


def check_file(path: Path) -> None:
    """Raises unless there is such a file, which is no folder, device or pipe."""
    try:
        if path.is_file():
            return
        kind = "a folder" if path.is_dir() else "a device or a pipe" if path.exists() else ""
    except OSError as cause:  # such as a name that is too long
        raise DataUnavailable(f"{path} cannot be read: {cause.strerror or cause}.") from cause
    raise DataUnavailable(f"{path} is {kind}, not a file." if kind else f"There is no file {path}.")


def content_of(path: Path) -> bytes:
    """Returns the bytes of a file, unpacked if it is compressed."""
    check_file(path)
    try:
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            with gzip.open(io.BytesIO(content)) as file:
                content = file.read(MAX_TEXT + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as cause:
        raise DataCorrupt(f"{path} is a damaged gzip file: {sentence_of(cause)}.") from cause
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
        if encoding != "utf-16":
            _check_no_zeros(path, b"\x00" in content)
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
        _check_no_zeros(path, "\x00" in text)  # UTF-32 begins like UTF-16
    else:
        try:
            text = content.decode(encoding)
        except LookupError as cause:
            raise ConfigError(f"There is no encoding {encoding!r}.") from cause
        except (UnicodeError, ValueError) as cause:
            raise DataCorrupt(f"{path} is not {encoding}: {sentence_of(cause)}.") from cause
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text, notes


def _check_no_zeros(path: Path, found: bool) -> None:
    if found:
        raise DataCorrupt(
            f"{path} contains zero bytes, so it is not a text file, or its encoding is not recognised; save a "
            "spreadsheet as CSV, or name the encoding."
        )


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


def layout_of(text: Text, header: bool) -> str:
    apart = "spaces" if text.separator == SPACES else SEPARATORS.get(text.separator, repr(text.separator))
    first = "the first line is the header" if header else "there is no header"
    return f"{text.path.name}: columns are separated by {apart}, {first}."


def unique_names(cells: Sequence[str], path: Path) -> list[str]:
    names = [cell or f"column {at}" for at, cell in enumerate(cells, 1)]
    repeated = next((name for name, count in Counter(names).items() if count > 1), None)
    if repeated is not None:
        raise DataCorrupt(f"{path} has more than one column {repeated!r}; rename one of them.")
    return names


class Lines:
    """Words for the row of a table: its line in the file."""

    def __init__(self, text: Text, header: bool) -> None:
        self.text, self.header = text, header

    def __call__(self, row: int) -> str:
        return f"line {self.text.line(row + self.header)}"
