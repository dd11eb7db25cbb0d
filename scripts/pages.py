"""Tables in documentation pages: each follows a comment with its name. And the options of scripts that write them."""

from __future__ import annotations

import argparse
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


def arguments(about: str | None, splits: int | None = None) -> argparse.Namespace:
    """The options of a script that writes a record and updates a page; ``splits``: those it measures by default."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    if splits is not None:
        parser.add_argument("--splits", type=int, default=splits)
    parser.add_argument("--page", action="store_true", help="only update the page")
    return parser.parse_args()
