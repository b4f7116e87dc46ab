"""The axis `tensor`: layers split among the ranks along it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel as from_shards

from stratagem import CombinationError, Prepared
from stratagem.sdk.axes import Axis, AxisSize, AxisSteps, AxisTarget
from stratagem.sdk.tensors import map_tensors
from stratagem_model_parallel.blocks import BlockPlan
from stratagem_model_parallel.context.ranks import CONTEXT
from stratagem_model_parallel.mesh import TENSOR
from stratagem_model_parallel.plan import Plan
from stratagem_model_parallel.replicas import Replicas
from stratagem_model_parallel.splitting import SplitSettings, refuse_uneven_blocks, split_layers
from stratagem_model_parallel.torch_private import is_unawaited

if TYPE_CHECKING:
    from torch import nn

    from stratagem.sdk.runs import Run


class TensorAxis(Axis):
    """Layers split among the ranks along this axis, which read the same batches.

    Args:
        size: number of ranks among which each layer is split; "auto" uses the ranks that the other axes leave.
        parallelize: what to split and how; as for model_parallel.
        plans: `BlockPlan`s that take precedence over the built-in ones.
        sequence_parallel: built-in plans let ranks compute shards of the sequence between attention and
            feed-forward.
        loss_parallel: compute cross entropies from shards of the vocabulary, as the last layer gives them.

    Raises:
        ConfigError: a value that isn't one of those above.
    """

    name = TENSOR
    mesh_order = 500
    setup_order = 100
    reads_same_batches = True
    takes_parts = True
    lacks = frozenset({"sparse_gradients", "whole_optimizer"})
    # No 16-mixed: torch's loss scaler needs all gradients on one mesh.
    precisions = ("32-true", "64-true", "bf16-mixed", "bf16-true", "16-true")
    sends = "the activations of each split layer in forward, and their gradients in backward (all-reduce)"

    def __init__(
        self,
        size: AxisSize = "auto",
        *,
        parallelize: Plan = None,
        plans: Sequence[BlockPlan] = (),
        sequence_parallel: bool = False,
        loss_parallel: bool = False,
    ) -> None:
        super().__init__(size)
        self.settings = SplitSettings(parallelize, tuple(plans), sequence_parallel, loss_parallel)

    @classmethod
    def of(cls, size: AxisSize, settings: SplitSettings) -> TensorAxis:
        """Return an axis with settings that were checked."""
        axis = cls(size)
        axis.settings = settings
        return axis

    def check_run(self, sizes: Mapping[str, int], run: Run) -> None:
        """Refuse sequence parallelism if the axis `context` shards sequences, too."""
        if self.settings.sequence_parallel and sizes.get(CONTEXT, 1) > 1:
            raise CombinationError(
                f"axis {self.name!r} with sequence_parallel=True can't be composed with axis {CONTEXT!r}: both "
                "cut sequences: leave sequence_parallel out"
            )

    def check_module(self, module: nn.Module, sizes: Mapping[str, int]) -> None:
        """Refuse blocks that can't be split equally."""
        refuse_uneven_blocks(module, self.settings, sizes[self.name])

    def apply(self, target: AxisTarget) -> AxisSteps:
        """Split the module's layers."""
        module = target.request.original_module
        split_layers(module, self.settings, target.mesh)
        return TensorSteps(target.mesh, self.settings.loss_parallel)


class TensorSteps(AxisSteps):
    """Redistributes gradients to their parameters' layout, and averages gradients of unsplit parameters.

    Args:
        mesh: with a dimension "tensor".
        loss_parallel: whether cross entropies are computed from shards of the vocabulary.
    """

    def __init__(self, mesh: DeviceMesh, loss_parallel: bool) -> None:
        self._mesh, self._loss_parallel = mesh, loss_parallel
        self.has_gradients_to_complete = mesh[TENSOR].size() > 1

    def begin(self, prepared: Prepared) -> None:
        self._replicas = Replicas(prepared.original_module, self._mesh)

    def computing(self) -> AbstractContextManager[Any]:
        return from_shards() if self._loss_parallel else nullcontext()

    def map_output(self, output: Any) -> Any:
        return map_tensors(_whole, output)

    def complete_gradients(self, parameters: Sequence[torch.Tensor]) -> None:
        self._replicas.settle(parameters)


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return an ordinary tensor whose values are available.

    The result of an asynchronous collective waits before the next operation on it, but not before it is pickled or
    its memory is copied.
    """
    if isinstance(tensor, DTensor):
        tensor = tensor.full_tensor()
    return tensor.clone() if is_unawaited(tensor) else tensor
