"""Challenges of single nodes: each target is attacked on its own, with a share of its degree as budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from asgnn.attacks import LocalEvasion, local_evasion, straight_through
from asgnn.attacks.surrogate import Victim
from asgnn.challenge.controls import Memoriser, OnLearnedGraph, as_attacked, frozen_twin
from asgnn.challenge.signs import probe
from asgnn.errors import ConfigError
from asgnn.graphs import Split, labels_of, split_of
from asgnn.models import GCNSVD, NodeClassifier
from asgnn.models.foreign import as_model
from asgnn.progress import Progress
from asgnn.settings import check_count

SHARES = (0.2, 0.5, 1.0, 2.0)  # of the degree (Hou et al., "RUNG", NeurIPS 2024)
TARGETS = 30  # of each of five splits: 150, as many as in RUNG's figures
Pairs = tuple[tuple[int, int], ...]
BATCH = 8  # targets that share one call of the model


@dataclass(frozen=True)
class NodesChallenge:
    """What single nodes withstand.

    Attributes:
        victim: the name of the model.
        shares: budgets as shares of the degree.
        targets: the attacked nodes.
        clean: for each target, whether the model is right on the clean graph.
        fell: for each share and target, the first attack that made the model wrong; "" if none did.
        flips: for each share and target, the flips of that attack as pairs.
    """

    victim: str
    shares: tuple[float, ...]
    targets: tuple[int, ...]
    clean: tuple[bool, ...]
    fell: tuple[tuple[str, ...], ...]
    flips: tuple[tuple[Pairs, ...], ...]

    def accuracy(self, share: float) -> float:
        """Percent of the targets that stay right at a share."""
        fell = self.fell[self.shares.index(share)]
        right = [clean and not attack for clean, attack in zip(self.clean, fell, strict=True)]
        return 100 * sum(right) / len(right)

    @property
    def clean_accuracy(self) -> float:
        return 100 * sum(self.clean) / len(self.clean)


def challenge_nodes(
    model: nn.Module,
    data: Data,
    split: Split | None = None,
    shares: Sequence[float] = SHARES,
    *,
    name: str = "model",
    targets: int = TARGETS,
    pgd_steps: int = 30,
    seed: int = 0,
    device: torch.device | str | None = None,
    progress: Progress | None = None,
) -> NodesChallenge:
    """Attack test nodes one by one (evasion), through the gradient of the model and its relaxations.

    A target has fallen at a share if any of the attacks made it fall with at most that many flips.

    Args:
        model: trained on ``data``.
        data, split, name, device: as for :func:`~asgnn.challenge.challenge_evasion`.
        shares: budgets as shares of the degree, rounded up.
        targets: the number of test nodes, drawn at random with ``seed``; all if there are fewer.
        pgd_steps: steps of gradient ascent after the greedy attack; see :func:`~asgnn.attacks.local_evasion`.
        seed: of the targets and the attacks.
        progress: called after each batch of targets.

    Time: that of one or two attacks; a model without a gradient in the edges is attacked through its answers.
    """
    check_count("targets", targets)
    split = split_of(data, split)
    seen = as_attacked(model, data)
    through = probe(seen, data, split, torch.Generator().manual_seed(seed), device=device).through
    surrogates: dict[str, Victim | None] = {}
    if "gradient" in through:
        surrogates["greedy"] = seen
    if "relaxed" in through:
        surrogates["greedy, relaxed"] = straight_through(seen)
    if (twin := frozen_twin(seen)) is not None:
        surrogates["greedy, twin"] = twin
    nodes = split.test[torch.randperm(split.test.numel(), generator=torch.Generator().manual_seed(seed))[:targets]]
    known = (labels_of(data) >= 0).nonzero().view(-1)
    batch = BATCH if _separable(seen) else 1
    chosen = nodes.sort().values.tolist()
    order = sorted(shares)
    if not order:
        raise ConfigError("At least one share of the degree must be given.")
    clean: tuple[bool, ...] = ()
    fell = [["" for _ in chosen] for _ in order]
    flips: list[list[Pairs]] = [[() for _ in chosen] for _ in order]
    # without a gradient only the random draws are left, which the victim's answers decide between
    for attack, surrogate in surrogates.items() or [("random", None)]:
        found = local_evasion(
            data,
            order,
            known,
            torch.Generator().manual_seed(seed),
            targets=nodes,
            surrogate=surrogate,
            victim=as_model(seen),
            candidates=6 if surrogate is not None else 0,
            draws=2 if surrogate is not None else 8,
            pgd_steps=pgd_steps if surrogate is not None else 0,
            batch=batch,
            device=device,
            progress=progress,
        )
        clean = tuple((found.clean >= 0).tolist())
        _add(found, attack, fell, flips)
    return NodesChallenge(name, tuple(order), tuple(chosen), clean, tuple(map(tuple, fell)), tuple(map(tuple, flips)))


def _add(
    found: LocalEvasion, attack: str, fell: list[list[str]], flips: list[list[tuple[tuple[int, int], ...]]]
) -> None:
    """Write down the targets that an attack made fall; those that fell at a smaller share stay fallen."""
    for target in range(len(found.targets)):
        for share in range(len(found.shares)):
            if fell[share][target] or not bool(found.clean[target] >= 0):
                continue
            if share and fell[share - 1][target]:
                fell[share][target], flips[share][target] = fell[share - 1][target], flips[share - 1][target]
            elif bool(found.margins[target, share] < 0):
                fell[share][target], flips[share][target] = attack, _pairs(found.flips[target][share])


def _pairs(flips: Tensor) -> Pairs:
    return tuple((int(u), int(v)) for u, v in flips.t().tolist())


def _separable(model: nn.Module) -> bool:
    """Whether copies of a graph can share a call: not if the model looks at the whole graph."""
    return isinstance(model, NodeClassifier) and not isinstance(model, GCNSVD | Memoriser | OnLearnedGraph)
