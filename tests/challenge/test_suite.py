"""Challenges on a small graph: the envelope is the minimum, controls stand still, transfers count, resuming repeats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import wraps
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from asgnn.attacks import meta_greedy, meta_pgd_pairs, prbcd, random_flips
from asgnn.challenge import (
    EVASION,
    POISONING,
    Attempt,
    AttemptOutcome,
    Challenge,
    Envelope,
    Ledger,
    Made,
    Way,
    challenge_evasion,
    challenge_nodes,
    challenge_poisoning,
    chosen,
    probe,
    signs_of_masking,
    suite,
)
from asgnn.challenge.controls import OnLearnedGraph, as_attacked, frozen_twin
from asgnn.challenge.values import flips_of
from asgnn.errors import ConfigError
from asgnn.graphs import Perturbation, prepare
from asgnn.training import Fit, Trial, accuracy, fit, fit_many, predict, recipe
from tests.challenge.problem import BUDGETS, FEW, WAYS, OwnModel, Rounded, WithoutWeights, generator, graph, trained

MEMORISER = "asgnn.challenge.controls:Memoriser"


FEW_WAYS = {name: WAYS[name] for name in ("prbcd", "metattack", "random")}


def evasion(model: torch.nn.Module, name: str = "gcn", **options: object) -> Challenge:
    data, split = graph()
    return challenge_evasion(model, data, split, BUDGETS, name=name, **{"ways": FEW_WAYS, **options})  # type: ignore[arg-type]


def test_the_envelope_is_the_lowest_accuracy_over_all_attempts_within_the_budget() -> None:
    data, split = graph()
    ledger = Ledger()
    found = evasion(trained(), ledger=ledger, ways=WAYS, unbounded=True)
    # a GCN has neither a twin nor a clip to relax
    assert {one.attempt.attack for one in found.outcomes} == set(WAYS) - {"prbcd-twin", "prbcd-relaxed"}
    for budget in BUDGETS:
        within = [one for one in found.outcomes if one.attempt.budget <= budget]
        assert found.envelope.accuracy(budget) == min(one.after for one in within)
        # every outcome is what the model does on the flipped graph
        for one in within:
            made = ledger.made(one.attempt)
            assert made is not None
            assert len(made.flips) == one.flips <= flips_of(budget, data)
            assert one.after == pytest.approx(100 * accuracy(trained(), made.flips.apply(data), split.test))
    assert found.clean == pytest.approx(100 * accuracy(trained(), data, split.test))
    assert found.envelope.accuracy(0.2) < found.envelope.accuracy(0.05) < found.clean
    (free,) = (one for one in found.outcomes if one.attempt.budget == 1.0)
    assert free.after < found.envelope.accuracy(0.2)
    assert free.flips == data.num_edges // 2
    assert found.signs == ()


def test_a_smaller_budget_counts_for_larger_ones() -> None:
    def outcome(budget: float, after: float) -> AttemptOutcome:
        return AttemptOutcome("evasion", "m", Attempt("prbcd", "m", budget), 90.0, after, 1, 0.0)

    found = Envelope.of([outcome(0.05, 60.0), outcome(0.1, 70.0)], (0.01, 0.05, 0.1))
    assert {budget: one.after for budget, one in found.worst.items()} == {0.05: 60.0, 0.1: 60.0}


def test_flips_of_an_ordered_attack_are_cut_from_one_run() -> None:
    ledger = Ledger()
    evasion(trained(), ledger=ledger)
    small, large = (ledger.made(Attempt("metattack", "", budget)) for budget in BUDGETS)
    assert small is not None
    assert large is not None
    assert small.flips.flips.equal(large.flips.flips[:, : len(small.flips)])


@pytest.mark.parametrize("name", ["mlp", MEMORISER])
def test_models_without_a_gradient_in_the_edges_stand_still(name: str) -> None:
    settings = {"hidden_channels": 16} if name == MEMORISER else {}
    found = evasion(trained(name, **settings), name, ways=WAYS)
    assert {one.attempt.attack for one in found.outcomes} == {"join-unlike", "evolve", "metattack", "dice", "random"}
    assert {one.after for one in found.outcomes} == {found.clean}
    (sign,) = found.signs
    assert "no gradient" in sign


def test_the_memoriser_falls_to_poisoning_as_a_gcn() -> None:
    data, split = graph()
    memory, plain = recipe(MEMORISER, hidden_channels=16, epochs=40), recipe("gcn", epochs=40)
    ways = {"dice": WAYS["dice"]}
    found = [challenge_poisoning(of, data, split, [0.5], seeds=2, ways=ways) for of in (memory, plain)]
    assert found[0].outcomes[0].after == pytest.approx(found[1].outcomes[0].after)
    assert found[0].outcomes[0].after < found[0].clean


def test_transferred_flips_are_tried_and_named() -> None:
    made = Ledger()
    evasion(trained(), "gcn", ledger=made)
    pool = [one for attempt in made.pool() if attempt.source == "gcn" and (one := made.made(attempt))]
    ways = {"random": WAYS["random"]}
    found = evasion(trained("sgc"), "sgc", ways=ways, pool=pool)
    worst = found.envelope.worst[0.2]
    assert worst.transferred
    assert worst.attempt.source == "gcn"
    assert "against gcn" in str(worst)
    assert len(found.outcomes) == len(pool) + len(BUDGETS)
    alone = evasion(trained("sgc"), "sgc", ways={}, pool=pool)
    assert alone.envelope.accuracy(0.2) == worst.after


def test_a_resumed_challenge_ends_with_the_same_outcomes() -> None:
    whole, ledger = evasion(trained()), Ledger()

    class Stop(Exception):
        pass

    def stop(done: int, total: int) -> None:
        if done == 3:
            raise Stop

    with pytest.raises(Stop):
        evasion(trained(), ledger=ledger, progress=stop)
    assert len(ledger.outcomes()) == 3
    again = evasion(trained(), ledger=ledger)

    def timeless(found: Challenge) -> list[AttemptOutcome]:
        return [replace(one, seconds=0.0) for one in found.outcomes]

    assert timeless(again) == timeless(whole)


def test_poisoning_retrains_on_each_flipped_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    data, split = graph()
    ledger, of = Ledger(), recipe("sgc", epochs=30)
    ways = {**FEW_WAYS, "meta": Way(meta_greedy, "training", {"steps": 2, "block_size": 500}, ordered=True)}
    found = challenge_poisoning(of, data, split, [0.2], name="sgc", seeds=2, ways=ways, ledger=ledger)
    assert {one.attempt.attack for one in found.outcomes} == set(ways)
    for one in found.outcomes:
        made = ledger.made(one.attempt)
        assert made is not None
        flipped = made.flips.apply(data)
        scores = []
        for seed in range(2):
            trial = of.trial(flipped, split, seed)
            scores.append(accuracy(fit(trial.model, flipped, trial.config, split=split).model, flipped, split.test))
        assert one.after == pytest.approx(100 * sum(scores) / 2)
    assert found.kind == "poisoning"
    assert found.envelope.accuracy(0.2) < found.clean

    # what the ledger knows needs no training, and a further set of flips needs that on its own graph alone
    trainings = []

    def counted(trials: Sequence[Trial], *rest: Any, **options: Any) -> list[Fit]:
        trainings.append(len(trials))
        return fit_many(trials, *rest, **options)

    monkeypatch.setattr(suite, "fit_many", counted)
    again = challenge_poisoning(of, data, split, [0.2], name="sgc", seeds=2, ways=ways, ledger=ledger)
    assert again == found
    assert trainings == []
    made = Made(Attempt("random", "gcn", 0.2), random_flips(data, 5, generator()), 0.0)
    more = challenge_poisoning(of, data, split, [0.2], name="sgc", seeds=2, ways=ways, pool=[made], ledger=ledger)
    assert more.outcomes[:-1] == found.outcomes
    assert trainings == [2]


def test_attacks_on_the_training_where_the_gradient_is_hidden() -> None:
    data, split = graph()
    few = {"steps": 2, "samples": 2, "block_size": 500}
    ways = {name: replace(POISONING[name], settings=few) for name in ("meta-pgd-relaxed", "meta-pgd-twin")}
    ways = {"dice": WAYS["dice"], **ways}
    own = {"gnnguard": {"meta-pgd-relaxed"}, "asgnn": set(ways) - {"dice"}, "gcn": set()}
    for model, used in own.items():
        found = challenge_poisoning(recipe(model, epochs=20), data, split, [0.2], name=model, seeds=1, ways=ways)
        after = {one.attempt.attack: one.after for one in found.outcomes}
        assert set(after) == used | {"dice"}
        assert not any(one.problem for one in found.outcomes)
        assert all(after[attack] < found.clean for attack in used)


def test_an_attack_on_matrices_serves_all_budgets_and_starts_in_one_call() -> None:
    data, split = graph()
    calls: list[list[int]] = []

    @wraps(meta_pgd_pairs)
    def counted(data: Data, budgets: list[int], *args: object, **options: object) -> object:
        calls.append(budgets)
        return meta_pgd_pairs(data, budgets, *args, **options)  # type: ignore[arg-type]

    few = {"steps": 4, "samples": 2}
    ways = {name: replace(way, attack=counted) for name, way in POISONING.items() if way.together}
    ways = {name: replace(way, settings={**way.settings, **few}) for name, way in ways.items()}
    assert set(ways) == {"meta-pgd-pairs", "meta-pgd-pairs-twin", "meta-pgd-pairs-shrunk"}
    for model, own in {
        "gcn": "meta-pgd-pairs",
        "gnnguard": "meta-pgd-pairs-twin",
        "asgnn": "meta-pgd-pairs-twin",
        "prognn": "meta-pgd-pairs-shrunk",
    }.items():
        calls.clear()
        of = recipe(model, epochs=40, lr=0.01)
        found = challenge_poisoning(of, data, split, BUDGETS, name=model, seeds=1, ways=ways)
        assert calls == [[flips_of(budget, data) for budget in BUDGETS]]
        assert {one.attempt for one in found.outcomes} == {
            Attempt(own, model, budget, seed) for budget in BUDGETS for seed in range(ways[own].seeds)
        }
        assert all(one.flips == flips_of(one.attempt.budget, data) for one in found.outcomes)
        assert found.envelope.accuracy(0.2) < found.clean
        assert not any("Restarts" in sign for sign in found.signs)


def test_a_module_of_the_user() -> None:
    data, split = graph()
    torch.manual_seed(0)
    own = fit(OwnModel(8, 2), data, split=split).model
    found = evasion(own, "own")
    assert found.envelope.worst[0.2].attempt.attack in ("prbcd", "grbcd")
    assert found.envelope.accuracy(0.2) < found.clean
    ways = {name: WAYS[name] for name in ("prbcd", "join-unlike")}
    blind = evasion(fit(WithoutWeights(8, 2), data, split=split).model, "blind", ways=ways)
    assert {one.attempt.attack for one in blind.outcomes} == {"join-unlike"}
    assert blind.envelope.accuracy(0.2) < blind.clean


def test_the_frozen_twin_and_the_learned_graph() -> None:
    data, _split = graph()
    model = trained("asgnn", num_layers=3)
    twin = frozen_twin(model)
    assert twin is not None
    assert frozen_twin(trained()) is None
    assert twin.asmp.scheme.structure == "frozen"
    assert model.asmp.scheme.structure == "adaptive"
    ways = {name: WAYS[name] for name in ("prbcd-relaxed", "prbcd-twin")}
    found = evasion(model, "asgnn", ways=ways)
    assert {one.attempt.attack for one in found.outcomes} == set(ways)
    prognn = trained("prognn", epochs=10)
    seen = as_attacked(prognn, data)
    assert isinstance(seen, OnLearnedGraph)
    assert torch.allclose(seen(*prepare(data)), prognn(*prepare(data)), atol=1e-5)
    learned = evasion(prognn, "prognn", ways={"prbcd": WAYS["prbcd"]})
    assert learned.envelope.accuracy(0.2) < learned.clean


def test_an_attack_that_continues_is_not_weaker_than_the_best_before_it() -> None:
    ways = {name: WAYS[name] for name in ("prbcd", "evolve")}
    found = evasion(trained(), ways=ways)
    for budget in BUDGETS:
        after = {one.attempt: one.after for one in found.outcomes if one.attempt.budget == budget}
        *before, last = after.values()
        assert last <= min(before)


def test_a_budget_goes_on_from_the_flips_of_the_one_before() -> None:
    started: dict[int, int] = {}

    def attack(data: Data, budget: int, rng: torch.Generator, start: Perturbation | None = None) -> Perturbation:
        started[budget] = 0 if start is None else len(start)
        return random_flips(data, budget, rng)

    data, split = graph()
    ledger, ways = Ledger(), {"own": Way(attack, "nothing", continues="smaller")}
    shares = (0.2, 0.05, 0.1)
    challenge_evasion(trained(), data, split, shares, ways=ways, ledger=ledger)
    first, second, third = sorted(started)
    assert [started[budget] for budget in (first, second, third)] == [0, first, second]
    started.clear()
    challenge_evasion(trained(), data, split, (*shares, 0.15), ways=ways, ledger=ledger)
    assert list(started.values()) == [second]


def test_the_training_of_a_model_with_a_witness_is_attacked() -> None:
    data, split = graph()
    of = recipe("sgc", epochs=10, witness_floor=0.2, witness_neighbors=3, witness_models=1)
    ways = {"meta": Way(meta_greedy, "training", {"steps": 1, "block_size": 500}, ordered=True)}
    found = challenge_poisoning(of, data, split, [0.05], seeds=1, ways=ways)
    assert [one.attempt.attack for one in found.outcomes] == ["meta"]


# --- signs -----------------------------------------------------------------------------------------------------------


def test_finite_differences_find_a_rounded_loss() -> None:
    data, split = graph()
    torch.manual_seed(0)
    smooth = fit(OwnModel(8, 2), data, split=split).model
    rounded = Rounded(8, 2)
    rounded.load_state_dict(smooth.state_dict())
    honest, hidden = (probe(one, data, split, generator()) for one in (smooth, rounded))
    assert honest.disagreement is not None
    assert honest.disagreement < 0.15
    assert hidden.disagreement is not None
    assert hidden.disagreement > 0.5
    (sign,) = signs_of_masking(hidden, [], {})
    assert "Finite differences" in sign
    assert honest.guessing == pytest.approx(100 * data.y[split.test].bincount().max() / len(split.test))


def test_signs_from_outcomes() -> None:
    def outcome(attack: str, source: str, after: float, seed: int = 0) -> AttemptOutcome:
        return AttemptOutcome("evasion", "m", Attempt(attack, source, 0.1, seed), 90.0, after, 9, 0.0)

    def free(after: float) -> AttemptOutcome:
        return replace(outcome("prbcd", "m", after), attempt=Attempt("prbcd", "m", 1.0))

    through = {name: way.through for name, way in EVASION.items()}
    data, split = graph()
    probed = probe(trained(), data, split, generator())
    assert probed.gradient
    assert probed.disagreement is not None
    assert probed.disagreement < 0.25
    quiet = [outcome("prbcd", "m", 70.0), outcome("prbcd", "gcn", 69.5), outcome("dice", "", 80.0)]
    assert signs_of_masking(probed, [*quiet, free(probed.guessing)], through) == ()
    loud = [outcome("prbcd", "m", 70.0), outcome("prbcd", "m", 75.0, 1), outcome("prbcd", "gcn", 60.0), free(80.0)]
    transfer, restarts, floor = signs_of_masking(probed, loud, through)
    assert "prbcd against gcn leaves 60.0 %, 10.0 points less" in transfer
    assert "differ by 5.0 points" in restarts
    assert "80.0 % are still right" in floor


def test_an_attack_that_cannot_be_made_does_not_end_the_others() -> None:
    ways = {"impossible": Way(prbcd, "gradient", {**FEW, "block_size": 2}), "random": WAYS["random"]}
    found = evasion(trained(), ways=ways)
    failed = [one for one in found.outcomes if one.problem]
    assert {one.attempt.attack for one in failed} == {"impossible"}
    assert all(one.after == found.clean and one.flips == 0 for one in failed)
    assert any("impossible could not be made: block_size must be at least" in sign for sign in found.signs)
    assert {one.attempt.attack for one in found.outcomes} == set(ways)


# --- bad input -------------------------------------------------------------------------------------------------------


def test_the_tables() -> None:
    assert set(chosen(EVASION, "quick")) < set(chosen(EVASION, "full")) == set(EVASION)
    assert set(chosen(POISONING, "quick")) < set(POISONING)
    with pytest.raises(ConfigError, match="effort must be one of quick, full"):
        chosen(EVASION, "huge")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"budgets": []}, "budgets must be a list of shares of the edges"),
        ({"budgets": 0.1}, "budgets must be a list"),
        ({"budgets": [0.0]}, r"must be a number in \(0, 10\]"),
        ({"budgets": [0.001]}, "less than one flip on a graph of"),
        ({"ways": {}}, "ways and pool are both empty"),
    ],
)
def test_bad_input_is_a_sentence(options: dict[str, object], words: str) -> None:
    data, split = graph()
    with pytest.raises(ConfigError, match=words):
        challenge_evasion(trained(), data, split, **{"budgets": [0.1], "ways": WAYS, **options})  # type: ignore[arg-type]


# --- single nodes ----------------------------------------------------------------------------------------------------


def test_single_nodes_fall_by_the_flips_that_are_kept() -> None:
    data, split = graph()
    model = trained()
    found = challenge_nodes(model, data, split, [1.0, 0.5], name="gcn", targets=10, pgd_steps=2)
    assert found.shares == (0.5, 1.0)
    assert len(found.targets) == 10
    assert found.accuracy(1.0) <= found.accuracy(0.5) <= found.clean_accuracy
    assert found.accuracy(1.0) < found.clean_accuracy
    degree = torch.bincount(data.edge_index[0], minlength=60)
    for share, fell, flips in zip(found.shares, found.fell, found.flips, strict=True):
        for target, clean, attack, pairs in zip(found.targets, found.clean, fell, flips, strict=True):
            assert clean == bool(predict(model, data)[target] == data.y[target])
            if attack:
                assert len(pairs) <= math.ceil(share * int(degree[target]))
                flipped = Perturbation(torch.tensor(pairs).t(), 60).apply(data)
                assert predict(model, flipped)[target] != data.y[target]


def test_single_nodes_of_a_model_without_edges_stand() -> None:
    data, split = graph()
    found = challenge_nodes(trained("mlp"), data, split, [2.0], targets=3)
    assert found.accuracy(2.0) == found.clean_accuracy
    with pytest.raises(ConfigError, match="At least one share"):
        challenge_nodes(trained("mlp"), data, split, [])
