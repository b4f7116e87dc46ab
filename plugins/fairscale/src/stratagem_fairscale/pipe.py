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

    Each device has some of its layers, and batches flow through them in chunks, each device at one while the next
    is at the one before. What else the module has is on the first device, as are batches and the Sequential's output.

    Args:
        parallel_devices: the devices; wins over the run's `devices`.
        balance: layers of each device, as [2, 3]; distributed evenly by their parameters when None.
        chunks: into how many parts a batch is cut, along dim 0; as many as devices have layers when None.
        checkpoint: of which chunks layers run again in backward, in the place of keeping what they computed: "never",
            "except_last" or "always".
        sequential_module: name of the `nn.Sequential`; the only outermost one with several layers when None.
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
            raise ConfigError(f"chunks={chunks} cuts a batch into no parts: give 1 or more")
        if balance is not None and (not balance or min(balance) < 1):
            raise ConfigError(f"balance={list(balance)} gives a device no layer: give each at least 1")
        library.require("fairscale_pipe")
        self.parallel_devices = parallel_devices
        self.balance = None if balance is None else list(balance)
        self.chunks = chunks
        self.checkpoint = checkpoint
        self.sequential_module = sequential_module

    @hookimpl
    def setup(self, request: SetupRequest) -> Prepared:
        """Answer with a module whose Sequential runs on this process's devices; on one device it runs as it is."""
        from stratagem_fairscale.pipe_prepared import PipePrepared

        if len(request.devices) == 1 and self.balance is None and self.sequential_module is None:
            return Prepared(request)
        return PipePrepared(request, self)
