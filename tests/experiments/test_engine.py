"""The engine: which trainings it requests, how it chooses settings and forms batches; mostly with fake outcomes."""

from __future__ import annotations

import itertools
import math
import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from asgnn.attacks import nettack_targets
from asgnn.errors import ConfigError
from asgnn.experiments import engine, parse_case, run_trials
from asgnn.experiments import spec as spec_module
from asgnn.experiments.attacks import VALIDATION_TARGETS, made_case, make_attack
from asgnn.experiments.engine import Engine
from asgnn.experiments.executors import Batch, local
from asgnn.experiments.figures import DEEPER, FIGURES, ROWS, TERMS, series_of
from asgnn.experiments.measure import Graph, find_split, load_graph
from asgnn.experiments.questions import FINALISTS, FIRST_TRIALS, Plan, Question, plan, questions
from asgnn.experiments.spec import RANDOM, SMALL, SPECS, TABLES, Row, Spec, load_spec
from asgnn.experiments.store import Store
from asgnn.experiments.values import (
    Attack,
    Case,
    Choice,
    Outcome,
    Series,
    Settings,
    SplitName,
    Training,
    as_settings,
    key_of,
)
from asgnn.graphs import Perturbation, Split, diff, load_dataset
from asgnn.training import recipe

# --- an executor without training ------------------------------------------------------------------------------------

Figures = Mapping[str, float]


def target_of(case: Case) -> int:
    return int(key_of(case.as_dict()), 16) % 99


@pytest.fixture
def real_attacks() -> None:
    """Requests real attacks instead of fake ones."""


@pytest.fixture(autouse=True)
def fake_attacks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[Case]:
    """Replaces attacks: no flips, and one target that depends on the case. Lists the attacked cases."""
    made: list[Case] = []

    def attack(case: Case, *_: object, **__: object) -> Perturbation:
        made.append(case)
        return Perturbation(torch.empty(2, 0, dtype=torch.int64), 99, torch.tensor([target_of(case)]))

    if "real_attacks" not in request.fixturenames:
        monkeypatch.setattr(engine, "make_attack", attack)
        monkeypatch.setattr(engine, "load_graph", lambda *_: None)
    return made


@pytest.fixture
def real_candidates() -> None:
    """Requests the real candidates of tuned rows instead of fake ones."""


