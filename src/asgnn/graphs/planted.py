"""Planted partitions: random graphs whose classes, false edges and features are known because they were planted.

Named instances, in :data:`PLANTED`, are datasets of :func:`~asgnn.graphs.load_dataset`. There are two families:

- ``planted-…`` are for judging. They must never be used to choose a default, a portfolio or a setting of a model.
- ``tuning-…`` are for choosing defaults. No result on them may be reported as evidence for a model.

The families share no seed and no combination of parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral

import torch
from torch import Tensor
from torch_geometric.data import Data

from asgnn.errors import ConfigError
from asgnn.graphs.checks import MAX_CLASSES
from asgnn.graphs.convert import undirected
from asgnn.graphs.splits import USUAL_RULE, SplitRule
from asgnn.settings import check_count, check_number

MAX_SIGNAL = 1e6


@dataclass(frozen=True)
class Gaussian:
    r"""Dense features: the mean of the class plus standard normal noise.

    The means are random vectors of length ``signal``, so two of them are about :math:`\sqrt2` times ``signal`` apart,
    in units of the noise's standard deviation. With signal 0 the features carry no information.

    Args:
        dimension: The number of features.
        signal: The length of the class means.
    """

    dimension: int = 30
    signal: float = 1.0

    def __post_init__(self) -> None:
        check_count("dimension", self.dimension)
        check_number("signal", self.signal, 0, MAX_SIGNAL)

    def draw(self, y: Tensor, classes: int, rng: torch.Generator) -> Tensor:
        """Returns the features of nodes with classes ``y``. Time and memory O(N · dimension)."""
        means = torch.randn(classes, self.dimension, generator=rng, dtype=torch.float64)
        means *= self.signal / means.norm(dim=1, keepdim=True)
        return means.float()[y] + torch.randn(y.numel(), self.dimension, generator=rng, dtype=torch.float32)


@dataclass(frozen=True)
class Words:
    """Binary bag-of-words features: words of the class and words of everyone.

    The words are divided evenly among the classes. A node draws ``per_node`` words, each with probability ``signal``
    from those of its class and otherwise from all of them; a word that is drawn twice counts once. With signal 0 the
    features carry no information.

    Args:
        words: The number of features.
        per_node: The number of draws of each node.
        signal: The probability of drawing from the words of the class.
    """

    words: int = 500
    per_node: int = 15
    signal: float = 0.3

    def __post_init__(self) -> None:
        check_count("words", self.words)
        check_count("per_node", self.per_node)
        check_number("signal", self.signal, 0, 1)

    def draw(self, y: Tensor, classes: int, rng: torch.Generator) -> Tensor:
        """Returns the features of nodes with classes ``y``. Time and memory O(N · words)."""
        if self.words < classes:
            raise ConfigError(f"{classes} classes need at least as many words; there are {self.words}.")
        ends = torch.arange(1, classes + 1) * self.words // classes
        start, size = (ends - ends.diff(prepend=ends.new_zeros(1)))[y], ends.diff(prepend=ends.new_zeros(1))[y]
        shape = (y.numel(), self.per_node)
        own = torch.rand(shape, generator=rng, dtype=torch.float64) < self.signal
        # A large integer modulo the number of words: the words of the classes differ in number.
        drawn = torch.randint(2**62, shape, generator=rng)
        word = torch.where(own, start[:, None] + drawn % size[:, None], drawn % self.words)
        return torch.zeros(y.numel(), self.words, dtype=torch.float32).scatter_(1, word, 1.0)


def planted_graph(
    nodes: int = 2000,
    classes: int | Sequence[float] = 5,
    degree: float = 10.0,
    false_edges: float = 0.2,
    *,
    features: Gaussian | Words | None = Gaussian(),  # noqa: B008 - frozen
    seed: int = 0,
) -> Data:
    r"""Returns a random graph of a planted partition, with features that depend on the classes.

    It has round(``nodes`` · ``degree`` / 2) edges, without self-loops or duplicates, and round(``false_edges`` times
    that) of them are false: they join different classes. True edges are divided among the classes in proportion to
    their size, so nodes of small classes have as many as others, and are drawn uniformly within a class. False edges
    are drawn uniformly from all pairs of nodes of different classes. Nodes are in random order. Some may have no edge.

    The same arguments give the same graph. Time :math:`O(N + E \log E)` for nodes and edges, also if all pairs of nodes
    are edges; plus the features.

    Args:
        nodes: The number of nodes.
        classes: The number of classes of equal size, or a sequence with the share of each class.
        degree: The mean degree.
        false_edges: The fraction of edges between different classes. Random edges would have 1 − 1/C of them for C
            equal classes; with more, the graph is heterophilous.
        features: :class:`Gaussian` or :class:`Words`; ``None`` for the identity, of size N × N, which stands for no
            features.
        seed: The seed of the random numbers.
    """
    check_count("nodes", nodes, 2)
    check_number("degree", degree, 0, nodes - 1)
    check_number("false_edges", false_edges, 0, 1)
    check_count("seed", seed, 0, 2**63 - 1)
    if features is not None and not isinstance(features, Gaussian | Words):
        raise ConfigError(f"features must be Gaussian(…), Words(…) or None; it is {features!r}.")
    sizes = _sizes(int(nodes), classes)
    num_edges = round(nodes * degree / 2)
    num_false = round(false_edges * num_edges)
    rng = torch.Generator().manual_seed(int(seed))
    # Nodes are ordered by class while edges are drawn, and shuffled afterwards.
    edges = torch.cat([_within(sizes, num_edges - num_false, rng), _between(sizes, num_false, rng)], dim=1)
    place = torch.randperm(int(nodes), generator=rng)
    y = torch.empty(int(nodes), dtype=torch.int64)
    y[place] = torch.arange(sizes.numel()).repeat_interleave(sizes)
    x = torch.eye(int(nodes), dtype=torch.float32) if features is None else features.draw(y, sizes.numel(), rng)
    return Data(x=x, edge_index=undirected(place[edges], int(nodes)), y=y)


def _sizes(nodes: int, classes: int | Sequence[float]) -> Tensor:
    """Returns the number of nodes of each class."""
    if isinstance(classes, Integral):
        check_count("classes", classes, 1, min(nodes, MAX_CLASSES))
        return _apportion(nodes, torch.ones(int(classes), dtype=torch.float64))
    if isinstance(classes, str) or not isinstance(classes, Sequence) or not 0 < len(classes) <= MAX_CLASSES:
        raise ConfigError(f"classes must be a number of classes or a list of their shares; it is {classes!r}.")
    for at, share in enumerate(classes):
        check_number(f"classes[{at}]", share, 0, 1, "(]")
    if abs(sum(classes) - 1) > 1e-6:
        raise ConfigError(f"The shares of the classes must sum to 1; they sum to {sum(classes):g}.")
    sizes = _apportion(nodes, torch.tensor([float(share) for share in classes], dtype=torch.float64))
    if int(sizes.min()) < 1:
        raise ConfigError(f"Class {int(sizes.argmin())} would have no node; {nodes} nodes are too few for {classes!r}.")
    return sizes


def _apportion(total: int, weight: Tensor) -> Tensor:
    """Returns whole numbers that sum to ``total``, each within 1 of its exact share (largest remainders)."""
    exact = total * weight / weight.sum()
    whole = exact.floor()
    left = total - int(whole.sum())
    whole[(whole - exact).argsort(stable=True)[:left]] += 1
    return whole.long()


def _within(sizes: Tensor, count: int, rng: torch.Generator) -> Tensor:
    """Returns ``count`` distinct pairs of nodes of one class, as (2, count)."""
    start = sizes.cumsum(0) - sizes
    counts = _apportion(count, sizes.double())
    short = counts > sizes * (sizes - 1) // 2
    if bool(short.any()):
        at = int(short.nonzero()[0])
        raise ConfigError(
            f"Class {at} has {int(sizes[at])} nodes, too few for {int(counts[at])} different true edges; "
            "lower the degree or raise false_edges."
        )
    found = [torch.empty(2, 0, dtype=torch.int64)]
    for first, size, wanted in zip(start.tolist(), sizes.tolist(), counts.tolist(), strict=True):

        def pairs(draws: int, first: int = first, size: int = size) -> Tensor:
            code = torch.randint(size * (size - 1), (draws,), generator=rng)
            row, col = code // (size - 1), code % (size - 1)
            return first + torch.stack([row, col + (col >= row)])

        found.append(_distinct(pairs, wanted, size * (size - 1) // 2, int(sizes.sum())))
    return torch.cat(found, dim=1)


def _between(sizes: Tensor, count: int, rng: torch.Generator) -> Tensor:
    """Returns ``count`` distinct pairs of nodes of different classes, as (2, count)."""
    nodes = int(sizes.sum())
    ends, start, others = sizes.cumsum(0), sizes.cumsum(0) - sizes, nodes - sizes
    # Every ordered pair has a number: the pairs of class 0 with the others, then those of class 1, …
    codes = (sizes * others).cumsum(0)
    total = int(codes[-1])
    if count > total // 2:
        raise ConfigError(
            f"There are {total // 2} pairs of nodes of different classes, fewer than {count} false edges; "
            "lower the degree or false_edges."
        )

    def pairs(draws: int) -> Tensor:
        code = torch.randint(total, (draws,), generator=rng)
        own = torch.searchsorted(codes, code, right=True)
        code = code - (codes - sizes * others)[own]
        row, col = start[own] + code // others[own], code % others[own]
        return torch.stack([row, torch.where(col < start[own], col, col - start[own] + ends[own])])

    return _distinct(pairs, count, total // 2, nodes)


def _distinct(pairs: Callable[[int], Tensor], count: int, possible: int, nodes: int) -> Tensor:
    """Returns the first ``count`` distinct pairs, as rows u < v, of a sequence of uniform draws with replacement."""
    keys = torch.empty(0, dtype=torch.int64)
    while keys.numel() < count:
        # Enough for most sets of ``count`` pairs; close to all pairs, almost every draw is a repetition.
        missing, free = count - keys.numel(), possible - keys.numel()
        drawn = pairs(16 + int(1.2 * missing * possible / free))
        keys = torch.cat([keys, drawn.min(0).values * nodes + drawn.max(0).values])
        _, group = keys.unique(return_inverse=True)
        first = torch.full((int(group.max()) + 1,), keys.numel()).scatter_reduce_(
            0, group, torch.arange(keys.numel()), "amin"
        )
        keys = keys[first.sort().values]
    return torch.stack([keys[:count] // nodes, keys[:count] % nodes])


@dataclass(frozen=True)
class Planted:
    """A named instance: a description, the arguments of :func:`planted_graph`, and the rule of its random splits."""

    about: str
    nodes: int
    classes: int | tuple[float, ...]
    degree: float
    false_edges: float
    features: Gaussian | Words | None
    seed: int
    rule: SplitRule = USUAL_RULE

    @property
    def num_edges(self) -> int:
        return round(self.nodes * self.degree / 2)

    @property
    def num_classes(self) -> int:
        return self.classes if isinstance(self.classes, int) else len(self.classes)

    @property
    def num_features(self) -> int:
        if self.features is None:
            return self.nodes
        return self.features.dimension if isinstance(self.features, Gaussian) else self.features.words

    def generate(self) -> Data:
        """Returns the graph."""
        sizes = (self.nodes, self.classes, self.degree, self.false_edges)
        return planted_graph(*sizes, features=self.features, seed=self.seed)


ONE_PERCENT, FIVE_PER_CLASS = SplitRule(train=0.01), SplitRule(train_per_class=5)

# For judging only: never choose a default by these.
JUDGING: dict[str, Planted] = {
    "planted-false-5": Planted("5 % false edges", 2000, 5, 4, 0.05, Gaussian(30, 1.0), 101),
    "planted-false-20": Planted("20 % false edges", 2000, 5, 7, 0.2, Gaussian(30, 1.0), 102),
    "planted-false-50": Planted("50 % false edges", 2000, 5, 10, 0.5, Gaussian(30, 1.0), 103),
    "planted-weak": Planted("weak features", 2400, 6, 8, 0.25, Gaussian(30, 0.4), 104),
    "planted-strong": Planted("strong features", 1600, 6, 8, 0.4, Gaussian(30, 3.0), 105),
    "planted-words": Planted("weak binary features, few false edges", 2200, 10, 6, 0.02, Words(600, 12, 0.1), 106),
    "planted-one-percent": Planted("labels for 1 %", 3000, 4, 5, 0.2, Gaussian(30, 1.2), 107, ONE_PERCENT),
    "planted-five-per-class": Planted(
        "5 labels per class", 2100, 7, 6, 0.15, Words(800, 15, 0.15), 108, FIVE_PER_CLASS
    ),
    "planted-2-classes": Planted("two classes", 1500, 2, 8, 0.25, Gaussian(30, 0.8), 109),
    "planted-20-classes": Planted("twenty classes", 3000, 20, 8, 0.4, Gaussian(30, 1.6), 110),
    "planted-unbalanced": Planted("classes of 70, 20, 10 %", 2000, (0.7, 0.2, 0.1), 9, 0.2, Gaussian(30, 1.0), 111),
    "planted-no-features": Planted("no features", 1500, 4, 6, 0.2, None, 112),
}

# For choosing defaults only: never report these as evidence.
TUNING: dict[str, Planted] = {
    "tuning-dense": Planted("dense features", 1800, 4, 5, 0.1, Gaussian(16, 0.9), 1001),
    "tuning-dense-noisy": Planted("many false edges", 2200, 7, 12, 0.38, Gaussian(48, 1.3), 1002),
    "tuning-dense-sparse": Planted("few edges", 1700, 3, 3, 0.16, Gaussian(64, 1.1), 1003),
    "tuning-dense-few": Planted(
        "8 labels per class", 1900, 8, 7, 0.28, Gaussian(20, 1.8), 1004, SplitRule(train_per_class=8)
    ),
    "tuning-words": Planted("binary features", 2300, 8, 4, 0.12, Words(1000, 20, 0.2), 1005),
    "tuning-words-weak": Planted("weak binary features", 1800, 6, 5, 0.03, Words(400, 10, 0.08), 1006),
    "tuning-words-unbalanced": Planted(
        "binary features, unbalanced", 2000, (0.5, 0.3, 0.12, 0.08), 8, 0.3, Words(700, 18, 0.3), 1007
    ),
    "tuning-heterophilous": Planted("heterophilous", 2000, 3, 13, 0.92, Gaussian(24, 1.2), 1008),
    "tuning-no-features": Planted("no features", 1600, 6, 9, 0.3, None, 1009),
}

PLANTED: dict[str, Planted] = {**JUDGING, **TUNING}
