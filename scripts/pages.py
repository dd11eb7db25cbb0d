"""Tables in documentation pages: each follows a comment with its name."""

from __future__ import annotations

from pathlib import Path


def fill(page: Path, tables: dict[str, list[str]]) -> None:
    """Replace the table after each ``<!-- name -->`` by the given lines."""
    text = page.read_text()
    for name, lines in tables.items():
        before, mark, after = text.partition(f"<!-- {name} -->\n\n")
        while after.startswith("|"):
            after = after.partition("\n")[2]
        rest = after.lstrip("\n")
        text = before + mark + "".join(f"{line}\n" for line in lines) + ("\n" + rest if rest else "")
    page.write_text(text)
