"""The report against a store whose figures are known: every format, what is missing, the test, and a real browser."""

from __future__ import annotations

import functools
import json
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from asgnn.__main__ import main
from asgnn.errors import ConfigError, DataUnavailable
from asgnn.experiments import spec as specs
from asgnn.experiments.report import collect, write_report
from asgnn.experiments.report.data import UNEXPLAINED, WITHIN, Cell, Report, load_explanations
from asgnn.experiments.report.html import as_html, content
from asgnn.experiments.report.latex import as_latex
from asgnn.experiments.report.latex import escape as escape_latex
from asgnn.experiments.report.markdown import as_markdown
from asgnn.experiments.report.markdown import escape as escape_markdown
from asgnn.experiments.spec import TABLES
from asgnn.experiments.store import Store
from asgnn.experiments.values import Choice, Outcome, Series, Training, Value, as_settings

load_spec = functools.cache(specs.load_spec)
ANSWER = {"ours": [79.0, 78.0, 80.0], "frozen": [77.0, 77.0, 78.5], "gcn": [50.0, 51.0, 52.0]}
NASTY = 'H200 </script><script>alert("1")</script> & 100% of_it | *now*'


class FakeStore:
    def __init__(self) -> None:
        self.outcomes: dict[str, Outcome] = {}
        self.chosen: list[Choice] = []
        self.kept: list[Series] = []

    def get(self, keys: Iterable[str]) -> dict[str, Outcome]:
        return {key: self.outcomes[key] for key in keys if key in self.outcomes}

    def choices(self) -> list[Choice]:
        return self.chosen

    def series(self, kind: str) -> list[Series]:
        return [one for one in self.kept if one.kind == kind]

    def summary(self) -> SimpleNamespace:
        return SimpleNamespace(trainings=5000, seconds=7200.0, attacks=3, attack_seconds=360.0)

    def add(
        self,
        values: Sequence[float],
        *,
        table: str = "table1",
        dataset: str = "cora",
        rate: float = 0.25,
        row: str = "asgnn",
        rule: str = "validation",
        search: str = "paper",
        settings: Mapping[str, Value] | None = None,
        first_seed: int = 0,
        machine: str = "a machine",
        scalars: Callable[[int], Mapping[str, float]] = lambda seed: {},
        figures: Callable[[float], Mapping[str, float]] | None = None,
    ) -> Choice:
        """A choice whose trials have these values of the table's figure."""
        spec = load_spec(table)
        chosen = as_settings({**dict(spec.row(row).settings), **(settings or {"lr": 0.01})})
        case, model = spec.case(dataset, rate), spec.row(row).model
        keys = []
        for seed, value in enumerate(values, first_seed):
            training = Training(case.of_trial(seed), model, chosen, seed)
            measured = {spec.figure: value, "val": value + 1} if figures is None else figures(value)
            self.outcomes[training.key] = Outcome(training, measured, 2.5, 10, machine, "0.1.0", scalars(seed))
            keys.append(training.key)
        choice = Choice(table, case, row, rule, search, model, chosen, 324, tuple(keys))
        self.chosen.append(choice)
        return choice


@pytest.fixture
def store() -> FakeStore:
    store = FakeStore()
    store.add(ANSWER["ours"], scalars=lambda seed: {"lam": 2.0 + seed, "gamma": 1.0})
    store.add(ANSWER["frozen"], row="asgnn-frozen")
    store.add(ANSWER["gcn"], row="gcn")
    return store


def cell_of(report: Report, row: str, table: str = "table1", rate: float = 0.25, rule: str = "validation") -> Cell:
    cells = next(one for one in report.tables if one.spec.name == table).cells
    return next(c for c in cells if (c.dataset, c.rate, c.row, c.rule) == ("cora", rate, row, rule))


# --- what is collected ----------------------------------------------------------------------------------------------


def test_means_sample_standard_deviations_and_differences(store: FakeStore) -> None:
    cell = cell_of(collect(store), "asgnn")
    assert cell.ours is not None
    assert (cell.ours.mean, cell.ours.std) == (79.0, 1.0)
    assert cell.difference == pytest.approx(79.0 - 75.18)
    assert cell.figures["val"].mean == 80.0
    assert cell.ranks["test"] == 1
    assert cell_of(collect(store), "asgnn-frozen").ranks["test"] == 2
    assert "test" not in cell_of(collect(store), "gcn").ranks


