"""`DeviceStatsMonitor`: logs what the device, and the processor, say of themselves."""

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
    """Log statistics of rank 0's device before and after the steps that are logged.

    They are named as "DeviceStatsMonitor.on_train_batch_end/allocated_bytes.all.current": what torch reports of the
    device's memory, and of the processor "cpu_percent", "cpu_vm_percent" and "cpu_swap_percent".

    Args:
        cpu_stats: log those of the processor: None where the device is one.

    Raises:
        UsageError: statistics of the processor are wanted, and psutil isn't installed.
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
    """Return torch's statistics of a device's memory, by their names; empty where torch has none."""
    backend = getattr(torch, device.type, None)
    tell = getattr(backend, "memory_stats", None)
    return dict(tell(device)) if tell is not None else {}


def _refuse_without_psutil() -> None:
    if find_spec("psutil") is None:
        raise UsageError("DeviceStatsMonitor needs the package psutil for the processor: pip install psutil")
