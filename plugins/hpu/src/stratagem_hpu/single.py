"""`SingleHPUStrategy`: one Gaudi processor, one process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from stratagem import (
    ConfigError,
    Prepared,
    SetupRequest,
    Strategy,
    hookimpl,
)
from stratagem_hpu.prepared import HPUPrepared

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from stratagem.sdk.options import StrategyOptions


class SingleHPUStrategy(Strategy):
    """Trains in this process on one Gaudi processor. Never tried on a device.

    Args:
        device: "hpu", or left out: which of a machine's processors a process gets is its launcher's to say.
        options: those of `StrategyOptions`.

    Raises:
        ConfigError: `device` is something else.
    """

    def __init__(
        self,
        device: torch.device | str | None = None,
        **options: Unpack[StrategyOptions],
    ) -> None:
        if str(device) not in ("None", "hpu", "hpu:0"):
            raise ConfigError(
                f"device={str(device)!r} can't be chosen: a process has one Gaudi processor, which it calls 'hpu'; "
                "leave device out, and set HABANA_VISIBLE_MODULES to choose which"
            )
        super().__init__(**options)

    @hookimpl
    def setup(self, request: SetupRequest) -> Prepared:
        """Answer with a module on the processor."""
        return HPUPrepared(request)