@pytest.fixture(autouse=True)
def fake_candidates(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces the candidates of tuned rows: learning rates."""
    if "real_candidates" not in request.fixturenames:
        monkeypatch.setattr(spec_module, "tuned", lambda model, budget: tuple((("lr", 0.1 + i),) for i in range(9)))


def fake_figures(training: Training) -> dict[str, float]:
    """Figures that depend on the training alone and on nothing else; a few of them equal."""
    draw = random.Random(training.key)
    return {name: float(draw.randint(50, 60)) for name in ("val", "test", "target", "clean_test_loss")} | {
        "val_loss": draw.random()
    }


@dataclass
class FakeExecutor:
    """An executor that returns fake figures and records its batches."""

    figures: Callable[[Training], Figures] = fake_figures
    batches: list[Batch] = field(default_factory=list)

    def __call__(self, batches: Sequence[Batch]) -> Iterator[tuple[Batch, list[Outcome]]]:
        for batch in batches:
            self.batches.append(batch)
            yield batch, [self.outcome(training, len(batch.trainings)) for training in batch.trainings]

    def outcome(self, training: Training, size: int = 1) -> Outcome:
        return Outcome(training, self.figures(training), 0.0, size, "nowhere", "0")

    @property
    def trainings(self) -> list[Training]:
        return [training for batch in self.batches for training in batch.trainings]


def row(name: str = "gcn", twin: str | None = None, model: str = "gcn", **grid: Sequence[Any]) -> Row:
    return Row(name, name, model, (), {"paper": {key: tuple(grid[key]) for key in grid}} if grid else {}, None, twin)


def spec(*rows: Row, rules: Sequence[str] = ("validation",), rates: Sequence[float] = (0.0, 2.0)) -> Spec:
    attacks = {
        "cora": (Attack("nettack", "published"), SplitName("published")),
        "acm": (Attack("nettack", "built-in"), SplitName("random", 0)),
    }
    return Spec("small", "", "target", "", attacks, tuple(rates), tuple(rules), rows, {}, ())


SEARCHED = row(lr=[0.1, 0.2, 0.3], dropout=[0.5, 0.8], num_layers=[2, 4])
RANDOMLY = SplitName("random")


def on_validation(case: Case) -> Case:
    """The same with validation nodes attacked besides."""
    return replace(case, attacks=(*case.attacks, Attack("nettack", "made", case.amount, targets="validation")))


CASE = Case("cora", (Attack("nettack", "published", 2.0),), SplitName("published"))
ON_RANDOM = Case("cora", (Attack("nettack", "made", 2.0),), RANDOMLY)
CLEAN_ON_RANDOM = Case("cora", (), RANDOMLY)
ON_ACM = Case("acm", (Attack("nettack", "built-in", 1.0),), SplitName("random", 0))
JUDGED = on_validation(CASE)


def ask(
    given: Row = SEARCHED, rule: str = "validation", trials: int = 4, search: str = "paper", case: Case = CASE
) -> Question:
    return Question(spec(given), given, case, rule, search, trials)


def answer(
    asked: Sequence[Question], figures: Callable[[Training], Figures] = fake_figures
) -> tuple[list[Choice], list[Training]]:
    executor = FakeExecutor(figures)
    choices = Engine(Store.in_memory(), executor).answer(asked)
    return choices, executor.trainings


# --- the two stages ------------------------------------------------------------------------------------------------


def mean(settings: Settings, trials: int, name: str, case: Case = CASE) -> float:
    return fmean(fake_figures(Training(case.of_trial(seed), "gcn", settings, seed))[name] for seed in range(trials))


@pytest.mark.parametrize("shown", [CASE, ON_RANDOM, CLEAN_ON_RANDOM])
@pytest.mark.parametrize(("rule", "figure"), [("validation", "val"), ("attacked validation", "target")])
def test_the_choice_is_the_best_of_the_best_five(rule: str, figure: str, shown: Case) -> None:
    (choice,), trainings = answer([ask(rule=rule, case=shown)])
    case = shown if rule == "validation" else on_validation(shown)

    def best_first(those: Iterable[Settings], trials: int) -> list[Settings]:
        return sorted(those, key=lambda one: (-mean(one, trials, figure, case), mean(one, trials, "val_loss", case)))

    candidates = SEARCHED.candidates("paper", "cora")
    finalists = best_first(candidates, 2)[:5]
    assert choice.settings == best_first(finalists, 4)[0]
    assert (choice.rule, choice.search, choice.tried, choice.case, choice.row) == (rule, "paper", 12, shown, "gcn")
    reported = [Training(shown.of_trial(seed), "gcn", choice.settings, seed) for seed in range(4)]
    assert choice.trainings == tuple(training.key for training in reported)
    wanted = {Training(case.of_trial(seed), "gcn", one, seed) for one in candidates for seed in range(2)}
    wanted |= {Training(case.of_trial(seed), "gcn", one, seed) for one in finalists for seed in range(4)}
    wanted |= set(reported)
    assert set(trainings) == wanted
    assert len(trainings) == len(wanted)  # none twice


def only(**changed: Callable[[Training], float]) -> Callable[[Training], Figures]:
    """All alike, but for what is named."""
    alike = {"val": 80.0, "val_loss": 1.0, "test": 50.0, "target": 50.0}
    return lambda training: alike | {name: of(training) for name, of in changed.items()}


def setting(training: Training, name: str) -> float:
    return float(dict(training.settings)[name])


TIES: dict[str, tuple[Callable[[Training], Figures], float]] = {
    "accuracy": (only(val=lambda one: setting(one, "lr"), val_loss=lambda one: setting(one, "lr")), 0.3),
    "loss": (only(val_loss=lambda one: abs(setting(one, "lr") - 0.2)), 0.2),
    "order": (only(), 0.1),
    "diverged": (only(val_loss=lambda one: math.nan if setting(one, "lr") < 0.3 else 9.0), 0.3),
}


@pytest.mark.parametrize("case", TIES)
def test_ties_go_to_the_lower_loss_then_to_the_first(case: str) -> None:
    figures, lr = TIES[case]
    (choice,), _ = answer([ask()], figures)
    assert dict(choice.settings)["lr"] == lr


@pytest.mark.parametrize("rule", ["validation", "attacked validation"])
def test_test_figures_never_decide(rule: str) -> None:
    """Whatever stands in them, and whatever the case that is reported has at all, the choice is the same."""

    def other(training: Training) -> Figures:
        figures = fake_figures(training)
        hidden = ("test", "clean_test_loss") if training.case == JUDGED else ("test", "clean_test_loss", "target")
        draw = random.Random(training.key + "other")
        return figures | {name: draw.uniform(0, 100) for name in hidden}

    (choice,), trainings = answer([ask(rule=rule)])
    (same,), same_trainings = answer([ask(rule=rule)], other)
    assert (choice, trainings) == (same, same_trainings)

    def without(training: Training) -> Figures:
        needed = ("target", "val_loss") if rule == "attacked validation" else ("val", "val_loss")
        return {name: value for name, value in fake_figures(training).items() if name in needed}

    assert answer([ask(rule=rule)], without)[0] == [choice]  # they are not even read


def test_of_two_stages_the_second_decides() -> None:
    """Best with two trials, worst with all of them."""

    def late(training: Training) -> float:
        return 90.0 if (setting(training, "lr") == 0.1) == (training.seed < FIRST_TRIALS) else 10.0

    (choice,), trainings = answer([ask(trials=10)], only(val=late))
    assert dict(choice.settings)["lr"] != 0.1
    assert sum(training.seed == 9 for training in trainings) == FINALISTS


GRIDS = {1: row(), 3: row(lr=[0.1, 0.2, 0.3]), 5: row(lr=[0.1, 0.2, 0.3, 0.4, 0.5]), 12: SEARCHED}


@pytest.mark.parametrize("rule", ["validation", "attacked validation"])
@pytest.mark.parametrize("trials", [1, 2, 3, 10])
@pytest.mark.parametrize("size", GRIDS)
def test_expected_is_what_is_trained(size: int, trials: int, rule: str) -> None:
    asked = ask(GRIDS[size], rule, trials)
    _, trainings = answer([asked])
    assert asked.expected() == len(trainings) == len(set(trainings))


def test_the_plan_counts_what_tables_share_once() -> None:
    """Table 3 is about trainings of table 2, and the figures about some of table 1."""
    parts = {name: plan(name, search="none", trials=2) for name in (*TABLES, *FIGURES)}
    everything = plan("all", search="none", trials=2)
    assert everything.expected == parts["table1"].expected + parts["table2"].expected
    assert everything.expected == 2 * (16 * 24 + 16 * 24)  # 16 kinds of 25 rows, 4 graphs, 6 rates
    executor = FakeExecutor()
    engine = Engine(Store.in_memory(), executor)
    for wave in everything.waves:
        engine.answer(wave)
    assert len(executor.trainings) == everything.expected


def test_questions_that_share_trainings_do_not_train_them_twice() -> None:
    choices, trainings = answer([ask(), ask(), ask(rule="attacked validation")])
    assert choices[0] == choices[1]
    assert len(trainings) == len(set(trainings))


def test_a_row_without_a_grid_is_trained_as_it_is() -> None:
    two_rules = spec(row(), SEARCHED, rules=["validation", "attacked validation"], rates=[2.0])
    asked = questions(two_rules, datasets=["cora"])
    assert [(one.row.name, one.rule) for one in asked] == [
        ("gcn", "validation"),
        ("gcn", "validation"),
        ("gcn", "attacked validation"),
    ]
    (choice, *_), _ = answer(asked)
    assert (choice.rule, choice.search, choice.tried, choice.settings) == ("none", "none", 1, ())
    for one in questions(two_rules, datasets=["cora"], search="none", trials=3):
        (choice,), trainings = answer([one])
        assert (choice.rule, choice.search, len(trainings)) == ("none", "none", 3)


# --- what is asked for ----------------------------------------------------------------------------------------------


def test_a_twin_comes_along() -> None:
    three = spec(row("a", twin="a-frozen"), row("a-frozen"), row("b"))
    assert [one.row.name for one in questions(three, models=["a"], rates=[0.0], datasets=["acm"])] == ["a", "a-frozen"]
    assert {one.row.name for one in questions(three, models=["a-frozen"])} == {"a-frozen"}
    assert {one.row.name for one in questions(three, models=["b"])} == {"b"}
    table1 = questions(load_spec("table1"), models=["asgnn"], datasets=["cora"], rates=[0.25])
    assert [one.row.name for one in table1] == ["asgnn", "asgnn-frozen"]


def test_everything_that_is_not_restricted() -> None:
    two = spec(row("a"), row("b"))
    assert len(questions(two)) == 2 * 2 * 2
    assert {one.case.dataset for one in questions(two, datasets=["acm"])} == {"acm"}
    assert {one.case.amount for one in questions(two, rates=[2.0, 2.0])} == {2.0}
    assert len(questions(two, rates=[2.0, 2.0], datasets=["cora", "cora"])) == 2
    assert questions(two)[0].trials == 10


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "table": ("table9", {}, "no table or figure 'table9'; choose from table1, table2"),
    "dataset": ("table3", {"datasets": ["acm"]}, "table3 has no dataset acm; it has cora"),
    "row": ("table3", {"models": ["prognn"]}, "table3 has no row 'prognn'; its rows are gcn, asgnn-paper"),
    "rate": ("table2", {"rates": [0.25]}, r"table2 has no rate 0.25; it has 0.0, 1.0, 2.0"),
    "trials": ("table1", {"trials": 0}, "trials must be a whole number from 1 to 10000; it is 0"),
    "figure": ("figure-structure", {"datasets": ["acm"]}, "asgnn-paper, asgnn on cora at 0 and 0.25; it cannot be"),
    "figure on random splits": (
        "figure-structure",
        {"splits": "random"},
        "uses the given splits; random splits are for tables only",
    ),
    "other graphs on random splits": ("generality", {"splits": "random"}, "are for the tables of the paper only"),
    "budget": ("table1", {"search": "tune-one"}, "needs a number of candidates from 2 to 100000, such as tune-16"),
    "no such search": ("table3", {"search": "tune"}, "None of these rows of table3 has a search 'tune'"),
    "search": (
        "table1",
        {"search": "papper"},
        "search must be one of none, small, portfolio, tune, wide, paper; it is 'papper'",
    ),
    "splits": ("table1", {"splits": "other"}, "splits must be given or random; it is 'other'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_there_is_refused(case: str) -> None:
    what, restricted, words = REFUSED[case]
    with pytest.raises(ConfigError, match=words):
        plan(what, **restricted)


def test_waves_are_cells_or_everything_together() -> None:
    apart, together = plan("table3"), plan("table3", together=True)
    assert [len(wave) for wave in apart.waves] == [5] * 6
    assert len(together.waves) == 1
    assert together.waves[0] == [one for wave in apart.waves for one in wave]
    figure = plan("figure-structure")
    assert figure.kinds == ["weights"]
    assert figure.waves == [figure.drawn]
    assert {one.row.name for one in figure.drawn} == {*ROWS, *(f"{name}-frozen" for name in ROWS)}


# --- batches ---------------------------------------------------------------------------------------------------------


def batched(store: Store, asked: Sequence[Question], largest: int | None = 5) -> list[Batch]:
    executor = FakeExecutor()
    Engine(store, executor, largest=largest).answer(asked)
    return executor.batches


ASKED = [
    question
    for given in (SEARCHED, row("appnp", model="appnp", lr=[0.1, 0.2], num_layers=[2, 4]))
    for rule in ("validation", "attacked validation")
    for case in (CASE, ON_ACM)
    for question in [ask(given, rule, case=case)]
]
ASKED_ON_RANDOM = [
    ask(row("appnp", model="appnp", lr=[0.1, 0.2], num_layers=[2, 4]), rule, case=case)
    for rule in ("validation", "attacked validation")
    for case in (ON_RANDOM, CLEAN_ON_RANDOM)
]


def is_made(case: Case) -> bool:
    """Whether the case's attack is made when it is needed."""
    return any(attack.source == "made" for attack in case.attacks)


BOTH = pytest.mark.parametrize("asked", [ASKED, ASKED_ON_RANDOM], ids=["given", "random"])


@BOTH
@pytest.mark.parametrize("largest", [1, 5, 7, None])
def test_a_batch_is_one_graph_one_kind_and_never_larger_than_allowed(
    largest: int | None, asked: Sequence[Question]
) -> None:
    batches = batched(Store.in_memory(), asked, largest)
    for batch in batches:
        assert 1 <= len(batch.trainings) <= (largest or 16)
        case = batch.trainings[0].case
        assert all(case in (one.case, replace(one.case, split=case.split)) for one in batch.trainings)
        assert len({one.case for one in batch.trainings}) == 1 or not case.attacks
        assert len({training.model for training in batch.trainings}) == 1
        known = recipe(batch.trainings[0].model).settings
        fixed = {tuple(one for one in each.settings if not known[one[0]].per_trial) for each in batch.trainings}
        assert len(fixed) == 1
        assert (batch.flips is not None) == is_made(case)
    keys = [key for batch in batches for key in batch.keys]
    assert len(keys) == len(set(keys))


def test_the_clean_graph_is_trained_on_all_splits_side_by_side() -> None:
    batches = batched(Store.in_memory(), [ask(row(), case=CLEAN_ON_RANDOM, trials=4)])
    assert [[one.case.split.trial for one in batch.trainings] for batch in batches] == [[0, 1, 2, 3]]


@BOTH
def test_batches_do_not_depend_on_what_is_there_already(asked: Sequence[Question]) -> None:
    whole = [batch.trainings for batch in batched(Store.in_memory(), asked)]
    everything = [training for trainings in whole for training in trainings]
    draw = random.Random(0)
    for share in (0.0, 0.3, 0.9, 1.0):
        there = {training for training in everything if draw.random() < share}
        store = Store.in_memory()
        store.add(FakeExecutor().outcome(training) for training in there)
        again = [batch.trainings for batch in batched(store, asked)]
        # those of which something is missing, whole; and none of the others
        assert again == [trainings for trainings in whole if not set(trainings) <= there]


@BOTH
def test_a_run_that_was_stopped_anywhere_ends_the_same(asked: Sequence[Question]) -> None:
    whole = Store.in_memory()
    count = len(batched(whole, asked))

    @dataclass
    class Stops(FakeExecutor):
        left: int = 0

        def __call__(self, batches: Sequence[Batch]) -> Iterator[tuple[Batch, list[Outcome]]]:
            for done in super().__call__(batches):
                if self.left == 0:
                    raise KeyboardInterrupt
                self.left -= 1
                yield done

    for left in range(count):
        store = Store.in_memory()
        with pytest.raises(KeyboardInterrupt):
            Engine(store, Stops(left=left), largest=5).answer(asked)
        assert len(batched(store, asked)) == count - left  # nothing that was finished is done again
        assert store.content() == whole.content()


@pytest.mark.parametrize("splits", ["given", "random"])
def test_together_or_apart_the_batches_are_the_same(splits: str) -> None:
    """So that a cluster, which is given everything at once, ends with the same figures."""

    def made(together: bool) -> set[tuple[Training, ...]]:
        executor = FakeExecutor()
        engine = Engine(Store.in_memory(), executor)
        restricted = {"datasets": ["cora"], "models": ["gcn", "appnp"], "rates": [0.0, 5.0]}
        asked = plan("table2", **restricted, search="small", splits=splits, together=together)
        for _ in engine.run(asked):
            pass
        return {batch.trainings for batch in executor.batches}

    assert made(True) == made(False)


@BOTH
def test_an_attack_is_made_once(asked: Sequence[Question], fake_attacks: list[Case]) -> None:
    """For each split that it is needed on, and for each case of its own."""
    store = Store.in_memory()
    batches = batched(store, asked)
    needed = [case for one in asked for case in (one.case, one.judge[0])]
    on_splits = {case.of_trial(trial) for case in needed for trial in range(4)}
    assert set(fake_attacks) == {case for case in on_splits if is_made(case)}
    targets = {batch.trainings[0].case: batch.flips.targets.tolist() for batch in batches if batch.flips is not None}
    assert targets == {case: [target_of(case)] for case in fake_attacks}
    store._connection.execute("DELETE FROM trainings")
    batched(store, asked)
    assert len(fake_attacks) == len(targets)


def test_progress_counts_to_what_was_expected() -> None:
    seen: list[int] = []
    store = Store.in_memory()
    Engine(store, FakeExecutor(), largest=5, progress=lambda done, batch: seen.append(done)).answer(ASKED[:1])
    assert seen == sorted(seen)
    assert seen[-1] == ASKED[0].expected()
    seen.clear()
    store._connection.execute("DELETE FROM trainings WHERE key = (SELECT max(key) FROM trainings)")
    Engine(store, FakeExecutor(), largest=5, progress=lambda done, batch: seen.append(done)).answer(ASKED[:1])
    assert seen[-1] == ASKED[0].expected()


# --- the attack on validation nodes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dataset", "first", "rate", "count"),
    [
        ("cora", None, 0, VALIDATION_TARGETS),
        ("cora", None, 2, VALIDATION_TARGETS),
        ("cora", Attack("metattack", "built-in", 0.1), 2, VALIDATION_TARGETS),
        pytest.param(
            *("acm", Attack("nettack", "built-in", 2.0), 2, None),
            marks=pytest.mark.skipif("ASGNN_MIRROR" not in os.environ, reason="ASGNN_MIRROR is not set"),
        ),
    ],
)
def test_validation_nodes_are_attacked_on_the_graph_that_is_given(
    dataset: str, first: Attack | None, rate: int, count: int | None
) -> None:
    before = Case(dataset, (first,) if first else (), SplitName("random", 0))
    case = replace(before, attacks=(*before.attacks, Attack("nettack", "made", rate, targets="validation")))
    found = make_attack(case)
    clean, given = load_dataset(dataset), load_graph(before).data
    split = find_split(case.split, clean, dataset)
    degree = torch.bincount(given.edge_index[0], minlength=given.num_nodes)
    assert found.targets is not None
    targets = found.targets.tolist()
    assert set(targets) <= set(split.val.tolist())
    if count is None:  # all that are as the attacked test nodes
        assert targets == nettack_targets(given, split.val).tolist()
        assert len(targets) > VALIDATION_TARGETS
    else:
        assert len(targets) == count
        others = sorted(set(split.val.tolist()) - set(targets))
        assert degree[targets].min() >= degree[others].max()
    besides = diff(given, found.apply(clean))
    assert len(besides) == rate * len(targets)
    assert torch.isin(besides.flips, found.targets).any(0).all()
    assert make_attack(case).flips.equal(found.flips)


