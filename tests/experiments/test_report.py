"""The report of stores with known figures: what is collected, every format, and the page in a real browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from asgnn.__main__ import main
from asgnn.asmp.params import SCALARS
from asgnn.errors import ConfigError, DataCorrupt, DataUnavailable
from asgnn.experiments.figures import TERMS
from asgnn.experiments.records import read_record
from asgnn.experiments.report import Report, collect, render, text, write_report
from asgnn.experiments.report.data import UNEXPLAINED, WITHIN, explain, explanations
from asgnn.experiments.report.page import page_data
from asgnn.experiments.report.render import escape_latex, escape_markdown
from asgnn.experiments.report.story import MAIN
from asgnn.experiments.report.tables import GROUPS, TableCell, adaptive_gain, most_thorough
from asgnn.experiments.spec import TABLES, load_spec
from asgnn.experiments.store import Store
from asgnn.experiments.values import ENSEMBLE, Choice, Outcome, Series, Training, Value, as_settings
from tests.browser import Browser, Page, find_chromium
from tests.processes import HANG

OURS = {"asgnn": [79.0, 78.0, 80.0], "asgnn-frozen": [77.0, 77.0, 78.5], "gcn": [50.0, 51.0, 52.0]}
NASTY = 'H200 </script><script>alert("1")</script> & 100% of_it | *now*'


class Results:
    """The contents of a store, added cell by cell."""

    def __init__(self, **rows: Sequence[float]) -> None:
        """With values of table 1's figure on Cora at 25 %, by row."""
        self.outcomes: list[Outcome] = []
        self.choices: list[Choice] = []
        self.series: list[Series] = []
        for row, values in rows.items():
            self.add(values, row=row)

    def add(
        self,
        values: Sequence[float],
        *,
        table: str = "table1",
        rate: float = 0.25,
        row: str = "asgnn",
        rule: str = "validation",
        search: str = "paper",
        settings: Mapping[str, Value] | None = None,
        seeds: Sequence[int] | None = None,
        machine: str = "a machine",
        figures: Callable[[float], Mapping[str, float]] = lambda value: {},
        dataset: str = "cora",
        ensemble: float | None = None,
    ) -> Choice:
        """A choice whose trials have these values of the table's figure."""
        spec = load_spec(table)
        chosen = as_settings({**dict(spec.row(row).settings), **(settings or {"lr": 0.01})})
        case, model, keys = spec.case(dataset, rate), spec.row(row).model, []
        for seed, value in zip(seeds or range(len(values)), values, strict=True):
            training = Training(case.of_trial(seed), model, chosen, seed)
            measured = {spec.figure_of(dataset): value, "val": value + 1, **figures(value)}
            scalars = {"lam": 2.0 + seed, "gamma": 1.0}
            self.outcomes.append(Outcome(training, measured, 2.5, 10, machine, "0.1.0", scalars))
            keys.append(training.key)
        self.choices.append(Choice(table, case, row, rule, search, model, chosen, 324, tuple(keys)))
        if ensemble is not None:
            content = {"trials": len(keys), "figures": {spec.figure_of(dataset): ensemble}}
            self.series.append(Series(keys[0], ENSEMBLE, content))
        return self.choices[-1]

    def write(self, path: Path) -> Store:
        store = Store.open(path)
        store.add(self.outcomes)
        store.add_choices(self.choices)
        store.add_series(self.series)
        return store

    def report(self) -> Report:
        with tempfile.TemporaryDirectory() as folder, self.write(Path(folder) / "results.sqlite") as store:
            return collect(store)


@pytest.fixture
def results() -> Results:
    return Results(**OURS)


def cell_of(report: Report, row: str, table: str = "table1", rate: float = 0.25, rule: str = "validation") -> TableCell:
    (found,) = (one for one in report.tables if one.spec.name == table)
    return found.line(rule, "cora", row)[found.spec.rates.index(rate)]


# --- what is collected ----------------------------------------------------------------------------------------------


def test_means_sample_standard_deviations_differences_and_ranks(results: Results) -> None:
    report = results.report()
    cell = cell_of(report, "asgnn")
    assert (cell.ours.mean, cell.ours.std, cell.figures["val"].mean) == (79.0, 1.0, 80.0)
    assert cell.difference == pytest.approx(79.0 - 75.18)
    assert [cell_of(report, row).ranks.get("test") for row in ("asgnn", "asgnn-frozen", "gcn")] == [1, 2, None]


def test_less_is_better_for_a_loss() -> None:
    results = Results()
    results.add([0.9, 1.1], table="table3", rate=5.0)
    results.add([4.9, 5.1], table="table3", rate=5.0, row="gcn")
    assert cell_of(report := results.report(), "asgnn", "table3", 5.0).ranks["clean_test_loss"] == 1
    assert [one.cell.row for one in report.worse] == ["gcn"]  # 5.0 against 3.327
    assert "in 1 of the 2 cells" in report.findings[0]


@pytest.mark.parametrize("seeds", [(0, 1, 2), (1, 2, 3), (2, 1, 0)])
def test_gain_is_that_of_a_paired_test_over_equal_seeds(seeds: tuple[int, ...]) -> None:
    results = Results(asgnn=OURS["asgnn"])
    results.add(OURS["asgnn-frozen"], row="asgnn-frozen", seeds=seeds, search="paper" if seeds[0] else "wide")
    a, b = dict(enumerate(OURS["asgnn"])), dict(zip(seeds, OURS["asgnn-frozen"], strict=True))
    pairs = [(a[seed], b[seed]) for seed in a if seed in b]
    gain = cell_of(results.report(), "asgnn").gain
    assert gain.difference == pytest.approx(sum(x - y for x, y in pairs) / len(pairs))
    assert gain.p == pytest.approx(stats.ttest_rel(*zip(*pairs, strict=True)).pvalue)
    assert (gain.trials, gain.same_search) == (len(pairs), bool(seeds[0]))


def test_gain_without_variance_or_common_seeds() -> None:
    results = Results(**{"asgnn": [70.1, 71.1, 72.1], "asgnn-frozen": [70.0, 71.0, 72.0]})
    assert cell_of(report := results.report(), "asgnn").gain.p is None
    assert "p not defined" in render(report, "markdown")
    assert adaptive_gain(results.outcomes[:1], results.outcomes[4:], "test") is None


def test_the_most_thorough_choice_is_reported() -> None:
    results, best_last = Results(), []
    for trials, search, rule in [(20, "none", "none"), (10, "wide", "validation"), (2, "paper", "validation")]:
        best_last.append(results.add([70.0] * trials, search=search, rule=rule, settings={"lr": 1.0 / trials}))
    best_last.append(results.add([70.0] * 3, settings={"lr": 0.3}))
    for count in range(1, 5):
        assert most_thorough(best_last[count - 1 :: -1], "validation") == best_last[count - 1]
    assert most_thorough(best_last, "attacked validation") == best_last[0]  # chosen by no rule: serves for each
    assert cell_of(results.report(), "asgnn").choice == best_last[-1]


def test_rules_are_kept_apart() -> None:
    results = Results()
    for rule, value in (("validation", 70.0), ("attacked validation", 80.0)):
        results.add([value], table="table2", rate=5.0, rule=rule, settings={"lr": value})
    results.add([40.0, 41.0], table="table2", rate=5.0, row="prognn", rule="none", search="none")
    report = results.report()
    for rule, value in (("validation", 70.0), ("attacked validation", 80.0)):
        assert cell_of(report, "asgnn", "table2", 5.0, rule).ours.mean == value
        assert cell_of(report, "prognn", "table2", 5.0, rule).ours.mean == 40.5
        assert f"### cora, settings chosen on {rule}" in render(report, "markdown")
    assert [(one.cell.row, one.cell.rule) for one in report.worse] == [("prognn", "validation")]  # listed once


