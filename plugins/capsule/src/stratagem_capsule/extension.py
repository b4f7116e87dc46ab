"""`Capsule`: the extension `capsule`, which brings the callback that keeps steps and tells it of checkpoints."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from stratagem import CheckpointerWrapper, hookimpl
from stratagem_capsule.errors import CapsuleError

if TYPE_CHECKING:
    from stratagem import (
        Checkpoint,
        Checkpointer,
        CheckpointReader,
        CheckpointRequest,
        Prepared,
        SetupRequest,
    )
    from stratagem_capsule.callback import Capsules


class CheckpointObserver(Protocol):
    """What learns of a run's checkpoints."""

    def saving(self, step: int) -> None:
        """A checkpoint of `step` is about to be written. On every rank."""

    def saved(self, path: str, step: int) -> None:
        """The checkpoint of `step` at `path` is complete. On every rank, at times of its own."""


class Capsule:
    """Keeps the batches and random numbers since the last checkpoint of a Trainer's fit: `Capsules` says how.

    Attributes:
        observer: learns of checkpoints; set once a fit has begun.
        opened: path and step of the trainer's checkpoint that was opened last.
    """

    def __init__(self) -> None:
        self.observer: CheckpointObserver | None = None
        self.opened: tuple[str, int] | None = None

    def configure_callbacks(self) -> Sequence[Capsules]:
        """Return the callback with its defaults, for a trainer that wasn't given one."""
        from stratagem_capsule.callback import Capsules

        return [Capsules()]

    @hookimpl(wrapper=True)
    def checkpoint(self, request: CheckpointRequest) -> Generator[None, Checkpointer, Checkpointer]:
        """Notice which checkpoints are saved and opened."""
        return _Noticing((yield), self)

    @hookimpl(wrapper=True)
    def setup(self, request: SetupRequest) -> Generator[None, Prepared, Prepared]:
        """Refuse a training loop without a trainer, whose steps can't be run again."""
        if request.loop.training and not getattr(request.original_module, "has_trainer", False):
            raise CapsuleError(
                "capsules keep the steps of a Trainer, and this is your own training loop with Runtime: "
                "leave `capsule` out, or train by `stratagem fit` or Trainer"
            )
        return (yield)


class _Noticing(CheckpointerWrapper):
    """Tells the observer of checkpoints from which a fit can go on."""

    def __init__(self, inner: Checkpointer, extension: Capsule) -> None:
        super().__init__(inner)
        self._extension = extension

    def save(self, path: str, checkpoint: Checkpoint) -> None:
        observer, step = self._extension.observer, _step_of(checkpoint.state)
        if observer is None or step is None:
            self.inner.save(path, checkpoint)
            return
        observer.saving(step)
        self.inner.save(path, checkpoint)
        self.inner.when_saved(lambda: observer.saved(path, step))

    def open(self, path: str, verify: bool = True) -> CheckpointReader:
        reader = self.inner.open(path, verify)
        step = _step_of(reader.state)
        if step is not None:
            self._extension.opened = path, step
        return reader


def _step_of(state: Any) -> int | None:
    """The optimizer steps before a checkpoint of a trainer; None for any other."""
    return int(state["progress"]["step"]) if state.get("kind") == "trainer" else None
