"""The report of a store: its results next to the paper's, as HTML, Markdown and LaTeX; it trains nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from asgnn.errors import ConfigError
from asgnn.experiments.report.data import Report, collect
from asgnn.experiments.report.render import FORMATS, render
from asgnn.experiments.store import Store
from asgnn.graphs.sources import write_file


def write_report(store: Store, folder: Path, formats: Sequence[str] = tuple(FORMATS)) -> tuple[Path, ...]:
    """Write one file per format into ``folder`` and return their paths."""
    unknown = [name for name in formats if name not in FORMATS]
    if unknown or not formats:
        problem = f"Unknown report format {unknown[0]!r}" if unknown else "No report format given"
        raise ConfigError(f"{problem}; choose from {', '.join(FORMATS)}.")
    report = collect(store)
    written = []
    for name in dict.fromkeys(formats):
        written.append(folder / FORMATS[name].file)
        write_file(written[-1], render(report, name).encode())
    return tuple(written)


__all__ = ["FORMATS", "Report", "collect", "render", "write_report"]