def test_less_is_better_for_a_loss() -> None:
    store = FakeStore()
    store.add([0.9, 1.1], table="table3", rate=5.0)
    store.add([4.9, 5.1], table="table3", rate=5.0, row="gcn")
    report = collect(store)
    assert cell_of(report, "asgnn", "table3", 5.0).ranks["clean_test_loss"] == 1
    assert [one.cell.row for one in report.lower] == ["gcn"]  # 5.0 against 3.327: a higher loss is the worse one
    assert report.findings[0].startswith("Ours is as good as the paper's figure or better in 1 of the 2 cells")


def test_adaptivity_is_tested_over_the_seeds_of_both(store: FakeStore) -> None:
    added = cell_of(collect(store), "asgnn").added
    assert added is not None
    assert added.trials == 3
    assert added.difference == pytest.approx(1.5)
    assert added.p == pytest.approx(stats.ttest_rel(ANSWER["ours"], ANSWER["frozen"]).pvalue)
    # by hand: differences 2, 1, 1.5 have mean 1.5 and deviation 0.5
    assert added.p == pytest.approx(2 * stats.t.sf(1.5 / (0.5 / np.sqrt(3)), df=2))

    other = FakeStore()  # seeds 0, 1, 2 and 1, 2, 3: two in common
    other.add(ANSWER["ours"])
    other.add(ANSWER["frozen"], row="asgnn-frozen", first_seed=1)
    added = cell_of(collect(other), "asgnn").added
    assert added is not None
    assert added.trials == 2
    assert added.p == pytest.approx(stats.ttest_rel(ANSWER["ours"][1:], ANSWER["frozen"][:2]).pvalue)


def test_a_constant_difference_has_no_p() -> None:
    store = FakeStore()
    store.add([70.1, 71.1, 72.1])
    store.add([70.0, 71.0, 72.0], row="asgnn-frozen")
    added = cell_of(collect(store), "asgnn").added
    assert added is not None
    assert added.p is None
    assert "p not defined" in as_markdown(collect(store))


def test_twins_of_another_search_are_named() -> None:
    store = FakeStore()
    store.add(ANSWER["ours"])
    store.add(ANSWER["frozen"], row="asgnn-frozen", search="wide")
    added = cell_of(collect(store), "asgnn").added
    assert added is not None
    assert not added.fair
    assert "searches differ" in as_markdown(collect(store))


def test_the_most_thorough_choice_is_taken() -> None:
    store = FakeStore()
    few = store.add([70.0, 71.0], settings={"lr": 0.1})
    wide = store.add([80.0] * 10, search="wide", settings={"lr": 0.2})
    many = store.add([72.0, 73.0, 74.0], settings={"lr": 0.3})
    store.add([90.0] * 20, search="none", rule="none", settings={"lr": 0.4})
    assert cell_of(collect(store), "asgnn").choice == many
    store.chosen.remove(many)
    assert cell_of(collect(store), "asgnn").choice == few
    store.chosen.remove(few)
    assert cell_of(collect(store), "asgnn").choice == wide


def test_rules_are_kept_apart_and_no_rule_serves_for_both() -> None:
    store = FakeStore()
    store.add([70.0, 71.0], table="table2", rate=5.0, settings={"lr": 0.1})
    store.add([80.0, 81.0], table="table2", rate=5.0, rule="attacked validation", settings={"lr": 0.2})
    store.add([40.0, 41.0], table="table2", rate=5.0, row="prognn", rule="none", search="none")
    report = collect(store)
    for rule, mean in (("validation", 70.5), ("attacked validation", 80.5)):
        ours = cell_of(report, "asgnn", "table2", 5.0, rule).ours
        assert ours is not None
        assert ours.mean == mean
        assert cell_of(report, "prognn", "table2", 5.0, rule).ours is not None
        assert f"### cora, settings chosen on {rule}" in as_markdown(report)
    assert [(one.cell.row, one.cell.rule) for one in report.lower] == [("prognn", "validation")]  # once, not by rule


