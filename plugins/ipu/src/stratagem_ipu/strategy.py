"""`IPUStrategy`: a replica per Graphcore IPU, in one process."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from stratagem import (
    ConfigError,
    ParallelStrategy,
    Prepared,
    SetupRequest,
    hookimpl,
)
from stratagem_ipu.prepared import IPUPrepared

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from stratagem.sdk.options import ParallelOptions

ENGINE_OPTIONS = "POPLAR_ENGINE_OPTIONS"


class IPUStrategy(ParallelStrategy):
    """Trains on Graphcore IPUs, by programs that poptorch compiles. Never tried on a device.

    A training step is one program of forward, backward and the optimizer's step: see `IPUPrepared` for what goes.

    Args:
        device_iterations: optimizer steps per call of the program: 1.
        autoreport: have Poplar write reports for its analyser.
        autoreport_dir: where to; its own choice when None.
        training_opts: not available: None.
        inference_opts: not available: None.
        gradient_accumulation: into how many parts each IPU cuts its part of a batch; their gradients are averaged on
            the device.
        options: those of `ParallelOptions`.

    Raises:
        ConfigError: a value that isn't one of those above.
    """

    def __init__(
        self,
        *,
        device_iterations: int = 1,
        autoreport: bool = False,
        autoreport_dir: str | None = None,
        training_opts: Any = None,
        inference_opts: Any = None,
        gradient_accumulation: int = 1,
        **options: Unpack[ParallelOptions],
    ) -> None:
        super().__init__(**options)
        if device_iterations != 1:
            raise ConfigError(
                f"device_iterations={device_iterations!r} is not available: a batch is one optimizer step, which is "
                "counted, logged and saved; leave it out"
            )
        for name, value in {"training_opts": training_opts, "inference_opts": inference_opts}.items():
            if value is not None:
                raise ConfigError(
                    f"{name} is not available, since options that change what a step computes can't be "
                    "distinguished from others: leave it out, and say devices=… and gradient_accumulation=… instead"
                )
        if self.parallel_devices is not None:
            raise ConfigError(
                "parallel_devices is not available, poptorch chooses the IPUs: say devices=… instead"
            )
        if type(gradient_accumulation) is not int or gradient_accumulation < 1:
            raise ConfigError(f"gradient_accumulation={gradient_accumulation!r} must be 1 or more parts")
        if autoreport_dir is not None and not autoreport:
            raise ConfigError("autoreport_dir goes with autoreport=True: set both, or neither")
        self.gradient_accumulation = gradient_accumulation
        self.autoreport, self.autoreport_dir = autoreport, autoreport_dir

    def setup_environment(self) -> None:
        """Tell Poplar to write reports, where that was asked for."""
        if self.autoreport:
            options = {"autoReport.all": "true"}
            if self.autoreport_dir is not None:
                options["autoReport.directory"] = self.autoreport_dir
            os.environ[ENGINE_OPTIONS] = json.dumps(options)

    def teardown(self) -> None:
        """Take the variable away again."""
        if self.autoreport:
            os.environ.pop(ENGINE_OPTIONS, None)

    @hookimpl
    def setup(self, request: SetupRequest) -> Prepared:
        """Answer with a module whose training step is compiled at its first batch."""
        return (
            IPUPrepared(request, self.gradient_accumulation) if request.loop.training else Prepared(request)
        )
