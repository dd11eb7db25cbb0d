"""Likelihood-ratio test that limits how far an attack may change the degree distribution."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from asgnn.errors import GraphError
from asgnn.settings import check_count, check_number


class DegreeTest:
    r"""Test whether the degrees before and after a flip follow the same power law (Zügner et al., KDD 2018).

    The power law is fitted to the n degrees :math:`d_i \ge d_{\min}`. With :math:`S = \sum_i \log d_i`, its exponent is
    :math:`\alpha = 1 + n / (S - n \log(d_{\min} - 1/2))` and its score is

    .. math:: \ell = n \log\alpha + n \alpha \log d_{\min} + (\alpha + 1) S.

    The statistic is :math:`\Lambda = -2 \ell_{\mathrm{both}} + 2 (\ell_{\mathrm{clean}} + \ell_{\mathrm{flipped}})`,
    where "both" is the union of the two samples. A flip is allowed if :math:`\Lambda` is below the threshold.

    The sign of the last term of :math:`\ell` is that of the authors' code. In the likelihood of a power law it is
    negative; on degrees like those of Cora the test would then allow about 1.5 times as much drift. All computations
    are in float64.

    Args:
        clean_degree: (N,) degrees of the clean graph.
        d_min: the smallest degree of the power law.
        threshold: upper limit of :math:`\Lambda`; 0.004 is the 5 % quantile of χ² with one degree of freedom.
    """

    def __init__(self, clean_degree: Tensor, *, d_min: int = 2, threshold: float = 0.004) -> None:
        check_count("d_min", d_min, 2)  # for d_min = 1, log(d_min - 1/2) is negative, and so is Λ
        check_number("threshold", threshold, 0, math.inf, "(]")
        self.d_min = d_min
        self.threshold = threshold
        self.clean = self._sums(clean_degree)

    def statistic(self, degree: Tensor) -> float:
        """Return Λ between the clean graph and a graph with degrees ``degree``. Time O(N)."""
        count, log_sum = self._sums(degree)
        return float(self._ratio(torch.tensor(count), torch.tensor(log_sum, dtype=torch.float64)))

    def allowed(self, degree: Tensor, du: Tensor, dv: Tensor, step: Tensor | int) -> Tensor:
        """Return a mask of the flips that keep the statistic below the threshold.

        du, dv and step broadcast to the shape of the mask. The change of n and S depends only on the degrees of the
        two end nodes, so the statistic is computed once for each pair of degrees that occurs and then looked up:
        time O(N + D² + candidates) for D distinct degrees.

        Args:
            degree: (N,) degrees of the current graph.
            du: int64 current degrees of one end node of each candidate.
            dv: int64 current degrees of the other end node.
            step: +1 if the flip adds the edge, -1 if it removes it.
        """
        count, log_sum = self._sums(degree)
        u_values, u_place = _unique_inverse(du)
        v_values, v_place = _unique_inverse(dv)
        tables = []
        for sign in (-1, 1):
            (u_count, u_log), (v_count, v_log) = self._change(u_values, sign), self._change(v_values, sign)
            ratio = self._ratio(count + u_count.unsqueeze(1) + v_count, log_sum + u_log.unsqueeze(1) + v_log)
            tables.append((ratio < self.threshold).flatten())
        adds = (torch.as_tensor(step) > 0).long()
        return torch.cat(tables)[(adds * u_values.numel() + u_place) * v_values.numel() + v_place]

    def _sums(self, degree: Tensor) -> tuple[int, float]:
        """Return n and S."""
        if degree.dim() != 1 or degree.is_floating_point() or degree.is_complex():
            raise GraphError(
                f"The degrees must be whole numbers of shape (N,); they are {degree.dtype} of {tuple(degree.shape)}."
            )
        # summed by degree, not by node: fewer logarithms, and the result does not depend on the order of the nodes
        number = torch.bincount(degree.cpu())[self.d_min :]
        values = torch.arange(self.d_min, self.d_min + number.numel(), dtype=torch.float64)
        return int(number.sum()), float((number * values.log()).sum())

    def _change(self, degree: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Return the change of n and S when a node of each degree gains (+1) or loses (-1) an edge."""
        before, after = degree, degree + step
        counted, counts = before >= self.d_min, after >= self.d_min
        log_before = before.clamp(min=self.d_min).double().log() * counted
        log_after = after.clamp(min=self.d_min).double().log() * counts
        return counts.long() - counted.long(), log_after - log_before

    def _ratio(self, count: Tensor, log_sum: Tensor) -> Tensor:
        clean_count, clean_sum = self.clean
        clean = self._score(torch.tensor(clean_count), torch.tensor(clean_sum, dtype=torch.float64))
        both = self._score(count + clean_count, log_sum + clean_sum)
        return -2 * both + 2 * (self._score(count, log_sum) + clean)

    def _score(self, count: Tensor, log_sum: Tensor) -> Tensor:
        # if no degree reaches d_min, the sample is empty: α is 1 and ℓ is 0
        some = count > 0
        count = count.double()  # first, because an integer tensor times a Python float is float32
        spread = torch.where(some, log_sum - count * math.log(self.d_min - 0.5), 1.0)
        alpha = 1 + count / spread
        score = count * alpha.log() + count * alpha * math.log(self.d_min) + (alpha + 1) * log_sum
        return torch.where(some, score, 0.0)


def _unique_inverse(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sorted distinct values and the index of each entry among them. Time O(entries + max)."""
    table = torch.zeros(int(values.max()) + 1 if values.numel() else 0, dtype=torch.int64)
    table[values.flatten()] = 1
    found = table.nonzero().squeeze(1)
    table[found] = torch.arange(found.numel())
    return found, table[values]
