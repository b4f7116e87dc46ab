"""`XlaStrategy`: what all strategies on XLA devices share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from stratagem import (
    Accelerator,
    Checkpointer,
    Collectives,
    Precision,
    ReduceRequest,
    SetupRequest,
    Strategy,
)
from stratagem_xla import client, library, output
from stratagem_xla.processes import open_collectives

if TYPE_CHECKING:
    from stratagem.sdk.runs import Run


class XlaStrategy(Strategy):
    """Base of the strategies here: starts PJRT's client, and leads torch_xla's output where it belongs.

    Args:
        accelerator: an accelerator object or name that wins over the run's choice.
        checkpoint_io: a checkpointer, or what makes the run's from its collectives.
        precision_plugin: a precision object or name that wins over the run's choice.
        debug: let torch_xla analyse why it compiles and waits.
    """

    def __init__(
        self,
        accelerator: Accelerator | str | None,
        checkpoint_io: Checkpointer | Callable[[Collectives], Checkpointer] | None,
        precision_plugin: Precision | str | None,
        debug: bool,
    ) -> None:
        super().__init__(accelerator, checkpoint_io, precision_plugin)
        self.debug = debug

    def setup_worker(self, run: Run) -> None:
        """Set what torch_xla reads when it is imported."""
        super().setup_worker(run)
        output.before_import(run.config.log_level, self.debug)

    def start(self, request: ReduceRequest, devices: int, *, spmd: bool) -> None:
        """Start PJRT's client in this process for a run with so many devices here."""
        client.start(library.device_type(), devices, spmd=spmd)
        client.seed(request.environment.global_rank)

    def open_collectives(self, request: ReduceRequest) -> Collectives:
        """Start PJRT's client; between several processes, open a group of theirs on the CPU."""
        self.start(request, len(request.devices), spmd=True)
        return open_collectives(request)

    def direct_output(self, request: SetupRequest) -> None:
        """Lead what torch_xla says to the run's folder."""
        output.direct(request.config.run_dir, request.config.log_level, self.debug)

    def teardown(self) -> None:
        """Say what was compiled, under `debug`, and close the run's file."""
        output.stop(report=self.debug)
