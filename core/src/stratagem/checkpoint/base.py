"""`Checkpointer`: writes and reads checkpoints; the answer to the `checkpoint` hook."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
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
    """Shared state, as rank 0 saved it."""
    tensors: Mapping[str, TensorInfo]
    """All tensors in it."""
    world_size: int
    """How many ranks wrote it."""
    path: str = "the checkpoint"
    """How errors name it."""

    @abstractmethod
    def rank_state(self, rank: int) -> Mapping[str, Any] | None:
        """Return the state that rank `rank` saved; None if there was no such rank."""

    @abstractmethod
    def read(self, targets: Mapping[str, torch.Tensor]) -> None:
        """Fill `targets` in place: tensors of the whole shape or DTensors of any placement and mesh.

        Called by every rank; each reads only what it needs. Dtypes are converted.

        Raises:
            CheckpointError: a key isn't in the checkpoint, its shape differs, or its values aren't those
                that were written.
        """

    def verify(self) -> None:
        """Compare all that is in the checkpoint with its checksums, before anything is loaded from it. Collective.

        Ranks share the work. A reader without checksums, or one that was opened without `verify`, does nothing.

        Raises:
            CheckpointError: something isn't what was written; on every rank.
        """


class Checkpointer(ABC):
    """Saves and opens checkpoints. Collective: every rank must call each method in the same order.

    `save` may return before the checkpoint is complete (`is_async`). It then saves the tensors and the state as they
    were when it was called. `when_saved` and `remove` act after it is complete. `open`, `wait` and the next `save`
    wait for it. If it fails, one of these or `poll` raises the error.
    """

    is_async: bool = False
    """Whether `save` may return before the checkpoint is complete."""

    @abstractmethod
    def save(self, path: str, checkpoint: Checkpoint) -> None:
        """Write a checkpoint to `path`, all of it or nothing.

        A checkpoint that is already at `path` is replaced only once the new one is complete.

        Raises:
            CheckpointError: it can't be written, or the one before it failed; on every rank.
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
        """Delete the checkpoint at `path`; nothing happens where there is none.

        If the save in progress fails, nothing is deleted: it may have been meant to replace this checkpoint.
        """

    def when_saved(self, action: Callable[[], object]) -> None:
        """Call `action` on this rank once all that was saved is complete, or never if that fails. Not collective.

        At once where nothing is being written, otherwise within `poll`, `wait` or `close`, in the order of the calls.
        """
        action()

    def poll(self) -> None:
        """Check, without waiting, whether what is being written has failed. Not collective; called after each step.

        Raises:
            CheckpointError: it failed on this rank; the others may learn of it later.
        """

    def wait(self) -> None:
        """Wait until all that was saved is complete. Collective.

        Raises:
            CheckpointError: it failed; raised on every rank.
        """

    def close(self, failed: bool = False) -> None:
        """End what writes in the background, once it is done. Collective, unless this rank `failed`.

        Args:
            failed: this rank is ending with an exception: don't wait for the others, and raise nothing.

        Raises:
            CheckpointError: what was being written failed.
        """
        if not failed:
            self.wait()