def test_random_splits_are_separate_tables(results: Results) -> None:
    given = results.report()
    for row, values in OURS.items():
        results.add([value + 1 for value in values], table="table1-random", row=row)
    report = results.report()
    assert [table.spec.name for table in given.tables] == list(TABLES)
    assert [table.spec.name for table in report.tables] == ["table1", "table1-random", "table2", "table3"]
    cell, before = cell_of(report, "asgnn", "table1-random"), cell_of(given, "asgnn")
    assert cell_of(report, "asgnn") == before
    assert (cell.ours.mean, cell.gain) == (80.0, before.gain)
    assert len({outcome.training.case for outcome in cell.outcomes}) == 3  # each trial has its own split
    assert report.findings[: len(given.findings)] == given.findings
    assert all("on random splits" in finding for finding in report.findings[len(given.findings) :])
    assert len(report.findings) == 2 * len(given.findings)
    worse = [(one.table.spec.name, one.cell.row, one.clear) for one in report.worse]
    assert worse == [("table1", "gcn", True), ("table1-random", "gcn", False)]


def test_cells_worse_than_the_papers_and_why(results: Results) -> None:
    results.add([74.0, 76.0], row="asgnn-paper")  # 75.0 ± 1.4 against 75.18
    worse = {one.cell.row: (one.clear, one.explanation) for one in results.report().worse}
    why = explain(explanations(), "table1", cell_of(results.report(), "gcn"))
    assert worse == {"asgnn-paper": (False, WITHIN), "gcn": (True, why)}


def test_the_first_explanation_that_fits_is_taken(results: Results) -> None:
    entries = [
        {"table": "table1", "row": "gcn", "rate": 0.25, "text": "special"},
        {"table": "table1", "row": "gcn", "rule": "attacked validation", "text": "of another rule"},
        {"table": "table1", "text": "general"},
    ]
    report = results.report()
    assert explain(entries, "table1", cell_of(report, "gcn")) == "special"
    assert explain(entries, "table1", cell_of(report, "gcn", rate=0.0)) == "general"
    assert explain(entries, "table1", cell_of(report, "asgnn")) == "general"
    assert explain(entries, "table2", cell_of(report, "gcn")) == UNEXPLAINED


def test_explanations_name_what_there_is() -> None:
    for entry in explanations():
        spec = load_spec(entry["table"])
        rows = [row.name for row in spec.rows]
        known = {"row": rows, "dataset": spec.attacks, "rate": spec.rates, "rule": spec.rules}
        assert entry.keys() <= {"table", "text", *known}
        assert all(entry[key] in values for key, values in known.items() if key in entry)
        assert entry["text"]


def test_not_a_number_and_divergence_are_shown_in_every_format() -> None:
    results = Results(gcn=[float("inf"), 79.0])
    results.add([79.0, float("nan"), 70.0, 79.0], figures=lambda value: {} if value == 79.0 else {"diverged": 1.0})
    del results.outcomes[2]  # of the trials that are reported, the store lacks one
    report = results.report()
    cell = page_data(report)["tables"][0]["cells"]["validation"]["cora"]["asgnn"][5]
    assert (cell["diverged"], cell["trials"], cell["wanted"]) == ("diverged in 2 of 3 trials", 3, 4)
    assert cell["ours"]["test"][:2] == [None, None]
    assert "diverged" not in cell["ours"]
    assert report.findings[-1] == "2 of the 5 reported trainings diverged; cells affected: 1."
    assert len(report.worse) == 2
    render(report, "html")  # JSON has no NaN
    for name in ("markdown", "latex"):
        assert "not a number" in render(report, name)
        assert "diverged in 2 of 3 trials" in render(report, name)


def test_series_of_a_cell_become_their_mean(results: Results) -> None:
    first, second, *_ = results.choices[0].trainings
    for key, up in ((first, 0.0), (second, 2.0), ("0" * 64, 9.0)):  # the last is of no cell
        terms = [{"fidelity": 1.0 + up, "l1": 4.0}, {"fidelity": 0.5 + up, "l1": 3.0}]
        results.series.append(Series(key, "objective", {"trained": 1, "terms": terms}))
    results.series.append(Series(results.choices[1].trainings[0], "objective", {"trained": 1, "terms": []}))
    (curves,) = results.report().layers
    assert (curves.trials, curves.trained, curves.graph) == (2, 1, "25% edges flipped by Metattack")
    assert (curves.label, curves.dataset) == ("ASGNN, degree objective", "cora")
    assert curves.lines["terms"] == {"fidelity": [2.0, 1.5], "l1": [4.0, 3.0], "total": [6.0, 4.5]}


def test_trainings_that_tables_share_are_counted_once() -> None:
    results = Results()
    for table in ("table2", "table3"):
        results.add([70.0, 71.0], table=table, rate=5.0, figures=lambda _: {"target": 70.0, "clean_test_loss": 1.0})
    (use,) = results.report().machines
    assert (use.trainings, use.seconds) == (2, 5.0)


# --- tuned rows, other publications and other graphs -----------------------------------------------------------------

TUNED = {"asgnn-features": [80.0, 81.0, 82.0], "asgnn-features-frozen": [78.0, 78.5, 80.0]}
EDGE_FREE = [82.0, 81.5, 82.0]


def tuned_results(**options: Any) -> Results:
    """Table 1 on Cora at 25 %: a tuned row with its twins and an ensemble, above all published figures."""
    results = Results(**OURS)
    for row, values in TUNED.items():
        results.add(values, row=row, search="tune", settings={"lr": 0.02}, ensemble=82.5, **options)
    results.add(EDGE_FREE, row="asgnn-edge-free", search="tune", **options)
    return results


def test_tuned_rows_are_shown_only_with_results(results: Results) -> None:
    assert "asgnn-features" not in [row.name for row in results.report().tables[0].rows]
    shown = [row.name for row in tuned_results().report().tables[0].rows]
    assert [name for name in shown if name in (*TUNED, "asgnn-edge-free")] == [*TUNED, "asgnn-edge-free"]
    assert "gcn-tuned" not in shown


def test_a_tuned_row_is_compared_with_its_twins_seed_by_seed() -> None:
    report = tuned_results().report()
    cell = cell_of(report, "asgnn-features")
    assert cell.gain.difference == pytest.approx(81.0 - 236.5 / 3)
    gain = cell.compared["asgnn-edge-free"]
    pairs = stats.ttest_rel(TUNED["asgnn-features"], EDGE_FREE)
    assert (gain.difference, gain.p) == (pytest.approx(81.0 - 245.5 / 3), pytest.approx(pairs.pvalue))
    (short,) = report.shortfalls  # 0.83 below
    assert (short.cell, short.place, short.other) == (cell, "cora at 25%", "asgnn-edge-free")
    words = "ASGNN + features, table1: more than 0.5 points below “ASGNN without the given edges” in 1 of 1 cells"
    assert f"{words} (cora at 25%)." in report.findings
    markdown = render(report, "markdown")
    assert "| ASGNN + features − ASGNN without the given edges |" in markdown
    assert "## Below the model without the given edges" in markdown


@pytest.mark.parametrize(("edge_free", "count"), [([81.5] * 3, 0), ([81.51] * 3, 1), ([70.0] * 3, 0)])
def test_half_a_point_below_is_allowed(edge_free: Sequence[float], count: int) -> None:
    results = Results(**{"asgnn-features": TUNED["asgnn-features"]})
    results.add(edge_free, row="asgnn-edge-free")
    assert len(results.report().shortfalls) == count


