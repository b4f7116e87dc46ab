"""`Checkpointer`: writes and reads checkpoints; the result of the `checkpoint` hook."""

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
        tensors: this rank's tensors, on any device: DTensors are sharded, other tensors are whole. A whole tensor
            that several ranks have is written once. The checkpoint is the union over ranks. Keys are "model/<name>"
            and "optimizer/<index>/<name>/<state>", with the names of the user's module.
        state: nested dicts, lists, tuples, numbers, strings, bytes, None and small tensors or numpy arrays. Only rank
            0's is written.
        rank_state: values of the same kinds that are written for each rank, such as of its random number generators
            and its loaders.
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
    """Its name in errors."""

    @abstractmethod
    def rank_state(self, rank: int) -> Mapping[str, Any] | None:
        """Return the state that rank `rank` saved; None if there was no such rank."""

    @abstractmethod
    def read(self, targets: Mapping[str, torch.Tensor]) -> None:
        """Fill `targets` in place: whole tensors, or DTensors of any placement and mesh.

        Called by every rank; each reads only what it needs. Dtypes are converted.

        Raises:
            CheckpointError: a key isn't in the checkpoint, its shape differs, or its values aren't those that were
                written.
        """

    def verify(self) -> None:
        """Compare everything in the checkpoint with its checksums, before anything is loaded from it. Collective.

        Ranks share the work. A reader without checksums, or one that was opened without `verify`, does nothing.

        Raises:
            CheckpointError: something differs from what was written; raised on every rank.
        """


class Checkpointer(ABC):
    """Saves and opens checkpoints. Collective: every rank must call each method in the same order.

    `save` may return before the checkpoint is complete (`is_async`). It then saves the values that tensors and state
    had when it was called. `when_saved` and `remove` act after the checkpoint is complete. `open`, `wait` and the
    next `save` wait for it. If it fails, one of these or `poll` raises the error.
    """

    is_async: bool = False
    """Whether `save` may return before the checkpoint is complete."""

    @abstractmethod
    def save(self, path: str, checkpoint: Checkpoint) -> None:
        """Write a checkpoint to `path`, either completely or not at all.

        A checkpoint that is already at `path` is replaced only when the new one is complete.

        Raises:
            CheckpointError: it can't be written, or the previous one failed; raised on every rank.
        """

    @abstractmethod
    def open(self, path: str, verify: bool = True) -> CheckpointReader:
        """Open the checkpoint at `path`.

        Args:
            path: the path that `save` got.
            verify: whether everything that is read, now and later, is compared with its checksums.

        Raises:
            CheckpointError: there is no checkpoint, or it is damaged or from another version; raised on every rank.
        """

    @abstractmethod
    def remove(self, path: str) -> None:
        """Delete the checkpoint at `path`, if there is one.

        If the save in progress fails, nothing is deleted: its checkpoint may have been meant to replace this one.
        """

    def when_saved(self, action: Callable[[], object]) -> None:
        """Call `action` on this rank when all saves are complete, or never if one fails. Not collective.

        If nothing is being written, the call is made at once. Otherwise it is made within `poll`, `wait` or `close`,
        in the order of the calls of this method.
        """
        action()

    def poll(self) -> None:
        """Check, without waiting, whether the save in progress has failed. Not collective; called after each step.

        Raises:
            CheckpointError: it failed on this rank; the others may learn of it later.
        """

    def wait(self) -> None:
        """Wait until all saves are complete. Collective.

        Raises:
            CheckpointError: it failed; raised on every rank.
        """

    def close(self, failed: bool = False) -> None:
        """Wait for writing in the background, and end it. Collective, unless this rank `failed`.

        Args:
            failed: this rank is ending with an exception: don't wait for the others, and raise nothing.

        Raises:
            CheckpointError: the save in progress failed.
        """
        if not failed:
            self.wait()
