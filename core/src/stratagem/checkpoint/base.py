"""`Checkpointer`: writes and reads checkpoints; the answer to the `checkpoint` hook."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Checkpoint:
    """What one rank gives to `Checkpointer.save`.

    Attributes:
        tensors: this rank's part: plain tensors (whole; copies on several ranks are written once) and
            DTensors (sharded), on any device. The union over ranks is the checkpoint. Keys are
            "model/<name>" and "optimizer/<index>/<name>/<state>" with the plain module's names.
        state: nested dicts, lists, tuples, numbers, strings, bytes, None and small tensors or numpy
            arrays; only rank 0's is written.
        rank_state: the same kinds, written for each rank (its random number generators, its loaders).
    """

    tensors: Mapping[str, torch.Tensor]
    state: Mapping[str, Any] = field(default_factory=dict)
    rank_state: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TensorInfo:
    """Shape and dtype of a whole tensor in a checkpoint."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class CheckpointReader(ABC):
    """An opened checkpoint, checked to be complete."""

    state: Mapping[str, Any]
    """As it was saved by rank 0."""
    tensors: Mapping[str, TensorInfo]
    """All tensors in it."""
    world_size: int
    """How many ranks wrote it."""
    path: str = "the checkpoint"
    """How errors name it."""

    @abstractmethod
    def rank_state(self, rank: int) -> Mapping[str, Any] | None:
        """As rank `rank` saved it; None if there was no such rank."""

    @abstractmethod
    def read(self, targets: Mapping[str, torch.Tensor]) -> None:
        """Fill `targets` in place: tensors of the whole shape or DTensors of any placement and mesh.

        Called by every rank; each reads only what it needs. Dtypes are converted.

        Raises:
            CheckpointError: a key isn't in the checkpoint, its shape differs, or its values aren't those
                that were written.
        """


class Checkpointer(ABC):
    """Saves and opens checkpoints. Collective: every rank must call each method in the same order."""

    @abstractmethod
    def save(self, path: str, checkpoint: Checkpoint) -> None:
        """Write a checkpoint to `path`, all of it or nothing.

        A checkpoint that is already at `path` is replaced only once the new one is complete.
        """

    @abstractmethod
    def open(self, path: str, verify: bool = True) -> CheckpointReader:
        """Open the checkpoint at `path`.

        Args:
            path: as it was saved.
            verify: whether all that is read, now and later, is compared with its checksums.

        Raises:
            CheckpointError: nothing there, not a checkpoint, damaged, or from another version; raised
                on every rank.
        """

    @abstractmethod
    def remove(self, path: str) -> None:
        """Delete the checkpoint at `path`; nothing happens where there is none."""
