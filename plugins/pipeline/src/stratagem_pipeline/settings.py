"""`Settings`: the options that the strategy `pipeline` and the axis `pipeline` share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from stratagem import ConfigError
from stratagem_pipeline.balance import refuse_more_stages, refuse_other_stages
from stratagem_pipeline.find import pipelined_module

if TYPE_CHECKING:
    from torch import nn

    from stratagem_pipeline.schedules import Schedule


class Settings(Protocol):
    """The options, as docs/strategies/pipeline.md describes them."""

    schedule: Schedule
    micro_batches: int | None
    pipeline_module: str | None
    split_points: list[str] | None
    balance: list[int] | str
    stages_per_rank: int
    activation_checkpointing: bool
    batch_statistics_per_part: bool


def refuse_recomputation(settings: Settings) -> None:
    """Refuse activation checkpointing under a schedule that splits the backward.

    Raises:
        ConfigError: names the schedule.
    """
    if settings.activation_checkpointing and settings.schedule.splits_backward:
        raise ConfigError(
            f"activation_checkpointing goes with schedules that run a whole backward in one call, and "
            f"schedule={settings.schedule.name!r} computes gradients of inputs and of weights apart: choose "
            "'interleaved_1f1b' or '1f1b'"
        )


def check_layers(settings: Settings, module: nn.Module, size: int) -> None:
    """Refuse a module without a pipelined module, or with fewer layers than stages.

    What is traced has its layers only later.

    Raises:
        ConfigError: says what to change.
    """
    if settings.split_points is None:
        _, net = pipelined_module(module, settings.pipeline_module, traced=False)
        refuse_more_stages(len(list(net.children())), size * settings.stages_per_rank)


def check_settings(settings: Settings, size: int) -> None:
    """Refuse schedules and balances that don't fit the number of ranks.

    Raises:
        ConfigError: says what to change.
    """
    stages = size * settings.stages_per_rank
    if settings.micro_batches is not None:
        settings.schedule.check_micro_batches(settings.micro_batches, size, stages)
    if not isinstance(settings.balance, str):
        refuse_other_stages(settings.balance, stages)
