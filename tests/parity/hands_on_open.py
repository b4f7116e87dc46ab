"""Hands-on cells that are known to be neither equal nor refused, and why: to be worked off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class OpenCells:
    """Cells of strategies (patterns as of a shell) and rows."""

    strategies: Sequence[str]
    rows: Sequence[str]
    reason: str


SHARDS = ("fsdp", "ddp_fully_sharded", "model_parallel")
OPEN: tuple[OpenCells, ...] = (
    OpenCells(
        ("model_parallel",),
        ("functional_of_changed",),
        "torch's own error where a split layer is called with plain tensors: nothing of Stratagem's is called",
    ),
    OpenCells(
        ("dp",),
        ("state_per_sample",),
        "torch's own error where the loop puts the hidden states of all samples beside a device's part of them",
    ),
    OpenCells(
        ("fairscale_sharded",),
        (
            "clip_by_hand",
            "gradient_mask",
            "gradient_mean_removed",
            "gradient_noise",
            "gradient_replaced",
            "gradients_replaced_and_dropped",
            "norm_idiom",
            "norm_of_two_backwards",
            "norm_skips",
            "sharpness_aware",
        ),
        "the loop's own AttributeError: the gradient of a parameter that another rank steps is None",
    ),
    OpenCells(
        ("deepspeed_stage_3",),
        ("without_an_optimizer_raw",),
        "DeepSpeed's own RuntimeError about backwards that it doesn't run",
    ),
    OpenCells(
        ("deepspeed_stage_3",),
        ("state_round_trip",),
        "torch's own KeyError where `state_dict()` looks for parameters that the engine has replaced",
    ),
    OpenCells(
        ("deepspeed_stage_[123]",),
        ("members_of_groups_changed",),
        "the loop's own IndexError: a group has one flat shard in the place of its parameters",
    ),
)


def why_open(row: str, strategy: str) -> str:
    """Return why a cell is known to be wrong; "" where it isn't known to be."""
    return next(
        (
            each.reason
            for each in OPEN
            if any(fnmatchcase(strategy, pattern) for pattern in each.strategies)
            and any(fnmatchcase(row, pattern) for pattern in each.rows)
        ),
        "",
    )