def test_an_ensemble_stands_in_brackets() -> None:
    report = tuned_results().report()
    assert cell_of(report, "asgnn-features").ensemble == {"test": 82.5}
    assert cell_of(report, "asgnn").ensemble == {}
    assert "81.00 ± 1.00 (82.50)" in render(report, "markdown").replace("**", "").replace("<u>", "").replace("</u>", "")
    results = tuned_results()
    results.series[0] = Series(results.series[0].training, ENSEMBLE, {"trials": 5, "figures": {"test": 82.5}})
    assert cell_of(results.report(), "asgnn-features").ensemble == {}  # of another number of trials


def test_the_best_published_figure_is_found_in_the_paper_or_elsewhere() -> None:
    (one,) = tuned_results().report().published
    assert (one.best.mean, one.best.by) == (76.05, "R-GUGNN")
    assert one.difference == pytest.approx(81.0 - 76.05)
    spec = load_spec("table1")
    assert spec.best_published("cora", 0.0).by == "ASGNN, the paper"
    assert spec.best_published("cora_ml", 0.0).by == "Elastic GNN, the paper"
    assert load_spec("table2").best_published("cora", 5.0).by == "GARNET, its README"
    report = tuned_results().report()
    assert "ASGNN + features, table1: at or above the best published accuracy in 1 of 1 cells." in report.findings
    assert "76.05 | +4.95 | R-GUGNN |" in render(report, "markdown")


def with_graphs() -> Results:
    """Three graphs: far below on one, all well on another, an incomplete one judged by the ROC-AUC."""
    results = Results(gcn=OURS["gcn"])
    rows: dict[str, dict[str, float]] = {
        "actor": {"asgnn-features": 30.0, "asgnn-portfolio": 28.0, "mlp": 35.0, "gcn-default": 29.0},
        "cornell": {"asgnn-features": 79.2, "asgnn-portfolio": 79.0, "mlp": 80.0, "gcn-default": 50.0},
        "tolokers": {"asgnn-features": 84.0, "rung-tuned": 83.0},
    }
    for graph, figures in rows.items():
        for row, value in figures.items():
            place = {"table": "generality", "rate": 0.0, "row": row, "dataset": graph}
            # on actor, validation prefers the portfolio to the search
            lucky = {"val": 99.0} if (graph, row) == ("actor", "asgnn-portfolio") else {}
            results.add([value - 1, value + 1], **place, settings={"lr": value}, figures=lambda _, lucky=lucky: lucky)
    return results


def test_other_graphs_are_one_table() -> None:
    report = with_graphs().report()
    assert report.generality is not None
    lines = {line.graph: line for line in report.generality.lines}
    assert list(lines) == ["actor", "cornell", "tolokers"]
    found = {graph: (line.best, line.below, line.portfolio_below) for graph, line in lines.items()}
    assert found == {
        "actor": ("mlp", True, True),
        "cornell": ("mlp", False, False),
        "tolokers": ("rung-tuned", False, False),
    }
    assert [lines[graph].difference for graph in lines] == pytest.approx([-5.0, -0.8, 1.0])
    assert (lines["actor"].portfolio, lines["tolokers"].portfolio) == (-1.0, None)
    assert (lines["actor"].lam.mean, lines["tolokers"].metric.label) == (2.5, "test ROC-AUC, %")
    assert report.findings[-3:] == (
        "Other graphs, full search: ASGNN is at most 1 point below the best other model on 2 of 3 graphs; "
        "not on actor (−5.0).",
        "Other graphs, full search or portfolio, whichever is better on validation: ASGNN is at most 1 point below the "
        "best other model on 2 of 3 graphs; not on actor (−7.0).",
        "Other graphs, portfolio: ASGNN is at or above GCN with its default settings on 1 of 2 graphs; "
        "not on actor (−1.0).",
    )
    markdown = render(report, "markdown")
    assert "tolokers (ROC-AUC)" in markdown
    assert "| actor | −5.00<br>MLP | −1.00 | 2.50 ± 0.71 | 30.00 ± 1.41 |" in markdown
    render(report, "latex")


def test_the_ablation_is_a_table_with_results(results: Results) -> None:
    assert "ablation" not in [table.spec.name for table in results.report().tables]
    results.add([82.0, 83.0], table="ablation", row="full", settings={"lr": 0.03}, ensemble=83.5)
    results.add([80.0, 80.0], table="ablation", row="frozen", settings={"lr": 0.03})
    report = results.report()
    assert cell_of(report, "frozen", "ablation").compared["full"].difference == -2.5
    assert "| structure frozen − ASGNN + features |" in render(report, "markdown")


# --- the story ------------------------------------------------------------------------------------------------------

CURVES = {  # row → accuracy on the clean graph and with the most flips, by graph
    "gcn": {"cora": (83.0, 50.0), "citeseer": (72.0, 60.0)},
    "rung-tuned": {"cora": (85.0, 80.0), "citeseer": (75.0, 72.0)},
    "asgnn-tuned": {"cora": (85.5, 78.0), "citeseer": (75.0, 71.0)},
    "asgnn-features": {"cora": (86.0, 82.3), "citeseer": (76.0, 76.1)},
    "asgnn-features-frozen": {"cora": (86.0, 80.3), "citeseer": (76.0, 75.1)},
    "asgnn-edge-free": {"cora": (71.0, 71.0), "citeseer": (73.0, 73.0)},
}
TARGETED = {"rung-tuned": 77.0, "asgnn-features": 65.0, "asgnn-edge-free": 69.0}


def weight_layers(clean: Sequence[float], added: Sequence[float] = ()) -> dict[str, Any]:
    """Edge weights by layer, all quantiles equal."""
    parts = {"clean": clean, **({"added": added} if added else {})}
    names = ("q05", "q25", "q50", "q75", "q95", "mean")
    return {part: [dict.fromkeys(names, value) for value in values] for part, values in parts.items()}


def story_results(**left_out: bool) -> Results:
    """Both tables of accuracies, a second rule and edge weights; every mean is of two trials."""
    results = Results()
    for row, graphs in CURVES.items():
        for graph, ends in graphs.items():
            for rate, value in zip((0.0, 0.25), ends, strict=True):
                place = {"dataset": graph, "rate": rate, "search": "tune", "settings": {"lr": value}}
                results.add([value - 0.5, value + 0.5], row=row, **place)
    for row, value in TARGETED.items():
        results.add([value], table="table2", rate=5.0, row=row, settings={"lr": value})
    if not left_out.get("rule"):
        place = {"table": "table2", "rate": 5.0, "row": "asgnn-features", "rule": "attacked validation"}
        results.add([75.0], **place, settings={"lr": 1.0})
    if not left_out.get("weights"):
        key = results.choices[[one.row for one in results.choices].index("asgnn-features") + 1].trainings[0]
        results.series.append(Series(key, "weights", weight_layers([1.0, 0.72], [1.0, 0.27])))
    return results


def test_the_story_is_made_from_the_figures() -> None:
    holds, fails, why = story_results().report().story.points
    assert (holds.head, fails.head, why.head) == ("What holds", "What fails", "Why")
    assert holds.text == (
        "With 25% of the edges flipped by Metattack, ASGNN + features loses at most 3.7 points of accuracy; GCN loses "
        "12.0 to 33.0."
    )
    assert holds.details == (
        "It loses 3.7 on cora and −0.1 on citeseer.",
        "It is at or above the best published accuracy in 4 of 4 cells.",
    )
    assert fails.text == (
        "Under Nettack, ASGNN + features is more than 0.5 points below the best other model in 1 of 1 cells, by up to "
        "12.0 points."
    )
    assert fails.details == (
        "The largest gap is on cora, 5 flips for each target by Nettack: 65.0 %, and 77.0 % with RUNG, tuned.",
        "Under Metattack: 0 of 4 cells.",
        "In 1 cell under Nettack, it would be better without the given edges (cora at 5).",
    )
    assert why.text == (
        "Added edges lose their weight (mean 0.27, clean edges 0.72); under Nettack settings are chosen on validation "
        "nodes that are not attacked."
    )
    assert why.details == (
        "These are the weights after the last layer of “ASGNN + features” on cora, 25% edges flipped by Metattack.",
        "Points added with 25% of the edges flipped by Metattack: the learned structure +1.0 to +2.0 and the features "
        "+4.3 to +5.1.",
        "Chosen on attacked validation nodes, they change the accuracy with 5 flips for each target by Nettack by "
        "+10.0 points.",
    )