# --- random splits ----------------------------------------------------------------------------------------------------

COMMITTED = Path(__file__).parents[2] / "docs" / "results" / "results.sqlite"


@pytest.mark.usefixtures("real_candidates")
def test_the_committed_store_answers_the_questions_of_today() -> None:
    """Keys have not changed: what it holds is what the tables ask for, and nothing else."""
    asked: dict[str, set[str]] = {}
    with Store.open(COMMITTED, create=False) as store:
        choices = store.choices()
    for choice in choices:
        if choice.table not in asked:
            every = [
                question
                for trials in {len(one.trainings) for one in choices if one.table == choice.table}
                for search in ("paper", "none")
                for question in questions(load_spec(choice.table), trials=trials, search=search)
            ]
            asked[choice.table] = {
                Choice(choice.table, one.case, one.row.name, rule, search, "", (), 0, ("",) * one.trials).key
                for one in every
                for rule, search in ((one.rule, one.search), ("none", "none"))
            }
        assert choice.key in asked[choice.table]
        row = load_spec(choice.table).row(choice.row)
        assert choice.settings in row.candidates(choice.search, choice.case.dataset)
        assert choice.model == row.model
    assert len(choices) == 2043


@pytest.mark.parametrize("name", [*TABLES, SMALL])
def test_a_table_on_random_splits_is_the_same_table(name: str) -> None:
    given, random = load_spec(name), load_spec(name + RANDOM)
    assert random.title == f"{given.title}, a random split for each trial"
    for part in ("figure", "unit", "rates", "rules", "rows", "paper"):
        assert getattr(random, part) == getattr(given, part)
    for dataset in given.attacks:
        for rate in given.rates:
            case = given.case(dataset, rate)
            made = tuple(replace(attack, source="made") for attack in case.attacks)
            assert random.case(dataset, rate) == replace(case, attacks=made, split=RANDOMLY)


