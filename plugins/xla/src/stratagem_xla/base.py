"""`XlaStrategy`: what all strategies on XLA devices share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem import (
    Collectives,
    ReduceRequest,
    SetupRequest,
    Strategy,
)
from stratagem_xla import client, library, output
from stratagem_xla.processes import open_collectives

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from stratagem.sdk.options import StrategyOptions
    from stratagem.sdk.runs import Run


class XlaStrategy(Strategy):
    """Base of the strategies here: starts PJRT's client, and leads torch_xla's output where it belongs.

    Args:
        debug: let torch_xla analyse why it compiles and waits.
        options: those of `StrategyOptions`.
    """

    def __init__(
        self,
        *,
        debug: bool,
        **options: Unpack[StrategyOptions],
    ) -> None:
        super().__init__(**options)
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