def test_the_story_follows_the_figures() -> None:
    """Other figures, other sentences: a loss that grows, no gap, weights that do not separate, a rule that is worse."""
    results = story_results(weights=True, rule=True)
    results.choices = [one for one in results.choices if one.row not in ("asgnn-features", "rung-tuned")]
    results.add([60.0], rate=0.25, settings={"lr": 7.0})  # no frozen twin, no clean graph: a row of its own
    points = {point.head: point for point in results.report().story.points}
    assert points["What holds"].text == (
        "With 25% of the edges flipped by Metattack, ASGNN, tuned loses at most 7.5 points of accuracy; GCN loses "
        "12.0 to 33.0."
    )
    assert points["What fails"].text == (
        "Under Metattack, ASGNN, tuned is more than 0.5 points below the best other model in 0 of 4 cells."
    )
    assert points["What fails"].details == (
        "In 1 cell under Metattack, it would be better without the given edges (citeseer at 25%).",
    )
    assert "Why" not in points  # the tuned row is the one without features, and nothing has a twin
    key = results.choices[2].trainings[0]
    results.series.append(Series(key, "weights", weight_layers([1.0, 0.99], [1.0, 0.96])))
    worse = {"table": "table2", "rate": 5.0, "row": "asgnn-tuned", "settings": {"lr": 2.0}}
    results.add([70.0], **worse)
    results.add([60.0], **worse | {"rule": "attacked validation", "settings": {"lr": 3.0}})
    (*_, why) = results.report().story.points
    assert why.text == "Added edges keep their weight (mean 0.96, clean edges 0.99)."


def test_a_store_without_asgnn_has_no_story_but_a_chart() -> None:
    story = Results(gcn=OURS["gcn"]).report().story
    assert (story.points, story.tables) == ((), ("table1",))
    results = Results(gcn=OURS["gcn"], asgnn=[float("nan"), 79.0])
    assert results.report().story.points == ()  # what diverged has no mean


def test_the_story_is_in_every_format() -> None:
    report = story_results().report()
    for point in report.story.points:
        assert point.text in render(report, "html")
        assert point.text in render(report, "markdown")
    assert r"loses at most 3.7 points of accuracy" in render(report, "latex")
    assert "“" not in render(report, "latex")


def test_every_row_of_a_long_table_has_a_group() -> None:
    for name in TABLES:
        assert {row.group for row in load_spec(name).rows} <= GROUPS.keys()
    assert set(MAIN) <= {row.name for row in load_spec("table1").rows}


def test_greek_letters_have_meanings() -> None:
    results = story_results()
    scalars = {name for outcome in results.outcomes for name in outcome.scalars}
    assert scalars <= text.SCALARS.keys()
    assert set(SCALARS) == text.SCALARS.keys()
    assert {*TERMS, "total"} == text.TERMS.keys()
    for name in ("markdown", "html"):
        page = render(results.report(), name)
        for sign, meaning in text.SCALARS.values():
            assert sign in page
            assert meaning in page


# --- records --------------------------------------------------------------------------------------------------------


def edge_rows(**changed: Any) -> list[dict[str, Any]]:
    """Two scores on Cora under two rates of Metattack and on Citeseer under random noise."""
    aucs = {("cora", "metattack", 0.05): (0.95, 0.90), ("cora", "metattack", 0.2): (0.85, 0.93)}
    aucs[("citeseer", "random", 0.1)] = (0.70, 0.709)
    return [
        {
            **{"graph": graph, "attack": attack, "rate": rate, "score": score, "auc": auc},
            **{"precision_1": 0.5, "precision_5": auc / 2, "precision_10": None},
            **changed,
        }
        for (graph, attack, rate), pair in aucs.items()
        for score, auc in zip(("combined", "cosine"), pair, strict=True)
    ]


# What the scripts write: more than is kept.
CALIBRATED = {"test": 0.86, "confidence": 0.84, "temperature": 0.7, "nodes": {"test": 9}}
CALIBRATED |= {"before": {"width": 0.11, "mass": 0.1}, "after": {"width": 0.0412}}
CLEANED = {"graph": "cora", "attack": "metattack", "rate": 0.2, "model": "gcn", "before": 70.0, "after": 80.0}
CLEANED |= {"removed": 0.1, "seeds": 3, "test": {"0.1": 80.0}}


def write_record(folder: Path, name: str, content: object) -> Path:
    (folder / name).write_text(json.dumps(content))
    return folder / name


def test_scores_of_edges_are_summed_up(results: Results, tmp_path: Path) -> None:
    results.series.append(read_record(write_record(tmp_path, "edges.json", {"rows": edge_rows()})))
    report = results.report()
    combined, cosine = sorted(report.edges.scores, key=lambda one: one.score)
    assert (combined.graphs, combined.close, combined.worst) == (3, 2, 0.70)  # 0.70 is within 0.01 of 0.709
    assert (cosine.graphs, cosine.close, cosine.worst) == (3, 2, 0.709)
    assert combined.means == {
        "auc": pytest.approx(2.5 / 3),
        "precision_1": 0.5,
        "precision_5": pytest.approx(1.25 / 3),
        "precision_10": None,
    }
    assert report.edges.findings == (
        "The combined score has the best ROC-AUC, or is within 0.01 of it, on 2 of 3 attacked graphs; of the single "
        "scores, cosine does so most often, on 2.",
        "It is farthest from the best on cora under metattack at 20%: 0.850 against 0.930.",
        "It is at or above the figures of LEO, for other attacked graphs of the same datasets, in 1 of 2 cases.",
    )
    assert report.findings[-3:] == report.edges.findings
    assert "| cora | metattack | 20% | cosine | 0.930 | 0.500 | 0.465 |  |" in render(report, "markdown")
    render(report, "latex")


def test_graphs_of_the_design_do_not_count(results: Results, tmp_path: Path) -> None:
    rows = edge_rows()
    for row in rows:
        row["design"] = (row["graph"], row["rate"]) == ("cora", 0.2)  # where the combined score is far from the best
    results.series.append(read_record(write_record(tmp_path, "edges.json", {"rows": rows})))
    report = results.report()
    assert report.edges.findings == (
        "The combined score has the best ROC-AUC, or is within 0.01 of it, on 2 of 2 attacked graphs that no score was "
        "designed on; of the single scores, cosine does so most often, on 1.",
        "It is at or above the figures of LEO, for other attacked graphs of the same datasets, in 1 of 1 cases.",
    )
    assert len(report.edges.rows) == 6
    assert "| cora † | metattack | 20% | cosine | 0.930 |" in render(report, "markdown")
    assert r"cora $\dagger$" in render(report, "latex")


def envelope_rows() -> list[dict[str, Any]]:
    """Two models and a control on Cora, evasion and single nodes."""
    figures = {("evasion", "gcn"): (84.0, 74.0), ("evasion", "asgnn"): (85.0, 79.5), ("evasion", "MLP"): (66.0, 66.0)}
    figures[("single nodes", "asgnn")] = (85.0, 70.0)
    return [
        {"graph": "cora", "kind": kind, "model": model, "budget": budget, "accuracy": accuracy}
        | {"worst": "prbcd" if budget else "", "control": model == "MLP"}
        for (kind, model), pair in figures.items()
        for budget, accuracy in zip((0.0, 0.05 if kind == "evasion" else 2.0), pair, strict=True)
    ]


