"""`SequenceRanks`: ranks among which sequences are cut, and what they send each other, with gradients.

Ranks compute the same loss, each from its shards, and gradients of parameters are averaged over the ranks after
backward, as data parallelism does it. So where tensors are shards, gradients are of the sum of all ranks' losses;
where they are whole, of one loss, as in one process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from stratagem.errors import DataError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

CONTEXT = "context"
"""Name of the mesh's dimension along which ranks have shards of the same sequences."""


@dataclass(frozen=True)
class SequenceRanks:
    """The ranks that read one batch and share its sequences out."""

    group: Any
    """Their `torch.distributed` group."""
    rank: int
    """This process among them, which has that shard of a sequence."""
    size: int
    """How many they are."""

    @classmethod
    def of(cls, mesh: DeviceMesh) -> SequenceRanks:
        """Return this process's, in a mesh with a dimension `CONTEXT`."""
        own = mesh[CONTEXT]
        return cls(own.get_group(), own.get_local_rank(), own.size())

    def length(self, whole: int, fewest: int = 1) -> int:
        """Return how many tokens each rank has of a sequence.

        Args:
            whole: tokens of the sequence.
            fewest: tokens that each rank must have.

        Raises:
            DataError: ranks would have unequally many, or too few.
        """
        if whole % self.size or whole < fewest * self.size:
            few = f", at least {fewest * self.size}" if fewest > 1 else ""
            raise DataError(
                f"sequences are cut in {self.size} equal shards, and this one has {whole} tokens: pad "
                f"them to a multiple of {self.size}{few}, or cut them among another number of ranks"
            )
        return whole // self.size

    def shard(self, x: torch.Tensor, dim: int, fewest: int = 1) -> torch.Tensor:
        """Return this rank's shard of `x` along `dim`: a copy where gradients flow through it, else a view.

        Not collective; its backward is.

        Raises:
            DataError: as `length`, or for a nested tensor.
        """
        if x.is_nested:
            raise DataError(
                "context parallelism cuts sequences of one length, and got a nested tensor: construct "
                "torch.nn.TransformerEncoder with enable_nested_tensor=False"
            )
        length = self.length(x.shape[dim], fewest)
        if x.requires_grad and torch.is_grad_enabled():
            shard: torch.Tensor = _Shard.apply(x, dim, length, self)  # type: ignore[no-untyped-call]  # torch has no types for it
            return shard
        return x.narrow(dim, self.rank * length, length)

    def gathered(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        """Return the whole of which each rank has the shard `x` along `dim`. Collective."""
        return torch.cat(list(self.exchanged(x.expand(self.size, *x.shape))), dim)

    def summed(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of all ranks' `x`, the same bits everywhere. Collective."""
        return self.exchanged(x.expand(self.size, *x.shape)).sum(0)

    def exchanged(self, x: torch.Tensor) -> torch.Tensor:
        """Send x[i] to rank i, and return what came: at i, that of rank i. Collective.

        Args:
            x: as many as there are ranks, along dimension 0; the same shape and dtype on every rank.
        """
        exchanged: torch.Tensor = _Exchange.apply(x, self.group)  # type: ignore[no-untyped-call]  # torch has no types for it
        return exchanged


class _Shard(torch.autograd.Function):
    """A shard of what every rank has whole; so every rank has its gradient whole, too."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dim: int, length: int, ranks: SequenceRanks) -> torch.Tensor:
        ctx.dim, ctx.ranks = dim, ranks
        return x.narrow(dim, ranks.rank * length, length).clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return ctx.ranks.gathered(grads[0], ctx.dim) / ctx.ranks.size, None, None, None


class _Exchange(torch.autograd.Function):
    """An all-to-all that is twice differentiable: its gradient is an all-to-all, too."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        received = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        dist.all_to_all_single(received, x.contiguous(), group=group)
        return received

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return _Exchange.apply(grads[0], ctx.group), None  # type: ignore[no-untyped-call]  # torch has no types for it
