"""How much memory the parts of a model need in training, and how they can do with less."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from asgnn.asmp.params import Scheme, half_steps
from asgnn.asmp.passes import of_q, plan_of, segments
from asgnn.kernels import on_cpu

if TYPE_CHECKING:
    from asgnn.models.layers import MLPBlock

ROWS = 2**16  # of the MLP at a time, where that saves memory


@dataclass(frozen=True)
class Saving:
    """What a model does to need less memory in training; each costs a part of the forward pass a second time.

    Attributes:
        rows: the MLP takes this many rows of dense features at a time; ``None`` for all at once.
        recompute: the layers of ASMP are computed again in the backward pass, about √K at a time.
    """

    rows: int | None = None
    recompute: bool = False


@dataclass(frozen=True)
class Sizes:
    """The sizes on which memory depends.

    Attributes:
        nodes, features: N and F.
        entries: of the adjacency, with self-loops.
        stored: the stored entries of x.
        dense: whether x is stored dense.
        bytes: of a number.
        gpu: whether training is on a GPU.
    """

    nodes: int
    features: int
    entries: int
    stored: int
    dense: bool
    bytes: int
    gpu: bool


@dataclass(frozen=True)
class Needed:
    """Bytes that are kept for the backward pass, and bytes that the backward pass needs in addition."""

    kept: int
    backward: int

    def then(self, other: Needed) -> Needed:
        """Of a model that does the one and then the other; their backward passes follow each other."""
        return Needed(self.kept + other.kept, max(self.backward, other.backward))


def of_mlp(block: MLPBlock, sizes: Sizes, rows: int | None) -> Needed:
    """The memory of an MLP; what :class:`~asgnn.models.layers.MLPBlock` keeps is counted one by one."""
    n, b = sizes.nodes, sizes.bytes
    _, *hidden, last = block.widths
    out, widest = n * last * b, max([*hidden, last])
    # On a GPU, ReLU and dropout keep a result each, and dropout its mask.
    kept = sizes.stored + n * sum(hidden) * (2 * b + 1 if sizes.gpu else b)
    backward = (3 if sizes.gpu else 2) * n * widest * b
    if rows is not None and sizes.dense and rows < n:
        return Needed(2 * out, (kept + backward) * rows // n)
    return Needed(kept + out, backward)


def of_asmp(scheme: Scheme, layers: int, channels: int, sizes: Sizes, recompute: bool) -> Needed | None:
    """The memory of ASMP with the kernels of the backends "cpu" and "gpu"; ``None`` if there are none."""
    kernels = None if sizes.gpu else on_cpu("asmp")
    if not sizes.gpu and kernels is None:
        return None
    frozen = scheme.structure == "frozen"
    if not of_q(scheme) and (not frozen or sizes.gpu):
        return None
    width = channels if kernels is None else -(-channels // kernels.WIDTH) * kernels.WIDTH
    n, e, row = sizes.nodes * sizes.bytes, sizes.entries * sizes.bytes, sizes.nodes * width * sizes.bytes
    steps = half_steps(scheme, layers, False)
    count = sum(step.kind == "H" for step in steps)
    if frozen:
        return Needed((2 * count + 2) * row + 3 * e, 3 * row + e)
    passes = len(plan_of(steps, False).passes)
    parts = segments(passes, recompute)

    def results(h: int, z: int) -> int:
        return h * (2 * row + 2 * n) + z * e

    extra = 2 * row + n  # X in the layout of the kernels and the result
    carried = 4 * row + (9 if sizes.gpu else 1) * n + (2 if scheme.penalty == "mcp" else 1) * e
    if len(parts) <= 1:
        return Needed(extra + results(count, len(steps) - count), carried)
    longest = max(len(part) for part in parts) + 1
    per_pass = -(-count // passes)
    starts = (len(parts) - 1) * (row + n + e)
    return Needed(extra + starts, carried + results(longest * per_pass, longest))