def test_all_on_random_splits_is_the_tables() -> None:
    asked = plan("all", splits="random", search="none", trials=2)
    assert (asked.drawn, asked.kinds) == ([], [])
    first = [wave[0] for wave in asked.waves if wave[0].case.amount == 0 and wave[0].case.dataset == "cora"]
    assert [one.spec.name for one in first] == [f"{name}{RANDOM}" for name in TABLES]
    assert asked.expected == plan("all", search="none", trials=2).expected  # table3 shares its trainings here, too


@pytest.mark.usefixtures("real_attacks")
@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_nettack_on_a_random_split(rate: float) -> None:
    """The targets are test nodes of this split; without flips they are the same."""
    store, executor = Store.in_memory(), FakeExecutor()
    case = replace(ON_RANDOM, attacks=(Attack("nettack", "made", rate),))
    Engine(store, executor).answer([ask(row(), case=case, trials=2)])
    data = load_dataset("cora")
    for trial, batch in enumerate(executor.batches):
        assert batch.flips is not None
        assert batch.flips.targets is not None
        split = SplitName("random", trial)
        assert batch.flips.targets.equal(nettack_targets(data, find_split(split, data, "cora").test))
        assert len(batch.flips) == rate * len(batch.flips.targets)
        whole = make_attack(made_case("cora", "nettack", 1, split))
        assert batch.flips.flips.equal(whole.first(len(batch.flips)).flips)
    assert len(executor.batches) == store.summary().attacks == 2


