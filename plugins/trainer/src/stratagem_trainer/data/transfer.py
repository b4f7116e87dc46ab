"""Move batches to the device, through the hooks of the module or data module that are overridden."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from stratagem.errors import DataError

if TYPE_CHECKING:
    from stratagem_trainer.stage.state import StageState


def on_device(
    state: StageState, loader: Iterable[Any], dataloader_idx: int = 0, *, counted: bool = False
) -> Iterable[Any]:
    """Return an iterable over `loader` that yields batches on the device.

    Args:
        state: the stage's objects.
        loader: yields batches.
        dataloader_idx: index of the loader, if there are several.
        counted: whether the loader yields pairs (batch, whether it counts).
    """
    hooks, device = state.hooks, state.runtime.device
    before = [_with(method, dataloader_idx) for method in hooks.of("on_before_batch_transfer")]
    before += [_with(method, device, dataloader_idx) for method in hooks.of("transfer_batch_to_device")]
    after = [_with(method, dataloader_idx) for method in hooks.of("on_after_batch_transfer")]
    # A batch that `transfer_batch_to_device` has moved is already on the device when the strategy gets it.
    moved = state.prepared.dataloader(_Through(loader, before, counted) if before else loader)
    return _Through(moved, after, counted) if after else moved


def _with(method: Callable[..., Any], *args: Any) -> Callable[[Any], Any]:
    def call(batch: Any) -> Any:
        result = method(batch, *args)
        if result is None:
            raise DataError(f"{getattr(method, '__name__', method)} returned None: return the batch")
        return result

    return call


class _Through:
    """Applies functions to the batches of a loader."""

    def __init__(
        self, loader: Iterable[Any], functions: Sequence[Callable[[Any], Any]], counted: bool
    ) -> None:
        self._loader, self._functions, self._counted = loader, functions, counted

    def __iter__(self) -> Iterator[Any]:
        for given in self._loader:
            batch, counts = given if self._counted else (given, None)
            for function in self._functions:
                batch = function(batch)
            yield (batch, counts) if self._counted else batch

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]  # an Iterable without a length raises TypeError here
