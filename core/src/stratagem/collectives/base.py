"""`Collectives`: communication between the ranks of a run; the result of the `reduce` hook."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh

ReduceOp = Literal["mean", "sum", "min", "max", "product"]
"""How `all_reduce` combines the values of ranks."""


class Collectives(ABC):
    """Owns the process group until `close`.

    Methods are collective unless they say otherwise: all ranks must call them in the same order, with the same `op`,
    `src`, shape and dtype. Other calls raise an error on every rank.

    Attributes:
        rank: index of this process among all, from 0.
        local_rank: index of this process among those of its node, from 0.
        node_rank: index of this node among all, from 0.
        world_size: number of processes.
        device: the device on which tensors are expected.
    """

    rank: int
    local_rank: int
    node_rank: int
    world_size: int
    device: torch.device

    @property
    def process_group(self) -> Any:
        """The `torch.distributed` group, for torch's own modules; None if there is none."""
        return None

    @property
    def backend(self) -> str:
        """Name of the process group's backend for tensors on `device`, such as "nccl"; empty without a group."""
        return ""

    @property
    def data(self) -> Collectives:
        """Collectives over the ranks that read different batches.

        If every rank has a copy of the model, this is the object itself. If several ranks share a copy, by tensors or
        by layers, they read the same batches. These collectives then connect one rank of each copy: `rank` is the
        index of the part of the data that this process reads, and `world_size` the number of parts.
        """
        return self

    @property
    def mesh(self) -> DeviceMesh | None:
        """All ranks in a mesh of named dimensions, such as copies × shards of the model; None without a mesh."""
        return None

    @abstractmethod
    def all_reduce(self, tensor: torch.Tensor, op: ReduceOp = "mean") -> torch.Tensor:
        """Reduce over all ranks into a new tensor.

        Args:
            tensor: any shape, equal on all ranks; any dtype that the backend reduces. "mean" of
                integers is rounded towards zero.
            op: the reduction. Bool tensors only have "min" and "max", complex ones only "mean" and "sum".

        Returns:
            Same shape, dtype and device, equal on every rank; no gradient flows through it.

        Raises:
            UsageError: there is no such op, or the dtype doesn't have it.
            CollectiveError: ranks don't make the same call; says what they call.
        """

    @abstractmethod
    def all_gather(self, tensor: torch.Tensor, sync_grads: bool = False) -> torch.Tensor:
        """Stack every rank's tensor along a new first dim.

        Args:
            tensor: shape S, equal on all ranks.
            sync_grads: let gradients flow back. Each rank gets the gradient of its own tensor, summed over ranks.

        Returns:
            Shape (world_size, *S), equal on every rank.
        """

    @abstractmethod
    def broadcast(self, value: Any, src: int = 0) -> Any:
        """Return rank `src`'s value on every rank.

        A tensor must have the same shape and dtype everywhere and is returned as a new tensor; anything
        else is pickled, and only the value of rank `src` matters.
        """

    @abstractmethod
    def gather_objects(self, value: Any) -> list[Any]:
        """Return every rank's picklable value, in the order of ranks, on every rank."""

    @abstractmethod
    def barrier(self, name: str | None = None) -> None:
        """Wait until every rank has called this.

        Raises:
            CollectiveError: a rank didn't come within the time limit; names the barrier and the rank.
        """

    def all_arrive(self, name: str, timeout_s: float) -> bool:
        """Return whether every rank reaches this point within `timeout_s` seconds.

        Not a collective: it doesn't disturb ranks that are in one, or that have ended. All callers get the same
        answer, even a late one. A rank that gets False should end with an error.

        Without a store, it waits in `barrier`, with the barrier's own time limit.

        Args:
            name: of the point, the same on all ranks. May be used again: calls are counted.
            timeout_s: how many seconds to wait.
        """
        if self.world_size > 1:
            self.barrier(name)
        return True

    def close(self, failed: bool = False) -> None:
        """Leave the group. With `failed`, doesn't wait for ranks that may be gone.

        Models and optimizers must be released before: while a reducer still holds gloo's threads, they abort at the
        interpreter's exit.
        """
