"""`SingleDeviceStrategy`: one device, one process."""

from __future__ import annotations

from collections.abc import Callable

import torch

from stratagem import Accelerator, Checkpointer, Collectives, Precision, Strategy
from stratagem.errors import ConfigError


class SingleDeviceStrategy(Strategy):
    """Trains in this process on one device.

    Args:
        device: the device; the run's own choice when None.
        accelerator: an accelerator object or name that wins over the run's choice.
        checkpoint_io: a checkpointer, or what makes the run's from its collectives.
        precision_plugin: a precision object or name that wins over the run's choice.
    """

    def __init__(
        self,
        device: torch.device | str | None = None,
        accelerator: Accelerator | str | None = None,
        checkpoint_io: Checkpointer | Callable[[Collectives], Checkpointer] | None = None,
        precision_plugin: Precision | str | None = None,
    ) -> None:
        super().__init__(accelerator, checkpoint_io, precision_plugin)
        self.parallel_devices = [_device(device)] if device is not None else None


def _device(device: torch.device | str) -> torch.device:
    try:
        return torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"device={device!r} can't be understood: give one as 'cpu' or 'cuda:1'") from error
