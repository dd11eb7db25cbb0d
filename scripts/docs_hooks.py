"""Hooks of the documentation site (mkdocs.yml): typeset mathematics, and docstrings of this project as Markdown.

Formulas become MathML, which browsers draw themselves, so the site loads no script and no font for them. Docstrings use
Sphinx's roles (``:func:`~asgnn.fit```) and its ``.. math::`` blocks, because Python's own help and editors show these
well; a Griffe extension turns them into Markdown.
"""

from __future__ import annotations

import html
import re
import textwrap
from typing import Any

import griffe
from latex2mathml.converter import convert

# What arithmatex makes of $…$ and $$…$$.
INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', flags=re.DOTALL)
BLOCK = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', flags=re.DOTALL)
MATH = re.compile(r"^( *)\.\. math::[ ]*(.*)\n((?:[ ]*\n|\1[ ]+\S.*(?:\n|\Z))*)", flags=re.MULTILINE)
ROLE = re.compile(r":(func|class|meth|mod|data|attr|exc):`(~?)([\w.]+)`")
INLINE_ROLE = re.compile(r":math:`([^`]+)`")


def on_page_content(content: str, **_: Any) -> str:
    """Replaces the formulas of a page by MathML; called by MkDocs."""
    content = INLINE.sub(lambda found: mathml(found[1], "inline"), content)
    return BLOCK.sub(lambda found: f'<div class="formula">{mathml(found[1], "block")}</div>', content)


def mathml(formula: str, display: str) -> str:
    """Returns a formula of LaTeX as MathML."""
    # latex2mathml knows align* only, and GitHub aligned only; it knows no large double bars
    formula = re.sub(r"\\[Bb]ig+[lr]?\\\|", r"\\|", html.unescape(formula).strip())
    made = convert(formula.replace("{aligned}", "{align*}"), display=display)
    # browsers follow the style of a cell, not the attribute that MathML 3 had for it
    return re.sub(r'columnalign="(left|right)"', r'style="text-align: \1; padding: .25em 0"', made)


class Docstrings(griffe.Extension):
    """Rewrites docstrings from Sphinx's roles and directives to Markdown."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = to_markdown(obj.docstring.value, obj)


def to_markdown(text: str, obj: griffe.Object | None = None) -> str:
    """Returns a docstring with roles as links and formulas between dollar signs.

    A role without a module, such as ``:class:`Gaussian```, is looked up where ``obj`` is defined. A link to an object
    that the reference does not show is printed as code.
    """

    def block(found: re.Match[str]) -> str:
        lines = textwrap.dedent(f"{found[3]}").strip("\n")
        formula = "\n".join(filter(None, [found[2].strip(), *(line.strip() for line in lines.splitlines())]))
        # an aligned formula without its own environment, as Sphinx takes it
        if "\\\\" in formula and "\\begin" not in formula:
            formula = f"\\begin{{aligned}}\n{formula}\n\\end{{aligned}}"
        return textwrap.indent(f"\n$$\n{formula}\n$$\n\n", found[1])

    def link(found: re.Match[str]) -> str:
        name = found[3]
        shown = name.rpartition(".")[2] if found[2] else name
        path = name
        if obj is not None and not name.startswith("asgnn."):
            try:
                path = obj.resolve(name)
            except griffe.NameResolutionError:
                return f"`{shown}`"
        call = "()" if found[1] in {"func", "meth"} else ""
        return f'<autoref optional identifier="{path}"><code>{shown}{call}</code></autoref>'

    text = MATH.sub(block, text)
    return ROLE.sub(link, INLINE_ROLE.sub(r"$\1$", text))