def test_a_clean_cell_is_what_train_gives() -> None:
    """``asgnn train --split random``, seed by seed."""
    with Store.in_memory() as store:
        (choice,) = Engine(store, local("cpu")).answer([ask(row(), case=CLEAN_ON_RANDOM, trials=2)])
        found = list(store.get(choice.trainings).values())
    assert [str(one.training.case.split) for one in found] == ["random:0", "random:1"]
    summary = run_trials(parse_case("cora", split="random"), "gcn", trials=2)
    assert [round(one.figures["test"], 3) for one in found] == summary["test"]
    assert [round(one.figures["val"], 3) for one in found] == summary["val"]


FEW = {0.0: 0, 0.0005: 2, 0.001: 5}  # rates of Metattack, and flips on Cora


def few_flips() -> list[Question]:
    rows = [Row(name, name, name, as_settings({"epochs": 2}), {}, None, None) for name in ("gcn", "mlp")]
    attacks = {"cora": (Attack("metattack", "made"), RANDOMLY)}
    return questions(Spec("small", "", "test", "", attacks, tuple(FEW), ("validation",), tuple(rows), {}, ()), trials=2)


@pytest.mark.usefixtures("real_attacks")
def test_metattack_is_made_once_a_split_and_an_interrupted_run_resumes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "LARGEST_RATE", max(FEW))
    reported: list[tuple[str, int, int]] = []

    def report(case: Case, made: int, flips: int) -> None:
        reported.append((str(case.split), made, flips))

    def stop(case: Case, before: Graph, **options: Any) -> Perturbation:
        if case.split.trial == 1:
            raise KeyboardInterrupt
        return make_attack(case, before, **options)

    seen: dict[float, list[Perturbation]] = {}

    def watched(batches: Sequence[Batch]) -> Iterator[tuple[Batch, list[Outcome]]]:
        for batch in batches:
            if batch.flips is not None:
                seen.setdefault(batch.trainings[0].case.amount, []).append(batch.flips)
        yield from local("cpu")(batches)

    asked = few_flips()
    with Store.in_memory() as stopped, Store.in_memory() as whole:
        monkeypatch.setattr(engine, "make_attack", stop)
        with pytest.raises(KeyboardInterrupt):
            Engine(stopped, local("cpu"), attacking=report).answer(asked)
        monkeypatch.setattr(engine, "make_attack", make_attack)
        assert stopped.summary().attacks == 1  # kept at once
        Engine(stopped, watched, attacking=report).answer(asked)
        assert reported == [(f"random:{i}", made, 5) for i in range(2) for made in range(1, 6)]
        assert {rate: {len(one) for one in flips} for rate, flips in seen.items()} == {0.0005: {2}, 0.001: {5}}
        for small, large in itertools.product(seen[0.0005], seen[0.001]):
            same = small.meta["split"] == large.meta["split"]
            assert small.flips.equal(large.first(2).flips) == same
        # the rates one by one, the largest last: the results do not depend on what else was asked for
        for rate in FEW:
            Engine(whole, local("cpu")).answer([one for one in asked if one.case.amount == rate])
        assert stopped.content() == whole.content()
        assert (whole.summary().attacks, whole.summary().trainings) == (2, 2 * 2 * 3)


