"""`SingleDeviceStrategy`: one device, one process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from stratagem import Strategy
from stratagem.errors import ConfigError

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from stratagem.sdk.options import StrategyOptions


class SingleDeviceStrategy(Strategy):
    """Trains in this process on one device.

    Args:
        device: the device; the run's own choice when None.
        options: those of `StrategyOptions`.
    """

    def __init__(
        self,
        device: torch.device | str | None = None,
        **options: Unpack[StrategyOptions],
    ) -> None:
        super().__init__(**options)
        self.parallel_devices = [_device(device)] if device is not None else None


def _device(device: torch.device | str) -> torch.device:
    try:
        return torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"device={device!r} can't be understood: give one as 'cpu' or 'cuda:1'") from error
