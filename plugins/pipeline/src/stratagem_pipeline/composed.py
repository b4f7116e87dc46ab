"""`ComposedPipeline`: a pipeline whose stages other axes have transformed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from stratagem_sharding.buckets import flattened_buckets
from stratagem_sharding.torch_private import own_table, own_tensors
from stratagem_sharding.whole_steps import sharded_step, sharded_step_again
from stratagem_sharding.whole_tensors import ReadingExchange, hold_whole, on_shards
from torch import nn
from torch.distributed.tensor import DTensor

from stratagem import Clipping, ConfigError, Replica, SetupRequest
from stratagem.sdk.axes import AxisSteps, ModulePart
from stratagem.sdk.tensors import map_tensors
from stratagem_pipeline.prepared import PipelinePrepared

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from stratagem import Collectives
    from stratagem_pipeline.building import Pipeline, Stages


class StagePart(ModulePart):
    """The stages of this rank.

    Args:
        request: as the `setup` hook received it.
        stages: all of them, placed.
        pipe: the ranks of this copy.
        open_among: opens a group of some ranks in each copy of the model, and returns this rank's group.
    """

    def __init__(
        self,
        request: SetupRequest,
        stages: Stages,
        pipe: Collectives,
        open_among: Callable[[Sequence[int]], Any],
    ) -> None:
        self._request, self._stages, self._pipe, self._open_among = request, stages, pipe, open_among
        own = [layers for layers, rank in zip(stages.layers, stages.ranks) if rank == pipe.rank]
        self.roots = [layer for layers in own for layer in layers]

    def prepare(self, steps: Sequence[AxisSteps]) -> ComposedPipeline:
        """Return a pipeline of the stages, which the other axes have transformed."""

        def complete(value: Any) -> Any:
            for each in steps:
                value = each.map_output(value)
            return value

        def hand_over(value: Any) -> Any:
            # Also waits for the result of an asynchronous collective.
            return complete(map_tensors(_refuse_shards, value))

        pipeline = self._stages.pipeline(self._request, self._pipe, hand_over, complete)
        return ComposedPipeline(self._request, pipeline, self._open_among, steps)


class ComposedPipeline(PipelinePrepared):
    """A pipeline of transformed stages. Training steps and evaluations are collective.

    Args:
        request: as the `setup` hook received it; its module has been transformed.
        pipeline: the stages and their ranks.
        open_among: opens a group of some ranks in each copy of the model, and returns this rank's group.
        steps: the other axes' work in each step.
    """

    shows_unreduced_gradients = (
        False  # gradients belong to gathered parameters until the accumulation window ends
    )
    supports_inference_mode = False  # an evaluation gathers parameters into memory that training uses again

    def __init__(
        self,
        request: SetupRequest,
        pipeline: Pipeline,
        open_among: Callable[[Sequence[int]], Any],
        steps: Sequence[AxisSteps],
    ) -> None:
        self._axis_steps = tuple(steps)
        super().__init__(request, pipeline, open_among, averages=False)
        # The user's code sees full tensors, as under other compositions of axes.
        ReadingExchange(request.collectives)
        hold_whole(parameter for _, parameter in self._named)
        self._local_steps = [sharded_step(each, "axis 'pipeline'") for each in self.optimizers]
        for each in self._axis_steps:
            each.begin(self)

    # Per step -----------------------------------------------------------------------------------

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        # An evaluation may call the module several times, and cuts a smaller batch into fewer micro-batches.
        with self._running(reduces=False, calls_alike=False):
            return super().evaluate(*args, **kwargs)

    def _run(self, args: tuple[Any, ...], divisor: float, sync: bool) -> Any:
        with self._running(reduces=sync, calls_alike=self._calls_alike(args)):
            return super()._run(args, divisor, sync)

    @contextmanager
    def _running(self, reduces: bool, calls_alike: bool) -> Iterator[None]:
        """Run a batch whose parameters the other axes gather."""
        with ExitStack() as stack:
            for each in self._axis_steps:
                stack.enter_context(each.computing())
                stack.enter_context(each.gathered(reduces, calls_alike))
            yield

    def _calls_alike(self, args: tuple[Any, ...]) -> bool:
        """Whether all copies call their layers equally often. Collective, if an axis asks for it; else False.

        For a batch of a new shape, each layer is called once more.
        """
        if not any(each.asks_whether_calls_are_alike for each in self._axis_steps):
            return False
        assert self._training is not None
        knows = torch.tensor(float(self._training.has_stages_for(args)), device=self.device)
        return bool(self._collectives.data.all_reduce(knows, "min"))

    def _reduce(self) -> None:
        with on_shards():
            for each in self._axis_steps:
                if each.has_gradients_to_complete:
                    each.complete_gradients([parameter for _, parameter in self._named])
                each.after_backward()
            super()._reduce()

    @on_shards()
    def clip(self, index: int, clipping: Clipping) -> torch.Tensor | None:
        return super().clip(index, clipping)

    def optimizer_tried_again(self, index: int, tried: Optimizer) -> None:
        self._local_steps[index] = sharded_step_again(
            self._local_steps[index], self.optimizers[index], tried, "axis 'pipeline'"
        )

    def step(self, index: int, closure: Callable[[], Any] | None = None) -> bool:
        with self._local_steps[index].stepping():
            applied = super().step(index, closure)
        with on_shards():
            for each in self._axis_steps:
                each.after_step(self, index)
        return applied

    # Copies -------------------------------------------------------------------------------------

    def replicas(self) -> Iterator[tuple[Any, ...]]:
        stages = str(sorted(self._pipeline.line.own))
        for replica in super().replicas():
            if isinstance(replica[1], DTensor):
                yield _shard(replica[0], replica[1], stages)
            else:
                yield replica

    def _make_equal(self) -> None:
        """Make replicas equal, including buffers, which differ between data ranks during training. Collective."""
        data = self._collectives.data
        if data.world_size > 1:
            source = dist.get_global_rank(data.process_group, 0)
            for flat in flattened_buckets(
                each for each in self.original_module.buffers() if not each.is_meta
            ):
                dist.broadcast(flat, source, group=data.process_group)
        with on_shards():
            for each in self._axis_steps:
                each.make_equal(self)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        self._make_equal()
        with super().evaluating():
            yield

    def model_tensors(self) -> dict[str, torch.Tensor]:
        self._make_equal()
        return super().model_tensors()

    @torch.no_grad()
    def restore_module(self) -> None:
        """Leave full layers on the ranks of their stages. The next run in this process continues from them."""
        super().restore_module()
        self._make_equal()
        made: dict[int, torch.Tensor] = {}
        for module in self.original_module.modules():
            for name, tensor in list(own_tensors(module)):
                if isinstance(tensor, DTensor):
                    if id(tensor) not in made:
                        made[id(tensor)] = _whole(tensor)
                    own_table(module, name)[name] = made[id(tensor)]

    def release(self) -> None:
        self.leaves_module_sharded = any(isinstance(p, DTensor) for p in self.original_module.parameters())
        super().release()
        for each in self._axis_steps:
            each.release()


def _refuse_shards(tensor: torch.Tensor) -> torch.Tensor:
    """Refuse DTensors between stages: their layout isn't sent to the next stage.

    Raises:
        ConfigError: names the axes of the DTensor's mesh.
    """
    if not isinstance(tensor, DTensor):
        return tensor
    axes = " and ".join(map(repr, tensor.device_mesh.mesh_dim_names or ()))
    raise ConfigError(
        f"axis 'pipeline' sends plain tensors from stage to stage, and axis {axes} leaves activations of shape "
        f"{tuple(tensor.shape)} as a DTensor where a stage begins or ends: let the layer there return plain tensors, "
        "as by use_local_output=True, and leave loss_parallel out"
    )


def _shard(name: str, tensor: DTensor, stages: str) -> Replica:
    """Return the replica to compare for a shard, among ranks with the same shard of the same stages."""
    mesh = tensor.device_mesh
    dims = [dim for dim, placement in enumerate(tensor.placements) if not placement.is_replicate()]
    place = [mesh.get_local_rank(dim) for dim in dims]
    # Several meshes may have dimensions of the same size.
    layout = f"stages {mesh.mesh_dim_names} {dims}"
    return Replica(name, tensor.to_local(), layout, f"{stages} {layout} {place}")


def _whole(tensor: DTensor) -> torch.Tensor:
    whole = (
        torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        if tensor.is_meta
        else tensor.full_tensor()
    )
    if not isinstance(tensor, nn.Parameter):
        return whole
    return nn.Parameter(whole.detach().clone(), requires_grad=tensor.requires_grad)
