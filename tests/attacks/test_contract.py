"""Rules that every attack must follow, for a table of attacks and a table of graphs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data

from asgnn.attacks import (
    UnrolledTraining,
    dice,
    evolve,
    fit_surrogate,
    grbcd,
    join_unlike,
    meta_greedy,
    meta_pgd,
    metattack,
    minmax,
    pgd,
    prbcd,
    random_flips,
    weakest_first,
)
from asgnn.attacks.checkpoint import FileCheckpoint, State
from asgnn.attacks.inner import InnerTraining
from asgnn.errors import AsgnnError, ConfigError
from asgnn.graphs import Perturbation
from asgnn.models import GCN
from tests.awkward import AWKWARD

Attack = Callable[..., Perturbation]
"""(data, budget, train, rng, **options), with settings that are fast enough for a test."""


@cache
def untrained() -> GCN:
    """Return the model whose training is attacked."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return GCN(5, 2, 3)


SHORT = UnrolledTraining(steps=2)
# Gradient attacks, which know the labels of a few nodes and train or get a surrogate.
GRADIENT: dict[str, Attack] = {
    "pgd": lambda *args, **options: pgd(*args, steps=6, samples=4, **options),
    "minmax": lambda *args, **options: minmax(*args, steps=6, samples=4, **options),
    "prbcd": lambda *args, **options: prbcd(*args, steps=6, fine_tune=2, samples=4, **options),
    # a block smaller than the 528 pairs of 33 nodes, and two restarts
    "prbcd, small block": lambda *args, **options: prbcd(
        *args, steps=3, fine_tune=1, samples=4, block_size=200, start="random", restarts=2, **options
    ),
    "grbcd": lambda *args, **options: grbcd(*args, steps=6, **options),
    "meta_pgd": lambda *args, **options: meta_pgd(
        *args, model=untrained(), training=SHORT, steps=6, samples=2, repair=1, block_size=200, **options
    ),
    "meta_greedy": lambda *args, **options: meta_greedy(
        *args, model=untrained(), training=SHORT, steps=6, block_size=200, repair=1, **options
    ),
    "grbcd, small block": lambda *args, **options: grbcd(
        *args, steps=3, block_size=200, repair=3, restarts=2, **options
    ),
    "pgd, restarts": lambda *args, **options: pgd(
        *args, steps=3, samples=4, start="uniform", repair=3, restarts=2, **options
    ),
    # these take no gradient, but have the same arguments
    "evolve": lambda *args, **options: evolve(
        *args, steps=6, population=6, elite=2, partners="alike", batch=4, **options
    ),
    "join_unlike": lambda *args, **options: join_unlike(*args, steps=6, **options),
    "weakest_first": lambda *args, **options: weakest_first(*args, steps=6, block_size=40, **options),
    "weakest_first, answers": lambda *args, **options: weakest_first(
        *args, steps=6, guide="answers", partners=9, choices=3, reuse=1, **options
    ),
}
QUICK = InnerTraining(steps=4, hidden=2, starts=2)
# All attacks that learn from labelled nodes and can be resumed.
LEARNING: dict[str, Attack] = {
    **GRADIENT,
    "metattack": lambda *args, **options: metattack(*args, inner=QUICK, **options),
    "metattack, first order": lambda *args, **options: metattack(
        *args, inner=QUICK, exact=False, variant="both", **options
    ),
}
ATTACKS: dict[str, Attack] = {
    "dice": lambda data, budget, train, rng, **options: dice(data, budget, rng, **options),
    "random add": lambda data, budget, train, rng, **options: random_flips(data, budget, rng, **options),
    "random remove": lambda data, budget, train, rng, **options: random_flips(
        data, budget, rng, kind="remove", **options
    ),
    "random flip": lambda data, budget, train, rng, **options: random_flips(data, budget, rng, kind="flip", **options),
    **LEARNING,
}
# "one node" has only one class
GRAPHS = [name for name in AWKWARD if name != "one node"]


