"""`SingleHPUStrategy`: one Gaudi processor, one process."""

from __future__ import annotations

from collections.abc import Callable

import torch

from stratagem import (
    Accelerator,
    Checkpointer,
    Collectives,
    ConfigError,
    Precision,
    Prepared,
    SetupRequest,
    Strategy,
    hookimpl,
)
from stratagem_hpu.prepared import HPUPrepared


class SingleHPUStrategy(Strategy):
    """Trains in this process on one Gaudi processor. Never tried on a device.

    Args:
        device: "hpu", or left out: which of a machine's processors a process gets is its launcher's to say.
        accelerator: an accelerator object or name that wins over the run's choice.
        checkpoint_io: a checkpointer, or what makes the run's from its collectives.
        precision_plugin: a precision object or name that wins over the run's choice.

    Raises:
        ConfigError: `device` is something else.
    """

    def __init__(
        self,
        device: torch.device | str | None = None,
        accelerator: Accelerator | str | None = None,
        checkpoint_io: Checkpointer | Callable[[Collectives], Checkpointer] | None = None,
        precision_plugin: Precision | str | None = None,
    ) -> None:
        if str(device) not in ("None", "hpu", "hpu:0"):
            raise ConfigError(
                f"device={str(device)!r} can't be chosen: a process has one Gaudi processor, which it calls 'hpu'; "
                "leave device out, and set HABANA_VISIBLE_MODULES to choose which"
            )
        super().__init__(accelerator, checkpoint_io, precision_plugin)

    @hookimpl
    def setup(self, request: SetupRequest) -> Prepared:
        """Answer with a module on the processor."""
        return HPUPrepared(request)
