"""Put what docs/results/results.sqlite holds into the pages: the README's table and those of the reproduction log.

python scripts/paper_tables.py
"""

from __future__ import annotations

from pathlib import Path

from pages import fill

from asgnn.experiments.report.data import SIGNIFICANT, Cell, Report, collect
from asgnn.experiments.report.text import signed
from asgnn.experiments.store import Store

ROOT = Path(__file__).resolve().parents[1]
STORE = ROOT / "docs" / "results" / "results.sqlite"
ROWS = {
    "gcn": "GCN",
    "gcn-jaccard": "GCN-Jaccard",
    "gcn-svd": "GCN-SVD",
    "elastic": "Elastic GNN",
    "appnp": "APPNP",
    "asgnn-frozen": "ASGNN, frozen",
    "asgnn": "ASGNN",
}
ENDS = (0.0, 0.25)


def tables() -> dict[str, list[str]]:
    """By the name of their mark: "searched" for the README, "adaptivity" for the log."""
    with Store.open(STORE, create=False) as store:
        report = collect(store)
    return {"searched": _searched(report), "adaptivity": _adaptivity(report)}


def _searched(report: Report) -> list[str]:
    """Accuracies at both ends of Table 1, every model with the paper's search."""
    lines = [
        f"| graph, flips | {' | '.join(ROWS.values())} | the paper's ASGNN |",
        f"|---|{'---:|' * (len(ROWS) + 1)}",
    ]
    for dataset in report.tables[0].spec.attacks:
        for rate in ENDS:
            cells = {cell.row: cell for cell in _column(report, dataset, rate)}
            best = max(_mean(cells[row]) for row in ROWS)
            shown = [f"{_mean(cells[row]):.1f}" for row in ROWS]
            shown = [f"**{one}**" if _mean(cells[row]) == best else one for row, one in zip(ROWS, shown, strict=True)]
            paper = cells["asgnn"].paper
            assert paper is not None
            lines.append(f"| {dataset}, {rate:.0%} | {' | '.join(shown)} | {paper.mean:.1f} |")
    return lines


def _adaptivity(report: Report) -> list[str]:
    """What a structure that moves adds to one that is frozen, at equal tuning."""
    rates = report.tables[0].spec.rates
    lines = [f"| | {' | '.join(f'{rate:.0%}' for rate in rates)} |", f"|---|{'---:|' * len(rates)}"]
    for row, label in (("asgnn", "degree"), ("asgnn-paper", "paper")):
        for dataset in report.tables[0].spec.attacks:
            shown = []
            for rate in rates:
                (added,) = (cell.added for cell in _column(report, dataset, rate) if cell.row == row)
                assert added is not None
                assert added.p is not None
                shown.append(signed(added.difference, 1) + ("*" if added.p < SIGNIFICANT else ""))
            lines.append(f"| `{label}`, {dataset} | {' | '.join(shown)} |")
    return lines


def _column(report: Report, dataset: str, rate: float) -> list[Cell]:
    return [cell for cell in report.tables[0].cells if (cell.dataset, cell.rate) == (dataset, rate)]


def _mean(cell: Cell) -> float:
    assert cell.ours is not None
    assert cell.choice is not None
    assert cell.choice.search == "paper"
    return cell.ours.mean


if __name__ == "__main__":
    found = tables()
    fill(ROOT / "README.md", {"searched": found["searched"]})
    fill(ROOT / "docs" / "reproduction.md", {"adaptivity": found["adaptivity"]})
