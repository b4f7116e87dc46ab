"""`HorovodStrategy`: a replica per device, gradients averaged by Horovod."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from stratagem_sharding.untrained_replica import UntrainedReplica

from stratagem import (
    Collectives,
    CombinationError,
    ConfigError,
    Prepared,
    ProcessGroupStrategy,
    ReduceRequest,
    SetupRequest,
    hookimpl,
)
from stratagem_horovod import library
from stratagem_horovod.collectives import HorovodCollectives
from stratagem_horovod.engine import Engine
from stratagem_horovod.prepared import HorovodPrepared

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from stratagem.sdk.options import ProcessGroupOptions
    from stratagem.sdk.runs import Run

COMPRESSIONS = (None, "fp16")


class HorovodStrategy(ProcessGroupStrategy):
    """Horovod (https://arxiv.org/abs/1802.05799) in one process per device, on one node or several.

    Gradients, and parameters and optimizer states at the start, go through Horovod. What else ranks tell each other,
    as buffers, metrics and checkpoints, goes through a separate group of `torch.distributed`.

    Args:
        scale_lr: step with learning rates times the number of workers, to make up for the larger total batch; what
            optimizers, schedulers, logs and checkpoints have stays as given.
        compression: "fp16" sends gradients as float16, which halves the bytes.
        options: those of `ProcessGroupOptions`.

    Raises:
        ConfigError: Horovod isn't installed, or a value isn't one of those above.
    """

    def __init__(
        self,
        *,
        scale_lr: bool = True,
        compression: str | None = None,
        **options: Unpack[ProcessGroupOptions],
    ) -> None:
        super().__init__(**options)
        if compression not in COMPRESSIONS:
            raise ConfigError(f'compression={compression!r} must be "fp16" or left out')
        library.require()
        self.scale_lr = scale_lr
        self.compression = compression

    def check_run(self, run: Run) -> None:
        """Refuse devices that this build of Horovod can't send from."""
        if run.accelerator.name == "cuda" and not library.has_gpus():
            raise CombinationError(
                "Horovod was built for CPUs alone: build it with HOROVOD_GPU_OPERATIONS=NCCL, or choose "
                "accelerator 'cpu'"
            )

    def plan_lines(self) -> Sequence[str]:
        """Say what becomes of learning rates."""
        lines = [
            "learning rates: times the number of workers in each step; scale_lr=False leaves them as given"
        ]
        return lines if self.scale_lr else ()

    def open_collectives(self, request: ReduceRequest) -> Collectives:
        """Open the process group, and start Horovod. Collective."""
        group = self.open_process_group(request)
        engine = Engine(request.environment, group, self.timeout)
        self.session.closing.callback(engine.close)
        return HorovodCollectives(group, engine)

    @hookimpl
    def setup(self, request: SetupRequest) -> Prepared:
        """Answer with a replica whose gradients Horovod averages."""
        engine = self._engine()
        if not request.loop.training:
            return UntrainedReplica(request)
        return HorovodPrepared(request, engine, self.compression == "fp16", self.scale_lr)

    @contextmanager
    def join(self) -> Iterator[None]:
        """Enter this around your own training loop if ranks have different numbers of batches. Collective.

        At its end a rank waits for the others, and meanwhile takes part in their averages with gradients of zero, as
        by `hvd.join()`; all leave with the parameters and optimizer states of the rank that came last. The loop may
        call nothing else that is collective.

        Raises:
            ConfigError: the module has buffers, which rank 0 sends in every forward; or the run compares replicas.
        """
        prepared = self._only_prepared("join")[0]
        if self.world_size == 1 or not isinstance(prepared, HorovodPrepared):
            yield
            return
        if any(True for _ in prepared.original_module.buffers()):
            raise ConfigError(
                "join is not available for a module with buffers, which rank 0 sends in every forward: let ranks "
                "have equally many batches, as Runtime.dataloader does"
            )
        if prepared.compares_replicas:
            raise ConfigError(
                "join is not available while replicas are compared, which all ranks do at one step: give "
                "check_replicas_every=0"
            )
        yield
        prepared.take_from(self._engine().join(self.root_device))

    def _engine(self) -> Engine:
        opened = self.session.opened
        assert isinstance(opened, HorovodCollectives)
        return opened.engine
