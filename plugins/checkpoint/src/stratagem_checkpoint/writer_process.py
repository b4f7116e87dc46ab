"""The process that writes in the background. It doesn't import torch, so that it starts quickly.

It reads the bytes of a rank's files from shared memory and writes them with their checksums. Each rank's process
writes a mark file after its files. Rank 0's process waits for all marks and then completes the checkpoint, so that
ranks need no collective during training. If the training process ends, this process ends at once, and the unfinished
files never become a checkpoint.
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
"""Signals that launchers and schedulers send to a whole process group. Only the training process handles them."""
_MARK_LIMIT_BYTES = 2**26


@dataclass(frozen=True)
class Buffer:
    """Request: read from this memory from now on. Its descriptor follows."""

    offset: int
    """Offset of its first byte in the descriptor."""
    process: int | None
    """Id of the process whose memory the descriptor reads; None for a file."""


@dataclass(frozen=True)
class Begin:
    """Request, on rank 0 only: create the folder for all ranks' files. The answer has its path."""

    filesystem: Filesystem
    target: str


class Span(NamedTuple):
    """A file's place in the buffer."""

    name: str
    start: int
    size_bytes: int


@dataclass(frozen=True)
class Save:
    """Request: write this rank's files; on rank 0, also complete the checkpoint."""

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
    """Request: answer."""


class Abandon:
    """Message: give up the save in progress. It gets no answer."""


@dataclass(frozen=True)
class Remove:
    """Request: delete a checkpoint."""

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
    # Forked loader workers may keep the connection open after the training process has ended.
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


class _Writer:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._memory: MemoryReader | None = None
        self._folder = ExitStack()
        """Holds the temporary folder from its creation until it is renamed or deleted."""

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
            self._send("done", text)
        except Exception as error:
            if isinstance(error, (EOFError, BrokenPipeError)):
                raise
            self.abandon()
            text = (
                str(error)
                if type(error).__name__ == "CheckpointError"
                else f"{type(error).__name__}: {error}"
            )
            self._send("failed", text)

    def abandon(self) -> None:
        self._folder.close()

    def _take_buffer(self, buffer: Buffer) -> None:
        if self._memory is not None:
            self._memory.close()
        descriptor = recv_handle(self._connection)
        # If another process is the parent, the address isn't valid in its memory.
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
        self._send("written")
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

    def _send(self, kind: str, text: str = "") -> None:
        self._connection.send(Event(kind, text))
