"""What the parts of a batch log, as one value for the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_FOLDS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "mean": lambda values, weights: (values * weights).sum() / weights.sum(),
    "sum": lambda values, weights: values.sum(),
    "min": lambda values, weights: values.min(),
    "max": lambda values, weights: values.max(),
}


class PartLogs:
    """Stands in for `Module.log` while parts run, then logs once what they have logged."""

    def __init__(self) -> None:
        self._values: dict[str, list[tuple[Any, int]]] = {}
        self._how: dict[str, dict[str, Any]] = {}

    def of_part(self, size: int) -> Callable[..., None]:
        """Return a `log` for a part of `size` samples."""

        def log(name: str, value: torch.Tensor | float, *, batch_size: int | None = None, **how: Any) -> None:
            self._values.setdefault(name, []).append((value, size if batch_size is None else batch_size))
            self._how[name] = how

        return log

    def replay(self, log: Callable[..., None]) -> None:
        """Log every name once with `log`: reduced over parts as its `reduce_fx` says, means by samples."""
        for name, entries in self._values.items():
            how = self._how[name]
            fold = _FOLDS.get(how.get("reduce_fx", "mean"))
            values = [value for value, _ in entries]
            if fold is None or any(
                isinstance(value, torch.Tensor) and value.numel() != 1 for value in values
            ):
                log(name, values[0], **how)  # which refuses
                continue
            number = torch.zeros((), dtype=torch.float64)
            first = next((value for value in values if isinstance(value, torch.Tensor)), number)
            dtype = first.dtype if first.is_floating_point() else torch.float32
            stacked = torch.stack(
                [
                    torch.as_tensor(value, dtype=dtype, device=first.device).detach().reshape(())
                    for value in values
                ]
            )
            weights = torch.tensor([weight for _, weight in entries], dtype=dtype, device=first.device)
            log(name, fold(stacked, weights), batch_size=sum(weight for _, weight in entries), **how)
