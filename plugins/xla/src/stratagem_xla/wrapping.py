"""Cutting a module's parameters by torch_xla's `XlaFullyShardedDataParallel`, one process per device."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from stratagem_sharding.torch_private import own_buffers, own_parameters
from stratagem_sharding.wrap_policy import units_among
from torch import nn

from stratagem import ConfigError, DeviceError
from stratagem_xla.flat_shards import SCALARS, broadcast_coalesced, fill, whole
from stratagem_xla.gathered import GatheredUnit
from stratagem_xla.sharded import units
from stratagem_xla.xla_private import PATCHED

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from stratagem import Collectives, SetupRequest
    from stratagem_xla.fsdp import Policy


class Body(nn.Module):
    """What torch_xla's wrapper has inside: leads a call to the user's module, which isn't replaced.

    Args:
        module: whose parameters are cut.
        inner: wrappers of modules in it, which the outermost has to know.
    """

    def __init__(self, module: nn.Module, inner: Sequence[nn.Module] = ()) -> None:
        super().__init__()
        self.module, self.inner = module, nn.ModuleList(inner)
        self.call: Callable[..., Any] = module.__call__

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(*args, **kwargs)


@dataclass(frozen=True)
class Wrapped:
    """The result of sharding. `named_parameters` of the user's modules has shards, under the same names."""

    root: nn.Module
    """To be called instead of the module."""
    wrappers: Sequence[Any]
    """All of torch_xla's, `root` too."""
    gathered: Sequence[GatheredUnit]
    """One for each of them."""
    shards: Mapping[int, nn.Parameter]
    """Id of the original parameter → its shard."""
    shapes: Mapping[int, torch.Size]
    """A shard's id → the unsharded shape."""
    restore: Callable[[], None]
    """Gives modules whole parameters again, and takes off what was set on them. Collective."""


def wrap(request: SetupRequest, policy: Policy, options: Mapping[str, Any], sync: bool) -> Wrapped:
    """Shard the parameters, a unit at a time, so that a device never has more than shards and one unsharded unit.

    Args:
        request: as the `setup` hook received it.
        policy: names the units.
        options: for each wrapper.
        sync: begin with the first process's parameters and buffers.

    Raises:
        ConfigError: a wrong policy, or a parameter that isn't float32.
        DeviceError: PJRT numbers the processes otherwise.
    """
    from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel

    module, collectives = request.precision.convert_module(request.module), request.collectives
    _check_types(request.original_module)
    # What is called of the user's module itself is a step, and not its forward.
    named = [unit for unit in units(request.original_module, policy) if unit is not request.original_module]
    candidates = [unit for unit in named if _can_be_called(unit, policy)]
    found = [unit for unit in units_among(module, candidates) if not _is_shared(module, unit)]
    if sync:
        broadcast_coalesced((*module.parameters(), *module.buffers()), collectives)
    places = _places(module)
    wholes = _at(places)
    # Before they are emptied.
    sizes = [each.shape for each in wholes]
    given = {id(each) for each in wholes}
    orders = {each: list(own_parameters(each)) for each in module.modules()}
    patched = {each: {key: each.__dict__.get(key) for key in PATCHED} for each in module.modules()}
    moved: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    wrappers: list[Any] = []
    gathered: list[GatheredUnit] = []
    names = {
        (owner, key): f"{prefix}.{key}" if prefix else key
        for prefix, owner in request.original_module.named_modules()
        for key in own_parameters(owner)
    }
    for unit in [*found, module]:
        _move(unit, request.device, given, moved)
        body = Body(unit, wrappers if unit is module else ())
        buffers = _buffers(unit)
        wrapper = XlaFullyShardedDataParallel(body, **options)
        if not {"buffer_dtype", "compute_dtype"} & options.keys():
            # torch_xla casts all of them to float32, and a checkpoint would have that.
            for owner, name, buffer in buffers:
                own_buffers(owner)[name] = buffer
        wrapper.optimization_barrier_op = _barrier
        if unit is not module:
            # torch_xla may have set another, on a Linear.
            # patch: replaced forwards
            body.call, unit.forward = unit.forward, wrapper.__call__
        gathered.append(GatheredUnit(wrapper, names))
        wrappers.append(wrapper)
    _check_place(wrappers[-1], collectives)
    for each, keys in orders.items():
        values = {key: own_parameters(each)[key] for key in keys}
        own_parameters(each).clear()
        own_parameters(each).update(values)
    shards = _at(places)
    shapes = {id(shard): size for shard, size in zip(shards, sizes)}

    def restore() -> None:
        for shard, owners in zip(shards, places):
            value = whole(shard, shapes[id(shard)], collectives).to(shard.device)
            again = nn.Parameter(value, shard.requires_grad)
            for owner, name in owners:
                setattr(owner, name, again)
        for each, attributes in patched.items():
            for key, attribute in attributes.items():
                each.__dict__.pop(key, None)
                if attribute is not None:
                    each.__dict__[key] = attribute

    by_id = {id(each): shard for each, shard in zip(wholes, shards)}
    return Wrapped(wrappers[-1], wrappers, gathered, by_id, shapes, restore)


