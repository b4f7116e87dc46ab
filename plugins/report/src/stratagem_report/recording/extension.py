"""`Record`: the extension `record`, which works with any strategy by wrapping hooks."""

from __future__ import annotations

import os
import socket
from collections.abc import Generator
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import torch

from stratagem import hookimpl
from stratagem.errors import ConfigError
from stratagem_report.files import next_attempt
from stratagem_report.recording.clock import process_age_ns
from stratagem_report.recording.device import device_times
from stratagem_report.recording.plan import plan_of
from stratagem_report.recording.recorder import Recorder
from stratagem_report.recording.stragglers import StragglerWatch
from stratagem_report.recording.wrapped import RecordedCheckpointer, RecordedCollectives, RecordedPrepared

if TYPE_CHECKING:
    from stratagem import (
        Checkpointer,
        CheckpointRequest,
        Collectives,
        Launcher,
        LaunchRequest,
        Prepared,
        ReduceRequest,
        SetupRequest,
    )


class Record:
    """Records a training run in its folder, each rank separately. Does nothing in runs that don't train."""

    def __init__(self) -> None:
        self._launched_ns: int | None = None
        self._recorder: Recorder | None = None
        self._device: dict[str, Any] = {}

    @hookimpl(wrapper=True)
    def launch(self, request: LaunchRequest) -> Generator[None, Launcher, Launcher]:
        """Note when the launching process starts. If it is itself a rank, its record begins here."""
        self._launched_ns = perf_counter_ns()
        return (yield)

    @hookimpl(wrapper=True)
    def reduce(self, request: ReduceRequest) -> Generator[None, Collectives, Collectives]:
        """Create the recorder, and wrap the collectives."""
        began_ns = self._launched_ns
        if began_ns is None:
            began_ns = perf_counter_ns() - process_age_ns()
        device, accelerator = request.devices[0], request.accelerator
        environment = request.environment
        recorder = Recorder(
            environment.world_size, began_ns, lambda: accelerator.memory(device), device_times(device)
        )
        self._device = {
            "device": str(device),
            "local_rank": environment.local_rank,
            "node_rank": environment.node_rank,
            "restarts": environment.attempt,
        }
        collectives = yield
        self._recorder = recorder
        return RecordedCollectives(collectives, recorder)

    @hookimpl(wrapper=True)
    def setup(self, request: SetupRequest) -> Generator[None, Prepared, Prepared]:
        """Open the file if the run trains, and wrap the prepared model.

        Raises:
            ConfigError: the run keeps no files, or keeps them at a URL.
        """
        recorder = self._recorder
        if recorder is None or not request.loop.training:
            return (yield)
        run_dir = request.config.run_dir
        if run_dir is None or "://" in run_dir:
            has = "none" if run_dir is None else f"{run_dir}, which is a URL"
            raise ConfigError(
                f"the extension 'record' writes into the run's folder, and this run has {has}: pass a folder of this "
                "machine as run_dir, or leave 'record' out"
            )
        if not recorder.is_open:
            self._open(recorder, request, run_dir)
        prepared = RecordedPrepared((yield), recorder)
        if request.steps is not None:
            prepared.watch_forward(request.module)
        return prepared

    @hookimpl(wrapper=True)
    def checkpoint(self, request: CheckpointRequest) -> Generator[None, Checkpointer, Checkpointer]:
        """Wrap the checkpointer, to time writing and reading."""
        checkpointer = yield
        return checkpointer if self._recorder is None else RecordedCheckpointer(checkpointer, self._recorder)

    def _open(self, recorder: Recorder, request: SetupRequest, run_dir: str) -> None:
        collectives, config = request.collectives, request.config
        is_main = collectives.rank == 0
        attempt = int(collectives.broadcast(next_attempt(run_dir) if is_main else None))
        header = {
            **self._device,
            "world_size": collectives.world_size,
            "data_ranks": collectives.data.world_size,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "torch": torch.__version__,
            "plan": plan_of(config) if is_main else [],
        }
        try:
            recorder.open(run_dir, attempt, collectives.rank, header)
        except OSError as error:
            raise ConfigError(
                f"the record of rank {collectives.rank} can't be written into {run_dir}: {error.strerror}; name "
                "another run_dir, or leave 'record' out"
            ) from error
        # Without a process group, an exchange would make every rank wait. There only the page names slow ranks.
        if collectives.world_size > 1 and collectives.process_group is not None:
            recorder.watch = StragglerWatch(collectives, recorder.note_slow)
