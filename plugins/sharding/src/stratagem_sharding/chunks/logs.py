"""Reduce the values that the chunks of a batch log to one value per batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn

from stratagem import LossSum
from stratagem.errors import LoggingError
from stratagem_sharding.part_of_batch import part_of_batch

_FOLDS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "mean": lambda values, weights: (values * weights).sum() / weights.sum(),
    "sum": lambda values, weights: values.sum(),
    "min": lambda values, weights: values.min(),
    "max": lambda values, weights: values.max(),
}


class Logged(NamedTuple):
    """A value for a whole batch, as `log` takes it; picklable."""

    name: str
    value: Any
    how: dict[str, Any]


class ChunkLogs:
    """Replaces a module's `log` while the chunks of a batch run, and logs each name once for the batch."""

    def __init__(self) -> None:
        self._values: dict[str, list[tuple[Any, float]]] = {}
        self._how: dict[str, dict[str, Any]] = {}

    @contextmanager
    def of_part(self, module: nn.Module, size: int, advice: str | None = None) -> Iterator[None]:
        """Collect what a `stratagem.Module` logs while a chunk of `size` samples runs. A context manager.

        Args:
            module: the module whose step runs.
            size: number of samples in the chunk.
            advice: as for `part_of_batch`; None if the batch has a single chunk.

        Raises:
            LoggingError: the step logs a metric object.
        """

        def log(name: str, value: Any, *, batch_size: float | None = None, **how: Any) -> None:
            if isinstance(value, LossSum):
                value, batch_size = value.mean(), float(value.weight)
            if isinstance(value, nn.Module):
                raise LoggingError(
                    f"{name!r} is logged with a {type(value).__name__}, and this strategy calls a step with parts of "
                    "its batch, whose states it doesn't bring together: log a number, as torchmetrics.functional "
                    "computes it, or choose strategy='ddp'"
                )
            kept = value.detach() if isinstance(value, torch.Tensor) else value
            self._values.setdefault(name, []).append((kept, size if batch_size is None else batch_size))
            self._how[name] = how

        # patch: step logs
        module.__dict__["log"] = log
        try:
            with part_of_batch(advice):
                yield
        finally:
            del module.__dict__["log"]

    def of_batch(self) -> list[Logged]:
        """Return one value per name, reduced over chunks by its `reduce_fx`; means are weighted by samples."""
        return [self._fold(name, entries) for name, entries in self._values.items()]

    def replay(self, module: nn.Module) -> None:
        """Log every name once with `module.log`."""
        for name, value, how in self.of_batch():
            module.log(name, value, **how)  # type: ignore[operator]  # a Trainer's module, which has log

    def _fold(self, name: str, entries: list[tuple[Any, float]]) -> Logged:
        how = self._how[name]
        fold = _FOLDS.get(how.get("reduce_fx", "mean"))
        values = [value for value, _ in entries]
        if fold is None or any(isinstance(value, torch.Tensor) and value.numel() != 1 for value in values):
            return Logged(name, values[0], how)  # `log` raises the error for it
        number = torch.zeros((), dtype=torch.float64)
        first = next((value for value in values if isinstance(value, torch.Tensor)), number)
        dtype = first.dtype if first.is_floating_point() else torch.float32
        stacked = torch.stack(
            [torch.as_tensor(value, dtype=dtype, device=first.device).reshape(()) for value in values]
        )
        total = sum(weight for _, weight in entries)
        weights = torch.tensor(
            [weight if total else 1 for _, weight in entries], dtype=dtype, device=first.device
        )
        return Logged(name, fold(stacked, weights), {**how, "batch_size": total})
