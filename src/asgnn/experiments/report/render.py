"""The report as text: Jinja2 templates that escape every value for their format."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from dataclasses import dataclass

from asgnn.experiments.records import RECORDS
from asgnn.experiments.report import text
from asgnn.experiments.report.data import Report
from asgnn.experiments.report.edges import MEASURES
from asgnn.experiments.report.page import page_data
from asgnn.experiments.report.tables import MeanStd

GREEK = {"α": "alpha", "β": "beta", "γ": "gamma", "η": "eta", "λ": "lambda", "μ": "mu", "σ": "sigma"}
LATEX = {
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
    "†": r"$\dagger$",
    "“": "``",
    "”": "''",
    **{letter: rf"$\{name}$" for letter, name in GREEK.items()},
    **{digit: f"$_{value}$" for value, digit in enumerate("₀₁₂₃₄₅₆₇₈₉")},
}


def escape_latex(value: str) -> str:
    """Escape what LaTeX would interpret, and name characters that its Latin fonts do not have."""
    escaped = "".join(LATEX.get(character, character) for character in " ".join(value.split()))
    return re.sub("[^\x00-\u017f]", lambda found: f"[U+{ord(found[0]):04X}]", escaped)


def escape_markdown(value: str) -> str:
    """Escape what Markdown, its tables or HTML would interpret."""
    return re.sub(r"([\\`*_\[\]|#~])", r"\\\1", html.escape(" ".join(value.split()), quote=False))


@dataclass(frozen=True)
class Format:
    """``template`` is the whole page, or for Markdown and LaTeX the macros that document.j2 uses."""

    file: str
    template: str
    escape: Callable[[str], str]


FORMATS = {
    "html": Format("report.html", "page.html", html.escape),
    "markdown": Format("report.md", "markdown.j2", escape_markdown),
    "latex": Format("report.tex", "latex.j2", escape_latex),
}


def render(report: Report, name: str) -> str:
    """The report in one of ``FORMATS``."""
    # Imported here: only this function needs it, and the command line imports this module.
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    chosen = FORMATS[name]

    def escaped(value: object) -> Markup:
        return value if isinstance(value, Markup) else Markup(chosen.escape(str(value)))

    # Every value that a template prints passes through ``escaped``; autoescape keeps the output of macros as it is.
    environment = Environment(
        loader=(loader := PackageLoader(__package__)),
        autoescape=True,
        finalize=escaped,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "allow_nan": False, "separators": (",", ":")}
    shared = {
        "report": report,
        "text": text,
        "MeanStd": MeanStd,
        "MEASURES": MEASURES,
        "RECORDS": RECORDS,
        **text.SENTENCES,
    }
    if name == "html":
        files = {ending: Markup(loader.get_source(environment, f"page.{ending}")[0]) for ending in ("css", "js")}
        return environment.get_template(chosen.template).render(**shared, **files, data=page_data(report))
    document = environment.get_template("document.j2").render(**shared, layout=chosen.template)
    return re.sub(r"\n{3,}", "\n\n", document).strip() + "\n"
