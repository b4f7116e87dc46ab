"""What the process that writes in the background does. Imports no torch, so that it is there at once.

It is given the bytes of a rank's files in shared memory and writes them, each with its checksums. Ranks leave a mark
when their files are written; rank 0's process waits for all marks, and then makes a whole checkpoint of the files:
so ranks need no collective while they train. When the process that it writes for is gone, it ends at once, and what
it was writing is never called a checkpoint.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import astuple, dataclass
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import Any, NamedTuple

from stratagem_checkpoint.checked_files import FileRecord, write_checked
from stratagem_checkpoint.commit import commit
from stratagem_checkpoint.filesystem import Filesystem
from stratagem_checkpoint.memory_reader import MemoryReader
from stratagem_checkpoint.publication import remove, temporary, written_mark

_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
"""What launchers and schedulers send to a whole group of processes; the training process decides what comes of it."""
_MARK_LIMIT_BYTES = 2**26


@dataclass(frozen=True)
class Buffer:
    """Read from now on this memory, whose descriptor follows."""

    offset: int
    """Offset of its first byte, among what the descriptor reads."""
    process: int | None
    """Whose memory the descriptor reads; None where it is a file's."""


@dataclass(frozen=True)
class Begin:
    """Make the folder that all ranks write in; answered with its path. Of rank 0 alone."""

    filesystem: Filesystem
    target: str


class Span(NamedTuple):
    """A file's place in the buffer."""

    name: str
    start: int
    size_bytes: int


@dataclass(frozen=True)
class Save:
    """Write this rank's files; on rank 0, make a checkpoint of all ranks'."""

    filesystem: Filesystem
    folder: str
    spans: Sequence[Span]
    """Spans of this rank's files."""
    rank: int
    world_size: int
    target: str
    document: Mapping[str, Any] | None
    """The manifest's document; None on ranks other than 0."""
    shown: str


class Ping:
    """Answer."""


class Abandon:
    """Give up what is being saved."""


@dataclass(frozen=True)
class Remove:
    """Delete a checkpoint."""

    filesystem: Filesystem
    target: str


@dataclass(frozen=True)
class Event:
    """A message to the training process."""

    kind: str
    """"written": rank 0's own files are written; "done": the oldest request is complete; "failed"."""
    text: str = ""
    """The folder that was made, or what went wrong."""


def serve(connection: Connection) -> None:
    """Serve requests until the connection closes."""
    for name in _SIGNALS:
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    writer = _Writer(connection)
    try:
        while True:
            writer.do(connection.recv())
    except (EOFError, OSError):
        writer.abandon()


def _end_with(parent: int) -> None:
    # Forked workers of a loader may hold the other end of the connection open for longer than its process lives.
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


class _Writer:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._memory: MemoryReader | None = None
        self._folder = ExitStack()
        """Held from its making until it has its name, or is deleted."""

    def do(self, message: object) -> None:
        if isinstance(message, Buffer):
            self._take_buffer(message)
            return
        if isinstance(message, Abandon):
            self.abandon()
            return
        try:
            text = ""
            if isinstance(message, Begin):
                self.abandon()
                text = self._folder.enter_context(temporary(message.filesystem, message.target))
            elif isinstance(message, Save):
                self._save(message)
            elif isinstance(message, Remove):
                remove(message.filesystem, message.target)
            self._tell("done", text)
        except Exception as error:
            if isinstance(error, (EOFError, BrokenPipeError)):
                raise
            self.abandon()
            text = (
                str(error)
                if type(error).__name__ == "CheckpointError"
                else f"{type(error).__name__}: {error}"
            )
            self._tell("failed", text)

    def abandon(self) -> None:
        self._folder.close()

    def _take_buffer(self, buffer: Buffer) -> None:
        if self._memory is not None:
            self._memory.close()
        descriptor = recv_handle(self._connection)
        # Another process may have started this one for it, and has something else at that address.
        parent = buffer.process if buffer.process == os.getppid() else None
        self._memory = MemoryReader(descriptor, buffer.offset, parent)

    def _save(self, save: Save) -> None:
        assert self._memory is not None
        files = [
            write_checked(save.filesystem, save.folder, name, self._memory.parts(start, size_bytes))
            for name, start, size_bytes in save.spans
        ]
        if save.document is None:
            mark = json.dumps([astuple(record) for record in files]).encode()
            save.filesystem.write(save.filesystem.join(save.folder, written_mark(save.rank)), [mark])
            return
        self._tell("written")
        marks = [written_mark(rank) for rank in range(1, save.world_size)]
        for mark_name in marks:
            files += self._others(save, mark_name)
        for mark_name in marks:
            save.filesystem.remove(save.filesystem.join(save.folder, mark_name))
        commit(save.filesystem, save.folder, save.target, save.document, files, save.shown)
        self.abandon()

    def _others(self, save: Save, mark_name: str) -> list[FileRecord]:
        path, pause_s = save.filesystem.join(save.folder, mark_name), 0.005
        while True:
            size_bytes = save.filesystem.size(path)
            if size_bytes is not None:
                try:
                    text = save.filesystem.read(path, min(size_bytes, _MARK_LIMIT_BYTES))
                    return [FileRecord(*each) for each in json.loads(text)]
                except ValueError:
                    pass  # it is being written
            if self._connection.poll(pause_s):
                self.do(self._connection.recv())
                raise InterruptedError("another rank couldn't write its files")
            pause_s = min(2 * pause_s, 0.5)

    def _tell(self, kind: str, text: str = "") -> None:
        self._connection.send(Event(kind, text))
