"""tune chooses on validation, depends on its arguments alone, resumes, and works for every recipe."""

from __future__ import annotations

import importlib
import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from scipy.optimize import minimize_scalar
from scripts.choose_portfolio import choose
from torch_geometric.data import Data

from asgnn.errors import AsgnnError, ConfigError, DataCorrupt, GraphError
from asgnn.graphs import Split, apply_split, random_split
from asgnn.models import ASGNN
from asgnn.training import PORTFOLIO, RECIPES, TrainConfig, Tuned, candidates, predict, recipe, tune
from asgnn.training.calibrate import temperature_of
from asgnn.training.space import SPACES, load_portfolio
from asgnn.training.tune import TEMPERATURES, Scored, Table, Tried, _advice, _rungs, rank
from asgnn.training.tuning_file import Score, TuningFile
from tests.training.problem import graph

MODULE = importlib.import_module("asgnn.training.tune")
DATA = graph(torch.float32)
SPLIT = random_split(DATA, 0, train=0.3, val=0.4)
QUICK: dict[str, Any] = {"epochs": 12, "trials": 2}


def tuned(model: str = "gcn", data: Data = DATA, split: Split = SPLIT, **options: Any) -> Tuned:
    return tune(model, data, split, **{**QUICK, **options})


def figures(found: Tuned) -> list[tuple[Any, ...]]:
    """Everything in the table but the time."""
    return [(dict(row.settings), row.rung, row.trials, row.val_score, row.val_loss) for row in found.tried]


# --- candidates ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_has_candidates(name: str) -> None:
    found = candidates(name, 40)
    assert len(found) == len({json.dumps(one, sort_keys=True) for one in found}) == 40
    assert found[0] == {}
    assert candidates(name, 7) == found[:7]
    assert candidates(name, 40, 1)[1:] != found[1:]
    assert name in SPACES
    if name != "asgnn":
        assert candidates(name, "portfolio", 5) == found[:16]
    for settings in found:
        recipe(name, **settings).trial(DATA, SPLIT, 0)


@pytest.mark.parametrize("name", RECIPES)
def test_the_numbers_of_a_variant_cover_their_range(name: str) -> None:
    """Half of the learning rates of every variant lie above the middle of its range, up to a few."""
    per_variant: dict[str, list[float]] = {}
    for settings in candidates(name, 1 + 16 * 16, portfolio=False)[1:]:
        drawn = {"lr", "weight_decay", "dropout", "lam", "gamma", "mu1", "eta2", "scalar_lr", "lambda1", "lambda2"}
        fixed = {key: value for key, value in settings.items() if key not in drawn}
        if "lr" in settings:  # at first a variant has the recipe's numbers
            per_variant.setdefault(str(fixed), []).append(settings["lr"])
    assert per_variant
    low, high = (getattr(SPACES[name].ranges["lr"], end) for end in ("low", "high"))
    for rates in per_variant.values():
        assert min(rates) >= 0.99 * low
        assert max(rates) <= 1.01 * high
        above = sum(rate > math.sqrt(low * high) for rate in rates) / len(rates)
        assert 0.35 <= above <= 0.65


def test_the_portfolio_is_valid_and_has_its_provenance() -> None:
    assert len(PORTFOLIO) == 16
    assert PORTFOLIO[0] == {}
    assert candidates("asgnn") == list(PORTFOLIO) == candidates(RECIPES["asgnn"])
    more = candidates("asgnn", 40)
    assert more[:16] == list(PORTFOLIO)
    drawn = candidates("asgnn", 40, portfolio=False)
    assert [one for one in drawn if one not in PORTFOLIO][:20] == more[16:36]
    assert {"command", "chosen_by"} <= load_portfolio().keys()
    for settings in PORTFOLIO:
        assert isinstance(recipe("asgnn", **settings).trial(DATA, SPLIT, 0).model, ASGNN)


def test_the_portfolio_covers_the_graphs() -> None:
    """Greedy: the recipe, then what raises the mean of the best most; never worse than any other second member."""
    value = torch.rand(30, 5, generator=torch.Generator().manual_seed(0))
    chosen = choose(value, 6)
    assert chosen[0] == 0
    assert len(set(chosen)) == 6
    gains = [float(torch.maximum(value[0], row).mean()) for row in value]
    assert gains[chosen[1]] == max(gains)
    reached = [float(value[chosen[:count]].max(0).values.mean()) for count in range(1, 7)]
    assert reached == sorted(reached)
    assert float(value[choose(value, 30)].max(0).values.mean()) == float(value.max(0).values.mean())


