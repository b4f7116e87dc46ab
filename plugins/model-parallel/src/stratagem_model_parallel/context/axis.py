"""The axis `context`: the ranks along it compute shards of long sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from stratagem_fsdp import ShardAxis

from stratagem.sdk.axes import Axis, AxisSize, AxisSteps, AxisTarget
from stratagem_model_parallel.context.live import sequences_cut_among
from stratagem_model_parallel.context.plan import ContextPlan, Plan
from stratagem_model_parallel.context.ranks import CONTEXT, SequenceRanks
from stratagem_model_parallel.context.settings import ContextSettings
from stratagem_model_parallel.context.taken_gradients import complete_taken_gradients
from stratagem_model_parallel.mesh import TENSOR

if TYPE_CHECKING:
    from contextlib import ExitStack

    from stratagem import Prepared


class ContextAxis(Axis):
    """Sequences sharded along this axis, whose ranks read the same batches. Attention sees full sequences.

    Args:
        size: number of ranks among which each sequence is sharded; "auto" uses the ranks that the other axes leave.
        attention: "ulysses" or "ring"; as for context_parallel.
        parallelize: which modules compute on shards; as for context_parallel.
        plans: `ContextPlan`s that take precedence over the built-in ones.

    Raises:
        ConfigError: a value that isn't one of those above.
    """

    name = CONTEXT
    mesh_order = 350
    # Before `shard` (300), so that hooks that shard sequences run before those that gather parameters.
    setup_order = 200
    reads_same_batches = True
    takes_parts = True
    lacks = frozenset({"sparse_gradients", "whole_optimizer"})
    unsplit_parameters = "shards"
    sends = "keys, values and the ends of cut sequences in forward and backward; all gradients in backward"

    def __init__(
        self,
        size: AxisSize = "auto",
        *,
        attention: Literal["ulysses", "ring"] = "ulysses",
        parallelize: Plan = None,
        plans: Sequence[ContextPlan] = (),
    ) -> None:
        super().__init__(size)
        self.settings = ContextSettings(attention, parallelize, tuple(plans))

    def companions(self) -> Sequence[Axis]:
        """Return the axis `shard`, whose units are also sharded along this axis."""
        return (ShardAxis(1),)

    def apply(self, target: AxisTarget) -> AxisSteps:
        """Shard sequences before the module's blocks, and gather them afterwards."""
        ranks = SequenceRanks.of(target.mesh)
        tensor = target.mesh.get_group(TENSOR) if target.sizes.get(TENSOR, 1) > 1 else None
        self.settings.cut(target.request.original_module, target.mesh, target.closing, tensor, target.roots)
        target.closing.enter_context(sequences_cut_among(ranks if ranks.size > 1 else None))
        # An axis that divides the module (pipeline) runs backward itself, so no loop calls torch.autograd.grad.
        return AxisSteps() if target.roots is not None else ContextSteps(ranks, target.closing)


class ContextSteps(AxisSteps):
    """Averages gradients that `torch.autograd.grad` returns; the axis `shard` reduces all others.

    Args:
        ranks: the ranks among which sequences are sharded.
        closing: removes the hooks when it is closed.
    """

    def __init__(self, ranks: SequenceRanks, closing: ExitStack) -> None:
        self._ranks, self._closing = ranks, closing

    def begin(self, prepared: Prepared) -> None:
        complete_taken_gradients(prepared.original_module.parameters(), self._ranks, self._closing)
