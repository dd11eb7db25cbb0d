"""Layers shared by the models, for one trial or for a batch of trials.

Everything that belongs to a trial is a parameter or buffer, with an additional leading dimension T in a stacked model.
All computations have that dimension: a single model is a stack of one.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from asgnn.errors import ConfigError
from asgnn.graphs.features import Features
from asgnn.kernels import load, on_cpu
from asgnn.settings import MAX_LAYERS, check_count, check_number


class Streams:
    """One stream of random bits per trial, all drawn in one operation; the same on a GPU as on a CPU.

    Element i of draw k of a trial depends on its seed, k and i alone: SplitMix64 applied to a counter (Steele, Lea &
    Flood, 2014). One generator per trial would need one kernel launch per trial, which takes most of an epoch with a
    thousand trials.
    """

    def __init__(self, seeds: Sequence[int], device: torch.device | str = "cpu") -> None:
        self.seeds = mix(torch.tensor(list(seeds), dtype=torch.int64)).to(device)
        # on the device, so that a replayed CUDA graph draws new bits
        self.draws = torch.zeros((), dtype=torch.int64, device=device)
        self.first_row = 0

    def from_row(self, row: int, draws: Tensor) -> Streams:
        """The same streams for the rows of the nodes from ``row`` on, a multiple of 4, after ``draws`` draws."""
        out = copy.copy(self)
        out.draws, out.first_row = draws.clone(), row
        return out

    def first_word(self, shape: Sequence[int]) -> int:
        """The 64-bit word of a draw with which the elements of ``shape`` (rows, …) begin; a word serves four."""
        return self.first_row * math.prod(shape[1:]) // 4

    def bits(self, count: int, first: int = 0) -> Tensor:
        """(T, count) int64, from the word ``first`` of a new draw on."""
        self.draws += 1
        start = mix(self.seeds + self.draws)
        return mix(start.unsqueeze(1) + torch.arange(first + 1, first + count + 1, device=start.device) * GOLDEN)

    def at_least(self, below: Tensor, count: int, first: int = 0) -> Tensor:
        """(T, count) bool: whether 16 random bits, as a signed number, are at least ``below`` (T,) int16."""
        if below.is_cuda:
            self.draws += 1
            mask: Tensor = load("dropout").masks(self.seeds, self.draws, below, count, CONSTANTS, first)
            return mask
        if (kernels := on_cpu("dropout")) is not None:
            self.draws += 1
            drawn: Tensor = kernels.masks(self.seeds, self.draws, below, count, first)
            return drawn
        # four elements per draw; several times faster than torch's bernoulli_ on a CPU
        return self.bits(-(-count // 4), first).view(torch.int16)[:, :count] >= below.unsqueeze(1)

    def mask(self, below: Tensor, shape: tuple[int, ...]) -> Tensor:
        """(T, \\*shape) bool; see :meth:`at_least`."""
        return self.at_least(below, math.prod(shape), self.first_word(shape)).view(below.numel(), *shape)


class RowStreams(Streams):
    """The streams of some nodes of a graph: each gets the bits that it has in the :class:`Streams` of all nodes.

    Args:
        seeds: one for each trial.
        nodes: (n,) the nodes.
        entries: (N + 1,) where the entries of each node begin, for masks of sparse features.
        device: where the bits are drawn.
    """

    def __init__(
        self, seeds: Sequence[int], nodes: Tensor, entries: Tensor | None = None, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(seeds, device)
        self.nodes, self.entries = nodes.to(device), None if entries is None else entries.to(device)

    def mask(self, below: Tensor, shape: tuple[int, ...]) -> Tensor:
        """(T, \\*shape) bool, where ``shape`` is (n, columns), or (entries of the nodes,)."""
        self.draws += 1
        if len(shape) == 1:
            assert self.entries is not None
            first, sizes = self.entries[self.nodes], self.entries.diff()[self.nodes]
        else:
            first, sizes = self.nodes * shape[1], self.nodes.new_full((shape[0],), shape[1])
        count = math.prod(shape)
        end = sizes.cumsum(0)
        if not below.is_cuda and (kernels := on_cpu("dropout")) is not None:
            drawn: Tensor = kernels.masks_at(self.seeds, self.draws, below, first, end, count)
            return drawn.view(below.numel(), *shape)
        place = torch.arange(count, device=first.device) + (first - end + sizes).repeat_interleave(sizes)
        bits = mix(mix(self.seeds + self.draws).unsqueeze(1) + (place // 4 + 1) * GOLDEN)
        return ((bits >> place % 4 * 16).to(torch.int16) >= below.unsqueeze(1)).view(below.numel(), *shape)


def mix(x: Tensor) -> Tensor:
    """SplitMix64's finaliser; torch's shifts copy the sign bit, and the masks remove the copies."""
    x = (x ^ ((x >> 30) & (2**34 - 1))).mul_(FIRST_FACTOR)
    x ^= (x >> 27) & (2**37 - 1)
    x *= SECOND_FACTOR
    x ^= (x >> 31) & (2**33 - 1)
    return x


# SplitMix64's constants as signed numbers
GOLDEN, FIRST_FACTOR, SECOND_FACTOR = (n - 2**64 for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
CONSTANTS = tuple(n % 2**64 for n in (GOLDEN, FIRST_FACTOR, SECOND_FACTOR))

Rng = Streams | None
"""The random streams of the trials; ``None`` for streams seeded by torch's global generator."""


