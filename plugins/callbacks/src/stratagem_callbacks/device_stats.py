"""`DeviceStatsMonitor`: logs statistics of the device, and of the processor."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from stratagem_trainer.callbacks.base import Callback

from stratagem.errors import UsageError

if TYPE_CHECKING:
    from stratagem_trainer.module.module import Module
    from stratagem_trainer.view import TrainerView


class DeviceStatsMonitor(Callback):
    """Log statistics of rank 0's device before and after each step that is logged.

    Names are as "DeviceStatsMonitor.on_train_batch_end/allocated_bytes.all.current". The statistics are torch's
    memory statistics of the device, and the processor's "cpu_percent", "cpu_vm_percent" and "cpu_swap_percent".

    Args:
        cpu_stats: whether to log the processor's statistics. None logs them if the device is the CPU.

    Raises:
        UsageError: the processor's statistics are wanted, and psutil isn't installed.
    """

    def __init__(self, cpu_stats: bool | None = None) -> None:
        self._cpu_stats = cpu_stats
        if cpu_stats:
            _refuse_without_psutil()

    def on_start(self, trainer: TrainerView, module: Module, stage: str) -> None:
        self._step = trainer.global_step
        self._logs_cpu = trainer.device.type == "cpu" if self._cpu_stats is None else self._cpu_stats
        if self._logs_cpu:
            _refuse_without_psutil()

    def on_train_batch_start(self, trainer: TrainerView, module: Module, batch: Any, batch_idx: int) -> None:
        if trainer.settings.steps_per_row and (trainer.global_step + 1) % trainer.settings.steps_per_row == 0:
            self._log(trainer, module, "on_train_batch_start")

    def on_train_batch_end(
        self, trainer: TrainerView, module: Module, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        stepped, self._step = trainer.global_step > self._step, trainer.global_step
        if stepped and trainer.settings.steps_per_row and self._step % trainer.settings.steps_per_row == 0:
            self._log(trainer, module, "on_train_batch_end")

    def _log(self, trainer: TrainerView, module: Module, hook: str) -> None:
        stats: dict[str, float] = {}
        if trainer.device.type != "cpu":
            stats.update(device_stats(trainer.device))
        if self._logs_cpu:
            import psutil

            stats["cpu_percent"] = psutil.cpu_percent()
            stats["cpu_vm_percent"] = psutil.virtual_memory().percent
            stats["cpu_swap_percent"] = psutil.swap_memory().percent
        for name, value in stats.items():
            module.log(f"{type(self).__name__}.{hook}/{name}", value, on_step=True, on_epoch=False)


def device_stats(device: torch.device) -> dict[str, float]:
    """Return torch's memory statistics of a device by name; empty if torch has none for this kind of device."""
    backend = getattr(torch, device.type, None)
    tell = getattr(backend, "memory_stats", None)
    return dict(tell(device)) if tell is not None else {}


def _refuse_without_psutil() -> None:
    if find_spec("psutil") is None:
        raise UsageError("DeviceStatsMonitor needs the package psutil for the processor: pip install psutil")
