"""The axis `context`: long sequences whose shards the ranks along it compute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch.distributed as dist
from stratagem_sharding.buckets import flattened_buckets, gradients_of_any

from stratagem import CombinationError, Prepared
from stratagem.sdk.axes import Axis, AxisSize, AxisSteps, AxisTarget
from stratagem_model_parallel.context.live import sequences_cut_among
from stratagem_model_parallel.context.plan import ContextPlan, Plan
from stratagem_model_parallel.context.ranks import CONTEXT, SequenceRanks
from stratagem_model_parallel.context.settings import ContextSettings
from stratagem_model_parallel.kinds import local
from stratagem_model_parallel.mesh import TENSOR

if TYPE_CHECKING:
    import torch


class ContextAxis(Axis):
    """Sequences in shards along this axis, whose ranks read the same batches; attention sees them whole.

    Args:
        size: number of ranks among which each sequence is cut; "auto" is what the other axes leave.
        attention: "ulysses" or "ring"; as for context_parallel.
        parallelize: which modules compute on shards; as for context_parallel.
        plans: `ContextPlan`s that go before the built-in ones.

    Raises:
        ConfigError: a value that isn't one of those above.
        CombinationError: in `apply`, for your own training loop or manual optimization.
    """

    name = CONTEXT
    mesh_order = 400
    # Hooks that cut sequences come before those that gather a block's parameters.
    setup_order = 200
    reads_same_batches = True
    takes_parts = True
    lacks = frozenset({"closure", "sparse_gradients", "whole_optimizer"})
    sends = "keys, values and the ends of cut sequences in forward and backward; all gradients after backward"

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

    def apply(self, target: AxisTarget) -> AxisSteps:
        """Cut sequences before the module's blocks, and put them together after these."""
        request = target.request
        # What an own loop sets up without an optimizer may be trained, too.
        is_own_loop = request.steps is None or (request.loop.manual and request.loop.training)
        if is_own_loop and target.sizes[self.name] > 1:
            raise CombinationError(
                f"axis {self.name!r} averages the gradients of each backward, and not those that your own "
                "training loop or manual optimization may get by torch.autograd.grad: let the Trainer step the "
                "optimizers, or choose the strategy context_parallel"
            )
        ranks = SequenceRanks.of(target.mesh)
        tensor = target.mesh.get_group(TENSOR) if target.sizes.get(TENSOR, 1) > 1 else None
        self.settings.cut(request.original_module, target.mesh, target.closing, tensor, target.roots)
        target.closing.enter_context(sequences_cut_among(ranks if ranks.size > 1 else None))
        return ContextSteps(ranks, request.device)


class ContextSteps(AxisSteps):
    """Averages gradients, of which each rank has the part that comes from its shards.

    Args:
        ranks: among which sequences are cut.
        device: of messages.
    """

    def __init__(self, ranks: SequenceRanks, device: torch.device) -> None:
        self._ranks, self._device = ranks, device
        self._parameters: list[torch.Tensor] = []

    def begin(self, prepared: Prepared) -> None:
        self._parameters = list(prepared.original_module.parameters())

    def after_backward(self) -> None:
        """Average. What is equal on all ranks stays as it is, so that gradients may accumulate over several calls."""
        if self._ranks.size == 1:
            return
        trained = [each for each in self._parameters if each.requires_grad]
        has_one = [parameter.grad is not None for parameter in trained]
        gradients: list[Any] = gradients_of_any(trained, has_one, self._device, self._ranks.group)
        for flat in flattened_buckets(local(each) for each in gradients):
            dist.all_reduce(flat, group=self._ranks.group)
            flat.div_(self._ranks.size)

    def release(self) -> None:
        self._parameters.clear()