def test_attackers_who_know_the_model_stand_beside_the_published_figures(results: Results, tmp_path: Path) -> None:
    assert results.report().challenge is None
    results.series.append(read_record(write_record(tmp_path, "challenge.json", {"rows": envelope_rows()})))
    report = results.report()
    assert report.challenge is not None
    evasion, nodes = report.challenge.tables
    assert evasion.columns == ["clean", "5%"]
    assert [(one.model, one.figures) for one in evasion.lines[:4]] == [
        ("gcn", (84.0, 74.0)),
        ("asgnn", (85.0, 79.5)),
        ("MLP", (66.0, 66.0)),
        ("GCN, Mujkanovic et al.", (84.8, 74.9)),
    ]
    assert {one.role for one in evasion.lines[3:]} == {"published"}
    assert {one.model: one.figures for one in nodes.lines}["RUNG, its repository"] == (None, 69.3)
    assert report.challenge.findings == (
        "cora, evasion, 5%: asgnn keeps most, 79.5 %; the best control (MLP) has 66.0 %, the best published model "
        "(RUNG, its repository) 78.9 %.",
        "cora, single nodes, 200%: asgnn keeps most, 70.0 %, the best published model (MLP, RUNG's repository) 72.6 %.",
    )
    assert set(report.challenge.findings) <= set(report.findings)
    assert "| asgnn |  | 85.0 | 79.5 | prbcd |" in render(report, "markdown")
    assert '"title":"cora, evasion"' in render(report, "html")
    render(report, "latex")


@pytest.mark.parametrize(
    ("name", "content", "error", "words"),
    [
        ("edges.txt.json", {"rows": []}, ConfigError, "such files are named edges.json, calibration.json"),
        ("edges.json", {"rows": []}, DataCorrupt, 'has no "rows", a list of objects'),
        ("edges.json", [1], DataCorrupt, 'has no "rows"'),
        ("edges.json", {"rows": [*edge_rows(), 3]}, DataCorrupt, "row 7 is not an object"),
        ("edges.json", {"rows": edge_rows(score=None)}, DataCorrupt, "in row 1, 'score' is None, not a text"),
        ("edges.json", {"rows": edge_rows(auc="0.5")}, DataCorrupt, "in row 1, 'auc' is '0.5', not a number"),
        ("edges.json", {"rows": edge_rows(auc=float("nan"))}, DataCorrupt, "in row 1, 'auc' is nan, not a number"),
        ("edges.json", {"rows": edge_rows(auc=True)}, DataCorrupt, "in row 1, 'auc' is True, not a number"),
        ("edges.json", {"rows": edge_rows(design=1)}, DataCorrupt, "in row 1, 'design' is 1, not a truth value"),
        ("cleaning.json", {"rows": [{"before": 1.0}]}, DataCorrupt, "in row 1, 'graph' is None, not a text"),
        ("calibration.json", {"graphs": {"cora": 3}}, DataCorrupt, "row 1 is not an object"),
        (
            "calibration.json",
            {"graphs": {"cora": CALIBRATED | {"after": 1}}},
            DataCorrupt,
            "'error_after' is 'missing'",
        ),
    ],
)
def test_what_is_wrong_with_a_record_is_said(
    tmp_path: Path, name: str, content: object, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=re.escape(words)):
        read_record(write_record(tmp_path, name, content))


