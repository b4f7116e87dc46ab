"""Refuses what the engine can't do, or silently does wrong, before anything is started."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING

import torch
from torch.nn.parameter import is_lazy

from stratagem import CheckpointError, CombinationError, ConfigError, PrecisionError

if TYPE_CHECKING:
    from torch import nn

    from stratagem_deepspeed.configuration import Configuration

NOT_ON_CPU = ("lamb", "lion", "onebitadam", "onebitlamb", "zerooneadam")
"""Optimizers of the engine that have no kernel for a CPU."""
GONE = ("onebitadam", "onebitlamb", "zerooneadam")
"""Optimizers that DeepSpeed 0.19 doesn't have any more."""
BATCH_PARTS = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
"""Samples of an optimizer step, samples of a rank's micro-batch, micro-batches of a step."""


def check_values(configuration: Configuration) -> None:
    """Refuse values that contradict each other, or that this machine can't provide.

    Raises:
        ConfigError: names the value, and what to do.
    """
    source = configuration.source or "the keywords"
    stage = configuration.tree["zero_optimization"].get("stage", 0)
    if isinstance(stage, bool) or stage not in (0, 1, 2, 3):
        raise ConfigError(f"{source} has zero_optimization.stage={stage!r}: choose 0, 1, 2 or 3")
    if configuration.offload_parameters != "none" and stage != 3:
        raise ConfigError(
            f"only stage 3 can keep parameters on {configuration.offload_parameters}, and the stage is {stage}: "
            "choose stage=3, or offload the optimizer alone"
        )
    if configuration.offload_optimizer != "none" and stage == 0:
        raise ConfigError(
            f"stage 0 can't keep optimizer states on {configuration.offload_optimizer}: choose stage 1, 2 or 3"
        )
    if configuration.offload_optimizer == "nvme" and stage != 3:
        raise ConfigError(
            f"only stage 3 keeps optimizer states on nvme, and stage {stage} would leave them in CPU memory: choose "
            "stage=3, or offload_optimizer_device='cpu'"
        )
    _check_optimizer(configuration)
    for section in ("offload_param", "offload_optimizer"):
        _check_folder(configuration, section)


def check_run(configuration: Configuration, precision: str, accelerator: str, world_size: int) -> None:
    """Refuse a precision, device or number of ranks that this configuration can't do.

    Raises:
        PrecisionError: the device can't compute in the precision.
        ConfigError: the configuration's optimizer has no kernel for the device, or its batch sizes don't fit.
    """
    _check_batch(configuration, world_size)
    if precision.startswith("16-") and accelerator == "cpu":
        raise PrecisionError(
            f"deepspeed can't compute in float16 on a CPU, and precision={precision!r} asks for it: choose "
            "bf16-mixed or 32-true"
        )
    name = _optimizer_name(configuration)
    if accelerator == "cpu" and name.lower() in NOT_ON_CPU:
        raise ConfigError(
            f"{configuration.source} has the optimizer {name}, which DeepSpeed has for CUDA devices alone: choose "
            "AdamW, or run on cuda"
        )


def check_dtypes(original_module: nn.Module, stage: int, precision: str) -> None:
    """Refuse parameters that the engine would silently train in another precision than their own.

    Args:
        original_module: the user's module.
        stage: the ZeRO stage.
        precision: the run's precision.

    Raises:
        PrecisionError: names one.
    """
    halves = {"bf16": torch.bfloat16, "16": torch.float16}
    fitting = {torch.float32, halves.get(precision.split("-")[0], torch.float32)}
    if stage == 0:
        fitting |= {torch.bfloat16, torch.float16}
    for name, parameter in original_module.named_parameters():
        if parameter.requires_grad and parameter.dtype not in fitting:
            raise PrecisionError(
                f"parameter {name!r} is {_dtype(parameter.dtype)}, and deepspeed under precision={precision!r} steps "
                f"and sends {_dtype(torch.float32)}: convert it, as by module.float(), or choose strategy ddp or fsdp"
            )


def check_shapes(original_module: nn.Module) -> None:
    """Refuse parameters without a dimension, which the engine can't send.

    Raises:
        ConfigError: names one.
    """
    for name, parameter in original_module.named_parameters():
        if not parameter.dim():
            raise ConfigError(
                f"parameter {name!r} has no dimension, and deepspeed sends parameters along one: give it one, as in "
                "torch.ones(1), or choose strategy ddp or fsdp"
            )


