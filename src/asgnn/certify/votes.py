"""Votes of which a flip can change only one, and the number of flips that cannot change their winner."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.data import Data

from asgnn.errors import ConfigError, GraphError
from asgnn.graphs import labels_of
from asgnn.graphs.checks import node_numbers
from asgnn.settings import check_count

ANY_NUMBER = 2**31 - 1
"""The radius of a prediction that no number of flips can change."""


@dataclass(frozen=True, eq=False, repr=False)
class Certificate:
    """Predictions, and how many flips of edges cannot change each of them; tensors on the CPU.

    Attributes:
        votes: (N, C) int64, the votes of each class, the anchor's included.
        prediction: (N,) the class with the most votes; of equal ones the smaller class.
        radius: (N,) the largest number of flips that cannot change the prediction; :data:`ANY_NUMBER` if none can.
        floor: (N,) the class that the edge-free model predicts, whatever the edges are.
        seconds: the time of all trainings.
    """

    votes: Tensor
    prediction: Tensor
    radius: Tensor
    floor: Tensor
    seconds: float

    def certified_accuracy(self, data: Data, nodes: Tensor, radii: Iterable[int]) -> dict[int, float]:
        """Return, for each number of flips, the share of nodes that are right and stay so under that many flips.

        Args:
            data: the graph, for its labels.
            nodes: node indices, or a mask over all nodes; nodes without a label are left out.
            radii: numbers of flips.
        """
        right, nodes = _right(self.prediction, data, nodes)
        held, found = self.radius[nodes], {}
        for flips in radii:
            check_count("A number of flips", flips, 0)
            found[flips] = float((right & (held >= flips)).double().mean())
        return found

    def floor_accuracy(self, data: Data, nodes: Tensor) -> float:
        """Return the accuracy of the edge-free model, which holds at every number of flips."""
        return share_right(self.floor, data, nodes)

    def __repr__(self) -> str:
        median = int(self.radius.median())
        return f"Certificate({len(self.radius)} nodes, median radius {median}, {self.seconds:.1f} s)"


@dataclass(frozen=True, eq=False, repr=False)
class Ballot:
    """Votes of which a flip can change only one, before an anchor is added; tensors on the CPU.

    Attributes:
        votes: (N, C) int64, the votes of each class.
        silent: (N,) int64, the number of voters that do not vote; ``None`` if every flip adds or removes one vote.
        floor: (N,) the class that the edge-free model predicts.
        seconds: the time of all trainings.
    """

    votes: Tensor
    silent: Tensor | None
    floor: Tensor
    seconds: float

    def certificate(self, anchor: int = 0) -> Certificate:
        """Return the certificate with ``anchor`` further votes for the class that the edge-free model predicts.

        No flip changes these votes. The larger ``anchor``, the more flips the edge-free prediction withstands and the
        less the edges count. Choose it on validation nodes.
        """
        check_count("anchor", anchor, 0)
        fixed = anchor * F.one_hot(self.floor, self.votes.size(1))
        totals = self.votes + fixed
        radius = radius_of(self.votes, self.silent, fixed)
        return Certificate(totals, totals.argmax(1), radius, self.floor, self.seconds)

    def choose_anchor(self, data: Data, nodes: Tensor, radii: Sequence[int]) -> int:
        """Return the anchor with the largest mean certified accuracy over ``radii`` on ``nodes``.

        Of equal ones, it is the one with which the predictions of most nodes of the graph withstand the flips, and then
        the least one. Use validation nodes. The certificate holds for the chosen number: an attacker who changes the
        edges of these nodes may make another one look best, so fix the number beforehand where that matters.

        Time O(N C · (largest number of votes + largest radius)).
        """
        if not radii:
            raise ConfigError("The choice of an anchor needs at least one number of flips.")
        voters = self.votes.sum(1) + (0 if self.silent is None else self.silent)
        enough = int(voters.max()) + max(radii) + 1  # with it the edge-free prediction withstands all the flips

        def merit(anchor: int) -> tuple[float, int]:
            found = self.certificate(anchor)
            held = sum(int((found.radius >= flips).sum()) for flips in radii)
            return sum(found.certified_accuracy(data, nodes, radii).values()), held

        return max(range(enough + 1), key=merit)

    def __repr__(self) -> str:
        return f"Ballot({len(self.votes)} nodes, {self.seconds:.1f} s)"


def radius_of(votes: Tensor, silent: Tensor | None, fixed: Tensor) -> Tensor:
    """Return for each node the largest number of flips that cannot change the winner of ``votes + fixed``, (N,) int64.

    The winner a stays ahead of class b as long as its lead m, the difference of their votes less 1 if b < a, is not
    negative. With a fixed number of voters, a flip changes one vote. That costs 2 of the lead if the vote was for a,
    and 1 if it was for a third class or silent. With n votes for a and o others, the largest number is ⌊m/2⌋ if
    m < 2n, n + (m − 2n) if that is less than n + o, and else any number. If a flip adds or removes a vote instead, it
    costs 1, and the largest number is m.

    Args:
        votes: (N, C) the votes that flips can change.
        silent: (N,) how many voters are silent; ``None`` if flips add and remove votes.
        fixed: (N, C) the votes that no flip can change.

    Time and memory O(N C).
    """
    if votes.dim() != 2 or votes.size(1) < 2:
        raise ConfigError("Votes must have shape (N, C) with at least two classes.")
    totals = votes + fixed
    winner = totals.argmax(1, keepdim=True)  # the first of equal values
    rival = torch.arange(votes.size(1)).expand_as(votes)
    lead = totals.gather(1, winner) - totals - (rival < winner).long()
    found = lead
    if silent is not None:
        of_winner = votes.gather(1, winner)
        others = votes.sum(1, keepdim=True) + silent.unsqueeze(1) - of_winner - votes
        beyond = lead - 2 * of_winner
        found = torch.where(beyond < 0, lead.div(2, rounding_mode="floor"), of_winner + beyond)
        found = torch.where(beyond >= others, ANY_NUMBER, found)
    return found.masked_fill(rival == winner, ANY_NUMBER).amin(1)


def share_right(prediction: Tensor, data: Data, nodes: Tensor) -> float:
    """Return the share of the labelled nodes of ``nodes`` whose class (N,) is predicted right."""
    return float(_right(prediction, data, nodes)[0].double().mean())


def _right(prediction: Tensor, data: Data, nodes: Tensor) -> tuple[Tensor, Tensor]:
    """Whether the prediction is right for each labelled node of ``nodes``, and these nodes."""
    y = labels_of(data).cpu()
    nodes = node_numbers(nodes, y.numel()).cpu()
    nodes = nodes[y[nodes] >= 0]
    if nodes.numel() == 0:
        raise GraphError("None of the nodes has a label, so the certified accuracy is undefined.")
    return prediction[nodes] == y[nodes], nodes
