"""`Ranks`: this process's rank, and communication with the other ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO, TypedDict, TypeVar, overload

from stratagem.collectives.facade import RankFacade
from stratagem.collectives.nests import map_values

if TYPE_CHECKING:
    import torch
    from typing_extensions import Unpack

    from stratagem.collectives.base import Collectives, ReduceOp
    from stratagem.runtime.session import Session

KeyT = TypeVar("KeyT")
LeafT = TypeVar("LeafT", bound="float | torch.Tensor")
ValueT = TypeVar("ValueT")


class PrintOptions(TypedDict, total=False):
    """Keywords of Python's `print`."""

    sep: str | None
    end: str | None
    file: TextIO | None
    flush: bool


class Ranks(RankFacade):
    """The rank, the device and the collectives of a live `Runtime`."""

    if TYPE_CHECKING:

        @property
        def session(self) -> Session: ...

    @property
    def collectives(self) -> Collectives:
        """The run's collectives."""
        return self.session.collectives

    @property
    def device(self) -> torch.device:
        """This rank's device."""
        return self.session.device

    @property
    def rank(self) -> int:
        """The same as `global_rank`."""
        return self.collectives.rank

    @property
    def data_rank(self) -> int:
        """Index of the part of the data that this process reads. Ranks that share a model copy read the same part."""
        return self.collectives.data.rank

    @property
    def data_ranks(self) -> int:
        """Number of parts into which the data is divided."""
        return self.collectives.data.world_size

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    @property
    def is_global_zero(self) -> bool:
        """The same as `is_main`."""
        return self.is_main

    @overload
    def all_reduce(self, data: float | torch.Tensor, op: ReduceOp = "mean") -> torch.Tensor: ...

    @overload
    def all_reduce(self, data: dict[KeyT, LeafT], op: ReduceOp = "mean") -> dict[KeyT, torch.Tensor]: ...

    @overload
    def all_reduce(self, data: list[LeafT], op: ReduceOp = "mean") -> list[torch.Tensor]: ...

    @overload
    def all_reduce(self, data: ValueT, op: ReduceOp = "mean") -> ValueT: ...

    def all_reduce(self, data: Any, op: ReduceOp = "mean") -> Any:
        """Reduce each tensor and number in `data`, nested or not; numbers become tensors. See `Collectives`."""
        return map_values(lambda tensor: self.collectives.all_reduce(tensor, op), data, self.device)

    @overload
    def all_gather(self, data: float | torch.Tensor, sync_grads: bool = False) -> torch.Tensor: ...

    @overload
    def all_gather(self, data: dict[KeyT, LeafT], sync_grads: bool = False) -> dict[KeyT, torch.Tensor]: ...

    @overload
    def all_gather(self, data: list[LeafT], sync_grads: bool = False) -> list[torch.Tensor]: ...

    @overload
    def all_gather(self, data: ValueT, sync_grads: bool = False) -> ValueT: ...

    def all_gather(self, data: Any, sync_grads: bool = False) -> Any:
        """Stack each tensor and number in `data`, nested or not, over ranks. See `Collectives.all_gather`."""
        return map_values(lambda tensor: self.collectives.all_gather(tensor, sync_grads), data, self.device)

    @contextmanager
    def rank_zero_first(self, local: bool = False) -> Iterator[None]:
        """Let rank 0 (with `local`, the first of each node) run the block before the others. Collective."""
        is_first = (self.local_rank if local else self.rank) == 0
        if not is_first:
            self.barrier("rank_zero_first")
        yield
        if is_first:
            self.barrier("rank_zero_first")

    def print(self, *values: object, **how: Unpack[PrintOptions]) -> None:
        """Print on rank 0 only. `how` are keywords of Python's `print`."""
        if self.is_main:
            how.setdefault("flush", True)
            print(*values, **how)