@pytest.fixture(autouse=True)
def _short_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train the surrogate for a few epochs only, because the rules hold for any surrogate."""
    monkeypatch.setattr("asgnn.attacks.problem.fit_surrogate", partial(fit_surrogate, epochs=5))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def graph(name: str) -> tuple[Data, Tensor]:
    """Return a graph with weakly informative features, and its labelled nodes."""
    n, edge_index = AWKWARD[name]
    y = torch.arange(n) % min(3, n)
    x = torch.randn(n, 5, generator=generator(7)) + torch.nn.functional.one_hot(y, 5)
    return Data(x=x, edge_index=edge_index, y=y), torch.arange(max(1, n // 3))


def check_rules(data: Data, flips: Perturbation, budget: int) -> None:
    """Check the budget, u < v, no repeated pair, an undirected result without self-loops or new isolated nodes."""
    assert len(flips) == flips.flips.size(1) == budget
    assert bool((flips.flips[0] < flips.flips[1]).all())
    assert len(set(zip(*flips.flips.tolist(), strict=True))) == budget
    poisoned = flips.apply(data)
    assert not poisoned.has_self_loops()
    assert poisoned.is_undirected()
    n = int(data.num_nodes or 0)
    before, after = (torch.bincount(g.edge_index[0], minlength=n) for g in (data, poisoned))
    assert not bool(((before > 0) & (after == 0)).any())


# Edges that can be removed in any order without isolating a node.
REMOVABLE = {"complete": 15, "random 33": 9}


def always_possible(attack: str, name: str, data: Data) -> int:
    """Return the number of flips that an attack must find; it may raise an error for a larger budget."""
    n = int(data.num_nodes or 0)
    absent = torch.ones(n, n).triu(1)
    absent[data.edge_index[0], data.edge_index[1]] = 0
    if attack == "dice":
        return int(absent[data.y.unsqueeze(0) != data.y.unsqueeze(1)].sum())
    additions, removals = int(absent.sum()), REMOVABLE.get(name, 0)
    return {"random add": additions, "random remove": removals}.get(attack, additions + removals)


@pytest.mark.parametrize("budget", [0, 1, 2, 9])
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("attack", ATTACKS)
def test_rules(attack: str, name: str, budget: int) -> None:
    data, train = graph(name)
    edges, y = data.edge_index.clone(), data.y.clone()
    try:
        flips = ATTACKS[attack](data, budget, train, generator())
    except AsgnnError:
        assert budget > always_possible(attack, name, data)
        return
    check_rules(data, flips, budget)
    assert torch.equal(data.edge_index, edges)
    assert torch.equal(data.y, y)
    assert flips.meta["budget"] == str(budget)
    assert flips.meta["attack"]


@pytest.mark.parametrize("attack", ATTACKS)
def test_missing_labels_are_not_a_class(attack: str) -> None:
    """-1 and NaN both mark a missing label and give the same flips."""
    data, train = graph("random 33")
    known = torch.arange(33) % 5 != 0
    found = []
    for y in (torch.where(known, data.y, -1), torch.where(known, data.y.float(), torch.nan)):
        data.y = y
        found.append(ATTACKS[attack](data, 6, train, generator()).flips)
        check_rules(data, ATTACKS[attack](data, 6, train, generator()), 6)
    assert torch.equal(*found)


@pytest.mark.parametrize("attack", ATTACKS)
def test_same_seed_gives_same_flips(attack: str) -> None:
    data, train = graph("random 33")
    first, again, other = (ATTACKS[attack](data, 9, train, generator(seed)).flips for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("attack", ATTACKS)
def test_global_generator_is_not_used(attack: str) -> None:
    data, train = graph("random 33")
    before = torch.get_rng_state()
    ATTACKS[attack](data, 3, train, generator())
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("attack", [name for name in ATTACKS if name not in ("dice", "random add")])
def test_allow_isolated(attack: str) -> None:
    """In a complete graph flips are removals: all edges with ``allow_isolated``, otherwise all but an edge cover."""
    data, train = graph("complete")
    check_rules(data, ATTACKS[attack](data, 15, train, generator()), 15)
    flips = ATTACKS[attack](data, 21, train, generator(), allow_isolated=True)
    assert flips.apply(data).num_edges == 0


class InterruptedCheckpoint:
    """A checkpoint in memory that interrupts the attack once, after some steps."""

    def __init__(self, after: int) -> None:
        self.left, self.saved = after, None
        self.copy: State | None = None

    def load(self) -> State | None:
        return self.saved

    def save(self, state: State) -> None:
        # an attack must not change a state after it has saved it
        if self.saved is not None and self.copy is not None:
            assert all(torch.equal(self.copy[key], value) for key, value in self.saved.items())
        self.saved, self.copy = state, {key: value.clone() for key, value in state.items()}
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("after", [1, 4, 6])
@pytest.mark.parametrize("attack", LEARNING)
def test_resumed_attack_gives_the_same_flips(attack: str, after: int) -> None:
    data, train = graph("random 33")
    whole = LEARNING[attack](data, 9, train, generator(5))
    checkpoint = InterruptedCheckpoint(after)
    with pytest.raises(KeyboardInterrupt):
        LEARNING[attack](data, 9, train, generator(5), checkpoint=checkpoint)
    steps: list[int] = []
    # the generator passed here must not matter, because its state is part of the checkpoint
    resumed = LEARNING[attack](
        data, 9, train, generator(99), checkpoint=checkpoint, progress=lambda done, total: steps.append(done)
    )
    assert torch.equal(whole.flips, resumed.flips)
    # Metattack takes one step per flip
    assert steps == list(range(after + 1, 7 if attack in GRADIENT else 10))


@pytest.mark.parametrize("attack", LEARNING)
def test_resumes_from_a_file(attack: str, tmp_path: Path) -> None:
    data, train = graph("random 33")
    whole = LEARNING[attack](data, 9, train, generator(5))

    def stop(done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    def file_checkpoint() -> FileCheckpoint:
        return FileCheckpoint(tmp_path / "attack.npz", {"attack": attack})

    with pytest.raises(KeyboardInterrupt), file_checkpoint() as checkpoint:
        LEARNING[attack](data, 9, train, generator(5), checkpoint=checkpoint, progress=stop)
    with file_checkpoint() as checkpoint:
        resumed = LEARNING[attack](data, 9, train, generator(99), checkpoint=checkpoint)
        checkpoint.remove()
    assert torch.equal(whole.flips, resumed.flips)


@pytest.mark.parametrize("attack", LEARNING)
def test_unknown_labels_are_not_used(attack: str) -> None:
    data, train = graph("random 33")
    flips = LEARNING[attack](data, 9, train, generator()).flips
    hidden = data.clone()
    hidden.y[train.numel() :] = hidden.y[train.numel() :].flip(0)
    assert not torch.equal(data.y, hidden.y)
    assert torch.equal(flips, LEARNING[attack](hidden, 9, train, generator()).flips)


@pytest.mark.parametrize("attack", GRADIENT)
def test_node_numbers_and_masks_are_equivalent(attack: str) -> None:
    data, train = graph("random 33")
    mask = torch.zeros(33, dtype=torch.bool)
    mask[train] = True
    first = GRADIENT[attack](data, 5, train, generator(), nodes=torch.tensor([20, 30]))
    chosen = torch.zeros(33, dtype=torch.bool)
    chosen[[20, 30]] = True
    assert torch.equal(first.flips, GRADIENT[attack](data, 5, mask, generator(), nodes=chosen).flips)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("attack", LEARNING)
def test_rules_on_a_gpu(attack: str) -> None:
    data, train = graph("random 33")
    first, again = (LEARNING[attack](data, 9, train, generator(), device="cuda") for _ in range(2))
    check_rules(data, first, 9)
    assert torch.equal(first.flips, again.flips)


def with_nan(data: Data) -> Data:
    data.x[4, 2] = torch.nan
    return data


BAD: dict[str, tuple[Callable[[Data, Tensor], tuple[Any, ...]], str]] = {
    "budget": (lambda d, t: (d, -1, t, {}), r"budget must be a whole number from 0 to .*; it is -1\."),
    "half budget": (lambda d, t: (d, 2.5, t, {}), r"budget must be a whole number from 0 to .*; it is 2\.5\."),
    "nan": (lambda d, t: (with_nan(d), 3, t, {}), r"x\[4, 2\] is nan: every feature must be finite\."),
}
BAD_LEARNING: dict[str, tuple[Callable[[Data, Tensor], tuple[Any, ...]], str]] = {
    "empty": (lambda d, t: (d, 3, t[:0], {}), r"At least one of the labelled nodes must be given"),
    "outside": (lambda d, t: (d, 3, t + 30, {}), r"labelled nodes name node 40, but the nodes are numbered 0 to 32\."),
    "float": (lambda d, t: (d, 3, t.float(), {}), r"labelled nodes must be an int64 tensor"),
    "all": (lambda d, t: (d, 3, torch.arange(33), {}), r"Every node is labelled, so none is left to attack"),
}
BAD_GRADIENT: dict[str, tuple[Callable[[Data, Tensor], tuple[Any, ...]], str]] = {
    "nodes": (lambda d, t: (d, 3, t, {"nodes": t[:0]}), r"At least one of the attacked nodes must be given"),
    "loss": (lambda d, t: (d, 3, t, {"loss": "hinge"}), r"loss must be one of tanh_margin, .*; it is 'hinge'\."),
    "too many": (lambda d, t: (d, 529, t, {}), r"is 529 flips, but the graph has only 528 pairs of nodes\."),
}


@pytest.mark.parametrize(
    ("attack", "case"),
    [(attack, case) for attack in ATTACKS for case in BAD]
    + [(attack, case) for attack in LEARNING for case in BAD_LEARNING]
    + [(attack, case) for attack in GRADIENT for case in BAD_GRADIENT],
)
def test_bad_input(attack: str, case: str) -> None:
    change, sentence = (BAD | BAD_LEARNING | BAD_GRADIENT)[case]
    data, budget, train, options = change(*graph("random 33"))
    with pytest.raises(AsgnnError, match=sentence):
        ATTACKS[attack](data, budget, train, generator(), **options)


def test_settings_outside_their_range() -> None:
    data, train = graph("random 33")
    for attack, options, sentence in (
        (pgd, {"steps": -1}, "steps must be a whole number from 0 to .*; it is -1"),
        (pgd, {"base_lr": 0.0}, r"base_lr must be a number in \(0, 1e\+18\]"),
        (pgd, {"samples": 0}, "samples must be a whole number from 1 to .*; it is 0"),
        (minmax, {"inner_steps": -1}, "inner_steps must be a whole number from 0"),
        (minmax, {"surrogate": lambda x, edge_index, edge_weight: x}, "must be a SurrogateGCN"),
        (prbcd, {"block_size": 5}, "at least twice the budget of 3 flips, or all pairs; it is 5"),
        (prbcd, {"fine_tune": -1}, "fine_tune must be a whole number from 0"),
        (grbcd, {"steps": 0}, "steps must be a whole number from 1"),
        (weakest_first, {"steps": 0}, "steps must be a whole number from 1"),
        (weakest_first, {"most": 0}, "most must be a whole number from 1"),
        (weakest_first, {"guide": "luck"}, "guide must be one of gradient, answers; it is 'luck'"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            attack(data, 3, train, generator(), **options)  # type: ignore[operator]
    with pytest.raises(ConfigError, match="kind must be one of add, remove, flip"):
        random_flips(data, 3, generator(), kind="rewire")  # type: ignore[arg-type]