MAX_WEIGHTS = 2**33  # of one layer, 32 GiB; more is a mistake that would otherwise end in an out-of-memory error


def check_depth(num_layers: int, least: int = 0) -> None:
    """Raise unless ``num_layers`` is valid; layers that follow an MLP may be left out altogether."""
    check_count("num_layers", num_layers, least, MAX_LAYERS)


def check_channels(in_channels: int, out_channels: int) -> None:
    """Raise unless the numbers of channels of a layer are valid."""
    check_count("The number of channels", in_channels)
    check_count("The number of channels", out_channels)
    if in_channels * out_channels > MAX_WEIGHTS:
        raise ConfigError(
            f"A layer from {in_channels} to {out_channels} channels exceeds the limit of {MAX_WEIGHTS} weights."
        )


class Linear(nn.Module):
    """X W + b with W stored as (in, out), or (T, in, out) when stacked; initialised like ``torch.nn.Linear``."""

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
        return self.add_bias(product(h, self.weights))


NARROW = 16  # columns, at most, for which the products below are faster


def product(h: Tensor, weights: Tensor) -> Tensor:
    """h (T, N, in) times ``weights`` (T, in, out), differentiable to any order."""
    if h.is_cuda or weights.size(2) > NARROW:
        return h @ weights
    out: Tensor = _Narrow.apply(h, weights)
    return out


class _Narrow(torch.autograd.Function):
    """A product with few columns on a CPU: with both factors read by row, MKL takes half the time, a fifth backward."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(h, weights)
        kernels = on_cpu("narrow")
        if kernels is not None and weights.size(2) <= kernels.WIDTH:
            out: Tensor = kernels.product(h, weights)
            return out
        return torch.bmm(h, weights.transpose(1, 2).contiguous().transpose(1, 2))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        h, weights = ctx.saved_tensors
        to_h = torch.bmm(grad, weights.transpose(1, 2)) if ctx.needs_input_grad[0] else None
        to_weights = torch.bmm(grad.transpose(1, 2), h).transpose(1, 2) if ctx.needs_input_grad[1] else None
        return to_h, to_weights


class Dropout(nn.Module):
    """Dropout with one rate, rounded to a multiple of 1/65536, and one random stream per trial."""

    rate: Tensor

    def __init__(self, rate: float) -> None:
        super().__init__()
        check_number("The dropout rate", rate, 0, 0.999)
        self.register_buffer("rate", torch.tensor(float(rate), dtype=torch.float64), persistent=False)
        self._cache: tuple[Tensor, int, torch.dtype, bool, Tensor, Tensor] | None = None

    def keep(self, shape: tuple[int, ...], rng: Rng, like: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """The mask (T, \\*shape) of kept elements and their scale (T,); ``None`` if nothing is dropped."""
        if not self.training:
            return None, None
        drops, below, scale = self._constants(like.dtype)
        if not drops:
            return None, None
        return self.streams(rng).mask(below, shape), scale

    def streams(self, rng: Rng) -> Streams:
        return rng or Streams(torch.randint(2**62, (self.rate.numel(),)).tolist(), self.rate.device)

    def _constants(self, dtype: torch.dtype) -> tuple[bool, Tensor, Tensor]:
        """Whether any rate is above 0; the int16 thresholds below which elements are dropped (T,); the scales (T,).

        Cached, because reading the rates synchronises with the GPU.
        """
        version = self.rate._version
        if self._cache is None or self._cache[0] is not self.rate or self._cache[1:3] != (version, dtype):
            steps = [round(rate * 2**16) for rate in self.rate.view(-1).tolist()]
            below = torch.tensor([step - 2**15 for step in steps], dtype=torch.int16, device=self.rate.device)
            scale = torch.tensor([2**16 / (2**16 - step) for step in steps], dtype=dtype, device=self.rate.device)
            self._cache = self.rate, version, dtype, any(steps), below, scale
        return self._cache[3:]

    def forward(self, h: Tensor, rng: Rng = None) -> Tensor:
        """``h`` is (T, …)."""
        if h.is_cuda and self.training and not isinstance(rng, RowStreams):
            drops, below, scale = self._constants(h.dtype)
            out: Tensor = _Drop.apply(h, below, scale, self.streams(rng)) if drops else h
            return out
        mask, factor = self.keep(tuple(h.shape[1:]), rng, h)
        if mask is None or factor is None:
            return h
        return h * mask * factor.view(-1, *(1,) * (h.dim() - 1))

    def of_relu(self, h: Tensor, rng: Rng = None) -> Tensor:
        """Dropout of ReLU(h) for ``h`` (T, …)."""
        if not h.is_cuda and self.training and not isinstance(rng, RowStreams) and on_cpu("dropout") is not None:
            drops, below, scale = self._constants(h.dtype)
            if drops:
                out: Tensor = _ReluDrop.apply(h, below, scale, self.streams(rng))
                return out
        return self(h.relu(), rng)


class _ReluDrop(torch.autograd.Function):
    """Dropout of ReLU on a CPU, with the mask drawn in the same loop. The result says where the derivative is not 0."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, below: Tensor, scale: Tensor, rng: Streams) -> Tensor:
        rng.draws += 1
        ctx.kernels = on_cpu("dropout")
        out: Tensor = ctx.kernels.relu_drop(rng.seeds, rng.draws, below, scale, h, rng.first_word(h.shape[1:]))
        ctx.save_for_backward(out, scale)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        out, scale = ctx.saved_tensors
        if torch.is_grad_enabled():  # torch records this for a derivative of this derivative
            return grad * ~(out <= 0) * scale.view(-1, *(1,) * (grad.dim() - 1)), None, None, None
        return ctx.kernels.relu_drop_back(grad, scale, out), None, None, None


