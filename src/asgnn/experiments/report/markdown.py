"""The report as GitHub's Markdown."""

from __future__ import annotations

import re

from asgnn.experiments.report.data import Report
from asgnn.experiments.report.text import Entry, Grid, Heading, Items, Paragraph, Piece, Raw, pieces

MARKS = {"best": "**{}**", "second": "<u>{}</u>", "paper": "*{}*", "": "{}"}
NOTE = "The best is **bold**, the second best <u>underlined</u>, a figure of the paper alone *italic*."


def as_markdown(report: Report) -> str:
    return "\n\n".join(_block(piece) for piece in pieces(report, Raw(NOTE))) + "\n"


def _block(piece: Piece) -> str:
    match piece:
        case Heading(level, text):
            return f"{'#' * level} {escape(text)}"
        case Paragraph(text):
            return escape(text)
        case Raw(text):
            return text
        case Items(texts):
            return "\n".join(f"- {escape(text)}" for text in texts)
        case Grid():
            return _grid(piece)


def _grid(grid: Grid) -> str:
    rules = "|".join("---" if column == 0 or column in grid.prose else "---:" for column in range(len(grid.header)))
    lines = [f"| {' | '.join(map(escape, grid.header))} |", f"|{rules}|"]
    lines += [f"| {' | '.join(map(_entry, row))} |" for row in grid.rows]
    return "\n".join(lines)


def _entry(entry: Entry) -> str:
    first, *below = map(escape, entry.lines)
    return "<br>".join([MARKS[entry.mark].format(first) if first else "", *below])


def escape(text: str) -> str:
    """What Markdown or HTML would take for its own; a table's bar and line breaks too."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|#~])", r"\\\1", " ".join(text.split()))
