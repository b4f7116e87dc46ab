"""Keywords of torch_xla's `XlaFullyShardedDataParallel` that the strategy passes on, or refuses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from stratagem import ConfigError

PASSED = (
    "reshard_after_forward",
    "execute_sharding_on_init",
    "optimization_barrier_in_forward",
    "optimization_barrier_in_backward",
    "sync_on_finalization",
    "disable_reshard_on_root",
    "compute_dtype",
    "buffer_dtype",
    "fp32_reduce_scatter",
    "shard_param_on_dim_0",
    "pin_layout_in_collective_ops",
)
_GROUPS = "all processes of the run share the parameters; leave it out"
REFUSED: Mapping[str, tuple[Any, str]] = {
    "flatten_parameters": (
        False,
        "optimizers keep their groups, and checkpoints the names of parameters; leave it False",
    ),
    "sharding_groups": (None, _GROUPS),
    "sharding_rank": (None, _GROUPS),
    "sharding_world_size": (None, _GROUPS),
    "coalesce_all_gather_ops": (
        False,
        "torch_xla would leave parameters that aren't cut along their rows empty; leave it False",
    ),
    "reduce_scatter_bucket_size_mb": (
        0,
        "torch_xla would lose the gradients of a unit with a parameter that a step doesn't use; leave it 0",
    ),
    "auto_wrapper_callable": (
        None,
        "the strategy wraps; recompute activations in your module, by torch_xla.utils.checkpoint",
    ),
    "param_init_fn": (None, "modules are constructed whole; leave it out"),
}
"""Keyword → the only value that is taken, and why."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def wrapper_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is to be passed on of the keywords that a user gave.

    Raises:
        ConfigError: there is no such keyword, or it can't have that value here.
    """
    passed = {}
    for name, value in given.items():
        if name in REFUSED:
            only, why = REFUSED[name]
            if value != only:
                raise ConfigError(f"{name}={value!r} is not available under xla_fsdp: {why}")
        elif name not in PASSED:
            raise ConfigError(
                f"xla_fsdp has no option {name!r}; it takes its own and those of XlaFullyShardedDataParallel: "
                f"{', '.join(PASSED)}"
            )
        else:
            passed[name] = _dtype(name, value) if name.endswith("_dtype") else value
    return passed


def _dtype(name: str, value: Any) -> torch.dtype | None:
    dtype = value if value is None else DTYPES.get(str(value).removeprefix("torch."))
    if value is not None and dtype is None:
        raise ConfigError(f"{name}={value!r} must be one of {', '.join(DTYPES)}")
    return dtype