def test_the_command_adds_records_or_none(results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results.write(tmp_path / "results.db").close()
    edges = write_record(tmp_path, "edges.json", {"rows": edge_rows()})
    cleaning = write_record(tmp_path, "cleaning.json", {"rows": [CLEANED]})
    (broken := tmp_path / "calibration.json").write_text("{")

    def record(*files: Path) -> int:
        monkeypatch.setattr(sys, "argv", ["asgnn", "store", "record", str(tmp_path / "results.db"), *map(str, files)])
        with pytest.raises(SystemExit) as left:
            main()
        return left.value.code or 0

    def found() -> Report:
        with Store.open(tmp_path / "results.db", create=False) as store:
            return collect(store)

    assert record(edges, broken) == 3
    assert (found().edges, found().records) == (None, {})
    assert record(tmp_path / "missing" / "edges.json") == 3
    assert record(edges, cleaning) == 0
    assert record(edges, cleaning) == 0  # again: replaced, not doubled
    assert len(found().edges.rows) == 6
    markdown = render(found(), "markdown")
    assert "| graph | attack | model | rate | before | after | edges removed |" in markdown
    assert "| cora | metattack | gcn | 20% | 70 | 80 | 10% |" in markdown


# --- what is written ------------------------------------------------------------------------------------------------


def test_exact_cells_of_markdown(results: Results) -> None:
    page = render(results.report(), "markdown")
    lines = [line[2:-2].split(" | ") for line in page.splitlines() if line.startswith("| ")]
    rows = {line[0]: line[6:] for line in reversed(lines)}  # of a name's rows, the first
    assert rows["model"] == ["25%", "trials", "settings tried"]
    best = "**79.00 ± 1.00**<br>paper 75.18 ± 0.97<br>+3.82"
    assert rows["ASGNN, degree objective"] == [best, "3", "324 (paper search)"]
    assert rows["ASGNN, degree objective, frozen"][0] == "<u>77.50 ± 0.87</u>"
    assert rows["GCN"][0] == "51.00 ± 1.00<br>paper 52.67 ± 1.00<br>−1.67"
    assert rows["Pro-GNN"][0] == "*paper 71.19 ± 1.27*"  # only the paper's
    assert rows["APPNP"][0] == ""  # nobody's
    p = stats.ttest_rel(OURS["asgnn"], OURS["asgnn-frozen"]).pvalue
    assert ["", "", "", "", f"+1.50<br>p = {p:.3f}"] in [line[2:] for line in lines]
    assert ["51.00 ± 1.00", "52.67 ± 1.00", "−1.67"] in [line[5:8] for line in lines]
    assert ["ASGNN, degree objective", "25%", "1.000 ± 0.000", "3.000 ± 1.000"] in lines  # learned scalars
    assert ["a machine", "0.1.0", "9", "22"] in lines
    for block in page.split("\n\n"):
        assert len({line.count(" | ") for line in block.splitlines() if line.startswith("| ")}) <= 1


def test_exact_cells_of_latex(results: Results) -> None:
    page = render(results.report(), "latex")
    assert (
        r"\textbf{79.00 $\pm$ 1.00}\\ \scriptsize paper 75.18 $\pm$ 0.97\\ \scriptsize +3.82\end{tabular} & 3 &" in page
    )
    for part in (r"\scriptsize $-$1.67", r"\textit{paper 71.19 $\pm$ 1.27} &", r"model & 0\% & 5\%", r"cora\_ml"):
        assert part in page


def test_no_text_breaks_out_of_its_place(results: Results) -> None:
    results.add(OURS["gcn"], row="elastic", machine=NASTY, settings={"note": NASTY})
    report = results.report()
    page = render(report, "html")
    assert "default-src 'none'" in page  # and it asks for nothing from outside
    assert not re.search(r"""(?:src|href)\s*=\s*["'](?!data:,|#)|@import|fetch\(""", page)
    assert page.count("</script>") == 2
    assert "<script>alert" not in page
    data = json.loads(re.findall(r'id="data">(.*?)</script>', page)[0])
    assert data == json.loads(json.dumps(page_data(report)))
    assert [one["machine"] for one in data["machines"]] == [NASTY, "a machine"]
    assert r"H200 &lt;/script&gt;&lt;script&gt;alert" in render(report, "markdown")
    assert r"100% of\_it \| \*now\*" in render(report, "markdown")
    assert r"\& 100\% of\_it \textbar{} *now*" in render(report, "latex")
    assert escape_markdown("a  #b\n[c]") == r"a \#b \[c\]"
    assert escape_latex("a\\b^{2} ± 50% λ₂ 漢") == (
        r"a\textbackslash{}b\textasciicircum{}\{2\} $\pm$ 50\% $\lambda$$_2$ [U+6F22]"
    )


@pytest.mark.parametrize(("formats", "files"), [("markdown, latex", "md tex"), ("html", "html")])
def test_the_command_writes_files(
    results: Results, formats: str, files: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, folder = tmp_path / "results.db", tmp_path / "new" / "folder"
    results.write(store).close()
    monkeypatch.setattr(sys, "argv", ["asgnn", "report", str(store), "-o", str(folder), "--format", formats])
    with pytest.raises(SystemExit) as left:
        main()
    assert not left.value.code
    assert sorted(path.name for path in folder.iterdir()) == [f"report.{ending}" for ending in files.split()]


def test_failures_are_sentences(results: Results, tmp_path: Path) -> None:
    with results.write(tmp_path / "results.db") as store, Store.open(tmp_path / "empty.db") as empty:
        (tmp_path / "file").write_text("")
        for of, folder, formats, error, words in [
            (store, "", ["html", "pdf"], ConfigError, "format 'pdf'; choose from html, markdown, latex."),
            (store, "", [], ConfigError, "No report format given"),
            (empty, "", ["html"], ConfigError, "nothing to report"),
            (store, "file", ["html"], DataUnavailable, "report.html could not be written"),
        ]:
            with pytest.raises(error, match=re.escape(words)):
                write_report(of, tmp_path / folder, formats)
    assert not list(tmp_path.glob("report.*"))


# --- the committed store: LaTeX and a real browser ------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole() -> Report:
    with Store.open(Path(__file__).parents[2] / "docs" / "results" / "results.sqlite", create=False) as store:
        return collect(store)


def test_findings_are_counted_over_the_first_rule(whole: Report) -> None:
    good, cells = map(int, re.findall(r"in (\d+) of the (\d+) cells", whole.findings[0])[0])
    by_hand = []
    for table in (table for table in whole.tables if not table.random):
        compared = [cell for cell in table.cells if cell.rule == "validation" and cell.difference is not None]
        by_hand += [(cell.difference >= 0) == (table.spec.name != "table3") for cell in compared]
    assert (good, cells) == (sum(by_hand), len(by_hand))


def test_latex_compiles(whole: Report, tmp_path: Path) -> None:
    if shutil.which("pdflatex") is None:
        pytest.skip("pdflatex is not installed here")
    (tmp_path / "report.tex").write_text(render(whole, "latex"), encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "report.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=HANG, check=False)
    assert done.returncode == 0, done.stdout.decode(errors="replace")[-2000:]


HELPERS = """
const one = (selector) => document.querySelector(selector), text = (selector) => one(selector).textContent;
const all = (selector) => [...document.querySelectorAll(selector)], count = (selector) => all(selector).length;
const texts = (selector) => all(selector).map((element) => element.textContent);
const set = (id, value, event = "change") => Object.assign(one(`#${id}`), { value }).dispatchEvent(new Event(event));
const press = (selector, key) => one(selector).dispatchEvent(new KeyboardEvent("keydown", { key }));
"""


def browse(report: Report, folder: Path, width: int, script: str) -> dict[str, Any]:
    """What ``script`` returns, run in the page by a real browser, where nothing may be written to the console."""
    with shown(report, folder, width) as page:
        found: dict[str, Any] = page.run(f"(() => {{ {HELPERS} {script} }})()")
    return found


@contextmanager
def shown(report: Report, folder: Path, width: int) -> Iterator[Page]:
    if find_chromium() is None:
        pytest.skip("no Chromium on the path")
    (folder / "page.html").write_text(render(report, "html"), encoding="utf-8")
    with Browser() as browser, browser.open(folder / "page.html", width=width) as page:
        yield page


FITS = """
const right = (element) => element.getBoundingClientRect().right, outside = ".scroll, .scroll *, .hide, .hide *, .skip";
const box = one("#results-table .scroll"), page = document.documentElement;
return {
  width: innerWidth, wider: page.scrollWidth > innerWidth, scrolls: box.scrollWidth > box.clientWidth,
  outside: all("body *").filter((one) => !one.matches(outside) && right(one) > innerWidth + 1).length,
  illegible: all("figure svg text").filter((text) => text.getBoundingClientRect().height < 9).length,
"""


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_is_drawn_and_fits(whole: Report, tmp_path: Path, width: int) -> None:
    table = whole.tables[0]
    cells = [cell for cell in table.cells if cell.dataset == "cora"]
    shown = {cell.row for cell in cells if cell.outcomes or cell.paper} & {row.name for row in table.rows}
    counts = {
        "#results-table tbody tr:not(.group)": len(shown),
        "#results-table tr.group": len({row.group for row in table.rows if row.name in shown}),
        **dict.fromkeys(("#curves .curve", "#curves .band"), len({cell.row for cell in cells if cell.outcomes})),
        "#curves-all figure": len(table.datasets) - 1,
        "#objective figure .curve": 2 * 6,  # two models, five terms and their sum
        "#weights figure .band": 2 * 2 * 2,  # two models, clean and added edges
        "#scalars .dot": sum(len(values) for cell in cells for values in cell.scalars.values()),
        "#worse-table tbody tr": sum(one.cell in cells for one in whole.worse),
        "#machines-table tbody tr": len(whole.machines),
        "#assumed li": len(table.spec.assumed),
    }
    assert all(counts.values())
    script = 'set("group", "all");' + FITS + "".join(f'"{of}": all("{of}").length, ' for of in counts) + "};"
    found = browse(whole, tmp_path, width, script)
    fits = {"width": width, "wider": False, "scrolls": width < 1000, "outside": 0, "illegible": 0}
    assert found == fits | counts


SWITCHED = """
const table = () => text("#results-table");
const shapes = () => all("#curves .curve").map((path) => path.getAttribute("d")).join();
const cells = () => texts("#results-table tbody td:nth-child(7)").map((text) => parseFloat(text));
const column = () => cells().filter((value) => !isNaN(value));
const isSorted = (values, sign) => values.every((value, i) => !i || sign * (value - values[i - 1]) >= 0);
const sort = () => all("#results-table th .sort")[6].click();
const found = {}, start = table();
sort();
found.descending = isSorted(column(), -1) && one('#results-table th[aria-sort="descending"]') !== null;
sort();
found.ascending = isSorted(column(), 1);
sort();
found.back = table() === start && document.activeElement.textContent === "25%";
let before = shapes();
set("dataset", "acm");
found.dataset = table().startsWith("acm: ") && shapes() !== before && location.hash.includes("dataset=acm");
before = shapes();
set("metric", "val");
found.metric = table().includes("validation accuracy") && shapes() !== before && !count("#results-table .cell .below");
found.note = text("#results-note").includes("does not report");
found.oneRule = one("#rule-label").hidden;
set("table", "table2");
found.table2 = text("#results-title").endsWith("(Table 2)") && one("#metric").value === "target";
found.twoRules = !one("#rule-label").hidden;
before = table();
set("rule", "attacked validation");
found.rule = table() !== before && !count("#results-table .paper-only");
set("table", "table3");
found.table3 = one("#dataset").length === 1 && count("#results-table tbody tr:not(.group)") === 5;
set("table", "table1");
set("group", "all");
set("filter", "objective frozen", "input");
found.filtered = count("#results-table tbody tr:not(.group)") === 2;
found.settings = new Set(texts("#settings-table tbody th")).size === 2;
set("filter", "nobody", "input");
found.none = table().includes("“nobody”");
set("filter", "", "input");
const lines = count("#curves .curve"), gcn = '#curves .legend button[data-name="gcn"]';
one(gcn).click();
found.hidden = count("#curves .curve") === lines - 1 && document.activeElement.getAttribute("aria-pressed") === "false";
one(gcn).click();
one("#curves-paper").click();
found.paper = count("#curves .curve") > lines;
const chart = "#curves figure svg", top = (selector) => one(selector).getBoundingClientRect().top;
press(chart, "ArrowRight");
found.tip = text("#curves .tip").startsWith("0% edges flipped");
found.over = Math.abs(top("#curves .tip") - top(chart) - 10) <= 10;  // it lies on its chart
press(chart, "Escape");
found.gone = one("#curves .tip").hidden;
set("dataset", "cora");
const tips = { objective: "after layer 64total", scalars: "η₁ at 25%ASGNN", weights: "after layer 8edges of the" };
for (const [id, tip] of Object.entries(tips)) {
  press(`#${id} figure svg`, "ArrowLeft");
  found[id] = text(`#${id} .tip`).startsWith(tip);
}
before = count("#worse-table tbody tr");
one("#worse-all").click();
found.worse = count("#worse-table tbody tr") > before && text("#worse-table").includes("citeseer");
one("#results-table .cell").click();
found.detail = one("#detail").open && text("#detail").includes("108 settings of the paper search");
return found;
"""


def test_the_page_switches_sorts_and_filters(whole: Report, tmp_path: Path) -> None:
    found = browse(whole, tmp_path, 1280, SWITCHED)
    assert [name for name, right in found.items() if right is not True] == []


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_shows_random_splits_divergence_and_text_as_text(results: Results, tmp_path: Path, width: int) -> None:
    results.add(OURS["asgnn"], table="table2-random", rate=5.0, machine=NASTY, figures=lambda value: {"diverged": 1.0})
    script = """
    set("table", "table2-random");
    return { title: text("#results-title"), wider: document.documentElement.scrollWidth > innerWidth,
      cells: texts("#results-table .diverged"), machines: texts("#machines-table tbody th"), scripts: count("script") };
    """
    assert browse(results.report(), tmp_path, width, script) == {
        "title": load_spec("table2-random").title,
        "wider": False,
        "cells": ["diverged in 3 of 3 trials"],
        "machines": [NASTY, "a machine"],
        "scripts": 2,
    }


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_shows_tuned_rows_and_other_graphs(tmp_path: Path, width: int) -> None:
    results = with_graphs()
    results.outcomes += (tuned := tuned_results()).outcomes
    results.choices, results.series = [*results.choices, *tuned.choices], tuned.series
    results.add([82.0, 83.0], table="ablation", row="full", settings={"lr": 0.03}, ensemble=83.5)
    results.add([80.0, 80.0], table="ablation", row="frozen", settings={"lr": 0.03})
    script = """
    const found = {
      wider: document.documentElement.scrollWidth > innerWidth,
      ensemble: text("#results-table").includes("ensemble 82.50"),
      compared: texts("#compared-table tbody th"), published: texts("#published-table tbody td"),
      graphs: texts("#generality-table tbody th"), best: texts("#generality-table .best").length,
      flags: texts("#generality-table .diverged"),
    };
    set("table", "ablation");
    const rows = texts("#compared-table tbody th");
    return { ...found, intro: text("#results-intro").length > 20, hidden: one("#published").hidden, rows };
    """
    assert browse(results.report(), tmp_path, width, script) == {
        "wider": False,
        "ensemble": True,
        "compared": ["ASGNN + features − ASGNN without the given edges"],
        "published": ["25%", "81.00 ± 1.00", "82.50", "75.18 ± 0.97", "76.05", "R-GUGNN", "+4.95"],
        "graphs": ["actor", "cornell", "tolokers (ROC-AUC)"],
        "best": 3,
        "flags": ["more than 1 below", " below"],
        "intro": True,
        "hidden": True,
        "rows": ["structure frozen − ASGNN + features"],
    }


# --- the page: its story, its groups of rows, its scales --------------------------------------------------------------

AXES = """
const axis = (figure) => [...figure.querySelectorAll("svg text[text-anchor=end]")].map((text) =>
  [text.textContent, text.getAttribute("y")]);  // the labels of the vertical axis and where they stand
const axes = (selector) => new Set(all(`${selector} figure`).map((figure) => JSON.stringify(axis(figure))));
const top = (selector) => one(selector).getBoundingClientRect().top;
const wider = () => document.documentElement.scrollWidth > innerWidth;
"""
STORY = """
const order = [".points", "#story-charts", "#controls", "#results-table"].map(top);
const lines = () => count("#story-charts figure:first-child .curve");
const found = {
  points: texts(".points h2"), sentences: texts(".points li > p"), details: texts(".points details p"),
  folded: all("details").every((one) => !one.open), order: order.every((at, i) => !i || at > order[i - 1]),
  charts: texts("#story-charts figcaption"), scales: axes("#story-charts").size, lines: lines(),
  keys: texts("#story-legend button"), wider: wider(),
};
const before = [...axes("#story-charts")][0], curves = all("#story-charts .curve").map((path) => path.outerHTML);
set("story-table", "table2");
found.switched = all("#story-charts .curve").every((path, i) => path.outerHTML !== curves[i]);
found.note = text("#story-note").includes("Nettack") && text("#results-title").includes("Table 1");
found.same = [...axes("#story-charts")][0] === before;
const shown = lines();
one('#story-legend button[data-name="paper"]').click();
found.hides = shown - lines();
return found;
"""


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_opens_with_the_story(whole: Report, tmp_path: Path, width: int) -> None:
    labels, points = whole.tables[0].labels, whole.story.points
    found = browse(whole, tmp_path, width, AXES + STORY)
    assert found == {
        "points": ["What holds", "What fails", "Why"],
        "sentences": [point.text for point in points],
        "details": [" ".join(point.details) for point in points],
        "folded": True,
        "order": True,
        "charts": ["cora", "citeseer", "cora_ml", "acm"],
        "scales": 1,
        "lines": len(MAIN) + 1,
        "keys": [*(labels[name] for name in MAIN), "ASGNN, the paper’s figures"],
        "wider": False,
        "switched": True,
        "note": True,
        "same": True,  # one scale for both attacks
        "hides": 1,
    }


@pytest.mark.parametrize("width", [390, 1280])
def test_the_story_answers_the_mouse(tmp_path: Path, width: int) -> None:
    report = story_results().report()
    with shown(report, tmp_path, width) as page:
        page.click(".points li:first-child summary")
        details = ".points li:first-child details p"
        assert page.text(details) == " ".join(report.story.points[0].details)
        assert page.run(f"document.querySelector('{details}').getBoundingClientRect().height") > 10
        assert page.texts("#story-charts figcaption") == ["cora", "citeseer"]  # those with results of ours
        gcn = '#story-charts .curve[data-name="gcn"]'
        assert page.count(gcn) == 4  # on both graphs the two ends
        page.click('#story-legend button[data-name="gcn"]')
        assert page.count(gcn) == 0
        page.move_to("#story-charts figure:first-child svg")
        assert "edges flipped by Metattack" in page.text("#story-charts .tip")
        page.click('nav a[href="#results"]')
        page.click("#results-table .cell")
        assert "settings" in page.text("#detail")
        page.press("Escape")
        assert not page.run("document.querySelector('#detail').open")
        assert page.requests() == [(tmp_path / "page.html").as_uri()]


def test_the_weights_open_on_an_attacked_graph(tmp_path: Path) -> None:
    """Whatever the order of the series, and also where the chosen dataset has none."""
    results = story_results(weights=True)
    of_row = [one for one in results.choices if (one.table, one.row) == ("table1", "asgnn-features")]
    clean, attacked = (one.trainings[0] for one in of_row if one.case.dataset == "cora")
    results.series = [
        Series(attacked, "weights", weight_layers([1.0, 0.8], [1.0, 0.3])),
        Series(clean, "weights", weight_layers([1.0, 0.9, 0.9])),
    ]
    script = """
    const shown = () => [one("#weights select").value, count("#weights .curve")];
    const found = { opened: shown() }, scale = [...axes("#weights")][0];
    set("dataset", "citeseer");
    found.elsewhere = shown();
    set("dataset", "cora");
    one("#weights select").value = "cora, 0% edges flipped by Metattack";
    one("#weights select").dispatchEvent(new Event("change"));
    return { ...found, chosen: shown(), same: [...axes("#weights")][0] === scale,
      scale: JSON.parse(scale).map(([text]) => text) };
    """
    attacked_graph = ["cora, 25% edges flipped by Metattack", 2]
    assert browse(results.report(), tmp_path, 1280, AXES + script) == {
        "opened": attacked_graph,
        "elsewhere": attacked_graph,
        "chosen": ["cora, 0% edges flipped by Metattack", 1],
        "same": True,
        "scale": ["0", "0.2", "0.4", "0.6", "0.8", "1"],
    }


@pytest.mark.parametrize("width", [390, 1280])
def test_rows_are_shown_by_group(whole: Report, tmp_path: Path, width: int) -> None:
    table = whole.tables[0]
    lines = {row.name: table.line("validation", "cora", row.name) for row in table.rows}
    shown = {row for row, line in lines.items() if any(cell.outcomes or cell.paper for cell in line)}
    script = """
    const rows = () => texts("#results-table tbody tr:not(.group) th");
    const found = { opens: one("#group").value, wider: wider() };
    for (const { value } of [...one("#group").options]) {
      set("group", value);
      found[value] = rows();
    }
    set("table", "ablation");
    return { ...found, single: one("#group-label").hidden && rows().length > 5 };
    """
    found = browse(whole, tmp_path, width, AXES + script)
    assert (found.pop("opens"), found.pop("wider"), found.pop("single")) == ("main", False, True)
    in_group = {name: [row.name for row in table.rows if row.group == name and row.name in shown] for name in GROUPS}
    assert {name: sorted(rows) for name, rows in found.items()} == {
        "main": sorted(table.labels[row] for row in shown if row in MAIN),
        "all": sorted(table.labels[row] for row in shown),
        **{name: sorted(table.labels[row] for row in rows) for name, rows in in_group.items()},
    }


def test_charts_of_one_kind_share_their_scale(whole: Report, tmp_path: Path) -> None:
    script = """
    const labels = (figure) => axis(figure).map(([text]) => text).join();
    const scalars = () => all("#scalars figure").map((figure) => labels(figure)).join(" | ");
    const big = labels(one("#curves figure")), before = scalars(), objective = [...axes("#objective")].join();
    const found = { others: axes("#curves-all").size, captions: texts("#scalars figcaption") };
    one("#objective select").value = "cora, 0% edges flipped by Metattack";
    one("#objective select").dispatchEvent(new Event("change"));
    found.objective = [...axes("#objective")].join() === objective;
    set("dataset", "acm");
    return { ...found, curves: labels(one("#curves figure")) === big, scalars: scalars() === before };
    """
    found = browse(whole, tmp_path, 1280, AXES + script)
    captions = {f"{sign} ({name}) {meaning}" for name, (sign, meaning) in text.SCALARS.items()}
    assert set(found.pop("captions")) == captions
    assert found == {"others": 1, "curves": True, "scalars": True, "objective": True}


def test_explanations_fit_a_phone(whole: Report, tmp_path: Path) -> None:
    script = """
    one("#worse-all").click();
    const within = (selector) => all(`#worse-table ${selector}, #settings-table ${selector}`);
    const prose = within("td.prose"), boxes = within(".scroll"), box = (cell) => cell.getBoundingClientRect();
    return {
      boxes: boxes.length, sideways: boxes.filter((box) => box.scrollWidth > box.clientWidth).length,
      outside: prose.filter((cell) => box(cell).right > innerWidth || box(cell).left < 0).length,
      narrow: prose.filter((cell) => box(cell).width < 300).length,
      small: prose.filter((cell) => parseFloat(getComputedStyle(cell).fontSize) < 14).length,
      labels: [...new Set(prose.map((cell) => cell.dataset.label))], many: prose.length > 100,
    };
    """
    found = browse(whole, tmp_path, 390, script)
    labels = ["explanation", "settings"]
    assert found == {"boxes": 2, "sideways": 0, "outside": 0, "narrow": 0, "small": 0, "labels": labels, "many": True}


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_shows_which_edges_are_false(results: Results, tmp_path: Path, width: int) -> None:
    nothing = browse(results.report(), tmp_path, width, 'return { edges: count("#edges"), links: count("nav a") };')
    assert nothing["edges"] == 0
    records = {"edges": {"rows": edge_rows()}, "calibration": {"graphs": {"cora 5%": CALIBRATED}}}
    certified = [
        {"dataset": "cora", "by": "parts", "parts": 3, "anchor": 1, "seconds": 1.0, "chosen_for": [flips]}
        | {"test": {"certified": [0.8, 0.7, 0.6, values, 0.4, 0.3], "edge_free": 0.55, "mlp": 0.5}}
        for flips, values in ((0, 0.5), (20, 0.52))
    ]
    records |= {"challenge": {"rows": envelope_rows()}, "certificates": {"rows": certified}}
    for name, content in records.items():
        results.series.append(read_record(write_record(tmp_path, f"{name}.json", content)))
    script = """
    const cells = (id) => all(`#${id} tbody tr`).map((row) => [...row.children].map((cell) => cell.textContent));
    const found = { title: text("#edges h2"), summary: cells("edges-scores"), table: cells("edges-table"),
      best: texts("#edges-table .best"), charts: texts("#edges-charts figcaption"), links: count("nav a"),
      calibration: cells("record-calibration-table"), certified: cells("record-certificates-table"),
      curves: count("#certificates-charts .curve"), challenge: cells("challenge-0").slice(1, 4), wider: wider() };
    set("edges-attack", "random");
    found.random = [cells("edges-table"), count("#edges-charts figure")];
    set("edges-measure", "precision_10");
    return { ...found, unknown: cells("edges-table") };
    """
    found = browse(results.report(), tmp_path, width, AXES + script)
    assert found["links"] == nothing["links"] + 4
    assert found.pop("certified") == [
        ["cora", "parts", "3", "1", "1", flips, "80.0", "70.0", "60.0", at_5, "40.0", "30.0", "55.0", "50.0"]
        for flips, at_5 in (("0", "50.0"), ("20", "52.0"))
    ]
    assert found.pop("curves") == 3  # one kind of voters and two floors
    assert found.pop("challenge") == [
        ["asgnn", "", "85.0", "79.5", "prbcd"],
        ["MLP", "control", "66.0", "66.0", "prbcd"],
        ["GCN, Mujkanovic et al.", "published", "84.8", "74.9", ""],
    ]
    assert {name: found[name] for name in found if name != "links"} == {
        "title": "Which edges are false",
        "summary": [
            ["cosine", "2 of 3", "0.709", "0.846", "0.500", "0.423", "–"],
            ["combined", "2 of 3", "0.700", "0.833", "0.500", "0.417", "–"],
        ],
        "table": [["cora", "5%", "0.900", "0.950", "0.922"], ["cora", "20%", "0.930", "0.850", "0.860"]],
        "best": ["0.950", "0.930"],
        "charts": ["cora"],
        "wider": False,
        "calibration": [["cora 5%", "0.86", "0.84", "0.7", "0.11", "0.0412"]],
        "random": [[["citeseer", "10%", "0.709", "0.700"]], 0],
        "unknown": [["citeseer", "10%", "–", "–"]],
    }
