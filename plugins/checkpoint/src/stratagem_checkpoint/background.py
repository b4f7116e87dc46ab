"""`BackgroundSaves`: writes checkpoints while training continues, at most one at a time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from stratagem.errors import CheckpointError
from stratagem_checkpoint.agreement import on_every_rank, on_first_rank
from stratagem_checkpoint.filesystem import Filesystem
from stratagem_checkpoint.snapshot import SnapshotBuffer
from stratagem_checkpoint.writer import Writer
from stratagem_checkpoint.writer_process import Abandon, Begin, Remove, Save, Span

if TYPE_CHECKING:
    from stratagem import Collectives
    from stratagem_checkpoint.draft import Draft

FAILED_RUN_S = 5.0
"""How long a rank that ends with an error waits for the files of other ranks, which may be gone."""


class BackgroundSaves:
    """Copies a checkpoint into memory, from which a resident process writes it. Training only waits for the copy.

    Each rank's process writes that rank's files, and then a mark file. Rank 0's process completes the checkpoint when
    all marks exist, so that no collective runs during training. Only `save` and `wait` are collective.

    Args:
        collectives: those of the run.
    """

    def __init__(self, collectives: Collectives) -> None:
        self._collectives = collectives
        self.writer = Writer()
        self._buffer, self._is_sent = SnapshotBuffer(), False
        self._shown = ""
        """Name of the checkpoint that is being saved, until all ranks know the outcome; else ""."""
        self._is_written = False
        """Whether this rank's files are written."""
        self._actions: list[Callable[[], object]] = []
        self._failure, self._is_reported = "", False

    @property
    def is_busy(self) -> bool:
        """Whether a save is in progress, or its outcome isn't known on all ranks yet; the same on all ranks."""
        return bool(self._shown)

    def save(self, filesystem: Filesystem, target: str, shown: str, draft: Draft) -> None:
        """Take a snapshot and start writing it. Collective; no other save may be in progress.

        Args:
            filesystem: of the target; it is sent to the process.
            target: the checkpoint's path in the file system's form.
            shown: the checkpoint's name in errors.
            draft: this rank's files and the manifest.

        Raises:
            CheckpointError: the save can't begin; raised on every rank.
        """
        collectives, writer = self._collectives, self.writer
        folder = on_first_rank(collectives, lambda: self._begin(Begin(filesystem, target), shown))
        spans: list[Span] = []
        document = draft.document if collectives.rank == 0 else None
        try:
            on_every_rank(collectives, lambda: spans.extend(self._take(draft)))
            message = Save(
                filesystem, folder, spans, collectives.rank, collectives.world_size, target, document, shown
            )
            on_every_rank(collectives, lambda: writer.send(message, shown))
        except CheckpointError:
            writer.order(Abandon())
            while not writer.is_idle:
                writer.receive(None)
            raise
        self._shown, self._is_written, self._failure, self._is_reported = shown, False, "", False

    def when_saved(self, action: Callable[[], object]) -> None:
        """See `Checkpointer.when_saved`."""
        if self._shown:
            self._actions.append(action)
        else:
            action()

    def remove(self, filesystem: Filesystem, target: str) -> None:
        """Delete a checkpoint after the save in progress is complete. Not collective."""
        if self._collectives.rank == 0:
            self.when_saved(lambda: self.writer.send(Remove(filesystem, target), target))

    def poll(self) -> None:
        """See `Checkpointer.poll`."""
        if not self._shown:
            return
        while self._advance(0.0):
            pass
        if self._failure and not self._is_reported:
            self._is_reported = True
            raise _failed(self._failure)

    def wait(self) -> None:
        """See `Checkpointer.wait`."""
        if not self._shown:
            return
        try:
            # First wait for files: if a rank can't write its own, rank 0's process would wait for them for ever.
            on_every_rank(self._collectives, lambda: self._wait(lambda: self._is_written))
            on_first_rank(self._collectives, lambda: self._wait(lambda: self.writer.is_idle))
        except CheckpointError as error:
            self.writer.order(Abandon())
            while self._advance(None):
                pass
            self._actions.clear()
            raise _failed(str(error)) from error
        finally:
            self._shown = ""
        self._act()

    def close(self, failed: bool) -> None:
        """See `Checkpointer.close`."""
        try:
            if not failed:
                self.wait()
                return
            with suppress(CheckpointError):
                self._wait(lambda: self._is_written)
                self._wait(lambda: self.writer.is_idle, FAILED_RUN_S)
        finally:
            self._shown = ""
            self._actions.clear()
            self.writer.close()
            self._buffer.close()

    def _begin(self, message: Begin, shown: str) -> str:
        self._ensure_writer()
        self.writer.send(message, shown)
        _, event = self.writer.receive(None) or (None, None)
        if event is None or event.kind == "failed":
            raise CheckpointError(
                event.text if event is not None else "the process that writes it doesn't answer"
            )
        return event.text

    def _take(self, draft: Draft) -> list[Span]:
        self._ensure_writer()
        if self._buffer.reserve(draft.contents) or not self._is_sent:
            self.writer.send_buffer(self._buffer)
            self._is_sent = True
        return self._buffer.take(draft.contents)

    def _ensure_writer(self) -> None:
        if self.writer.ensure():
            self._is_sent = False

    def _wait(self, is_over: Callable[[], bool], timeout_s: float | None = None) -> None:
        while not self._failure and not is_over() and self._advance(timeout_s):
            pass
        if self._failure:
            raise CheckpointError(self._failure)

    def _advance(self, timeout_s: float | None) -> bool:
        """Handle one answer of the process; return whether there was one in time."""
        answer = None if self.writer.is_idle else self.writer.receive(timeout_s)
        if answer is None:
            return False
        message, event = answer
        if event.kind == "failed":
            shown, what = (
                (message.target, "removed") if isinstance(message, Remove) else (self._shown, "written")
            )
            named = (
                event.text if shown in event.text else f"the checkpoint {shown} can't be {what}: {event.text}"
            )
            self._failure = self._failure or named
            self._actions.clear()
        elif isinstance(message, Save):
            self._is_written = True
            # Only rank 0 knows that the whole checkpoint is complete; others only know about their own files.
            if event.kind == "done" and self._collectives.rank == 0:
                self._act()
        return True

    def _act(self) -> None:
        actions, self._actions = self._actions, []
        for action in actions:
            action()


def _failed(text: str) -> CheckpointError:
    error = CheckpointError(text)
    error.exit_code = 1  # the exit code of failures after the run has begun
    return error