class _Drop(torch.autograd.Function):
    """Dropout on a GPU, with the mask drawn in the same kernel."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, below: Tensor, scale: Tensor, rng: Streams) -> Tensor:
        rng.draws += 1
        out: Tensor
        first = rng.first_word(h.shape[1:])
        out, mask = load("dropout").drop(rng.seeds, rng.draws, below, h, scale, CONSTANTS, first)
        ctx.save_for_backward(mask, scale)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        mask, scale = ctx.saved_tensors
        return grad * mask * scale.view(-1, *(1,) * (grad.dim() - 1)), None, None, None


class MLPBlock(nn.Module):
    """Dropout, linear, (ReLU, dropout, linear) …: the first part of ASGNN, APPNP and MLP.

    The first dropout and product use the sparse features.
    """

    def __init__(
        self, in_channels: int, hidden_channels: int, out_channels: int, num_layers: int, dropout: float
    ) -> None:
        super().__init__()
        check_depth(num_layers, least=1)
        widths = [in_channels, *[hidden_channels] * (num_layers - 1), out_channels]
        self.widths = tuple(widths)
        self.layers = nn.ModuleList(Linear(a, b) for a, b in itertools.pairwise(widths))
        self.dropout = Dropout(dropout)

    def forward(self, features: Features, rng: Rng = None, rows: int | None = None) -> Tensor:
        """(T, N, out_channels).

        With ``rows``, dense features are taken this many rows at a time, rounded up to a multiple of 4, and the layers
        in between are computed again in the backward pass: results and gradients are the same up to the rounding of
        the sums over rows, and memory is O(rows · width + N · out_channels).
        """
        if rows is None or rows >= features.num_nodes or features.dense is None or features.requires_grad:
            return self._whole(features, rng)
        rng, rows = self.dropout.streams(rng), -(-rows // 4) * 4
        before, out = rng.draws.clone(), []

        def part(first: int) -> Tensor:
            streams = rng.from_row(first, before)
            found = self._whole(features.range(first, first + rows), streams)
            rng.draws.copy_(streams.draws)  # the same after every part
            return found

        for first in range(0, features.num_nodes, rows):
            # the random numbers of dropout are those of the part, whatever the state of torch's generators
            out.append(checkpoint(part, first, use_reentrant=False, preserve_rng_state=False))
        return torch.cat(out, 1)

    def _whole(self, features: Features, rng: Rng) -> Tensor:
        first, *rest = self.layers
        assert isinstance(first, Linear)
        keep, scale = self.dropout.keep(features.size_of_mask, rng, first.weight)
        h = first.add_bias(features.linear(first.weights, keep, scale))
        for layer in rest:
            h = layer(self.dropout.of_relu(h, rng))
        return h
