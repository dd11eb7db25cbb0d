"""The report as a LaTeX document that compiles by itself, with the tables of booktabs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from asgnn.experiments.report.data import Report
from asgnn.experiments.report.text import Entry, Grid, Heading, Items, Paragraph, Piece, Raw, pieces

SECTIONS = {2: "section*", 3: "subsection*"}
MARKS = {"best": r"\textbf{%s}", "second": r"\underline{%s}", "paper": r"\textit{%s}", "": "%s"}
NOTE = (
    r"The best is \textbf{bold}, the second best \underline{underlined}, a figure of the paper alone \textit{italic}."
)
PREAMBLE = r"""\documentclass[a4paper,landscape,10pt]{article}
\usepackage[utf8]{inputenc}
\usepackage[T1]{fontenc}
\usepackage[margin=15mm]{geometry}
\usepackage{booktabs,longtable,array}
\setlength{\parindent}{0pt}
\setlength{\parskip}{6pt}
\setlength{\tabcolsep}{4pt}
"""
ESCAPES = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "±": r"$\pm$",
    "−": "$-$",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "→": r"$\to$",
    "‖": r"$\|$",
    "–": "--",
    "—": "---",
    "’": "'",
    "α": r"$\alpha$",
    "β": r"$\beta$",
    "γ": r"$\gamma$",
    "η": r"$\eta$",
    "λ": r"$\lambda$",
    "μ": r"$\mu$",
    "σ": r"$\sigma$",
    **{digit: f"$_{value}$" for value, digit in enumerate("₀₁₂₃₄₅₆₇₈₉")},
}


def as_latex(report: Report) -> str:
    return "\n".join([PREAMBLE, *map(_block, pieces(report, Raw(NOTE))), r"\end{document}"]) + "\n"


def _block(piece: Piece) -> str:
    match piece:
        case Heading(1, text):
            return f"\\title{{{escape(text)}}}\n\\date{{}}\n\\begin{{document}}\n\\maketitle"
        case Heading(level, text):
            return f"\\{SECTIONS[level]}{{{escape(text)}}}"
        case Paragraph(text):
            return f"{escape(text)}\n"
        case Raw(text):
            return f"{text}\n"
        case Items(texts):
            items = [rf"\item {escape(text)}" for text in texts]
            return "\n".join([r"\begin{itemize}", *items, r"\end{itemize}"]) if items else ""
        case Grid():
            return "\n".join(_grid(piece))


def _grid(grid: Grid) -> Iterator[str]:
    columns = "".join(
        r">{\raggedright\arraybackslash}p{80mm}" if column in grid.prose else "l" if column == 0 else "r"
        for column in range(len(grid.header))
    )
    yield rf"{{\footnotesize\begin{{longtable}}{{{columns}}}"
    yield rf"\toprule {' & '.join(map(escape, grid.header))} \\ \midrule \endhead \bottomrule \endfoot"
    for row in grid.rows:
        height = max(len(entry.lines) for entry in row)
        for line in range(height):
            # the lines of one row stay on one page
            end = r"\\*" if line + 1 < height else r"\\" if height == 1 else r"\\ \addlinespace"
            yield f"{' & '.join(_line(entry, line) for entry in row)} {end}"
    yield r"\end{longtable}}"


def _line(entry: Entry, line: int) -> str:
    text = escape(entry.lines[line]) if line < len(entry.lines) else ""
    if not text:
        return ""
    return MARKS[entry.mark] % text if line == 0 else rf"{{\scriptsize {text}}}"


def escape(text: str) -> str:
    """Everything that LaTeX would take for its own, and what its Latin fonts have no letter for."""
    escaped = "".join(ESCAPES.get(character, character) for character in " ".join(text.split()))
    return re.sub("[^\x00-\u017f]", lambda found: f"[U+{ord(found[0]):04X}]", escaped)
