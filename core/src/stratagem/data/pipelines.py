"""Finds the stages of loaders that are pipelines, such as webdataset's, and sets their epoch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

SHARING_STAGES = ("split_by_node", "ResampledShards")
"""Names of known stages that give each rank different samples."""
_COUNTING_STAGE = "detshuffle"
"""Name of a known stage whose order depends on its attribute `epoch`. Each iteration first raises it by one."""


def stages_of(loader: Any) -> Iterator[Any]:
    """Yield the stages of a loader, of its dataset, and of loaders and datasets that are stages themselves."""
    for holder in (loader, getattr(loader, "dataset", None)):
        stages = getattr(holder, "pipeline", None)
        if isinstance(stages, list):
            for stage in stages:
                yield stage
                yield from stages_of(stage)


def shares_samples(loader: Any) -> bool:
    """Whether a stage gives each rank different samples."""
    return any(_name(stage) in SHARING_STAGES for stage in stages_of(loader))


def begin_epoch(loader: Any, epoch: int) -> None:
    """Set the epoch of stages that shuffle by it. Call it before loader workers get copies of the stages.

    Otherwise new workers would begin each epoch in the order of the first one, and so would a resumed run.

    Args:
        epoch: from 0.
    """
    for stage in stages_of(loader):
        if _name(stage) == _COUNTING_STAGE:
            # patch: epoch of a stage
            stage.epoch = epoch - 1


def _name(stage: Any) -> str:
    return getattr(stage, "__name__", type(stage).__name__)
