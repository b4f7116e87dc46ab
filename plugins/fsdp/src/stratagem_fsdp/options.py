"""Reads the strategy's options from all forms that torch and other trainers accept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any

import torch
from stratagem_sharding.wrap_policy import modules_named
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    BackwardPrefetch,
    CPUOffload,
    CPUOffloadPolicy,
    MixedPrecision,
    MixedPrecisionPolicy,
    OffloadPolicy,
    ShardingStrategy,
)

from stratagem import ConfigError
from stratagem.errors import nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stratagem import Collectives, Precision

SHARDING_STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2", "NO_SHARD")
KEEPS_AFTER_FORWARD = ("SHARD_GRAD_OP", "_HYBRID_SHARD_ZERO2")
"""Strategies whose parameters stay gathered between forward and backward."""


RENAMED = {
    "mesh": "device_mesh",
    "mp_policy": "mixed_precision",
    "offload_policy": "cpu_offload",
    "ignored_params": "ignored_modules, for the modules that have them",
    "ignored_parameters": "ignored_modules, for the modules that have them",
    "ignored_states": "ignored_modules",
    "process_group": "device_mesh",
}
"""Keywords of `fully_shard` and FullyShardedDataParallel → their names here."""
GONE = {
    "state_dict_type": "a checkpoint is always written in shards, and any strategy and number of ranks loads it",
    "device_id": "each rank has the device that the run's accelerator and devices give it",
}
"""Keywords without a meaning here → the reason."""


def refuse_unknown(given: Mapping[str, object], named: Iterable[str]) -> None:
    """Refuse keywords that the strategy doesn't have.

    Args:
        given: the unknown keywords.
        named: the strategy's keywords, for the message.

    Raises:
        ConfigError: says what to write instead, or which keywords exist.
    """
    for name in given:
        if name in GONE:
            raise ConfigError(f"{name}={given[name]!r} is gone, as {GONE[name]}: leave it out")
        if name in RENAMED:
            raise ConfigError(f"{name}={given[name]!r} is now called {RENAMED[name]}")
        if name == "shard_placement_fn":
            raise ConfigError(
                "shard_placement_fn has no place here, where parameters are cut by rows: leave it out"
            )
        raise ConfigError(f"strategy 'fsdp' has no setting {name!r}; {nearest(name, named)}")


def ignored(root: nn.Module, given: Any) -> set[nn.Module]:
    """Return the modules of `root` that aren't sharded, with their submodules.

    Args:
        root: the user's module.
        given: modules of `root`, or any form that `modules_named` takes; None for no module.

    Raises:
        ConfigError: one isn't in `root`.
    """
    if given is None:
        return set()
    objects = [each for each in given if isinstance(each, nn.Module)] if isinstance(given, Iterable) else []
    here = set(root.modules())
    for module in objects:
        if module not in here:
            raise ConfigError(
                f"ignored_modules has a {type(module).__name__} that isn't in {type(root).__name__}: give modules of "
                "the model that is trained, or their classes"
            )
    found = objects or modules_named(root, given, "ignored_modules")
    return {inner for module in found for inner in module.modules()}


def sharding_strategy(given: ShardingStrategy | str) -> str:
    """Return the strategy's name.

    Raises:
        ConfigError: the name is unknown.
    """
    name = given.name if isinstance(given, Enum) else str(given).upper()
    if name not in SHARDING_STRATEGIES:
        public = [each for each in SHARDING_STRATEGIES if not each.startswith("_")]
        raise ConfigError(f"sharding_strategy={given!r} doesn't exist: choose one of {', '.join(public)}")
    return name


def offloads(given: bool | CPUOffload | OffloadPolicy) -> bool:
    """Whether parameters, gradients and optimizer states are kept on the CPU.

    Raises:
        ConfigError: not one of the types above.
    """
    if isinstance(given, bool):
        return given
    if isinstance(given, CPUOffload):
        return bool(given.offload_params)
    if isinstance(given, OffloadPolicy):
        return isinstance(given, CPUOffloadPolicy)
    raise ConfigError(
        f"cpu_offload={given!r} is a {type(given).__name__}: give True, False, torch's CPUOffload or its "
        "CPUOffloadPolicy"
    )


def offload_policy(given: bool | CPUOffload | OffloadPolicy, device: torch.device) -> OffloadPolicy:
    """Return the policy for parameters that are used on `device`."""
    if not offloads(given):
        return OffloadPolicy()
    # Torch refuses pinned memory without an accelerator.
    pin = given.pin_memory if isinstance(given, CPUOffloadPolicy) else True
    return CPUOffloadPolicy(pin_memory=pin and device.type != "cpu")


def mixed_precision(
    given: MixedPrecision | MixedPrecisionPolicy | None, precision: Precision, is_root: bool = True
) -> MixedPrecisionPolicy:
    """Return the policy for `given`, or, if it is None, for the run's precision.

    A run's precision means the same under every strategy: autocast (or converted parameters) decides
    the dtype in which a forward computes. Gradients are reduced in the parameters' dtype, or in the
    precision's `reduce_dtype`. To gather parameters in 16 bits and compute whole blocks in 16 bits,
    pass an explicit policy, as FSDP defines it.

    Args:
        given: the strategy's own option.
        precision: the run's precision.
        is_root: whether the policy is for a unit that isn't in another one.

    Raises:
        ConfigError: `given` has another type.
    """
    if given is None:
        return MixedPrecisionPolicy(reduce_dtype=precision.reduce_dtype, cast_forward_inputs=False)
    if isinstance(given, MixedPrecisionPolicy):
        return given
    if isinstance(given, MixedPrecision):
        return MixedPrecisionPolicy(
            param_dtype=given.param_dtype,
            reduce_dtype=given.reduce_dtype,
            cast_forward_inputs=given.cast_forward_inputs or (is_root and given.cast_root_forward_inputs),
        )
    raise ConfigError(
        f"mixed_precision={given!r} is a {type(given).__name__}: give torch's MixedPrecisionPolicy or "
        "MixedPrecision, or leave it out and choose the run's precision"
    )


def ignored_option_warnings(
    *,
    backward_prefetch: BackwardPrefetch | str | None,
    forward_prefetch: bool,
    limit_all_gathers: bool,
    use_orig_params: bool,
    mixed_precision: object,
    device: torch.device,
) -> list[str]:
    """Return a clause for each option that was set but has no effect."""
    notes = []
    if not use_orig_params:
        notes.append("use_orig_params=False (fully_shard always keeps the original parameters)")
    if not limit_all_gathers:
        notes.append("limit_all_gathers=False (fully_shard needs no limit: it frees in stream order)")
    if prefetch_name(backward_prefetch) == "BACKWARD_POST":
        notes.append("backward_prefetch=BACKWARD_POST (fully_shard always gathers as BACKWARD_PRE does)")
    if forward_prefetch and device.type == "cpu":
        notes.append("forward_prefetch=True (on a CPU nothing runs beside the forward)")
    if isinstance(mixed_precision, MixedPrecision):
        if mixed_precision.buffer_dtype is not None:
            notes.append("mixed_precision.buffer_dtype (fully_shard leaves buffers as they are)")
        if mixed_precision.keep_low_precision_grads:
            notes.append("mixed_precision.keep_low_precision_grads (gradients have the parameters' dtype)")
    return notes


def prefetch_name(given: BackwardPrefetch | str | None) -> str | None:
    """Return "BACKWARD_PRE", "BACKWARD_POST" or None.

    Raises:
        ConfigError: something else.
    """
    if given is None:
        return None
    name = given.name if isinstance(given, Enum) else str(given).upper()
    if name not in ("BACKWARD_PRE", "BACKWARD_POST"):
        raise ConfigError(
            f"backward_prefetch={given!r} doesn't exist: choose BACKWARD_PRE, BACKWARD_POST or None"
        )
    return name


def make_mesh(
    strategy: str,
    given: DeviceMesh | Sequence[int] | None,
    device: torch.device,
    collectives: Collectives,
    open_mesh: Callable[[tuple[int, int], tuple[str, str], str], DeviceMesh],
) -> DeviceMesh:
    """Return the mesh over which parameters are sharded: (shards,), or (replicas, shards). Collective.

    Raises:
        ConfigError: the given mesh doesn't fit the number of processes.
    """
    world_size = collectives.world_size
    if isinstance(given, DeviceMesh):
        _check_shape(tuple(given.mesh.shape), strategy, world_size)
        return given
    if strategy == "NO_SHARD":
        shape: tuple[int, ...] = (world_size, 1)
    elif "HYBRID" not in strategy:
        shape = (world_size,)
    else:
        shape = _node_shape(collectives)
    if given is not None:
        shape = tuple(given)
        _check_shape(shape, strategy, world_size)
    if len(shape) == 2:
        return open_mesh((shape[0], shape[1]), ("replicate", "shard"), device.type)
    # One dimension over all ranks uses the run's own process group.
    return init_device_mesh(device.type, shape, mesh_dim_names=("shard",))


def _node_shape(collectives: Collectives) -> tuple[int, int]:
    """Return (replicas, shards): shards within a node, replicas across nodes."""
    nodes = collectives.gather_objects(collectives.node_rank)
    sizes = {nodes.count(node) for node in nodes}
    if len(sizes) > 1:
        raise ConfigError(
            f"HYBRID_SHARD shards within each node, and the nodes have {sorted(sizes)} processes: start equally "
            "many on each, or give device_mesh=(replicas, shards)"
        )
    return len(set(nodes)), sizes.pop()


def _check_shape(shape: tuple[int, ...], strategy: str, world_size: int) -> None:
    wanted = 2 if "HYBRID" in strategy else 1
    product = 1
    for size in shape:
        product *= size
    if strategy == "NO_SHARD" or len(shape) != wanted or product != world_size:
        form = {1: f"({world_size},)", 2: f"(replicas, shards) with replicas × shards = {world_size}"}[wanted]
        advice = "leave it out" if strategy == "NO_SHARD" else f"give {form}, or leave it out"
        raise ConfigError(
            f"device_mesh={shape} doesn't fit sharding_strategy={strategy} in {world_size} processes: {advice}"
        )
