"""The report of stores with known figures: what is collected, every format, and the page in a real browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from asgnn.__main__ import main
from asgnn.errors import ConfigError, DataUnavailable
from asgnn.experiments.report import Report, collect, render, write_report
from asgnn.experiments.report.data import UNEXPLAINED, WITHIN, explain, explanations
from asgnn.experiments.report.page import page_data
from asgnn.experiments.report.render import escape_latex, escape_markdown
from asgnn.experiments.report.tables import TableCell, adaptive_gain, most_thorough
from asgnn.experiments.spec import TABLES, load_spec
from asgnn.experiments.store import Store
from asgnn.experiments.values import ENSEMBLE, Choice, Outcome, Series, Training, Value, as_settings

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
    for text in (r"\scriptsize $-$1.67", r"\textit{paper 71.19 $\pm$ 1.27} &", r"model & 0\% & 5\%", r"cora\_ml"):
        assert text in page


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
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=60, check=False)
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
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium on the path")
    # Checks run in the page and send what they found to the page around it: no driver is needed to read it back. The
    # page is in a frame, since the least width of a browser's window is more than a phone's.
    catch = "<script>window.wrong = []; addEventListener('error', (event) => wrong.push(event.message));</script>"
    check = f"""<script>(() => {{
      let found;
      try {{ found = (() => {{ {HELPERS} {script} }})(); }} catch (error) {{ wrong.push(String(error.stack)); }}
      parent.postMessage(JSON.stringify({{ ...found, wrong }}), "*");
    }})();</script>"""
    page = render(report, "html").replace("<head>", f"<head>{catch}").replace("</body>", f"{check}</body>")
    (folder / "page.html").write_text(page, encoding="utf-8")
    around = folder / "around.html"
    around.write_text(
        f"""<pre id="found"></pre>
        <script>addEventListener("message", (event) => document.querySelector("pre").textContent = event.data);</script>
        <iframe src="page.html" style="border: 0; width: {width}px; height: 900px"></iframe>"""
    )
    command = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]
    command += [f"--user-data-dir={folder / 'profile'}", "--window-size=1400,1000", "--virtual-time-budget=8000"]
    command += ["--enable-logging=stderr", "--v=0", "--dump-dom", around.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    written = re.findall(r'<pre id="found">(.+?)</pre>', done.stdout, re.DOTALL)
    assert written, done.stderr[-2000:]
    assert "CONSOLE" not in done.stderr, done.stderr
    found: dict[str, Any] = json.loads(written[0].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    assert found.pop("wrong") == []
    return found


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
    counts = {
        "#results-table tbody tr": len(table.rows),
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
    found = browse(whole, tmp_path, width, FITS + "".join(f'"{of}": all("{of}").length, ' for of in counts) + "};")
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
found.table2 = text("h2").endsWith("(Table 2)") && !one("#rule-label").hidden && one("#metric").value === "target";
before = table();
set("rule", "attacked validation");
found.rule = table() !== before && count("#results-table .paper-only") === 6;  // Pro-GNN has no results of ours
set("table", "table3");
found.table3 = one("#dataset").length === 1 && count("#results-table tbody tr") === 5;
set("table", "table1");
set("filter", "objective frozen", "input");
found.filtered = count("#results-table tbody tr") === 2 && new Set(texts("#settings-table tbody th")).size === 2;
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
const tips = { objective: "after layer 64total", scalars: "eta1 at 25%ASGNN", weights: "after layer 8edges of the" };
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
    return { title: text("h2"), wider: document.documentElement.scrollWidth > innerWidth,
      cells: texts("#results-table .diverged"), machines: texts("#machines-table tbody th"), scripts: count("script") };
    """
    assert browse(results.report(), tmp_path, width, script) == {
        "title": load_spec("table2-random").title,
        "wider": False,
        "cells": ["diverged in 3 of 3 trials"],
        "machines": [NASTY, "a machine"],
        "scripts": 4,  # the page's two and the test's two
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