FIXED: dict[str, tuple[str, dict[str, Any]]] = {
    "a frozen structure": ("asgnn", {"structure": "frozen"}),
    "the paper's objective, which excludes some variants": ("asgnn", {"objective": "paper"}),
    "a scalar on which another depends": ("asgnn", {"gamma": 0.4}),
    "a step size": ("asgnn", {"eta2": 0.5, "gamma": 1.0}),
    "the depth": ("gcn", {"num_layers": 2}),
    "a learning rate": ("mlp", {"lr": 0.02}),
}


@pytest.mark.parametrize("budget", [20, "portfolio"])
@pytest.mark.parametrize("case", FIXED)
def test_fixed_settings_are_in_every_candidate(case: str, budget: Any) -> None:
    name, fixed = FIXED[case]
    found = candidates(name, budget, fixed=fixed)
    assert len({json.dumps(one, sort_keys=True) for one in found}) == len(found)
    assert budget == "portfolio" or len(found) == budget
    assert found[0] == fixed
    for settings in found:
        assert fixed.items() <= settings.items()
        recipe(name, **settings).trial(DATA, SPLIT, 0)


# --- halving -------------------------------------------------------------------------------------------------------

RUNGS = {
    (1, 200, 3): [(1, 200, 3)],
    (2, 200, 3): [(2, 200, 3)],
    (3, 200, 3): [(3, 100, 2), (2, 200, 3)],
    (4, 200, 1): [(4, 100, 1), (2, 200, 1)],
    (16, 200, 3): [(16, 50, 1), (4, 100, 2), (2, 200, 3)],
    (64, 100, 5): [(64, 25, 1), (16, 50, 2), (4, 100, 5)],
    (100, 1, 1): [(100, 1, 1), (25, 1, 1), (7, 1, 1)],
}


@pytest.mark.parametrize("asked", RUNGS)
def test_rungs(asked: tuple[int, int, int]) -> None:
    assert _rungs(*asked) == RUNGS[asked]


# with a standard error, and so a step, of 0.01
RANKED: dict[str, tuple[list[tuple[float, float]], list[int]]] = {
    "clear": ([(0.7, 0.1), (0.9, 2.0), (0.8, 0.1)], [1, 2, 0]),
    "a tie is decided by the loss": ([(0.9, 2.0), (0.895, 1.0), (0.9, 3.0)], [1, 0, 2]),
    "the next step": ([(0.9, 2.0), (0.889, 1.0), (0.885, 0.9)], [0, 2, 1]),
    "on the edge of a step": ([(0.9, 2.0), (0.89, 1.0)], [0, 1]),
    "equal": ([(0.9, 1.0), (0.9, 1.0)], [0, 1]),
    "diverged": ([(-1.0, math.inf), (0.1, 9.0)], [1, 0]),
    "all diverged": ([(-1.0, math.inf), (-1.0, math.inf)], [0, 1]),
}


@pytest.mark.parametrize("case", RANKED)
def test_rank(case: str) -> None:
    scores, expected = RANKED[case]
    assert rank(scores, lambda score: 0.01) == expected


