"""`BackgroundSaves`: checkpoints that are written while training goes on, at most one at a time."""

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
"""How long a rank that ends by an error waits for the files of others, which may be gone."""


class BackgroundSaves:
    """Copies what is to be saved into memory that a resident process writes from; training waits for the copy alone.

    The process of each rank writes that rank's files and leaves a mark, and rank 0's makes the checkpoint when all
    marks are there, so that no collective runs beside training. Ranks meet in `save` and `wait` alone.

    Args:
        collectives: those of the run.
    """

    def __init__(self, collectives: Collectives) -> None:
        self._collectives = collectives
        self.writer = Writer()
        self._buffer, self._is_sent = SnapshotBuffer(), False
        self._shown = ""
        """What is being saved, until all ranks know how that went."""
        self._is_written = False
        """Whether this rank's files are."""
        self._actions: list[Callable[[], object]] = []
        self._failure, self._is_reported = "", False

    @property
    def is_busy(self) -> bool:
        """Whether something was saved of which not all ranks know yet how that went; alike on all ranks."""
        return bool(self._shown)

    def save(self, filesystem: Filesystem, target: str, shown: str, draft: Draft) -> None:
        """Take a snapshot and let it be written. Collective, with nothing being saved.

        Args:
            filesystem: of the target; goes to the process.
            target: the checkpoint's path in the file system's form.
            shown: how errors name it.
            draft: what there is to write.

        Raises:
            CheckpointError: it can't be begun; on every rank.
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
        """Let a checkpoint be deleted once what is being saved is complete. Not collective."""
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
            # Files first: a rank that couldn't write its own would leave rank 0's process waiting for them.
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
        """Take note of one answer of the process; whether there was one in time."""
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
            # On other ranks, that this rank's files are written says nothing of the checkpoint.
            if event.kind == "done" and self._collectives.rank == 0:
                self._act()
        return True

    def _act(self) -> None:
        actions, self._actions = self._actions, []
        for action in actions:
            action()


def _failed(text: str) -> CheckpointError:
    error = CheckpointError(text)
    error.exit_code = 1  # of a run that has begun
    return error
