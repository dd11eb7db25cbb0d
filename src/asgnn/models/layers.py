"""The layers shared by the models, each for one trial or for many side by side.

Whatever belongs to a trial is a parameter or a buffer; in a stacked model each has one more leading dimension T.
Inside, everything has that dimension: a single model is a stack of one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from asgnn.errors import ConfigError
from asgnn.graphs.features import Features

Rng = Sequence[torch.Generator] | None
"""One generator a trial, or ``None`` for torch's global one."""


def check_depth(num_layers: int) -> None:
    """For models whose layers follow an MLP or a linear map, so that none at all is a model, too."""
    if num_layers < 0:
        raise ConfigError(f"The number of layers must be 0 or more; it is {num_layers}.")


class Linear(nn.Module):
    """X W + b with W stored as (in, out), or (T, in, out) when stacked; starts as ``torch.nn.Linear`` does."""

    def __init__(self, in_channels: int, out_channels: int, bias: bool = True) -> None:
        super().__init__()
        if min(in_channels, out_channels) < 1:
            raise ConfigError(
                f"A layer has at least one channel on either side; {in_channels} and {out_channels} were asked for."
            )
        self.in_channels, self.out_channels = in_channels, out_channels
        self.weight = nn.Parameter(torch.empty(in_channels, out_channels))
        self.bias = nn.Parameter(torch.empty(out_channels)) if bias else None
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        bound = 1 / math.sqrt(self.in_channels)
        with torch.no_grad():
            self.weight.uniform_(-bound, bound, generator=generator)
            if self.bias is not None:
                self.bias.uniform_(-bound, bound, generator=generator)

    @property
    def weights(self) -> Tensor:
        """(T, in, out)."""
        return self.weight.view(-1, self.in_channels, self.out_channels)

    def add_bias(self, h: Tensor) -> Tensor:
        return h if self.bias is None else h + self.bias.view(-1, 1, self.out_channels)

    def forward(self, h: Tensor) -> Tensor:
        return self.add_bias(h @ self.weights)


class Dropout(nn.Module):
    """Dropout with a rate of its own, to the nearest 1/65536, and a generator of its own for each trial."""

    rate: Tensor

    def __init__(self, rate: float) -> None:
        super().__init__()
        if not 0 <= rate <= 0.999:
            raise ConfigError(f"The dropout rate must lie between 0 and 0.999; it is {rate}.")
        self.register_buffer("rate", torch.tensor(float(rate), dtype=torch.float64), persistent=False)

    def keep(self, shape: tuple[int, ...], rng: Rng, like: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """A mask (T, \\*shape) of what is kept and the factor (T,) on it; ``None`` where nothing is dropped."""
        rates = self.rate.view(-1).tolist()
        if not self.training or not any(rates):
            return None, None
        size = math.prod(shape)
        # 16 random bits an element, four elements to a draw: several times faster than torch's bernoulli_ on a CPU.
        bits = torch.empty(len(rates), -(-size // 4), dtype=torch.int64, device=like.device)
        for trial, row in enumerate(bits):
            row.random_(-(2**63), None, generator=None if rng is None else rng[trial])
        steps = [round(rate * 2**16) for rate in rates]
        below = torch.tensor([step - 2**15 for step in steps], dtype=torch.int16, device=like.device)
        mask = (bits.view(torch.int16)[:, :size] >= below.unsqueeze(1)).view(len(rates), *shape)
        return mask, torch.tensor([2**16 / (2**16 - step) for step in steps], dtype=like.dtype, device=like.device)

    def forward(self, h: Tensor, rng: Rng = None) -> Tensor:
        """``h`` is (T, …)."""
        mask, scale = self.keep(tuple(h.shape[1:]), rng, h)
        if mask is None or scale is None:
            return h
        return h * mask * scale.view(-1, *(1,) * (h.dim() - 1))


class MLPBlock(nn.Module):
    """Dropout, linear, (ReLU, dropout, linear) …: what ASGNN, APPNP and MLP begin with.

    The first dropout and product run on the sparse features.
    """

    def __init__(
        self, in_channels: int, hidden_channels: int, out_channels: int, num_layers: int, dropout: float
    ) -> None:
        super().__init__()
        if num_layers < 1:
            raise ConfigError(f"An MLP has at least one layer; {num_layers} were asked for.")
        widths = [in_channels, *[hidden_channels] * (num_layers - 1), out_channels]
        self.layers = nn.ModuleList(Linear(a, b) for a, b in itertools.pairwise(widths))
        self.dropout = Dropout(dropout)

    def forward(self, features: Features, rng: Rng = None) -> Tensor:
        first, *rest = self.layers
        assert isinstance(first, Linear)
        keep, scale = self.dropout.keep(features.size_of_mask, rng, first.weight)
        h = first.add_bias(features.linear(first.weights, keep, scale))
        for layer in rest:
            h = layer(self.dropout(h.relu(), rng))
        return h