# --- the specifications -----------------------------------------------------------------------------------------------

# table, dataset, rate, row of the paper → mean and standard deviation, copied by hand
PRINTED: list[tuple[str, str, float, str, float, float | None]] = [
    ("table1", "cora", 0.0, "GCN", 85.34, 0.39),
    ("table1", "cora", 0.25, "ASGNN", 75.18, 0.97),
    ("table1", "citeseer", 0.2, "Elastic GNN", 61.55, 1.82),
    ("table1", "cora_ml", 0.15, "GCN-Jaccard", 76.53, 0.29),
    ("table1", "acm", 0.05, "Pro-GNN", 88.25, 1.19),
    ("table2", "cora", 5.0, "ASGNN", 68.55, 3.21),
    ("table2", "citeseer", 4.0, "GCN-SVD", 62.22, 3.31),
    ("table2", "acm", 0.0, "GCN", 90.33, 0.09),
    ("table3", "cora", 0.0, "GCN", 1.0315, None),
    ("table3", "cora", 5.0, "ASGNN", 1.0273, None),
]


@pytest.mark.parametrize(("table", "dataset", "rate", "name", "mean", "deviation"), PRINTED)
def test_figures_as_printed(
    table: str, dataset: str, rate: float, name: str, mean: float, deviation: float | None
) -> None:
    assert load_spec(table).paper[dataset][rate][name] == (mean, deviation)


