"""Loaders that are pipelines of stages, as those of webdataset: which stages they have, and their epoch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

SHARING_STAGES = ("split_by_node", "ResampledShards")
"""Names of stages in the field that give each rank other samples."""
_COUNTING_STAGE = "detshuffle"
"""Name of a stage in the field whose order depends on its attribute `epoch`, which each iteration raises by one."""


def stages_of(loader: Any) -> Iterator[Any]:
    """Yield the stages of a loader, of its dataset, and of loaders and datasets that are stages themselves."""
    for holder in (loader, getattr(loader, "dataset", None)):
        stages = getattr(holder, "pipeline", None)
        if isinstance(stages, list):
            for stage in stages:
                yield stage
                yield from stages_of(stage)


def shares_samples(loader: Any) -> bool:
    """Whether a stage gives each rank other samples."""
    return any(_name(stage) in SHARING_STAGES for stage in stages_of(loader))


def begin_epoch(loader: Any, epoch: int) -> None:
    """Let stages that shuffle by an epoch use this one, also in loader workers, which get copies of them.

    Without it, new workers begin each epoch in the order of the first, and a resumed run does.

    Args:
        epoch: from 0.
    """
    for stage in stages_of(loader):
        if _name(stage) == _COUNTING_STAGE:
            # patch: epoch of a stage
            stage.epoch = epoch - 1


def _name(stage: Any) -> str:
    return getattr(stage, "__name__", type(stage).__name__)
