"""`PreparedWrapper`: the base of what a wrapper of the hook `setup` returns."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Callable

from stratagem.strategies.prepared import Prepared

if TYPE_CHECKING:
    import torch

    from stratagem.checkpoint.base import CheckpointReader
    from stratagem.plugin.requests import Clipping


class PreparedWrapper(Prepared):
    """Hands every call on to `inner`, and reads every attribute from it; a subclass overrides what it changes.

    Calls that `inner` makes on itself, as of `backward` in its `forward_backward`, stay its own.

    Args:
        inner: what the wrapped implementation answered with.
    """

    def __init__(self, inner: Prepared) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        """Attributes, as `optimizers`: those of `inner`, as they are now."""
        if name == "inner":  # while it is made from a pickle or a copy
            raise AttributeError(name)
        return getattr(self.inner, name)

    @property
    def leaves_module_sharded(self) -> bool:  # type: ignore[override]
        return self.inner.leaves_module_sharded

    @property
    def left_shards(self) -> object | None:  # type: ignore[override]
        return self.inner.left_shards

    @property
    def carries_hooks(self) -> bool:  # type: ignore[override]
        return self.inner.carries_hooks

    @property
    def has_all_states(self) -> bool:  # type: ignore[override]
        return self.inner.has_all_states

    @property
    def steps_directly(self) -> bool:
        return self.inner.steps_directly

    @property
    def forwards_directly(self) -> bool:
        return self.inner.forwards_directly

    @property
    def backwards_directly(self) -> bool:
        return self.inner.backwards_directly

    # Per step -----------------------------------------------------------------------------------

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.inner.forward(*args, **kwargs)

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        return self.inner.evaluate(*args, **kwargs)

    def evaluating(self) -> AbstractContextManager[Any]:
        return self.inner.evaluating()

    def forward_backward(self, *args: Any, divisor: int = 1, sync: bool = True) -> Any:
        return self.inner.forward_backward(*args, divisor=divisor, sync=sync)

    def manual_step(self, *args: Any) -> Any:
        return self.inner.manual_step(*args)

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        self.inner.backward(loss, **kwargs)

    def no_sync(self) -> AbstractContextManager[Any]:
        return self.inner.no_sync()

    def clip(self, index: int, clipping: Clipping) -> torch.Tensor | None:
        return self.inner.clip(index, clipping)

    def step(self, index: int, closure: Callable[[], Any] | None = None) -> bool:
        return self.inner.step(index, closure)

    def zero_grad(self, index: int) -> None:
        self.inner.zero_grad(index)

    def replicas(self) -> Iterator[tuple[Any, ...]]:
        return self.inner.replicas()

    def dataloader(self, loader: Iterable[Any]) -> Iterable[Any]:
        return self.inner.dataloader(loader)

    # Checkpoint ---------------------------------------------------------------------------------

    def model_tensors(self) -> dict[str, torch.Tensor]:
        return self.inner.model_tensors()

    def model_names(self, tensors: Mapping[str, torch.Tensor]) -> Collection[str]:
        return self.inner.model_names(tensors)

    def optimizer_tensors(self) -> dict[str, torch.Tensor]:
        return self.inner.optimizer_tensors()

    def state(self) -> dict[str, Any]:
        return self.inner.state()

    def load(self, reader: CheckpointReader, state: dict[str, Any], *, model_only: bool = False) -> None:
        self.inner.load(reader, state, model_only=model_only)

    def load_optimizer(self, index: int, reader: CheckpointReader, saved: Sequence[dict[str, Any]]) -> None:
        self.inner.load_optimizer(index, reader, saved)

    def restore_module(self) -> None:
        self.inner.restore_module()

    def release(self) -> None:
        self.inner.release()