@pytest.mark.parametrize("name", SPECS)
def test_shape_of_a_specification(name: str) -> None:
    found = load_spec(name)
    assert found.figure in ("test", "target", "clean_test_loss")
    assert list(found.rates) == sorted(set(found.rates))
    assert found.rates[0] == 0
    assert found.assumed
    assert all(sentence.endswith(".") for sentence in found.assumed)
    names = [row.name for row in found.rows]
    assert len(set(names)) == len(names)
    for one in found.rows:
        assert one.twin not in names or dict(found.row(one.twin).settings)["structure"] == "frozen"
        others = [found.row(other) for other in (one.twin, *one.against) if other in names]
        assert all(other.search == one.search for other in others) or one.search == "none"  # a fair comparison
    if name in TABLES:
        assert all(other in names for one in found.rows for other in (one.twin, *one.against) if other)
    for dataset, by_rate in found.elsewhere.items():
        assert dataset in found.attacks
        assert all(40 < mean < 100 for by_name in by_rate.values() for mean in by_name.values())
    if name not in TABLES:
        assert found.paper == {}
        return
    assert found.paper.keys() == found.attacks.keys()
    printed = {one.paper for one in found.rows if one.paper}
    for by_rate in found.paper.values():
        assert tuple(by_rate) == found.rates
        for by_name in by_rate.values():
            assert by_name.keys() == printed
            for mean, deviation in by_name.values():
                assert 0 < mean < 100
                assert (deviation is None) == (name == "table3")


@pytest.mark.usefixtures("real_candidates")
@pytest.mark.parametrize("search", ["paper", "wide", "small", "none"])
@pytest.mark.parametrize("table", SPECS)
def test_every_candidate_is_a_recipe(table: str, search: str) -> None:
    """Names that the model has, values that it takes: said before hours of training and not after."""
    small = Data(x=torch.ones(4, 3), y=torch.tensor([0, 1, 0, 1]), edge_index=torch.tensor([[0, 1], [1, 0]]))
    split = Split(*(torch.tensor([i]) for i in range(3)))
    found = load_spec(table)
    datasets = {found.case(name, 0.0).dataset for name in found.datasets}
    if not found.attacks:  # rows differ on few graphs
        datasets = {name for name in datasets if name in ("acm", *found.aucs)}
    for one, dataset in itertools.product(found.rows, datasets):
        candidates = one.candidates(one.search_for(search) or "none", dataset)
        assert len(set(candidates)) == len(candidates)
        kinds = set()
        for candidate in candidates:
            made = recipe(one.model, **dict(candidate))
            kind = tuple(setting for setting in candidate if not made.settings[setting[0]].per_trial)
            if kind not in kinds:  # a model of each, since a value may be refused where it is used
                kinds.add(kind)
                made.trial(small, split, 0)


def test_sizes_of_the_searches() -> None:
    table1 = load_spec("table1")
    sizes = {one.name: len(one.candidates("paper", "cora")) for one in table1.rows if one.search == "grid"}
    assert sizes["gcn"] == sizes["asgnn"] == sizes["asgnn-frozen"] == 3 * 3 * 3 * 4
    assert sizes["gcn-jaccard"] == sizes["gcn-svd"] == 27 * 6
    assert sizes["elastic"] == 108 * 9
    assert sizes["prognn"] == 1
    for search in ("paper", "wide"):  # what adaptivity adds is not a larger search
        for name in ROWS:
            twin = table1.row(f"{name}-frozen")
            assert len(table1.row(name).candidates(search, "cora")) == len(twin.candidates(search, "cora"))


def test_a_row_may_differ_on_a_dataset() -> None:
    given = Row(
        "gcn", "GCN", "gcn", (("epochs", 2),), {"paper": {"lr": (0.1, 0.2)}}, None, None, {"acm": (("epochs", 3),)}
    )
    assert given.candidates("none", "cora") == [(("epochs", 2),)]
    assert given.candidates("paper", "acm") == [(("epochs", 3), ("lr", 0.1)), (("epochs", 3), ("lr", 0.2))]
    # Pro-GNN with its authors' own settings
    prognn = load_spec("table1").row("prognn")
    assert prognn.candidates("paper", "cora") == [()]
    assert prognn.candidates("paper", "citeseer") == [(("lam", 1e-4),)]