def test_random_splits_are_tables_of_their_own(store: FakeStore) -> None:
    """A random split for each trial: other cells, findings and lower ones, tested seed by seed as all are."""
    given = collect(store)
    assert [table.spec.name for table in given.tables] == list(TABLES)
    higher = {row: [value + 1 for value in values] for row, values in ANSWER.items()}
    for row, name in (("asgnn", "ours"), ("asgnn-frozen", "frozen"), ("gcn", "gcn")):
        store.add(higher[name], table="table1-random", row=row)
    report = collect(store)
    assert [table.spec.name for table in report.tables] == ["table1", "table1-random", "table2", "table3"]
    assert cell_of(report, "asgnn") == cell_of(given, "asgnn")
    cell = cell_of(report, "asgnn", "table1-random")
    assert cell.ours is not None
    assert cell.ours.mean == 80.0
    assert [outcome.training.case.split for outcome in cell.outcomes] == ["random:0", "random:1", "random:2"]
    assert cell.added == cell_of(given, "asgnn").added
    assert report.findings[: len(given.findings)] == given.findings
    assert report.findings[len(given.findings)].startswith("Ours on random splits is as good as the paper's")
    assert len(report.findings) == 2 * len(given.findings)
    lower = [(one.table.spec.name, one.cell.row, one.clear) for one in report.lower]
    assert lower == [("table1", "gcn", True), ("table1-random", "gcn", False)]
    heading = "## Accuracy under global attack (Table 1), a random split for each trial"
    assert heading in as_markdown(report)
    assert heading not in as_markdown(given)


def test_trials_that_the_store_lacks_are_said(store: FakeStore) -> None:
    del store.outcomes[store.chosen[0].trainings[0]]
    cell = content(collect(store))["tables"][0]["cells"]["validation"]["cora"]["asgnn"][5]
    assert (cell["trials"], cell["wanted"]) == (2, 3)


