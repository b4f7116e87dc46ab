"""`FairScalePipeStrategy`: one process runs layers on several devices, by FairScale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import torch

from stratagem import (
    ConfigError,
    Prepared,
    SetupRequest,
    Strategy,
    hookimpl,
)
from stratagem_fairscale import library

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from stratagem.sdk.options import StrategyOptions

CHECKPOINT = ("never", "except_last", "always")


class FairScalePipeStrategy(Strategy):
    """FairScale's Pipe (GPipe, https://arxiv.org/abs/1811.06965): an `nn.Sequential` over devices of one process.

    Each device has some of the layers. Batches flow through the devices in chunks, so that devices work on different
    chunks at the same time. The rest of the module, batches, and the Sequential's output are on the first device.

    Args:
        parallel_devices: the devices; overrides the run's `devices`.
        balance: layers of each device, as [2, 3]; None distributes them evenly by their parameters.
        chunks: number of chunks of a batch, along dim 0; None is the number of devices with layers.
        checkpoint: chunks for which activations are recomputed in backward instead of kept: "never",
            "except_last" or "always".
        sequential_module: name of the `nn.Sequential`; None for the only outermost one with several layers.
        options: those of `StrategyOptions`.

    Raises:
        ConfigError: FairScale isn't installed, or a value isn't one of those above.
    """

    def __init__(
        self,
        *,
        parallel_devices: Sequence[torch.device] | None = None,
        balance: Sequence[int] | None = None,
        chunks: int | None = None,
        checkpoint: Literal["never", "except_last", "always"] = "never",
        sequential_module: str | None = None,
        **options: Unpack[StrategyOptions],
    ) -> None:
        super().__init__(**options)
        if checkpoint not in CHECKPOINT:
            raise ConfigError(f"checkpoint={checkpoint!r} must be one of {', '.join(map(repr, CHECKPOINT))}")
        if chunks is not None and chunks < 1:
            raise ConfigError(f"chunks={chunks} must be at least 1")
        if balance is not None and (not balance or min(balance) < 1):
            raise ConfigError(f"balance={list(balance)} must give each device at least 1 layer")
        library.require("fairscale_pipe")
        self.parallel_devices = parallel_devices
        self.balance = None if balance is None else list(balance)
        self.chunks = chunks
        self.checkpoint = checkpoint
        self.sequential_module = sequential_module

    @hookimpl
    def setup(self, request: SetupRequest) -> Prepared:
        """Return a module whose Sequential runs on this process's devices; on one device, the module itself."""
        from stratagem_fairscale.pipe_prepared import PipePrepared

        if len(request.devices) == 1 and self.balance is None and self.sequential_module is None:
            return Prepared(request)
        return PipePrepared(request, self)
