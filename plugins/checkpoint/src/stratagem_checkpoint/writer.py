"""`Writer`: the training process's interface to the process that writes in the background."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle

from stratagem.errors import CheckpointError
from stratagem_checkpoint.snapshot import SnapshotBuffer
from stratagem_checkpoint.writer_process import Buffer, Event, Ping

_PROGRAM = """
import sys
sys.path.pop(0)
from multiprocessing.connection import Connection
connection = Connection(int(sys.argv[1]))
sys.path[:] = connection.recv()
from stratagem_checkpoint.writer_process import serve
serve(connection)
"""
_END_S = 10.0


class Writer:
    """Starts the process once for all saves, and restarts it if it has died while idle.

    The process answers messages in order, each with one `Event` "done" or "failed".
    """

    def __init__(self) -> None:
        self._unanswered: deque[tuple[object, str]] = deque()
        """Unanswered messages, each with the name of its checkpoint in errors."""
        self._start()

    @property
    def pid(self) -> int:
        """The process's ID."""
        return self._process.pid

    @property
    def is_idle(self) -> bool:
        """Whether it has answered all messages."""
        return not self._unanswered

    def ensure(self) -> bool:
        """Restart the process if it has died while idle; return whether it was restarted."""
        if self._answers():
            return False
        self.close()
        self._start()
        return True

    def _answers(self) -> bool:
        # Ping it: a killed process looks alive to poll() until all of its threads have ended.
        try:
            self._connection.send(Ping())
            self._connection.recv()
        except (EOFError, OSError):
            return False
        return True

    def send_buffer(self, buffer: SnapshotBuffer) -> None:
        """Make the process read from this memory from now on."""
        with self._noticing_death("a checkpoint"):
            memory = buffer.memory
            self._connection.send(Buffer(memory.offset, os.getpid() if memory.is_of_process else None))
            send_handle(self._connection, memory.descriptor, self._process.pid)

    def send(self, message: object, shown: str) -> None:
        """Send a request; `shown` names its checkpoint in errors.

        Raises:
            CheckpointError: the process has died.
        """
        with self._noticing_death(shown):
            self._connection.send(message)
        self._unanswered.append((message, shown))

    def order(self, message: object) -> None:
        """Send a message that gets no answer."""
        with suppress(OSError):
            self._connection.send(message)

    def receive(self, timeout_s: float | None) -> tuple[object, Event] | None:
        """Return the oldest message and its answer; None if there is no answer within the timeout.

        If the process has died, the answer is a "failed" event.

        Args:
            timeout_s: None waits as long as the process lives.
        """
        message, shown = self._unanswered[0]
        try:
            if not self._connection.poll(timeout_s):
                return None
            event: Event = self._connection.recv()
        except (EOFError, OSError):
            self._unanswered.clear()
            return message, Event("failed", self._death(shown))
        if event.kind != "written":
            self._unanswered.popleft()
        return message, event

    def close(self) -> None:
        """End the process."""
        self._connection.close()
        self._unanswered.clear()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _start(self) -> None:
        own, other = socket.socketpair()
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, str(other.fileno())],
                pass_fds=[other.fileno()],
                stdin=subprocess.DEVNULL,
            )
        self._connection = Connection(own.detach())
        self._connection.send(sys.path)

    @contextmanager
    def _noticing_death(self, shown: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CheckpointError(self._death(shown)) from error

    def _death(self, shown: str) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        code = self._process.returncode
        how = f"exit code {code}"
        if code is not None and code < 0:
            how = signal.Signals(-code).name
        return (
            f"process {self._process.pid}, which writes checkpoints in the background, ended by {how} before "
            f"{shown or 'it'} was complete; what was there before is as it was"
        )
