"""The layers shared by the models, each for one trial or for many side by side.

Whatever belongs to a trial is a parameter or a buffer; in a stacked model each has one more leading dimension T.
Inside, everything has that dimension: a single model is a stack of one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from asgnn.errors import ConfigError
from asgnn.graphs.features import Features
from asgnn.kernels import load
from asgnn.settings import check_count


class Streams:
    """A stream of random bits for each trial, all drawn at once, on a GPU the same as on a CPU.

    Element i of draw k of a trial is a function of its seed, k and i: SplitMix64's mixing of a counter (Steele, Lea &
    Flood, 2014). A generator for each trial would take a launch for each of them, which for a thousand trials is most
    of the time of an epoch.
    """

    def __init__(self, seeds: Sequence[int], device: torch.device | str = "cpu") -> None:
        self.seeds = _mix(torch.tensor(list(seeds), dtype=torch.int64)).to(device)
        # counted on the device, so that what was captured in a CUDA graph draws on when it is repeated
        self.draws = torch.zeros((), dtype=torch.int64, device=device)

    def bits(self, count: int) -> Tensor:
        """(T, count) int64."""
        self.draws += 1
        start = _mix(self.seeds + self.draws)
        return _mix(start.unsqueeze(1) + torch.arange(1, count + 1, device=start.device) * GOLDEN)

    def at_least(self, below: Tensor, count: int) -> Tensor:
        """(T, count) bool: for 16 random bits an element, as a signed number, whether they are not below (T,) int16."""
        if below.is_cuda:
            self.draws += 1
            found: Tensor = load("dropout").masks(self.seeds, self.draws, below, count, CONSTANTS)
            return found
        # four elements to a draw: several times faster than torch's bernoulli_ on a CPU
        return self.bits(-(-count // 4)).view(torch.int16)[:, :count] >= below.unsqueeze(1)


def _mix(x: Tensor) -> Tensor:
    """SplitMix64's finaliser; torch wraps products around and shifts with the sign, which the masks take off."""
    x = (x ^ ((x >> 30) & (2**34 - 1))).mul_(FIRST_FACTOR)
    x ^= (x >> 27) & (2**37 - 1)
    x *= SECOND_FACTOR
    x ^= (x >> 31) & (2**33 - 1)
    return x


# SplitMix64's constants as signed numbers
GOLDEN, FIRST_FACTOR, SECOND_FACTOR = (n - 2**64 for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
CONSTANTS = tuple(n % 2**64 for n in (GOLDEN, FIRST_FACTOR, SECOND_FACTOR))

Rng = Streams | None
"""The trials' random streams, or ``None`` for ones that torch's global generator starts."""


MAX_LAYERS = 100_000
MAX_WEIGHTS = 2**33  # of one layer: 32 GiB; a larger one is a mistake that would show as an out-of-memory error


def check_depth(num_layers: int, least: int = 0) -> None:
    """Raises unless a model can have so many layers; where they follow an MLP, none at all is a model too."""
    check_count("num_layers", num_layers, least, MAX_LAYERS)


def check_channels(in_channels: int, out_channels: int) -> None:
    """Raises unless a layer can have so many channels on either side."""
    check_count("The number of channels", in_channels)
    check_count("The number of channels", out_channels)
    if in_channels * out_channels > MAX_WEIGHTS:
        raise ConfigError(
            f"A layer from {in_channels} to {out_channels} channels has more than the {MAX_WEIGHTS} weights allowed."
        )


class Linear(nn.Module):
    """X W + b with W stored as (in, out), or (T, in, out) when stacked; starts as ``torch.nn.Linear`` does."""

    def __init__(self, in_channels: int, out_channels: int, bias: bool = True) -> None:
        super().__init__()
        check_channels(in_channels, out_channels)
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
    """Dropout with a rate of its own, to the nearest 1/65536, and a random stream of its own for each trial."""

    rate: Tensor

    def __init__(self, rate: float) -> None:
        super().__init__()
        if not isinstance(rate, Real) or not 0 <= rate <= 0.999:
            raise ConfigError(f"The dropout rate must lie between 0 and 0.999; it is {rate!r}.")
        self.register_buffer("rate", torch.tensor(float(rate), dtype=torch.float64), persistent=False)
        self._known: tuple[Tensor, int, torch.dtype, bool, Tensor, Tensor] | None = None

    def keep(self, shape: tuple[int, ...], rng: Rng, like: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """A mask (T, \\*shape) of what is kept and the factor (T,) on it; ``None`` where nothing is dropped."""
        if not self.training:
            return None, None
        drops, below, scale = self._read(like.dtype)
        if not drops:
            return None, None
        return self._streams(rng).at_least(below, math.prod(shape)).view(below.numel(), *shape), scale

    def _streams(self, rng: Rng) -> Streams:
        return rng or Streams(torch.randint(2**62, (self.rate.numel(),)).tolist(), self.rate.device)

    def _read(self, dtype: torch.dtype) -> tuple[bool, Tensor, Tensor]:
        """Whether there is a rate above 0; the steps of 1/65536 below which is dropped (T,); the factors (T,).

        Read from the rates once: on a GPU, to look at them is to wait for it.
        """
        version = self.rate._version
        if self._known is None or self._known[0] is not self.rate or self._known[1:3] != (version, dtype):
            steps = [round(rate * 2**16) for rate in self.rate.view(-1).tolist()]
            below = torch.tensor([step - 2**15 for step in steps], dtype=torch.int16, device=self.rate.device)
            scale = torch.tensor([2**16 / (2**16 - step) for step in steps], dtype=dtype, device=self.rate.device)
            self._known = self.rate, version, dtype, any(steps), below, scale
        return self._known[3:]

    def forward(self, h: Tensor, rng: Rng = None) -> Tensor:
        """``h`` is (T, …)."""
        if h.is_cuda and self.training:
            drops, below, scale = self._read(h.dtype)
            out: Tensor = _Drop.apply(h, below, scale, self._streams(rng)) if drops else h
            return out
        mask, factor = self.keep(tuple(h.shape[1:]), rng, h)
        if mask is None or factor is None:
            return h
        return h * mask * factor.view(-1, *(1,) * (h.dim() - 1))


class _Drop(torch.autograd.Function):
    """Dropout with its mask drawn where it is used, on a GPU."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, below: Tensor, scale: Tensor, rng: Streams) -> Tensor:
        rng.draws += 1
        out: Tensor
        out, mask = load("dropout").drop(rng.seeds, rng.draws, below, h, scale, CONSTANTS)
        ctx.save_for_backward(mask, scale)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        mask, scale = ctx.saved_tensors
        return grad * mask * scale.view(-1, *(1,) * (grad.dim() - 1)), None, None, None


class MLPBlock(nn.Module):
    """Dropout, linear, (ReLU, dropout, linear) …: what ASGNN, APPNP and MLP begin with.

    The first dropout and product run on the sparse features.
    """

    def __init__(
        self, in_channels: int, hidden_channels: int, out_channels: int, num_layers: int, dropout: float
    ) -> None:
        super().__init__()
        check_depth(num_layers, least=1)
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
