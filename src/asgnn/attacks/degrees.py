"""The likelihood-ratio test that keeps an attack from changing the distribution of the degrees."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from asgnn.errors import ConfigError, GraphError


class DegreeTest:
    r"""Whether the degrees before and after a flip may stem from one power law (Zügner et al., KDD 2018).

    Of the degrees :math:`d_i \ge d_{\min}`, n of them with :math:`S = \sum_i \log d_i`, the power law is fitted by
    :math:`\alpha = 1 + n / (S - n \log(d_{\min} - 1/2))` and has the score

    .. math:: \ell = n \log\alpha + n \alpha \log d_{\min} + (\alpha + 1) S.

    The statistic is :math:`\Lambda = -2 \ell_{\mathrm{both}} + 2 (\ell_{\mathrm{clean}} + \ell_{\mathrm{flipped}})`,
    "both" being the two samples together, and a flip is allowed where :math:`\Lambda` is below the threshold.

    The sign of the last term is that of the authors' code. In the likelihood of a power law it is negative; on degrees
    like Cora's the test would then allow a drift about one and a half times as large. All is computed in float64.

    Args:
        clean_degree: (N,) degrees of the graph that is not to be told apart.
        d_min: where the power law begins.
        threshold: what :math:`\Lambda` must stay below; 0.004 is the 5 % quantile of χ² with one degree of freedom.
    """

    def __init__(self, clean_degree: Tensor, *, d_min: int = 2, threshold: float = 0.004) -> None:
        if d_min < 2:  # at 1, where log(d_min - 1/2) is negative, Λ with this ℓ would be too
            raise ConfigError(f"The power law of the degrees must begin at 2 or above; d_min is {d_min}.")
        if not threshold > 0:
            raise ConfigError(f"The threshold of the degree test must be above 0; it is {threshold}.")
        self.d_min = d_min
        self.threshold = threshold
        self.clean = self._sums(clean_degree)

    def statistic(self, degree: Tensor) -> float:
        """Λ between the clean graph and one with the degrees ``degree``. Time O(N)."""
        count, log_sum = self._sums(degree)
        return float(self._ratio(torch.tensor(count), torch.tensor(log_sum, dtype=torch.float64)))

    def allowed(self, degree: Tensor, du: Tensor, dv: Tensor, step: Tensor | int) -> Tensor:
        """Which flips keep the statistic below the threshold, bool of the shape that du, dv and step broadcast to.

        A flip changes the two sums n and S by the degrees of its ends alone, so the statistic is computed once for
        each pair of degrees that occurs and then looked up: time O(N + D² + candidates), D
        different degrees.

        Args:
            degree: (N,) degrees of the current graph.
            du: the current degrees of one end of each candidate, int64.
            dv: the current degrees of the other end.
            step: +1 where the flip adds the edge, -1 where it removes it.
        """
        count, log_sum = self._sums(degree)
        u_values, u_place = _numbered(du)
        v_values, v_place = _numbered(dv)
        tables = []
        for sign in (-1, 1):
            (u_count, u_log), (v_count, v_log) = self._change(u_values, sign), self._change(v_values, sign)
            ratio = self._ratio(count + u_count.unsqueeze(1) + v_count, log_sum + u_log.unsqueeze(1) + v_log)
            tables.append((ratio < self.threshold).flatten())
        adds = (torch.as_tensor(step) > 0).long()
        return torch.cat(tables)[(adds * u_values.numel() + u_place) * v_values.numel() + v_place]

    def _sums(self, degree: Tensor) -> tuple[int, float]:
        """n and S."""
        if degree.dim() != 1 or degree.is_floating_point() or degree.is_complex():
            raise GraphError(f"The degrees must be whole numbers of shape (N,); they are {degree.dtype}.")
        # by value and not by node: a few hundred logarithms, and the sum does not hang on the order of the nodes
        number = torch.bincount(degree.cpu())[self.d_min :]
        values = torch.arange(self.d_min, self.d_min + number.numel(), dtype=torch.float64)
        return int(number.sum()), float((number * values.log()).sum())

    def _change(self, degree: Tensor, step: int) -> tuple[Tensor, Tensor]:
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
        # where no degree reaches d_min there is no sample: α is 1 and ℓ is 0
        some = count > 0
        count = count.double()  # before the products: whole numbers times a Python float would be float32
        spread = torch.where(some, log_sum - count * math.log(self.d_min - 0.5), 1.0)
        alpha = 1 + count / spread
        score = count * alpha.log() + count * alpha * math.log(self.d_min) + (alpha + 1) * log_sum
        return torch.where(some, score, 0.0)


def _numbered(values: Tensor) -> tuple[Tensor, Tensor]:
    """The different values in order, and for each entry the place of its value among them. Time O(entries + max)."""
    table = torch.zeros(int(values.max()) + 1 if values.numel() else 0, dtype=torch.int64)
    table[values.flatten()] = 1
    found = table.nonzero().squeeze(1)
    table[found] = torch.arange(found.numel())
    return found, table[values]
