"""Columns of features of very different sizes, brought to the size of 1."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# A column with a larger value is scaled: with such columns, trainings diverge or see nothing else.
LARGEST = 10.0
# So is a column that is mostly not 0 and varies by less than this: beside other columns, it is not seen.
SMALLEST = 0.01
BLOCK = 2**22  # entries that are looked at together


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
        Sparse tensors are left as they are. Time O(N F), memory O(N).
        """
        if len(x) == 0 or x.layout != torch.strided:
            return Scaling.none(x.size(1))
        parts = [_of(part.detach().cpu().double()) for part in x.split(max(1, BLOCK // len(x)), dim=1)]
        return Scaling(*(torch.cat(columns) for columns in zip(*parts, strict=True)))

    @staticmethod
    def none(columns: int) -> Scaling:
        """The scaling that changes nothing."""
        return Scaling(torch.zeros(columns, dtype=torch.float64), torch.ones(columns, dtype=torch.float64))

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


def _of(x: Tensor) -> tuple[Tensor, Tensor]:
    """The mean and the size of each column."""
    filled = (x != 0).sum(0)
    dense = 2 * filled >= len(x)
    mean = torch.where(dense, x.mean(0), 0.0)
    size = ((x - mean).square().sum(0) / torch.where(dense, len(x), filled).clamp(min=1)).sqrt()
    largest = x.abs().amax(0)
    constant = size <= 1e-6 * largest  # it varies by rounding errors only
    far = (largest > LARGEST) | (dense & ~constant & (size < SMALLEST))
    return torch.where(far, mean, 0.0), torch.where(far & ~constant, size, 1.0)