def point_at_shards(optimizer: Optimizer, wrapped: Wrapped, rank: int) -> None:
    """Let an optimizer that was made over unsharded parameters step this rank's shards."""
    shards, before = wrapped.shards, dict(optimizer.state)
    for group in optimizer.param_groups:
        group["params"] = [shards.get(id(parameter), parameter) for parameter in group["params"]]
    optimizer.state.clear()
    for parameter, state in before.items():
        shard = shards.get(id(parameter), parameter)
        # A parameter that was on the device is empty by now.
        shape = wrapped.shapes.get(id(shard), parameter.shape)
        optimizer.state[shard] = {
            key: _cut(value, shard, rank) if _is_like(key, value, shape) else value
            for key, value in state.items()
        }


def _is_like(key: str, value: Any, shape: torch.Size) -> bool:
    if not isinstance(value, torch.Tensor) or value.shape != shape:
        return False
    return value.dim() > 0 or key not in SCALARS


def _cut(value: torch.Tensor, shard: torch.Tensor, rank: int) -> torch.Tensor:
    own = torch.zeros_like(shard, dtype=value.dtype)
    fill(own, value, rank)
    return own


def _check_types(original_module: nn.Module) -> None:
    for name, parameter in original_module.named_parameters():
        if parameter.dtype != torch.float32:
            raise ConfigError(
                f"parameter {name!r} is {parameter.dtype}, and xla_fsdp with spmd=False only cuts torch.float32: "
                "leave spmd=True, or make it a buffer"
            )


def _can_be_called(unit: nn.Module, policy: Policy) -> bool:
    """Whether it has a forward, without which nothing would ever gather its parameters."""
    if type(unit).forward is not nn.Module.forward:
        return True
    if policy is not None and not callable(policy):
        raise ConfigError(
            f"auto_wrap_policy names {type(unit).__name__}, which has no forward, so that nothing would gather its "
            "parameters: name the modules in it"
        )
    return False


def _is_shared(root: nn.Module, unit: nn.Module) -> bool:
    """Whether a module in a unit is also in one outside of it, which would find its parameters empty."""
    within = set(unit.modules())
    inner = within - {unit}
    return any(child in inner for each in root.modules() if each not in within for child in each.children())


Places = list[list[tuple[nn.Module, str]]]
"""For each parameter the modules that have it, each with its name there."""


def _places(module: nn.Module) -> Places:
    places: dict[int, list[tuple[nn.Module, str]]] = {}
    for owner in module.modules():
        for name, parameter in own_parameters(owner).items():
            if parameter is not None:
                places.setdefault(id(parameter), []).append((owner, name))
    return list(places.values())


def _at(places: Places) -> list[nn.Parameter]:
    """What is registered there now: first unsharded parameters, then shards."""
    there = [own_parameters(owner)[name] for (owner, name), *_ in places]
    return [parameter for parameter in there if parameter is not None]


def _check_place(wrapper: Any, collectives: Collectives) -> None:
    if (wrapper.rank, wrapper.world_size) != (collectives.rank, collectives.world_size):
        raise DeviceError(
            f"PJRT says that this is process {wrapper.rank} of {wrapper.world_size}, and the run that it is "
            f"{collectives.rank} of {collectives.world_size}: leave spmd=True"
        )


def _move(
    module: nn.Module,
    device: torch.device,
    given: Collection[int],
    moved: dict[int, tuple[torch.Tensor, torch.Tensor]],
) -> None:
    """Move tensors to the device. `moved` maps a tensor's id to the tensor and its copy, so that ties stay.

    Parameters of the user's, whose ids are `given`, get other objects where they are there already, too: those that
    the user's code has are no longer trained.
    """
    for owner in module.modules():
        for name, parameter in list(own_parameters(owner).items()):
            if parameter is not None and (parameter.device != device or id(parameter) in given):
                if id(parameter) not in moved:
                    there = nn.Parameter(parameter.detach().to(device), parameter.requires_grad)
                    moved[id(parameter)] = parameter, there
                # Not into _parameters: an LSTM keeps its own list.
                setattr(owner, name, moved[id(parameter)][1])
        for name, buffer in list(own_buffers(owner).items()):
            if buffer is not None and buffer.device != device:
                if id(buffer) not in moved:
                    moved[id(buffer)] = buffer, buffer.to(device)
                own_buffers(owner)[name] = moved[id(buffer)][1]


def _buffers(module: nn.Module) -> list[tuple[nn.Module, str, torch.Tensor | None]]:
    return [(owner, name, each) for owner in module.modules() for name, each in own_buffers(owner).items()]


def _barrier(tensors: Sequence[torch.Tensor]) -> None:
    """Keep XLA from moving work across this point.

    Not by way of integers: torch_xla 2.9 aborts the process when an embedding looks up what has come through.
    """
    import torch_xla.core.xla_model as xm

    floating = [tensor for tensor in tensors if tensor.is_floating_point()]
    if floating:
        xm.optimization_barrier_(floating)