def check_compiled(original_module: nn.Module) -> None:
    """Refuse modules made by torch.compile: stage 3 can't handle a wrapper that exposes the inner parameters.

    Raises:
        ConfigError: names one.
    """
    for name, module in original_module.named_modules():
        if type(module).__name__ == "OptimizedModule":
            raise ConfigError(
                f"{name or 'the module'!r} is made by torch.compile, and deepspeed's stage 3 can't go through its "
                f"wrapper: call {name or 'module'}.compile() in place of torch.compile(…), or choose stage 2"
            )


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _check_batch(configuration: Configuration, world_size: int) -> None:
    """Check batch sizes in the configuration; the loader's are only known later, on every rank."""
    total, micro, steps = (
        each if isinstance(each, int) else None for each in map(configuration.tree.get, BATCH_PARTS)
    )
    if total is None:
        return
    least = (micro or 1) * (steps or 1) * world_size
    if total % least or (micro and steps and total != least):
        parts = [f"micro-batches of {micro}"] if micro else []
        parts += [f"{steps} micro-batches a step"] if steps else []
        parts += [f"{world_size} ranks"]
        raise ConfigError(
            f"{configuration.source} has train_batch_size={total}, which {', '.join(parts)} don't make: leave it "
            "out, or change one of these"
        )


def _check_optimizer(configuration: Configuration) -> None:
    name = _optimizer_name(configuration)
    if configuration.makes_optimizer and not name:
        raise ConfigError(f"{configuration.source} has an optimizer without a type: add one, as AdamW")
    if name.lower() in GONE:
        raise ConfigError(
            f"{configuration.source} has the optimizer {name}, which DeepSpeed 0.19 doesn't have any more: choose "
            "AdamW, or Lamb on cuda"
        )


def _optimizer_name(configuration: Configuration) -> str:
    optimizer = configuration.tree.get("optimizer") or {}
    return str(optimizer.get("type") or "")


def _check_folder(configuration: Configuration, section: str) -> None:
    options = configuration.tree["zero_optimization"].get(section) or {}
    if options.get("device") != "nvme":
        return
    path = options.get("nvme_path")
    if path is None:
        raise ConfigError(f"{section} is on nvme without an nvme_path: give a folder on the drive")
    if not os.path.isdir(path):
        raise ConfigError(f"nvme_path={os.fspath(path)!r} isn't a folder: give one that exists, on the drive")
    try:
        with tempfile.NamedTemporaryFile(dir=path) as file:
            # Open it as the engine does, with O_DIRECT. os.access wouldn't help: it always allows root.
            os.close(os.open(file.name, os.O_RDWR | getattr(os, "O_DIRECT", 0)))
    except OSError as error:
        raise ConfigError(
            f"nvme_path={os.fspath(path)!r} can't be written to, {error.strerror}: give a folder on a drive that can"
        ) from error


def check_engine_checkpoint(folder: str | None) -> None:
    """Refuse a checkpoint folder that doesn't exist.

    Raises:
        CheckpointError: there is no such folder.
    """
    if folder is not None and not os.path.isdir(folder):
        raise CheckpointError(
            f"engine_checkpoint={folder!r} isn't a folder: give the one that DeepSpeed's save_checkpoint was given"
        )


def check_elements(original_module: nn.Module) -> None:
    """Refuse parameters without elements, which stage 3 can't gather.

    Raises:
        CombinationError: names one.
    """
    for name, parameter in original_module.named_parameters():
        if not parameter.numel() and not is_lazy(parameter):
            raise CombinationError(
                f"parameter {name!r} has no elements, and deepspeed's stage 3 can't gather such a one: leave it out "
                "of the module, or choose stage 2"
            )


def check_known(original_module: nn.Module) -> None:
    """Refuse parameters that were added to the module after `setup`: the engine at stage 3 hasn't sharded them.

    Raises:
        CombinationError: names one.
    """
    for name, parameter in original_module.named_parameters():
        if not hasattr(parameter, "ds_tensor"):
            raise CombinationError(
                f"parameter {name!r} was put into the module after setup(), and deepspeed's stage 3 shards what is "
                "there at the start: replace layers before setup(), or choose strategy ddp or fsdp"
            )
