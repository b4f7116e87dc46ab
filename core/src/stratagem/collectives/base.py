"""`Collectives`: how the ranks of a run talk to each other; the answer to the `reduce` hook."""

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

    Every method but the properties is collective: all ranks must call it, in the same order, with the same
    `op`, `src`, shape and dtype. Anything else raises on every rank.

    Attributes:
        rank: this process among all, from 0.
        local_rank: this process among those of its node, from 0.
        node_rank: this node among all, from 0.
        world_size: number of processes.
        device: the device its tensors are expected on.
    """

    rank: int
    local_rank: int
    node_rank: int
    world_size: int
    device: torch.device

    @property
    def process_group(self) -> Any:
        """The `torch.distributed` group, for torch's own modules; None where there is none."""
        return None

    @property
    def backend(self) -> str:
        """Name of the process group's backend for tensors on `device`, as "nccl"; empty where there is no group."""
        return ""

    @property
    def data(self) -> Collectives:
        """Collectives over the ranks that read different batches.

        Itself where every rank has a copy of the model. Where several ranks share one copy, by tensors
        or by layers, they read the same batches: then it has one rank of each copy, its `rank` says which
        part of the data this process reads, and its `world_size` how many parts there are.
        """
        return self

    @property
    def mesh(self) -> DeviceMesh | None:
        """All ranks in a mesh of named dimensions, as copies of the model × shards of each; None without a mesh."""
        return None

    @abstractmethod
    def all_reduce(self, tensor: torch.Tensor, op: ReduceOp = "mean") -> torch.Tensor:
        """Reduce over all ranks into a new tensor.

        Args:
            tensor: any shape, equal on all ranks; any dtype that the backend reduces. "mean" of
                integers is rounded towards zero.
            op: the reduction. Of bool tensors only "min" and "max", of complex ones only "mean" and "sum".

        Returns:
            Same shape, dtype and device, equal on every rank; no gradient flows through it.

        Raises:
            UsageError: another op, or one that the dtype doesn't have.
            CollectiveError: ranks don't make the same call; says what each calls.
        """

    @abstractmethod
    def all_gather(self, tensor: torch.Tensor, sync_grads: bool = False) -> torch.Tensor:
        """Stack every rank's tensor along a new first dim.

        Args:
            tensor: shape S, equal on all ranks.
            sync_grads: let gradients flow back to the rank that a part came from, summed over ranks.

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
        """Wait until every rank has come here.

        Raises:
            CollectiveError: a rank didn't come within the time limit; names the barrier and the rank.
        """

    def all_arrive(self, name: str, timeout_s: float) -> bool:
        """Return whether every rank reaches this point within `timeout_s` seconds.

        Not a collective: it doesn't disturb ranks that are in one, or that have ended. All callers get the same
        answer, a late one too. A rank that gets False should end with an error.

        Collectives that can't ask in another way wait like `barrier`, however long that does.

        Args:
            name: of the point, the same on all ranks. May be used again; calls are counted.
            timeout_s: how many seconds to wait.
        """
        if self.world_size > 1:
            self.barrier(name)
        return True

    def close(self, failed: bool = False) -> None:
        """Leave the group. With `failed`, doesn't wait for ranks that may be gone.

        Models and optimizers must be released before: gloo's threads abort at the interpreter's
        exit while a reducer still holds them.
        """
