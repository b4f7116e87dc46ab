"""`DataParallelStrategy`: one process splits each batch over its devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from stratagem import (
    PrecisionError,
    Prepared,
    SetupRequest,
    Strategy,
    hookimpl,
)
from stratagem_dp.prepared import SplitPrepared
from stratagem_dp.split_module import SplitModule

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from stratagem.sdk.options import StrategyOptions


class DataParallelStrategy(Strategy):
    """Trains in this process on several devices, each with its part of every batch.

    Args:
        parallel_devices: the devices; wins over the run's `devices`. Parameters are on the first.
        options: those of `StrategyOptions`.
    """

    def __init__(
        self,
        *,
        parallel_devices: Sequence[torch.device] | None = None,
        **options: Unpack[StrategyOptions],
    ) -> None:
        super().__init__(**options)
        self.parallel_devices = parallel_devices

    @hookimpl
    def setup(self, request: SetupRequest) -> Prepared:
        """Answer with a module that splits what it is called with."""
        return SplitPrepared(splitting(request))


def splitting(request: SetupRequest) -> SetupRequest:
    """Return `request` with a module that splits its batches over `request.devices`.

    Raises:
        PrecisionError: a precision object computes in 16 bits.
    """
    if {request.precision.param_dtype, request.precision.compute_dtype} & {torch.float16, torch.bfloat16}:
        raise PrecisionError(
            f"{type(request.precision).__name__} computes in 16 bits, which doesn't go with replicas in one "
            "process: choose precision='32-true', or strategy='ddp'"
        )
    if len(request.devices) < 2:
        return request
    return replace(request, module=SplitModule(request))
