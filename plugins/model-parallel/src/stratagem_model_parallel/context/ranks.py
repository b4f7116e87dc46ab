"""`SequenceRanks`: the ranks among which sequences are sharded, and their differentiable collectives.

Each rank computes the same loss, from its shards. Gradients of parameters are averaged over the ranks after backward,
as in data parallelism. So gradients of sharded tensors are those of the sum of all ranks' losses; gradients of full
tensors are those of one loss, as in a single process.
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
"""Name of the mesh dimension along which ranks have shards of the same sequences."""


@dataclass(frozen=True)
class SequenceRanks:
    """The ranks that read the same batch and shard its sequences."""

    group: Any
    """Their `torch.distributed` group."""
    rank: int
    """This process's rank among them, and the index of its shard."""
    size: int
    """Number of ranks."""

    @classmethod
    def of(cls, mesh: DeviceMesh) -> SequenceRanks:
        """Return the ranks that share sequences with this process, in a mesh with a dimension `CONTEXT`."""
        own = mesh[CONTEXT]
        return cls(own.get_group(), own.get_local_rank(), own.size())

    def length(self, whole: int, fewest: int = 1) -> int:
        """Return the number of tokens of a sequence on each rank.

        Args:
            whole: tokens of the sequence.
            fewest: tokens that each rank must have.

        Raises:
            DataError: ranks would have unequal numbers of tokens, or too few.
        """
        if whole % self.size or whole < fewest * self.size:
            few = f", at least {fewest * self.size}" if fewest > 1 else ""
            raise DataError(
                f"sequences are cut in {self.size} equal shards, and this one has {whole} tokens: pad "
                f"them to a multiple of {self.size}{few}, or cut them among another number of ranks"
            )
        return whole // self.size

    def shard(self, x: torch.Tensor, dim: int, fewest: int = 1) -> torch.Tensor:
        """Return this rank's shard of `x` along `dim`: a copy if gradients flow through it, else a view.

        Not collective, but its backward is.

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
        """Gather the shards `x` of all ranks along `dim`. Collective."""
        return torch.cat(list(self.exchanged(x.expand(self.size, *x.shape))), dim)

    def summed(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of all ranks' `x`, bitwise equal on all ranks. Collective."""
        return self.exchanged(x.expand(self.size, *x.shape)).sum(0)

    def exchanged(self, x: torch.Tensor) -> torch.Tensor:
        """Send x[i] to rank i; return the received tensors, with rank i's at index i. Collective.

        Args:
            x: dimension 0 has one entry per rank; the same shape and dtype on every rank.
        """
        exchanged: torch.Tensor = _Exchange.apply(x, self.group)  # type: ignore[no-untyped-call]  # torch has no types for it
        return exchanged


class _Shard(torch.autograd.Function):
    """A shard of a tensor that every rank has in full. Backward gathers the full gradient on every rank."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dim: int, length: int, ranks: SequenceRanks) -> torch.Tensor:
        ctx.dim, ctx.ranks = dim, ranks
        return x.narrow(dim, ranks.rank * length, length).clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return ctx.ranks.gathered(grads[0], ctx.dim) / ctx.ranks.size, None, None, None


class _Exchange(torch.autograd.Function):
    """A twice differentiable all-to-all: its gradient is an all-to-all, too."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        received = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        dist.all_to_all_single(received, x.contiguous(), group=group)
        return received

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return _Exchange.apply(grads[0], ctx.group), None  # type: ignore[no-untyped-call]  # torch has no types for it