@pytest.mark.parametrize("place", [0, 5, 11])
def test_the_only_setting_that_learns_is_chosen(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = [{"lr": 1e-6, "dropout": i / 20} for i in range(12)]
    asked[place] = {"lr": 0.05, "dropout": 0.1}
    monkeypatch.setattr(MODULE, "candidates", lambda *arguments, **options: asked)
    found = tuned(epochs=40)
    assert found.settings == {**asked[place], "epochs": 40, "patience": 50}
    assert found.recipe == recipe("gcn", **found.settings)
    assert [row.rung for row in found.tried] == [3] * 2 + [2] * 4 + [1] * 12
    assert len(found.tried.best()) == 12
    assert found.tried.best(1)[0].settings == asked[place]


def test_the_figures_are_those_of_the_fits() -> None:
    found = tuned("asgnn", budget=3)
    assert [fit.config for fit in found.fits] == [
        TrainConfig(**{**vars(found.recipe.config), "seed": seed}) for seed in range(2)
    ]
    assert found.val_score == pytest.approx(sum(fit.val_score for fit in found.fits) / 2)
    y = DATA.y[SPLIT.val]
    losses = [temperature_of(fit.logits[0][None, SPLIT.val], y, TEMPERATURES)[1] for fit in found.fits]
    assert found.val_loss == pytest.approx(sum(losses) / 2)
    mean = torch.stack([fit.logits[0].softmax(-1) for fit in found.fits]).mean(0)
    assert torch.equal(predict(found.ensemble(), DATA), mean.argmax(-1))
    assert found.comparison.keys() == {"mlp", "gcn"}
    learned = [fit.model.scalar_values()["lam"] for fit in found.fits if isinstance(fit.model, ASGNN)]
    assert found.scalars["lam"] == pytest.approx(sum(learned) / 2)


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_can_be_tuned(name: str) -> None:
    found = tuned(name, budget=2, epochs=4, trials=1)
    assert found.recipe.kind is RECIPES[name].kind
    assert len(found.tried) == 2
    assert found.comparison.keys() == {"mlp", "gcn"} - {name}
    assert str(found.tried).count("\n") == 2
    assert "chosen: " in str(found)


@pytest.mark.parametrize("scale", [0.2, 1.0, 3.0])
def test_the_loss_does_not_depend_on_confidence(scale: float) -> None:
    """It is about that of the best temperature by SciPy, however large the scores are."""
    rng = torch.Generator().manual_seed(0)
    y = torch.randint(3, (60,), generator=rng)
    logits = torch.randn(60, 3, generator=rng) + torch.nn.functional.one_hot(y, 3)

    def loss(log_tau: float) -> float:
        return float(torch.nn.functional.cross_entropy(logits / math.exp(log_tau), y))

    best = minimize_scalar(loss, bounds=(-3, 2), method="bounded").fun
    _, found = temperature_of(scale * logits[None], y, TEMPERATURES)
    assert best - 1e-6 <= found
    assert found <= best + 0.003


def test_a_module_of_another_package() -> None:
    found = tuned("torch_geometric.nn:GCN", budget=3, fixed={"hidden_channels": 4, "num_layers": 2})
    assert found.settings["hidden_channels"] == 4
    assert len(found.fits) == 2


def test_masks_are_a_split() -> None:
    assert figures(tune("gcn", apply_split(DATA, SPLIT), budget=3, **QUICK)) == figures(tuned(budget=3))


def test_roc_auc() -> None:
    data = graph(torch.float32)
    data.y = (data.y == 0).long()
    found = tuned(data=data, budget=3, metric="roc_auc")
    assert found.settings["metric"] == "roc_auc"
    assert all(fit.config.metric == "roc_auc" for fit in found.fits)


# --- the result depends on the arguments alone ----------------------------------------------------------------------


def test_equal_arguments_give_equal_results() -> None:
    first, again, other = (tuned("asgnn", budget=5, seed=seed) for seed in (1, 1, 2))
    assert figures(first) == figures(again)
    assert (first.settings, first.comparison, first.advice) == (again.settings, again.comparison, again.advice)
    assert figures(first) != figures(other)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("largest", [1, 100])
def test_batches_and_threads_do_not_change_the_result(
    largest: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = tuned("asgnn", budget=4)
    monkeypatch.setattr(MODULE, "LARGEST_BATCH", {"cpu": largest, "cuda": largest})
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    found = tuned("asgnn", budget=4)
    for ours, theirs in zip(figures(found), figures(expected), strict=True):
        assert ours[:3] == theirs[:3]
        assert ours[3:] == pytest.approx(theirs[3:], rel=1e-4)


def test_labels_of_test_nodes_are_never_read() -> None:
    corrupt = graph(torch.float32)
    corrupt.y[SPLIT.test] = (corrupt.y[SPLIT.test] + 1) % 3
    first, second = tuned(budget=6), tuned(data=corrupt, budget=6)
    assert figures(first) == figures(second)
    assert first.advice == second.advice


def test_progress_counts_to_the_total() -> None:
    seen: list[tuple[int, int]] = []
    tuned(budget=6, progress=lambda done, total: seen.append((done, total)))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1][0] == seen[-1][1]


# --- the file ------------------------------------------------------------------------------------------------------


class Counter:
    """Counts the trials that are trained."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.trials, real = 0, MODULE.fit_many

        def counted(trials: Any, *arguments: Any, **options: Any) -> Any:
            self.trials += len(trials)
            return real(trials, *arguments, **options)

        monkeypatch.setattr(MODULE, "fit_many", counted)


@pytest.mark.parametrize("cut", [0, 1, 6, 12, 10**6])
def test_an_interrupted_run_resumes(cut: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first lines and half of the next one are left: the result is the same, bit for bit."""
    whole, path = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    counter = Counter(monkeypatch)
    expected = tuned("asgnn", budget=7, checkpoint=whole)
    lines, count = whole.read_text().splitlines(keepends=True), counter.trials
    assert count == len(lines) - 1  # the first line names the graph
    path.write_text("".join(lines[:cut]) + "".join(lines[cut : cut + 1])[:30])
    counter.trials = 0
    found = tuned("asgnn", budget=7, checkpoint=path)
    assert figures(found) == figures(expected)
    assert (found.settings, found.comparison, found.advice) == (
        expected.settings, expected.comparison, expected.advice,
    )  # fmt: skip
    assert sorted(map(_without_time, path.read_text().splitlines())) == sorted(
        map(_without_time, whole.read_text().splitlines())
    )
    # at most the rest of one batch is repeated
    assert count - len(lines[1:cut]) <= counter.trials <= count - len(lines[1:cut]) + 3
    counter.trials = 0
    again = tuned("asgnn", budget=7, checkpoint=path)
    assert counter.trials == 0
    assert figures(again) == figures(expected)
    for ours, theirs in zip(again.fits, expected.fits, strict=True):  # trained when asked for
        torch.testing.assert_close(ours.logits[0], theirs.logits[0], rtol=1e-3, atol=1e-3)
    assert counter.trials == 2


def _without_time(line: str) -> str:
    found = json.loads(line)
    found.get("score", {}).pop("seconds", None)
    return json.dumps(found)


def test_a_file_serves_several_models_and_keeps_what_diverged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "folder" / "tuning.jsonl"
    tuned("gcn", budget=3, checkpoint=path)
    before = len(path.read_text().splitlines())
    asked: list[dict[str, Any]] = [{}, {"lr": 1e30}]
    monkeypatch.setattr(MODULE, "candidates", lambda *arguments, **options: asked)
    first, again = (tuned("mlp", checkpoint=path, fixed={"num_layers": 1}) for _ in range(2))
    assert len(path.read_text().splitlines()) > before
    assert figures(first) == figures(again)
    assert first.tried[-1].val_score == -1
    assert first.tried[-1].val_loss == math.inf
    assert "–" in str(first.tried)


def other_graph() -> Data:
    data = graph(torch.float32)
    data.edge_index = data.edge_index[:, :0]
    return data


LINE = '{"asgnn_tuning": 1, "graph": "x", "split": "y"}\n'
BAD_FILES: dict[str, tuple[type[AsgnnError], str, str | None, Data, Split]] = {
    "another graph": (ConfigError, "trainings on another graph", None, other_graph(), SPLIT),
    "another split": (ConfigError, "trainings on another split", None, DATA, random_split(DATA, 1, train=0.3, val=0.4)),
    "text": (DataCorrupt, "is not a file of trainings", "hello\n", DATA, SPLIT),
    "text without an end": (DataCorrupt, "is not a file of trainings", "hello", DATA, SPLIT),
    "a list": (DataCorrupt, "is not a file of trainings", "[]\n", DATA, SPLIT),
    "another version": (DataCorrupt, "this version", LINE.replace("1", "99"), DATA, SPLIT),
    "a broken line": (DataCorrupt, "is not a file of trainings", "HEAD{oops}\n", DATA, SPLIT),
    "a line that is no training": (DataCorrupt, "a line that is not a training", 'HEAD{"key": "a"}\n', DATA, SPLIT),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_file_that_is_not_of_this_search_is_refused_and_unchanged(case: str, tmp_path: Path) -> None:
    kind, message, text, data, split = BAD_FILES[case]
    path = tmp_path / "tuning.jsonl"
    TuningFile(path, DATA, SPLIT).add({"key": Score(0.5, 1.0, 1, 2, 0.1)})
    if text is not None:
        path.write_text(text.replace("HEAD", path.read_text().splitlines(keepends=True)[0]))
    before = path.read_text()
    with pytest.raises(kind, match=message) as caught:
        tuned(data=data, split=split, budget=2, checkpoint=path)
    assert str(caught.value).endswith(".")
    assert path.read_text() == before


# --- advice --------------------------------------------------------------------------------------------------------


def advice(
    score: float,
    mlp: float,
    gcn: float,
    nodes: int = 300,
    best: int = 20,
    useless: str | None = None,
    lam: float = 1.0,
    **settings: Any,
) -> list[str]:
    y = torch.arange(nodes) % 3
    search = SimpleNamespace(
        y=y, uninformative=useless, standard_error=lambda metric: lambda score: math.sqrt(score * (1 - score) / nodes)
    )
    row = Tried(settings, 3, 200, 2, score, 1.0, 1.0)
    comparison = {"mlp": Scored(mlp, 1.0, 2), "gcn": Scored(gcn, 1.0, 2)}
    return list(_advice(row, comparison, search, "accuracy", [Score(score, 1.0, best, 200, 1.0, {"lam": lam})] * 2))  # type: ignore[arg-type]


ADVICE: dict[str, tuple[list[str], list[str]]] = {
    "all is well": ([], advice(0.85, 0.6, 0.8)),
    "the edges do not help": (["The edges do not help here"], advice(0.6, 0.62, 0.5)),
    "features do not help": (["The features alone hardly help"], advice(0.8, 0.34, 0.8)),
    "nothing helps": (["edges do not help", "features alone hardly", "hardly beats chance"], advice(0.34, 0.34, 0.33)),
    "a GCN is better": (["prefer the GCN"], advice(0.7, 0.6, 0.8)),
    "a GCN is a little better": ([], advice(0.79, 0.6, 0.8)),
    "without the given edges": (["edges were not trusted"], advice(0.85, 0.6, 0.8, prior_edges=0.0)),
    "features that cannot judge": (["cannot be judged by the features"], advice(0.85, 0.6, 0.8, useless="All equal.")),
    "heterophily": (["different classes"], advice(0.85, 0.6, 0.8, lam=-0.2)),
    "few nodes": (["only 30 validation nodes"], advice(0.85, 0.6, 0.8, nodes=30)),
    "still improving": (["raise epochs"], advice(0.85, 0.6, 0.8, best=200)),
}


@pytest.mark.parametrize("case", ADVICE)
def test_advice(case: str) -> None:
    expected, found = ADVICE[case]
    assert len(found) == len(expected)
    assert all(part in sentence for part, sentence in zip(expected, found, strict=True))
    assert all(sentence.endswith(".") for sentence in found)


def test_edges_that_say_nothing_are_reported() -> None:
    """Clear features and random edges: the MLP wins, and the user is told."""
    rng = torch.Generator().manual_seed(0)
    y = torch.arange(90) % 3
    x = torch.nn.functional.one_hot(y, 3).float() + 0.3 * torch.randn(90, 3, generator=rng)
    pairs = torch.randint(90, (2, 600), generator=rng)
    pairs = pairs[:, pairs[0] < pairs[1]].unique(dim=1)
    data = Data(x=x, y=y, edge_index=torch.cat([pairs, pairs.flip(0)], 1))
    found = tuned("gcn", data, random_split(data, 0, train=0.3, val=0.4), budget=3, epochs=60)
    assert found.comparison["mlp"].val_score > 0.9
    assert any("The edges do not help here" in sentence for sentence in found.advice)


# --- errors --------------------------------------------------------------------------------------------------------


BAD: dict[str, tuple[str, dict[str, Any]]] = {
    "no such model": ("There is no model 'nope'", {"model": "nope"}),
    "no budget": ("budget must be a whole number from 1", {"budget": 0}),
    "a word for the budget": ("budget must be a whole number", {"budget": "all"}),
    "no trials": ("trials must be a whole number from 1", {"trials": 0}),
    "a negative seed": ("seed must be a whole number", {"seed": -1}),
    "no epochs": ("epochs must be a whole number from 1", {"epochs": 0}),
    "no patience": ("patience must be a whole number from 1", {"patience": 0}),
    "no such setting": ("GCN has no setting lam", {"fixed": {"lam": 1.0}}),
    "a setting out of range": ("dropout rate must be a number", {"fixed": {"dropout": 2.0}}),
    "no such metric": ("metric must be one of", {"metric": "f1"}),
    "the metric of two classes": ("needs two classes", {"metric": "roc_auc"}),
    "no split": ("train_mask is missing", {"split": None}),
    "a folder": ("is not a file", {"checkpoint": Path(__file__).parent}),
}


@pytest.mark.parametrize("case", BAD)
def test_invalid_arguments_raise(case: str) -> None:
    message, options = BAD[case]
    with pytest.raises(AsgnnError, match=message) as caught:
        tuned(**{"budget": 2, **options})
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)


def test_nothing_is_chosen_if_everything_diverges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "candidates", lambda *arguments, **options: [{"lr": 1e30}])
    with pytest.raises(GraphError, match="Every training diverged"):
        tuned()


def test_a_table_without_pandas_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match="pandas, which is not installed"):
        Table(()).to_pandas()


def test_a_table_with_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    rows = (Tried({"lr": 0.1}, 1, 5, 1, 0.5, 1.0, 0.1), Tried({}, 1, 5, 1, 0.4, 1.0, 0.1))
    found = Table(rows).to_pandas()
    assert isinstance(found, pandas.DataFrame)
    assert list(found["val_score"]) == [0.5, 0.4]
    assert found["lr"][0] == 0.1
