"""Take the pictures of the audit page, the report page and the documentation site in headless Chromium.

    make docs                            # the site that is pictured
    python -m scripts.screenshots        # writes docs/figures/{audit,report,docs}*.png
    python -m scripts.screenshots audit  # only these

The audit is an example that anyone can repeat: the built-in Cora graph with the included Metattack flips of 10 % and a
RobustNodeClassifier with its default settings, about three minutes on two cores. It is kept in runs/audit-cora.html.
"""

from __future__ import annotations

import argparse
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import torch
from PIL import Image
from tests.browser import Browser, Page

from asgnn import RobustNodeClassifier
from asgnn.audit import Audit
from asgnn.audit.page import write_audit_page
from asgnn.graphs import load_dataset, load_own, named_graph, random_split

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "docs" / "figures"
EXAMPLE = ROOT / "runs" / "audit-cora.html"
CLASSES = (
    "Case_Based",
    "Genetic_Algorithms",
    "Neural_Networks",
    "Probabilistic_Methods",
    "Reinforcement_Learning",
    "Rule_Learning",
    "Theory",
)
REMOVED, ROW = 250, 2  # the number of edges to remove, and the chosen row
SIZES = {"": (1280, 860), "-phone": (390, 780)}
TALL = {"": (1280, 1080), "-phone": (390, 1200)}  # down to the first charts of the report
LARGEST = 200_000  # bytes of a picture


def example_audit() -> Audit:
    """The audit of Cora after an attack that the package includes."""
    data = load_own("cora", "metattack", 0.1).apply(load_dataset("cora"))
    split = random_split(data, 0)  # the one that the flips were made for
    known = torch.cat([split.train, split.val]).numpy()
    labels = np.full(data.num_nodes, None)
    labels[known] = np.array(CLASSES, object)[data.y.numpy()[known]]
    return RobustNodeClassifier(progress=False, random_state=0).fit(named_graph(data, labels)).audit()


def audit(browser: Browser, again: bool) -> None:
    """A suspicious edge in the table and its neighbourhood, as given and cleaned; on a phone, the drawing."""
    if again or not EXAMPLE.exists():
        write_audit_page(example_audit(), EXAMPLE, title="Edge audit: Cora, 10 % of the edges flipped by Metattack")
    for ending, (width, height) in SIZES.items():
        with browser.open(EXAMPLE, width=width, height=height) as page:
            page.type("#number", str(REMOVED))
            page.click("#table tbody tr[data-place] td.k-source", ROW)
            _picture(page, f"audit{ending}")


def report(browser: Browser, again: bool) -> None:
    """The story of the report and its first charts."""
    for ending, (width, height) in TALL.items():
        with browser.open(ROOT / "docs" / "results" / "report.html", width=width, height=height) as page:
            _picture(page, f"report{ending}")


def docs(browser: Browser, again: bool) -> None:
    """The first page of the site."""
    start = ROOT / "site" / "index.html"
    if not start.exists():
        raise SystemExit("There is no site/index.html; run make docs first.")
    handler = partial(QuietHandler, directory=start.parent)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:  # from a file, the site has no search
        Thread(target=server.serve_forever, daemon=True).start()
        for ending, (width, height) in SIZES.items():
            with browser.open(f"http://127.0.0.1:{server.server_port}/", width=width, height=height) as page:
                _picture(page, f"docs{ending}")
        server.shutdown()


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves files and writes no log."""

    def log_message(self, format: str, *args: object) -> None:
        pass


PICTURES = {"audit": audit, "report": report, "docs": docs}


def _picture(page: Page, name: str) -> None:
    """Write what is shown with 256 colours, a third of the bytes: the most frequent 128 exactly, the others nearly."""
    page.settle()
    path = FIGURES / f"{name}.png"
    page.picture(path)
    with Image.open(path) as taken:
        full = taken.convert("RGB")
    frequent = sorted(full.getcolors(full.width * full.height) or (), reverse=True)[:128]
    others = full.quantize(128, Image.Quantize.MAXCOVERAGE).getpalette() or []
    palette = Image.new("P", (1, 1))
    palette.putpalette([*np.ravel([colour for _, colour in frequent]).tolist(), *others[: 3 * 128]])
    full.quantize(palette=palette, dither=Image.Dither.NONE).save(path, optimize=True)
    size = path.stat().st_size
    if size > LARGEST:
        raise SystemExit(f"{path} has {size:,} bytes, more than {LARGEST:,}.")
    print(f"{path.relative_to(ROOT)}  {size / 1000:.0f} kB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", default=list(PICTURES), help=f"of {', '.join(PICTURES)}; by default all")
    parser.add_argument("--again", action="store_true", help="make the example audit anew")
    chosen = parser.parse_args()
    if unknown := [name for name in chosen.pages if name not in PICTURES]:
        parser.error(f"{unknown[0]} is not one of {', '.join(PICTURES)}")
    with Browser() as browser:
        for name in chosen.pages:
            PICTURES[name](browser, chosen.again)


if __name__ == "__main__":
    main()
