"""The documentation site: docstrings become Markdown, formulas MathML, and the reference names everything public."""

from __future__ import annotations

import ast
import importlib
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import griffe
import pytest
import yaml

import asgnn

ROOT = Path(__file__).parents[1]
REFERENCE = "".join(page.read_text() for page in (ROOT / "docs" / "api").glob("*.md"))


@pytest.fixture
def hooks(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    return importlib.import_module("docs_hooks")


# --- the reference ----------------------------------------------------------------------------------------------------


def test_every_public_name_is_in_the_reference() -> None:
    shown = {path.rpartition(".")[2] for path in re.findall(r"^::: ([\w.]+)$", REFERENCE, flags=re.MULTILINE)}
    assert set(asgnn.__all__) - {"__version__"} <= shown


def test_the_reference_names_what_exists() -> None:
    for path in re.findall(r"^::: ([\w.]+)$", REFERENCE, flags=re.MULTILINE):
        module, _, name = path.rpartition(".")
        assert getattr(importlib.import_module(module), name).__doc__, path


def test_every_page_is_in_the_navigation() -> None:
    class Loader(yaml.SafeLoader):
        pass

    def pages(part: object) -> Iterator[str]:
        if isinstance(part, str):
            yield part
        else:
            for inner in part.values() if isinstance(part, dict) else part:  # type: ignore[attr-defined]
                yield from pages(inner)

    found = list(pages(yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)["nav"]))
    assert len(found) == len(set(found))
    there = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert set(found) == there


# --- docstrings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ("plain ``code`` and *words*", "plain ``code`` and *words*"),
        (":math:`x_i + 1` grows", "$x_i + 1$ grows"),
        ("A.\n\n.. math:: a = b\n\nB.", "A.\n\n\n$$\na = b\n$$\n\nB."),
        ("A.\n\n    .. math::\n        a = b\n\n    B.", "A.\n\n\n    $$\n    a = b\n    $$\n\n    B."),
        (
            ".. math::\n    a &= b \\\\\n    c &= d\n",
            "\n$$\n\\begin{aligned}\na &= b \\\\\nc &= d\n\\end{aligned}\n$$\n\n",
        ),
        (
            "see :func:`~asgnn.graphs.diff`",
            'see <autoref optional identifier="asgnn.graphs.diff"><code>diff()</code></autoref>',
        ),
        (
            "a :class:`asgnn.models.GCN`",
            'a <autoref optional identifier="asgnn.models.GCN"><code>asgnn.models.GCN</code></autoref>',
        ),
    ],
)
def test_docstrings_as_markdown(hooks: ModuleType, given: str, made: str) -> None:
    assert hooks.to_markdown(given) == made


def test_short_names_are_looked_up_where_they_are_written(hooks: ModuleType) -> None:
    with griffe.temporary_visited_module(
        'from os import sep\nclass A: """Like :class:`B` or :class:`C`."""\nclass B: ...'
    ) as module:
        module["A"].docstring.value = made = hooks.to_markdown(module["A"].docstring.value, module["A"])
    assert 'identifier="module.B"' in made
    assert "or `C`" in made


def test_no_role_is_left_in_any_docstring(hooks: ModuleType) -> None:
    """Every docstring of the package, so that a role or a directive that the hook does not know is found."""
    seen = 0
    for path in (ROOT / "src" / "asgnn").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
                made = hooks.to_markdown(text)
                left = re.findall(r":[a-z]+:`[^`]*`|\.\. [a-z]+::", made)
                assert not left, f"{path.name}: {left}"
                seen += made != text
    assert seen > 100


# --- formulas ---------------------------------------------------------------------------------------------------------


def formulas() -> list[str]:
    pages = [page.read_text() for page in (ROOT / "docs").rglob("*.md")]
    return [formula for page in pages for formula in re.findall(r"^\$\$\n(.*?)\n\$\$$", page, flags=re.M | re.S)]


def test_formulas_of_the_pages_are_understood(hooks: ModuleType) -> None:
    """Commands that are not understood stay in the MathML as text with a backslash."""
    assert len(formulas()) > 20
    for formula in formulas():
        tree = ET.fromstring(hooks.mathml(formula, "block"))
        assert "\\" not in "".join(tree.itertext()), formula


def test_formulas_of_the_docstrings_are_understood(hooks: ModuleType) -> None:
    seen = 0
    for path in (ROOT / "src" / "asgnn").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
                made = hooks.to_markdown(text)
                for formula in re.findall(r"\$\$\n(.*?)\n *\$\$", made, flags=re.DOTALL) + re.findall(
                    r"\$([^$\n]+)\$", made
                ):
                    tree = ET.fromstring(hooks.mathml(formula, "block"))
                    assert "\\" not in "".join(tree.itertext()), f"{path.name}: {formula}"
                    seen += 1
    assert seen > 100


def test_formulas_in_a_page(hooks: ModuleType) -> None:
    page = (
        '<p>if <span class="arithmatex">\\(a &lt; b\\)</span></p><div class="arithmatex">\\[\n\\frac{1}{2}\n\\]</div>'
    )
    made = hooks.on_page_content(page)
    assert "arithmatex" not in made
    inline, block = ET.fromstring(f"<html>{made.replace('xmlns=', 'x=')}</html>").iter("math")
    assert (inline.get("display"), "".join(inline.itertext())) == ("inline", "a<b")
    assert block.get("display") == "block"
    (fraction,) = block.iter("mfrac")
    assert "".join(fraction.itertext()) == "12"
