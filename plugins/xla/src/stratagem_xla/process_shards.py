"""A sharded module, a shard for each process and its device; written for TPUs, as PJRT's CPU has one process only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any

import torch
from stratagem_sharding.shards import row_shard
from stratagem_sharding.used_parameter import parameter_used_in
from torch import nn

from stratagem import Clipping, SetupRequest
from stratagem.errors import ShardedUseError
from stratagem.sdk.states import load_model, optimizer_tensors
from stratagem_xla.checkpoints import on_cpu
from stratagem_xla.client import keeping_random_state, send_off
from stratagem_xla.flat_shards import FlatShardsReader, broadcast_coalesced, whole
from stratagem_xla.gathered import use_of_shard
from stratagem_xla.held_shards import computing_with_shards, hold_shards, let_go, stepping
from stratagem_xla.prepared import XlaPrepared
from stratagem_xla.wrapping import Wrapped, point_at_shards, wrap
from stratagem_xla.xla_private import NO_PATCHED_LINEAR, free

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.optim import Optimizer

    from stratagem import CheckpointReader
    from stratagem_xla.fsdp import Policy
    from stratagem_xla.sharding import Layout


def prepare(
    request: SetupRequest, layout: Layout, policy: Policy, options: Mapping[str, Any], sync: bool
) -> ProcessShardsPrepared:
    """Shard `request.module`, and point the user's optimizers, made over unsharded parameters, at the shards.

    Args:
        request: as the `setup` hook received it.
        layout: of one device.
        policy: which modules are gathered separately.
        options: for torch_xla's wrappers.
        sync: begin with the first process's parameters and buffers.

    Raises:
        ConfigError: a wrong policy; a parameter that isn't float32.
    """
    optimizers = list(request.make_optimizers()) if request.loop.training else []
    if request.precision.autocast() is not None:
        options = {**options, **NO_PATCHED_LINEAR}
    with keeping_random_state():
        wrapped = wrap(request, policy, options, sync)
    for optimizer in optimizers:
        point_at_shards(optimizer, wrapped, request.collectives.rank)
    prepared = ProcessShardsPrepared(request, layout, wrapped, optimizers)
    hold_shards(wrapped.shards.values())
    return prepared


class ProcessShardsPrepared(XlaPrepared):
    """Shards of a module, with its optimizers' states. Every forward is collective, that of an evaluation too.

    torch_xla gathers before a forward and a backward, and leaves each process the averaged gradients of its
    shards: nothing else reduces any.

    Args:
        request: as the `setup` hook received it; its module has been cut.
        layout: of one device.
        wrapped: what of it.
        optimizers: over the shards.
    """

    carries_hooks = True
    supports_inference_mode = False

    def __init__(
        self, request: SetupRequest, layout: Layout, wrapped: Wrapped, optimizers: list[Optimizer]
    ) -> None:
        import torch_xla.core.xla_model as xm

        self._wrapped = wrapped
        self.leaves_module_sharded = request.collectives.world_size > 1
        self._reduce: Callable[[str, torch.Tensor], torch.Tensor] = xm.all_reduce
        super().__init__(request, layout, wrapped.root, optimizers)
        self._mesh = _mesh(request.collectives.world_size)
        self._forwards = 0
        """With gradients, since the last backward."""
        for optimizer in self.optimizers:
            optimizer.register_step_pre_hook(lambda *_: self._before_step())

    # Per step -----------------------------------------------------------------------------------

    def replicas(self) -> Iterator[tuple[Any, ...]]:
        # Each process has different shards.
        for name, value in super().replicas():
            if not isinstance(value, torch.Tensor):
                yield name, value

    @computing_with_shards()
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self._forwards += torch.is_grad_enabled()
        try:
            output = super().forward(*args, **kwargs)
        except RuntimeError as error:
            name = self._shard_used_in(error)
            if name is None:
                raise
            raise ShardedUseError(use_of_shard(name)) from error
        if not torch.is_grad_enabled():
            self._free()
        return output

    @computing_with_shards()
    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        if not self._forwards:
            raise ShardedUseError(
                "under xla_fsdp with spmd=False, backward was called without a forward since the backward before it, "
                "which freed the gathered parameters: add the losses and call backward once, or leave spmd=True"
            )
        self._forwards = 0
        for unit in self._wrapped.gathered:
            unit.settle()
        super().backward(loss, **kwargs)
        # What got no gradient is still gathered.
        self._free()

    def step(self, index: int, closure: Callable[[], Any] | None = None) -> bool:
        with stepping(self.optimizers[index]):
            return super().step(index, closure)

    @computing_with_shards()
    def zero_grad(self, index: int) -> None:
        super().zero_grad(index)

    def _shard_used_in(self, error: RuntimeError) -> str | None:
        """Return the name of the shard with which the user's code computed; None where it was none."""
        shards = {
            id(p): name
            for name, p in self.original_module.named_parameters()
            if id(p) in self._wrapped.shapes
        }
        return parameter_used_in(error.__traceback__, shards)

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        broadcast_coalesced(self.original_module.buffers(), self._collectives)
        yield

    def evaluating(self) -> AbstractContextManager[Any]:
        return self._evaluating()

    @computing_with_shards()
    def clip(self, index: int, clipping: Clipping) -> torch.Tensor | None:
        """Clip by the norm over all processes' shards of optimizer `index`'s parameters."""
        super().clip(index, replace(clipping, max_norm=None))
        if clipping.max_norm is None:
            return None
        kind = float(clipping.norm_type)
        parameters = self._parameters[index]
        grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
        total = nn.utils.get_total_norm(grads, kind).to(self.device)
        sums = kind != inf
        total = self._reduce("sum", total**kind) ** (1.0 / kind) if sums else self._reduce("max", total)
        nn.utils.clip_grads_with_norm_(parameters, clipping.max_norm, total)
        return total

    def _before_step(self) -> None:
        for unit in self._wrapped.gathered:
            unit.check_gradients()
        # A parameter that a forward gathered and no backward freed would outlive what is stepped.
        self._free()

    @computing_with_shards()
    def _free(self) -> None:
        for wrapper in self._wrapped.wrappers:
            free(wrapper)

    # Checkpoint ---------------------------------------------------------------------------------

    @computing_with_shards()
    def model_tensors(self) -> dict[str, torch.Tensor]:
        """Whole tensors on the CPU; of several ranks, each has some rows. Collective."""
        self._free()
        broadcast_coalesced(self.original_module.buffers(), self._collectives)
        send_off()
        tensors: dict[str, torch.Tensor] = {}
        made: dict[int, torch.Tensor] = {}
        others: dict[str, torch.Tensor] = {}
        state: dict[str, Any] = self.original_module.state_dict(keep_vars=True)
        for name, value in state.items():
            key = f"model/{name}"
            if id(value) in self._wrapped.shapes:
                if id(value) not in made:
                    made[id(value)] = self._rows(value, value)
                tensors[key] = made[id(value)]
            elif isinstance(value, torch.Tensor):
                others[key] = value
        return {**tensors, **on_cpu(others)}

    @computing_with_shards()
    def optimizer_tensors(self) -> dict[str, torch.Tensor]:
        """As `model_tensors`: a shard's states are sharded, too. Collective."""
        self._free()
        send_off()
        shards = dict(self.original_module.named_parameters())
        tensors = {}
        for key, value in optimizer_tensors(self.original_module, self.optimizers).items():
            name = key.split("/", 2)[2].rpartition("/")[0]
            shard = shards[name]
            is_shard = id(shard) in self._wrapped.shapes and value.shape == shard.shape
            tensors[key] = self._rows(value, shard) if is_shard else value.detach().cpu()
        return tensors

    @computing_with_shards()
    def state(self) -> dict[str, Any]:
        self._free()
        return super().state()

    def _rows(self, value: torch.Tensor, shard: torch.Tensor) -> torch.Tensor:
        return row_shard(whole(value, self._wrapped.shapes[id(shard)], self._collectives), self._mesh)

    @computing_with_shards()
    def load(self, reader: CheckpointReader, state: dict[str, Any], *, model_only: bool = False) -> None:
        self._free()
        shapes = {
            name: (self._wrapped.shapes[id(shard)], shard.shape)
            for name, shard in self.original_module.named_parameters(remove_duplicate=False)
            if id(shard) in self._wrapped.shapes
        }
        shards = FlatShardsReader(reader, shapes, self._collectives.rank)
        targets = {
            f"model/{name}": value
            for name, value in self.original_module.state_dict().items()
            if isinstance(value, torch.Tensor)
        }
        load_model(self.original_module, targets, shards, state.get("extra", {}), targets.keys())
        if not model_only:
            for index in range(len(self.optimizers)):
                self.load_optimizer(index, shards, state.get("optimizers", []))
            self.precision.load_state_dict(state.get("precision", {}))
            self.load_random_state(state)
        send_off()

    @computing_with_shards()
    def release(self) -> None:
        self._free()
        if self._collectives.world_size == 1:
            # Among several, one may have failed, and the others mustn't wait for it.
            self._wrapped.restore()
        let_go(self._wrapped.shards.values())
        for unit in self._wrapped.gathered:
            unit.release()
        super().release()
        del self._wrapped


def _mesh(world_size: int) -> DeviceMesh | None:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", (world_size,)) if world_size > 1 else None
