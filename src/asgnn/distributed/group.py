"""The processes of a training, and the rows and sums that they exchange."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from asgnn.errors import ConfigError
from asgnn.graphs.piece import Borders


@dataclass
class Traffic:
    """What one process has sent so far, in bytes."""

    rows: int = 0
    """Rows that other processes borrow, and gradients of rows that it borrowed itself."""
    sums: int = 0
    """Tensors that are summed over all processes; each counts with its size."""


@dataclass(frozen=True, eq=False)
class Group:
    """The processes of torch's default group, with one tensor at a time.

    Gloo exchanges tensors of the CPU only; those of a GPU are copied there and back.

    Attributes:
        rank: the number of this process.
        size: the number of processes.
        device: the device on which the backend exchanges tensors.
        traffic: what this process has sent.
    """

    rank: int
    size: int
    device: torch.device
    traffic: Traffic = field(default_factory=Traffic)

    @classmethod
    def of_all(cls, device: torch.device) -> Group:
        """All processes; raise unless torch.distributed was initialised with a backend for ``device``."""
        if not dist.is_available() or not dist.is_initialized():
            raise ConfigError(
                "torch.distributed has no process group; call torch.distributed.init_process_group in every process, "
                "or start them with torchrun -m asgnn.distributed."
            )
        gloo = dist.get_backend() == "gloo"
        if not gloo and device.type != "cuda":
            raise ConfigError(f"The backend {dist.get_backend()} needs a GPU for each process; use gloo on a CPU.")
        return cls(dist.get_rank(), dist.get_world_size(), torch.device("cpu") if gloo else device)

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum over all processes, the same bits in each."""
        out = tensor.to(self.device, copy=True).contiguous()
        dist.all_reduce(out)
        self.traffic.sums += out.numel() * out.element_size()
        return out.to(tensor.device)

    def from_first(self, tensor: Tensor) -> Tensor:
        """Return the tensor of the first process; all must have one of its shape and dtype."""
        out = tensor.detach().to(self.device, copy=True).contiguous()
        dist.broadcast(out, 0)
        return out.to(tensor.device)

    def gather(self, value: Any) -> list[Any]:
        """Return a small object of every process, in the order of the processes."""
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value)
        return found

    def exchange(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """Send rows (n, columns), in the order of the processes, and return those that were received."""
        own = rows.to(self.device).contiguous()
        out = own.new_empty(sum(received), *own.shape[1:])
        dist.all_to_all_single(out, own, list(received), list(sent))
        self.traffic.rows += own.numel() * own.element_size()
        return out.to(rows.device)


class HaloExchange:
    """Borrows the rows of neighbours from the processes that own them; a :class:`~asgnn.graphs.piece.Halo`."""

    def __init__(self, group: Group, borders: Borders, device: torch.device) -> None:
        self.group, self.own, self.received = group, borders.nodes.numel(), borders.counts
        self.lent = tuple(rows.to(device) for rows in borders.lent)
        self.sent = tuple(rows.numel() for rows in self.lent)
        self.all_lent = torch.cat(self.lent)

    def extend(self, h: Tensor) -> Tensor:
        out: Tensor = _Extend.apply(h, self)
        return out

    def fill(self, *rows: Tensor) -> None:
        lent = torch.cat([part[: self.own].index_select(0, self.all_lent) for part in rows], dim=1)
        borrowed = self.group.exchange(lent, self.sent, self.received)
        for part, new in zip(rows, borrowed.split([part.size(1) for part in rows], dim=1), strict=True):
            part[self.own :] = new


class _Extend(torch.autograd.Function):
    """Own rows and borrowed rows; backward, the gradients of borrowed rows go to their owners."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, halo: HaloExchange) -> Tensor:
        ctx.halo = halo
        return torch.cat([h, halo.group.exchange(h.index_select(0, halo.all_lent), halo.sent, halo.received)])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        halo = ctx.halo
        found = halo.group.exchange(grad[halo.own :], halo.received, halo.sent)
        out = grad[: halo.own].clone()
        # one process after the other: each borrows a row at most once, so the order of the sums is fixed
        for rows, values in zip(halo.lent, found.split(halo.sent), strict=True):
            out[rows] += values
        return out, None
