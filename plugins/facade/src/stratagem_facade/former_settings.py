"""Settings as other libraries call them, each with what to write here."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from stratagem.errors import ConfigError

ONCE_ACCELERATORS = (
    "dp",
    "ddp",
    "ddp2",
    "ddp_cpu",
    "ddp_fork",
    "ddp_notebook",
    "ddp_sharded",
    "ddp_spawn",
    "ddp_find_unused_parameters_false",
    "ddp_fully_sharded",
    "deepspeed",
    "fsdp",
    "fsdp_native",
    "horovod",
)
"""Strategies that PyTorch Lightning once took as `accelerator=`, `distributed_backend=` or `plugins=`."""
NEW_NAMES = {
    "fsdp_native": "fsdp",
    "fsdp_native_full_shard_offload": "fsdp_offload",
    "ddp_spawn_find_unused_parameters_false": "ddp_find_unused_parameters_false",
    "ddp_fork_find_unused_parameters_false": "ddp_find_unused_parameters_false",
    "ddp_sharded_find_unused_parameters_false": "ddp_sharded",
    "ddp_sharded_spawn_find_unused_parameters_false": "ddp_sharded_spawn",
    "tpu_spawn_debug": "tpu_spawn",
}
"""Name of a strategy in PyTorch Lightning → its name here."""
_OFFERS = json.loads(Path(__file__).with_name("index.json").read_text("utf-8"))["offers"]


def renamed_selection(**kwargs: Any) -> None:
    """Refuse settings of other libraries that choose how to run; names that aren't known are left to others.

    Args:
        **kwargs: what the user gave, as gpus=2 or accelerator="ddp".

    Raises:
        ConfigError: one or more have other names now; the message has the user's values.
    """
    if hints := renamed(kwargs):
        raise ConfigError(hints)


def renamed(settings: Mapping[str, Any]) -> str:
    """Return what to write instead of settings that have other names here; empty where none has."""
    hints = []
    for name, value in settings.items():
        today = RENAMED[name](value) if name in RENAMED else None
        if today is not None:
            hints.append(f"{name}={value!r} {today}")
    return "; ".join(hints)


def _devices_of(accelerator: str) -> Callable[[Any], str]:
    def today(value: Any) -> str:
        if value == "0":
            # Older trainers took the text for the index of a device, newer ones for a number of devices.
            first = f"accelerator={accelerator!r}, devices=[0] for the first device"
            return f"is now called {first}, or accelerator='cpu' for none"
        if value in (0, None) or value == []:
            return "is now called accelerator='cpu'"
        return f"is now called accelerator={accelerator!r}, devices={value!r}{_lacking('accelerator', accelerator)}"

    return today


def _strategy(value: Any) -> str:
    if value is None:
        return "is gone: leave it out, or choose a strategy as in strategy='ddp'"
    if value == "ddp_cpu":
        return "is now called accelerator='cpu', strategy='ddp'"
    name = NEW_NAMES.get(value, value) if isinstance(value, str) else value
    return f"is now called strategy={name!r}{_lacking('strategy', name)}"


def _lacking(kind: str, name: object) -> str:
    """Say that no plugin of ours has the new name, so that the next error doesn't contradict this one."""
    if not isinstance(name, str) or any(name in names for names in _OFFERS[kind].values()):
        return ""
    return f", which needs a plugin of another maker: Stratagem ships no {kind} of this name"


def _strategy_as_accelerator(value: Any) -> str | None:
    return _strategy(value) if _is_strategy(value) else None


def _strategy_as_plugin(value: Any) -> str | None:
    values = value if isinstance(value, (list, tuple)) else [value]
    named = [item for item in values if _is_strategy(item)]
    return _strategy(named[0]) if named else None


def _is_strategy(value: Any) -> bool:
    return isinstance(value, str) and (value in ONCE_ACCELERATORS or value.startswith("deepspeed_"))


RENAMED: Mapping[str, Callable[[Any], str | None]] = {
    "gpus": _devices_of("cuda"),
    "tpu_cores": _devices_of("tpu"),
    "ipus": _devices_of("ipu"),
    "hpus": _devices_of("hpu"),
    "num_processes": lambda value: f"is now called accelerator='cpu', devices={value!r}",
    "auto_select_gpus": lambda value: (
        "is gone: name the devices that nvidia-smi shows as least used, as in accelerator='cuda', devices=[0, 1]"
        if value
        else "is gone, and is so anyway: leave it out"
    ),
    "distributed_backend": _strategy,
    "accelerator": _strategy_as_accelerator,
    "strategy": lambda value: _strategy(value) if value in (*NEW_NAMES, "ddp_cpu") else None,
    "plugins": _strategy_as_plugin,
    "replace_sampler_ddp": lambda value: f"is now called use_distributed_sampler={value!r}",
    "resume_from_checkpoint": lambda value: f"is now called fit(..., ckpt_path={value!r})",
}
"""Name → what to say after "name=value"; None where this value is a good one today."""
