"""Columns of features of very different sizes, brought to the size of 1."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# A column with a larger value is scaled: with such columns, trainings diverge or see nothing else.
LARGEST = 10.0
# So is a column that is mostly not 0 and varies by less than this: beside other columns, it is not seen.
SMALLEST = 0.01


@dataclass(frozen=True, eq=False)
class Scaling:
    r"""Maps column f of the features to :math:`(x_f - m_f) / s_f`.

    Attributes:
        mean: (F,) m, in double precision; 0 for columns that are mostly 0, which stay so.
        size: (F,) s, in double precision; 1 for columns that are not scaled.
    """

    mean: Tensor
    size: Tensor

    @staticmethod
    def of(x: Tensor) -> Scaling:
        """The scaling of features (N, F): columns with a size between the two limits are left as they are.

        A column that is mostly 0 is divided by the root mean square of its other values. Any other is standardised.
        Time O(N F).
        """
        if len(x) == 0:
            return Scaling(torch.zeros(x.size(1), dtype=torch.float64), torch.ones(x.size(1), dtype=torch.float64))
        x = x.detach().cpu().double()
        filled = (x != 0).sum(0)
        dense = 2 * filled >= len(x)
        mean = torch.where(dense, x.mean(0), 0.0)
        spread = (x - mean).square().sum(0) / torch.where(dense, len(x), filled).clamp(min=1)
        size = spread.sqrt()
        # a column with one value varies by rounding errors only
        constant = size <= 1e-6 * x.abs().amax(0)
        far = (x.abs().amax(0) > LARGEST) | (dense & ~constant & (size < SMALLEST))
        return Scaling(torch.where(far, mean, 0.0), torch.where(far & ~constant, size, 1.0))

    @property
    def columns(self) -> Tensor:
        """The numbers of the columns that change."""
        return ((self.mean != 0) | (self.size != 1)).nonzero().view(-1)

    def __call__(self, x: Tensor) -> Tensor:
        """The scaled features; ``x`` itself if no column changes."""
        at = self.columns.to(x.device)
        if not at.numel():
            return x
        out = x.clone()
        mean, size = self.mean.to(x.device)[at], self.size.to(x.device)[at]
        out[:, at] = ((x[:, at].double() - mean) / size).to(x.dtype)
        return out
