"""Communication hooks that can be chosen by name, as in `DDPStrategy(ddp_comm_hook="powersgd")`."""

# Without postponed annotations: DistributedDataParallel compares a hook's annotations by identity.

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

import torch
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # exported, but not in __all__
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
    PostLocalSGDState,
    post_localSGD_hook,
)
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState

from stratagem import ConfigError
from stratagem_ddp.power_sgd import PowerSGDMemory

Reduced = torch.futures.Future[torch.Tensor]

WARM_UP = 100
"""Optimizer steps with ordinary gradient averages, before PowerSGD or local SGD begins."""

COMPRESSED: Mapping[str, torch.dtype] = {"fp16": torch.float16, "bf16": torch.bfloat16}
"""Name of a compression hook → the dtype in which it sends gradients."""

SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "fp16": {},
    "bf16": {},
    "powersgd": {
        **{
            name: parameter.default
            for name, parameter in signature(PowerSGDState).parameters.items()
            if name != "process_group"
        },
        "start_powerSGD_iter": WARM_UP,
    },
    "post_local_sgd": {"start_localSGD_iter": WARM_UP, "subgroup_size": None},
}
"""Name of a hook → the settings that `ddp_comm_state` may have, with their defaults."""


def settings_of(hook: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return all settings of a named hook.

    Args:
        hook: its name.
        given: the settings in `ddp_comm_state`.

    Raises:
        ConfigError: there is no such hook, it has no such setting, or a value is impossible.
    """
    if hook not in SETTINGS:
        raise ConfigError(
            f"ddp_comm_hook={hook!r} must be one of {', '.join(SETTINGS)}: choose one, or give a function"
        )
    unknown = sorted(set(given) - set(SETTINGS[hook]))
    if unknown:
        has = ", ".join(SETTINGS[hook]) or "no settings"
        raise ConfigError(f"ddp_comm_state has {unknown[0]!r}, and ddp_comm_hook={hook!r} has {has}")
    settings = {**SETTINGS[hook], **given}
    if hook == "powersgd":
        _check_power_sgd(settings)
    if hook == "post_local_sgd":
        _check_min("start_localSGD_iter", settings["start_localSGD_iter"], 0)
        if settings["subgroup_size"] is not None:
            _check_min("subgroup_size", settings["subgroup_size"], 1)
    return settings


def _check_power_sgd(settings: Mapping[str, Any]) -> None:
    _check_min("matrix_approximation_rank", settings["matrix_approximation_rank"], 1)
    remembers = settings["use_error_feedback"] or settings["warm_start"]
    # DDP rebuilds its buckets after the first backward, and PowerSGD's memory is per bucket.
    _check_min("start_powerSGD_iter", settings["start_powerSGD_iter"], 2 if remembers else 0)


def _check_min(name: str, value: Any, minimum: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise ConfigError(
            f"ddp_comm_state has {name}={value!r}, which must be a whole number from {minimum} on"
        )


def fp16_compressed(group: Any, bucket: GradBucket) -> Reduced:
    """Average a bucket of gradients in float16."""
    return default_hooks.fp16_compress_hook(group, bucket)


def bf16_compressed(group: Any, bucket: GradBucket) -> Reduced:
    """Average a bucket of gradients in bfloat16."""
    return default_hooks.bf16_compress_hook(group, bucket)


def power_sgd(memory: PowerSGDMemory, bucket: GradBucket) -> Reduced:
    """Average a bucket of gradients as products of thin matrices."""
    return memory.reduce(bucket)


def local_gradients(state: PostLocalSGDState, bucket: GradBucket) -> Reduced:
    """Average a bucket of gradients over all ranks at first; later over a subgroup, or not at all."""
    return post_localSGD_hook(state, bucket)


HOOKS: Mapping[str, Callable[..., Any]] = {
    "fp16": fp16_compressed,
    "bf16": bf16_compressed,
    "powersgd": power_sgd,
    "post_local_sgd": local_gradients,
}


def renamed(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls `hook` and has another name.

    DistributedDataParallel requires NCCL for a hook with the name of torch's bfloat16 hooks, although gloo can
    average bfloat16, too.
    """

    def called(state: Any, bucket: GradBucket) -> Reduced:
        reduced: Reduced = hook(state, bucket)
        return reduced

    return called
