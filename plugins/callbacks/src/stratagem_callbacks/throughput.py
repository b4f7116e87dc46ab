"""`ThroughputMonitor`: logs batches, samples and operations per second."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stratagem_sharding.batch_size import batch_size_of
from stratagem_trainer.callbacks.base import Callback
from stratagem_trainer.callbacks.monitor import check_count

if TYPE_CHECKING:
    from stratagem_trainer.module.module import Module
    from stratagem_trainer.view import TrainerView


class ThroughputMonitor(Callback):
    """Log the speed of a fit over a window of the last batches, at each logging step.

    For this rank, logs "train/device/batches_per_sec", "…/samples_per_sec", "…/items_per_sec" (with `length_fn`) and
    "…/flops_per_sec" (if the module has `flops_per_batch`). The same names without "device/" are these rates times
    the number of ranks that read different batches. Also logs the totals since the fit began: "train/time" (s),
    "train/batches", "train/samples" and "train/lengths". On an accelerator the times are the host's, which may be
    ahead of the device.

    Args:
        batch_size_fn: batch → number of samples; None finds it from the batch.
        length_fn: batch → number of items, for example tokens.
        window_size: number of batches over which rates are measured.
        separator: between the parts of a name.
    """

    def __init__(
        self,
        batch_size_fn: Callable[[Any], int] | None = None,
        length_fn: Callable[[Any], int] | None = None,
        *,
        window_size: int = 100,
        separator: str = "/",
    ) -> None:
        check_count("ThroughputMonitor", "window_size", window_size, 2)
        self.batch_size_fn, self.length_fn = batch_size_fn, length_fn
        self.window_size, self.separator = window_size, separator
        self._window: deque[tuple[float, int, int, int]] = deque(maxlen=window_size)
        self._counts = (0, 0, 0)

    def on_train_start(self, trainer: TrainerView, module: Module) -> None:
        self._window.clear()
        self._counts, self._began_s = (0, 0, 0), time.perf_counter()
        self._paused_s, self._step = 0.0, trainer.global_step
        self._window.append((0.0, 0, 0, 0))

    def on_train_batch_end(
        self, trainer: TrainerView, module: Module, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        size = self.batch_size_fn(batch) if self.batch_size_fn is not None else batch_size_of(batch) or 1
        length = self.length_fn(batch) if self.length_fn is not None else 0
        batches, samples, lengths = self._counts
        self._counts = batches + 1, samples + size, lengths + length
        now = time.perf_counter() - self._began_s - self._paused_s
        self._window.append((now, *self._counts))
        stepped, self._step = trainer.global_step > self._step, trainer.global_step
        if stepped and trainer.settings.steps_per_row and self._step % trainer.settings.steps_per_row == 0:
            for name, value in self._figures(trainer, module).items():
                module.log(name, value, on_step=True, on_epoch=False)

    def on_evaluation_start(self, trainer: TrainerView, module: Module, stage: str) -> None:
        self._pause_began_s = time.perf_counter()

    def on_evaluation_end(self, trainer: TrainerView, module: Module, stage: str) -> None:
        if self._window:
            # Rates are of training alone: the time of an evaluation is subtracted.
            self._paused_s += time.perf_counter() - self._pause_began_s

    def _figures(self, trainer: TrainerView, module: Module) -> dict[str, float]:
        now, batches, samples, lengths = self._window[-1]
        then, *before = self._window[0]
        took = max(now - then, 1e-9)
        rates = {"batches": (batches - before[0]) / took, "samples": (samples - before[1]) / took}
        if self.length_fn is not None:
            rates["items"] = (lengths - before[2]) / took
        flops = getattr(module, "flops_per_batch", None)
        if flops is not None:
            rates["flops"] = rates["batches"] * float(flops)
        ranks = trainer.collectives.data.world_size
        figures: dict[tuple[str, ...], float] = {("time",): now, ("batches",): batches, ("samples",): samples}
        if self.length_fn is not None:
            figures["lengths",] = lengths
        for name, rate in rates.items():
            figures["device", f"{name}_per_sec"] = rate
            figures[f"{name}_per_sec",] = rate * ranks
        return {self.separator.join(("train", *parts)): float(value) for parts, value in figures.items()}
