"""The strategy's keywords as the engine's configuration."""

from __future__ import annotations

from typing import Any, get_type_hints

from stratagem import ConfigError
from stratagem.errors import nearest
from stratagem.sdk.options import ProcessGroupOptions
from stratagem_deepspeed.keys import RENAMED, SECTIONS, ZERO

PLACES = ("cpu", "nvme")

OLD = {
    "cpu_offload": "offload_optimizer",
    "cpu_offload_params": "offload_parameters",
    "cpu_offload_use_pin_memory": "pin_memory",
    "load_full_weights": "nothing: every checkpoint is loaded at every stage",
    "logging_level_name": "logging_level",
    "params_buffer_device": "offload_params_device",
}
"""Keywords of other trainers and their older versions → their names here."""


def tree(*, further: dict[str, Any], **keyword: Any) -> dict[str, Any]:
    """Return the configuration that keywords stand for.

    Args:
        further: additional keywords that the constructor's signature doesn't name.
        keyword: the constructor's named keywords.

    Raises:
        ConfigError: a keyword that doesn't exist, has another name now, or has an impossible value.
    """
    stage = keyword["stage"]
    if isinstance(stage, bool) or stage not in (0, 1, 2, 3):
        raise ConfigError(f"stage={stage!r} isn't one of ZeRO's: choose 0, 1, 2 or 3")
    zero = {
        "stage": stage if keyword["zero_optimization"] else 0,
        "contiguous_gradients": keyword["contiguous_gradients"],
        "overlap_comm": keyword["overlap_comm"],
        "allgather_partitions": keyword["allgather_partitions"],
        "reduce_scatter": keyword["reduce_scatter"],
        **{
            name: _whole(name, keyword[name])
            for name in ("allgather_bucket_size", "reduce_bucket_size", "sub_group_size")
        },
        # Otherwise the engine replaces torch.nn.functional.linear for the whole process.
        "memory_efficient_linear": False,
    }
    zero.update(_offloading(keyword))
    checkpointing = {"cpu_checkpointing": keyword["cpu_checkpointing"]}
    half: dict[str, Any] = {}
    for name, value in further.items():
        _refuse_old(name, value)
        if name in ZERO:
            zero[name] = value
        elif name in SECTIONS["activation_checkpointing",]:
            checkpointing[name] = value
        elif name in SECTIONS["fp16",] - {"enabled"}:
            half[name] = value
        else:
            engine = [*ZERO, *SECTIONS["activation_checkpointing",], *SECTIONS["fp16",]]
            known = [*keyword, *get_type_hints(ProcessGroupOptions), *engine]
            hint = nearest(name, known, "see docs/strategies/deepspeed.md")
            raise ConfigError(f"strategy 'deepspeed' has no setting {name!r}: {hint}")
    made: dict[str, Any] = {
        "zero_optimization": zero,
        "activation_checkpointing": checkpointing,
        "zero_allow_untested_optimizer": keyword["zero_allow_untested_optimizer"],
        "zero_force_ds_cpu_optimizer": False,
    }
    if half:
        made["fp16"] = half
    if "nvme" in str(zero.get("offload_param")) + str(zero.get("offload_optimizer")):
        made["aio"] = {
            "block_size": keyword["block_size"],
            "queue_depth": keyword["queue_depth"],
            "single_submit": keyword["single_submit"],
            "overlap_events": keyword["overlap_events"],
            "intra_op_parallelism": keyword["thread_count"],
        }
    samples = keyword["logging_batch_size_per_gpu"]
    if samples != "auto":
        if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
            raise ConfigError(
                f"logging_batch_size_per_gpu={samples!r} is no number of samples: give one from 1, or 'auto'"
            )
        made["train_micro_batch_size_per_gpu"] = samples
    return made


def _whole(name: str, value: float) -> int:
    """Return a number of elements as int: it is often written as a float, as 5e8."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value // 1 or value < 1:
        raise ConfigError(
            f"{name}={value!r} is no number of elements: give a whole one, as 200_000_000 or 2e8"
        )
    return int(value)


def _offloading(keyword: dict[str, Any]) -> dict[str, Any]:
    zero: dict[str, Any] = {}
    remote = keyword["remote_device"]
    if remote not in (None, "none", *PLACES):
        raise ConfigError(f"remote_device={remote!r} must be one of {', '.join(PLACES)}")
    places = {name: keyword[name] for name in ("offload_params_device", "offload_optimizer_device")}
    for name, place in places.items():
        if place not in PLACES:
            raise ConfigError(f"{name}={place!r} must be one of {', '.join(PLACES)}")
    if keyword["offload_parameters"] or remote in PLACES:
        place = remote if remote in PLACES else places["offload_params_device"]
        zero["offload_param"] = {"device": place, "pin_memory": keyword["pin_memory"]}
        if place == "nvme":
            zero["offload_param"] |= {
                "nvme_path": keyword["nvme_path"],
                "buffer_count": keyword["params_buffer_count"],
                "buffer_size": keyword["params_buffer_size"],
                "max_in_cpu": keyword["max_in_cpu"],
            }
    if keyword["offload_optimizer"]:
        place = places["offload_optimizer_device"]
        zero["offload_optimizer"] = {"device": place, "pin_memory": keyword["pin_memory"]}
        if place == "nvme":
            zero["offload_optimizer"] |= {
                "nvme_path": keyword["nvme_path"],
                "buffer_count": keyword["optimizer_buffer_count"],
            }
    return zero


def _refuse_old(name: str, value: Any) -> None:
    today = OLD.get(name) or RENAMED["zero_optimization",].get(name)
    if today is not None:
        raise ConfigError(f"{name}={value!r} is now called {today}")
