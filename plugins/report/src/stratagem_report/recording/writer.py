"""`Writer`: appends to a file in its own thread, so that no step waits for a disk."""

from __future__ import annotations

import os
import sys
from queue import SimpleQueue
from threading import Thread


class Writer:
    """A new file, to which complete blocks are appended in order.

    A full disk must not end the training: a line on standard error says that the record ends.

    Args:
        path: of the file; its folder is created if needed.

    Raises:
        OSError: the file can't be created.
    """

    def __init__(self, path: str) -> None:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self._path = path
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
        self._queue: SimpleQueue[bytes | None] = SimpleQueue()
        self._thread = Thread(target=self._write, name="stratagem-record", daemon=True)
        self._thread.start()

    def write(self, data: bytes) -> None:
        """Append `data` in the background."""
        self._queue.put(data)

    def close(self, timeout_s: float = 30.0) -> None:
        """Wait until everything is written, at most `timeout_s`."""
        self._queue.put(None)
        self._thread.join(timeout_s)

    def _write(self) -> None:
        try:
            while (data := self._queue.get()) is not None:
                while data:
                    data = data[os.write(self._descriptor, data) :]
        except OSError as error:
            print(f"the record {self._path} ends here: {error.strerror}", file=sys.stderr, flush=True)
        finally:
            os.close(self._descriptor)