def test_lower_cells_and_their_explanations(store: FakeStore) -> None:
    store.add([74.0, 76.0], row="asgnn-paper")  # 75.0 ± 1.4 against 75.18
    within, one = sorted(collect(store).lower, key=lambda lower: lower.cell.row)
    assert (within.cell.row, within.clear, within.explanation) == ("asgnn-paper", False, WITHIN)
    assert (one.cell.row, one.clear) == ("gcn", True)
    assert one.explanation not in (WITHIN, UNEXPLAINED)
    assert load_explanations("")("table1", one.cell) == UNEXPLAINED
    explain = load_explanations(
        """
        [[explanation]]
        table = "table1"
        row = "gcn"
        rate = 0.25
        text = "the special one"
        [[explanation]]
        table = "table1"
        row = "gcn"
        rule = "attacked validation"
        text = "of another rule"
        [[explanation]]
        table = "table1"
        row = "gcn"
        text = "the general one"
        [[explanation]]
        table = "table1"
        text = "of every row"
        """
    )
    assert explain("table1", one.cell) == "the special one"
    assert explain("table1", cell_of(collect(store), "gcn", rate=0.0)) == "the general one"
    assert explain("table1", within.cell) == "of every row"
    assert explain("table2", one.cell) == UNEXPLAINED


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ('table = "table1"\nrow = "gcn"', "has no text"),
        ('table = "table1"\nrow = "gcn"\ntext = ""\nrates = 1', "'rates', which means nothing"),
        ('table = "table9"\nrow = "gcn"\ntext = ""', "no table 'table9'"),
        ('table = "table1"\nrow = "gnc"\ntext = ""', "no row 'gnc'"),
    ],
)
def test_wrong_explanations_are_named(entry: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_explanations(f"[[explanation]]\n{entry}")


def test_a_figure_that_is_no_number_is_said_in_every_format() -> None:
    store = FakeStore()
    store.add([float("nan"), 79.0])
    store.add([float("inf"), 79.0], row="gcn")
    report = collect(store)
    assert "not a number" in as_markdown(report)
    assert "not a number" in as_latex(report)
    assert content(report)["tables"][0]["cells"]["validation"]["cora"]["asgnn"][5]["ours"]["test"][:2] == [None, None]
    as_html(report)  # JSON has no NaN
    assert len(report.lower) == 2


def test_series_of_equal_settings_become_their_mean(store: FakeStore) -> None:
    for key, up in zip(store.chosen[0].trainings[:2], (0.0, 2.0), strict=True):
        terms = [{"fidelity": 1.0 + up, "l1": 4.0}, {"fidelity": 0.5 + up, "l1": 3.0}]
        store.kept.append(Series(key, "objective", {"trained": 1, "terms": terms}))
    store.kept.append(Series("of no training", "objective", {"trained": 1, "terms": terms}))
    store.kept.append(Series(store.chosen[1].trainings[0], "objective", {"trained": 1, "terms": []}))
    (layers,) = collect(store).layers
    assert (layers.trials, layers.trained, layers.graph) == (2, 1, "metattack, 25%")
    assert layers.label == "ASGNN, degree objective"
    assert layers.lines["terms"]["fidelity"] == (2.0, 1.5)
    assert layers.lines["terms"]["total"] == (6.0, 4.5)


def test_trainings_that_tables_share_are_counted_once() -> None:
    store = FakeStore()
    both = lambda value: {"target": value, "clean_test_loss": 1.0}  # noqa: E731
    store.add([70.0, 71.0], table="table2", rate=5.0, figures=both)
    store.add([70.0, 71.0], table="table3", rate=5.0, figures=both)
    (machine,) = collect(store).machines
    assert (machine.trainings, machine.seconds) == (2, 5.0)


# --- what is written ------------------------------------------------------------------------------------------------


def test_exact_cells_of_markdown(store: FakeStore) -> None:
    page = as_markdown(collect(store))
    rows = {line.split(" | ")[0]: line.split(" | ") for line in reversed(page.splitlines()) if line.startswith("| ")}
    assert "| model | 0% | 5% | 10% | 15% | 20% | 25% | trials | settings tried |" in page
    table = page.partition("### cora, settings chosen on validation")[2].partition("What adaptivity adds")[0]
    rows = {line[2:].split(" | ")[0]: line[2:-2].split(" | ") for line in table.splitlines() if line.startswith("| ")}
    assert rows["ASGNN, degree objective"][6:] == [
        "**79.00 ± 1.00**<br>paper 75.18 ± 0.97<br>+3.82",
        "3",
        "324 (paper search)",
    ]
    assert rows["ASGNN, degree objective, frozen"][6] == "<u>77.50 ± 0.87</u>"
    assert rows["GCN"][6] == "51.00 ± 1.00<br>paper 52.67 ± 1.00<br>−1.67"
    assert rows["Pro-GNN"][6] == "*paper 71.19 ± 1.27*"  # ours is missing
    assert rows["APPNP"][6] == ""  # and so is the paper's
    p = stats.ttest_rel(ANSWER["ours"], ANSWER["frozen"]).pvalue
    assert f"| +1.50<br>p = {p:.3f} |" in page
    assert "| table1 | cora | 25% | GCN | validation | 51.00 ± 1.00 | 52.67 ± 1.00 | −1.67 | DeepRobust's own" in page
    assert "| ASGNN, degree objective | 25% | 3.000 ± 1.000 | 1.000 ± 0.000 |" in page  # learned scalars
    assert "| a machine | 0.1.0 | 9 | 22 |" in page
    assert "5000 trainings that took 2.00 hours together" in page


def test_exact_cells_of_latex(store: FakeStore) -> None:
    page = as_latex(collect(store))
    assert r"& \textbf{79.00 $\pm$ 1.00} & 3 & 324 (paper search) \\*" in page
    assert r"{\scriptsize paper 75.18 $\pm$ 0.97} &  &  \\*" in page
    assert r"{\scriptsize $-$1.67}" in page
    assert r"\textit{paper 71.19 $\pm$ 1.27}" in page
    assert r"model & 0\% & 5\%" in page
    assert r"cora\_ml" in page


def test_exact_cells_of_the_page(store: FakeStore) -> None:
    found = json.loads(re.findall(r'id="data">(.*?)</script>', as_html(collect(store)))[0])
    cells = found["tables"][0]["cells"]["validation"]["cora"]
    assert cells["asgnn"][5]["ours"]["test"] == [79.0, 1.0, 1]
    assert cells["asgnn"][5]["paper"] == [75.18, 0.97]
    assert cells["asgnn"][5]["difference"] == pytest.approx(3.82)
    assert cells["asgnn"][5]["scalars"] == {"lam": [2.0, 3.0, 4.0], "gamma": [1.0, 1.0, 1.0]}
    assert cells["prognn"][5] == {"paper": [71.19, 1.27]}
    assert cells["appnp"][5] == {}
    assert "DeepRobust" in found["lower"][0]["explanation"]


def test_no_text_breaks_out_of_its_place(store: FakeStore) -> None:
    store.add(ANSWER["gcn"], row="elastic", machine=NASTY, settings={"note": NASTY})
    report = collect(store)
    page = as_html(report)
    assert page.count("</script>") == 2
    assert "alert(" in page  # it is there, as data
    assert "<script>alert" not in page
    assert escape_markdown(NASTY).startswith("H200 &lt;/script&gt;")
    assert r"100% of\_it \| \*now\*" in as_markdown(report)
    assert r"\& 100\% of\_it \textbar{} *now*" in as_latex(report)
    assert escape_latex("a\\b^{2} ± 50% λ₂ 漢") == (
        r"a\textbackslash{}b\textasciicircum{}\{2\} $\pm$ 50\% $\lambda$$_2$ [U+6F22]"
    )


def test_the_page_asks_for_nothing_from_outside(store: FakeStore) -> None:
    page = as_html(collect(store))
    assert "default-src 'none'" in page
    assert not re.search(r"""(?:src|href)\s*=\s*["'](?!data:,|#)""", page)
    assert "@import" not in page
    assert "fetch(" not in page


# --- files ----------------------------------------------------------------------------------------------------------


def test_files_are_written_by_format(store: FakeStore, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    assert write_report(store, folder, ["markdown"]) == (folder / "report.md",)
    assert {path.name for path in write_report(store, folder)} == {"report.html", "report.md", "report.tex"}
    assert sorted(path.name for path in folder.iterdir()) == ["report.html", "report.md", "report.tex"]


def test_failures_are_sentences(store: FakeStore, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"There is no format 'pdf'; the formats of a report are html, markdown, latex\."
    ):
        write_report(store, tmp_path, ["html", "pdf"])
    with pytest.raises(ConfigError, match="nothing to write"):
        write_report(store, tmp_path, [])
    with pytest.raises(ConfigError, match="holds no cell of a table yet"):
        write_report(FakeStore(), tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(DataUnavailable, match=r"report\.html could not be written"):
        write_report(store, tmp_path / "file")
    assert not list(tmp_path.glob("report.*"))


def test_the_command_reads_a_store(store: FakeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(tmp_path / "results.db") as real:
        real.add(store.outcomes.values())
        real.add_choices(store.chosen)
    arguments = ["report", str(tmp_path / "results.db"), "-o", str(tmp_path / "out"), "--format", "markdown, latex"]
    monkeypatch.setattr(sys, "argv", ["asgnn", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    assert not left.value.code
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["report.md", "report.tex"]
    assert "**79.00 ± 1.00**" in (tmp_path / "out" / "report.md").read_text(encoding="utf-8")


# --- a whole store, LaTeX's own word, and a real browser ------------------------------------------------------------


def full_store(trials: int = 10) -> FakeStore:
    """Every cell of every table but a few, near the paper's figures; every kind of series."""
    draw, store = random.Random(1), FakeStore()
    for name in TABLES:
        spec = load_spec(name)
        paper = {row.name: row.paper or "ASGNN" for row in spec.rows}
        for rule in spec.rules:
            for dataset, figures in spec.paper.items():
                for rate in spec.rates:
                    for row in spec.rows:
                        if (dataset, row.name) == ("acm", "prognn") or (dataset, row.name, rate) == (
                            "cora",
                            "gcn-svd",
                            0.1,
                        ):
                            continue
                        _add_cell(
                            store, draw, name, dataset, rate, row.name, rule, figures[rate][paper[row.name]], trials
                        )
    for choice in store.chosen:
        if choice.table == "table1" and choice.row in ("asgnn", "asgnn-paper") and choice.case.rate in (0.05, 0.25):
            for key in choice.trainings[:3]:
                store.kept += _series(key, draw, rising=choice.row == "asgnn-paper")
    return store


def _add_cell(
    store: FakeStore,
    draw: random.Random,
    table: str,
    dataset: str,
    rate: float,
    row: str,
    rule: str,
    paper: tuple[float, float | None],
    trials: int,
) -> None:
    mean, std = paper
    loss = table == "table3"
    mean += draw.gauss(0.0, 0.02 if loss else 1.2) + (0.5 if row == "asgnn" and not loss else 0.0)
    mean -= (-0.03 if loss else 1.5) * row.endswith("frozen")
    scalars = ("lam", "gamma", "mu1", "mu2", "eta1", "eta2") if row.startswith("asgnn") else ()

    def figures(value: float) -> dict[str, float]:
        if loss:
            return {"clean_test_loss": value, "test": 80.0 - value, "val": 81.0 - value, "best_epoch": 120.0}
        auc = {"edge_auc": 0.9} if row.startswith("asgnn") and rate else {}
        return {
            load_spec(table).figure: value,
            "val": 9 * value**0.5,
            "val_loss": 1 - value / 100,
            "best_epoch": 80.0,
            **auc,
        }

    store.add(
        [draw.gauss(mean, std or 0.02) for _ in range(trials)],
        table=table,
        dataset=dataset,
        rate=rate,
        row=row,
        rule="none" if row == "prognn" else rule,
        search="none" if row == "prognn" else "paper",
        settings={"lr": draw.choice([0.005, 0.01, 0.05]), "dropout": draw.choice([0.1, 0.5]), "of": f"{table}, {rule}"},
        machine="NVIDIA H200" if dataset != "acm" else "a processor, 2 cores",
        scalars=lambda seed: {scalar: draw.gauss(2.0 + i + rate, 0.2) for i, scalar in enumerate(scalars)},
        figures=figures,
    )


def _series(key: str, draw: random.Random, *, rising: bool) -> list[Series]:
    layers, sizes = range(33), {"fidelity": 400.0, "smoothness": 900.0, "structure": 120.0, "l1": 60.0, "l2": 20.0}
    terms = [
        {name: size * (0.6**layer + 0.3 + (0.004 * layer if rising else 0)) for name, size in sizes.items()}
        for layer in layers
    ]
    steps = {"q05": -0.2, "q25": -0.1, "q50": 0.0, "q75": 0.1, "q95": 0.2, "mean": draw.uniform(-0.02, 0.02)}
    weights = {
        part: [
            {name: min(1.0, max(0.0, keep ** (layer / 4) + step)) for name, step in steps.items()} for layer in layers
        ]
        for part, keep in (("clean", 0.95), ("added", 0.6))
    }
    return [Series(key, "objective", {"trained": 8, "terms": terms}), Series(key, "weights", weights)]


@pytest.fixture(scope="module")
def whole() -> Report:
    return collect(full_store())


def test_findings_are_counted_over_the_first_rule(whole: Report) -> None:
    first = whole.findings[0]
    good, cells = map(int, re.findall(r"in (\d+) of the (\d+) cells", first)[0])
    by_hand = [
        (cell.difference >= 0) == (table.spec.name != "table3")
        for table in whole.tables
        for cell in table.cells
        if cell.rule == "validation" and cell.difference is not None
    ]
    assert (good, cells) == (sum(by_hand), len(by_hand))
    assert sum("adaptivity makes it better" in text for text in whole.findings) == 2


def test_latex_compiles(whole: Report, tmp_path: Path) -> None:
    if shutil.which("pdflatex") is None:
        pytest.skip("pdflatex is not installed here")
    (tmp_path / "report.tex").write_text(as_latex(whole), encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "report.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout.decode(errors="replace")[-2000:]
    assert (tmp_path / "report.pdf").stat().st_size > 10_000


def browse(report: Report, folder: Path, width: int, script: str) -> dict[str, Any]:
    """What ``script`` returns, run in the page by a real browser, where nothing may be written to the console."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium on the path")
    # Checks run in the page and send what they found to the page around it: no driver is needed to read it back. The
    # page stands in a frame, since a browser's own window has a least width, which is more than a phone's.
    catch = "<script>window.wrong = []; addEventListener('error', (event) => wrong.push(event.message));</script>"
    check = f"""<script>(async () => {{
      let found;
      try {{ found = await (async () => {{ {script} }})(); }} catch (error) {{ wrong.push(String(error.stack)); }}
      parent.postMessage(JSON.stringify({{ ...found, wrong }}), "*");
    }})();</script>"""
    page = as_html(report).replace("<head>", f"<head>{catch}").replace("</body>", f"{check}</body>")
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
    assert found["wrong"] == []
    return found


DRAWN = """
const all = (selector) => [...document.querySelectorAll(selector)];
const wide = all("body *").filter((one) => !one.closest(".scroll") && !one.closest(".hide, .skip")
  && one.getBoundingClientRect().right > innerWidth + 1).map((one) => one.outerHTML.slice(0, 120));
return {
  inner: innerWidth, page: document.documentElement.scrollWidth, wide,
  curves: all("#curves svg .curve").length, bands: all("#curves svg .band").length,
  others: all("#curves-all figure").length,
  objective: all("#objective figure .curve").length, weights: all("#weights figure .band").length,
  dots: all("#scalars .dot").length, axes: all("figure svg text").length,
  rows: all("#results-table tbody tr").length, lower: all("#lower-table tbody tr").length,
  machines: all("#machines-table tbody tr").length, assumed: all("#assumed li").length,
  scrolls: all(".scroll").filter((box) => box.scrollWidth > box.clientWidth).map((box) => box.parentElement.id),
  small: all("figure svg text").filter((text) => text.getBoundingClientRect().height < 9).length,
};
"""


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_is_drawn_and_fits(whole: Report, tmp_path: Path, width: int) -> None:
    found = browse(whole, tmp_path, width, DRAWN)
    assert found["inner"] == width
    assert found["page"] <= found["inner"]
    assert found["wide"] == []
    assert found["curves"] >= 10
    assert found["bands"] >= 10
    assert found["others"] == 3
    assert found["objective"] == 2 * 6
    assert found["weights"] == 2 * 2 * 2
    assert found["dots"] == 4 * 6 * 6 * 10
    assert found["rows"] == 10
    assert found["lower"] == sum(one.cell.dataset == "cora" for one in whole.lower if one.table == whole.tables[0]) > 0
    assert found["machines"] == 2
    assert found["assumed"] == len(whole.tables[0].spec.assumed)
    assert found["small"] == 0
    assert ("results-table" in found["scrolls"]) == (found["inner"] < 1000)


SWITCHED = """
const one = (selector) => document.querySelector(selector);
const names = (id) => [...document.querySelectorAll(`#${id} tbody th`)].map((cell) => cell.textContent);
const curves = () => [...document.querySelectorAll("#curves .curve")].map((path) => path.getAttribute("d")).join();
const set = (id, value) => { one(`#${id}`).value = value; one(`#${id}`).dispatchEvent(new Event("change")); };
const head = (i) => document.querySelectorAll("#results-table th .sort")[i];
const column = (i) => [...document.querySelectorAll(`#results-table tbody td:nth-child(${i + 1})`)]
  .map((cell) => parseFloat(cell.textContent.replace("paper", "")));
const caption = () => one("#results-table caption").textContent;
const found = { title: one("h2").textContent, start: names("results-table"), caption: caption() };

head(6).click();
found.sorted = column(6);
found.order = one("#results-table th[aria-sort]").getAttribute("aria-sort");
found.focus = document.activeElement.textContent;
head(6).click();
found.ascending = column(6);
head(6).click();
found.back = names("results-table");

let before = curves();
set("dataset", "acm");
found.dataset = { caption: caption(), moved: curves() !== before, hash: location.hash,
  paper: document.querySelectorAll("#results-table .paper-only").length, layers: one("#objective").textContent };
before = curves();
set("metric", "val");
found.metric = { caption: caption(), moved: curves() !== before,
  below: document.querySelectorAll("#results-table .cell .below").length, note: one("#results-note").textContent };

found.hiddenRule = one("#rule-label").hidden;
set("table", "table2");
found.table2 = { title: one("h2").textContent, rule: one("#rule-label").hidden, metric: one("#metric").value };
before = one("#results-table").textContent;
set("rule", "attacked validation");
found.table2.changed = one("#results-table").textContent !== before;
set("table", "table3");
found.table3 = { datasets: one("#dataset").length, rows: names("results-table").length };
set("table", "table1");

one("#filter").value = "ASGNN frozen";
one("#filter").dispatchEvent(new Event("input"));
found.filtered = names("results-table");
found.settings = [...new Set(names("settings-table"))];
one("#filter").value = "nobody";
one("#filter").dispatchEvent(new Event("input"));
found.none = one("#results-table").textContent;
one("#filter").value = "";
one("#filter").dispatchEvent(new Event("input"));

const count = () => document.querySelectorAll("#curves .curve").length;
found.lines = [count()];
one('#curves .legend button[data-name="gcn"]').click();
found.lines.push(count());
found.pressed = document.activeElement.getAttribute("aria-pressed");
one('#curves .legend button[data-name="gcn"]').click();
one("#curves-paper").click();
found.lines.push(count());

const chart = one("#curves figure svg");
chart.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight" }));
found.tip = one("#curves .tip").textContent;
found.over = one("#curves .tip").getBoundingClientRect().top - chart.getBoundingClientRect().top;
chart.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape" }));
found.gone = one("#curves .tip").hidden;
set("dataset", "cora");
one("#objective figure svg").dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight" }));
one("#weights figure svg").dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowLeft" }));
one("#scalars figure svg").dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowLeft" }));
found.tips = ["objective", "weights", "scalars"].map((id) => one(`#${id} .tip`).textContent);

found.lower = [names("lower-table").length];
one("#lower-all").click();
found.lower.push(names("lower-table").length, one("#lower-table").textContent.includes("citeseer"));

one("#results-table .cell").click();
found.detail = one("#detail").open && one("#detail").textContent;
one("#detail").close();
return found;
"""


def test_the_page_switches_sorts_and_filters(whole: Report, tmp_path: Path) -> None:
    found = browse(whole, tmp_path, 1280, SWITCHED)
    labels = list(whole.tables[0].labels.values())
    assert found["title"] == "Accuracy under global attack (Table 1)"
    assert found["start"] == labels
    assert found["caption"].startswith("cora: accuracy on the test nodes, %")

    assert found["sorted"] == sorted(found["sorted"], reverse=True)
    assert found["order"] == "descending"
    assert found["focus"] == "25%"
    assert found["ascending"] == found["sorted"][::-1]
    assert found["back"] == labels

    assert found["dataset"]["caption"].startswith("acm: ")
    assert found["dataset"]["moved"]
    assert "dataset=acm" in found["dataset"]["hash"]
    assert found["dataset"]["paper"] == 6  # Pro-GNN has not been measured there
    assert found["dataset"]["layers"]
    assert "validation nodes" in found["metric"]["caption"]
    assert found["metric"]["moved"]
    assert found["metric"]["below"] == 0
    assert "no such figures" in found["metric"]["note"]

    assert found["hiddenRule"]
    assert found["table2"]["title"].endswith("(Table 2)")
    assert not found["table2"]["rule"]
    assert found["table2"]["metric"] == "target"
    assert found["table2"]["changed"]
    assert found["table3"] == {"datasets": 1, "rows": 5}

    assert found["filtered"] == [label for label in labels if label.endswith("frozen")]
    assert found["settings"] == found["filtered"]
    assert "No model here has “nobody” in its name." in found["none"]

    full, fewer, with_paper = found["lines"]
    assert fewer == full - 1
    assert with_paper > full
    assert found["pressed"] == "false"
    assert found["tip"].startswith("0% edges flipped")
    assert 0 <= found["over"] < 20  # it lies on its chart
    assert found["gone"]
    assert found["tips"][0].startswith("at the starttotal")
    assert found["tips"][1].startswith("after layer 32edges of the clean graph")
    assert found["tips"][2].startswith("lam at 25%ASGNN, the paper's objective")
    here = [one for one in whole.lower if (one.table.spec.name, one.cell.dataset) == ("table1", "cora")]
    assert found["lower"] == [len(here), len(whole.lower), True]
    assert len(here) < len(whole.lower)
    assert "324 settings of the paper search" in found["detail"]


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_has_random_splits_to_choose(store: FakeStore, tmp_path: Path, width: int) -> None:
    store.add(ANSWER["ours"], table="table2-random", rate=5.0)
    script = """
    const table = document.querySelector("#table");
    table.value = "table2-random";
    table.dispatchEvent(new Event("change"));
    return { title: document.querySelector("h2").textContent, page: document.documentElement.scrollWidth,
      cells: document.querySelectorAll("#results-table .cell").length };
    """
    found = browse(collect(store), tmp_path, width, script)
    assert found["title"].endswith("(Table 2), a random split for each trial")
    assert found["page"] <= width
    assert found["cells"] == 1


def test_the_page_shows_text_as_text(store: FakeStore, tmp_path: Path) -> None:
    store.add(ANSWER["gcn"], row="elastic", machine=NASTY, settings={"note": NASTY})
    script = "return { text: document.querySelector('#machines-table').textContent, count: document.scripts.length };"
    found = browse(collect(store), tmp_path, 390, script)
    assert NASTY in found["text"]
    assert found["count"] == 4  # the page's two and the test's two
