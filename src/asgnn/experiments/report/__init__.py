"""The report: what a store of results holds, beside the paper's figures, as HTML, Markdown and LaTeX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from asgnn.errors import ConfigError
from asgnn.experiments.report.data import Report, collect
from asgnn.experiments.report.html import as_html
from asgnn.experiments.report.latex import as_latex
from asgnn.experiments.report.markdown import as_markdown
from asgnn.experiments.report.source import Source
from asgnn.graphs.sources import write_file

WRITERS: dict[str, tuple[str, Callable[[Report], str]]] = {
    "html": ("report.html", as_html),
    "markdown": ("report.md", as_markdown),
    "latex": ("report.tex", as_latex),
}
FORMATS = tuple(WRITERS)


def write_report(source: Source, folder: Path, formats: Sequence[str] = FORMATS) -> tuple[Path, ...]:
    """Writes the report into ``folder``, one file a format, and says which files those are."""
    unknown = [name for name in formats if name not in WRITERS]
    if unknown or not formats:
        wrong = f"no format {unknown[0]!r}" if unknown else "nothing to write"
        raise ConfigError(f"There is {wrong}; the formats of a report are {', '.join(FORMATS)}.")
    report = collect(source)
    written = []
    for name in dict.fromkeys(formats):
        file, text = WRITERS[name]
        write_file(folder / file, text(report).encode())
        written.append(folder / file)
    return tuple(written)


__all__ = ["FORMATS", "Report", "Source", "collect", "write_report"]
