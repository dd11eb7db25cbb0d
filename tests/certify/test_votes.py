"""The radius of votes against all ways to change them, and the parts of the edges against flips."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data

from asgnn.certify import (
    ANY_NUMBER,
    Ballot,
    certify,
    edge_free,
    edge_parts,
    predict_without_edges,
    radius_of,
    vote_by_neighbors,
    vote_by_parts,
)
from asgnn.certify.partition import FLOOR_SEED
from asgnn.errors import ConfigError, GraphError
from asgnn.graphs import FeaturePrior, Perturbation, Split, random_split
from asgnn.models import ASGNN
from asgnn.training import Recipe, fit_many, recipe
from tests.training.problem import NODES, graph

CLASSES = 3


def winner(counts: list[int]) -> int:
    return counts.index(max(counts))  # the first of equal ones


def changed(voters: tuple[int | None, ...], flips: int) -> set[tuple[int | None, ...]]:
    """All votes after at most ``flips`` voters have changed theirs; ``None`` is silent."""
    found = set()
    for who in itertools.combinations(range(len(voters)), min(flips, len(voters))):
        for new in itertools.product((None, *range(CLASSES)), repeat=len(who)):
            other = list(voters)
            for i, vote in zip(who, new, strict=True):
                other[i] = vote
            found.add(tuple(other))
    return found


def counts_of(voters: tuple[int | None, ...], anchor: tuple[int, int]) -> list[int]:
    counts = [Counter(voters)[c] for c in range(CLASSES)]
    counts[anchor[0]] += anchor[1]
    return counts


@pytest.mark.parametrize("weight", [0, 1, 3, 4, 5])
def test_radius_is_that_of_all_ways_to_change_votes(weight: int) -> None:
    for voters in itertools.combinations_with_replacement((None, *range(CLASSES)), 4):
        for of in range(CLASSES):
            before = winner(counts_of(voters, (of, weight)))
            expected = ANY_NUMBER
            for flips in range(1, 5):
                if any(winner(counts_of(other, (of, weight))) != before for other in changed(voters, flips)):
                    expected = flips - 1
                    break
            votes = torch.tensor([[Counter(voters)[c] for c in range(CLASSES)]])
            ballot = Ballot(votes, torch.tensor([Counter(voters)[None]]), torch.tensor([of]), 0.0)
            found = ballot.certificate(weight)
            assert int(found.prediction) == before
            assert int(found.radius) == expected, (voters, of)


def test_radius_is_that_of_all_ways_to_add_and_remove_votes() -> None:
    for votes in itertools.product(range(4), repeat=CLASSES):
        for of, weight in itertools.product(range(CLASSES), (0, 2)):
            fixed = [weight * (c == of) for c in range(CLASSES)]
            before = winner([a + b for a, b in zip(votes, fixed, strict=True)])
            reached, flips = {votes}, -1
            while all(winner([a + b for a, b in zip(one, fixed, strict=True)]) == before for one in reached):
                flips += 1
                steps = [(c, d) for c in range(CLASSES) for d in (-1, 1)]
                reached |= {
                    (*one[:c], one[c] + d, *one[c + 1 :]) for one in reached for c, d in steps if one[c] + d >= 0
                }
            found = radius_of(torch.tensor([votes]), None, torch.tensor([fixed]))
            assert int(found) == flips, (votes, fixed)


def test_parts_are_those_of_the_documented_hash() -> None:
    def mixed(x: int) -> int:
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % 2**64
        return x ^ (x >> 31)

    edge_index = graph().edge_index
    for parts, seed in ((2, 0), (7, 3), (1000, 0)):
        found = edge_parts(edge_index, NODES, parts, seed)
        for (u, v), part in zip(edge_index.t().tolist(), found.tolist(), strict=True):
            low, high = sorted((u, v))
            assert part == mixed((mixed(seed + 1) + low * 2**32 + high) % 2**64) % parts
    assert edge_parts(edge_index[:, :0], NODES, 3).numel() == 0


def test_parts_are_even() -> None:
    pairs = torch.combinations(torch.arange(300)).t()
    found = edge_parts(torch.cat([pairs, pairs.flip(0)], 1), 300, 10)[: pairs.size(1)]
    expected = pairs.size(1) / 10
    assert ((found.bincount(minlength=10) - expected).abs() < 5 * expected**0.5).all()


def small(name: str = "gcn") -> tuple[Data, Split, Recipe]:
    data = graph(torch.float32)
    chosen = recipe(name, epochs=8, prior_neighbors=3, prior_weight=0.2)
    return data, random_split(data, 0, train=0.3, val=0.2), chosen


def flips(data: Data, count: int) -> Perturbation:
    """Some edges removed and some added."""
    row, col = data.edge_index
    pairs = torch.stack([row, col])[:, row < col][:, :: max(1, len(row) // 2 // count)][:, :count]
    added = torch.tensor([[0, 5, NODES - 1], [1, 9, 3]])
    absent = ~(added.unsqueeze(2) == torch.stack([row, col]).unsqueeze(1)).all(0).any(1)
    return Perturbation(torch.cat([pairs, added[:, absent]], 1), NODES)


def parts_votes(data: Data, split: Split, chosen: Recipe, batch: bool) -> Tensor:
    return vote_by_parts(chosen, data, split, parts=4, models=1, batch=batch).votes


@pytest.mark.parametrize("name", ["gcn", "gat"])
def test_a_flip_changes_the_vote_of_one_part(name: str) -> None:
    """Poisoning: the models are trained again on the changed graph, and at most one vote of each node changes."""
    data, split, chosen = small(name)
    before = parts_votes(data, split, chosen, False)
    assert (before.sum(1) == 4).all()
    moved = 0
    for pair in flips(data, 3).flips.t():
        other = Perturbation(pair.view(2, 1), NODES).apply(data)
        after = parts_votes(other, split, chosen, False)
        assert ((after - before).abs().sum(1) <= 2).all()
        moved += int((after != before).any())
    assert moved > 0


@pytest.mark.parametrize("name", ["gcn", "sgc", "appnp"])
def test_the_batch_gives_the_votes_of_single_trainings(name: str) -> None:
    data, split, chosen = small(name)
    together, alone = (parts_votes(data, split, chosen, batch) for batch in (True, False))
    assert torch.equal(together, alone)


def test_votes_of_neighbours_change_by_one_at_the_ends_of_a_flip() -> None:
    data, split, chosen = small()
    before = vote_by_neighbors(chosen, data, split, models=2)
    assert torch.equal(before.votes.sum(1), data.edge_index[0].bincount(minlength=NODES))
    for pair in flips(data, 3).flips.t():
        other = Perturbation(pair.view(2, 1), NODES).apply(data)
        after = vote_by_neighbors(chosen, other, split, models=2)
        expected = torch.zeros(NODES, dtype=torch.int64)
        expected[pair] = 1
        assert torch.equal((after.votes - before.votes).abs().sum(1), expected)
        assert torch.equal(after.floor, before.floor)


def test_abstention_anchor_and_floor() -> None:
    data, split, chosen = small()
    ballot = vote_by_parts(chosen, data, split, parts=5, abstain=True, models=1)
    degree = data.edge_index[0].bincount(minlength=NODES)
    assert (ballot.votes.sum(1) <= degree).all()
    assert ballot.silent is not None
    assert (ballot.votes.sum(1) + ballot.silent == 5).all()
    assert ballot.votes[-1].sum() == 0  # an isolated node has no votes
    anchored = ballot.certificate(6)
    assert torch.equal(anchored.prediction, ballot.floor)
    assert (anchored.radius == ANY_NUMBER).all()
    right = anchored.floor_accuracy(data, split.test)
    assert anchored.certified_accuracy(data, split.test, [0, 10**6]) == {0: right, 10**6: right}
    curve = ballot.certificate(1).certified_accuracy(data, split.test, range(5))
    assert list(curve.values()) == sorted(curve.values(), reverse=True)
    assert curve[0] > curve[4]


def test_the_anchor_is_chosen_by_accuracy_and_then_by_coverage() -> None:
    data = graph(torch.float32)
    rng = torch.Generator().manual_seed(0)
    votes, floor = torch.randint(5, (NODES, CLASSES), generator=rng), torch.randint(CLASSES, (NODES,), generator=rng)
    ballot = Ballot(votes, None, floor, 0.0)
    nodes = torch.arange(0, NODES, 2)
    for radii in ([0], [1, 2], [3]):
        merit = {}
        for anchor in range(30):
            found = ballot.certificate(anchor)
            accuracy = sum(found.certified_accuracy(data, nodes, radii).values())
            merit[anchor] = accuracy, sum(int((found.radius >= flips).sum()) for flips in radii), -anchor
        assert ballot.choose_anchor(data, nodes, radii) == max(merit, key=merit.__getitem__)


def test_edge_free_twins_ignore_the_edges() -> None:
    chosen = recipe("asgnn", prior_neighbors=4, structure="adaptive")
    twin = edge_free(chosen).trial(graph(torch.float32), random_split(graph(), 0), 0).model
    assert isinstance(twin, ASGNN)
    assert twin.prior == FeaturePrior(neighbors=4, weight=1.0, edges=0.0)
    assert twin.asmp.scheme.structure == "frozen"
    assert edge_free(recipe("torch_geometric.nn:GCN", hidden_channels=4, num_layers=2)).kind.__name__ == "MLP"


def test_the_floor_is_the_mean_over_the_views_of_the_features() -> None:
    data, split = graph(torch.float32), random_split(graph(), 0)
    chosen = recipe("asgnn", prior_neighbors=4, epochs=20, dropout=0.2, lr=0.05)
    found = predict_without_edges(chosen, data, split, models=2, seed=1)
    probabilities = []
    for metric in ("auto", "latent", "idf"):
        trials = [edge_free(chosen, metric).trial(data, split, FLOOR_SEED + 2 + i) for i in range(2)]
        probabilities += [fit.logits[0].softmax(1) for fit in fit_many(trials, data)]
    assert torch.equal(found, torch.stack(probabilities).mean(0).argmax(1))
    assert not torch.equal(found, torch.stack(probabilities[:2]).mean(0).argmax(1))


def test_invalid_input_is_an_error_of_one_sentence() -> None:
    data, split, chosen = small()
    with pytest.raises(ConfigError, match="parts"):
        certify(chosen, data, split, parts=1)
    with pytest.raises(ConfigError, match="anchor"):
        certify(chosen, data, split, anchor=-1)
    with pytest.raises(ConfigError, match="There is no model"):
        certify("no-such-model", data, split)
    with pytest.raises(ConfigError, match="at least two classes"):
        radius_of(torch.ones(3, 1), None, torch.zeros(3, 1))
    weighted = data.clone()
    weighted.edge_weight = torch.ones(weighted.num_edges)
    with pytest.raises(ConfigError, match="must not have edge_weight"):
        certify(chosen, weighted, split)
    ballot = Ballot(torch.ones(NODES, 3).long(), None, torch.zeros(NODES).long(), 0.0)
    unlabelled = data.clone()
    unlabelled.y = torch.where(torch.arange(NODES) < 5, -1, unlabelled.y)
    with pytest.raises(GraphError, match="None of the nodes has a label"):
        ballot.certificate().certified_accuracy(unlabelled, torch.arange(5), [0])
    with pytest.raises(ConfigError, match="at least one number of flips"):
        ballot.choose_anchor(data, torch.arange(5), [])
    with pytest.raises(ConfigError, match="number of flips"):
        ballot.certificate().certified_accuracy(data, torch.arange(5), [-1])
