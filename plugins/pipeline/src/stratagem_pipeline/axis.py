"""The axis `pipeline`: layers in stages along one mesh dimension. Other axes shard, split or replicate the stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from stratagem import CombinationError
from stratagem.sdk.axes import Axis, AxisSize, AxisSteps, AxisTarget, ModulePart
from stratagem.sdk.collectives import GroupCollectives
from stratagem_pipeline.balance import read_balance
from stratagem_pipeline.building import divide
from stratagem_pipeline.composed import StagePart
from stratagem_pipeline.groups import among_copies
from stratagem_pipeline.schedules import schedule_named
from stratagem_pipeline.settings import check_layers, check_settings

if TYPE_CHECKING:
    from torch import nn

    from stratagem.sdk.runs import Run


class PipelineAxis(Axis):
    """Layers in stages along this axis. Batches flow through the stages in micro-batches, as in strategy `pipeline`.

    Args:
        size: number of ranks with different stages; "auto" uses the ranks that the other axes leave.
        schedule: as for pipeline, except schedules that compute gradients of inputs and of weights separately.
        micro_batches: as for pipeline.
        pipeline_module: as for pipeline.
        balance: as for pipeline.
        stages_per_rank: as for pipeline.
        activation_checkpointing: as for pipeline.
        batch_statistics_per_part: as for pipeline.

    Raises:
        ConfigError: a value that isn't one of those above.
        CombinationError: a schedule that splits the backward.
    """

    name = "pipeline"
    mesh_order = 100
    setup_order = 0
    reads_same_batches = True
    gives_parts = True
    lacks = frozenset(
        {
            "manual_backward",
            "optimizer_hooks",
            "changes_between_steps",
            "closure",
            "sparse_gradients",
            "whole_optimizer",
        }
    )
    # No float16: stages would have to agree on whether scaled gradients overflowed in each step.
    precisions = ("32-true", "64-true", "bf16-mixed", "bf16-true", "float8*")
    sends = "the activations between stages in forward, and their gradients in backward"

    def __init__(
        self,
        size: AxisSize = "auto",
        *,
        schedule: str | None = None,
        micro_batches: int | None = None,
        pipeline_module: str | None = None,
        balance: Sequence[int] | str = "parameters",
        stages_per_rank: int | None = None,
        activation_checkpointing: bool = False,
        batch_statistics_per_part: bool = False,
    ) -> None:
        super().__init__(size)
        self.schedule = schedule_named("1f1b" if schedule is None else schedule)
        self.micro_batches = micro_batches
        self.pipeline_module = pipeline_module
        # No tracing: a graph keeps the shapes and modules that it was traced with, and other axes change them.
        self.split_points: list[str] | None = None
        self.balance = read_balance(balance)
        self.stages_per_rank = self.schedule.stages_per_rank(stages_per_rank)
        self.activation_checkpointing = activation_checkpointing
        self.batch_statistics_per_part = batch_statistics_per_part

    def check_run(self, sizes: Mapping[str, int], run: Run) -> None:
        """Refuse schedules and balances that don't go with the number of stages, or with the other axes."""
        check_settings(self, sizes[self.name])
        others = [name for name, size in sizes.items() if size > 1 and name != self.name]
        if self.schedule.splits_backward and others:
            raise CombinationError(
                f"axis {self.name!r} with schedule={self.schedule.name!r} can't be composed with axis {others[0]!r}: "
                "it computes gradients of inputs and of weights apart; choose '1f1b' or 'interleaved_1f1b'"
            )

    def check_module(self, module: nn.Module, sizes: Mapping[str, int]) -> None:
        """Refuse a module with fewer layers than stages."""
        check_layers(self, module, sizes[self.name])

    def divide(self, target: AxisTarget) -> ModulePart:
        """Give this rank the layers of its stages."""
        request = target.request
        pipe = GroupCollectives(target.mesh.get_group(self.name), request.device)
        stages = divide(request, self, pipe, target.construction)
        open_among = among_copies(target.mesh, self.name, target.open_group)
        return StagePart(request, stages, pipe, open_among)

    def apply(self, target: AxisTarget) -> AxisSteps:
        """Do nothing: `divide` has already set up the module."""
        return AxisSteps()
