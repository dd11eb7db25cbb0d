"""Dropout has the right rate and depends on its stream alone; Linear is initialised like torch's."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from asgnn import kernels
from asgnn.errors import ConfigError
from asgnn.graphs.features import Features
from asgnn.models.layers import Dropout, Linear, MLPBlock, RowStreams, Streams

F64 = torch.float64
LIKE = torch.zeros((), dtype=F64)


def stacked(*rates: float) -> Dropout:
    """A layer with one rate per trial, as in a stacked model."""
    layer = Dropout(0.0)
    layer.rate = torch.tensor(rates, dtype=F64)
    return layer


@pytest.mark.parametrize("rate", [0.001, 0.1, 0.5, 0.8, 0.999])
def test_kept_share_and_mean(rate: float) -> None:
    """The kept share is within five standard deviations of the binomial, and the scale preserves the mean."""
    size = 200_001  # not a multiple of the four elements per draw
    mask, scale = Dropout(rate).keep((size,), Streams([0]), LIKE)
    assert mask is not None
    assert scale is not None
    assert mask.shape == (1, size)
    deviation = math.sqrt(rate * (1 - rate) / size)
    assert float(mask.double().mean()) == pytest.approx(1 - rate, abs=5 * deviation + 2**-17)
    # the rate is rounded to a multiple of 1/65536, and the scale is exact for the rounded rate
    rounded = 1 - 1 / float(scale)
    assert rounded == pytest.approx(rate, abs=2**-17)
    assert rounded * 2**16 == pytest.approx(round(rounded * 2**16), abs=1e-6)
    out = Dropout(rate)(torch.ones(1, size, dtype=F64), Streams([0]))
    assert torch.equal(out, mask * scale)
    assert float(out.mean()) == pytest.approx(1, abs=5 * deviation / (1 - rate))


def test_neighbouring_elements_are_independent() -> None:
    """The four elements of a draw are uncorrelated (within 5/√n), and all positions have the same rate."""
    mask, _ = Dropout(0.5).keep((400_000,), Streams([3]), LIKE)
    assert mask is not None
    parts = mask.view(-1, 4).double()
    assert (parts.mean(0) - 0.5).abs().max() < 5 * 0.5 / math.sqrt(100_000)
    off_diagonal = torch.corrcoef(parts.t()) - torch.eye(4)
    assert off_diagonal.abs().max() < 5 / math.sqrt(100_000)


def test_streams_are_splitmix64() -> None:
    """Equal to a Python implementation, which gives the published outputs for seed 1234567."""

    def mix(x: int) -> int:
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
        return x ^ (x >> 31)

    def published(seed: int, count: int) -> list[int]:
        return [mix((seed + i * 0x9E3779B97F4A7C15) % 2**64) for i in range(1, count + 1)]

    assert published(1234567, 3) == [6457827717110365317, 3203168211198807973, 9817491932198370423]
    seeds, streams = (0, 5, 2**62), Streams((0, 5, 2**62))
    for draw in (1, 2):
        bits = streams.bits(6)
        expected = [published(mix(mix(seed) + draw), 6) for seed in seeds]
        assert [[x % 2**64 for x in row] for row in bits.tolist()] == expected


def test_streams_are_distinct() -> None:
    """Every seed, draw and position has different bits, and half of the bits are set."""
    streams = Streams(range(40))
    drawn = torch.stack([streams.bits(100) for _ in range(25)])
    assert drawn.unique().numel() == drawn.numel()
    shares = torch.stack([((drawn >> bit) & 1).double().mean() for bit in range(64)])
    assert (shares - 0.5).abs().max() < 5 * 0.5 / math.sqrt(drawn.numel())


@pytest.mark.parametrize("shape", [(1,), (7,), (3, 5), (0,), (2, 0)])
def test_every_shape(shape: tuple[int, ...]) -> None:
    h = torch.ones(2, *shape)
    assert stacked(0.3, 0.6)(h, Streams([0, 1])).shape == h.shape


def test_dropout_depends_on_the_seed_alone() -> None:
    h, layer = torch.ones(1, 50, 7), Dropout(0.5)
    state = torch.get_rng_state()
    assert torch.equal(layer(h, Streams([4])), layer(h, Streams([4])))
    assert not torch.equal(layer(h, Streams([4])), layer(h, Streams([5])))
    rng = Streams([4])
    assert not torch.equal(layer(h, rng), layer(h, rng))  # every call draws new bits
    assert torch.equal(torch.get_rng_state(), state)


def test_without_a_generator_the_global_one_is_used() -> None:
    h, layer = torch.ones(1, 50), Dropout(0.5)
    with torch.random.fork_rng():
        torch.manual_seed(8)
        first = layer(h)
        torch.manual_seed(8)
        assert torch.equal(layer(h), first)


@pytest.mark.parametrize("shape", [(33,), (5, 7)])
def test_dropout_of_a_trial_does_not_depend_on_the_others(shape: tuple[int, ...]) -> None:
    rates, seeds = (0.2, 0.0, 0.9, 0.5), (3, 1, 4, 1)
    h = torch.randn(4, *shape, generator=torch.Generator().manual_seed(0), dtype=F64)
    together = stacked(*rates)(h, Streams(seeds))
    for i, (rate, seed) in enumerate(zip(rates, seeds, strict=True)):
        assert torch.equal(together[i : i + 1], Dropout(rate)(h[i : i + 1], Streams([seed])))
    backwards = stacked(*rates[::-1])(h.flip(0), Streams(seeds[::-1]))
    assert torch.equal(backwards.flip(0), together)


def test_each_trial_has_its_own_rate() -> None:
    rates = (0.1, 0.4, 0.95)
    mask, scale = stacked(*rates).keep((100_000,), Streams([0, 1, 2]), LIKE)
    assert mask is not None
    assert scale is not None
    for kept, factor, rate in zip(mask.double().mean(1), scale, rates, strict=True):
        assert float(kept) == pytest.approx(1 - rate, abs=0.01)
        assert float(factor) == pytest.approx(1 / (1 - rate), rel=1e-3)


@pytest.mark.parametrize("layer", [Dropout(0.7).eval(), Dropout(0.0), stacked(0.0, 0.0)], ids=["eval", "0", "0, 0"])
def test_no_dropout_in_evaluation_or_at_rate_zero(layer: Dropout) -> None:
    h = torch.randn(layer.rate.numel(), 9)
    rng = Streams(range(layer.rate.numel()))
    assert layer(h, rng) is h
    assert rng.draws == 0


def test_gradient_is_the_mask() -> None:
    h = torch.randn(1, 100, requires_grad=True)
    out = Dropout(0.5)(h, Streams([2]))
    (grad,) = torch.autograd.grad(out.sum(), h)
    torch.testing.assert_close(grad * h, out)


@pytest.mark.parametrize("rate", [-0.1, 1.0, 0.9999, 7, math.nan, -math.inf])
def test_invalid_rate_raises(rate: float) -> None:
    with pytest.raises(ConfigError, match=r"dropout rate must be a number in \[0, 0\.999\]; it is .*\.$"):
        Dropout(rate)


@pytest.mark.parametrize(("into", "out"), [(16, 5), (400, 3)])
def test_linear_is_initialised_like_torch(into: int, out: int) -> None:
    """Both are uniform within ±1/√in; ours depends on the generator alone."""
    ours, peer = Linear(into, out), torch.nn.Linear(into, out)
    bound = 1 / math.sqrt(into)
    for module, parameter in ((ours, ours.weight), (peer, peer.weight), (ours, ours.bias), (peer, peer.bias)):
        assert parameter is not None
        draws = []
        for _ in range(200):
            module.reset_parameters()
            draws.append(parameter.detach().flatten().clone())
        values = torch.cat(draws)
        assert values.abs().max() <= bound
        assert float(values.std()) == pytest.approx(bound / math.sqrt(3), rel=0.1)
    ours.reset_parameters(torch.Generator().manual_seed(1))
    start = ours.weight.detach().clone()
    ours.reset_parameters(torch.Generator().manual_seed(1))
    assert torch.equal(ours.weight, start)


def test_linear_is_the_product() -> None:
    layer, bare = Linear(4, 3), Linear(4, 3, bias=False)
    h = torch.randn(1, 6, 4)
    assert layer.bias is not None
    assert bare.bias is None
    torch.testing.assert_close(layer(h)[0], torch.addmm(layer.bias, h[0], layer.weight))
    torch.testing.assert_close(bare(h)[0], h[0] @ bare.weight)


@pytest.mark.parametrize("x", [torch.zeros(5, 30), torch.eye(30)], ids=["no words", "sparse"])
def test_dropout_of_sparse_features_in_the_block(x: Tensor) -> None:
    block = MLPBlock(30, 4, 3, 1, 0.5)
    out = block(Features.of(x), Streams([0]))
    layer = block.layers[0]
    assert isinstance(layer, Linear)
    kept, scale = block.dropout.keep(Features.of(x).size_of_mask, Streams([0]), x)
    assert scale is not None
    dropped = x.clone()
    dropped[x != 0] *= (kept * scale).view(-1)
    torch.testing.assert_close(out[0], dropped @ layer.weight + layer.bias)


@pytest.mark.parametrize("numba", [True, False])
@pytest.mark.parametrize("width", [0, 1, 3, 4, 9])
def test_rows_draw_what_the_whole_draws_for_them(width: int, numba: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "USE_NUMBA", numba)
    below, nodes = torch.tensor([-9000, 12_000], dtype=torch.int16), torch.tensor([0, 3, 4, 8])
    entries = torch.tensor([0, 3, 3, 5, 9, 10, 12, 14, 20, 27, 28])
    whole, some = Streams([1, 2]), RowStreams([1, 2], nodes, entries)
    for _ in range(2):  # every draw is another one
        assert torch.equal(some.mask(below, (4, width)), whole.mask(below, (10, width))[:, nodes])
        kept = torch.cat([torch.arange(entries[node], entries[node + 1]) for node in nodes])
        assert torch.equal(some.mask(below, (kept.numel(),)), whole.mask(below, (28,))[:, kept])


BAD = {
    "no layers": ("num_layers must be a whole number from 1 to .*; it is 0", lambda: MLPBlock(3, 3, 3, 0, 0.5)),
    "no inputs": ("channels must be a whole number from 1 .*; it is 0", lambda: Linear(0, 3)),
    "no outputs": ("channels must be a whole number from 1 .*; it is 0", lambda: Linear(3, 0)),
    "negative width": ("channels must be a whole number from 1 .*; it is -2", lambda: MLPBlock(3, -2, 3, 2, 0.5)),
}


@pytest.mark.parametrize("case", BAD)
def test_invalid_sizes_raise(case: str) -> None:
    message, build = BAD[case]
    with pytest.raises(ConfigError, match=message) as caught:
        build()
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize("numba", [True, False])
@pytest.mark.parametrize("rows", [4, 30, 64, 100])
def test_rows_in_parts_equal_all_at_once(rows: int, numba: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same masks of dropout, whose draws go on from the same place."""
    monkeypatch.setattr(kernels, "USE_NUMBA", numba)
    block = MLPBlock(7, 6, 3, 3, 0.4).double()
    features = Features.of(torch.randn(90, 7, dtype=F64, generator=torch.Generator().manual_seed(0)))
    found = []
    for part in (None, rows):
        rng = Streams([5])
        out = block(features, rng, part)
        grads = torch.autograd.grad(out.pow(2).sum(), block.parameters())
        found.append((out, *grads, rng.bits(2)))
    for whole, parts in zip(*found, strict=True):
        torch.testing.assert_close(parts, whole, rtol=1e-12, atol=1e-12)
    block.eval()
    torch.testing.assert_close(block(features, None, rows), block(features), rtol=1e-12, atol=1e-12)
