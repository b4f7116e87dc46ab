"""`CollectivesWrapper`: the base class for results of wrappers of the `reduce` hook."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stratagem.collectives.base import Collectives, ReduceOp
from stratagem.plugin.forwarding import forwards

if TYPE_CHECKING:
    import torch


@forwards
class CollectivesWrapper(Collectives):
    """Forwards every call to `inner`; a subclass overrides what it changes or counts.

    Args:
        inner: the result of the wrapped implementation.
    """

    def __init__(self, inner: Collectives) -> None:
        self.inner = inner

    @property
    def data(self) -> Collectives:
        return self if self.inner.data is self.inner else self.inner.data

    # Abstract in the base class, so type checkers require them here.

    def all_reduce(self, tensor: torch.Tensor, op: ReduceOp = "mean") -> torch.Tensor:
        return self.inner.all_reduce(tensor, op)

    def all_gather(self, tensor: torch.Tensor, sync_grads: bool = False) -> torch.Tensor:
        return self.inner.all_gather(tensor, sync_grads)

    def broadcast(self, value: Any, src: int = 0) -> Any:
        return self.inner.broadcast(value, src)

    def gather_objects(self, value: Any) -> list[Any]:
        return self.inner.gather_objects(value)

    def barrier(self, name: str | None = None) -> None:
        self.inner.barrier(name)
