"""`RankView`: which of a run's processes this one is, and what it computes with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem.errors import StratagemError
from stratagem.sdk.runs import Run, assemble

if TYPE_CHECKING:
    import torch

    from stratagem import Accelerator, Collectives, RunConfig, Runtime, Strategy
    from stratagem_trainer.stage.last_stage import Seen


class RankView:
    """What a trainer says of this process among those of the stage that runs."""

    _worker: Runtime | None
    _seen: Seen
    config: RunConfig
    _next_run: Run | None = None
    """What the configuration comes to in this process, once that was asked for outside of a stage."""

    @property
    def is_live(self) -> bool:
        """Whether this process is a rank of a running stage."""
        return self._worker is not None

    @property
    def strategy(self) -> Strategy:
        """The run's strategy, as this worker has it; outside of a stage, as this process would begin the next one."""
        return self._run.strategy

    @property
    def accelerator(self) -> Accelerator:
        """The kind of the run's devices; outside of a stage, of those that the next one would have."""
        return self._run.accelerator

    @property
    def _run(self) -> Run:
        if self._worker is not None:
            return self._worker.session.run
        if self._next_run is None or self._next_run.config is not self.config:
            self._next_run = assemble(self.config)
        return self._next_run

    @property
    def runtime(self) -> Runtime:
        """The live runtime.

        Raises:
            StratagemError: no stage runs in this process.
        """
        if self._worker is None:
            raise StratagemError("no stage of this trainer runs now")
        return self._worker

    @property
    def collectives(self) -> Collectives:
        """How the ranks talk."""
        return self.runtime.collectives

    @property
    def device(self) -> torch.device:
        """This rank's device."""
        return self.runtime.device

    @property
    def global_rank(self) -> int:
        """This process among all; 0 outside a stage."""
        return self._worker.rank if self._worker is not None else 0

    @property
    def local_rank(self) -> int:
        """This process among those of its node; 0 outside a stage."""
        return self._worker.local_rank if self._worker is not None else 0

    @property
    def world_size(self) -> int:
        """Number of ranks: of the stage that runs, or else of the last one; 1 before any."""
        return self._worker.world_size if self._worker is not None else self._seen.world_size

    @property
    def node_rank(self) -> int:
        """This machine among those of the run; 0 outside a stage."""
        return self.runtime.collectives.node_rank if self._worker is not None else 0

    @property
    def num_nodes(self) -> int:
        """Machines of the run; 1 outside a stage."""
        return self._worker.session.run.plan.num_nodes if self._worker is not None else 1

    @property
    def num_devices(self) -> int:
        """Devices of this machine that the run uses; 0 outside a stage, where nothing is resolved."""
        return len(self.runtime.session.run.devices) if self._worker is not None else 0

    @property
    def is_global_zero(self) -> bool:
        """Whether this is rank 0."""
        return self.global_rank == 0

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0."""
        return self.global_rank == 0