def test_a_global_attack_without_flips_is_the_clean_graph() -> None:
    published = SplitName("published")
    assert load_spec("table1").case("cora", 0.0) == Case("cora", (), published)
    own = Attack("metattack", "built-in", 0.25)
    assert load_spec("table1").case("acm", 0.25) == Case("acm", (own,), SplitName("random", 0))
    # a targeted one has its targets, though
    assert load_spec("table2").case("cora", 0.0) == Case("cora", (Attack("nettack", "published"),), published)


# --- figures ----------------------------------------------------------------------------------------------------------


def test_layers_are_watched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    watched: list[str] = []

    def watch(choice: Choice, kinds: Sequence[str], **_: object) -> list[Series]:
        watched.append(choice.row)
        return [Series(key, kind, {}) for key in choice.trainings for kind in kinds]

    monkeypatch.setattr(engine, "series_of", watch)
    # rows that share their trainings would share their series, too
    asked = [ask(row(name, model=name), trials=2) for name in ROWS] + [ask(row("asgnn-frozen"), trials=2)]
    store = Store.in_memory()
    for _ in range(2):
        for _ in Engine(store, FakeExecutor()).run(Plan([asked], asked, ["weights"])):
            pass
    assert watched == list(ROWS)
    for _ in Engine(store, FakeExecutor()).run(Plan([asked], asked, ["weights", "objective"])):
        pass
    assert watched == [*ROWS, *ROWS]  # another figure needs another series


@pytest.mark.parametrize("rate", [0.0, 0.25])
def test_series_on_cora(rate: float) -> None:
    case = parse_case("cora", "own-metattack" if rate else None, rate, "random:0")
    settings = as_settings({"epochs": 2, "num_layers": 3, "hidden_channels": 8})
    trainings = [Training(case, "asgnn", settings, seed).key for seed in range(2)]
    choice = Choice("table1", case, "asgnn", "none", "none", "asgnn", settings, 1, tuple(trainings))
    found = series_of(choice, ["objective", "weights"])
    assert [(one.training, one.kind) for one in found] == [
        (key, kind) for key in trainings for kind in ("objective", "weights")
    ]
    objective, weights = found[0].content, found[1].content
    assert objective["trained"] == 3
    assert len(objective["terms"]) == DEEPER + 1
    totals = [sum(terms[name] for name in TERMS) for terms in objective["terms"]]
    assert all(after <= before * (1 + 1e-5) for before, after in itertools.pairwise(totals))
    assert weights.keys() == ({"clean", "added"} if rate else {"clean"})
    for layers in weights.values():
        assert len(layers) == 3 + 1
        assert set(layers[0].values()) == {1.0}  # the given graph
        for layer in layers:
            assert 0 <= layer["q05"] <= layer["q25"] <= layer["q50"] <= layer["q75"] <= layer["q95"] <= 1


# --- real, and tiny ---------------------------------------------------------------------------------------------------


def tiny() -> Spec:
    """Dice at 1 flip an edge, so that the same rate is one flip a target for the attack on validation nodes."""
    rows = [
        Row("gcn", "GCN", "gcn", as_settings({"epochs": 2}), {"paper": {"lr": (0.01, 0.05)}}, None, None),
        Row("mlp", "MLP", "mlp", as_settings({"epochs": 2}), {}, None, None),
    ]
    attacks = {"cora": (Attack("dice", "made"), SplitName("random", 0))}
    return Spec("small", "", "test", "", attacks, (1.0,), ("validation", "attacked validation"), tuple(rows), {}, ())


@pytest.mark.usefixtures("real_attacks")
def test_a_tiny_table_is_trained_kept_and_found_again(tmp_path: Path) -> None:
    asked = questions(tiny(), trials=3)
    assert [one.row.name for one in asked] == ["gcn", "gcn", "mlp"]
    with Store.open(tmp_path / "a.sqlite") as store, Store.open(tmp_path / "b.sqlite") as other:
        choices = Engine(store, local("cpu")).answer(asked)
        assert {one.key for one in store.choices()} == {one.key for one in choices}
        summary = store.summary()
        assert (summary.choices, summary.attacks) == (3, 2)  # dice, and Nettack on validation nodes on top of it
        # of the two rules each 2 × 2 + 2 × 1; those reported by the second may be the first's; the row without a grid
        assert 6 + 6 + 3 <= summary.trainings <= 6 + 6 + 3 + 3
        for choice in choices:
            reported = store.get(choice.trainings)
            assert list(reported) == list(choice.trainings)
            for outcome in reported.values():
                assert {"val", "val_loss", "test", "clean_test"} <= outcome.figures.keys()
        judged = [one for one in store.outcomes() if len(one.training.case.attacks) == 2]
        assert len(judged) == 6
        assert all("target" in one.figures for one in judged)
        engine = Engine(store, FakeExecutor(lambda training: pytest.fail("trained again")))
        assert engine.answer(asked) == choices
        Engine(other, local("cpu")).answer(asked)
        assert other.content() == store.content()
